"""What the adapters of modules and functions share: checks, and the mode.

A module that behaves otherwise in training (dropout) says so by an argument of
its ``__call__``: ``deterministic``, ``train`` or ``training``.
"""

from collections.abc import Callable
import inspect
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg.base import Key, Model, Params
from fedjax_alg.errors import OptionError
from fedjax_alg.models.flops import forward_flops

#: name of the argument -> whether it is true in training
MODE_ARGUMENTS = {"deterministic": False, "train": True, "training": True}

# Rows of the examples that a model is tried on. More than one, so that an
# axis of examples that is lost or mixed up is noticed.
_ROWS = 7


def mode_arguments(
    call: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
  """What to call a module with in evaluation and in training.

  Args:
    call: the ``__call__`` of a module.

  Returns:
    Keyword arguments of evaluation and of training; empty where the module
    has no argument of ``MODE_ARGUMENTS``.
  """
  known = inspect.signature(call).parameters
  training = {name: value for name, value in MODE_ARGUMENTS.items()
              if name in known}
  return {name: not value for name, value in training.items()}, training


def first_line(error: BaseException) -> str:
  """The kind of an error and the first line of what it says."""
  lines = str(error).strip().splitlines() or [""]
  return f"{type(error).__name__}: {lines[0]}".rstrip(": ")


def shape_of(fn: Callable[..., Any], what: str, *shapes: Any) -> Any:
  """``jax.eval_shape`` whose errors are one line.

  Args:
    fn: the user's code; traced, never run.
    what: it is, the beginning of the line.
    *shapes: its arguments.

  Raises:
    OptionError: ``fn`` cannot be traced.
  """
  try:
    return jax.eval_shape(fn, *shapes)
  except OptionError:
    raise
  except Exception as error:  # whatever the user's code raises
    raise OptionError(
        f"`model`: {what} fails ({first_line(error)})") from error


def _is_float(dtype: Any) -> bool:
  """Whether it is float32, or what stands for it where JAX has 64 bits."""
  return dtype in (jnp.float32, jax.dtypes.canonicalize_dtype(float))


def check_params(shapes: Any, what: str) -> None:
  """Parameters are float32, every one of them.

  Args:
    shapes: of the parameters.
    what: has them, the beginning of the line.

  Raises:
    OptionError: a leaf of another dtype; none at all.
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
  """Shapes of the parameters, all float32.

  Args:
    init: key -> parameters; traced, never run.
    what: it is, for the errors.

  Raises:
    OptionError: a parameter is of another dtype; there is none; ``init``
      cannot be traced.
  """
  # Mixed dtypes may meet in it, so that the parameter at fault can be named.
  with jax.numpy_dtype_promotion("standard"):
    # The key inside: one made outside would start JAX.
    shapes = shape_of(lambda: init(jax.random.key(0)), what)
  check_params(shapes, what)
  return shapes


def with_flops(
    model: Model, input_shape: tuple[int, ...], input_dtype: Any = jnp.float32
) -> Model:
  """The model with ``flops`` counted, where they are 0 (``forward_flops``).

  Args:
    model: any model.
    input_shape: shape of one example.
    input_dtype: dtype of the examples.
  """
  if model.flops:
    return model
  return model._replace(flops=forward_flops(
      model.apply, params_shapes(model.init),
      _example(input_shape, input_dtype, 1)))


def checked(
    model: Model, input_shape: tuple[int, ...], input_dtype: Any = jnp.float32,
    num_classes: int | None = None) -> Model:
  """The model with ``flops`` counted, tried on shapes.

  Args:
    model: any model.
    input_shape: shape of one example.
    input_dtype: dtype of the examples.
    num_classes: L; None: any.

  Raises:
    OptionError: parameters other than float32; logits other than [B, L]
      float32, in evaluation or in training; a loss other than [B] float32;
      whatever the model's functions raise.
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
    return f"a {type(leaf).__name__}"
  return f"{list(leaf.shape)} {leaf.dtype}"
