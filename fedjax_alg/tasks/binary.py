"""Binary classification: class 1 is the positive one, and perhaps rare.

Metrics of ranks need all scores at once, and sums have to add up over blocks,
clients and devices. So scores are counted in a histogram of ``BINS`` bins for
each class, from which the area under the ROC curve and the average precision
follow, examples of one bin counting as ties. Bins are equal in the inverse
hyperbolic sine of the margin (the log odds of the positive class): 0.0002 wide
around 0, and 0.4 % of the margin far from 0. ``rank_errors`` bounds how far both
numbers are from those of all scores. All other metrics are exact.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.tasks.classification import CLASSIFICATION
from fedjax_alg.tasks.task import HIGHER, LOWER, Sums, Task, if_any, module_of, ratio
from fedjax_alg.typing import AnyArray, Array

BINS = 4096
#: Margins up to about this size have bins of equal width.
_SCALE = 0.05
#: Larger margins are in the first and the last bin.
_LIMIT = 64.0
#: Bins of equal width of the probability of class 1, for the calibration error.
CALIBRATION_BINS = 15


def _bins(margin: Array) -> Array:
  """The bin of each margin [B], int32 in [0, BINS)."""
  place = jnp.arcsinh(margin / _SCALE) / math.asinh(_LIMIT / _SCALE)
  return jnp.clip((place + 1) * (BINS / 2), 0, BINS - 1).astype(jnp.int32)


def _sums(logits: Array, y: Array, losses: Array, mask: Array) -> Sums:
  """The sums of classification, and those of the scores.

  "histogram" [2, BINS] are the numbers of negative and positive examples by their
  margin, "squares" the sum of (p - y)^2, and "calibration" [3,
  CALIBRATION_BINS] for each bin of p the number of examples, of positive ones,
  and the sum of p.
  """
  margin = jnp.where(mask, logits[:, 1] - logits[:, 0], 0.0)
  weight, label = mask.astype(jnp.float32), jnp.where(mask, y, 0)
  p, truth = jax.nn.sigmoid(margin), label.astype(jnp.float32)
  parts = jnp.stack([weight, weight * truth, weight * p])
  place = jnp.clip(p * CALIBRATION_BINS, 0, CALIBRATION_BINS - 1).astype(jnp.int32)
  return dict(CLASSIFICATION.sums(logits, y, losses, mask)) | {
    "histogram": jnp.zeros((2, BINS)).at[label, _bins(margin)].add(weight),
    "squares": (weight * jnp.square(p - truth)).sum(),
    "calibration": jnp.zeros((3, CALIBRATION_BINS)).at[:, place].add(parts),
  }


def _rank_sums(histogram: AnyArray) -> Sums:
  """What both metrics of ranks follow from, of [..., 2, BINS].

  "pairs_won" is the number of pairs of a positive and a negative example in
  which the positive one has the higher score, ties counting half;
  "precision_sum" the sum over the positive examples of the precision at their
  score.
  """
  negative, positive = histogram[..., 0, :], histogram[..., 1, :]
  below = negative.cumsum(-1) - negative
  hits = positive[..., ::-1].cumsum(-1)[..., ::-1]
  predicted = (negative + positive)[..., ::-1].cumsum(-1)[..., ::-1]
  return {
    "pairs_won": (positive * (below + negative / 2)).sum(-1),
    "precision_sum": (positive * ratio(hits, predicted)).sum(-1),
  }


def rank_errors(histogram: AnyArray) -> tuple[AnyArray, AnyArray]:
  """Bounds how far ``auroc`` and ``auprc`` are from those of all scores.

  Within a bin the order of the scores is not known. Of ``auroc`` each pair of a
  positive and a negative example there may count 1/2 more or less. Of ``auprc``
  the positive ones may come before or after all negative ones.

  Args:
    histogram: [..., 2, BINS], "histogram" of the sums.

  Returns:
    The largest errors of ``auroc`` and of ``auprc``, [...].
  """
  negative, positive = histogram[..., 0, :], histogram[..., 1, :]
  total = positive.sum(-1)
  same = (positive * negative).sum(-1)
  hits = positive[..., ::-1].cumsum(-1)[..., ::-1]
  misses = negative[..., ::-1].cumsum(-1)[..., ::-1]
  precision = ratio(hits, hits + misses)
  # The first of them after all negative ones, and the last before all.
  first = hits - positive + 1
  lowest = ratio(first, first + misses)
  highest = ratio(hits, hits + misses - negative)
  xp = module_of(precision)
  most = xp.maximum(highest - precision, precision - xp.minimum(lowest, precision))
  return (
    ratio(same / 2, total * negative.sum(-1)),
    ratio((positive * most).sum(-1), total),
  )


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
  of_ranks = _rank_sums(sums["histogram"]) if "histogram" in sums else sums
  nothing = if_any(total)
  calibration = sums["calibration"]
  gaps: AnyArray = calibration[..., 1, :] - calibration[..., 2, :]
  gaps = module_of(gaps).abs(gaps).sum(-1)
  occurs = (rows > 0).sum(-1)
  return {
    "auroc": ratio(of_ranks["pairs_won"], positive * negative)
    * if_any(positive * negative),
    "auprc": ratio(of_ranks["precision_sum"], positive) * if_any(positive),
    "f1": ratio(2 * hits[..., 1], positive + predicted[..., 1]) * if_any(positive),
    "balanced_accuracy": ratio(ratio(hits, rows).sum(-1), occurs) * nothing,
    "accuracy": ratio(hits.sum(-1), total) * nothing,
    "brier": ratio(sums["squares"], total) * nothing,
    "ece": ratio(gaps, total) * nothing,
    "loss": ratio(sums["loss"].sum(-1), total) * nothing,
  }


def _pool(sums: Sums) -> Sums:
  """The sums without the histogram, which would be large for each client."""
  few = {name: value for name, value in sums.items() if name != "histogram"}
  return few | _rank_sums(sums["histogram"])


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
  pooled=_pool,
  at_clients=_AT_CLIENTS,
  flipped=lambda y: 1 - y,
  of_matrix=False,
)
