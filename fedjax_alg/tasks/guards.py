"""Holds the functions of a task of the user's own to what ``Task`` says.

A task of this library is left alone. Of any other each function is wrapped
once, when the task is made, so that whoever calls it gets what it promises or
an error of one line. What ``loss``, ``sums`` and ``values`` give is checked
with the model (``models.adapt``).
"""

from collections.abc import Callable, Mapping
import functools
import operator
from typing import Any, SupportsIndex, TypeVar

import jax
import numpy as np

from fedjax_alg import own
from fedjax_alg.errors import FAILURES, OptionError, a_type, describe_error
from fedjax_alg.typing import AnyArray, Array, PyTree, Tree

#: What a function of a task gives, once it is checked.
Result = TypeVar("Result")


_OURS = __name__.partition(".")[0] + "."


def is_library(fn: object) -> bool:
  """Whether a function is one of this library."""
  return (getattr(fn, "__module__", None) or "").startswith(_OURS)


def guard(
  task: str, name: str, fn: Callable[..., object], check: Callable[..., Result]
) -> Callable[..., Result]:
  """Wraps a function of a task.

  Args:
    task: name of the task.
    name: name of the function.
    fn: the function.
    check: (what ``fn`` gave, its arguments) -> what is used of it. Raises a
      ValueError whose text goes on after the name of the function.

  Returns:
    The function. It raises an OptionError that names the task and the function
    where ``fn`` raises another error than that, or ``check`` does.
  """
  label = f"`task`={task}: its {name}"
  # The text of an error of ``targets`` goes on after the array's name.
  error_type: type[ValueError] = OptionError
  if name == "targets":
    label, error_type = f"is refused by `task`={task}, whose targets", ValueError

  @functools.wraps(fn, updated=())
  def call(*args: object) -> Result:
    try:
      result = fn(*args)
    except OptionError:
      raise
    except FAILURES as error:  # whatever the user's code raises
      if name == "targets" and isinstance(error, ValueError):
        raise
      raise error_type(f"{label} raises {describe_error(error)}") from error
    try:
      return check(result, *args)
    except ValueError as error:
      raise error_type(f"{label} gives {error}") from None

  call.is_guarded = True  # type: ignore[attr-defined]
  return call


def _rows(tree: object) -> int:
  return len(jax.tree.leaves(tree)[0])


def _check_whole(value: SupportsIndex, least: int, label: str) -> int:
  try:
    number = operator.index(value)
  except TypeError:
    number = least - 1
  if number < least:
    raise ValueError(f"{value!r}{label}, must give a whole number of at least {least}")
  return number


def check_shape(result: object, y: object, size: int) -> tuple[int, ...]:
  """The shape of outputs: a tuple or list of whole numbers."""
  del y, size
  if not isinstance(result, (tuple, list)) or not all(
    isinstance(length, (int, np.integer)) and length >= 0 for length in result
  ):
    raise ValueError(
      f"{result!r}, must give the shape of the outputs, a tuple of whole numbers"
    )
  return tuple(map(int, result))


def check_size(result: SupportsIndex, *targets: object) -> int:
  """The number of classes, targets or tokens."""
  del targets
  return _check_whole(result, 1, "")


def check_target_array(result: object, y: np.ndarray) -> np.ndarray:
  """An array of numbers with as many rows."""
  if not hasattr(result, "dtype"):
    raise ValueError(f"{a_type(result)}, must give an array of numbers")
  array = own.real_array(result)
  if array.shape[:1] != y.shape[:1]:
    raise ValueError(f"shape {array.shape} for shape {y.shape}, must keep the rows")
  return array


def labels_of(kind: type[Any]) -> Callable[..., Any]:
  """Makes the check of labels, which are of this type, or None."""

  def check(result: object, train: object, test: object, size: int) -> Any:
    del size
    if result is None:
      return None
    if not isinstance(result, kind):
      raise ValueError(f"{a_type(result)}, must give a Labels or None")
    number = _check_whole(result.number, 1, " as number")
    for name, labels, y in (
      ("train", result.train, train),
      ("test", result.test, test),
    ):
      labels = np.asarray(labels)
      if labels.shape != (_rows(y),) or (labels.size and labels.dtype.kind not in "iu"):
        raise ValueError(
          f"{labels.dtype}{list(labels.shape)} as {name}, must give a whole "
          f"number for each row, [{_rows(y)}]"
        )
      if labels.size and not 0 <= labels.min() <= labels.max() < number:
        raise ValueError(
          f"labels from {labels.min()} to {labels.max()} as "
          f"{name}, must lie in [0, {number})"
        )
    return kind(
      *(np.asarray(labels, np.int32) for labels in (result.train, result.test)), number
    )

  return check


def check_pooled(result: object, sums: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
  """Sums with the leading axes of those given, the rows and loss among them."""
  if not isinstance(result, Mapping):
    raise ValueError(f"{a_type(result)}, must give a dictionary of sums")
  for name in ("rows", "loss"):
    if name not in result:
      raise ValueError(
        f"no {name} (only {', '.join(result) or 'nothing'}), must keep rows and loss"
      )
  first = np.shape(sums["rows"])[:1]
  for name, leaf in result.items():
    own.check_real(leaf.dtype)
    if np.shape(leaf)[:1] != first:
      raise ValueError(
        f"shape {list(np.shape(leaf))} as {name}, must keep the "
        f"clients' axis, {list(first)}"
      )
  return dict(result)


def check_scores(result: object, outputs: PyTree, y: PyTree) -> dict[str, AnyArray]:
  """Numbers of each example."""
  del outputs
  if not isinstance(result, Mapping) or not result:
    raise ValueError(f"{a_type(result)}, must give a dictionary of numbers [B]")
  for name, leaf in result.items():
    if np.shape(leaf) != (_rows(y),):
      raise ValueError(
        f"shape {list(np.shape(leaf))} as {name}, must give a number for each row, "
        f"[{_rows(y)}]"
      )
  return dict(result)


def check_ranks(
  result: object, scores: object, group: np.ndarray, number: int
) -> dict[str, np.ndarray]:
  """A number for each group."""
  del scores, group
  if not isinstance(result, Mapping):
    raise ValueError(f"{a_type(result)}, must give a dictionary of arrays")
  for name, leaf in result.items():
    if np.shape(leaf) != (number,):
      raise ValueError(
        f"shape {list(np.shape(leaf))} as {name}, must give a number for each of "
        f"{number} groups, [{number}]"
      )
  return dict(result)


def check_flipped(result: Tree, y: PyTree) -> Tree:
  """Targets like those given."""
  structure: Callable[[object], object] = jax.tree.structure
  if structure(result) != structure(y):
    expected = "a dictionary of arrays" if isinstance(y, Mapping) else "an array"
    raise ValueError(
      f"{a_type(result)}, must give targets like the true ones, {expected}"
    )
  for false, true in zip(jax.tree.leaves(result), jax.tree.leaves(y)):
    if (np.shape(false), false.dtype) != (np.shape(true), true.dtype):
      raise ValueError(
        f"{false.dtype}{list(np.shape(false))}, must give targets like the "
        f"true ones, {true.dtype}{list(np.shape(true))}"
      )
  return result


def check_fitted(result: Array, y: PyTree, mask: Array, size: int) -> Array:
  """One row of numbers for each example."""
  del y
  if not hasattr(result, "dtype") or result.shape != (*mask.shape, size):
    is_ = (
      f"{result.dtype}{list(result.shape)}"
      if hasattr(result, "dtype")
      else (a_type(result))
    )
    raise ValueError(
      f"{is_}, must give the numbers that least squares fits, {[*mask.shape, size]}"
    )
  own.check_real(result.dtype)
  return result


def check_matrix(result: Array, outputs: PyTree, y: PyTree, mask: Array) -> Array:
  """A square matrix."""
  del outputs, y, mask
  side = np.shape(result)
  if len(side) != 2 or side[0] != side[1]:
    raise ValueError(f"shape {list(side)}, must give a confusion matrix, [L, L]")
  own.check_real(result.dtype)
  return result


def task_of(kind: type[Result]) -> Callable[..., Result]:
  """Makes the check of a task, which is of this type."""

  def check(result: object, y: PyTree) -> Result:
    del y
    if not isinstance(result, kind):
      raise ValueError(f"{a_type(result)}, must give a Task")
    return result

  return check
