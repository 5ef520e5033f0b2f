"""Checks that the adapters for modules and functions share; the mode arguments.

A module that behaves differently in training (dropout) has an argument
``deterministic``, ``train`` or ``training`` of its ``__call__``.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import own, tasks
from fedjax_alg.base import Array, Key, Model, Params, initial_shapes
from fedjax_alg.errors import FAILURES, OptionError, a_type, describe_error
from fedjax_alg.models.flops import forward_flops
from fedjax_alg.typing import DTypes, PyTree, Shaped, Shapes

#: Name of the argument -> its value in training.
MODE_ARGUMENTS = {"deterministic": False, "train": True, "training": True}

# Number of examples with which a model is checked. It is larger than one, so
# that a lost or permuted axis of examples is detected.
ROWS = 7


def mode_arguments(
  call: Callable[..., object],
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Finds the mode arguments of a module.

  Args:
    call: the ``__call__`` of a module.

  Returns:
    Keyword arguments for evaluation and for training; both are empty if the
    module has no argument of ``MODE_ARGUMENTS``.
  """
  parameters = inspect.signature(call).parameters
  training = {
    name: value for name, value in MODE_ARGUMENTS.items() if name in parameters
  }
  return {name: not value for name, value in training.items()}, training


@contextlib.contextmanager
def user_code(label: str) -> Iterator[None]:
  """Turns every error of a user's code into one line.

  Args:
    label: description of the code for the error message.

  Raises:
    OptionError: the code inside has failed.
  """
  try:
    yield
  except OptionError:
    raise
  except FAILURES as error:  # whatever the user's code raises
    raise OptionError(f"`model`: {label} fails ({describe_error(error)})") from error


def _shape_of(fn: Callable[..., object], label: str, *shapes: PyTree) -> Any:
  """The shapes of a result of the user's code, which is traced but never run.

  Args:
    fn: the user's code.
    label: description of ``fn`` for the error message.
    *shapes: arguments of ``fn``.

  Raises:
    OptionError: ``fn`` cannot be traced.
  """
  with user_code(label):
    return jax.eval_shape(fn, *shapes)


def _is_float(dtype: object) -> bool:
  """Whether a dtype is float32, or JAX's default float (x64 mode)."""
  return dtype in (jnp.float32, jax.dtypes.canonicalize_dtype(float))


def check_params(shapes: PyTree, label: str) -> None:
  """Checks that all parameters are float32.

  Args:
    shapes: shapes and dtypes of the parameters.
    label: description of the model for the error message.

  Raises:
    OptionError: a parameter has another dtype, or there are no parameters.
  """
  leaves = jax.tree_util.tree_leaves_with_path(shapes)
  if not leaves:
    raise OptionError(f"`model`: {label} has no parameters to train")
  for path, leaf in leaves:
    dtype = getattr(leaf, "dtype", type(leaf).__name__)
    if not _is_float(dtype):
      raise OptionError(
        f"`model`: {label} has {dtype} parameters "
        f"({jax.tree_util.keystr(path)}); they must be float32"
      )


def example(input_shape: Shapes, input_dtype: DTypes, rows: int) -> Any:
  """The shapes and dtypes of some examples.

  Args:
    input_shape: shape of one example; a dictionary of shapes, if an example has
      several arrays.
    input_dtype: its dtype; a dictionary of dtypes if they differ.
    rows: number of examples.
  """
  if isinstance(input_shape, Mapping):
    return {
      name: example(
        shape,
        input_dtype[name] if isinstance(input_dtype, Mapping) else input_dtype,
        rows,
      )
      for name, shape in input_shape.items()
    }
  return jax.ShapeDtypeStruct((rows,) + tuple(input_shape), input_dtype)


def describe_example(example: Any) -> str:
  """The shape and the dtype of one of some examples, for messages."""
  if isinstance(example, Mapping):
    return ", ".join(
      f"{name} {describe_example(leaf)}" for name, leaf in example.items()
    )
  return f"{list(example.shape[1:])} {example.dtype}"


def params_shapes(init: Callable[[Key], Params], label: str = "init(key)") -> PyTree:
  """Finds the shapes of the parameters and checks that they are float32.

  Args:
    init: key -> parameters; it is traced but never run.
    label: description of ``init`` for the error message.

  Returns:
    The shapes.

  Raises:
    OptionError: a parameter has another dtype, there are no parameters, or
      ``init`` cannot be traced.
  """
  # Mixed dtypes are allowed here, so that check_params can name the parameter
  # of another dtype.
  with jax.numpy_dtype_promotion("standard"):
    with user_code(label):
      shapes = initial_shapes(init)
  check_params(shapes, label)
  return shapes


def with_flops(
  model: Model, input_shape: Shapes, input_dtype: DTypes = jnp.float32
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
  return model._replace(
    flops=forward_flops(
      model.apply, params_shapes(model.init), example(input_shape, input_dtype, 1)
    )
  )


def with_task(
  model: Model,
  loss: Callable[[Array, Array], Array] | None,
  task: str | tasks.Task | None,
) -> Model:
  """The model with a task.

  Args:
    model: any model.
    loss: (outputs, y) -> loss of each example [B]; None: that of the task.
    task: see ``tasks.resolve_task``; None: what the data say, or classification.
  """
  resolved_task = tasks.resolve_task(task)
  return model._replace(
    task=resolved_task, loss=loss or (resolved_task or tasks.CLASSIFICATION).loss
  )


def check_model(
  model: Model,
  input_shape: Shapes,
  input_dtype: DTypes = jnp.float32,
  num_classes: int | None = None,
  targets: PyTree = None,
) -> Model:
  """Checks the shapes of a model's functions; adds its ``flops`` and its sizes.

  Args:
    model: any model.
    input_shape: shape of one example, see ``example``.
    input_dtype: dtype of the examples.
    num_classes: L; None allows any number of classes, and takes that of the outputs.
    targets: shapes and dtypes of the targets of one example; None: not known,
      unless the task is classification.

  Returns:
    The model with ``flops``, ``input_shape`` and ``num_classes``.

  Raises:
    OptionError: a parameter is not float32; the outputs are not those of the
      task (logits [B, L] float32), in evaluation or in training; the loss is
      not [B] float32; or a function of the model cannot be traced.
  """
  params = params_shapes(model.init)
  x = example(input_shape, input_dtype, ROWS)
  examples, task = f"on examples of shape {describe_example(x)}", tasks.of(model)
  if targets is None and task is tasks.CLASSIFICATION:
    targets = jax.ShapeDtypeStruct((), jnp.int32)
  y = (
    None
    if targets is None
    else jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct((ROWS, *leaf.shape), leaf.dtype), targets
    )
  )
  outputs = _shape_of(model.apply, f"apply(params, x) {examples}", params, x)
  _check_outputs(task, outputs, "apply(params, x)", y, num_classes)
  if model.train_apply is not None:
    train_apply = model.train_apply
    label = "train_apply(params, x, key)"
    trained = _shape_of(
      lambda params, x: train_apply(params, x, jax.random.key(0)),
      f"{label} {examples}",
      params,
      x,
    )
    _check_outputs(
      task, trained, label, y, getattr(outputs, "shape", (num_classes,))[-1]
    )
  if y is not None:
    if task.name not in tasks.NAMES:
      _check_own(task, outputs, y)
    loss = _shape_of(model.loss, "loss(logits, y)", outputs, y)
    if not _is(loss, (ROWS,)):
      raise OptionError(
        f"`loss`: gives {_describe(loss)} for {ROWS} examples; it "
        f"must give one number each, [{ROWS}] float32"
      )
  if num_classes is None:
    num_classes = (getattr(outputs, "shape", ()) or (0,))[-1]
  return with_flops(model, input_shape, input_dtype)._replace(
    input_shape=shape_of_all(input_shape), num_classes=num_classes
  )


def shape_of_all(input_shape: Shapes) -> tuple[int, ...]:
  """The shape of one example; of several arrays the number of all values, [1]."""
  if not isinstance(input_shape, Mapping):
    return tuple(input_shape)
  return (sum(math.prod(shape_of_all(shape)) for shape in input_shape.values()),)


def absent_parts(model: Model, error: BaseException) -> str:
  """Says which parts of a model are None, if code has failed at a None.

  Args:
    model: the model that the code had.
    error: what the code raised.

  Returns:
    A part of a message, in parentheses; "" if there is nothing to say.
  """
  absent = [
    name for name in ("layers", "scale_features") if getattr(model, name) is None
  ]
  if not absent or "NoneType" not in str(error):
    return ""
  verb = "is" if len(absent) == 1 else "are"
  names = " and ".join(f"model.{name}" for name in absent)
  return (
    f" ({names} {verb} None here, as of every model whose layers are not known to "
    "be dense or convolutions; a builder that needs them raises an OptionError)"
  )


def _check_outputs(
  task: tasks.Task, outputs: PyTree, label: str, y: PyTree, size: int | None
) -> None:
  if y is None or task.outputs is None:
    return
  shape = getattr(outputs, "shape", ()) or (0,)
  expected = task.outputs(y, shape[-1] if size is None else size)
  if not _is(outputs, expected):
    last = "classes" if size is None else size
    expected_shape = ", ".join(map(str, (*expected[:-1], last)))
    noun = "logits" if task.has_classes else f"the outputs of {task.name},"
    raise OptionError(
      f"`model`: {label} gives {_describe(outputs)} for {ROWS} "
      f"examples; it must give {noun} [{expected_shape}] float32"
    )


def _check_own(task: tasks.Task, outputs: PyTree, y: PyTree) -> None:
  """Checks the sums and the metrics of a task of the user's own.

  Raises:
    OptionError: a function of it fails, or a metric is missing or has another
      shape than the leading axes of the sums.
  """
  rows = jax.ShapeDtypeStruct((ROWS,), jnp.float32)
  sums = _shape_of(
    task.of_batch,
    f"sums of the task {task.name}",
    outputs,
    y,
    rows,
    jax.ShapeDtypeStruct((ROWS,), jnp.bool_),
  )
  label = f"`task`={task.name}: its"
  for name, leaf in sums.items():
    _check_real(leaf, f"{label} sums gives {name} of")
  ranks = _ranks_of_nothing(task, outputs, y)
  with user_code(f"values of the task {task.name}"):
    values = task.measured(
      {**{name: np.zeros((2, *leaf.shape)) for name, leaf in sums.items()}, **ranks}
    )
  for name, value in values.items():
    _check_real(np.asarray(value), f"{label} values gives {name} of")
  for name in task.better:
    shape = np.shape(values[name]) if name in values else None
    if shape != (2,):
      actual = "no" if shape is None else f"a value of shape {list(shape)} for"
      raise OptionError(
        f"`task`={task.name}: `values` gives {actual} {name} of `better`; it "
        "must give one number for each leading axis of the sums, [2] of [2]"
      )
  _check_further(task, sums, outputs, y)


def _ranks_of_nothing(
  task: tasks.Task, outputs: PyTree, y: PyTree
) -> dict[str, np.ndarray]:
  """What ``ranks`` gives of two groups without an example, [2] each."""
  if task.scores is None or task.ranks is None:
    return {}
  scores = _shape_of(task.scores, f"scores of the task {task.name}", outputs, y)
  nothing = {name: np.zeros(0, leaf.dtype) for name, leaf in scores.items()}
  return dict(task.ranks(nothing, np.zeros(0, np.int64), 2))


def _check_real(leaf: Any, label: str) -> None:
  try:
    own.check_real(leaf.dtype)
  except ValueError as error:
    raise OptionError(f"{label} {error}") from None


def _check_further(
  task: tasks.Task, sums: Mapping[str, Shaped], outputs: PyTree, y: PyTree
) -> None:
  """Traces the functions that are called in the middle of a run.

  They say themselves what is wrong with what they give (``tasks.guards``).

  Raises:
    OptionError: one of them fails, or the main metric does not follow from the
      ``pooled`` sums.
  """
  suffix, mask = f" of the task {task.name}", jax.ShapeDtypeStruct((ROWS,), jnp.bool_)
  clients = _shape_of(
    task.pooled,
    "pooled" + suffix,
    {
      name: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype)
      for name, leaf in sums.items()
    },
  )
  with user_code("values" + suffix + ", of what its pooled gives,"):
    values = task.measured(
      {
        **{name: np.zeros(leaf.shape) for name, leaf in clients.items()},
        **_ranks_of_nothing(task, outputs, y),
      }
    )
  if task.main not in values:
    raise OptionError(
      f"`task`={task.name}: its values gives no {task.main} of what its "
      "pooled gives, must give the main metric"
    )
  if task.flipped is not None:
    _shape_of(task.flipped, "flipped" + suffix, y)
  if task.matrix is not None:
    _shape_of(task.matrix, "matrix" + suffix, outputs, y, mask)


def _is(leaf: Any, shape: tuple[int, ...]) -> bool:
  return getattr(leaf, "shape", None) == shape and _is_float(leaf.dtype)


def _describe(leaf: Any) -> str:
  if not hasattr(leaf, "dtype"):
    return f"{a_type(leaf)}"
  return f"{list(leaf.shape)} {leaf.dtype}"
