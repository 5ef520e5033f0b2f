"""Classification metrics from sums that can be added over data sets.

The ``Counts`` of a data set are the sum of the ``Counts`` of its parts, so they
can be added over clients and devices. Sums are computed in JAX, and ratios on
the host in float64.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Array

#: The metrics of ``summarise``, in the order of metrics.csv.
METRICS = ("accuracy", "loss", "macro_precision", "macro_recall", "macro_f1",
           "micro_precision", "micro_recall", "micro_f1", "client_accuracy",
           "worst_decile")
#: Those that exist only where the counts are kept per client.
OF_CLIENTS = ("client_accuracy", "worst_decile")


class Counts(NamedTuple):
  """Sums over examples, which can be added."""

  #: [L, L] float32, rows are true classes, columns are predicted classes
  confusion: Array
  loss_sum: Array  #: [L] float32, sum of the losses by true class
  #: [C] float32, correct predictions of each client; None if the counts are
  #: not kept per client
  hits: Array | None = None
  total: Array | None = None  #: [C] float32, examples of each client, or None
  #: [C] float32, sum of the losses of each client, or None
  losses: Array | None = None


def count(logits: Array, losses: Array, y: Array, weight: Array) -> Counts:
  """Counts a batch.

  Args:
    logits: [B, L]. The prediction is the argmax, the lowest class for ties.
    losses: [B] float32, loss of each example.
    y: [B] int32, labels.
    weight: [B] float32; an example of weight 0 is ignored.

  Returns:
    The counts.
  """
  classes = logits.shape[1]
  weight = weight.astype(jnp.float32)
  true = jax.nn.one_hot(y, classes) * weight[:, None]
  predicted = jax.nn.one_hot(jnp.argmax(logits, axis=1), classes)
  confusion = jnp.matmul(
      true.T, predicted, precision=jax.lax.Precision.HIGHEST)
  # The loss of an ignored example may be NaN, and 0 * NaN is NaN.
  losses = jnp.where(weight > 0, losses, jnp.zeros_like(losses))
  return Counts(confusion, true.T @ losses)


def over_clients(each: Counts, chosen: Array | None = None) -> Counts:
  """Adds the counts of clients and keeps the sums of each client.

  Args:
    each: counts of each client, leaves [C, ...].
    chosen: [C] bool, the clients to count; None means all.

  Returns:
    The sum, with ``hits``, ``total`` and ``losses``.
  """
  if chosen is not None:
    each = jax.tree.map(
        lambda leaf: jnp.where(
            chosen.reshape(chosen.shape + (1,) * (leaf.ndim - 1)), leaf,
            jnp.zeros_like(leaf)), each)
  return Counts(
      each.confusion.sum(0), each.loss_sum.sum(0),
      jnp.trace(each.confusion, axis1=1, axis2=2), each.confusion.sum((1, 2)),
      each.loss_sum.sum(1))


def _ratio(a, b):
  return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


def _of_clients(counts: Counts, nothing: np.ndarray) -> dict[str, np.ndarray]:
  """Averages the accuracy over all clients and over the worst tenth of them."""
  if counts.hits is None:
    return {"client_accuracy": nothing, "worst_decile": nothing}
  hits = np.asarray(counts.hits, np.float64)
  total = np.asarray(counts.total, np.float64)
  tested = (total > 0).sum(-1)
  # Clients without test examples are sorted to the end.
  accuracy = np.sort(np.divide(
      hits, total, out=np.full_like(hits, 2.0), where=total > 0), axis=-1)

  def mean(number):
    worst = np.arange(accuracy.shape[-1]) < number[..., None]
    return np.divide((accuracy * worst).sum(-1), number,
                     out=nothing.copy(), where=number > 0)

  return {"client_accuracy": mean(tested), "worst_decile": mean(
      -(-tested // 10))}


def summarise(counts: Counts) -> dict[str, np.ndarray]:
  """Computes the metrics of ``METRICS``.

  Macro averages are taken over the classes that occur as true or predicted
  classes, as in scikit-learn. A class that is never predicted has precision 0.
  For data with a single label per example, micro precision = micro recall =
  micro F1 = accuracy (errata D-30). All of them are computed because the
  diversified paper prints them separately.

  ``client_accuracy`` is the mean of the clients' accuracies, in which all
  clients have the same weight. ``worst_decile`` is the mean accuracy of the
  worst tenth of the clients, rounded up. Both ignore clients without examples,
  and both are NaN if the counts are not kept per client.

  Args:
    counts: leaves with any number of leading axes, [..., L, L], [..., L] and
      [..., C].

  Returns:
    name -> float64 [...]; NaN if no example was counted.
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
  clients = _of_clients(counts, np.full(total.shape, np.nan))
  return dict(
      accuracy=accuracy, loss=loss * nothing,
      macro_precision=macro["precision"], macro_recall=macro["recall"],
      macro_f1=macro["f1"], micro_precision=accuracy, micro_recall=accuracy,
      micro_f1=accuracy, **clients)
