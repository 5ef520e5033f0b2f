"""Tables of clients in a file, of which programs have some rows.

A row has what one client keeps: an array of each table. Clients with the row that all
have at the start are in no file. A changed row is written to a slot of the file that
nothing else has. What a checkpoint or a result has of a table is therefore not copied,
and stays when the run goes on: each of them is a version, a slot for every client.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import math
import os
import pathlib
import tempfile
from typing import Any, TypeGuard
import weakref
import zlib

import jax
import numpy as np

from fedjax_alg import files
from fedjax_alg.data.npy_rows import split_runs
from fedjax_alg.errors import RunFolderError
from fedjax_alg.typing import PyTree

#: Bytes of rows that are copied at once.
_CHUNK_BYTES = 2**24


@dataclasses.dataclass(frozen=True)
class RowForm:
  """What a row has: arrays [N, ...], one after the other."""

  arrays: tuple[tuple[tuple[int, ...], np.dtype], ...]  #: shape and dtype of each

  @functools.cached_property
  def ends(self) -> list[int]:
    """Where arrays end, in bytes; 0 first."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in self.arrays]
    return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]

  @property
  def nbytes(self) -> int:
    """The bytes of a row."""
    return self.ends[-1]

  @property
  def chunk(self) -> int:
    """How many rows are copied at once."""
    return max(1, _CHUNK_BYTES // max(1, self.nbytes))

  def array_of(self, rows: np.ndarray, number: int) -> np.ndarray:
    """A view [n, N, ...] of an array in rows [n, nbytes] of bytes."""
    shape, dtype = self.arrays[number]
    part = rows[:, self.ends[number] : self.ends[number + 1]]
    if not part.size:
      return np.zeros((len(rows), *shape), dtype)
    return part.view(dtype).reshape(len(rows), *shape)

  def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Rows [n, nbytes] of bytes from arrays [n, N, ...]."""
    rows = np.empty((len(arrays[0]), self.nbytes), np.uint8)
    for number, array in enumerate(arrays):
      self.array_of(rows, number)[...] = array
    return rows


#: (device, inode) -> a file that is open: versions of all who have opened it stay.
_OPEN: weakref.WeakValueDictionary[tuple[int, int], "RowFile"] = (
  weakref.WeakValueDictionary()
)


class RowFile:
  """A file of slots, each with a row.

  Attributes:
    path: where it is; None: nowhere, it ends with the process.
    saved: name of a checkpoint -> its version, which stays.
  """

  def __init__(self, path: pathlib.Path | None, nbytes: int, file: int):
    """Takes an open file; see ``new`` and ``open``."""
    self.path, self.nbytes, self._file = path, nbytes, file
    self.saved: dict[str, RowVersion] = {}
    self._versions: weakref.WeakSet[RowVersion] = weakref.WeakSet()
    status = os.fstat(file)
    self._number = 0  # of slots
    self._count(status.st_size)
    self._free = np.zeros(0, np.int32)
    _OPEN[status.st_dev, status.st_ino] = self

  def __del__(self, close: Any = os.close) -> None:
    close(self._file)

  def _count(self, size: int) -> None:
    """Counts the slots of a file with so many bytes."""
    self._number = max(self._number, -(-size // max(1, self.nbytes)))

  @classmethod
  def new(
    cls, path: pathlib.Path | None, nbytes: int, in_memory: bool = False
  ) -> "RowFile":
    """Makes an empty file.

    Args:
      path: where to make it, in place of one that is there; None: it has no name, and
        is in the folder for temporary files.
      nbytes: the bytes of a row.
      in_memory: without a path: whether it is in memory, where the system can do so.

    Raises:
      OSError: it cannot be made.
    """
    if path is not None:
      path.unlink(missing_ok=True)
      return cls(path, nbytes, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
    if in_memory and hasattr(os, "memfd_create"):
      return cls(None, nbytes, os.memfd_create("tables"))
    with tempfile.TemporaryFile() as file:
      return cls(None, nbytes, os.dup(file.fileno()))

  @classmethod
  def open(cls, path: pathlib.Path, nbytes: int) -> "RowFile":
    """Opens the file of a run.

    Raises:
      OSError: it cannot be read.
    """
    if path.is_symlink() or not path.is_file():
      raise OSError(f"{path}: no file of rows")
    status = path.stat()
    opened = _OPEN.get((status.st_dev, status.st_ino))
    if opened is not None and opened.nbytes == nbytes:
      opened._count(status.st_size)  # another process may have gone on
      opened.path = path
      return opened
    can_write = os.access(path, os.W_OK)
    return cls(path, nbytes, os.open(path, os.O_RDWR if can_write else os.O_RDONLY))

  def is_at(self, path: pathlib.Path) -> bool:
    """Whether a path leads to this file, which may have been removed or moved."""
    try:
      return os.path.samestat(os.fstat(self._file), os.stat(path))
    except OSError:
      return False

  def add(self, version: "RowVersion") -> None:
    """Has the slots of a version stay as long as it is used."""
    self._versions.add(version)

  def collect(self) -> None:
    """Finds the slots that no version has."""
    used = np.zeros(self._number, bool)
    for version in list(self._versions):
      used[version.slots[version.slots >= 0]] = True
    self._free = np.flatnonzero(~used).astype(np.int32)

  def take(self, number: int) -> np.ndarray:
    """Slots that no version has."""
    free, self._free = self._free[:number], self._free[number:]
    first = self._number
    self._number += number - len(free)
    return np.concatenate([free, np.arange(first, self._number, dtype=np.int32)])

  def write(self, slots: np.ndarray, rows: np.ndarray) -> None:
    """Writes rows [n, nbytes] of bytes.

    Raises:
      OSError: the disk is full, for example.
    """
    for place, of_run in split_runs(slots):
      data = rows[place : place + len(of_run)].reshape(-1).data
      try:
        files.write_at(self._file, data, int(of_run[0]) * self.nbytes)
      except OSError as error:
        error.filename = str(self.path or tempfile.gettempdir())
        raise

  def read(self, slots: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Reads bytes ``begin`` to ``end`` of rows, [n, end - begin].

    Raises:
      RunFolderError: the file has been cut short, or cannot be read.
    """
    out = np.empty((len(slots), end - begin), np.uint8)
    is_whole = end - begin == self.nbytes
    runs = split_runs(slots) if is_whole else zip(range(len(slots)), slots[:, None])
    for place, of_run in runs:
      data = out[place : place + len(of_run)].reshape(-1).data
      at = int(of_run[0]) * self.nbytes + begin
      try:
        if files.read_at(self._file, data, at) < len(data):
          raise OSError("cut short")
      except OSError as error:
        raise RunFolderError(f"{self.path}: cannot be read, {error}") from error
    return out

  def sync(self) -> None:
    """Waits until the rows would outlast a power cut."""
    os.fsync(self._file)


class RowVersion:
  """A version of the rows of all clients."""

  def __init__(
    self,
    file: RowFile,
    form: RowForm,
    first: np.ndarray,
    slots: np.ndarray,
    sums: np.ndarray,
    is_live: bool = False,
  ):
    """Takes the version.

    Args:
      file: where the rows are.
      form: what a row has.
      first: [nbytes] bytes, the row of the clients without a slot.
      slots: [C] int32; -1: the client has none.
      sums: [C] uint32, the checksums of the rows.
      is_live: whether a run writes to it. If not, checksums are compared: another
        process may go on with the run, and use slots that it does not know of.
    """
    self.file, self.form, self.first = file, form, first
    self.slots, self.sums, self.is_live = slots, sums, is_live
    #: [C], whether no other version has the slot
    self._is_own = np.zeros(len(slots), bool)
    file.add(self)

  @classmethod
  def new(
    cls, file: RowFile, form: RowForm, first: np.ndarray, clients: int
  ) -> "RowVersion":
    """A version in which all clients have one row."""
    slots, sums = np.full(clients, -1, np.int32), np.zeros(clients, np.uint32)
    return cls(file, form, first, slots, sums, is_live=True)

  def copy(self, is_live: bool = False) -> "RowVersion":
    """The version as it is now, whatever is written afterwards."""
    self._is_own[:] = False
    copies = self.slots.copy(), self.sums.copy()
    copy = RowVersion(self.file, self.form, self.first, *copies, is_live)
    self.file.collect()
    return copy

  @property
  def written(self) -> np.ndarray:
    """[n] int, the clients with a slot."""
    return np.flatnonzero(self.slots >= 0)

  def write(self, ids: np.ndarray, rows: np.ndarray) -> None:
    """Writes rows; one that a client has without a slot is not written.

    Args:
      ids: [n] int, different clients.
      rows: [n, nbytes] bytes.
    """
    changes = self.slots[ids] >= 0
    changes[~changes] = (rows[~changes] != self.first).any(1)
    if not changes.all():
      ids, rows = ids[changes], rows[changes]
    new = ids[~self._is_own[ids]]
    self.slots[new] = self.file.take(len(new))
    self._is_own[new] = True
    self.file.write(self.slots[ids], rows)
    self.sums[ids] = [zlib.crc32(row) for row in rows]

  def read(self, ids: np.ndarray) -> np.ndarray:
    """Reads the rows of clients, [n, nbytes] bytes.

    Raises:
      RunFolderError: they are damaged, or those of another version by now.
    """
    rows = self._read(ids, 0, self.form.nbytes)
    if not self.is_live and not self._are_whole(ids, rows):
      raise RunFolderError(
        f"{self.file.path}: is damaged, or another process has gone on with the run; "
        "load the run again"
      )
    return rows

  def read_array(self, ids: np.ndarray, number: int) -> np.ndarray:
    """Reads an array of rows, [n, N, ...], without their checksums."""
    begin, end = self.form.ends[number : number + 2]
    shape, dtype = self.form.arrays[number]
    return self._read(ids, begin, end).view(dtype).reshape(len(ids), *shape)

  def _read(self, ids: np.ndarray, begin: int, end: int) -> np.ndarray:
    slots = self.slots[ids]
    has_slot = slots >= 0
    if has_slot.all():
      return self.file.read(slots, begin, end)
    rows = np.tile(self.first[begin:end], (len(ids), 1))
    rows[has_slot] = self.file.read(slots[has_slot], begin, end)
    return rows

  def _are_whole(self, ids: np.ndarray, rows: np.ndarray) -> bool:
    has_slot = self.slots[ids] >= 0
    sums = [zlib.crc32(row) for row in rows[has_slot]]
    return bool((self.sums[ids][has_slot] == np.array(sums, np.uint32)).all())

  def are_whole(self) -> bool:
    """Whether the file has all rows, by their checksums."""
    written = self.written
    written = written[np.argsort(self.slots[written])]
    try:
      return all(
        self._are_whole(ids, self._read(ids, 0, self.form.nbytes))
        for ids in _chunks(written, self.form.chunk)
      )
    except RunFolderError:
      return False


def _chunks(ids: np.ndarray, number: int) -> Iterator[np.ndarray]:
  return (ids[first : first + number] for first in range(0, len(ids), number))


class RowTable:
  """A table [N, C, ...] of states, with rows in files.

  ``np.asarray`` reads all of it; ``read`` the rows of some clients.
  """

  def __init__(self, seeds: Sequence[tuple[RowVersion, int]], number: int):
    """Takes the table.

    Args:
      seeds: for each of N seeds the version, and its place in the arrays of it.
      number: of the table among those of a row.
    """
    self.seeds, self.number = tuple(seeds), number

  @property
  def shape(self) -> tuple[int, ...]:
    """[N, C, ...]."""
    rows = self.seeds[0][0]
    return len(self.seeds), len(rows.slots), *rows.form.arrays[self.number][0][1:]

  @property
  def dtype(self) -> np.dtype:
    """The dtype of its entries."""
    return self.seeds[0][0].form.arrays[self.number][1]

  @property
  def ndim(self) -> int:
    """The number of axes."""
    return len(self.shape)

  @property
  def size(self) -> int:
    """The number of entries."""
    return math.prod(self.shape)

  @property
  def nbytes(self) -> int:
    """The bytes of all entries."""
    return self.size * self.dtype.itemsize

  def __len__(self) -> int:
    return len(self.seeds)

  @property
  def versions(self) -> list[RowVersion]:
    """The versions that it is in, each once."""
    return list(dict.fromkeys(rows for rows, _ in self.seeds))

  def read(self, ids: np.ndarray) -> np.ndarray:
    """Reads the rows of some clients; see ``read_blocks``.

    Args:
      ids: [n] int, the positions of the clients.

    Returns:
      [N, n, ...].
    """
    return read_blocks([self], ids, len(ids))[0]

  def pieces(self) -> Iterator[np.ndarray]:
    """Yields all entries in their order in an array, some at a time."""
    for rows, seed in self.seeds:
      for ids in _chunks(np.arange(self.shape[1]), rows.form.chunk):
        yield rows.read_array(ids, self.number)[:, seed]

  def __getitem__(self, index: Any) -> Any:
    if isinstance(index, slice):
      return RowTable(self.seeds[index], self.number)
    return np.asarray(self)[index]

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    del copy  # it is always one
    array = self.read(np.arange(self.shape[1]))
    return array if dtype is None else array.astype(dtype)

  def with_versions(self, versions: Mapping[RowVersion, RowVersion]) -> "RowTable":
    """The table of other versions."""
    return RowTable([(versions[rows], seed) for rows, seed in self.seeds], self.number)


def is_row_table(leaf: object) -> TypeGuard[RowTable]:
  """Whether a leaf of states is a ``RowTable``."""
  return isinstance(leaf, RowTable)


def tables_of(states: PyTree) -> list[RowTable]:
  """The tables of states, in the order of their numbers."""
  return list(filter(is_row_table, jax.tree.leaves(states)))


def copy_versions(states: PyTree, is_live: bool = False) -> Any:
  """States with tables as they are now, whatever is written afterwards.

  Args:
    states: other leaves stay.
    is_live: whether a run writes to them.
  """
  versions = {
    rows: rows.copy(is_live)
    for table in tables_of(states)[:1]
    for rows in table.versions
  }
  return jax.tree.map(
    lambda leaf: leaf.with_versions(versions) if is_row_table(leaf) else leaf, states
  )


def freeze(states: PyTree) -> Any:
  """States to which nothing is written any more, see ``RowVersion``."""
  for table in tables_of(states):
    for rows in table.versions:
      rows.is_live = False
  return states


def join_seeds(tables: Sequence[RowTable]) -> RowTable:
  """The table with the seeds of several."""
  return RowTable([seed for table in tables for seed in table.seeds], tables[0].number)


def read_blocks(
  tables: Sequence[RowTable], ids: np.ndarray, places: int
) -> list[np.ndarray]:
  """Reads rows of tables that have the same versions.

  Args:
    tables: some of those of states.
    ids: [n] int, the positions of the clients.
    places: T, at least n.

  Returns:
    [N, T, ...] of each, with zeros behind the rows.

  Raises:
    RunFolderError: the file has changed, or cannot be read.
  """
  blocks = [
    np.zeros((len(table), places, *table.shape[2:]), table.dtype) for table in tables
  ]
  for rows in tables[0].versions:
    for first in range(0, len(ids), rows.form.chunk):
      part = ids[first : first + rows.form.chunk]
      data = rows.read(part)
      for table, block in zip(tables, blocks):
        array = rows.form.array_of(data, table.number)
        for place, (version, seed) in enumerate(table.seeds):
          if version is rows:
            block[place, first : first + len(part)] = array[:, seed]
  return blocks


def write_blocks(
  tables: Sequence[RowTable], blocks: Sequence[Any], ids: np.ndarray
) -> None:
  """Writes rows of all tables of states.

  Args:
    tables: in the order of their numbers.
    blocks: [N, T, ...] of each, with the rows of the clients first.
    ids: [n] int, different clients.
  """
  arrays = [np.asarray(block) for block in blocks]
  seeds = tables[0].seeds
  for rows in tables[0].versions:
    of_rows = [place for place, (version, _) in enumerate(seeds) if version is rows]
    for first in range(0, len(ids), rows.form.chunk):
      part = ids[first : first + rows.form.chunk]
      data = rows.form.join(
        [array[of_rows, first : first + len(part)].swapaxes(0, 1) for array in arrays]
      )
      rows.write(part, data)


def copy_to(path: pathlib.Path, tables: Sequence[RowTable]) -> RowVersion:
  """Writes tables to a file.

  Args:
    path: the file; one that is there is replaced.
    tables: in the order of their numbers.
  """
  form = RowForm(
    tuple(((len(table), *table.shape[2:]), table.dtype) for table in tables)
  )
  versions = tables[0].versions
  firsts = [
    np.stack(
      [
        rows.form.array_of(rows.first[None], table.number)[0, seed]
        for rows, seed in table.seeds
      ]
    )[None]
    for table in tables
  ]
  new = RowVersion.new(
    RowFile.new(path, form.nbytes), form, form.join(firsts)[0], tables[0].shape[1]
  )
  written = np.unique(np.concatenate([rows.written for rows in versions]))
  copies = [
    RowTable([(new, seed) for seed in range(len(table))], number)
    for number, table in enumerate(tables)
  ]
  for ids in _chunks(written, form.chunk):
    write_blocks(copies, read_blocks(tables, ids, len(ids)), ids)
  return new
