"""Whatever may be given as the model of a run, as a ``base.Model``."""

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

#: Options of a named model, ``make_model``'s own.
OPTIONS = ("hidden", "layers", "tokens", "embedding")


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
  """The model of a run, its ``flops`` counted.

  Args:
    model: a name of ``MODELS``; a ``base.Model``; a flax.linen module; a
      flax.nnx module or what makes one (``from_nnx``).
    input_shape: shape of one example.
    num_classes: L.
    input_dtype: dtype of the examples.
    l2: coefficient of (l2/2) ||w||^2. None: a ``base.Model`` keeps its own,
      others have 0.
    loss: (logits [B, L], y [B]) -> [B]. None: a ``base.Model`` keeps its own,
      others have the cross entropy.
    **options: of a named model, see ``make_model``.

  Raises:
    OptionError: none of these, an option that does not belong to it, or
      something that does not fit the examples and classes.
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
