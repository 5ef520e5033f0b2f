"""Multi-label classification: any of L labels for each example."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.tasks import task as task_lib
from fedjax_alg.tasks.task import HIGHER, LOWER, Labels, Sums, Task, if_any, ratio
from fedjax_alg.typing import Array


def _binary_cross_entropy(logits: Array, y: Array) -> Array:
  """Mean over the labels of -log sigmoid(+-logit), [B] float32."""
  signed = jnp.where(y > 0, logits, -logits)
  return jax.nn.softplus(-signed).mean(-1)


def _sums(logits: Array, y: Array, losses: Array, mask: Array) -> Sums:
  """Numbers [L] of true, predicted and rightly predicted labels.

  A label is predicted where its logit is above 0.
  """
  truth, predicted = (y > 0) & mask[:, None], (logits > 0) & mask[:, None]
  return {
    "truth": truth.sum(0).astype(jnp.float32),
    "predicted": predicted.sum(0).astype(jnp.float32),
    "hits": (truth & predicted).sum(0).astype(jnp.float32),
    "exact": (mask & (truth == predicted).all(1)).sum().astype(jnp.float32),
  }


def _values(sums: Sums) -> Sums:
  """F1 as in scikit-learn, 0 where nothing is true or predicted."""
  nothing = if_any(sums["rows"])
  hits, both = sums["hits"], sums["truth"] + sums["predicted"]
  values = {"micro_f1": ratio(2 * hits.sum(-1), both.sum(-1)) * nothing}
  if "exact" in sums:  # not of each client
    values["macro_f1"] = ratio(2 * hits, both).mean(-1) * nothing
    values["subset_accuracy"] = ratio(sums["exact"], sums["rows"]) * nothing
  return values


def _pool(sums: Sums) -> Sums:
  """The sums over the labels, [1]."""
  return {
    "rows": sums["rows"],
    "loss": sums["loss"],
    **{
      name: sums[name].sum(-1, keepdims=True) for name in ("truth", "predicted", "hits")
    },
  }


def _targets(y: np.ndarray) -> np.ndarray:
  if y.dtype.kind == "f" and ((y == 0) | (y == 1)).all():
    y = y.astype(np.int32)
  if y.dtype.kind == "b":
    y = y.astype(np.int32)
  y = task_lib.whole_numbers(y, 0, 1)
  if y.ndim != 2 or not y.shape[1]:
    raise ValueError(
      f"has shape {y.shape}, a column of 0 and 1 for each label is needed"
    )
  return y


def _labels(y_train: np.ndarray, y_test: np.ndarray, size: int) -> Labels:
  """Picks of each example's labels the one most frequent in training.

  An example without labels has label L.
  """
  often = np.argsort(-y_train.sum(0), kind="stable")

  def first(y):
    has_label = y[:, often] > 0
    return np.where(has_label.any(1), often[has_label.argmax(1)], size).astype(np.int32)

  return Labels(first(y_train), first(y_test), size + 1)


def _signs(y: Array, mask: Array, size: int) -> Array:
  """1 for a label and -1 for none, [B, L]: 0 is then half way, as for logits."""
  del size
  signs = jnp.where(y > 0, 1.0, -1.0)
  return jnp.where(mask[:, None], signs, jnp.zeros_like(signs))


MULTI_LABEL = Task(
  "multi_label",
  _binary_cross_entropy,
  _sums,
  _values,
  {"micro_f1": HIGHER, "macro_f1": HIGHER, "subset_accuracy": HIGHER, "loss": LOWER},
  shares=("micro_f1", "macro_f1", "subset_accuracy"),
  targets=_targets,
  size=task_lib.num_columns,
  outputs=lambda y, size: (y.shape[0], size),
  labels=_labels,
  pooled=_pool,
  flipped=lambda y: 1 - y,
  fitted=_signs,
)
