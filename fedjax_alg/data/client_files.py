"""Clients in a folder, for data that are larger than the memory.

The rows of each client follow each other in x.npy and y.npy, and those for testing, if
clients have such, in x_test.npy and y_test.npy. clients.json names the clients and
their numbers of rows, and has checksums.

The arrays are plain .npy: a row is found by its number and read without decoding, and
NumPy reads the files without this package. Records of array_record or TFRecord have to
be decoded one by one, and batches of Arrow hold columns of rows, of which one row of an
image is no range of bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import time
from typing import Any, BinaryIO

import numpy as np

from fedjax_alg import files, tasks
from fedjax_alg.data import labels, store
from fedjax_alg.data.allocate import MOST_ROWS
from fedjax_alg.data.arrays import as_features, as_targets, make_examples
from fedjax_alg.data.errors import DataError, kinds_are_lost
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.npy_rows import NpyRows, read_header
from fedjax_alg.data.row_dealing import RowDealing, WriteProgress, writing
from fedjax_alg.data.sources import UserFiles
from fedjax_alg.data.streamed_rows import StreamedRows
from fedjax_alg.errors import a_type, reason

_CLIENTS, _JOURNAL = "clients.json", "journal.txt"
#: The folder of rows that are being dealt.
_DEALING = "dealing"
_FORMAT = 1
#: Bytes of the header of a file of rows.
_HEADER = 256
#: Bytes and seconds after which what was written is made to outlast a kill.
_FLUSH_BYTES, _FLUSH_S = 2**26, 5.0
_COLUMNS = ("x", "y", "x_test", "y_test")


@dataclasses.dataclass
class _Column:
  """A file of rows that is being written."""

  path: pathlib.Path
  shape: tuple[int, ...] | None = None  #: of a row
  dtype: np.dtype | None = None
  rows: int = 0
  largest: int = -1  #: of whole numbers
  file: BinaryIO | None = None

  def open(self, values: np.ndarray, rows: int) -> None:
    """Opens the file for rows like these, behind ``rows`` that it has.

    Raises:
      DataError: those are others.
    """
    self.shape, self.dtype, self.rows = values.shape[1:], values.dtype, rows
    self.file = open(self.path, "r+b" if rows else "w+b")
    if rows:
      shape, _, dtype = read_header(self.file)
      size = os.fstat(self.file.fileno()).st_size
      if (shape[1:], dtype) != (self.shape, self.dtype) or (
        size < _HEADER + rows * self.row_nbytes
      ):
        raise DataError(
          f"{self.path}: was begun with other rows than those of `clients`; give a new "
          "folder"
        )
    self.file.truncate(_HEADER + rows * self.row_nbytes)
    if not rows:
      self.file.write(self.header())
    self.file.seek(0, os.SEEK_END)

  @property
  def row_nbytes(self) -> int:
    """The size of a row."""
    assert self.shape is not None and self.dtype is not None
    return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

  def header(self) -> bytes:
    """The header of a .npy with the rows so far, always of the same length."""
    assert self.shape is not None and self.dtype is not None
    entries = {
      "descr": np.lib.format.dtype_to_descr(self.dtype),
      "fortran_order": False,
      "shape": (self.rows, *self.shape),
    }
    magic = np.lib.format.magic(1, 0)
    length = _HEADER - len(magic) - 2
    return (
      magic
      + length.to_bytes(2, "little")
      + (repr(entries).ljust(length - 1) + "\n").encode("latin1")
    )

  def write(self, values: np.ndarray) -> None:
    """Adds rows."""
    assert self.file is not None
    self.file.write(np.ascontiguousarray(values).data)
    self.rows += len(values)

  def sync(self) -> None:
    """Makes what was written outlast a kill."""
    assert self.file is not None
    self.file.flush()
    os.fsync(self.file.fileno())

  def finish(self) -> None:
    """Writes the number of rows into the file."""
    assert self.file is not None
    self.file.seek(0)
    self.file.write(self.header())
    self.sync()
    self.file.close()
    self.file = None


class SizedClients(Iterable[tuple[Any, ...]]):
  """Clients of a source that says more than their rows do, once they are read."""

  num_classes: int | None = None  #: see ``Examples``
  num_tokens: int | None = None


def write_clients(
  path: str | os.PathLike,
  clients: Iterable[Any] | Examples | StreamedRows,
  *,
  progress: Callable[[WriteProgress], object] | None = None,
) -> pathlib.Path:
  """Writes clients to a folder, from which a run can read rows when it needs them.

  It needs the memory of one client. Rows in any order (``StreamedRows``) need the
  memory of some clients, and twice the place on the disk while they are dealt. If it
  was interrupted, call it again with the same clients; it does not begin anew.

  Args:
    path: the folder, which is made.
    clients: a data set with clients (``from_arrays`` and its relatives), or
      ``StreamedRows``. Or an iterator of (client, x, y), or of (client, x, y, x_test,
      y_test) for all clients. The client is a text or a whole number, x [n, ...] and
      y [n, ...] its rows, as arrays: uint8 x are images and signed integers ids of
      tokens, as in ``from_arrays``. Every client occurs once, with all its rows.
    progress: is called with a ``WriteProgress`` from time to time.

  Returns:
    The folder, for ``open_clients``, with the clients in the order of the source. With
    ``StreamedRows``, clients are sorted by their ids, unless the rows of each client
    follow each other.

  Raises:
    DataError: the rows of a client are no arrays of numbers, differ in shape or dtype
      from the first client's, or have values that are not finite; only some clients
      have rows for testing; a client occurs twice; a data set has kinds, which a folder
      does not keep; the folder has other files, or another call writes to it; or it
      cannot be written to, such as on a full disk. Clients that are written stay, and
      the next call continues with the others.

  Examples:
    >>> import tempfile, numpy as np
    >>> def clients():
    ...   for name in ("anna", "bert"):
    ...     yield name, np.ones((5, 3), np.float32), np.arange(5) % 2
    >>> folder = write_clients(tempfile.mkdtemp(), clients())
    >>> examples = open_clients(folder)
    >>> examples.x_train.shape, examples.client_names.tolist()
    ((10, 3), ['anna', 'bert'])
  """
  folder = files.expand_path(path, "path")
  if not isinstance(clients, Iterable | Examples | StreamedRows):
    raise DataError(f"`clients`: {a_type(clients)}, must be a data set or an iterator")
  with writing(folder):
    folder.mkdir(parents=True, exist_ok=True)
    _check_folder(folder)
    writer = _Writer(folder)
  with writer:
    total: int | None = None
    classes: Sequence[Any] | None = None
    source = clients
    if isinstance(clients, StreamedRows):
      dealing = RowDealing(clients, folder / _DEALING, progress)
      total, classes, clients = dealing.total, dealing.classes, dealing.clients()
    elif isinstance(clients, Examples):
      classes = clients.encoding and clients.encoding.classes
      total, clients = sum(clients.rows), iterate_clients(clients)
    for item in clients:
      with writing(folder):
        writer.add(item)
      if progress is not None and writer.is_due:
        progress(writer.progress(total))
    with writing(folder):
      writer.finish(classes, *_sizes(source))
  if progress is not None:
    progress(writer.progress(total))
  return folder


def _sizes(source: Any) -> tuple[int | None, int | None]:
  """The numbers of classes and of tokens that a source states."""
  if not isinstance(source, Examples | SizedClients):
    return None, None
  of_others = isinstance(source, Examples) and not tasks.of(source).has_classes
  return None if of_others else source.num_classes, source.num_tokens


def _check_folder(folder: pathlib.Path) -> None:
  """Refuses a folder with other files, and one that is finished."""
  names = {entry.name for entry in folder.iterdir()}
  expected = {_CLIENTS, _JOURNAL, _DEALING, *(f"{name}.npy" for name in _COLUMNS)}
  foreign = sorted(names - expected)
  if foreign:
    raise DataError(f"{folder}: has other files ({foreign[0]}); give a new folder")
  if _CLIENTS in names:
    raise DataError(f"{folder}: has clients already; give a new folder")
  if names and _JOURNAL not in names:
    raise DataError(
      f"{folder}: has {sorted(names)[0]} and no {_JOURNAL}; give a new folder"
    )


def _lock(journal: BinaryIO, folder: pathlib.Path) -> None:
  """Holds a folder, buckets of rows included, until its journal is closed.

  Raises:
    DataError: another call writes to it, and would lose rows.
  """
  try:
    import fcntl  # not on every system

    fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise DataError(
      f"{folder}: is being written by another call; wait for it, or give a new folder"
    ) from None
  except (ImportError, OSError):  # a system or a file system without such locks
    pass


class _Writer(contextlib.AbstractContextManager):
  """Writes clients one after the other, and notes which are done."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self._columns = {name: _Column(folder / f"{name}.npy") for name in _COLUMNS}
    self.sizes: dict[str, tuple[int, int]] = {}  #: of all clients
    self._noted = 0  #: of these are in the journal
    self._seen = set[str]()  #: in this call
    self._length: int | None = None  #: of each item
    self._journal = open(folder / _JOURNAL, "a+b")
    try:
      _lock(self._journal, folder)
      _check_folder(folder)  # another writer may have finished it just now
    except BaseException:
      self._journal.close()
      raise
    self._journal.seek(0)
    valid_nbytes = 0  # bytes; a kill or a full disk may have cut the last line short
    for line in self._journal:
      try:
        name, train, test = json.loads(line)
      except ValueError:
        break
      if not line.endswith(b"\n"):
        break
      self.sizes[name] = train, test
      valid_nbytes += len(line)
    self._journal.truncate(valid_nbytes)
    self._begun = list(self.sizes)  #: when this call began
    self._noted = len(self.sizes)
    self._unflushed, self._flushed_at = 0, time.monotonic()
    self.is_due = False  #: whether something was flushed just now

  def progress(self, total: int | None) -> WriteProgress:
    """How far it is.

    Args:
      total: the number of all rows, if it is known.
    """
    columns = [column for column in self._columns.values() if column.shape is not None]
    rows = sum(column.rows for column in columns if column.path.stem[0] == "x")
    nbytes = sum(column.rows * column.row_nbytes for column in columns)
    return WriteProgress("writing", rows, total, len(self._seen), nbytes)

  def __exit__(self, *error: object) -> None:
    with contextlib.suppress(OSError):
      self._flush()
    for column in self._columns.values():
      if column.file is not None:
        with contextlib.suppress(OSError):
          column.file.close()
    with contextlib.suppress(OSError):
      self._journal.close()

  def add(self, item: Any) -> None:
    """Writes a client, unless it is there."""
    name, arrays = _read_item(item)
    if self._length is None:
      self._length = len(item)
    if len(item) != self._length:
      raise DataError(
        f"`clients`: client {name} has {len(item)} entries, must have {self._length} "
        "as the first one: x_test and y_test are for all clients or for none"
      )
    if name in self._seen:
      raise DataError(
        f"`clients`: client {name} comes twice; give all its rows at once"
      )
    if len(self._seen) < len(self._begun) and name != self._begun[len(self._seen)]:
      raise DataError(
        f"{self._folder}: was begun with client {self._begun[len(self._seen)]} in the "
        f"place of client {name}; give a new folder"
      )
    self._seen.add(name)
    self.is_due = False
    if self._columns["x"].file is None:
      counts = np.array(list(self.sizes.values()), np.int64).reshape(-1, 2).sum(0)
      for column, values in arrays.items():
        self._columns[column].open(values, int(counts[int(column.endswith("_test"))]))
    for column, values in arrays.items():
      self._check(name, column, values)
    if name in self.sizes:
      if self.sizes[name] != (len(arrays["x"]), len(arrays["x_test"])):
        raise DataError(
          f"`clients`: client {name} has {len(arrays['x'])} rows, and had "
          f"{self.sizes[name][0]} when the folder was begun; give a new folder"
        )
      return
    for column, values in arrays.items():
      self._columns[column].write(values)
      self._unflushed += values.nbytes
    self.sizes[name] = len(arrays["x"]), len(arrays["x_test"])
    if max(self._columns[column].rows for column in ("x", "x_test")) > MOST_ROWS:
      raise DataError(f"`clients`: more than {MOST_ROWS:,} rows")
    if self._unflushed > _FLUSH_BYTES or time.monotonic() > self._flushed_at + _FLUSH_S:
      self._flush()

  def _check(self, name: str, column: str, values: np.ndarray) -> None:
    first = self._columns[column]
    if (values.shape[1:], values.dtype) != (first.shape, first.dtype):
      raise DataError(
        f"`clients`: {column} of client {name} has rows of {values.dtype} "
        f"{list(values.shape[1:])}, must be {first.dtype} {list(first.shape or ())} as "
        "those of the first client"
      )
    if values.dtype.kind == "i":
      first.largest = max(first.largest, int(values.max(initial=-1)))

  def _flush(self) -> None:
    """Notes the clients that are on the disk as a whole."""
    for column in self._columns.values():
      if column.file is not None:
        column.sync()
    for name, sizes in list(self.sizes.items())[self._noted :]:
      self._journal.write(json.dumps([name, *sizes]).encode() + b"\n")
    self._journal.flush()
    os.fsync(self._journal.fileno())
    self._noted = len(self.sizes)
    self._unflushed, self._flushed_at = 0, time.monotonic()
    self.is_due = True

  def finish(
    self,
    classes: Sequence[Any] | None,
    num_classes: int | None,
    num_tokens: int | None,
  ) -> None:
    """Makes the folder one that ``open_clients`` takes."""
    if not self._seen:
      raise DataError("`clients`: there are none")
    if len(self._seen) < len(self.sizes):
      raise DataError(
        f"{self._folder}: was begun with {len(self.sizes)} clients, `clients` gives "
        f"{len(self._seen)}; give a new folder"
      )
    self._flush()
    facts: dict[str, Any] = {"format": _FORMAT, "columns": {}}
    for name, column in self._columns.items():
      column.finish()
      facts["columns"][name] = {
        "sha256": files.sha256(column.path),
        "largest": column.largest,
      }
    if classes is not None:
      facts["classes"] = list(classes)
    for name, number in (("num_classes", num_classes), ("num_tokens", num_tokens)):
      if number is not None:
        facts[name] = int(number)
    facts["clients"] = list(self.sizes)
    facts["train"], facts["test"] = map(list, zip(*self.sizes.values()))
    with files.replacing(self._folder / _CLIENTS, durable=True) as partial:
      partial.write_text(json.dumps(facts), "utf-8")
    files.discard(self._folder / _DEALING)
    os.remove(self._folder / _JOURNAL)


def _read_item(item: Any) -> tuple[str, dict[str, np.ndarray]]:
  """The name of a client and its arrays, with the dtypes that they are kept in.

  Raises:
    DataError: the item is none of a client.
  """
  if not isinstance(item, (tuple, list)) or len(item) not in (3, 5):
    raise DataError(
      "`clients`: must give (client, x, y), or (client, x, y, x_test, y_test)"
    )
  client = item[0].item() if isinstance(item[0], np.generic) else item[0]
  if not isinstance(client, (str, int)) or isinstance(client, bool):
    raise DataError(f"`clients`: client {client!r} must be a text or a whole number")
  arrays = {}
  for column, values in zip(_COLUMNS, item[1:]):
    label = f"`clients`: {column} of client {client}"
    arrays[column] = _as_stored(label, column, values)
  for column in ("x_test", "y_test"):
    arrays.setdefault(column, arrays[column[0]][:0])
  for x, y in (("x", "y"), ("x_test", "y_test")):
    if len(arrays[x]) != len(arrays[y]):
      raise DataError(
        f"`clients`: client {client} has {len(arrays[x])} rows of {x} and "
        f"{len(arrays[y])} of {y}"
      )
  return str(client), arrays


def _as_stored(label: str, column: str, values: Any) -> np.ndarray:
  """Rows in the dtype in which ``from_arrays`` has them."""
  if column[0] == "x":
    x = as_features(label, values, to_numbers=False)
    if not isinstance(x, np.ndarray):
      raise DataError(f"{label}: a dictionary, must be one array")
    return x
  try:
    y = np.asarray(values)
  except ValueError:
    raise DataError(f"{label}: its rows have different shapes") from None
  if y.ndim < 1:
    raise DataError(f"{label}: one number, an array of one for each row is needed")
  return as_targets(label, y)


def open_clients(
  path: str | os.PathLike,
  *,
  task: str | tasks.Task | None = None,
  check: bool = False,
) -> Examples:
  """Opens a folder of ``write_clients``, for ``federate``.

  Names, sizes and targets are read; the examples stay in the folder. With
  ``data_on="disk"`` a run reads the examples of the clients that take part.

  Args:
    path: the folder.
    task: what is predicted, see ``from_arrays``; None: one class for each example.
    check: whether all files are read and compared with their checksums.

  Returns:
    The examples. Their clients come in the order in which they were written. If the
    folder has no rows for testing, each client holds some out (``Natural``).

  Raises:
    DataError: the folder is none of ``write_clients`` or is not finished, a file is
      missing, cut short or damaged, or a target is none of the task.

  Examples:
    >>> import tempfile, numpy as np, fedjax_alg as fa
    >>> x, y = np.ones((4, 3), np.float32), [0, 1, 0, 1]
    >>> folder = write_clients(tempfile.mkdtemp(), [("anna", x, y), ("bert", x, y)])
    >>> fed = fa.federate(open_clients(folder), data_on="disk", partition="natural")
    >>> fed.num_clients
    2
  """
  folder = files.expand_path(path, "dataset")
  label = f"`dataset`={folder}"
  facts = _read_facts(folder, label)
  if check:
    _verify(folder, facts)
  columns = {name: NpyRows(folder / f"{name}.npy") for name in _COLUMNS}
  sizes = {split: np.array(facts[split], np.int64) for split in ("train", "test")}
  for name, column in columns.items():
    total = int(sizes["test" if name.endswith("_test") else "train"].sum())
    if len(column) != total:
      raise DataError(f"{column.path}: has {len(column):,} rows, must have {total:,}")
  clients = np.arange(len(facts["clients"]), dtype=np.int32)
  values: dict[str, Any] = {}
  for split, y in (("train", "y"), ("test", "y_test")):
    total = len(columns[y])
    if split == "test" and not total:
      continue
    # The checks are of targets and clients; the rows were checked when written.
    values[f"x_{split}"] = np.broadcast_to(np.zeros(1, np.float32), (total, 1))
    values[f"y_{split}"] = columns[y][:]
    values[f"client_{split}"] = np.repeat(clients, sizes[split])
  classes, resolved = facts.get("classes"), tasks.resolve_task(task)
  num_classes = facts.get("num_classes", classes and len(classes))
  if resolved is not None and not resolved.has_classes:
    classes = num_classes = None
  examples = make_examples(
    values,
    lambda which: f"{label}: {which}",
    folder.name,
    num_classes,
    task=task,
    client_names=np.array(facts["clients"]),
    are_numbered=True,
  )
  if classes is not None:
    encoding = labels.Encoding(tuple(classes))
    examples = dataclasses.replace(examples, encoding=encoding)
  rows = columns["x"], columns["x_test"]
  examples = dataclasses.replace(
    examples,
    x_train=rows[0],
    x_test=rows[1],
    checksums=(facts["columns"]["x"]["sha256"], facts["columns"]["x_test"]["sha256"]),
  )
  if rows[0].dtype != np.int32:
    return examples
  tokens = facts.get("num_tokens")
  if tasks.of(examples).of_tokens:
    largest = max(facts["columns"][name]["largest"] for name in ("x", "x_test"))
    tokens = max(tokens or 0, 1 + largest, examples.num_classes)
    examples = dataclasses.replace(examples, num_classes=tokens)
  return dataclasses.replace(examples, num_tokens=tokens)


def _read_facts(folder: pathlib.Path, label: str) -> dict[str, Any]:
  """The content of clients.json.

  Raises:
    DataError: it is missing or damaged.
  """
  if (folder / _JOURNAL).exists() and not (folder / _CLIENTS).exists():
    raise DataError(f"{label}: not finished; call write_clients again, which goes on")
  try:
    facts = files.read_json(folder / _CLIENTS)
    numbers = len(facts["clients"]), len(facts["train"]), len(facts["test"])
    if facts["format"] != _FORMAT or len(set(numbers)) != 1 or not numbers[0]:
      raise ValueError("format")
    for name in _COLUMNS:
      column = facts["columns"][name]
      bytes.fromhex(column["sha256"]), int(column["largest"])
    for name in ("num_classes", "num_tokens"):
      if not isinstance(facts.get(name, 0), int):
        raise ValueError(name)
  except OSError as error:
    raise DataError(
      f"{label}: no folder of write_clients ({_CLIENTS}: {reason(error)})"
    ) from error
  except (ValueError, LookupError, TypeError) as error:
    raise DataError(f"{label}: {_CLIENTS} is damaged, or of another version") from error
  return facts


def _verify(folder: pathlib.Path, facts: dict[str, Any]) -> None:
  """Compares all files with their checksums."""
  for name in _COLUMNS:
    path = folder / f"{name}.npy"
    try:
      checksum = files.sha256(path)
    except OSError as error:
      raise DataError(f"{path}: cannot be read, {reason(error)}") from error
    if checksum != facts["columns"][name]["sha256"]:
      raise DataError(f"{path}: damaged, its checksum differs")


def iterate_clients(examples: Examples) -> Iterator[tuple[Any, ...]]:
  """The clients of a data set, for ``write_clients``.

  Args:
    examples: a data set that names clients. Test rows without a client are left out.

  Yields:
    (client, x, y), or (client, x, y, x_test, y_test) if test rows have clients.

  Raises:
    DataError: it names no clients, has kinds, or its examples are several arrays.
  """
  if examples.client_train is None:
    raise DataError(f"{examples.name}: has no clients (client_train)")
  if examples.kind_train is not None:
    raise kinds_are_lost(examples.name, "kind_train")
  if len(store.arrays((examples.x_train, examples.y_train))) != 2:
    raise DataError(f"{examples.name}: x and y must be one array each")
  total = int(examples.client_train.max(initial=-1)) + 1
  splits = [(examples.x_train, examples.y_train, examples.client_train)]
  if examples.client_test is not None:
    total = max(total, int(examples.client_test.max(initial=-1)) + 1)
    splits.append((examples.x_test, examples.y_test, examples.client_test))
  orders = []
  for _, _, owner in splits:
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=total))
    orders.append(np.split(order, ends[:-1]))
  names = examples.client_names
  for client in range(total):
    rows = [
      array[orders[number][client]]
      for number, split in enumerate(splits)
      for array in split[:2]
    ]
    if any(len(array) for array in rows):
      yield (client if names is None else str(names[client]), *rows)


class ClientFiles(UserFiles):
  """A folder of write_clients or of `fedjax-alg prepare --clients`."""

  WORD, EXAMPLE = "clients", "clients:folder"
  READS, OF_USER = ("task",), True

  def load(self, task: str | None) -> Examples:
    """Opens the folder (``open_clients``)."""
    return open_clients(self.path, task=task)

  def hash_files(self, data_dir: str | None) -> str:
    """The hash of clients.json, which has the checksums of the others.

    Those are open as long as a data set is used. So that files which were restored are
    opened again, the hash is also of when they were written, and of their sizes.
    """
    del data_dir
    folder, stats = files.expand_path(self.path, "dataset"), []
    for name in _COLUMNS:
      with contextlib.suppress(OSError):  # opening says it
        stat = (folder / f"{name}.npy").stat()
        stats.append((name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return f"{files.contents_key([folder / _CLIENTS])} {stats}"
