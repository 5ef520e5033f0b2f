"""Makes a ``base.Model`` from any model that a caller may give."""

from collections.abc import Callable
import inspect
from typing import Any

from flax import linen as nn
from flax import nnx
import jax.numpy as jnp

from fedjax_alg.base import Array, Model
from fedjax_alg.errors import OptionError, did_you_mean
from fedjax_alg.models import adapt
from fedjax_alg.models.models import MODELS, from_flax, make_model
from fedjax_alg.models.nnx_modules import from_nnx

#: Options that only named models have (arguments of ``make_model``).
OPTIONS = ("hidden", "layers", "tokens", "embedding", "embedding_size",
           "lstm_widths")


def as_model(
    model: Any,
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    input_dtype: Any = jnp.float32,
    l2: float | None = None,
    loss: Callable[[Array, Array], Array] | None = None,
    **options: Any,
) -> Model:
  """Makes the model of a run, checks it and counts its ``flops``.

  Args:
    model: a name of ``MODELS``; a ``base.Model``; a flax.linen module; or a
      flax.nnx module or a function that makes one (``from_nnx``).
    input_shape: shape of one example.
    num_classes: L.
    input_dtype: dtype of the examples.
    l2: coefficient of (l2/2) ||w||^2. None keeps the value of a
      ``base.Model`` and means 0 for all others.
    loss: (logits [B, L], y [B]) -> loss of each example [B]. None keeps the
      loss of a ``base.Model`` and means the cross entropy for all others.
    **options: options of a named model, see ``make_model``.

  Returns:
    The model.

  Raises:
    OptionError: ``model`` is none of these, it does not fit the examples and
      classes, or it does not have an option that was given.
  """
  for option in options:
    if option not in OPTIONS:
      raise OptionError(f"`{option}`: no option of a model"
                        f"{did_you_mean(option, OPTIONS)} (one of "
                        f"{', '.join(OPTIONS)})")
    if not isinstance(model, str):
      raise OptionError(f"`{option}`: only a named model reads it, not the "
                        f"{type(model).__name__} given")
  return adapt.checked(
      _changed(_made(model, input_shape, num_classes, input_dtype, options),
               l2, loss), input_shape, input_dtype, num_classes)


def _changed(
    model: Model, l2: float | None,
    loss: Callable[[Array, Array], Array] | None) -> Model:
  if l2 is not None:
    model = model._replace(l2=float(l2))
  return model if loss is None else model._replace(loss=loss)


def _made(
    model: Any, input_shape: tuple[int, ...], num_classes: int,
    input_dtype: Any, options: dict[str, Any]) -> Model:
  if isinstance(model, str):
    if model not in MODELS:
      raise OptionError(f"`model`={model}: unknown"
                        f"{did_you_mean(model, MODELS)} (one of "
                        f"{', '.join(MODELS)})")
    return make_model(model, input_shape, num_classes, **options)
  if isinstance(model, Model):
    return model
  if isinstance(model, nn.Module):
    return from_flax(model, input_shape, input_dtype=input_dtype)
  if inspect.isclass(model) and issubclass(model, nn.Module):
    raise OptionError(f"`model`: {model.__name__} is a class; give a module, "
                      f"{model.__name__}(...)")
  if isinstance(model, nnx.Module) or callable(model):
    return from_nnx(model, input_shape, input_dtype=input_dtype)
  raise OptionError(
      f"`model`: {type(model).__name__} given; must be a name (one of "
      f"{', '.join(MODELS)}), a base.Model, a flax.linen module, or a flax.nnx "
      "module or what makes one of nnx.Rngs")
