"""Dense prediction: a class for each pixel, some of which are ignored."""

import math

import jax.numpy as jnp
import numpy as np

from fedjax_alg.errors import OptionError
from fedjax_alg.tasks import task as task_lib
from fedjax_alg.tasks.classification import MAX_CLASSES, cross_entropy
from fedjax_alg.tasks.task import HIGHER, LOWER, Labels, Sums, Task, if_any, ratio
from fedjax_alg.typing import Array


def mean_cross_entropy(logits: Array, y: Array, valid: Array) -> Array:
  """Mean of an example's cross entropies over the places that count.

  Args:
    logits: [B, ..., L].
    y: [B, ...] int32.
    valid: [B, ...] bool.

  Returns:
    [B] float32, 0 for an example without such a place.
  """
  valid = valid.reshape(len(y), -1)
  losses = cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
  losses = losses.reshape(valid.shape)
  return jnp.where(valid, losses, jnp.zeros_like(losses)).sum(1) / (
    jnp.maximum(valid.sum(1), 1).astype(jnp.float32)
  )


def _sums(ignore: int, logits: Array, y: Array, losses: Array, mask: Array) -> Sums:
  """Numbers [L] of pixels of each class, correct ones and predicted ones."""
  valid = (y != ignore) & mask.reshape(-1, *(1,) * (y.ndim - 1))
  predicted = jnp.argmax(logits, -1)

  def number_of(labels, which):
    # Pixels are many: one-hot labels would take the room of the logits again.
    return (
      jnp.zeros(logits.shape[-1])
      .at[labels.reshape(-1)]
      .add(which.reshape(-1).astype(jnp.float32), mode="drop")
    )

  return {
    "truth": number_of(y, valid),
    "predicted": number_of(predicted, valid),
    "hits": number_of(y, valid & (predicted == y)),
  }


def _values(sums: Sums) -> Sums:
  """Computes the metrics; mean_iou is over true and predicted classes."""
  hits, truth = sums["hits"], sums["truth"]
  nothing = if_any(truth.sum(-1))
  either = truth + sums["predicted"] - hits
  return {
    "mean_iou": ratio(ratio(hits, either).sum(-1), (either > 0).sum(-1)) * nothing,
    "pixel_accuracy": ratio(hits.sum(-1), truth.sum(-1)) * nothing,
  }


def dense(ignore: int = -1) -> Task:
  """Makes the task of dense prediction.

  Args:
    ignore: the label of pixels that are not counted.

  Raises:
    OptionError: that label does not fit into int32.
  """
  bounds = np.iinfo(np.int32)
  if not bounds.min <= ignore <= bounds.max:
    raise OptionError(
      f"`task`=dense:{ignore}: the label of pixels that are ignored must fit into int32"
    )

  def targets(y: np.ndarray) -> np.ndarray:
    if y.ndim < 2 or not all(y.shape[1:]):
      raise ValueError(f"has shape {y.shape}, a label for each pixel is needed")
    if y.dtype.kind not in "iub":
      raise ValueError(f"is {task_lib.kind_of(y)}, integers are needed")
    if y.size and (y == ignore).all():
      raise ValueError(
        f"is the ignored label {ignore} at all places, another one is needed to predict"
      )
    # Checked without the ignored ones, which may be of any value.
    checked = np.where(y == ignore, 0, y)
    try:
      task_lib.whole_numbers(checked, 0, MAX_CLASSES - 1)
    except ValueError as error:
      raise ValueError(
        f"{error} (or {ignore}, which is ignored; `task`="
        "dense:LABEL ignores another label)"
      ) from None
    return np.where(y == ignore, ignore, checked.astype(np.int32)).astype(np.int32)

  def size(*targets: np.ndarray) -> int:
    return task_lib.largest(*(np.where(y == ignore, 0, y) for y in targets))

  def labels(y_train: np.ndarray, y_test: np.ndarray, size: int) -> Labels:
    """The class of most pixels; L for an example without one."""

    def most(y):
      y = y.reshape(len(y), math.prod(y.shape[1:]))
      counts = np.stack([(y == label).sum(1) for label in range(size)], 1)
      return np.where((y != ignore).any(1), counts.argmax(1), size).astype(np.int32)

    return Labels(most(y_train), most(y_test), size + 1)

  def flip(y):
    valid = y != ignore
    return jnp.where(valid, jnp.where(valid, y, 0).max() - y, y)

  return Task(
    "dense",
    lambda logits, y: mean_cross_entropy(logits, y, y != ignore),
    lambda *args: _sums(ignore, *args),
    _values,
    {"mean_iou": HIGHER, "pixel_accuracy": HIGHER, "loss": LOWER},
    shares=("mean_iou", "pixel_accuracy"),
    targets=targets,
    size=size,
    outputs=lambda y, size: (*y.shape, size),
    labels=labels,
    flipped=flip,
  )


DENSE = dense()
