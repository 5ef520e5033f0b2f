"""Every classification metric from one pass: sums that merge.

A ``Counts`` of two halves of a data set is the sum of theirs, so the numbers
merge over clients, devices and models. Sums are taken in JAX, ratios on the
host in float64.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Array

#: The metrics of ``summarise``, in the order of metrics.csv.
METRICS = ("accuracy", "loss", "macro_precision", "macro_recall", "macro_f1",
           "micro_precision", "micro_recall", "micro_f1")


class Counts(NamedTuple):
  """Sums over examples; leaves add."""

  confusion: Array  #: [L, L] float32, rows the true class, columns predicted
  loss_sum: Array  #: [L] float32, by true class


def count(logits: Array, losses: Array, y: Array, weight: Array) -> Counts:
  """Counts of a batch.

  Args:
    logits: [B, L]; the prediction is the argmax, ties to the lowest class.
    losses: [B] float32.
    y: [B] int32.
    weight: [B] float32 (0 leaves an example out).
  """
  classes = logits.shape[1]
  weight = weight.astype(jnp.float32)
  true = jax.nn.one_hot(y, classes) * weight[:, None]
  predicted = jax.nn.one_hot(jnp.argmax(logits, axis=1), classes)
  confusion = jnp.matmul(
      true.T, predicted, precision=jax.lax.Precision.HIGHEST)
  # A masked row may hold anything, so it is dropped, not multiplied by 0.
  losses = jnp.where(weight > 0, losses, jnp.zeros_like(losses))
  return Counts(confusion, true.T @ losses)


def _ratio(a, b):
  return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


def summarise(counts: Counts) -> dict[str, np.ndarray]:
  """The metrics of ``METRICS``.

  Macro averages run over the classes that occur as truth or prediction, as
  scikit-learn's do; a class never predicted has precision 0. For single-label
  data micro precision = micro recall = micro F1 = accuracy (errata D-30); all
  are given because the diversified paper prints them apart.

  Args:
    counts: leaves with any number of leading axes, [..., L, L] and [..., L].

  Returns:
    name -> float64 [...]; NaN where nothing was counted.
  """
  confusion = np.asarray(counts.confusion, np.float64)
  total = confusion.sum((-2, -1))
  hits = np.diagonal(confusion, axis1=-2, axis2=-1)
  truth, predicted = confusion.sum(-1), confusion.sum(-2)
  precision, recall = _ratio(hits, predicted), _ratio(hits, truth)
  f1 = _ratio(2 * hits, truth + predicted)
  occurs = (truth + predicted) > 0
  classes = np.maximum(occurs.sum(-1), 1)
  nothing = np.where(total > 0, 1.0, np.nan)
  accuracy = _ratio(hits.sum(-1), total) * nothing
  macro = {name: (value * occurs).sum(-1) / classes * nothing
           for name, value in (("precision", precision), ("recall", recall),
                               ("f1", f1))}
  loss = np.asarray(counts.loss_sum, np.float64).sum(-1)
  loss = loss / np.where(total > 0, total, 1)
  return dict(
      accuracy=accuracy, loss=loss * nothing,
      macro_precision=macro["precision"], macro_recall=macro["recall"],
      macro_f1=macro["f1"], micro_precision=accuracy, micro_recall=accuracy,
      micro_f1=accuracy)
