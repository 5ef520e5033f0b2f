"""Checks that the adapters for modules and functions share; the mode arguments.

A module that behaves differently in training (dropout) has an argument
``deterministic``, ``train`` or ``training`` of its ``__call__``.
"""

from collections.abc import Callable, Iterator
import contextlib
import inspect
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg.base import Key, Model, Params
from fedjax_alg.errors import a_type, OptionError, raised
from fedjax_alg.models.flops import forward_flops

#: Name of the argument -> its value in training.
MODE_ARGUMENTS = {"deterministic": False, "train": True, "training": True}

# Number of examples with which a model is checked. It is larger than one, so
# that a lost or permuted axis of examples is detected.
_ROWS = 7


def mode_arguments(
    call: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
  """Finds the mode arguments of a module.

  Args:
    call: the ``__call__`` of a module.

  Returns:
    Keyword arguments for evaluation and for training; both are empty if the
    module has no argument of ``MODE_ARGUMENTS``.
  """
  parameters = inspect.signature(call).parameters
  training = {name: value for name, value in MODE_ARGUMENTS.items()
              if name in parameters}
  return {name: not value for name, value in training.items()}, training


@contextlib.contextmanager
def user_code(what: str) -> Iterator[None]:
  """Turns every error of a user's code into one line.

  Args:
    what: description of the code for the error message.

  Raises:
    OptionError: the code inside has failed.
  """
  try:
    yield
  except OptionError:
    raise
  except Exception as error:  # whatever the user's code raises
    raise OptionError(
        f"`model`: {what} fails ({raised(error)})") from error


def shape_of(fn: Callable[..., Any], what: str, *shapes: Any) -> Any:
  """The shapes of a result of the user's code, which is traced but never run.

  Args:
    fn: the user's code.
    what: description of ``fn`` for the error message.
    *shapes: arguments of ``fn``.

  Raises:
    OptionError: ``fn`` cannot be traced.
  """
  with user_code(what):
    return jax.eval_shape(fn, *shapes)


def _is_float(dtype: Any) -> bool:
  """Whether a dtype is float32, or JAX's default float (x64 mode)."""
  return dtype in (jnp.float32, jax.dtypes.canonicalize_dtype(float))


def check_params(shapes: Any, what: str) -> None:
  """Checks that all parameters are float32.

  Args:
    shapes: shapes and dtypes of the parameters.
    what: description of the model for the error message.

  Raises:
    OptionError: a parameter has another dtype, or there are no parameters.
  """
  leaves = jax.tree_util.tree_leaves_with_path(shapes)
  if not leaves:
    raise OptionError(f"`model`: {what} has no parameters to train")
  for path, leaf in leaves:
    dtype = getattr(leaf, "dtype", type(leaf).__name__)
    if not _is_float(dtype):
      raise OptionError(
          f"`model`: {what} has {dtype} parameters "
          f"({jax.tree_util.keystr(path)}); they must be float32")


def _example(
    input_shape: tuple[int, ...], input_dtype: Any, rows: int
) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((rows,) + tuple(input_shape), input_dtype)


def params_shapes(
    init: Callable[[Key], Params], what: str = "init(key)") -> Any:
  """Finds the shapes of the parameters and checks that they are float32.

  Args:
    init: key -> parameters; it is traced but never run.
    what: description of ``init`` for the error message.

  Returns:
    The shapes.

  Raises:
    OptionError: a parameter has another dtype, there are no parameters, or
      ``init`` cannot be traced.
  """
  # Mixed dtypes are allowed here, so that check_params can name the parameter
  # of another dtype.
  with jax.numpy_dtype_promotion("standard"):
    # The key is made inside: a key made outside would start JAX.
    shapes = shape_of(lambda: init(jax.random.key(0)), what)
  check_params(shapes, what)
  return shapes


def with_flops(
    model: Model, input_shape: tuple[int, ...], input_dtype: Any = jnp.float32
) -> Model:
  """Counts the ``flops`` of a model if they are 0 (``forward_flops``).

  Args:
    model: any model.
    input_shape: shape of one example.
    input_dtype: dtype of the examples.

  Returns:
    The model with ``flops``.
  """
  if model.flops:
    return model
  return model._replace(flops=forward_flops(
      model.apply, params_shapes(model.init),
      _example(input_shape, input_dtype, 1)))


def checked(
    model: Model, input_shape: tuple[int, ...], input_dtype: Any = jnp.float32,
    num_classes: int | None = None) -> Model:
  """Checks the shapes of a model's functions and counts its ``flops``.

  Args:
    model: any model.
    input_shape: shape of one example.
    input_dtype: dtype of the examples.
    num_classes: L; None allows any number of classes.

  Returns:
    The model with ``flops``.

  Raises:
    OptionError: a parameter is not float32; logits are not [B, L] float32, in
      evaluation or in training; the loss is not [B] float32; or a function of
      the model cannot be traced.
  """
  params = params_shapes(model.init)
  x = _example(input_shape, input_dtype, _ROWS)
  examples = f"on examples of shape {list(input_shape)} {x.dtype}"
  logits = shape_of(model.apply, f"apply(params, x) {examples}", params, x)
  _check_logits(logits, "apply(params, x)", num_classes)
  if model.train_apply is not None:
    train_apply = model.train_apply
    what = "train_apply(params, x, key)"
    _check_logits(shape_of(
        lambda params, x: train_apply(params, x, jax.random.key(0)),
        f"{what} {examples}", params, x), what, logits.shape[1])
  labels = jax.ShapeDtypeStruct((_ROWS,), jnp.int32)
  loss = shape_of(model.loss, "loss(logits, y)", logits, labels)
  if not _is(loss, (_ROWS,)):
    raise OptionError(f"`loss`: gives {_said(loss)} for {_ROWS} examples; it "
                      f"must give one number each, [{_ROWS}] float32")
  return with_flops(model, input_shape, input_dtype)


def _check_logits(logits: Any, what: str, num_classes: int | None) -> None:
  shape = getattr(logits, "shape", ())
  wanted = shape[1:] if num_classes is None else (num_classes,)
  if len(wanted) != 1 or not _is(logits, (_ROWS, *wanted)):
    classes = "classes" if num_classes is None else num_classes
    raise OptionError(f"`model`: {what} gives {_said(logits)} for {_ROWS} "
                      f"examples; it must give logits [{_ROWS}, {classes}] "
                      "float32")


def _is(leaf: Any, shape: tuple[int, ...]) -> bool:
  return getattr(leaf, "shape", None) == shape and _is_float(leaf.dtype)


def _said(leaf: Any) -> str:
  if not hasattr(leaf, "dtype"):
    return f"{a_type(leaf)}"
  return f"{list(leaf.shape)} {leaf.dtype}"
