"""Rows of other libraries and of files, some at a time.

Each source gives its rows again whenever it is asked, in the same order, as blocks of
columns. What a column becomes is decided where data sets in memory are read, too
(``items``, ``hugging_face``).
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
import contextlib
import functools
import io
import itertools
import math
import os
import pathlib
import re
from typing import Any
import zipfile

import numpy as np

from fedjax_alg import files
from fedjax_alg.data import hugging_face, items, labels, tfds_source
from fedjax_alg.data.errors import DataError, kinds_are_lost
from fedjax_alg.data.npy_rows import read_header
from fedjax_alg.errors import FAILURES, a_type, describe_error, reason

#: Column -> its values in some rows, [n, ...].
Block = dict[Hashable, np.ndarray]

#: Rows of the first block, at most of a later one, and its bytes.
_FIRST, _MOST, _BYTES = 16, 2**15, 2**24
#: What stands before the path of a file, and the name of its format in pyarrow.
_FORMATS = {"parquet": "parquet", "csv": "csv", "arrow": "ipc", "feather": "ipc"}
#: The forms of a text that names a source.
FORMS = ("parquet:PATH", "csv:PATH", "arrow:PATH", "npz:PATH", "tfds:NAME")


@contextlib.contextmanager
def _reading(label: str) -> Iterator[None]:
  """Turns errors of a reader, which are of many kinds, into one line."""
  try:
    yield
  except DataError:
    raise
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise DataError(
      f"{label}: cannot be read, {reason(error)} (damaged, cut short, or changed "
      "while it was read?)"
    ) from error


class RowSource:
  """Rows that can be read again, some at a time."""

  total: int | None = None  #: their number, if it is known before they are read
  names: list[Any] | None = None  #: the columns, if they are known
  #: columns that it names x, y and client itself
  choices: Mapping[str, Any] = {}

  def __init__(self, option: str, text: str = ""):
    """Takes the argument and the text that it was given as, for messages."""
    self.option = option
    self.label = f"`{option}`={text}" if text else f"`{option}`"

  def class_names(self, name: Any) -> list[str] | None:
    """The names of the classes of a column, by their numbers; None: unknown."""
    del name
    return None

  def key(self) -> str:
    """A text that differs if the rows do, as far as can be seen at once."""
    return f"{self.label} {self.total}"

  def blocks(
    self, names: Collection[Any], examples: Collection[Any], first: int = 0
  ) -> Iterator[Block]:
    """Reads columns.

    Args:
      names: the columns.
      examples: those of them that are features; see ``items.stack_rows``.
      first: the first row that is wanted.

    Yields:
      Blocks of rows that follow each other; none is empty.

    Raises:
      DataError: a row cannot be read, or a column is missing.
    """
    raise NotImplementedError


def _rows_of_block(block: Block) -> int:
  """The number of rows of the next block, by the size of those of one."""
  rows = max(1, len(next(iter(block.values()), ())))
  row_nbytes = sum(array.nbytes for array in block.values()) / rows
  return int(min(max(1, _BYTES // max(1, row_nbytes)), _MOST))


@contextlib.contextmanager
def _in_rows(begin: int, end: int | None = None) -> Iterator[None]:
  """Says of an error in which rows of the source its rows are."""
  try:
    yield
  except DataError as error:
    behind = f" to {end - 1:,}" if end is not None else " on"
    raise DataError(
      f"{error.text} (rows are counted from row {begin:,}{behind} of the source)"
      if begin
      else error.text
    ) from error


class _Range:
  """Some items of a data set that follow each other."""

  def __init__(self, rows: Any, begin: int, end: int):
    self._rows, self._begin, self._length = rows, begin, end - begin

  def __len__(self) -> int:
    return self._length

  def __getitem__(self, place: int) -> Any:
    return self._rows[self._begin + place]


class _Table(RowSource):
  """Rows with numbers: of a ``datasets.Dataset``, or anything with __getitem__."""

  def __init__(self, option: str, rows: Any, channels_first: bool, reference: Any):
    super().__init__(option)
    self._rows, self._channels_first = rows, channels_first
    self._of_hub = hasattr(rows, "with_format")
    self._reference = rows if reference is None else reference
    if self._of_hub:
      hugging_face.check_table(rows, option)
      if rows.format["type"] != "custom":
        self.names = list(rows.column_names)
    self.total = len(rows)

  def class_names(self, name: Any) -> list[str] | None:
    if self._of_hub:
      return hugging_face.class_names(self._reference, name)
    numbers = items.class_numbers(self._reference) if name == 1 else {}
    names = {number: text for text, number in numbers.items()}
    return (
      [names.get(number, "") for number in range(max(names) + 1)] if names else None
    )

  def key(self) -> str:
    return (
      f"{a_type(self._rows)} {getattr(self._rows, '_fingerprint', '')} {self.total}"
    )

  def blocks(
    self, names: Collection[Any], examples: Collection[Any], first: int = 0
  ) -> Iterator[Block]:
    begin, count, total = first, _FIRST, self.total or 0
    while begin < total:
      end = min(begin + count, total)
      with _in_rows(begin, end):
        block = self._read(begin, end, names, examples)
      yield block
      begin, count = end, _rows_of_block(block)

  def _read(
    self, begin: int, end: int, names: Collection[Any], examples: Collection[Any]
  ) -> Block:
    if not self._of_hub:
      some = _Range(self._rows, begin, end)
      return items.read_fields(some, self.option, names, examples, self._channels_first)
    some = self._rows.select(range(begin, end))
    block = hugging_face.read_columns(
      some, self.option, names, examples, self._channels_first
    )
    return {
      name: hugging_face.align_classes(array, name, self._rows, self._reference)
      for name, array in block.items()
    }


class _Stream(RowSource):
  """Items that are read one after the other, such as those of an iterable data set."""

  def __init__(
    self,
    option: str,
    begin: Callable[[], Iterable[Any]],
    channels_first: bool = False,
    text: str = "",
    features: Mapping[str, Any] | None = None,
  ):
    """Takes the items.

    Args:
      option: see ``RowSource``.
      begin: () -> an iterator of the items, tuples or dictionaries.
      channels_first: see ``items.stack_rows``.
      text: see ``RowSource``.
      features: those of ``datasets``, if they are known.
    """
    super().__init__(option, text)
    self._begin, self._channels_first = begin, channels_first
    self._features = features or {}

  def class_names(self, name: Any) -> list[str] | None:
    return hugging_face.names_of_feature(self._features.get(name))

  def _items(self) -> Iterator[Any]:
    """The items; whatever they raise is one line."""
    number = 0
    try:
      for item in self._begin():
        yield item
        number += 1
    except DataError:
      raise
    except FAILURES as error:  # whatever the caller's data raise
      raise DataError(
        f"{self.label}: its items cannot be read, after {number:,} of them: "
        f"{describe_error(error)}"
      ) from error

  def blocks(
    self, names: Collection[Any], examples: Collection[Any], first: int = 0
  ) -> Iterator[Block]:
    stream, begin, count = self._items(), first, _FIRST
    for _ in itertools.islice(stream, first):
      pass
    while rows := list(itertools.islice(stream, count)):
      with _in_rows(begin, begin + len(rows)):
        block = items.read_fields(
          rows, self.option, names, examples, self._channels_first
        )
        for name in names if self._features else ():
          block[name] = hugging_face.as_declared(
            block[name], self._features[name], f"{self.label}: the rows of {name!r}"
          )
      yield block
      begin, count = begin + len(rows), _rows_of_block(block)


class _Tfds(_Stream):
  """The records of a split of a prepared data set of TFDS."""

  def __init__(self, option: str, text: str, name: str, split: str):
    """Finds the split.

    Args:
      option: see ``RowSource``.
      text: see ``RowSource``.
      name: see ``tfds_source.prepared_folder``.
      split: the name of the split.

    Raises:
      DataError: it is not prepared, or there is no such split.
    """
    folder = tfds_source.prepared_folder(name)
    super().__init__(option, lambda: tfds_source.records(folder, split), text=text)
    with tfds_source.reading(folder):
      info = tfds_source.prepared_info(folder)
      sizes = {part: facts.num_examples for part, facts in info.splits.items()}
    if split not in sizes:
      raise DataError(f"{self.label}: has no {split} (it has {', '.join(sizes)})")
    self.total, self._info = sizes[split], info
    self.names = list(info.features) if hasattr(info.features, "keys") else None
    self._version = tfds_source.prepared_version(name)

  def class_names(self, name: Any) -> list[str] | None:
    """See ``RowSource``; names that are the numbers say nothing."""
    if name not in (self.names or ()):
      return None
    names = list(getattr(self._info.features[name], "names", None) or ())
    return names if names != [str(number) for number in range(len(names))] else None

  def key(self) -> str:
    """See ``RowSource``."""
    return f"{super().key()} {self._version}"


class _Arrow(RowSource):
  """Batches of pyarrow: of files in Parquet, CSV or Arrow, or of a table."""

  def __init__(
    self,
    option: str,
    table: Any,
    text: str = "",
    paths: Iterable[str] = (),
    y: Any = None,
    client: Any = None,
  ):
    super().__init__(option, text)
    self._table, self._paths = table, list(paths)
    self._y, self._client = y, client
    self.names = list(table.schema.names)
    with _reading(self.label):  # of a CSV it would be read for that
      if not self._paths:
        self.total = table.num_rows
      elif not text.startswith("csv"):
        self.total = table.count_rows()

  def key(self) -> str:
    stats = [os.stat(path) for path in self._paths]
    return f"{super().key()} {[(stat.st_size, stat.st_mtime_ns) for stat in stats]}"

  def blocks(
    self, names: Collection[Any], examples: Collection[Any], first: int = 0
  ) -> Iterator[Block]:
    for name in names:
      if name not in (self.names or ()):
        raise DataError(
          f"{self.label}: has no column {name!r} (it has "
          f"{', '.join(map(str, (self.names or ())[:20]))})"
        )

    def decode(batch: Any) -> Block:
      return {
        name: self._column(batch.column(name), name, name in examples) for name in names
      }

    begin, chosen = 0, list(names)
    with _reading(self.label):
      few = (batch for batch in self._batches(chosen, _FIRST) if batch.num_rows)
      first_batch = next(few, None)
      if first_batch is None:
        return
      # Images are many times as large as the bytes that encode them.
      size = _rows_of_block(decode(first_batch.slice(0, _FIRST)))
      for batch in self._batches(chosen, size):
        end = begin + batch.num_rows
        some = batch.slice(max(0, first - begin))
        begin = end
        if some.num_rows:
          with _in_rows(end - some.num_rows, end):
            yield decode(some)

  def _batches(self, names: list[Any], size: int) -> Iterator[Any]:
    """Batches of at most so many rows, except of CSV.

    The scanner of pyarrow reads ahead of who uses the rows, whatever that takes.
    """
    import pyarrow as pa  # pylint: disable=g-import-not-at-top
    from pyarrow import ipc, parquet  # pylint: disable=g-import-not-at-top

    if not self._paths:
      yield from self._table.select(names).to_batches(max_chunksize=size)
    for path in self._paths:
      if self._table.format.default_extname == "parquet":
        with parquet.ParquetFile(path, pre_buffer=False) as file:
          yield from file.iter_batches(size, columns=names, use_threads=False)
      elif self._table.format.default_extname == "csv":
        with _open_csv(path, {name: self._csv_types[name] for name in names}) as file:
          yield from file
      else:
        with pa.OSFile(path) as opened, ipc.open_file(opened) as file:
          for place in range(file.num_record_batches):
            batch = file.get_batch(place).select(names)
            for begin in range(0, batch.num_rows, size):
              yield batch.slice(begin, size)

  @functools.cached_property
  def _csv_types(self) -> dict[str, Any]:
    """The type of each column of CSV files.

    The schema knows the first block of the first file only, so that any number may be
    a fraction. All rows decide what clients and targets are. Clients are numbers if
    each is written as its number is: 007 and 7 are two clients.
    """
    import pyarrow as pa  # pylint: disable=g-import-not-at-top

    def is_number(kind: Any) -> bool:
      return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))

    types = {field.name: field.type for field in self._table.schema}
    possible = {}
    if self._y in types:
      kind = types[self._y]
      if is_number(kind) or pa.types.is_null(kind) or pa.types.is_string(kind):
        possible[self._y] = [pa.int64(), pa.float64(), pa.string()]
    if self._client in types:
      possible[self._client] = [pa.int64(), pa.string()]
    for path in self._paths if possible else ():
      with _open_csv(path, dict.fromkeys(possible, pa.string())) as file:
        for batch in file:
          for name, kinds in possible.items():
            while not _fits(batch.column(name), kinds[0], name == self._client):
              del kinds[0]
    return {
      name: pa.float64() if is_number(kind) or pa.types.is_null(kind) else kind
      for name, kind in types.items()
    } | {name: kinds[0] for name, kinds in possible.items()}

  def _column(self, column: Any, name: str, is_example: bool) -> np.ndarray:
    subject = f"{self.label}: column {name!r}"
    array = _of_arrow(column, subject, is_example)
    if is_example:
      items.check_numbers("x", name, array)
    return array


def _open_csv(path: str, types: dict[str, Any]) -> Any:
  """A reader of some columns of a CSV file; texts are missing unless quoted."""
  from pyarrow import csv  # pylint: disable=g-import-not-at-top

  return csv.open_csv(
    path,
    csv.ReadOptions(use_threads=False),
    convert_options=csv.ConvertOptions(
      column_types=types,
      include_columns=list(types),
      strings_can_be_null=True,
      quoted_strings_can_be_null=False,
    ),
  )


def _fits(column: Any, kind: Any, exactly: bool) -> bool:
  """Whether all texts of a column are of a type, or even written as it writes them."""
  import pyarrow as pa  # pylint: disable=g-import-not-at-top
  from pyarrow import compute  # pylint: disable=g-import-not-at-top

  texts = compute.utf8_trim_whitespace(column.drop_null())
  try:
    values = texts.cast(kind)
  except pa.ArrowInvalid:
    return False
  return not exactly or bool(values.cast(texts.type).equals(texts))


def _of_arrow(
  column: Any, subject: str, is_example: bool, per_row: int = 1
) -> np.ndarray:
  """An array of pyarrow as one of NumPy, [n, ...].

  Args:
    column: the array.
    subject: how a message starts.
    is_example: see ``items.stack_rows``.
    per_row: the number of its entries that one row has.

  Raises:
    DataError: values are missing, or rows have different lengths.
  """
  import pyarrow as pa  # pylint: disable=g-import-not-at-top

  kind = column.type
  if column.null_count:
    missing = np.flatnonzero(np.asarray(column.is_null()))
    labels.refuse_missing(missing // per_row, subject)
  if hasattr(column, "to_numpy_ndarray"):  # tensors of one shape
    tensors: np.ndarray = column.to_numpy_ndarray()
    return tensors
  if pa.types.is_dictionary(kind):
    return _of_arrow(column.dictionary_decode(), subject, is_example, per_row)
  if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
    return _of_arrow(column.field("bytes"), subject, is_example, per_row)
  if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
    return items.stack_rows(
      _Images(column.to_pylist()), f"{subject}: its rows", is_example
    )
  if isinstance(column, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
    lengths = np.asarray(column.value_lengths())
    if len(np.unique(lengths)) > 1:
      raise DataError(f"{subject} has rows of different lengths")
    length = int(lengths[0])
    inner = _of_arrow(column.flatten(), subject, is_example, per_row * length)
    return inner.reshape(len(column), length, *inner.shape[1:])
  if pa.types.is_string(kind) or pa.types.is_large_string(kind):
    return np.array(column.to_pylist(), object)
  values: np.ndarray = column.to_numpy(zero_copy_only=False)
  return values


class _Images:
  """Images in bytes, decoded one at a time."""

  def __init__(self, contents: list[bytes]):
    self._contents = contents

  def __len__(self) -> int:
    return len(self._contents)

  def __iter__(self) -> Iterator[Any]:
    from PIL import Image  # pylint: disable=g-import-not-at-top

    for place, content in enumerate(self._contents):
      try:
        yield Image.open(io.BytesIO(content))
      except OSError as error:
        raise DataError(f"row {place} is no image, {reason(error)}") from error


class _NpzRows(RowSource):
  """Arrays of an .npz, of which some rows are read at a time."""

  def __init__(self, option: str, path: pathlib.Path, split: str):
    super().__init__(option, f"npz:{path}")
    self._path = path
    self.choices = {name: f"{name}_{split}" for name in ("x", "y", "client")}
    with self._open() as archive:
      self.names = [name.removesuffix(".npy") for name in archive.namelist()]
      if "kind_train" in self.names:
        raise kinds_are_lost(self.label, "kind_train")
      y = self.choices["y"]
      self.total = self._header(archive, y)[1][0] if y in self.names else 0

  def key(self) -> str:
    stat = os.stat(self._path)
    return f"{self.label} {stat.st_size} {stat.st_mtime_ns}"

  @contextlib.contextmanager
  def _open(self) -> Iterator[zipfile.ZipFile]:
    with (
      _reading(self.label),
      files.open_regular(self._path) as file,
      zipfile.ZipFile(file) as archive,
    ):
      yield archive

  def _header(self, archive: zipfile.ZipFile, name: str) -> tuple[Any, Any, np.dtype]:
    """A file at the first row of an array, the array's shape, and its dtype."""
    file: Any = archive.open(f"{name}.npy")
    shape, in_fortran_order, dtype = read_header(file)
    if dtype.hasobject or not shape or in_fortran_order and len(shape) > 1:
      raise DataError(f"{self.label}: {name} must be an array in C order")
    return file, shape, dtype

  def blocks(
    self, names: Collection[Any], examples: Collection[Any], first: int = 0
  ) -> Iterator[Block]:
    del examples
    with self._open() as archive:
      for name in names:
        if name not in (self.names or ()):
          raise DataError(
            f"{self.label}: missing {name} (it has "
            f"{', '.join((self.names or ())[:20])})"
          )
      opened = {name: self._header(archive, name) for name in names}
      sizes = {
        name: math.prod(shape[1:]) * dtype.itemsize
        for name, (_, shape, dtype) in opened.items()
      }
      if len({shape[0] for _, shape, _ in opened.values()}) > 1:
        raise DataError(
          f"{self.label}: {', '.join(map(str, names))} have different lengths"
        )
      total = next(iter(opened.values()))[1][0]
      for name, (file, _, _) in opened.items():
        file.seek(first * sizes[name], os.SEEK_CUR)
      step = min(max(1, _BYTES // max(1, sum(sizes.values()))), _MOST)
      for begin in range(first, total, step):
        rows = min(step, total - begin)
        block: Block = {}
        for name, (file, shape, dtype) in opened.items():
          content = file.read(rows * sizes[name])
          block[name] = np.frombuffer(content, dtype).reshape(rows, *shape[1:])
        yield block


def of_source(
  source: Any,
  option: str,
  channels_first: bool = False,
  reference: Any = None,
  y: Any = None,
  client: Any = None,
) -> RowSource:
  """The rows of an object, or of what a text names.

  Args:
    source: a text of ``FORMS``, or a data set of another library.
    option: the argument that it was given as, for messages.
    channels_first: see ``items.stack_rows``.
    reference: for test rows, the source of the training rows.
    y: the column of the targets; all rows of a CSV decide its type.
    client: the column of the clients, likewise.

  Raises:
    DataError: it is none, or a package is missing.
  """
  if isinstance(source, str):
    return _named(source, option, y, client)
  if hasattr(source, "isna") and hasattr(source, "dtypes"):
    raise DataError(f"`{option}`: a DataFrame is in memory, give from_dataframe(...)")
  if isinstance(source, Mapping):
    raise DataError(
      f"`{option}`: {a_type(source)} of {', '.join(map(str, list(source)[:5]))}, give "
      "one of them (and another one as `test`)"
    )
  if hasattr(source, "to_batches") and hasattr(source, "schema"):
    if not hasattr(source, "num_rows") and not getattr(source, "files", ()):
      raise DataError(f"`{option}`: {a_type(source)}, must be a table or of files")
    paths = getattr(source, "files", ())
    return _Arrow(option, source, paths=paths, y=y, client=client)
  if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
    return _Table(option, source, channels_first, reference)
  if callable(source) and not hasattr(source, "__iter__"):
    return _Stream(option, source, channels_first)
  if not isinstance(source, Iterable):
    raise DataError(
      f"`{option}`: {a_type(source)}, must be one of {', '.join(FORMS)}, or a data set "
      "of datasets, torch or pyarrow"
    )
  if iter(source) is source:
    raise DataError(
      f"`{option}`: {a_type(source)} can be read once, its rows are read twice; give "
      "the function that makes it"
    )
  features = getattr(source, "features", None)
  return _Stream(option, lambda: source, channels_first, features=features)


def _datasets_of_arrow(label: str) -> Any:
  """The module ``pyarrow.dataset``."""
  try:
    from pyarrow import dataset  # pylint: disable=g-import-not-at-top
  except ImportError:
    raise DataError(
      f"{label}: the package pyarrow is missing (pip install pyarrow)"
    ) from None
  return dataset


def _named(text: str, option: str, y: Any, client: Any) -> RowSource:
  """The rows of files or of a prepared data set, by a text."""
  word, _, place = text.partition(":")
  if not place or word not in (*_FORMATS, "npz", "tfds"):
    raise DataError(f"`{option}`={text}: must be one of {', '.join(FORMS)}")
  if word == "tfds":
    return _of_tfds(option, text)
  path = files.expand_path(place, option)
  if word == "npz":
    return _NpzRows(option, path, "test" if option == "test" else "train")
  if not path.exists():
    raise DataError(f"`{option}`={text}: there is no {path}")
  try:
    table = _datasets_of_arrow(f"`{option}`={text}").dataset(
      str(path), format=_FORMATS[word]
    )
  except DataError:
    raise
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise DataError(
      f"`{option}`={text}: cannot be read as {word}, {reason(error)}"
    ) from error
  if not table.files:
    raise DataError(f"`{option}`={text}: has no files")
  return _Arrow(option, table, text, table.files, y, client)


def _of_tfds(option: str, text: str) -> RowSource:
  """A split of a data set that TFDS has prepared, ``tfds:NAME[split]``."""
  match = re.fullmatch(r"(tfds:[^\[\]]+)(?:\[(\w+)\])?", text)
  if match is None:
    raise DataError(f"`{option}`={text}: must be tfds:NAME or tfds:NAME[SPLIT]")
  return _Tfds(option, text, match.group(1), match.group(2) or "train")
