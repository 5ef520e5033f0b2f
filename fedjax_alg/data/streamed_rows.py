"""Rows with a column of clients, for a folder of clients: read some at a time."""

from collections.abc import Iterator, Sequence
import hashlib
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg.data import items, labels
from fedjax_alg.data.arrays import as_features, as_targets
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.gathered import gather_columns
from fedjax_alg.data.row_sources import Block, RowSource, of_source
from fedjax_alg.errors import a_type
from fedjax_alg.part import of_type
from fedjax_alg.tasks import task as task_lib


class RowBlock(NamedTuple):
  """Some rows that follow each other, as they are written."""

  clients: np.ndarray  #: [n] int64, uint64 or texts
  x: np.ndarray  #: [n, ...] uint8, int32 or float32
  y: np.ndarray  #: [n, ...] int32 or float32


class StreamedRows:
  """Rows in any order, each of which names its client.

  ``write_clients`` reads them twice: once clients and targets, and once all columns.
  Of a CSV it reads the former once more before, for their types.
  """

  def __init__(
    self,
    source: Any,
    *,
    y: Any = None,
    client: Any = None,
    x: Any = None,
    test: Any = None,
    classes: Sequence[str] | None = None,
    channels_first: bool = False,
  ):
    """Takes a source and the names of its columns.

    Args:
      source: one of

        - a text: ``parquet:PATH``, ``csv:PATH``, ``arrow:PATH`` (a file or a folder of
          files, read by pyarrow; of a CSV all rows decide whether clients and targets
          are numbers), ``npz:PATH`` (with x_train, y_train and
          client_train, and perhaps test rows), or ``tfds:NAME``, ``tfds:NAME[SPLIT]``
          (prepared by ``fedjax-alg prepare``)
        - a ``datasets.Dataset`` or ``IterableDataset`` (Hugging Face)
        - a data set of torch, with items or iterable; any list of items; or a function
          that returns an iterator of items, tuples or dictionaries
        - a table or data set of pyarrow.
      y: the column of the targets: its name, or its place in an item. Texts and truth
        values become the numbers of their sorted names. Not needed of an .npz.
      client: the column of the clients, whole numbers or texts. Not needed of an .npz.
      x: the column of the examples, or a list of columns of one number a row; by
        default all others, if the source names its columns.
      test: the test rows, another source with the same columns; None: ``Natural``
        holds some out. An .npz has its own.
      classes: the names of the classes, by their numbers, each once; None: the names in
        the source, or the sorted texts of ``y``.
      channels_first: whether images are [c, H, W], as in torch; here they become
        [H, W, c].

    Raises:
      DataError: the source is none of these, a package is missing, or a column is; or
        two classes have one name.

    Examples:
      >>> rows = [{"who": "b", "v": [1.0, 2.0], "ill": "no"},
      ...         {"who": "a", "v": [3.0, 4.0], "ill": "yes"},
      ...         {"who": "b", "v": [5.0, 6.0], "ill": "yes"}]
      >>> import tempfile, fedjax_alg as fa
      >>> folder = fa.write_clients(
      ...   tempfile.mkdtemp(), fa.StreamedRows(rows, x="v", y="ill", client="who"))
      >>> examples = fa.open_clients(folder)
      >>> examples.client_names.tolist(), examples.y_train.tolist()
      (['a', 'b'], [1, 0, 1])
    """
    self._train = of_source(source, "dataset", channels_first, y=y, client=client)
    self._test: RowSource | None = None
    if isinstance(source, str) and source.startswith("npz:"):
      test = source if test is None else test
    if test is not None:
      self._test = of_source(test, "test", channels_first, source, y, client)
      if not self._test.total and self._test.choices:  # an .npz without test rows
        self._test = None
    columns = {"x": x, "y": y, "client": client}
    for option, choice in columns.items():
      if choice is None:
        columns[option] = self._train.choices.get(option)
    for option in ("y", "client"):
      if columns[option] is None:
        raise DataError(f"`{option}`: missing, give the name of its column")
    self._is_default = columns["x"] is None
    if self._is_default:
      columns["x"] = self._others(columns)
    for option, choice in columns.items():
      items.check_column_choice(option, choice, (int, str))
      if isinstance(choice, list if option != "x" else dict):
        raise DataError(f"`{option}`: {a_type(choice)}, must be the name of one column")
    self._chosen = columns
    #: the names of the classes by their numbers; None: they are to be found
    self.classes: tuple[str, ...] | None = None
    names = self._train.class_names(columns["y"]) if classes is None else classes
    if names is not None:
      self.classes = tuple(of_type("classes", name, str) for name in names)
    if classes is not None and len(set(self.classes or ())) < len(self.classes or ()):
      raise DataError(f"`classes`={list(classes)}: each name must be there once")

  def _others(self, columns: dict[str, Any]) -> list[Any]:
    names = self._train.names
    if names is None:
      raise DataError("`x`: missing, give the name of the column of the examples")
    others = [name for name in names if name not in columns.values()]
    if not others:
      raise DataError("`x`: the source has no column but those of `y` and `client`")
    return others

  def _choices(self, source: RowSource) -> dict[str, Any]:
    return {**self._chosen, **source.choices}

  @property
  def splits(self) -> tuple[RowSource, ...]:
    """The sources: of training rows, and of test rows if there are any."""
    return (self._train,) if self._test is None else (self._train, self._test)

  @property
  def key(self) -> str:
    """A hash that differs if other rows would be read, as far as can be seen."""
    keys = [source.key() for source in self.splits]
    facts = repr((keys, self._chosen, self.classes))
    return hashlib.sha256(facts.encode("utf-8", "backslashreplace")).hexdigest()

  def read_ids(self, source: RowSource) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Reads the clients and the targets of a split, some rows at a time.

    Yields:
      The ids [n], whole numbers or texts, and the targets [n, ...], not converted.

    Raises:
      DataError: they cannot be read, or an id is missing or none.
    """
    choices = self._choices(source)
    client, y = choices["client"], choices["y"]
    for block in source.blocks([client, *([y] if y != client else [])], []):
      yield _ids(block[client], self._subject(source, "client")), block[y]

  def read(
    self, source: RowSource, first: int, classes: Sequence[Any]
  ) -> Iterator[RowBlock]:
    """Reads the rows of a split, some at a time.

    Args:
      source: the split.
      first: the first row that is wanted.
      classes: the names of the classes, of targets that are names.

    Yields:
      Rows that follow each other.

    Raises:
      DataError: they cannot be read, or are no numbers.
    """
    choices = self._choices(source)
    names = items.names_in(*choices.values())
    for block in source.blocks(names, items.names_in(choices["x"]), first):
      choice = choices["x"]
      if self._is_default and len(choice) == 1 and block[choice[0]].ndim > 1:
        (choice,) = choice  # arrays, not a number a row
      x: Any = gather_columns(choice, self._flat(block, choice))
      yield RowBlock(
        _ids(block[choices["client"]], self._subject(source, "client")),
        as_features(self._subject(source, "x"), x, to_numbers=False),
        _targets(block[choices["y"]], classes, self._subject(source, "y")),
      )

  def _flat(self, block: Block, choice: Any) -> Any:
    items.check_flat("x", choice, block.__getitem__)
    return block.__getitem__

  def _subject(self, source: RowSource, option: str) -> str:
    choice = self._choices(source)[option]
    return f"{source.label}: {'x' if isinstance(choice, list) else repr(choice)}"


def _targets(y: np.ndarray, classes: Sequence[Any], subject: str) -> np.ndarray:
  """Targets as int32 or float32, names as their places among the classes."""
  y = labels.whole_objects(y)
  if labels.are_names(y):
    return labels.encode_labels(y, classes, subject, "the classes")
  return as_targets(subject, y)


def _ids(values: np.ndarray, subject: str) -> np.ndarray:
  """The ids of clients, int64 (uint64 if one does not fit) or texts."""
  labels.check_present(values, subject)
  values = labels.whole_objects(values)
  if values.dtype == object and all(isinstance(value, str) for value in values):
    return np.array(values.tolist(), str)
  if values.dtype.kind == "S":
    return np.char.decode(values, "utf-8", "backslashreplace")
  if values.ndim != 1 or values.dtype.kind not in "iuU":
    raise DataError(
      f"{subject} is {task_lib.kind_of(values)} of shape {values.shape}, one whole "
      "number or text for each row is needed"
    )
  fits = values.dtype.kind in "iu" and values.max(initial=0) <= np.iinfo(np.int64).max
  return values.astype(np.int64) if fits else values
