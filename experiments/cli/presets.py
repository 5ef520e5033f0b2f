"""Flag files, and the presets that come with the package.

A preset is named ``<paper>/<name>.flags`` or ``<paper>/<folder>/<name>.flags``.
Data sets and headline settings are files of that name in ``PRESETS``. All others
are rows of one table a paper, ``<paper>/settings.csv``: a row for each flag of
each preset, in their order, with how its value was chosen. The columns are the
fields of ``PresetRow``. A row without a value says how something was chosen that
is set elsewhere: in the file of this name, or in a preset that is included; of a
field of a part, FLAG.FIELD, in the row of its flag. A row without a flag is about all
of a preset that no other row names.
"""

from collections.abc import Iterator, Sequence
import contextlib
import csv
import fcntl
import functools
import io
import json
import math
import os
import pathlib
import re
from typing import Literal, NamedTuple, get_args

from fedjax_alg import files
from fedjax_alg.errors import OptionError, did_you_mean, reason
from fedjax_alg.files import expand_path

PRESETS = pathlib.Path(__file__).parents[1] / "presets"
#: Name of the table of a paper.
TABLE = "settings.csv"
_SUFFIX = ".flags"

#: How a value was chosen, from the best way to the worst. ``training``: by the
#: training data; ``untuned``: a usual value or that of another paper, of which no
#: others were tried; ``edge of grid``: by validation, but a better value may lie
#: beyond those tried; ``stand-in``: the paper's data are not at hand, others took
#: their place; ``test``: by the test accuracy. A number of the last two cannot be
#: compared.
Origin = Literal[
  "stated",
  "validation",
  "training",
  "untuned",
  "edge of grid",
  "not given",
  "stand-in",
  "test",
]
ORIGINS: tuple[Origin, ...] = get_args(Origin)


class PresetRow(NamedTuple):
  """A row of a table: a flag of a preset, and the choice of its value."""

  folder: str  #: of the preset within the paper; "": the paper's own
  name: str  #: of the preset, usually its method
  flag: str  #: without dashes, or FLAG.FIELD; "": all of the preset
  value: str = ""  #: "true" of a flag that has none
  chosen_by: str = ""  #: one of ``ORIGINS``; "": as the row without a flag
  tried: str = ""  #: "VALUE SCORE; ..." of a grid, or the size of a joint search
  score: str = ""  #: validation accuracy of the choice, in percent
  stated_score: str = ""  #: that of the paper's own setting
  source: str = ""  #: the command that chose
  remark: str = ""

  @property
  def preset(self) -> str:
    """The name of the preset within its paper."""
    return "/".join(filter(None, (self.folder, self.name))) + _SUFFIX

  @property
  def word(self) -> str:
    """The flag as a word of a command line."""
    return f"--{self.flag}" + (f"={self.value}" if self.value != "true" else "")


class FlagFile(NamedTuple):
  """The content of a flag file or a preset."""

  place: pathlib.Path  #: its path, also where a table has it
  words: list[str]  #: its flags; those of files that it includes are not among them
  settings: tuple[PresetRow, ...]  #: its rows of the table; () for a user's file


def load_preset(name: str) -> FlagFile:
  """Reads a flag file, or the preset of this name.

  Args:
    name: path of a file; or a preset, by its name or by its path in the package.

  Raises:
    OptionError: there is none, it is no text, or the table is wrong.
  """
  for path in (expand_path(name, "flagfile"), PRESETS / name):
    settings = _settings_of(path)
    if path.is_file():
      try:
        return FlagFile(path, _split_lines(files.read_text(path)), settings)
      except (OSError, ValueError) as error:
        raise OptionError(
          f"`flagfile`={name}: cannot be read as text ({reason(error)})"
        ) from error
    if settings:
      return FlagFile(path, [row.word for row in settings if row.value], settings)
  raise OptionError(
    f"`flagfile`={name}: no such file, nor a preset"
    f"{did_you_mean(name, names())} (all are in {PRESETS})"
  )


def exists(name: str) -> bool:
  """Whether there is a preset of this name."""
  path = PRESETS / name
  return path.is_file() or bool(_settings_of(path))


def names() -> list[str]:
  """Lists the presets by name, as --flagfile takes them."""
  of_files = {p.relative_to(PRESETS).as_posix() for p in PRESETS.rglob(f"*{_SUFFIX}")}
  of_tables = {
    f"{path.parent.name}/{preset}"
    for path in PRESETS.glob(f"*/{TABLE}")
    for preset in _presets_of(path)
  }
  return sorted(of_files | of_tables)


def replace(name: str, rows: Sequence[PresetRow]) -> None:
  """Puts the rows of one preset into the table of its paper.

  They take the place of its rows; a preset that is new comes last. Other
  processes may replace other presets at the same time.

  Args:
    name: name of the preset, ``<paper>/...``.
    rows: all rows of this preset.

  Raises:
    OSError: the table cannot be written.
    OptionError: the table or one of the rows is wrong.
  """
  paper, _, preset = name.partition("/")
  path = PRESETS / paper / TABLE
  path.parent.mkdir(parents=True, exist_ok=True)
  with exclusive(path.parent):
    before = read_table(path) if path.is_file() else ()
    place = next(
      (i for i, row in enumerate(before) if row.preset == preset), len(before)
    )
    others = [row for row in before if row.preset != preset]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PresetRow._fields)
    writer.writerows([*others[:place], *rows, *others[place:]])
    parse_table(text.getvalue(), path)
    with files.replacing(path) as partial:
      partial.write_text(text.getvalue(), "utf-8")


def read_table(path: pathlib.Path) -> tuple[PresetRow, ...]:
  """Reads a table of settings.

  Raises:
    OSError: it cannot be read.
    OptionError: it is wrong; the message names row, column and what is allowed.
  """
  return parse_table(files.read_text(path), path)


def parse_table(text: str, path: pathlib.Path) -> tuple[PresetRow, ...]:
  """Parses the text of a table of settings.

  Args:
    text: the table, its first row the columns.
    path: the file that has it, or will have it.

  Raises:
    OptionError: as ``read_table``.
  """
  table = csv.reader(io.StringIO(text, newline=""))
  header = next(table, [])
  if tuple(header) != PresetRow._fields:
    raise OptionError(
      f"{path}, row 1: columns {','.join(header)}: must be "
      f"{','.join(PresetRow._fields)}"
    )
  rows: list[PresetRow] = []
  places: dict[tuple[str, str, str], int] = {}
  for number, cells in enumerate(table, 2):
    if len(cells) != len(PresetRow._fields):
      raise OptionError(
        f"{path}, row {number}: {len(cells)} columns: must be {len(PresetRow._fields)}"
      )
    row = PresetRow(*cells)
    wrong = _check(row, path)
    # Includes may be several; value and choice may stand in rows of their own.
    for column in ("value", "chosen_by"):
      key = (row.preset, row.flag, column)
      if not wrong and getattr(row, column) and row.flag != "flagfile":
        first = places.setdefault(key, number)
        if first != number:
          wrong = column, f"must be in one row of a preset's flag, row {first} has it"
    if wrong:
      column, must = wrong
      raise OptionError(
        f"{path}, row {number}, column {column}: {getattr(row, column)!r}: {must}"
      )
    rows.append(row)
  with_values = {row.preset for row in rows if row.value}
  for number, row in enumerate(rows, 2):
    if row.preset not in with_values and not (path.parent / row.preset).is_file():
      raise OptionError(
        f"{path}, row {number}, column name: {row.name!r}: must have values, "
        f"as there is no file {row.preset}"
      )
  return tuple(rows)


def _check(row: PresetRow, path: pathlib.Path) -> tuple[str, str] | None:
  """Returns the column of a row that is wrong, and what it must be."""
  if not re.fullmatch(r"(\w+(/\w+)*)?", row.folder):
    return "folder", "must be a folder such as methods, or empty"
  if not re.fullmatch(r"\w+", row.name):
    return "name", "must be letters, digits and _"
  if not re.fullmatch(r"(\w+(\.\w+)?)?", row.flag):
    return "flag", "must be a flag without dashes and value, or empty"
  if row.chosen_by and row.chosen_by not in ORIGINS:
    return "chosen_by", f"must be one of {', '.join(ORIGINS)}, or empty"
  for column in ("score", "stated_score"):
    text = getattr(row, column)
    if text and not _is_number(text):
      return column, "must be a number, or empty"
  if row.value and not row.flag:
    return "value", "must be empty where there is no flag"
  if row.value and "." in row.flag:
    return "value", f"must be in that of {row.flag.partition('.')[0]}"
  if row.value and (path.parent / row.preset).is_file():
    return "value", f"must be empty, {row.preset} is a file"
  if row.flag and not (row.value or row.chosen_by):
    return "value", "must be that of the flag, where chosen_by is empty"
  return None


def _is_number(text: str) -> bool:
  try:
    return math.isfinite(float(text))
  except ValueError:
    return False


@contextlib.contextmanager
def exclusive(folder: pathlib.Path) -> Iterator[None]:
  """Waits until no other process is in a context of this folder."""
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    with contextlib.suppress(OSError):  # a file system without locks
      fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
  finally:
    os.close(descriptor)


def _settings_of(path: pathlib.Path) -> tuple[PresetRow, ...]:
  """The rows of the preset at this path, of a file or not; () for no preset."""
  inside = os.path.relpath(os.path.realpath(path), _real(PRESETS))
  paper, _, preset = pathlib.PurePath(inside).as_posix().partition("/")
  return _presets_of(PRESETS / paper / TABLE).get(preset, ())


@functools.lru_cache(maxsize=8)
def _real(folder: pathlib.Path) -> str:
  """The folder itself, where it is a link."""
  return os.path.realpath(folder)


def _presets_of(path: pathlib.Path) -> dict[str, tuple[PresetRow, ...]]:
  """preset -> its rows, of a table that may be lacking."""
  try:
    status = path.stat()
  except OSError:
    return {}
  return _group_rows(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=64)
def _group_rows(
  path: pathlib.Path, changed: int, size: int
) -> dict[str, tuple[PresetRow, ...]]:
  """The same of a table as it is since a time."""
  del changed, size  # of another content
  presets: dict[str, list[PresetRow]] = {}
  for row in read_table(path):
    presets.setdefault(row.preset, []).append(row)
  return {preset: tuple(rows) for preset, rows in presets.items()}


def _split_lines(text: str) -> list[str]:
  """The words of a flag file, one in each line."""
  lines = [line.strip() for line in text.splitlines()]
  return [
    json.loads(line) if line.startswith('"--') else line
    for line in lines
    if line and not line.startswith("#")
  ]
