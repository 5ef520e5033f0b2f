"""Makes a data set from arrays in memory, with the checks of data files."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import functools
import inspect
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedjax_alg import memory, tasks
from fedjax_alg.data import items, labels, store
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples, check_memory
from fedjax_alg.errors import (
  FAILURES,
  FAULTY,
  Faults,
  a_type,
  describe_error,
  did_you_mean,
  library_of,
)
from fedjax_alg.part import of_type
from fedjax_alg.tasks import task as task_lib
from fedjax_alg.tasks.classification import MAX_CLASSES
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


#: The arrays that may be missing, in the order in which their faults are said.
_OTHERS = ("x_test", "y_test", "kind_train", "kind_test", "client_train", "client_test")
#: The largest number of a client.
_MAX_ID = 2**31 - 2


def option_names() -> list[str]:
  """The arguments of ``from_arrays`` beside x and y."""
  return list(inspect.signature(from_arrays).parameters)[2:]


def refuse_unknown_options(function: str, options: Mapping[str, Any]) -> None:
  """Refuses options that ``from_arrays`` does not have.

  Args:
    function: name of the function that passes them on, for the message.
    options: name -> value.

  Raises:
    DataError: there is none of this name.
  """
  allowed, faults = option_names(), Faults()
  for name in options:
    if name not in allowed:
      faults.add(
        DataError(
          f"`{name}`: no option of {function}{did_you_mean(name, allowed)} (one of "
          f"{', '.join(allowed)})"
        )
      )
  faults.raise_any(DataError)


@memory.in_one_line("`x`", DataError)
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
      become int32; every other real dtype is converted to float32. [n] texts need
      features that read texts, such as `features`=backbone:wordllama.
    y: [n] labels, whole numbers from 0; or texts or truth values, which are numbered
      in their sorted order (``encoding.classes``); or the targets of another
      ``task``.
    client_ids: [n] the client of each training example, as numbers or strings; needed
      for ``partition="natural"``. They are the names of the clients, which come in
      the sorted order of their ids (``Federation.client_names``).
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
  return make_examples(
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


def as_features(
  label: str,
  x: Any,
  to_numbers: bool | Mapping[str, Any],
  are_images: bool | Mapping[str, Any] = False,
) -> Any:
  """Converts new examples as ``from_arrays`` does.

  Args:
    label: how a message starts.
    x: [n, ...] examples, or a dictionary of arrays.
    to_numbers: whether signed integers are numbers, not ids of tokens; or a dictionary
      that says it of each array.
    are_images: whether whole numbers must be uint8, whose values are scaled; likewise.

  Returns:
    Arrays that are float32, uint8 or int32.

  Raises:
    DataError: they cannot be examples.
  """

  def convert(
    label: str, values: object, to_number: object, is_image: object
  ) -> np.ndarray:
    array = _array(label, values)
    if is_image and array.dtype.kind in "iu" and array.dtype != np.uint8:
      raise DataError(
        f"{label} is {array.dtype}, whole numbers must be uint8 as in the training "
        "examples (or give float32 in [0, 1])"
      )
    if to_number and array.dtype.kind == "i":
      array = array.astype(np.float64)
    features: np.ndarray = _features(label, array)
    return features

  converted = _map_arrays(convert, label, x, to_numbers, are_images)
  _same_rows(label, converted, None)
  return converted


def as_targets(label: str, y: np.ndarray) -> np.ndarray:
  """Converts the targets of a task that is not known yet, as ``from_arrays`` does.

  Args:
    label: how a message starts.
    y: [n, ...] targets.

  Returns:
    Whole numbers as int32, others as float32.

  Raises:
    DataError: they are no real numbers, or do not fit.
  """
  with _label_errors(label):
    return task_lib.numbers(y, "targets")


def argument(array: str) -> str:
  """The argument of ``from_arrays`` that is an array, as a message names it."""
  return f"`{ARGUMENTS[array]}`:"


def make_examples(
  values: Mapping[str, object],
  label_of: Callable[[str], str],
  name: str = "arrays",
  num_classes: int | None = None,
  task: str | tasks.Task | None = None,
  client_names: np.ndarray | None = None,
  are_numbered: bool = False,
  faults: Faults | None = None,
) -> Examples:
  """Makes a data set of what stands in the place of each array of a file.

  All examples of users come here, whatever they were: arrays in memory, columns of a
  frame or of another library, and files.

  Args:
    values: x_train and y_train, perhaps x_test, y_test, client_train,
      client_test, kind_train and kind_test, of anything that NumPy converts to
      arrays; or None; or ``FAULTY`` for those with a fault that is known.
    label_of: name of an array -> the name of the array in an error message.
    name: name of the data set.
    num_classes: L; None: the size of the targets (``Task.size``).
    task: what is predicted; None: one class for each example.
    client_names: with ``are_numbered``, the name of each client, as strings; None if
      the numbers are the names.
    are_numbered: whether the client ids are numbers from 0 that stay. Else the clients
      are numbered in the sorted order of their ids, which are their names.
    faults: what is wrong with arrays that are ``FAULTY``.

  Returns:
    The examples.

  Raises:
    DataError: see ``from_arrays``; all that is wrong is one error.
  """
  faults = Faults() if faults is None else faults
  if num_classes is not None:
    num_classes = faults.attempt(of_type, "num_classes", num_classes, int)
  resolved_task = faults.attempt(tasks.resolve_task, task)
  arrays = _read_arrays(values, label_of, faults)
  if not are_numbered:
    arrays, client_names = _with_clients(arrays, label_of, faults)
  if resolved_task is FAULTY or num_classes is FAULTY:
    faults.raise_any(DataError)
  return _check_examples(
    arrays, label_of, name, num_classes, client_names, resolved_task, faults
  )


def _read_arrays(
  values: Mapping[str, object], label_of: Callable[[str], str], faults: Faults
) -> dict[str, Any]:
  """Converts what is there to arrays; without test examples they are empty."""
  present = {which for which, value in values.items() if value is not None}
  if ("x_test" in present) != ("y_test" in present):
    faults.add(DataError("`x_test` and `y_test`: give both or none"))
    present -= {"x_test", "y_test", "client_test", "kind_test"}
  for which in ("client_test", "kind_test"):
    if which in present and "x_test" not in present:
      faults.add(
        DataError(f"{label_of(which).rstrip(':')}: needs `x_test` and `y_test`")
      )
      present -= {which}

  def convert(which: str) -> Any:
    if values[which] is FAULTY:
      return FAULTY
    if which[0] in "xy":
      return faults.attempt(_map_arrays, _array, label_of(which), values[which])
    return faults.attempt(_array, label_of(which), values[which])

  arrays = {which: convert(which) for which in ("x_train", "y_train")}
  if "x_test" not in present:
    arrays |= {
      which.replace("train", "test"): array
      if array is FAULTY
      else _map_arrays(lambda _, part: part[:0] if part.ndim else part, "", array)
      for which, array in arrays.items()
    }
  return arrays | {which: convert(which) for which in _OTHERS if which in present}


def _with_clients(
  arrays: dict[str, Any], label_of: Callable[[str], str], faults: Faults
) -> tuple[dict[str, Any], np.ndarray | None]:
  """The arrays with numbers for the ids of clients, and the names of the clients."""
  ids = {which: arrays[which] for which in arrays if which.startswith("client_")}
  numbered = FAULTY
  if not _any_faulty(ids):
    numbered = faults.attempt(_number_clients, ids, label_of)
  if numbered is FAULTY:  # those of one split have no numbers alone
    return arrays | dict.fromkeys(ids, FAULTY), None
  numbers, names = numbered
  return arrays | numbers, names


def _any_faulty(arrays: Mapping[str, object]) -> bool:
  return any(array is FAULTY for array in arrays.values())


def _array(label: str, values: Any) -> np.ndarray:
  if isinstance(values, (list, tuple)) and values and items.is_foreign(values[0]):
    return items.stack_rows(values, f"{label} its rows", label.startswith("`x"))
  parts = values if isinstance(values, (list, tuple)) else ()
  values = items.of_tensor(values)
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
    hint = ""
    if library_of(values) and hasattr(values, "__getitem__"):
      hint = " (from_torch reads a data set)"
    raise DataError(f"{label} its rows have different shapes{hint}") from None
  except FAILURES as error:  # whatever the caller's data raise
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
  if not array.ndim:
    kind = "None" if values is None else a_type(values)
    raise DataError(
      f"{label} {kind}, must be an array with one entry for each example{_hint(values)}"
    )
  if array.dtype == object and hasattr(values, "dtypes") and hasattr(values, "columns"):
    others = [
      str(name) for name, dtype in dict(values.dtypes).items() if not _is_real(dtype)
    ]
    raise DataError(
      f"{label} a frame with columns that are no numbers of NumPy "
      f"({', '.join(others[:10])}); from_dataframe reads it"
    )
  return array


def _is_real(dtype: Any) -> bool:
  return isinstance(dtype, np.dtype) and dtype.kind in "fiub"


def _hint(values: object) -> str:
  """How an array can be made of what is none, for messages."""
  if hasattr(values, "toarray"):
    return " (its toarray() gives one)"
  if hasattr(values, "__iter__") and not isinstance(values, (str, bytes)):
    return " (make a list of it, or let from_torch read a data set)"
  return ""


def _number_clients(
  arrays: dict[str, np.ndarray], label_of: Callable[[str], str]
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
  """Numbers the client ids from 0 in their sorted order."""
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
    DataError: different ids are the same text, which would name two clients.
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
    name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)
    for name in names.tolist()
  ]
  if len(set(text)) < len(text):
    twice = next(name for name in text if text.count(name) > 1)
    raise DataError(f"`client_ids`: different ids have the same text, {twice!r}")
  return clients, np.array(text, str)


def _check_examples(
  arrays: dict[str, Any],
  label_of: Callable[[str], str],
  name: str,
  num_classes: int | None,
  client_names: np.ndarray | None,
  task: tasks.Task | None,
  faults: Faults,
) -> Examples:
  """``make_examples`` of arrays."""

  def bare(array: str) -> str:
    """The name of an array in a message, without the name of the file."""
    return label_of(array).rstrip(":").split(": ")[-1]

  if "client_test" in arrays and "client_train" not in arrays:
    faults.add(DataError(f"{label_of('client_test')} without {bare('client_train')}"))
    arrays = arrays | {"client_test": FAULTY}
  used = tasks.CLASSIFICATION if task is None else task
  classes = None
  if not _any_faulty({which: arrays[which] for which in ("y_train", "y_test")}):
    coded = faults.attempt(_with_codes, used, arrays, label_of)
    if coded is FAULTY:
      arrays = arrays | dict.fromkeys(("y_train", "y_test"), FAULTY)
    else:
      arrays, classes = coded
  if classes is not None and num_classes is None:
    num_classes = len(classes)
  for split in ("train", "test"):
    _convert_split(used, split, arrays, label_of, bare, faults)
  x_train, x_test = arrays["x_train"], arrays["x_test"]
  y_train, y_test = arrays["y_train"], arrays["y_test"]
  if x_train is not FAULTY:
    x_train = faults.attempt(_check_filled, label_of("x_train"), x_train)
  for kind, pair in (("x", (x_train, x_test)), ("y", (y_train, y_test))):
    if not any(part is FAULTY for part in pair):
      faults.attempt(_same_kind, label_of(f"{kind}_train"), bare(f"{kind}_test"), *pair)
  kinds: Any = None
  if not _any_faulty(arrays):
    kinds = faults.attempt(_number_kinds, arrays, label_of)
  faults.raise_any(DataError)
  kind_train, kind_test, kind_names = kinds
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
    x_train=x_train,
    y_train=y_train,
    x_test=x_test,
    y_test=y_test,
    num_classes=num_classes,
    client_train=arrays.get("client_train"),
    client_test=arrays.get("client_test"),
    name=name,
    num_tokens=tokens,
    client_names=client_names,
    task=task,
    encoding=None if classes is None else labels.Encoding(classes),
    kind_train=kind_train,
    kind_test=kind_test,
    kind_names=kind_names,
  )


def _convert_split(
  task: tasks.Task,
  split: str,
  arrays: dict[str, Any],
  label_of: Callable[[str], str],
  bare: Callable[[str], str],
  faults: Faults,
) -> None:
  """Converts x, y and the clients of a split in place; faults become ``FAULTY``."""
  x, y, client = (f"{kind}_{split}" for kind in ("x", "y", "client"))
  rows, of = None, ""

  def convert(which: str, fn: Callable[..., Any], is_flat: bool = False) -> None:
    nonlocal rows, of
    if arrays.get(which) is None or arrays[which] is FAULTY:
      return
    first = arrays.get(which.replace("test", "train"))
    if first is FAULTY and not any(map(np.size, store.arrays(arrays[which]))):
      arrays[which] = FAULTY  # no rows, so no fault but that of the training rows
      return
    arrays[which] = faults.attempt(fn, label_of(which), arrays[which])
    if arrays[which] is FAULTY:
      return
    number = faults.attempt(
      _same_rows, label_of(which), arrays[which], rows, of, is_flat
    )
    if number is FAULTY:
      arrays[which] = FAULTY
    elif rows is None:
      rows, of = number, bare(which)

  convert(x, functools.partial(_map_arrays, _features))
  convert(y, functools.partial(_targets, task))
  convert(client, _client_numbers, is_flat=True)


def _client_numbers(label: str, ids: np.ndarray) -> np.ndarray:
  with _label_errors(label):
    return task_lib.whole_numbers(ids, 0, _MAX_ID)


def _check_filled(label: str, x: Any) -> Any:
  for array in store.arrays(x):
    if not array.size:
      raise DataError(f"{label} has no {'features' if len(array) else 'rows'}")
  return x


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


def _map_arrays(
  fn: Callable[..., object], label: str, tree: PyTree, *others: Any
) -> PyTree:
  """``fn(label, array, *others)`` of an array, or of each array of a dictionary.

  Another dictionary has an entry for each array, or None; what is none is for all.
  """
  if not isinstance(tree, Mapping):
    return fn(label, tree, *others)
  if not tree:
    raise DataError(f"{label} has no arrays")
  if len({str(key) for key in tree}) < len(tree):
    raise DataError(
      f"{label} has two arrays of the same name, as text (its keys "
      f"are {', '.join(map(repr, tree))})"
    )
  return {
    str(key): _map_arrays(
      fn,
      f"{label} {key}",
      value,
      *(of.get(str(key)) if isinstance(of, Mapping) else of for of in others),
    )
    for key, value in tree.items()
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
  if stated > MAX_CLASSES:
    raise DataError(f"`num_classes`={stated}: must be at most {MAX_CLASSES:,}")
  return stated


def _texts(label: str, x: np.ndarray) -> np.ndarray:
  """Texts as an array of dtype object, which features then read.

  Raises:
    DataError: one is no text, or no bytes in UTF-8.
  """
  result = np.empty(len(x), object)
  for row, text in enumerate(x.tolist()):
    try:
      text = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError:
      text = None
    if not isinstance(text, str):
      raise DataError(f"{label} row {row} is no text, as the first rows are")
    result[row] = text
  return result


def _features(label: str, x: np.ndarray) -> np.ndarray:
  is_text = task_lib.kind_of(x) == "text" if x.size else x.dtype.kind in "USO"
  if x.ndim == 1 and is_text:
    return _texts(label, x)
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
  if x.dtype not in (np.float32, np.int32):
    check_memory(
      f"{label.rstrip(':')}: {x.size:,} numbers as float32 or int32", 4.0 * x.size
    )
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
