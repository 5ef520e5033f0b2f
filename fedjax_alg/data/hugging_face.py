"""Columns of the library ``datasets`` as arrays; it need not be installed."""

from collections.abc import Collection, Iterable, Iterator, Mapping
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_alg.data import items
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import check_memory
from fedjax_alg.errors import FAILURES, Faults, a_type, describe_error

if TYPE_CHECKING:
  import datasets

_CHUNK = 1000  # rows that are read together
_INTEGER = re.compile(r"u?int(8|16|32|64)")


def check_table(rows: "datasets.Dataset", option: str) -> None:
  """Refuses what is no ``datasets.Dataset`` with rows.

  Args:
    rows: the data set.
    option: the argument, for messages.

  Raises:
    DataError: it is something else, or has no rows.
  """
  if isinstance(rows, Mapping):
    splits = ", ".join(map(str, list(rows)[:5]))
    raise DataError(
      f"`{option}`: {a_type(rows)} of {splits or 'nothing'}, "
      "must be a datasets.Dataset (give one split, and `test`)"
    )
  if hasattr(rows, "with_format") and not hasattr(rows, "__len__"):
    raise DataError(
      f"`{option}`: {a_type(rows)} that is read row by row, must "
      "be a datasets.Dataset (load it without streaming, or write its clients to a "
      "folder: StreamedRows)"
    )
  if not hasattr(rows, "with_format") or not hasattr(rows, "column_names"):
    raise DataError(
      f"`{option}`: {a_type(rows)}, must be a datasets.Dataset "
      "(of a DatasetDict give one split, and `test`)"
    )
  if not len(rows):
    raise DataError(f"`{option}`: has no rows")


def _leaf(feature: object) -> Any:
  """Returns the feature of a column's entries, inside lists of any depth."""
  while hasattr(feature, "feature") or isinstance(feature, list):
    feature = feature[0] if isinstance(feature, list) else feature.feature
  return feature


def _feature(rows: "datasets.Dataset", name: str) -> Any:
  return _leaf((rows.features or {}).get(name))


def class_names(rows: "datasets.Dataset", name: str) -> list[str] | None:
  """The names of a column of class labels; None of another column."""
  return names_of_feature((rows.features or {}).get(name))


def names_of_feature(feature: object) -> list[str] | None:
  """The names of the class labels of a feature; None of another feature."""
  names = getattr(_leaf(feature), "names", None)
  return None if names is None else list(names)


def as_declared(array: np.ndarray, feature: object, where: str) -> np.ndarray:
  """Whole numbers of streamed rows in the dtype that their feature declares.

  Args:
    array: [n, ...] values of a column, of any dtype.
    feature: what ``datasets`` says of the column.
    where: the rows in a message.

  Returns:
    The array; of other features than whole numbers as it is.

  Raises:
    DataError: a number is missing.
  """
  dtype = str(getattr(_leaf(feature), "dtype", ""))
  if array.dtype.kind in "US" or not _INTEGER.fullmatch(dtype):
    return array
  return _as_stored(array, dtype, 0, where)


def _images(rows: "datasets.Dataset", name: str, where: str) -> Iterator[object]:
  """The values of a column as Python has them, a few at a time."""
  values = rows.with_format(None, columns=[name])
  for begin in range(0, len(rows), _CHUNK):
    places = range(begin, min(begin + _CHUNK, len(rows)))
    try:
      yield from values[begin : places.stop][name]
    except FAILURES as error:  # whatever the caller's data raise
      for place in places:  # which row it was
        try:
          values[place]
        except FAILURES as cause:  # whatever the caller's data raise
          raise DataError(
            f"{where}: row {place} cannot be read, {describe_error(cause)}"
          ) from error
      raise DataError(f"{where} cannot be read, {describe_error(error)}") from error


def _numbers(rows: "datasets.Dataset", name: str, where: str) -> np.ndarray:
  """A column without images, in the dtype that it is stored in.

  It is read a few rows at a time: the format of NumPy makes int64 of bytes, which
  would be ids of tokens, and eight times as many bytes.
  """
  values = rows.with_format("numpy", columns=[name])
  dtype = str(getattr(_feature(rows, name), "dtype", ""))
  stored = dtype if _INTEGER.fullmatch(dtype) else None

  def read(begin: int) -> np.ndarray:
    try:
      return np.asarray(values[begin : begin + _CHUNK][name])
    except FAILURES as error:  # whatever the caller's data raise
      raise DataError(f"{where} cannot be read, {describe_error(error)}") from error

  begins = range(0, len(rows), _CHUNK)
  parts, array = [], np.zeros(0)
  for begin in begins:
    part = read(begin)
    if part.dtype == object or part.shape[1:] != (array if begin else part).shape[1:]:
      lists = (row for start in begins for row in read(start))
      array = items.stack_rows(lists, where, False, count=len(rows))
      return array if stored is None else _as_stored(array, stored, 0, where)
    if stored is not None:
      part = _as_stored(part, stored, begin, where)
    if not begin and part.dtype.kind not in "US":
      check_memory(
        f"{where}: {len(rows):,} of them", float(len(rows)) * part[:1].nbytes
      )
      array = np.empty((len(rows), *part.shape[1:]), part.dtype)
    if part.dtype.kind in "US":  # the texts of others may be longer
      parts.append(part)
      continue
    array = array.astype(np.result_type(array, part), copy=False)
    array[begin : begin + len(part)] = part
  return np.concatenate(parts) if parts else array


def _as_stored(array: np.ndarray, dtype: str, begin: int, where: str) -> np.ndarray:
  """Whole numbers in the dtype that they are stored in.

  Raises:
    DataError: one is missing, which the format of NumPy makes NaN of.
  """
  if array.dtype.kind == "f":
    wrong = np.nonzero(~np.isfinite(array))[0]
    if len(wrong):
      raise DataError(f"{where}: row {begin + wrong[0]} is missing (None)")
  return array.astype(dtype)


def _apply_transform(
  rows: "datasets.Dataset", names: Collection[str], option: str
) -> dict[str, list[object]]:
  """The values that a transform gives; it sees every row once."""
  values: dict[str, list[object]] = {name: [] for name in names}
  for begin in range(0, len(rows), _CHUNK):
    end = min(begin + _CHUNK, len(rows))
    where = f"`{option}`: its transform of rows {begin} to {end - 1}"
    try:
      batch = rows[begin:end]
      columns = {name: list(batch[name]) for name in names if name in batch}
    except FAILURES as error:  # whatever the caller's data raise
      raise DataError(f"{where} fails, {describe_error(error)}") from error
    for name in names:
      if name not in columns:
        raise _no_column(option, name, batch)
      if len(columns[name]) != end - begin:
        raise DataError(
          f"{where} gives {len(columns[name])} of {name!r}, {end - begin} are needed"
        )
      values[name] += columns[name]
  return values


def _no_column(option: str, name: str, names: Iterable[str]) -> DataError:
  return DataError(
    f"`{option}`: has no column {name!r} (it has "
    f"{', '.join(map(str, list(names)[:20]))})"
  )


def read_columns(
  rows: "datasets.Dataset",
  option: str,
  names: Collection[str],
  examples: Collection[str],
  channels_first: bool = False,
) -> dict[str, np.ndarray]:
  """Reads columns, through the transform of the data set if it has one.

  Args:
    rows: a ``datasets.Dataset``.
    option: the argument, for messages.
    names: the columns.
    examples: those of them that are features; see ``items.stack_rows``.
    channels_first: see ``items.stack_rows``.

  Returns:
    Name -> [n, ...]. Integers have the dtype in which they are stored.

  Raises:
    DataError: it is no ``Dataset``, a column is missing or cannot be read, or
      a row has no value or another shape than the first; the faults of all columns
      are one error.
  """
  check_table(rows, option)
  faults = Faults()
  if rows.format["type"] == "custom":
    values = _apply_transform(rows, names, option)
  else:
    values = {}
    for name in names:
      if name not in rows.column_names:
        faults.add(_no_column(option, name, rows.column_names))
    names = [name for name in names if name in rows.column_names]

  def read(name: str) -> np.ndarray:
    where = f"`{option}`: the rows of {name!r}"
    if name not in values and type(_feature(rows, name)).__name__ != "Image":
      array = _numbers(rows, name, where)
      if channels_first:
        array = items.channels_last(array)
    else:
      array = items.stack_rows(
        values.pop(name) if name in values else _images(rows, name, where),
        where,
        name in examples,
        channels_first,
        len(rows),
      )
    if name in examples:
      items.check_numbers("x", name, array)
      if class_names(rows, name) and array.dtype.kind == "i":
        missing = np.argwhere(array < 0)
        if len(missing):
          raise DataError(
            f"{where}: row {missing[0][0]} has no class, a feature needs one"
          )
    return array

  arrays = {name: faults.attempt(read, name) for name in names}
  faults.raise_any(DataError)
  return arrays


def align_classes(
  array: np.ndarray, name: str, rows: "datasets.Dataset", first: "datasets.Dataset"
) -> np.ndarray:
  """Gives the classes of the test rows the numbers that training rows use.

  Args:
    array: a column of ``rows``.
    name: its name.
    rows: the test rows.
    first: the training rows.

  Returns:
    The array, as numbers of the names in ``first`` where it has names, as
    texts where ``first`` has texts.

  Raises:
    DataError: a row has a class that ``first`` does not have.
  """
  names, reference = class_names(rows, name), class_names(first, name)
  option = "dataset" if rows is first else "test"
  if reference is not None and array.dtype.kind == "U":
    texts, numbers = np.unique(array, return_inverse=True)
    names, array = texts.tolist(), numbers.reshape(array.shape)
  if names is None or names == reference or array.dtype.kind not in "iu":
    return array
  stored = str(getattr(_feature(first, name), "dtype", ""))
  if reference is None and not stored.endswith("string"):
    return array  # plain numbers, which have no names to compare
  unlabeled = np.argwhere((array < 0) | (array >= len(names)))
  if len(unlabeled):
    raise DataError(f"`{option}`: row {unlabeled[0][0]} of {name!r} has no class")
  if reference is None:
    labels: np.ndarray = np.array(names)[array]
    return labels
  for number in np.unique(array):
    if names[number] not in reference:
      raise DataError(
        f"`{option}`: {name!r} has the class {names[number]!r}, `dataset` "
        f"has {', '.join(reference[:20])}"
      )
  place: np.ndarray = np.array(
    [reference.index(text) if text in reference else -1 for text in names], array.dtype
  )
  renumbered: np.ndarray = place[array]
  return renumbered
