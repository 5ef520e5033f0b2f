"""Binary classification: class 1 is the positive one, and perhaps rare.

The area under the ROC curve and the average precision need all scores at once,
and do not add up over blocks, clients and devices. So the margin of each example
is kept (``Task.scores``), the log odds of the positive class, and ranked on the
host. The probability would not do: that of margins above 17 is 1 in float32.
"""

from collections.abc import Mapping
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.tasks.classification import CLASSIFICATION
from fedjax_alg.tasks.task import HIGHER, LOWER, Sums, Task, if_any, ratio
from fedjax_alg.typing import Array

#: Bins of equal width of the probability of class 1, for the calibration error.
CALIBRATION_BINS = 15


def _sums(logits: Array, y: Array, losses: Array, mask: Array) -> Sums:
  """The sums of classification, and those of the probability p of class 1.

  "squares" is the sum of (p - y)^2, and "calibration" [3, CALIBRATION_BINS] for
  each bin of p the number of examples, of positive ones, and the sum of p.
  """
  margin = jnp.where(mask, logits[:, 1] - logits[:, 0], 0.0)
  weight, label = mask.astype(jnp.float32), jnp.where(mask, y, 0)
  p, truth = jax.nn.sigmoid(margin), label.astype(jnp.float32)
  parts = jnp.stack([weight, weight * truth, weight * p])
  place = jnp.clip(p * CALIBRATION_BINS, 0, CALIBRATION_BINS - 1).astype(jnp.int32)
  return dict(CLASSIFICATION.sums(logits, y, losses, mask)) | {
    "squares": (weight * jnp.square(p - truth)).sum(),
    "calibration": jnp.zeros((3, CALIBRATION_BINS)).at[:, place].add(parts),
  }


def _scores(logits: Array, y: Array) -> dict[str, Array]:
  """The margin of each example and whether it is positive, [B]."""
  return {"margin": logits[:, 1] - logits[:, 0], "positive": y == 1}


def _ranks(
  scores: Mapping[str, np.ndarray], group: np.ndarray, number: int
) -> dict[str, np.ndarray]:
  """What both metrics of ranks follow from, of each group, [G] float64.

  "pairs_won" is the number of pairs of a positive and a negative example in
  which the positive one has the higher margin, ties counting half;
  "precision_sum" the sum over the positive examples of the precision at their
  margin. NaN for a group with a margin that is NaN.
  """
  order = np.argsort(scores["margin"])
  if number > 1:  # few bits: NumPy sorts them by their digits
    few_bits = group.astype(np.min_scalar_type(number))
    order = order[np.argsort(few_bits[order], kind="stable")]
  margin, group = scores["margin"][order], group[order]
  positive = scores["positive"][order]
  # Examples of a group with the same margin are a tie; n' ties by their last one.
  last = np.ones(len(group), bool)
  last[:-1] = (margin[:-1] != margin[1:]) | (group[:-1] != group[1:])
  of = group[last]
  through = np.cumsum([~positive, positive], axis=1)[:, last]  # [2, n']
  before = np.pad(through, ((0, 0), (1, 0)))
  misses, hits = np.diff(before)
  edges = np.searchsorted(of, np.arange(number + 1))
  first, end = before[:, edges[:-1]][:, of], before[:, edges[1:]][:, of]
  below, above = before[:, :-1] - first, end - before[:, :-1]
  no_number = np.bincount(group[np.isnan(margin)], minlength=number) > 0
  return {
    name: np.where(no_number, np.nan, np.bincount(of, hits * values, number))
    for name, values in (
      ("pairs_won", below[0] + misses / 2),
      ("precision_sum", above[1] / above.sum(0)),
    )
  }


def _values(sums: Sums) -> Sums:
  """Computes the metrics as scikit-learn, but NaN where there is nothing to rank.

  ``auroc`` needs examples of both classes, ``auprc`` (the average precision) and
  ``f1`` positive ones. ``brier`` is the mean of (p - y)^2, and ``ece`` the
  expected calibration error over ``CALIBRATION_BINS`` bins of p, the mean over the
  examples of |mean p - share of positive ones| in their bin (Naeini et al., AAAI
  2015, of the probability of class 1).
  """
  rows, hits, predicted = sums["rows"], sums["hits"], sums["predicted"]
  total, negative, positive = rows.sum(-1), rows[..., 0], rows[..., 1]
  nothing = if_any(total)
  calibration = sums["calibration"]
  gaps = np.abs(calibration[..., 1, :] - calibration[..., 2, :]).sum(-1)
  occurs = (rows > 0).sum(-1)
  return {
    "auroc": ratio(sums["pairs_won"], positive * negative)
    * if_any(positive * negative),
    "auprc": ratio(sums["precision_sum"], positive) * if_any(positive),
    "f1": ratio(2 * hits[..., 1], positive + predicted[..., 1]) * if_any(positive),
    "balanced_accuracy": ratio(ratio(hits, rows).sum(-1), occurs) * nothing,
    "accuracy": ratio(hits.sum(-1), total) * nothing,
    "brier": ratio(sums["squares"], total) * nothing,
    "ece": ratio(gaps, total) * nothing,
    "loss": ratio(sums["loss"].sum(-1), total) * nothing,
  }


def _targets(y: np.ndarray) -> np.ndarray:
  if y.dtype.kind in "iu" and y.size and (y.min() < 0 or y.max() > 1):
    raise ValueError(
      f"lies in [{y.min()}, {y.max()}], 0 (negative) and 1 (positive) are needed"
    )
  result: np.ndarray = CLASSIFICATION.targets(y)
  return result


def _size(*targets: np.ndarray) -> int:
  del targets
  return 2


#: Metrics beside the main one that each client has, too.
_AT_CLIENTS = ("auprc", "f1", "balanced_accuracy", "accuracy", "brier", "ece")

BINARY: Task = dataclasses.replace(
  CLASSIFICATION,
  name="binary",
  sums=_sums,
  values=_values,
  better={
    "auroc": HIGHER,
    "auprc": HIGHER,
    "f1": HIGHER,
    "balanced_accuracy": HIGHER,
    "accuracy": HIGHER,
    "brier": LOWER,
    "ece": LOWER,
    "loss": LOWER,
  },
  shares=("auroc", "auprc", "f1", "balanced_accuracy", "accuracy", "ece"),
  targets=_targets,
  size=_size,
  pooled=lambda sums: sums,
  scores=_scores,
  ranks=_ranks,
  at_clients=_AT_CLIENTS,
  flipped=lambda y: 1 - y,
  of_matrix=False,
)
