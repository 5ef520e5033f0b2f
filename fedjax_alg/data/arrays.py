"""Makes a data set from arrays in memory, with the checks of data files."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import inspect
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedjax_alg import tasks
from fedjax_alg.data import items, labels, store
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.errors import a_type, describe_error, did_you_mean
from fedjax_alg.hparams import of_type
from fedjax_alg.tasks import task as task_lib
from fedjax_alg.typing import ArraysLike, PyTree

#: Name of an array in a data file -> the argument of ``from_arrays``.
ARGUMENTS = {
  "x_train": "x",
  "y_train": "y",
  "client_train": "client_ids",
  "x_test": "x_test",
  "y_test": "y_test",
  "client_test": "test_client_ids",
  "kind_train": "kind_ids",
  "kind_test": "test_kind_ids",
}


#: The largest number of a client.
_MAX_ID = 2**31 - 2


def refuse_unknown_options(function: str, options: Mapping[str, Any]) -> None:
  """Refuses options that ``from_arrays`` does not have.

  Args:
    function: name of the function that passes them on, for the message.
    options: name -> value.

  Raises:
    DataError: there is none of this name.
  """
  allowed = list(inspect.signature(from_arrays).parameters)[2:]
  for name in options:
    if name not in allowed:
      raise DataError(
        f"`{name}`: no option of {function}{did_you_mean(name, allowed)} (one of "
        f"{', '.join(allowed)})"
      )


def from_arrays(
  x: ArraysLike,
  y: ArraysLike,
  client_ids: npt.ArrayLike | None = None,
  *,
  x_test: ArraysLike | None = None,
  y_test: ArraysLike | None = None,
  test_client_ids: npt.ArrayLike | None = None,
  num_classes: int | None = None,
  name: str = "arrays",
  task: str | tasks.Task | None = None,
  kind_ids: Any = None,
  test_kind_ids: Any = None,
) -> Examples:
  """Makes a data set from your arrays, for ``federate``.

  Args:
    x: [n, ...] training examples, an array or a dictionary of arrays. uint8
      arrays are images and arrays of signed integers are token ids, which
      become int32; every other real dtype is converted to float32.
    y: [n] labels, whole numbers from 0; or texts or truth values, which are numbered
      in their sorted order (``encoding.classes``); or the targets of another
      ``task``.
    client_ids: [n] the client of each training example, as numbers or strings; needed
      for ``partition="natural"``. Clients are numbered in the sorted order of their
      ids (``client_names``).
    x_test: [m, ...] test examples with the shape and dtype of ``x``. Without
      test examples the partition must hold out a local test split, as
      ``natural`` does.
    y_test: [m] labels of the test examples. Texts and truth values must occur in
      ``y``.
    test_client_ids: [m] the client of each test example. A client without a training
      example is evaluated but never takes part.
    num_classes: L; by default the largest label plus one, the number of names
      or the number of the targets of an example.
    name: name of the data set in tables and plots.
    task: a name of ``tasks.NAMES`` or a ``Task``, see docs/tasks.md. None: one class
      for each example, unless the model names a task.
    kind_ids: [n] the kind of client of each training example, as numbers or strings
      (docs/kinds.md); all examples of a client must have one kind. Kinds are numbered
      in the sorted order of their ids.
    test_kind_ids: [m] likewise for the test examples; by default the kinds of their
      clients.

  Returns:
    The examples.

  Raises:
    DataError: an array has a wrong shape, length or dtype, a value is NaN, infinite
      or masked, different values of a column are equal in float32, or a label is out
      of range; the message is one line that names the argument.
    OptionError: an unknown ``task``, ``num_classes`` is no whole number, or ``name``
      no text.

  Examples:
    >>> x = np.random.default_rng(0).random((40, 5))
    >>> y = np.arange(40) % 2
    >>> examples = from_arrays(x, y, client_ids=["anna", "bert"] * 20)
    >>> import fedjax_alg as fa
    >>> fa.federate(examples, partition="natural").num_clients
    2
  """
  name = of_type("name", name, str)
  return of_arrays(
    {
      "x_train": x,
      "y_train": y,
      "client_train": client_ids,
      "x_test": x_test,
      "y_test": y_test,
      "client_test": test_client_ids,
      "kind_train": kind_ids,
      "kind_test": test_kind_ids,
    },
    argument,
    name,
    num_classes,
    task,
  )


def as_features(label: str, x: Any, to_numbers: bool) -> Any:
  """Converts new examples as ``from_arrays`` does.

  Args:
    label: how a message starts.
    x: [n, ...] examples, or a dictionary of arrays.
    to_numbers: whether signed integers are numbers, not ids of tokens.

  Returns:
    Arrays that are float32, uint8 or int32.

  Raises:
    DataError: they cannot be examples.
  """

  def convert(label: str, values: object) -> np.ndarray:
    array = _array(label, values)
    if to_numbers and array.dtype.kind == "i":
      array = array.astype(np.float64)
    features: np.ndarray = _features(label, array)
    return features

  converted = _map_arrays(convert, label, x)
  _same_rows(label, converted, None)
  return converted


def argument(array: str) -> str:
  """The argument of ``from_arrays`` that is an array, as a message names it."""
  return f"`{ARGUMENTS[array]}`:"


def of_arrays(
  values: Mapping[str, object],
  label_of: Callable[[str], str],
  name: str = "arrays",
  num_classes: int | None = None,
  task: str | tasks.Task | None = None,
) -> Examples:
  """Makes a data set of what stands in the place of each array of a file.

  Args:
    values: x_train and y_train, perhaps x_test, y_test, client_train,
      client_test, kind_train and kind_test, of anything that NumPy converts to
      arrays; or None.
    label_of: see ``make_examples``.
    name: see ``from_arrays``.
    num_classes: see ``from_arrays``.
    task: see ``from_arrays``.

  Returns:
    The examples.

  Raises:
    DataError: see ``from_arrays``.
  """
  if num_classes is not None:
    num_classes = of_type("num_classes", num_classes, int)
  present = {which for which, value in values.items() if value is not None}
  if ("x_test" in present) != ("y_test" in present):
    raise DataError("`x_test` and `y_test`: give both or none")
  if "client_test" in present and "x_test" not in present:
    raise DataError("`test_client_ids`: needs `x_test` and `y_test`")
  arrays = {
    which: _map_arrays(_array, label_of(which), values[which])
    for which in ("x_train", "y_train", "x_test", "y_test")
    if which.endswith("train") or which in present
  }
  if "x_test" not in present:
    arrays |= {
      f"{kind}_test": _map_arrays(
        lambda _, array: array[:0] if array.ndim else array, "", arrays[f"{kind}_train"]
      )
      for kind in ("x", "y")
    }
  if "kind_test" in present and "x_test" not in present:
    raise DataError("`test_kind_ids`: needs `x_test` and `y_test`")
  arrays |= {
    which: _array(label_of(which), values[which])
    for which in ("kind_train", "kind_test")
    if which in present
  }
  client_numbers, names = _number_clients(
    {
      which: values[which]
      for which in ("client_train", "client_test")
      if which in present
    },
    label_of,
  )
  return make_examples(
    arrays | client_numbers,
    label_of,
    name,
    num_classes,
    names,
    tasks.resolve_task(task),
  )


def _array(label: str, values: object) -> np.ndarray:
  if isinstance(values, (list, tuple)) and values and items.is_image(values[0]):
    return items.stack_rows(values, f"{label} its rows", label.startswith("`x"))
  parts = values if isinstance(values, (list, tuple)) else ()
  mask = np.array(
    [isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts],
    bool,
  )
  if isinstance(values, np.ma.MaskedArray):
    mask = np.atleast_1d(np.ma.getmaskarray(values))
  if mask.any():
    rows = np.flatnonzero(mask.reshape(len(mask), -1).any(1))
    raise DataError(
      f"{label} has masked values in {len(rows)} row{'s' * (len(rows) > 1)}, "
      f"the first in row {rows[0]}: fill them or leave these rows out"
    )
  try:
    array = np.asarray(values)
  except ValueError:
    raise DataError(f"{label} its rows have different shapes") from None
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise DataError(
      f"{label} {a_type(values)} that is no array, {describe_error(error)}"
    ) from error
  if array.dtype.kind == "V" and jnp.issubdtype(array.dtype, jnp.floating):
    array = array.astype(np.float32)  # bfloat16, which NumPy does not know
  if (
    array.dtype == object
    and array.ndim == 1
    and len(array)
    and isinstance(array[0], (np.ndarray, list, tuple))
  ):
    array = items.stack_rows(array, f"{label} its rows", label.startswith("`x"))
  if (
    array.dtype.kind in "US"
    and array.ndim == 1
    and not all(isinstance(part, (str, bytes)) for part in parts)
  ):
    # NumPy makes texts of all, "nan" of a missing one.
    array = np.array(values, object)
  if not array.ndim and array.dtype != object:
    raise DataError(
      f"{label} {a_type(values)}, must be an array with one entry for each example"
    )
  return array


def _number_clients(
  ids: Mapping[str, object], label_of: Callable[[str], str]
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
  """Numbers the client ids from 0 in their sorted order."""
  arrays = {which: _array(label_of(which), value) for which, value in ids.items()}
  if "client_train" not in arrays:
    return arrays, None
  for which, array in arrays.items():
    if array.dtype == object or array.dtype.kind == "f":
      labels.check_present(array, label_of(which))
    if array.ndim != 1 or array.size and array.dtype.kind not in "iuUSO":
      raise DataError(
        f"{label_of(which)} is {array.dtype} of shape {array.shape}, "
        "one whole number or string for each example is needed"
      )
  try:
    return number_clients(arrays)
  except TypeError:
    kinds = sorted(
      {
        type(client_id).__name__
        for array in arrays.values()
        for client_id in array.ravel().tolist()
      }
    )
    raise DataError(
      f"{label_of('client_train')} ids of different kinds, which cannot be sorted"
      f" ({', '.join(kinds[:5])}): give all as whole numbers or all as "
      "strings"
    ) from None


def number_clients(
  ids: dict[str, np.ndarray],
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
    np.concatenate([array.ravel() for array in of_each]), return_inverse=True
  )
  clients, first = {}, 0
  for which, array in ids.items():
    clients[which] = (
      numbers[first : first + array.size].astype(np.int32).reshape(array.shape)
    )
    first += array.size
  text = [
    name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    for name in names.tolist()
  ]
  return clients, np.array(text, str)


def make_examples(
  arrays: dict[str, Any],
  label_of: Callable[[str], str],
  name: str,
  num_classes: int | None = None,
  client_names: np.ndarray | None = None,
  task: tasks.Task | None = None,
) -> Examples:
  """Checks arrays and makes the examples.

  Args:
    arrays: x_train, y_train, x_test and y_test, which may be dictionaries of
      arrays; also client_train and client_test if the data set names clients,
      and kind_train and kind_test if it brings their kinds.
    label_of: name of an array -> the name of the array in an error message.
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
    return label_of(array).rstrip(":").split(": ")[-1]

  if "client_test" in arrays and "client_train" not in arrays:
    raise DataError(f"{label_of('client_test')} without {bare('client_train')}")
  used = tasks.CLASSIFICATION if task is None else task
  arrays, classes = _with_codes(used, arrays, label_of)
  if classes is not None and num_classes is None:
    num_classes = len(classes)
  for split in ("train", "test"):
    x, y, client = (f"{kind}_{split}" for kind in ("x", "y", "client"))
    arrays[x] = _map_arrays(_features, label_of(x), arrays[x])
    rows = _same_rows(label_of(x), arrays[x], None)
    arrays[y] = _targets(used, label_of(y), arrays[y])
    _same_rows(label_of(y), arrays[y], rows, bare(x))
    if client in arrays:
      with _label_errors(label_of(client)):
        arrays[client] = task_lib.whole_numbers(arrays[client], 0, _MAX_ID)
      _same_rows(label_of(client), arrays[client], rows, bare(x), is_flat=True)
  x_train, x_test = arrays["x_train"], arrays["x_test"]
  for array in store.arrays(x_train):
    if not array.size:
      raise DataError(
        f"{label_of('x_train')} has no {'features' if len(array) else 'rows'}"
      )
  for kind in ("x", "y"):
    _same_kind(
      label_of(f"{kind}_train"),
      bare(f"{kind}_test"),
      arrays[f"{kind}_train"],
      arrays[f"{kind}_test"],
    )
  y_train, y_test = arrays["y_train"], arrays["y_test"]
  stated, num_classes = num_classes, _size(used, num_classes, y_train, y_test)
  tokens = None
  if (
    used.of_tokens and isinstance(x_train, np.ndarray) and (x_train.dtype == np.int32)
  ):  # not features beside targets of tokens
    tokens = tasks.largest(x_train, x_test)
    if stated is not None and tokens > stated:
      raise DataError(
        f"`num_classes`={stated}: a token id of "
        f"{bare('x_train')} is {tokens - 1}, ids must lie in "
        f"[0, {stated})"
      )
    tokens = num_classes = max(num_classes, tokens)
  if task is not None and task.for_data is not None:
    task = task.for_data(y_train)
  return Examples(
    x_train,
    y_train,
    x_test,
    y_test,
    num_classes,
    arrays.get("client_train"),
    arrays.get("client_test"),
    name,
    tokens,
    client_names,
    task,
    None if classes is None else labels.Encoding(classes),
    *_number_kinds(arrays, label_of),
  )


def _number_kinds(
  arrays: Mapping[str, Any], label_of: Callable[[str], str]
) -> tuple[np.ndarray | None, np.ndarray | None, tuple[str, ...]]:
  """Numbers the kinds of clients from 0 in the sorted order of their ids.

  Returns:
    ``kind_train``, ``kind_test`` and ``kind_names`` of the examples. Test rows
    that have no kind have that of their client.
  """
  if "kind_train" not in arrays:
    if "kind_test" in arrays:
      raise DataError(f"{label_of('kind_test')} without kinds of the training rows")
    return None, None, ()
  for split in ("train", "test"):
    ids = arrays.get(f"kind_{split}")
    if ids is None:
      continue
    label = label_of(f"kind_{split}")
    if ids.dtype == object or ids.dtype.kind == "f":
      labels.check_present(ids, label)
    if ids.ndim != 1 or ids.size and ids.dtype.kind not in "iuUSO":
      raise DataError(
        f"{label} is {ids.dtype} of shape {ids.shape}, one whole number or string "
        "for each example is needed"
      )
    rows = len(store.arrays(arrays[f"y_{split}"])[0])
    if len(ids) != rows:
      raise DataError(f"{label} has {len(ids)} entries, {rows} are needed")
  of_splits = {
    f"client_{split}": arrays[f"kind_{split}"]
    for split in ("train", "test")
    if f"kind_{split}" in arrays
  }
  try:
    numbers, names = number_clients(of_splits)
  except TypeError:
    raise DataError(
      f"{label_of('kind_train')} ids of different types, which cannot be sorted: "
      "give all as whole numbers or all as strings"
    ) from None
  train = numbers["client_train"]
  test = numbers.get("client_test")
  if test is None:
    test = _kinds_of_test_rows(arrays, train, label_of)
  return train, test, tuple(names.tolist())


def _kinds_of_test_rows(
  arrays: Mapping[str, Any], kinds: np.ndarray, label_of: Callable[[str], str]
) -> np.ndarray:
  """The kinds of the clients of the test rows, [m] int32."""
  rows = len(store.arrays(arrays["y_test"])[0])
  client, of_train = arrays.get("client_test"), arrays.get("client_train")
  if not rows:
    return np.zeros(0, np.int32)
  if client is None or of_train is None:
    raise DataError(
      f"{label_of('kind_test')} is missing, test rows without client ids need it"
    )
  of_client = np.full(max(client.max(), of_train.max()) + 1, -1, np.int32)
  of_client[of_train] = kinds
  result: np.ndarray = of_client[client]
  if (result < 0).any():
    raise DataError(
      f"{label_of('kind_test')} is missing, some clients have test rows only"
    )
  return result


def _with_codes(
  task: tasks.Task, arrays: dict[str, Any], label_of: Callable[[str], str]
) -> tuple[dict[str, Any], tuple[str | bool, ...] | None]:
  """Labels that are names as numbers, and the names of the training labels."""
  if not task.has_classes or any(
    isinstance(arrays[f"y_{split}"], Mapping) for split in ("train", "test")
  ):
    return arrays, None
  train, test = (
    labels.whole_objects(arrays[f"y_{split}"]) for split in ("train", "test")
  )
  classes = None
  # None in the place of an array has no axis; it is refused by its type.
  if labels.are_names(train) and train.ndim:
    classes = labels.learn_names(train, label_of("y_train"))
    train = labels.encode_labels(train, classes, label_of("y_train"))
    test = labels.encode_labels(test, classes, label_of("y_test"))
  return arrays | {"y_train": train, "y_test": test}, classes


def _map_arrays(fn: Callable[[str, Any], object], label: str, tree: PyTree) -> PyTree:
  """``fn(label, array)`` of an array, or of each array of a dictionary."""
  if not isinstance(tree, Mapping):
    return fn(label, tree)
  if not tree:
    raise DataError(f"{label} has no arrays")
  if len({str(key) for key in tree}) < len(tree):
    raise DataError(
      f"{label} has two arrays of the same name, as text (its keys "
      f"are {', '.join(map(repr, tree))})"
    )
  return {
    str(key): _map_arrays(fn, f"{label} {key}", value) for key, value in tree.items()
  }


def _same_rows(
  label: str, tree: object, rows: int | None, of: str = "", is_flat: bool = False
) -> int:
  """Checks that arrays have as many rows; None: as the first; returns them."""

  def check(label: str, array: np.ndarray) -> np.ndarray:
    nonlocal rows
    if rows is None:
      rows = len(array)
    if len(array) != rows or is_flat and array.ndim != 1:
      shape = (rows, *(() if is_flat else array.shape[1:]))
      raise DataError(
        f"{label} has shape {array.shape}, {shape} is needed (one "
        f"per row{of and f' of {of}'})"
      )
    return array

  _map_arrays(check, label, tree)
  assert rows is not None
  return rows


def _same_kind(label: str, other_label: str, train: Any, test: Any) -> None:
  """Checks that the arrays for training and for testing are alike."""
  if isinstance(train, Mapping) != isinstance(test, Mapping) or (
    isinstance(train, Mapping) and train.keys() != test.keys()
  ):
    raise DataError(f"{label} and {other_label} have different arrays")
  if isinstance(train, Mapping):
    for key in train:
      _same_kind(f"{label} {key}", f"{other_label} {key}", train[key], test[key])
  elif train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
    raise DataError(
      f"{label} has examples of shape {train.shape[1:]} {train.dtype} but "
      f"{other_label} of {test.shape[1:]} {test.dtype}"
    )


def _targets(task: tasks.Task, label: str, tree: PyTree) -> Any:
  if isinstance(tree, Mapping) and task.outputs is not None:
    raise DataError(f"{label} is a dictionary, `task`={task.name} needs one array")

  def convert(label: str, array: np.ndarray) -> np.ndarray:
    hint = ""
    if task is tasks.CLASSIFICATION and array.dtype.kind == "f":
      labels.check_present(array, label)
      hint = " (other targets than classes need a `task`, such as regression)"
      if (array == np.floor(array)).all() and np.isfinite(array).all():
        hint = (
          ": classes as whole numbers, by astype(int); other targets than"
          " classes need a `task`, such as regression"
        )
    with _label_errors(label, hint):
      return task.targets(array)

  return _map_arrays(convert, label, tree)


def _size(task: tasks.Task, stated: int | None, y_train: object, y_test: object) -> int:
  """Returns L, and checks it if the caller has set it."""
  size = task.size(y_train, y_test)
  if stated is None or stated == size:
    return size
  if task.name == tasks.BINARY.name:
    raise DataError(f"`task`=binary: needs {size} classes, there are {stated}")
  if store.arrays(y_train)[0].dtype.kind != "i":
    raise DataError(
      f"`num_classes`={stated}: the targets of `task`={task.name} have {size} numbers"
    )
  if stated < size:
    raise DataError(
      f"`num_classes`={stated}: a label is {size - 1}, labels must lie in [0, {stated})"
    )
  return stated


def _features(label: str, x: np.ndarray) -> np.ndarray:
  if x.size and x.dtype.kind in "USO" and x.ndim:
    raise DataError(
      f"{label} is {task_lib.kind_of(x)}, real numbers are needed (of texts "
      "the ids of their tokens)"
    )
  if x.ndim < 2:
    raise DataError(
      f"{label} has shape {x.shape}, one row per example and at least one "
      "more axis are needed"
    )
  if x.dtype == np.uint8:
    return x
  with _label_errors(label):
    if x.dtype.kind in "ub":
      return task_lib.as_float32(x)
    x = task_lib.numbers(x, "token ids")
    return task_lib.token_ids(x) if x.dtype == np.int32 else x


@contextlib.contextmanager
def _label_errors(label: str, hint: str = "") -> Iterator[None]:
  """Says in an error what is wrong."""
  try:
    yield
  except ValueError as error:
    raise DataError(f"{label} {error}{hint}") from None
