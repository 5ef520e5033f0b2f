"""Classification: one class in [0, L) for each example."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.metrics.names import METRICS
from fedjax_alg.tasks import task as task_lib
from fedjax_alg.tasks.task import HIGHER, LOWER, Sums, Task, if_any, ratio
from fedjax_alg.typing import AnyArray, Array

#: The most classes that labels may have.
MAX_CLASSES = 100_000
#: With more classes there is no confusion matrix.
MAX_MATRIX = 1_000


def cross_entropy(logits: Array, y: Array) -> Array:
  """Computes -log softmax(logits)[y] of each example, [B] float32."""
  # A comparison instead of a gather, whose gradient would be a scatter.
  labels = jnp.arange(logits.shape[1], dtype=y.dtype)
  picked = jnp.where(y[:, None] == labels[None], logits, 0.0).sum(1)
  return jax.nn.logsumexp(logits, axis=1) - picked


def _true_and_predicted(
  logits: Array, y: Array, mask: Array
) -> tuple[Array, Array, Array]:
  """One-hot [B, L] labels, 0 for rows that are ignored, and predictions.

  The prediction is the argmax, the lowest class for ties.
  """
  weight = mask.astype(jnp.float32)
  true = jax.nn.one_hot(y, logits.shape[1]) * weight[:, None]
  return true, jax.nn.one_hot(jnp.argmax(logits, axis=1), logits.shape[1]), weight


def _sums(logits: Array, y: Array, losses: Array, mask: Array) -> Sums:
  """Numbers [L] of examples, correct ones and predictions of each class.

  The losses are added by true class.
  """
  true, predicted, weight = _true_and_predicted(logits, y, mask)
  # The loss of an ignored example may be NaN, and 0 * NaN is NaN.
  losses = jnp.where(weight > 0, losses, jnp.zeros_like(losses))
  return {
    "rows": true.sum(0),
    "hits": (true * predicted).sum(0),
    "predicted": (predicted * weight[:, None]).sum(0),
    # By default accelerators would round the losses.
    "loss": jnp.matmul(true.T, losses, precision=jax.lax.Precision.HIGHEST),
  }


def _matrix(logits: Array, y: Array, mask: Array) -> Array:
  """[L, L], rows are true classes, columns are predicted classes."""
  true, predicted, _ = _true_and_predicted(logits, y, mask)
  return jnp.matmul(true.T, predicted, precision=jax.lax.Precision.HIGHEST)


def _values(sums: Sums) -> Sums:
  """Computes the metrics, macro averages as scikit-learn: over occurring classes.

  A class occurs as a true or as a predicted class. One that is never predicted
  has precision 0. For one label per example, micro precision = micro recall =
  micro F1 = accuracy (errata D-30). All of them are computed because the
  diversified paper prints them separately.
  """
  if "confusion" in sums:
    confusion = sums["confusion"]
    total = confusion.sum((-2, -1))
    hits: AnyArray = np.diagonal(confusion, axis1=-2, axis2=-1)
    truth, predicted = confusion.sum(-1), confusion.sum(-2)
  else:
    truth, hits = sums["rows"], sums["hits"]
    predicted, total = sums.get("predicted"), truth.sum(-1)
  nothing = if_any(total)
  accuracy = ratio(hits.sum(-1), total) * nothing
  loss = ratio(sums["loss"].sum(-1), total) * nothing
  values = {"accuracy": accuracy, "loss": loss}
  if predicted is None:  # the sums of a client, over its classes
    return values
  occurs = (truth + predicted) > 0
  classes = occurs.sum(-1)
  for name, value in (
    ("precision", ratio(hits, predicted)),
    ("recall", ratio(hits, truth)),
    ("f1", ratio(2 * hits, truth + predicted)),
  ):
    values["macro_" + name] = ratio((value * occurs).sum(-1), classes) * nothing
    values["micro_" + name] = accuracy
  return values


def _pool(sums: Sums) -> Sums:
  """The sums over the classes, [1]."""
  return {name: sums[name].sum(-1, keepdims=True) for name in ("rows", "hits", "loss")}


def _targets(y: np.ndarray) -> np.ndarray:
  y = task_lib.whole_numbers(y, 0, MAX_CLASSES - 1)
  if y.ndim != 1:
    raise ValueError(f"has shape {y.shape}, one label for each row is needed")
  return y


def _one_hot(y: Array, mask: Array, size: int) -> Array:
  """The one-hot labels, [B, L] bool."""
  labels = jnp.arange(size, dtype=jnp.int32)
  return (y[:, None] == labels[None]) & mask[:, None]


CLASSIFICATION = Task(
  "classification",
  cross_entropy,
  _sums,
  _values,
  {name: LOWER if name == "loss" else HIGHER for name in METRICS[:-2]},
  shares=tuple(name for name in METRICS[:-2] if name != "loss"),
  targets=_targets,
  size=task_lib.largest,
  outputs=lambda y, size: (y.shape[0], size),
  labels=task_lib.class_labels,
  pooled=_pool,
  matrix=_matrix,
  # The largest label that anybody holds.
  flipped=lambda y: y.max() - y,
  fitted=_one_hot,
)
