"""Makes a model from pure functions."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedjax_alg.base import Array, Key, Model, Params
from fedjax_alg.models import adapt
from fedjax_alg.models.models import cross_entropy


def from_functions(
    init: Callable[[Key], Params],
    apply: Callable[[Params, Array], Array],
    input_shape: tuple[int, ...] | None = None,
    *,
    l2: float = 0.0,
    loss: Callable[[Array, Array], Array] = cross_entropy,
    input_dtype: Any = jnp.float32,
    train_apply: Callable[[Params, Array, Key], Array] | None = None,
    linear: bool = False,
    scale_features: Callable[[Params, Array], Params] | None = None,
) -> Model:
  """Makes a ``Model`` from pure functions.

  Args:
    init: key -> parameters, a pytree of float32 arrays.
    apply: (params, x [B, *input_shape]) -> logits [B, L] float32.
    input_shape: shape of one example. If None, ``as_model`` later checks the
      functions and counts ``flops``, when the shape is known.
    l2: coefficient of (l2/2) ||w||^2.
    loss: (logits [B, L], y [B]) -> loss of each example [B].
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
  model = Model(init, apply, loss, float(l2), scale_features, linear=linear,
                train_apply=train_apply)
  if input_shape is None:
    return model
  return adapt.checked(model, input_shape, input_dtype)
