"""Data sets of other libraries as arrays in memory, for ``from_arrays``.

None of the libraries is needed here: their objects are read as they are given.
Choices of columns are names, or lists of names, whose columns become features
side by side; in the place of either a dictionary name -> choice gives a
dictionary of arrays.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fedjax_alg.data.arrays import from_arrays
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.errors import a_type


def _gathered(choice: Any, column: Callable[[Any], np.ndarray]) -> Any:
  """The columns of a choice as an array, or as a dictionary of arrays."""
  if isinstance(choice, Mapping):
    return {name: _gathered(one, column) for name, one in choice.items()}
  if isinstance(choice, list):
    return np.stack([_numbers(column(name), name) for name in choice], axis=-1)
  return column(choice)


def _numbers(column: np.ndarray, name: Any) -> np.ndarray:
  """A column of features as float32."""
  try:
    return np.asarray(column, np.float32)
  except (TypeError, ValueError):
    raise DataError(f"`x`: column {name!r} is {column.dtype}, numbers are "
                    "needed") from None


def _examples(
    data: Any, test: Any, columns: Callable[[Any], Callable[[Any], Any]],
    choices: Mapping[str, Any], options: Mapping[str, Any]) -> Examples:
  """Gathers the choices x, y and client of the training and the test rows."""
  found: dict[str, Any] = dict(options)
  for rows, names in ((data, ("x", "y", "client_ids")),
                      (test, ("x_test", "y_test", "test_client_ids"))):
    if rows is None:
      continue
    column = columns(rows)
    for name, choice in zip(names, choices.values()):
      if choice is not None:
        found[name] = _gathered(choice, column)
  return from_arrays(**found)


def _column(
    names: Any, get: Callable[[Any], Any], option: str
) -> Callable[[Any], np.ndarray]:
  """``get`` of columns that there are; rows of arrays become one array."""
  known = list(names)

  def column(name: Any) -> np.ndarray:
    if name not in known:
      raise DataError(f"`{option}`: has no column {name!r} (it has "
                      f"{', '.join(map(str, known[:20]))})")
    found = np.asarray(get(name))
    if found.dtype == object and len(found) and not isinstance(found[0], str):
      found = _stacked(found, f"`{option}`: the rows of {name!r}")
    return found

  return column


def _stacked(rows: Iterable[Any], said: str) -> np.ndarray:
  """Arrays of one shape as one array."""
  arrays = [np.asarray(row) for row in rows]
  if len({array.shape for array in arrays}) > 1:
    raise DataError(f"{said} have different shapes")
  return np.stack(arrays)


def from_hf(
    dataset: Any, *, x: Any, y: Any, client: str | None = None,
    test: Any = None, **options: Any) -> Examples:
  """Makes a data set from one of the library ``datasets`` (Hugging Face).

  Args:
    dataset: a ``datasets.Dataset``. Images of one size become uint8 arrays.
    x: the column of the examples, or a list of columns of numbers, or a
      dictionary of either.
    y: the column of the targets, likewise.
    client: the column of the clients, whole numbers or strings.
    test: the test examples, a ``datasets.Dataset`` of the same columns.
    **options: further arguments of ``from_arrays``: ``num_classes``, ``name``.

  Returns:
    The examples.

  Raises:
    DataError: a column is missing, or see ``from_arrays``.

  Examples:
    fa.from_hf(load_dataset("mnist", split="train"), x="image", y="label")
  """

  def columns(rows):
    if not hasattr(rows, "with_format"):
      raise DataError(f"`dataset`: {a_type(rows)}, must be a datasets.Dataset "
                      "(of a DatasetDict give one split, and `test`)")
    arrays = rows.with_format("numpy")
    return _column(rows.column_names, lambda name: arrays[name][:], "dataset")

  return _examples(dataset, test, columns, {"x": x, "y": y, "client": client},
                   options)


def from_torch(
    dataset: Any, *, x: Any = 0, y: Any = 1, client: Any = None,
    test: Any = None, channels_first: bool = False, **options: Any
) -> Examples:
  """Makes a data set from anything with ``__len__`` and ``__getitem__``.

  Such as a ``torch.utils.data.Dataset``; torch itself is not needed. Every item
  is read once, so a random transform of the data set is drawn once, too (see
  ``augment`` for images).

  Args:
    dataset: its items are tuples or dictionaries of arrays, tensors, images of
      PIL or numbers.
    x: place or name of the example in an item, or a list or dictionary of such.
    y: that of the target, likewise.
    client: that of the client; or a list of the clients of all items.
    test: the test examples, a data set of the same kind.
    channels_first: whether images are [c, H, W], as those of torch are; here
      they become [H, W, c].
    **options: further arguments of ``from_arrays``: ``num_classes``, ``name``,
      ``test_client_ids``.

  Returns:
    The examples.

  Raises:
    DataError: an item has not what is asked for, or see ``from_arrays``.
  """
  options = dict(options)
  if client is not None and not isinstance(client, (int, str)):
    options["client_ids"], client = client, None

  def columns(rows):
    if not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
      raise DataError(f"`dataset`: {a_type(rows)}, must have __len__ and "
                      "__getitem__")
    items = [rows[i] for i in range(len(rows))]

    def column(name):
      try:
        found = [item[name] for item in items]
      except (LookupError, TypeError) as error:
        raise DataError(f"`dataset`: its items have no {name!r} (the first is "
                        f"{a_type(items[0])})") from error
      array = _stacked(found, f"`dataset`: the items' {name!r}")
      return np.moveaxis(array, 1, -1) if (
          channels_first and array.ndim == 4) else array

    return column

  return _examples(dataset, test, columns, {"x": x, "y": y, "client": client},
                   options)
