"""What pages of results are made of, and the templates that write them.

A figure command stores a ``FigurePage`` as <figure>.json: words, tables, and how it
was made. The templates in templates/ write the pages from such data.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import json
import pathlib
import re
from typing import Any

from fedjax_alg import files
from fedjax_alg.metrics import Number

from ..cli.config import UsageError
from ..reports import markdown

try:
  import jinja2
except ModuleNotFoundError as missing:
  raise ModuleNotFoundError(
    "what serves papers needs jinja2, install it with pip install -e '.[papers]'"
  ) from missing

#: The end of the name of a figure's data.
SUFFIX = ".json"


@dataclasses.dataclass(frozen=True)
class Heading:
  """A heading within a figure's part of a page."""

  heading: str


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of words and numbers.

  Args:
    head: the names of the columns.
    rows: the cells, written as ``str`` does; of a ``Number`` the file has what it is
      made of, for those who read the table.
  """

  head: Sequence[object]
  rows: Sequence[Sequence[object]]


@dataclasses.dataclass(frozen=True)
class Details:
  """Blocks that a reader unfolds."""

  summary: str
  blocks: Sequence[Any]  #: of ``Block``


@dataclasses.dataclass(frozen=True)
class PublishedNumbers:
  """Published numbers and ours; not shown on a page that has one table of all."""

  numbers: Sequence[Any]  #: of ``Block``


@dataclasses.dataclass(frozen=True)
class Others:
  """The numbers of methods that are not the paper's own, which a reader unfolds."""

  others: Sequence[str]  #: names of the methods
  table: Table


#: A piece of a page; a string is one or more paragraphs of Markdown.
Block = str | Heading | Table | Details | PublishedNumbers | Others


@dataclasses.dataclass(frozen=True)
class Provenance:
  """How a figure was made.

  Args:
    command: the command line.
    versions: software and its version; of runs that differ several, with " and ".
    device: the machine.
    notes: further sentences; "": the page has one line.
    lines: name, choice of the settings, and flags of the lines of the first panel.
  """

  command: str
  versions: dict[str, str]
  device: str
  notes: str = ""
  lines: Sequence[Sequence[str]] = ()

  @property
  def environment(self) -> str:
    """Software and machine in a line."""
    software = "".join(f"{name} {of}; " for name, of in self.versions.items())
    return f"{software}{self.device}."

  @property
  def line(self) -> str:
    """Command, software and machine in a line."""
    return f"`{self.command}`; {self.environment}"


@dataclasses.dataclass(frozen=True)
class Rerun:
  """Rows of a figure that were made after the others.

  Args:
    cells: their panels and methods, "a: FedAvg".
    provenance: how they were made.
  """

  cells: Sequence[str]
  provenance: Provenance


@dataclasses.dataclass(frozen=True)
class FigurePage:
  """All that a page says of a figure, beside its answers and what people write.

  Args:
    title: its title.
    blocks: its words and tables.
    provenance: how it was made; None: not said.
    remarks: sentences below what the paper says in words.
    runs_of: the figure whose runs it shows; "": they are its own.
    pictures: names of the published pictures.
    numbers: name of the published table of every number; "": there is none.
    has_flags: whether that table has the flags of each number, too.
    reruns: the rows that were made after the others.
  """

  title: str
  blocks: Sequence[Block]
  provenance: Provenance | None = None
  remarks: Sequence[str] = ()
  runs_of: str = ""
  pictures: Sequence[str] = ()
  numbers: str = ""
  has_flags: bool = False
  reruns: Sequence[Rerun] = ()

  def replace_rows(self, rerun: Rerun) -> "FigurePage":
    """The figure with rows that were made anew."""
    reruns = [
      Rerun([cell for cell in past.cells if cell not in rerun.cells], past.provenance)
      for past in self.reruns
    ]
    return dataclasses.replace(
      self, reruns=[*(past for past in reruns if past.cells), rerun]
    )

  def tables_of_reruns(self) -> dict[str, Table]:
    """What rows share that were made later -> how each was made."""
    rows: dict[str, list[list[str]]] = {}
    for rerun in self.reruns:
      versions = dict(rerun.provenance.versions)
      commit = versions.pop("commit", "")
      setting = dataclasses.replace(rerun.provenance, versions=versions)
      rows.setdefault(f"{setting.environment} {setting.notes}".rstrip(), []).append(
        [", ".join(rerun.cells), f"`{setting.command}`", commit]
      )
    head = ["rows", "command", "commit"]
    return {words: Table(head, entries) for words, entries in rows.items()}


#: The entry by which a block in a file is told.
_BLOCKS = {
  "heading": Heading,
  "rows": Table,
  "blocks": Details,
  "numbers": PublishedNumbers,
  "others": Others,
}


def _to_table(value: Any) -> Table:
  return Table(
    value["head"],
    [
      [Number(**cell) if isinstance(cell, dict) else cell for cell in row]
      for row in value["rows"]
    ],
  )


def _to_block(value: Any) -> Block:
  """Makes a block from what ``json`` reads."""
  if isinstance(value, str):
    return value
  (kind,) = (kind for entry, kind in _BLOCKS.items() if entry in value)
  if kind is Table:
    return _to_table(value)
  if kind is Others:
    return Others(value["others"], _to_table(value["table"]))
  block: Block = kind(
    **{
      name: [_to_block(part) for part in entry] if isinstance(entry, list) else entry
      for name, entry in value.items()
    }
  )
  return block


def read(path: pathlib.Path) -> FigurePage:
  """Reads the data of a figure.

  Raises:
    UsageError: the file has other data.
  """
  try:
    content = files.read_json(path)
    content["blocks"] = [_to_block(block) for block in content["blocks"]]
    if content.get("provenance"):
      content["provenance"] = Provenance(**content["provenance"])
    content["reruns"] = [
      Rerun(rerun["cells"], Provenance(**rerun["provenance"]))
      for rerun in content.get("reruns", ())
    ]
    return FigurePage(**content)
  except (AttributeError, KeyError, TypeError, ValueError):
    raise UsageError(
      f"{path}: not the data of a figure command; run the figure again"
    ) from None


def _is_flat(value: object) -> bool:
  """Whether a value is written in one line: a cell, or a row of them."""
  if isinstance(value, (list, tuple)):
    return not any(
      isinstance(entry, (list, tuple)) or not _is_flat(entry) for entry in value
    )
  return not isinstance(value, dict) or "mean" in value


def _format_json(value: Any, indent: str = "\n") -> str:
  """JSON with a line for each row of a table."""
  if _is_flat(value):
    return json.dumps(value, ensure_ascii=False, default=str)
  deeper = indent + " "
  if isinstance(value, dict):
    entries = [
      f"{json.dumps(name)}: {_format_json(entry, deeper)}"
      for name, entry in value.items()
    ]
    begin, end = "{", "}"
  else:
    entries = [_format_json(entry, deeper) for entry in value]
    begin, end = "[", "]"
  return begin + ",".join(deeper + entry for entry in entries) + indent + end


def _to_dict(entries: Sequence[tuple[str, Any]]) -> dict[str, Any]:
  """The fields of a dataclass, without what a number has not."""
  value = dict(entries)
  if "mean" not in value:
    return value
  return {
    name: entry
    for name, entry in value.items()
    if name == "mean" or entry not in (None, "")
  }


def to_json(page: FigurePage) -> str:
  """The content of the file that ``read`` reads."""
  return _format_json(dataclasses.asdict(page, dict_factory=_to_dict)) + "\n"


#: Recognizer of a file of ``to_json``.
IS_FIGURE = files.json_with("title", "blocks", "runs_of")


@functools.cache
def _templates() -> jinja2.Environment:
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent / "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,  # the texts are Markdown
  )
  environment.filters["table"] = lambda table: markdown.table(table.head, table.rows)
  return environment


def render(template: str, **values: object) -> str:
  """Writes a page.

  Args:
    template: name of a file in templates/, without .md.j2.
    **values: what it reads.

  Returns:
    The Markdown, with one empty line between its parts.
  """
  text = _templates().get_template(f"{template}.md.j2").render(**values)
  return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def format_blocks(blocks: Iterable[Block]) -> str:
  """Blocks as Markdown, as a figure's own page shows them."""
  return render("blocks", blocks=list(blocks)).rstrip()
