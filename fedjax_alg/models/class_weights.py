"""Losses in which the examples of some classes count more."""

import jax.numpy as jnp
import numpy as np

from fedjax_alg import tasks
from fedjax_alg.base import Model
from fedjax_alg.errors import OptionError
from fedjax_alg.part import words_of

#: Weights by which all classes count alike.
BALANCED = "balanced"


def parse_weights(text: str) -> str | tuple[float, ...]:
  """Reads the option ``class_weights``: "balanced", or a number for each class.

  Args:
    text: the option.

  Raises:
    OptionError: it is neither, or a number is negative.
  """
  if text == BALANCED:
    return text
  try:
    weights = tuple(map(float, words_of(text)))
  except ValueError:
    weights = ()
  if not weights or not all(0 <= weight < np.inf for weight in weights):
    raise OptionError(
      f"`class_weights`={text}: must be {BALANCED}, or numbers from 0, one for each "
      "class"
    )
  if not any(weights):
    raise OptionError(f"`class_weights`={text}: one must be above 0")
  return weights


def with_class_weights(model: Model, text: str, counts: np.ndarray) -> Model:
  """Makes the model whose loss of an example is multiplied by its class's weight.

  "balanced" weighs a class with n_l of n training examples by n / (L n_l), as
  scikit-learn does, where L is the number of classes that have an example. The
  weights are those of all clients' examples together.

  Args:
    model: the model.
    text: see ``parse_weights``.
    counts: [L] int, the training examples of each class.

  Returns:
    The model; nothing else of it changes.

  Raises:
    OptionError: the examples have no classes, or another number of them.
  """
  weights, task = parse_weights(text), tasks.of(model)
  if not task.has_classes:
    raise OptionError(
      f"`class_weights`={text}: `task`={task.name} has no class for each example"
    )
  if isinstance(weights, str):
    present = counts > 0
    array = np.ones(len(counts), np.float32)
    array[present] = counts.sum() / (present.sum() * counts[present])
  elif len(weights) != len(counts):
    raise OptionError(
      f"`class_weights`={text}: {len(weights)} numbers, the data have "
      f"{len(counts)} classes"
    )
  else:
    array = np.asarray(weights, np.float32)
  loss = model.loss
  return model._replace(
    loss=lambda outputs, y: loss(outputs, y) * jnp.asarray(array)[y]
  )
