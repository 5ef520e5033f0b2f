"""Makes a data set from arrays in memory, with the checks of data files."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_alg import tasks
from fedjax_alg.data import items, store
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.errors import a_type, raised
from fedjax_alg.hparams import of_type
from fedjax_alg.tasks import task as task_lib

#: Name of an array in a data file -> the argument of ``from_arrays``.
_ARGUMENTS = {"x_train": "x", "y_train": "y", "client_train": "client_ids",
              "x_test": "x_test", "y_test": "y_test",
              "client_test": "test_client_ids"}


#: The largest number of a client.
_MAX_ID = 2 ** 31 - 2


def from_arrays(
    x: Any, y: Any, client_ids: Any = None, *, x_test: Any = None,
    y_test: Any = None, test_client_ids: Any = None,
    num_classes: int | None = None, name: str = "arrays",
    task: str | tasks.Task | None = None) -> Examples:
  """Makes a data set from your own arrays, for ``federate``.

  Args:
    x: [n, ...] training examples, an array or a dictionary of arrays. uint8
      arrays are images and arrays of signed integers are token ids, which
      become int32; every other real dtype is converted to float32.
    y: [n] labels, whole numbers from 0; the targets of another ``task``.
    client_ids: [n] the client of each training example, as numbers or
      strings; needed for ``partition="natural"``. Clients are numbered in the
      sorted order of their ids, and keep them as ``client_names``.
    x_test: [m, ...] test examples with the shape and dtype of ``x``. Without
      test examples the partition must hold out a local test split, as
      ``natural`` does.
    y_test: [m] labels of the test examples.
    test_client_ids: [m] the client of each test example. A client that has
      no training example is evaluated and never takes part.
    num_classes: L; by default the largest label plus one, or the number of the
      targets of an example.
    name: name of the data set in tables and plots.
    task: what is predicted, a name of ``tasks.NAMES`` or a ``Task``: docs/
      tasks.md. None: one class for each example, unless the model names a task.

  Returns:
    The examples.

  Raises:
    DataError: an array has a wrong shape, length or dtype, a value is NaN or
      infinite, or a label is out of range; the message is one line that names
      the argument.

  Examples:
    >>> x = np.random.default_rng(0).random((40, 5))
    >>> y = np.arange(40) % 2
    >>> examples = from_arrays(x, y, client_ids=["anna", "bert"] * 20)
    >>> import fedjax_alg as fa
    >>> fa.federate(examples, partition="natural").num_clients
    2
  """
  if num_classes is not None:
    num_classes = of_type("num_classes", num_classes, int)
  if (x_test is None) != (y_test is None):
    raise DataError("`x_test` and `y_test`: give both or none")
  if test_client_ids is not None and x_test is None:
    raise DataError("`test_client_ids`: needs `x_test` and `y_test`")
  arrays = {"x_train": _each(_array, "`x`:", x),
            "y_train": _each(_array, "`y`:", y)}
  if x_test is None:
    arrays |= {f"{kind}_test": _each(
        lambda _, array: array[:0] if array.ndim else array, "",
        arrays[f"{kind}_train"]) for kind in ("x", "y")}
  else:
    arrays |= {"x_test": _each(_array, "`x_test`:", x_test),
               "y_test": _each(_array, "`y_test`:", y_test)}
  numbered, names = _numbered(client_ids, test_client_ids)
  return checked(arrays | numbered, lambda which: f"`{_ARGUMENTS[which]}`:",
                 name, num_classes, names, tasks.named(task))


def _array(what: str, values: Any) -> np.ndarray:
  if isinstance(values, (list, tuple)) and values and items.is_image(values[0]):
    return items.stacked(values, f"{what} its rows", what.startswith("`x"))
  try:
    array = np.asarray(values)
  except ValueError:
    raise DataError(f"{what} its rows have different shapes") from None
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise DataError(f"{what} {a_type(values)} that is no array, "
                    f"{raised(error)}") from error
  if array.dtype.kind == "V" and jnp.issubdtype(array.dtype, jnp.floating):
    array = array.astype(np.float32)  # bfloat16, which NumPy does not know
  if array.dtype == object and array.ndim == 1 and len(array) and isinstance(
      array[0], (np.ndarray, list, tuple)):
    array = items.stacked(array, f"{what} its rows", what.startswith("`x"))
  if not array.ndim and array.dtype != object:
    raise DataError(f"{what} {a_type(values)}, must be an array with one entry "
                    "for each example")
  return array


def _numbered(
    train: Any, test: Any) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
  """Numbers the client ids from 0 in their sorted order."""
  if train is None:
    return {} if test is None else {
        "client_test": _array("`test_client_ids`:", test)}, None
  ids = {"client_train": _array("`client_ids`:", train)}
  if test is not None:
    ids["client_test"] = _array("`test_client_ids`:", test)
  for which, array in ids.items():
    if array.ndim != 1 or array.size and array.dtype.kind not in "iuUSO":
      raise DataError(f"`{_ARGUMENTS[which]}`: {array.dtype} of shape "
                      f"{array.shape}, one whole number or string for each "
                      "example is needed")
  try:
    return numbered(ids)
  except TypeError:
    raise DataError("`client_ids`: ids of different kinds, which cannot be "
                    "sorted") from None


def numbered(
    ids: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
  """Numbers client ids from 0 in their sorted order.

  Args:
    ids: client_train [n], numbers or strings, and perhaps client_test [m].

  Returns:
    The numbers int32 under the same names, and the ids as strings, [C]. A
    client may have test examples only.

  Raises:
    TypeError: ids of different kinds, which cannot be sorted.
  """
  of_each = list(ids.values())
  if len({array.dtype.kind for array in of_each}) > 1:
    of_each = [array.astype(object) for array in of_each]
  names, numbers = np.unique(
      np.concatenate([array.ravel() for array in of_each]),
      return_inverse=True)
  clients, first = {}, 0
  for which, array in ids.items():
    clients[which] = numbers[first:first + array.size].astype(
        np.int32).reshape(array.shape)
    first += array.size
  text = [name.decode("utf-8", "replace") if isinstance(name, bytes)
          else str(name) for name in names.tolist()]
  return clients, np.array(text, str)


def checked(
    arrays: dict[str, Any], what: Callable[[str], str], name: str,
    num_classes: int | None = None, client_names: np.ndarray | None = None,
    task: tasks.Task | None = None) -> Examples:
  """Checks arrays and makes the examples.

  Args:
    arrays: x_train, y_train, x_test and y_test, which may be dictionaries of
      arrays; also client_train and client_test if the data set names clients.
    what: name of an array -> the name of the array in an error message.
    name: name of the data set.
    num_classes: L; None means that of the targets (``Task.size``).
    client_names: name of each client, as strings; None if the numbers are the
      names.
    task: what is predicted; None: one class for each example.

  Returns:
    The examples.

  Raises:
    DataError: see ``from_arrays``.
  """
  def bare(array: str) -> str:
    """The name of an array in a message, without the name of the file."""
    return what(array).rstrip(":").split(": ")[-1]

  if "client_test" in arrays and "client_train" not in arrays:
    raise DataError(f"{what('client_test')} without {bare('client_train')}")
  used = tasks.CLASSIFICATION if task is None else task
  for split in ("train", "test"):
    x, y, client = (f"{kind}_{split}" for kind in ("x", "y", "client"))
    arrays[x] = _each(_features, what(x), arrays[x])
    rows = _same_rows(what(x), arrays[x], None)
    arrays[y] = _targets(used, what(y), arrays[y])
    _same_rows(what(y), arrays[y], rows, bare(x))
    if client in arrays:
      with _named(what(client)):
        arrays[client] = task_lib.whole_numbers(arrays[client], 0, _MAX_ID)
      _same_rows(what(client), arrays[client], rows, bare(x), one=True)
  x_train, x_test = arrays["x_train"], arrays["x_test"]
  for array in store.arrays(x_train):
    if not array.size:
      raise DataError(f"{what('x_train')} has no "
                      f"{'features' if len(array) else 'rows'}")
  for kind in ("x", "y"):
    _same_kind(what(f"{kind}_train"), bare(f"{kind}_test"),
               arrays[f"{kind}_train"], arrays[f"{kind}_test"])
  y_train, y_test = arrays["y_train"], arrays["y_test"]
  stated, num_classes = num_classes, _size(used, num_classes, y_train, y_test)
  tokens = None
  if used.of_tokens and isinstance(x_train, np.ndarray) and (
      x_train.dtype == np.int32):  # not features beside targets of tokens
    tokens = tasks.largest(x_train, x_test)
    if stated is not None and tokens > stated:
      raise DataError(f"`num_classes`={stated}: a token id of "
                      f"{bare('x_train')} is {tokens - 1}, ids must lie in "
                      f"[0, {stated})")
    tokens = num_classes = max(num_classes, tokens)
  if task is not None and task.for_data is not None:
    task = task.for_data(y_train)
  return Examples(x_train, y_train, x_test, y_test, num_classes,
                  arrays.get("client_train"), arrays.get("client_test"), name,
                  tokens, client_names, task)


def _each(fn: Callable[[str, Any], Any], what: str, tree: Any) -> Any:
  """``fn(what, array)`` of an array, or of each array of a dictionary."""
  if not isinstance(tree, Mapping):
    return fn(what, tree)
  if not tree:
    raise DataError(f"{what} has no arrays")
  if len({str(key) for key in tree}) < len(tree):
    raise DataError(f"{what} has two arrays of one name, as texts (its keys "
                    f"are {', '.join(map(repr, tree))})")
  return {str(key): _each(fn, f"{what} {key}", value)
          for key, value in tree.items()}


def _same_rows(
    what: str, tree: Any, rows: int | None, of: str = "", one: bool = False
) -> int:
  """Checks that arrays have as many rows; None: as the first; returns them."""

  def check(what: str, array: np.ndarray) -> np.ndarray:
    nonlocal rows
    if rows is None:
      rows = len(array)
    if len(array) != rows or one and array.ndim != 1:
      shape = (rows, *(() if one else array.shape[1:]))
      raise DataError(f"{what} has shape {array.shape}, {shape} is needed (one "
                      f"per row{of and f' of {of}'})")
    return array

  _each(check, what, tree)
  assert rows is not None
  return rows


def _same_kind(what: str, other: str, train: Any, test: Any) -> None:
  """Checks that the arrays for training and for testing are alike."""
  if isinstance(train, Mapping) != isinstance(test, Mapping) or (
      isinstance(train, Mapping) and train.keys() != test.keys()):
    raise DataError(f"{what} and {other} have different arrays")
  if isinstance(train, Mapping):
    for key in train:
      _same_kind(f"{what} {key}", f"{other} {key}", train[key], test[key])
  elif train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
    raise DataError(
        f"{what} has examples of shape {train.shape[1:]} {train.dtype} but "
        f"{other} of {test.shape[1:]} {test.dtype}")


def _targets(task: tasks.Task, what: str, tree: Any) -> Any:
  if isinstance(tree, Mapping) and task.outputs is not None:
    raise DataError(f"{what} is a dictionary, `task`={task.name} needs one "
                    "array")

  def converted(what: str, array: np.ndarray) -> np.ndarray:
    hint = "" if task is not tasks.CLASSIFICATION or (
        array.dtype.kind not in "fb") else (
            " (other targets than classes need a `task`, such as regression)")
    with _named(what, hint):
      return task.targets(array)

  return _each(converted, what, tree)


def _size(
    task: tasks.Task, given: int | None, y_train: Any, y_test: Any) -> int:
  """L, which a caller may have given."""
  size = task.size(y_train, y_test)
  if given is None or given == size:
    return size
  if store.arrays(y_train)[0].dtype.kind != "i":
    raise DataError(f"`num_classes`={given}: the targets of `task`={task.name} "
                    f"have {size} numbers")
  if given < size:
    raise DataError(f"`num_classes`={given}: a label is {size - 1}, labels "
                    f"must lie in [0, {given})")
  return given


def _features(what: str, x: np.ndarray) -> np.ndarray:
  if x.ndim < 2:
    raise DataError(
        f"{what} has shape {x.shape}, one row per example and at least one "
        "more axis are needed")
  if x.dtype == np.uint8:
    return x
  if x.dtype.kind in "ub":
    x = x.astype(np.float32)
  with _named(what):
    x = task_lib.numbers(x, "token ids")
    return task_lib.token_ids(x) if x.dtype == np.int32 else x


@contextlib.contextmanager
def _named(what: str, hint: str = "") -> Iterator[None]:
  """Says in an error what is wrong."""
  try:
    yield
  except ValueError as error:
    raise DataError(f"{what} {error}{hint}") from None
