"""Downloads data sets and prepares them for the runs.

  python -m experiments.prepare mnist cifar10

You can name any data set of TFDS. Runs can read those with labeled images of one
size. You need this command once, on a machine with internet access and TensorFlow
(`pip install 'fedjax_alg[prepare]'`). Give runs the same --data_dir.

Data larger than the memory: write their clients to a folder. The source gives them
one after the other, or has rows in any order of which a column names the client:

  python -m experiments.prepare --clients=tweets mine.py:clients
  python -m experiments.prepare --clients=wards parquet:rows --client=ward --y=ill
  python -m experiments.run --dataset=clients:wards

Rows may be parquet:, csv:, arrow: or npz:PATH, leaf:FOLDER, tfds:NAME, or a data set
of datasets or torch that your function returns (mine.py:rows). If the command was
interrupted, give it again.
"""

from collections.abc import Iterable, Iterator, Sequence
import sys
import time
from typing import Any

from absl.flags import FlagValues

from fedjax_alg import data, own
from fedjax_alg.data import datasets, federation, leaf
from fedjax_alg.data import options as data_options
from fedjax_alg.errors import FAILURES, describe_error
from fedjax_alg.runs.progress import format_seconds

from .cli.command import Command, boolean, listed, string
from .cli.config import UsageError

#: What stands before the place of rows in any order.
_ROWS = ("parquet", "csv", "arrow", "feather", "npz", "tfds")


def _run(values: FlagValues, names: list[str], argv: Sequence[str]) -> None:
  """Prepares the named data sets."""
  del argv
  if values.clients is not None:
    _write_clients(values, names)
    return
  for option in _choices_of_rows(values):
    raise UsageError(f"--{option}: not read without --clients")
  preparable = ", ".join(data.PREPARABLE)
  if not names:
    raise UsageError(f"which data set? ({preparable}, or another of TFDS)")
  for name in names:
    if not data.is_tfds(name):
      raise UsageError(
        f"{name}: unknown data set (of {preparable}, or any other of TFDS)"
      )
  for name in names:
    data.prepare_tfds(name, values.data_dir)
    content = datasets.prepared(name).describe_prepared(values.data_dir)
    print(f"{name}: {content} ready")


def _write_clients(values: FlagValues, names: Sequence[str]) -> None:
  """Writes the clients of one source to a folder."""
  folder = values.clients
  if len(names) != 1:
    raise UsageError(
      f"--clients={folder}: give one source of clients, such as mine.py:clients, "
      "parquet:rows or leaf:folder"
    )
  (name,) = names
  clients = _clients_of(name, _choices_of_rows(values), values.data_dir)
  data.write_clients(folder, clients, progress=_Lines(folder))
  print(f"{folder}: ready for --dataset=clients:{folder} --data_on=disk")


def _choices_of_rows(values: FlagValues) -> dict[str, Any]:
  """The arguments of ``StreamedRows`` that the flags give."""
  columns = {option: getattr(values, option) for option in ("x", "y", "client")}
  choices: dict[str, Any] = {
    option: _column(text) for option, text in columns.items() if text is not None
  }
  for option in ("test", "classes"):
    if getattr(values, option) is not None:
      choices[option] = getattr(values, option)
  if values.channels_first:
    choices["channels_first"] = True
  return choices


def _column(names: Sequence[str]) -> Any:
  """One name or several; a whole number is a place in an item."""
  columns = [int(name) if name.isdecimal() else name for name in names]
  return columns[0] if len(columns) == 1 else columns


class _Lines:
  """A line for each stage from time to time, with the time that it still takes."""

  def __init__(self, folder: str):
    self._folder = folder
    self._stage, self._began, self._first = "", 0.0, 0

  def __call__(self, progress: data.WriteProgress) -> None:
    now = time.monotonic()
    if progress.stage != self._stage:
      self._stage, self._began, self._first = progress.stage, now, progress.rows
    text = f"{progress.rows:,}"
    if progress.total:
      text += f" of {progress.total:,}"
    text += " rows"
    if progress.clients:
      text += f", {progress.clients:,} clients"
    if progress.nbytes:
      text += f", {progress.nbytes / 2**20:,.0f} MB"
    done = progress.rows - self._first
    if progress.total and done > 0:
      seconds = (now - self._began) / done * (progress.total - progress.rows)
      text += f", {format_seconds(seconds)} left"
    print(f"{self._folder}: {progress.stage} {text}", file=sys.stderr, flush=True)


def _clients_of(name: str, choices: dict[str, Any], data_dir: str | None) -> Any:
  """The clients of a function, of rows in files, or of a data set by its text."""
  place, _, _ = name.partition(":")
  own.refuse_nameless(name, "clients")
  of_code = place.endswith(".py")
  of_rows = place in _ROWS and not (place == "tfds" and not choices)
  if data_dir is not None and (of_code or of_rows or place == "leaf"):
    instead = " ($TFDS_DATA_DIR is)" if place == "tfds" else ""
    raise UsageError(f"--data_dir={data_dir}: not read with rows of {name}{instead}")
  if of_code:
    function, _ = own.load(name, "clients")
    return _of_code(name, function, choices)
  if of_rows:
    return data.StreamedRows(name, **choices)
  _refuse_choices(name, choices)
  if place == "leaf":
    return leaf.leaf_clients(name.partition(":")[2])
  options = data_options.DataOptions(dataset=datasets.data_set(name), data_dir=data_dir)
  return federation.load_examples(options.filled())


def _refuse_choices(name: str, choices: dict[str, Any]) -> None:
  for option in choices:
    raise UsageError(f"--{option}: {name} has its clients and columns itself")


def _of_code(name: str, function: Any, choices: dict[str, Any]) -> Any:
  """The clients of code of the user's, or its rows if columns are chosen."""
  if isinstance(function, data.StreamedRows):
    _refuse_choices(name, choices)
    return function
  if not choices:
    return _clients_of_function(name, function)
  source = function
  if callable(function) and not isinstance(function, Iterable):
    try:
      source = function()
    except FAILURES as error:
      raise UsageError(f"--clients: {name} raises {describe_error(error)}") from error
    if isinstance(source, Iterator):  # it is read twice
      source = function
  return data.StreamedRows(source, **choices)


def _clients_of_function(name: str, function: Any) -> Iterator[Any]:
  """The clients that code of the user's gives.

  Raises:
    UsageError: it gives none, or fails.
  """
  try:
    clients = function() if callable(function) else function
    if not isinstance(clients, Iterable):
      raise UsageError(f"--clients: {name} must give clients, one after the other")
    yield from clients
  except FAILURES as error:
    if isinstance(error, UsageError):
      raise
    raise UsageError(f"--clients: {name} raises {describe_error(error)}") from error


main = Command(
  "prepare",
  f"{__doc__}\nData sets: {', '.join(data.PREPARABLE)}, and all others of TFDS.",
  (
    string(
      "data_dir",
      None,
      "folder to prepare data sets in, or that has them (default $TFDS_DATA_DIR or "
      "~/tensorflow_datasets)",
    ),
    string(
      "clients",
      None,
      "new folder to write the clients of one source to",
    ),
    listed("client", None, "of rows: the column of the clients"),
    listed("y", None, "of rows: the column of the targets"),
    listed("x", None, "of rows: those of the examples (default all others)"),
    string("test", None, "of rows: another source, whose rows are for testing"),
    listed("classes", None, "of rows: names of the classes, by their numbers"),
    boolean("channels_first", False, "of rows: images are [c, H, W], as in torch"),
  ),
  _run,
  positions=tuple(data.PREPARABLE),
)

if __name__ == "__main__":
  sys.exit(main())
