"""Deals rows of any order to their clients, with a bounded part of them in memory.

A first reading counts the rows of each client and finds the names of classes. If the
rows of each client follow each other, a second one gives them as they come. Otherwise
it writes every row to one of some buckets on the disk. A bucket has the rows of clients
that follow each other, and is sorted in memory when all rows are dealt.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import time
from typing import Any, BinaryIO, NamedTuple
import zlib

import numpy as np

from fedjax_alg import files
from fedjax_alg.data import labels
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.row_sources import RowSource
from fedjax_alg.data.streamed_rows import RowBlock, StreamedRows
from fedjax_alg.errors import reason

_COUNTS, _DEALT = "counted.json", "dealt.json"
#: Bytes of a bucket, unless there would be too many for the open files of a process.
_BUCKET_BYTES, _MOST_BUCKETS = 2**27, 256
#: Bytes that wait to be written to each bucket.
_BUFFER = 2**16
#: Bytes after which what was dealt is made to outlast a kill.
_FLUSH_BYTES = 2**28
_REPORT_S = 2.0  #: seconds between two reports

#: A client, and its rows: (client, x, y), or with x_test and y_test.
Client = tuple[Any, ...]


class WriteProgress(NamedTuple):
  """How far writing clients is."""

  stage: str  #: "counting", "dealing" or "writing"
  rows: int  #: of this stage
  total: int | None  #: rows of this stage, if it is known
  clients: int  #: that are written
  nbytes: int  #: that are dealt or written


Report = Callable[[WriteProgress], object]


@contextlib.contextmanager
def writing(folder: pathlib.Path) -> Iterator[None]:
  """Says in one line that a folder cannot be written to.

  Args:
    folder: the folder of clients.

  Raises:
    DataError: an OSError came up inside.
  """
  try:
    yield
  except OSError as error:
    raise DataError(
      f"{folder}: cannot be written, {reason(error)}; what is there stays, and the "
      "same call goes on"
    ) from error


@dataclasses.dataclass
class _Counts:
  """What the first reading learns."""

  clients: list[Any]  #: ids, in the order in which the clients are written
  train: list[int]  #: rows of each client
  test: list[int]
  classes: list[Any] | None
  #: whether the rows of each client follow each other, without test rows
  is_grouped: bool


class _Counter:
  """Counts the rows of clients."""

  def __init__(self) -> None:
    self.rows = dict[Any, list[int]]()
    self.is_grouped = True
    self._last: Any = None

  def add(self, ids: np.ndarray, split: int) -> None:
    """Counts rows of a split."""
    if self.is_grouped and not split:
      heads = ids[np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))].tolist()
      if heads[0] == self._last:
        heads = heads[1:]
      new = set(heads)
      self.is_grouped = len(new) == len(heads) and new.isdisjoint(self.rows)
      for client in heads:
        self.rows.setdefault(client, [0, 0])
      self._last = ids[-1].item()
    clients, counts = np.unique(ids, return_counts=True)
    for client, count in zip(clients.tolist(), counts.tolist()):
      self.rows.setdefault(client, [0, 0])[split] += count


class RowDealing:
  """The clients of rows of any order; goes on where an earlier one has ended."""

  def __init__(self, rows: StreamedRows, folder: pathlib.Path, report: Report | None):
    """Takes the rows.

    Args:
      rows: the rows.
      folder: for buckets and notes; it is made, and the caller removes it.
      report: is called from time to time.

    Raises:
      DataError: the folder cannot be written to, or was begun with other rows; or a row
        cannot be read.
    """
    self._rows, self._folder, self._report = rows, folder, report
    self._reported = time.monotonic()
    with writing(folder.parent):
      folder.mkdir(exist_ok=True)
    key = rows.key
    note = self._read_note(_COUNTS)
    if note is not None and note.pop("key") != key:
      raise DataError(
        f"{folder.parent}: was begun with other rows, or they have changed; give a new "
        "folder"
      )
    if note is None:
      self._counts = self._count()
      self._write_note(_COUNTS, dataclasses.asdict(self._counts) | {"key": key})
    else:
      self._counts = _Counts(**note)
    #: the names of the classes, by their numbers; None: targets are numbers
    self.classes = self._counts.classes
    #: the number of rows
    self.total = sum(self._counts.train) + sum(self._counts.test)

  def _say(self, stage: str, rows: int, total: int | None, nbytes: int = 0) -> None:
    if self._report is not None and time.monotonic() > self._reported + _REPORT_S:
      self._reported = time.monotonic()
      self._report(WriteProgress(stage, rows, total, 0, nbytes))

  def _read_note(self, name: str) -> dict[str, Any] | None:
    try:
      return files.read_json(self._folder / name)
    except FileNotFoundError:
      return None
    except ValueError as error:
      raise DataError(
        f"{self._folder / name}: damaged; remove {self._folder} to begin anew"
      ) from error

  def _write_note(self, name: str, facts: dict[str, Any]) -> None:
    with (
      writing(self._folder.parent),
      files.replacing(self._folder / name, durable=True) as partial,
    ):
      partial.write_text(json.dumps(facts), "utf-8")

  def _count(self) -> _Counts:
    """The first reading."""
    counter, names, done = _Counter(), set[Any](), 0
    totals = [source.total for source in self._rows.splits]
    total = None if None in totals else sum(number or 0 for number in totals)
    for split, source in enumerate(self._rows.splits):
      for ids, y in self._rows.read_ids(source):
        try:
          counter.add(ids, split)
        except TypeError:
          raise _of_two_kinds(source) from None
        y = labels.whole_objects(y)
        if labels.are_names(y) and not split and self._rows.classes is None:
          labels.check_present(y, f"{source.label}: y")
          names.update(np.unique(y).tolist())
        done += len(ids)
        self._say("counting", done, total)
    if not counter.rows:
      raise DataError(f"{self._rows.splits[0].label}: has no rows")
    clients, classes = list(counter.rows), tuple[Any, ...](self._rows.classes or ())
    if len({isinstance(client, str) for client in clients}) > 1:
      raise _of_two_kinds(self._rows.splits[0])
    is_grouped = counter.is_grouped and len(self._rows.splits) == 1
    if not is_grouped:
      clients.sort()
    if names:
      texts = np.array([*names, None], object)[:-1]
      classes = labels.learn_names(texts, f"{self._rows.splits[0].label}: y")
    train, test = map(list, zip(*(counter.rows[client] for client in clients)))
    return _Counts(clients, train, test, list(classes) or None, is_grouped)

  def clients(self) -> Iterator[Client]:
    """Reads the rows again, and gives the clients.

    Yields:
      See ``Client``.

    Raises:
      DataError: a row cannot be read, is none, or rows have changed; or the disk is
        full.
    """
    if self._counts.is_grouped:
      yield from self._as_they_come()
      return
    buckets = _Buckets(self._folder, self._counts, self._rows)
    try:
      dealt = self._read_note(_DEALT)
      for rows in buckets.deal(dealt, self._write_note):
        self._say("dealing", rows, self.total, buckets.nbytes)
      yield from buckets.clients()
    finally:
      buckets.close()

  def _as_they_come(self) -> Iterator[Client]:
    counts = iter(zip(self._counts.clients, self._counts.train))
    parts: list[RowBlock] = []
    last: Any = None

    def finish() -> Client:
      expected = next(counts, None)
      size = sum(len(part.y) for part in parts)
      if expected != (last, size):
        raise _changed(source)
      return last, *(np.concatenate(column) for column in list(zip(*parts))[1:])

    (source,) = self._rows.splits
    for rows in self._rows.read(source, 0, self.classes or ()):
      _check_alike(parts, rows, source)
      begins = np.flatnonzero(np.append(True, rows.clients[1:] != rows.clients[:-1]))
      for begin, end in itertools.pairwise([*begins.tolist(), len(rows.clients)]):
        client = rows.clients[begin].item()
        if parts and client != last:
          yield finish()
          parts = []
        last = client
        parts.append(RowBlock(*(column[begin:end] for column in rows)))
    yield finish()
    if next(counts, None) is not None:
      raise _changed(source)


def _of_two_kinds(source: RowSource) -> DataError:
  return DataError(
    f"{source.label}: ids of clients are numbers and texts; give all as one of them"
  )


def _changed(source: RowSource) -> DataError:
  return DataError(
    f"{source.label}: gives other rows when it is read again; it must give the same "
    "rows in the same order"
  )


def _check_alike(parts: list[RowBlock], rows: RowBlock, source: RowSource) -> None:
  """Refuses blocks that do not go on like those before."""
  for part in parts[-1:]:
    for name in ("x", "y"):
      a, b = getattr(part, name), getattr(rows, name)
      if (a.dtype, a.shape[1:]) != (b.dtype, b.shape[1:]):
        raise _different(source, name, (a.dtype, a.shape[1:]), b)


def _different(source: RowSource, name: str, first: Any, rows: np.ndarray) -> DataError:
  return DataError(
    f"{source.label}: {name} has rows of {rows.dtype} {list(rows.shape[1:])}, must be "
    f"{first[0]} {list(first[1])} as the first ones"
  )


class _Buckets:
  """Rows on the disk, divided by ranges of clients."""

  def __init__(self, folder: pathlib.Path, counts: _Counts, rows: StreamedRows):
    self._folder, self._counts, self._rows = folder, counts, rows
    self._number = {client: number for number, client in enumerate(counts.clients)}
    self._files: list[BinaryIO] = []
    self._dtype = np.dtype([])
    self._bucket = np.zeros(0, np.int64)  #: of each client
    self._sizes: list[int] = []  #: bytes in each
    self._crc, self._unflushed = 0, 0
    self._done = [0] * len(rows.splits)  #: rows dealt of each split

  @property
  def nbytes(self) -> int:
    """The bytes that are dealt."""
    return sum(self._sizes)

  def close(self) -> None:
    """Closes the files."""
    for file in self._files:
      try:
        file.close()
      except OSError:  # the disk is full, as is known
        pass
    self._files = []

  def deal(
    self,
    dealt: dict[str, Any] | None,
    write_note: Callable[[str, dict[str, Any]], None],
  ) -> Iterator[int]:
    """Writes the rows to the buckets.

    Args:
      dealt: the note of an earlier dealing, which is gone on with.
      write_note: (name, content) -> None, writes a note.

    Yields:
      The number of rows dealt, from time to time.

    Raises:
      DataError: see ``RowDealing.clients``.
    """
    if dealt is not None:
      x, y = ((np.dtype(name), tuple(shape)) for name, shape in dealt["columns"])
      with writing(self._folder.parent):
        self._open(x, y, dealt["sizes"])
      self._done, self._crc = list(dealt["rows"]), dealt["crc"]
      if dealt["is_whole"]:
        return
      self._check_begin(dealt)
    for split, source in enumerate(self._rows.splits):
      for rows in self._rows.read(
        source, self._done[split], self._counts.classes or ()
      ):
        with writing(self._folder.parent):
          self._add(rows, split, source)
        yield sum(self._done)
        if self._unflushed > _FLUSH_BYTES:
          self._flush(write_note, False)
    totals = [sum(self._counts.train), sum(self._counts.test)]
    for source, done, total in zip(self._rows.splits, self._done, totals):
      if done != total:
        raise _changed(source)
    self._flush(write_note, True)

  def _check_begin(self, dealt: dict[str, Any]) -> None:
    """Reads the clients of the rows dealt earlier, which have to be the same."""
    crc = 0
    for split, source in enumerate(self._rows.splits):
      remaining = self._done[split]
      for ids, _ in self._rows.read_ids(source) if remaining else ():
        crc = zlib.crc32(self._numbers(ids[:remaining], source).tobytes(), crc)
        remaining -= len(ids[:remaining])
        if not remaining:
          break
    if crc != dealt["crc"]:
      raise _changed(self._rows.splits[0])

  def _open(self, x: Any, y: Any, sizes: list[int] | None) -> None:
    """Opens the buckets for rows of these dtypes and shapes."""
    fields = [("client", np.int32), ("is_test", np.bool_), ("x", *x), ("y", *y)]
    self._dtype = np.dtype(fields)
    ends = np.cumsum(np.array(self._counts.train) + np.array(self._counts.test))
    nbytes = self._dtype.itemsize * ends
    most = max(_BUCKET_BYTES, -(-int(nbytes[-1]) // _MOST_BUCKETS))
    self._bucket = (nbytes - 1) // most
    number = 1 + int(self._bucket[-1])
    self._sizes = [0] * number if sizes is None else list(sizes)
    for place in range(number):
      path = self._folder / f"{place}.bucket"
      path.touch()
      file = open(path, "r+b", _BUFFER)
      self._files.append(file)
      if os.fstat(file.fileno()).st_size < self._sizes[place]:
        raise DataError(
          f"{path}: cut short; remove {self._folder} to begin dealing anew"
        )
      file.truncate(self._sizes[place])
      file.seek(0, os.SEEK_END)

  def _numbers(self, ids: np.ndarray, source: RowSource) -> np.ndarray:
    """The number of the client of each row, [n] int32."""
    clients, places = np.unique(ids, return_inverse=True)
    try:
      numbers = [self._number[client] for client in clients.tolist()]
    except KeyError:
      raise _changed(source) from None
    return np.array(numbers, np.int32)[places]

  def _add(self, rows: RowBlock, split: int, source: RowSource) -> None:
    x, y = ((part.dtype, part.shape[1:]) for part in (rows.x, rows.y))
    if not self._files:
      self._open(x, y, None)
    for name, kind in (("x", x), ("y", y)):
      first = self._dtype[name]
      if (first.base, first.shape) != kind:
        raise _different(source, name, (first.base, first.shape), getattr(rows, name))
    records = np.empty(len(rows.y), self._dtype)
    records["client"] = self._numbers(rows.clients, source)
    records["is_test"], records["x"], records["y"] = bool(split), rows.x, rows.y
    self._crc = zlib.crc32(np.ascontiguousarray(records["client"]).tobytes(), self._crc)
    bucket = self._bucket[records["client"]]
    records = records[np.argsort(bucket, kind="stable")]
    counts = np.bincount(bucket, minlength=len(self._files))
    ends = np.cumsum(counts)
    for place in np.flatnonzero(counts):
      part = records[ends[place] - counts[place] : ends[place]]
      self._files[place].write(part.tobytes())
      self._sizes[place] += part.nbytes
    self._done[split] += len(records)
    self._unflushed += records.nbytes

  def _flush(self, write_note: Callable[..., None], is_whole: bool) -> None:
    """Notes what is dealt, when all of it is on the disk."""
    with writing(self._folder.parent):
      for file in self._files:
        file.flush()
        os.fsync(file.fileno())
    columns = [
      (self._dtype[name].base.str, self._dtype[name].shape) for name in ("x", "y")
    ]
    facts = {"columns": columns, "sizes": self._sizes, "rows": self._done}
    write_note(_DEALT, facts | {"crc": self._crc, "is_whole": is_whole})
    self._unflushed = 0

  def clients(self) -> Iterator[Client]:
    """Sorts one bucket after the other; see ``RowDealing.clients``."""
    has_tests = any(self._counts.test)
    # A client larger than a bucket leaves numbers that no client has.
    for place in np.unique(self._bucket).tolist():
      records = np.fromfile(self._folder / f"{place}.bucket", self._dtype)
      order = np.argsort(records["client"], kind="stable")
      numbers = np.flatnonzero(self._bucket == place)
      train, test = (
        np.array(self._counts.train)[numbers],
        np.array(self._counts.test)[numbers],
      )
      ends = np.cumsum(train + test)
      if len(records) != ends[-1]:
        raise _changed(self._rows.splits[0])
      for number, end, n, m in zip(numbers.tolist(), ends.tolist(), train, test):
        mine = records[order[end - n - m : end]]
        is_test = mine["is_test"]
        if is_test.sum() != m or (mine["client"] != number).any():
          raise _changed(self._rows.splits[0])
        splits = (mine[~is_test], mine[is_test]) if has_tests else (mine,)
        columns = (part[name] for part in splits for name in ("x", "y"))
        yield self._counts.clients[number], *map(np.ascontiguousarray, columns)
