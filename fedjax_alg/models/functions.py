"""Makes a model from pure functions."""

from collections.abc import Callable

import jax.numpy as jnp

from fedjax_alg import tasks
from fedjax_alg.base import Array, Key, Model, Params
from fedjax_alg.models import adapt
from fedjax_alg.typing import DTypes, Shapes


def from_functions(
  init: Callable[[Key], Params],
  apply: Callable[[Params, Array], Array],
  input_shape: Shapes | None = None,
  *,
  l2: float = 0.0,
  loss: Callable[[Array, Array], Array] | None = None,
  task: str | tasks.Task | None = None,
  input_dtype: DTypes = jnp.float32,
  train_apply: Callable[[Params, Array, Key], Array] | None = None,
  linear: bool = False,
  scale_features: Callable[[Params, Array], Params] | None = None,
) -> Model:
  """Makes a ``Model`` from pure functions.

  Args:
    init: key -> parameters, a pytree of float32 arrays.
    apply: (params, x [B, *input_shape]) -> logits [B, L] float32, or the
      outputs of another task.
    input_shape: shape of one example, or a dictionary of the shapes of its
      arrays. If None, ``as_model`` later checks the functions and counts
      ``flops``, when the shape is known.
    l2: coefficient of (l2/2) ||w||^2.
    loss: (logits [B, L], y [B]) -> loss of each example [B]; None: that of the
      task.
    task: what is predicted, see ``tasks.resolve_task``; None: what the data say, or
      one class for each example.
    input_dtype: dtype of the examples.
    train_apply: (params, x, key) -> logits in training, with random numbers
      from the key (dropout). None means ``apply``.
    linear: whether the logits are linear in the parameters.
    scale_features: see ``base.Model``; FSVRG scales rare features with it.

  Returns:
    The model.

  Raises:
    OptionError: the functions do not fit each other or the examples.
  """
  model = adapt.with_task(
    Model(
      init,
      apply,
      tasks.cross_entropy,
      float(l2),
      scale_features,
      linear=linear,
      train_apply=train_apply,
    ),
    loss,
    task,
  )
  if input_shape is None:
    return model
  return adapt.check_model(model, input_shape, input_dtype)
