"""Data sets of other libraries as arrays in memory, for ``from_arrays``.

None of the libraries is needed here: their objects are read as they are given.
Choices of columns are names, or lists of names, whose columns become features
side by side; in the place of either a dictionary name -> choice gives a
dictionary of arrays.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from fedjax_alg import memory, tasks
from fedjax_alg.data import hugging_face, items
from fedjax_alg.data.arrays import from_arrays, refuse_unknown_options
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.labels import Encoding
from fedjax_alg.errors import FAULTY, Faults
from fedjax_alg.tasks import task as task_lib
from fedjax_alg.typing import PyTree

#: (name) -> the array of a column.
Column = Callable[[Hashable], np.ndarray]


def gather_columns(choice: object, column: Column) -> PyTree:
  """Makes an array of the columns of a choice, or a dictionary of arrays.

  Args:
    choice: a name, a list of names, or a dictionary of either.
    column: (name) -> the array of a column [n, ...].

  Returns:
    [n, ...]; of a list float32 [n, D].

  Raises:
    DataError: the columns of a list are no numbers.
  """
  if isinstance(choice, Mapping):
    return {name: gather_columns(part, column) for name, part in choice.items()}
  if isinstance(choice, list):
    faults = Faults()
    columns = [faults.attempt(_numbers, column(name), name) for name in choice]
    faults.raise_any(DataError)
    return np.stack(columns, axis=-1)
  return column(choice)


def _numbers(column: np.ndarray, name: object) -> np.ndarray:
  """A column of features as float32."""
  if column.dtype.kind not in "iufb":
    raise DataError(f"`x`: column {name!r} is {column.dtype}, numbers are needed")
  try:
    return task_lib.as_float32(column)
  except ValueError as error:
    raise DataError(f"`x`: column {name!r} {error}") from None


#: Argument of ``from_arrays`` -> that of a data set it comes from.
_SOURCES = {
  "x": "x",
  "y": "y",
  "client_ids": "client",
  "x_test": "test",
  "y_test": "test",
  "test_client_ids": "test",
}


def _of_both(
  train: object,
  test: object,
  columns: Callable[[object], Column],
  choices: Mapping[str, object],
) -> dict[str, PyTree]:
  """The arguments of ``from_arrays`` that two data sets give.

  Raises:
    DataError: x or y names no column, or a list names one of arrays. The faults of
      both are one error.
  """
  arrays: dict[str, PyTree] = {}
  faults = Faults()
  for rows, arguments in (
    (train, ("x", "y", "client_ids")),
    (test, ("x_test", "y_test", "test_client_ids")),
  ):
    if rows is None and arguments[0] == "x_test":
      continue
    column = faults.attempt(columns, rows)
    if column is FAULTY:
      continue
    for argument, (option, choice) in zip(arguments, choices.items()):
      if choice is None:
        continue
      if faults.attempt(items.check_flat, option, choice, column) is not FAULTY:
        arrays[argument] = faults.attempt(gather_columns, choice, column)
  faults.raise_any(DataError)
  return arrays


def _as_classes(
  arrays: Mapping[str, PyTree], options: Mapping[str, Any], names: Sequence[str] = ()
) -> Examples:
  """Makes the examples; all classes count that the data set names.

  Args:
    arrays: of both data sets.
    options: further arguments of ``from_arrays``.
    names: of the classes, by their numbers; empty: the data set names none.
  """
  arrays = dict(arrays)
  task = tasks.resolve_task(options.get("task"))
  classes = task is None or task.has_classes or task.name == tasks.DENSE.name
  labels = [array for array in (arrays["y"], arrays.get("y_test")) if array is not None]
  are_named = (
    bool(names)
    and classes
    and all(
      isinstance(array, np.ndarray)
      and array.dtype.kind in "iu"
      and array.max(initial=0) < len(names)
      for array in labels
    )
  )
  if are_named and options.get("num_classes") is None:
    arrays["num_classes"] = len(names)
  for name in arrays:
    if options.get(name) is not None:
      raise DataError(f"`{name}`: comes from `{_SOURCES[name]}`, give one of them")
  examples = from_arrays(**{**options, **arrays})
  return (
    dataclasses.replace(examples, encoding=Encoding(tuple(names)))
    if are_named
    else examples
  )


@memory.in_one_line("`dataset`", DataError)
def from_hf(
  dataset: object,
  *,
  x: object,
  y: object,
  client: str | None = None,
  test: object = None,
  channels_first: bool = False,
  **options: object,
) -> Examples:
  """Makes a data set from a ``datasets.Dataset`` (Hugging Face).

  A transform of the data set (``with_transform``) is applied, once to every row.
  Images of one size become uint8 arrays, and palette images RGB; images of 16 bits
  become float32 in [0, 1]. Class labels have the numbers and the classes of
  ``dataset`` in both splits, also classes without an example. For texts the classes
  are the training texts in their sorted order.

  Args:
    dataset: a ``datasets.Dataset``.
    x: the column of the examples, or a list of columns of numbers, or a
      dictionary of either.
    y: the column of the targets, likewise.
    client: the column of the clients, whole numbers or strings.
    test: the test examples, a ``datasets.Dataset`` of the same columns.
    channels_first: whether a transform gives images [c, H, W], as in torch;
      here they become [H, W, c]. Images of PIL always are [H, W, c].
    **options: further arguments of ``from_arrays``: ``num_classes``, ``name``,
      ``task``.

  Returns:
    The examples.

  Raises:
    DataError: a column is missing, cannot be read or lacks a value, a test row has a
      class that ``dataset`` does not have, or see ``from_arrays``.
    OptionError: see ``from_arrays``.

  Examples:
    fa.from_hf(load_dataset("mnist", split="train"), x="image", y="label")
  """
  choices = {"x": x, "y": y, "client": client}
  faults = Faults()
  for option, choice in choices.items():
    if option != "client" or client is not None:
      faults.attempt(items.check_column_choice, option, choice, (str,))
  faults.attempt(refuse_unknown_options, "from_hf", options)
  faults.raise_any(DataError)

  def columns(rows):
    arrays = hugging_face.read_columns(
      rows,
      "dataset" if rows is dataset else "test",
      items.names_in(*choices.values()),
      items.names_in(x),
      channels_first,
    )
    return lambda name: hugging_face.align_classes(arrays[name], name, rows, dataset)

  arrays = _of_both(dataset, test, columns, choices)
  names = hugging_face.class_names(dataset, y) if isinstance(y, str) else None
  return _as_classes(arrays, options, names or ())


@memory.in_one_line("`dataset`", DataError)
def from_torch(
  dataset: object,
  *,
  x: object = 0,
  y: object = 1,
  client: object = None,
  test: object = None,
  channels_first: bool = False,
  **options: object,
) -> Examples:
  """Makes a data set from anything with ``__len__`` and ``__getitem__``.

  For example, from a ``torch.utils.data.Dataset``; you do not need torch. Every item
  is read once, so a random transform is also drawn once (use ``augment`` for images).
  Palette images of PIL become RGB, and images of 16 bits float32 in [0, 1]. If the
  data set has ``class_to_idx``, as in torchvision, and ``y`` is its default, all its
  classes count, also classes without an item. For texts the classes are the training
  texts in their sorted order.

  Args:
    dataset: its items are tuples or dictionaries of arrays, tensors, images of
      PIL, numbers or texts.
    x: place or name of the example in an item, or a list or dictionary of such.
    y: place or name of the target, likewise.
    client: place or name of the client; or a list of the clients of all items.
    test: the test examples, a data set of the same kind.
    channels_first: whether images are [c, H, W], as in torch; here they become
      [H, W, c]. Images of PIL always are [H, W, c].
    **options: further arguments of ``from_arrays``: ``num_classes``, ``name``,
      ``task``, ``test_client_ids``.

  Returns:
    The examples.

  Raises:
    DataError: an item cannot be read or lacks an entry, the two data sets give a
      class different numbers, or see ``from_arrays``.
    OptionError: see ``from_arrays``.

  Examples:
    >>> items = [(np.full(3, i), i % 2) for i in range(6)]
    >>> examples = from_torch(items, client=["anna", "bert"] * 3)
    >>> examples.x_train.shape, examples.y_train.tolist()
    ((6, 3), [0, 1, 0, 1, 0, 1])
  """
  options = dict(options)
  if client is not None and not isinstance(client, (int, str)):
    options["client_ids"], client = client, None
  choices = {"x": x, "y": y, "client": client}
  faults = Faults()
  for option in ("x", "y"):
    faults.attempt(
      items.check_column_choice, option, choices[option], (int, str, np.integer)
    )
  faults.attempt(refuse_unknown_options, "from_torch", options)
  faults.raise_any(DataError)
  numbers = items.class_numbers(dataset)
  items.check_classes(numbers, items.class_numbers(test))

  def columns(rows):
    return items.read_fields(
      rows,
      "dataset" if rows is dataset else "test",
      items.names_in(*choices.values()),
      items.names_in(x),
      channels_first,
    ).__getitem__

  names = {number: name for name, number in numbers.items()}
  return _as_classes(
    _of_both(dataset, test, columns, choices),
    options,
    [str(names.get(number, "")) for number in range(max(names, default=-1) + 1)]
    if y == 1
    else (),
  )
