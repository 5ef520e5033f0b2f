"""Rows of files that are read when they are wanted.

They are read with the calls of the system and not through a memory map. A file that is
cut short while it is read is an error of one line then, and not the end of the
process; nothing that was read counts as memory of the process; and file systems without
memory maps serve, too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import math
import os
import pathlib
import shutil
import tempfile
from typing import Any, BinaryIO, Self

import numpy as np

from fedjax_alg import files, memory
from fedjax_alg.data.errors import DataError
from fedjax_alg.errors import reason

#: Rows that are asked for are read with those between them, if these are as few.
_BETWEEN = 4


def read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
  """Reads the header of a .npy file.

  Args:
    file: the file, at its beginning; afterwards at its first row.

  Returns:
    The shape, whether the array is in Fortran's order, and the dtype.

  Raises:
    ValueError: it is no such file.
  """
  version = np.lib.format.read_magic(file)
  if version == (1, 0):
    return np.lib.format.read_array_header_1_0(file)
  if version == (2, 0):
    return np.lib.format.read_array_header_2_0(file)
  raise ValueError("version")


def split_runs(numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
  """Splits numbers of rows into those that follow each other.

  Args:
    numbers: [n] int.

  Yields:
    Where a run begins among the numbers, and its numbers.
  """
  if len(numbers):
    starts = np.flatnonzero(np.diff(numbers) != 1) + 1
    yield from zip([0, *starts.tolist()], np.split(numbers, starts))


class _Descriptor:
  """A file that is open as long as something refers to it."""

  def __init__(self, number: int):
    self.number = number

  def __del__(self, close: Callable[[int], None] = os.close) -> None:
    close(self.number)


class NpyRows:
  """The rows of an array in a file, [n, ...]."""

  def __init__(self, path: pathlib.Path):
    """Opens a .npy file.

    Raises:
      DataError: it cannot be opened, or is no array of rows in C order.
    """
    self.path = path
    try:
      flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
      self._file = _Descriptor(os.open(path, flags))
      with open(self._file.number, "rb", closefd=False) as file:
        shape, in_fortran_order, dtype = read_header(file)
        self._begin = file.tell()
    except OSError as error:
      raise DataError(f"{path}: cannot be read, {reason(error)}") from error
    except ValueError as error:
      raise DataError(f"{path}: damaged, or no .npy file") from error
    if in_fortran_order or not shape or dtype.hasobject:
      raise DataError(f"{path}: must be an array of rows in C order")
    self.shape: tuple[int, ...] = shape
    self.dtype = dtype
    stat = os.fstat(self._file.number)
    #: when it was written; None: nothing else can write to it
    self._written: int | None = stat.st_mtime_ns
    if stat.st_size != self._begin + self.nbytes:
      raise DataError(
        f"{path}: has {stat.st_size:,} bytes, must have "
        f"{self._begin + self.nbytes:,}: cut short, or changed"
      )

  @property
  def ndim(self) -> int:
    """The number of axes."""
    return len(self.shape)

  @property
  def nbytes(self) -> int:
    """The size of all rows."""
    return math.prod(self.shape) * self.dtype.itemsize

  @property
  def _row_nbytes(self) -> int:
    return math.prod(self.shape[1:]) * self.dtype.itemsize

  def __len__(self) -> int:
    return self.shape[0]

  def reshape(self, *shape: int) -> "NpyRows":
    """The same rows in another shape."""
    view = object.__new__(NpyRows)
    view.__dict__.update(self.__dict__, shape=(self.shape[0], *shape[1:]))
    return view

  def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
    """Reads rows that follow each other, ``rows[begin:end]``, or those of numbers [n].

    Raises:
      DataError: the file has changed, or cannot be read.
    """
    if not isinstance(rows, slice):
      return _take(self, rows)
    begin, end, _ = rows.indices(len(self))
    out = np.empty((max(end - begin, 0), *self.shape[1:]), self.dtype)
    self._read(
      out.reshape(-1).view(np.uint8).data, self._begin + begin * self._row_nbytes
    )
    return out

  def _read(self, out: memoryview, at: int) -> None:
    file = self._file.number
    try:
      done = files.read_at(file, out, at)
      stat = os.fstat(file)
    except OSError as error:
      raise DataError(f"{self.path}: cannot be read, {reason(error)}") from error
    if done < len(out) or self._written not in (None, stat.st_mtime_ns):
      raise DataError(f"{self.path}: has changed while it was read, or was cut short")


class ComputedRows(NpyRows):
  """Rows that were computed from others, [n, ...], in a file without a name.

  It is in the folder for temporary files (the variable ``TMPDIR``), and ends with the
  process, or when nothing refers to it any more.
  """

  def __init__(self, shape: tuple[int, ...], dtype: Any):
    """Makes the file; its rows are zeros.

    Raises:
      DataError: it cannot be made, or the folder has not as much space.
    """
    self.shape, self.dtype = shape, np.dtype(dtype)
    self.path, self._begin, self._written = pathlib.Path("TMPDIR"), 0, None
    try:
      self.path = pathlib.Path(tempfile.gettempdir())
      free = shutil.disk_usage(self.path).free
      with tempfile.TemporaryFile() as file:
        self._file = _Descriptor(os.dup(file.fileno()))
      os.truncate(self._file.number, self.nbytes)
    except OSError as error:
      raise self._refusal(reason(error)) from error
    if self.nbytes > free:
      raise self._refusal(f"it has {memory.gigabytes(free)}")

  @classmethod
  def of_parts(cls, parts: Iterable[np.ndarray], total: int) -> Self:
    """Writes rows that are computed part by part.

    Args:
      parts: arrays [..., ...], one after the other all rows; at least one.
      total: n, the number of all rows.

    Returns:
      The rows, of the dtype of the first part.

    Raises:
      DataError: see ``write``.
    """
    rows, done = None, 0
    for part in parts:
      if rows is None:
        rows = cls((total, *part.shape[1:]), part.dtype)
      rows.write(np.arange(done, done + len(part)), part)
      done += len(part)
    assert rows is not None and done == total
    return rows

  def write(self, numbers: np.ndarray, values: np.ndarray) -> None:
    """Writes some rows.

    Args:
      numbers: [k] int, their numbers, rising.
      values: [k, ...], converted to the dtype of the rows.

    Raises:
      DataError: the disk is full.
    """
    if not self._row_nbytes or not len(numbers):
      return
    values = np.ascontiguousarray(values, self.dtype)
    for begin, of_run in split_runs(numbers):
      data = values[begin : begin + len(of_run)].reshape(-1).view(np.uint8).data
      try:
        files.write_at(self._file.number, data, int(of_run[0]) * self._row_nbytes)
      except OSError as error:
        raise self._refusal(reason(error)) from error

  def _refusal(self, why: str) -> DataError:
    return DataError(
      f"{self.path}: {memory.gigabytes(self.nbytes)} of computed examples are written "
      f"to this folder, {why} (the variable TMPDIR names another one)"
    )


class OrderedRows:
  """Some rows of one array or of several, in an order, and zeros behind them."""

  def __init__(self, parts: Sequence[Any], order: np.ndarray, places: int, dtype: Any):
    """Takes the rows.

    Args:
      parts: arrays [n, ...], whose rows are counted as those of one.
      order: [M] int, the row at each place.
      places: the number of rows, at least M.
      dtype: the dtype that they get.
    """
    self._parts, self._order = [part for part in parts if len(part)], order
    self.shape = (places, *parts[0].shape[1:])
    self.dtype = np.dtype(dtype)

  def reshape(self, *shape: int) -> "OrderedRows":
    """The same rows in another shape."""
    view = object.__new__(OrderedRows)
    parts = [part.reshape(len(part), *shape[1:]) for part in self._parts]
    view.__dict__.update(self.__dict__, _parts=parts, shape=(self.shape[0], *shape[1:]))
    return view

  def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
    """Reads rows that follow each other, ``rows[begin:end]``, or those of numbers [n].

    Only the former can be the zeros behind the others.
    """
    if isinstance(rows, slice):
      begin, end, _ = rows.indices(self.shape[0])
      numbers, count = self._order[begin:end], max(end - begin, 0)
    else:
      numbers, count = self._order[rows], len(rows)
    first = 0
    out = np.zeros((count, *self.shape[1:]), self.dtype)
    for part in self._parts:
      inside = (numbers >= first) & (numbers < first + len(part))
      if inside.all():
        out[: len(numbers)] = _take(part, numbers - first)
      elif inside.any():
        out[: len(numbers)][inside] = _take(part, numbers[inside] - first)
      first += len(part)
    return out


def _take(source: Any, rows: np.ndarray) -> np.ndarray:
  """Rows of a source that gives ranges; neighbors are read together."""
  out = np.empty((len(rows), *source.shape[1:]), source.dtype)
  if not len(rows):
    return out
  in_order = np.sort(rows)
  gaps = np.flatnonzero(np.diff(in_order) > _BETWEEN) + 1
  firsts = np.concatenate([[0], gaps])
  begins, ends = in_order[firsts], in_order[np.append(gaps, len(rows)) - 1] + 1
  if len(begins) == 1:
    result: np.ndarray = source[int(begins[0]) : int(ends[0])][rows - begins[0]]
    return result
  run = np.searchsorted(begins, rows, side="right") - 1
  by_run = np.argsort(run, kind="stable")
  for places, begin, end in zip(
    np.split(by_run, np.cumsum(np.bincount(run))[:-1]), begins, ends
  ):
    out[places] = source[int(begin) : int(end)][rows[places] - begin]
  return out
