"""What stands behind every method: its source, oracle test, numbers and studies.

``docs/evidence.csv`` has what people know: a row for each method, with

- ``source``: one of ``SOURCES``, and ``read``, which part was read,
- ``stated_in``: the file that says so,
- ``oracle``: a test, where ``find_oracles`` cannot find one,
- ``looked``: the day on which somebody last compared the row with these files,
- ``code``, ``commit`` and ``by``: a public repository of the method, of its authors
  or others; ``replayed``: the test that plays its rounds beside ours; ``remark``: where
  it differs from ours, or what was searched if there is no such code.

All else follows from the tests, from the answers and tables of docs/results, and
from the sources of published numbers. It does without Sphinx.
"""

import ast
from collections.abc import Iterator, Mapping
import csv
import functools
import itertools
import pathlib
import re
import shlex
from typing import NamedTuple

from experiments.cli import config as config_lib
from experiments.publish import PAPERS
from experiments.reports import markdown, rule
from experiments.reproduction import answers, claims_page, report
from experiments.reproduction.trust import overview
from fedjax_alg import registry

DOCS = pathlib.Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
RESULTS = DOCS / "results"
TABLE = DOCS / "evidence.csv"

ENTIRE, PART, DESCRIPTION, NO_PAPER = "whole", "part", "description", "no paper"
#: How much of a method's paper was read -> what that means.
SOURCES = {
  ENTIRE: "the paper was read from its first to its last equation, and a page lists "
  "our readings",
  PART: "the algorithm, sections or settings that the page of the method or its code "
  "names were read",
  DESCRIPTION: "the paper was not read, but its abstract, summaries or code",
  NO_PAPER: "there is no paper",
}
#: Verdicts on numbers that were compared.
COMPARED = (rule.REACHED, rule.BETTER, rule.WORSE, rule.UNDECIDED)
#: Who wrote public code.
AUTHORS, OTHERS = "authors", "others"


class Row(NamedTuple):
  """A row of evidence.csv."""

  method: str
  source: str
  read: str
  stated_in: str
  oracle: str
  looked: str
  code: str
  commit: str
  by: str
  replayed: str
  remark: str


def read_rows() -> list[Row]:
  """The rows of evidence.csv."""
  with TABLE.open(newline="", encoding="utf-8") as file:
    return [Row(**row) for row in csv.DictReader(file)]


# The oracle tests.


def _test_file(name: str) -> pathlib.Path:
  """The file that tests the module of a method."""
  module = registry.ALGORITHMS[name].build.__module__.rpartition(".")[2]
  path = ROOT / "tests" / "algorithms" / f"test_{module}.py"
  elsewhere = _elsewhere().get(module, f"algorithms/test_{module}")
  return path if path.is_file() else ROOT / f"tests/{elsewhere}.py"


@functools.cache
def _elsewhere() -> Mapping[str, str]:
  """module -> its tests, as tests/test_mirrors.py has those of other files."""
  tree = ast.parse((ROOT / "tests" / "test_mirrors.py").read_text("utf-8"))
  value = next(
    node.value
    for node in tree.body
    if isinstance(node, ast.Assign)
    and any(isinstance(t, ast.Name) and t.id == "ELSEWHERE" for t in node.targets)
  )
  places = eval(compile(ast.Expression(value), "test_mirrors.py", "eval"), {})
  return {
    module.partition("/")[2]: place
    for module, place in places.items()
    if module.startswith("algorithms/")
  }


class _Module:
  """The functions, classes and values of a test file."""

  def __init__(self, path: pathlib.Path):
    self.path = path
    self.oracles: set[str] = set()
    self.names: dict[str, ast.AST] = {}
    for node in ast.parse(path.read_text("utf-8")).body:
      if isinstance(node, ast.ImportFrom) and node.module:
        if node.module.startswith("tests.reference"):
          self.oracles |= {alias.asname or alias.name for alias in node.names}
      elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        self.names[node.name] = node
        if fixture := _fixture_name(node):
          self.names[fixture] = node
      elif isinstance(node, ast.Assign):
        for name in itertools.chain(*map(ast.walk, node.targets)):
          if isinstance(name, ast.Name):
            self.names[name.id] = node

  def reach(self, test: str) -> list[ast.AST]:
    """All nodes of a test, and of what it uses of its file."""
    seen: list[ast.AST] = []
    waiting = [self.names[test]]
    while waiting:
      node = waiting.pop()
      if node in seen:
        continue
      seen.append(node)
      for inner in ast.walk(node):
        name = getattr(inner, "id", getattr(inner, "arg", None))
        if isinstance(inner, ast.Name | ast.arg) and name in self.names:
          waiting.append(self.names[name])
    return [inner for node in seen for inner in ast.walk(node)]

  def compares(self, test: str, name: str) -> bool:
    """Whether a test has the name of a method and uses an oracle."""
    nodes = self.reach(test)
    return any(
      isinstance(node, ast.Name) and node.id in self.oracles for node in nodes
    ) and any(isinstance(node, ast.Constant) and node.value == name for node in nodes)


def _fixture_name(node: ast.AST) -> str:
  """The name of a fixture; "" of anything else."""
  for decorator in getattr(node, "decorator_list", ()):
    if isinstance(decorator, ast.Call) and "fixture" in ast.dump(decorator.func):
      for keyword in decorator.keywords:
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
          return str(keyword.value.value)
  return ""


@functools.cache
def _module(path: pathlib.Path) -> _Module:
  return _Module(path)


@functools.cache
def find_oracles() -> dict[str, list[str]]:
  """method -> its tests that use an oracle of tests/reference, as pytest names them."""
  tests_of: dict[str, list[str]] = {}
  for name in registry.ALGORITHMS:
    path = _test_file(name)
    if not path.is_file():
      tests_of[name] = []
      continue
    module = _module(path)
    tests_of[name] = [
      f"{path.relative_to(ROOT)}::{test}"
      for test in module.names
      if test.startswith("test_") and module.compares(test, name)
    ]
  return tests_of


def oracle(row: Row) -> str:
  """The first oracle test of a method; "" if there is none."""
  return next(iter(find_oracles()[row.method]), row.oracle)


# Published numbers, and studies.


class Number(NamedTuple):
  """A published number beside ours."""

  paper: str  #: of ``PAPERS``
  answer: answers.PaperAnswer


@functools.cache
def _algorithm_of_flags(flags: str) -> str:
  """The algorithm of a row's flags; "" if their presets are gone."""
  try:
    words = config_lib.expand_flagfiles(shlex.split(flags))
  except (config_lib.UsageError, ValueError):
    return ""
  names = [word for word in words if word.startswith("--algorithm=")]
  return names[-1].partition("=")[2] if names else ""


@functools.cache
def _tables() -> dict[str, list[dict[str, str]]]:
  """paper_figure -> the rows of its table of numbers."""
  tables = {}
  for path in sorted(RESULTS.glob("*.csv")):
    with path.open(newline="", encoding="utf-8") as file:
      reader = csv.DictReader(file)
      if {"method", "flags"} <= set(reader.fieldnames or ()):
        tables[path.stem] = list(reader)
  return tables


@functools.cache
def _algorithms_of(paper: str) -> dict[str, str]:
  """label -> algorithm, in the tables of a paper."""
  labels = {entry.label: name for name, entry in registry.ALGORITHMS.items()}
  for stem, rows in _tables().items():
    if stem.startswith(f"{paper}_"):
      labels |= {
        row["method"]: name
        for row in rows
        if (name := _algorithm_of_flags(row["flags"]))
      }
  return labels


@functools.cache
def numbers() -> dict[str, list[Number]]:
  """method -> the published numbers of it that our runs answer.

  A number that is answered in several ways (tuned, with the paper's settings, on more
  partitions) has the answer of the page of claims.
  """
  by_method: dict[str, dict[tuple[str, ...], Number]] = {}
  for paper in PAPERS:
    algorithms = _algorithms_of(paper)
    for answer in sorted(
      answers.read_answers(RESULTS / f"{paper}.answers.csv"), key=claims_page.sort_key
    ):
      label = answer.method
      name = algorithms.get(label)
      if answer.metric and name and answer.reason != rule.NOT_RUN:
        key = (paper, answer.artifact, answer.panel, label, answer.metric)
        by_method.setdefault(name, {}).setdefault(key, Number(paper, answer))
  return {name: list(of.values()) for name, of in by_method.items()}


def _page_of(paper: str, figure: str) -> str:
  """The name of the page of a figure."""
  end = PAPERS[paper].pages.get(figure, "")
  return "_".join(filter(None, (paper, end)))


@functools.cache
def studies() -> dict[str, list[str]]:
  """method -> the pages of results that it stands on, in their order."""
  by_method: dict[str, dict[str, None]] = {}
  for paper in PAPERS:
    for stem, rows in _tables().items():
      if not stem.startswith(f"{paper}_"):
        continue
      page = _page_of(paper, stem.removeprefix(f"{paper}_"))
      for row in rows:
        name = _algorithm_of_flags(row["flags"]) or _algorithms_of(paper).get(
          row["method"], ""
        )
        if name in registry.ALGORITHMS:
          by_method.setdefault(name, {})[page] = None
  for name, of in numbers().items():
    for number in of:
      page = _page_of(number.paper, number.answer.figure)
      by_method.setdefault(name, {})[page] = None
  return {name: list(pages) for name, pages in by_method.items()}


def is_quoted(number: Number) -> bool:
  """Whether the place of a published number was not opened."""
  a = number.answer
  key = (a.artifact, a.panel, a.method, a.metric)
  return number.paper == overview.NAME and key in overview.quoted_numbers()


@functools.cache
def _units() -> dict[tuple[str, ...], str]:
  """A number of a paper -> its unit."""
  return {
    (paper, row["artifact"], row["panel"], row["method"], row["metric"]): row["unit"]
    for paper in PAPERS
    for row in report.read_claims(paper)
  }


def compared(name: str) -> list[Number]:
  """The published numbers of a method that have a verdict, not "not testable"."""
  return [n for n in numbers().get(name, ()) if n.answer.verdict in COMPARED]


# The page.


def _source_cell(row: Row) -> str:
  return row.source + (f": {row.read}" if row.read else "")


def _oracle_cell(row: Row) -> str:
  test = oracle(row)
  if not test:
    return "-"
  path, _, function = test.partition("::")
  others = len(find_oracles()[row.method]) - 1
  return f"[{function}](../{path})" + (f" and {others} more" if others > 0 else "")


def _numbers_cell(name: str) -> str:
  """How many published numbers there are, by verdict, and one of them."""
  all_numbers = numbers().get(name, [])
  if not all_numbers:
    return "-"
  counts = {
    verdict: sum(n.answer.verdict == verdict for n in all_numbers)
    for verdict in rule.VERDICTS
  }
  words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
  first = next(
    (n for n in all_numbers if n.answer.verdict in COMPARED[:3]), all_numbers[0]
  )
  quoted = sum(map(is_quoted, all_numbers))
  return (
    f"{words}{f' ({quoted} quoted, not read)' * bool(quoted)}; for example "
    f"{_describe(first)}"
  )


def _describe(number: Number) -> str:
  a = number.answer
  page = _page_of(number.paper, a.figure)
  place = " ".join(filter(None, (a.artifact, a.panel)))
  printed = f"{float(a.claim):.3g}" if len(a.claim) > 8 else a.claim
  unit = _units().get((number.paper, a.artifact, a.panel, a.method, a.metric), "")
  if unit == "fraction":
    printed = f"{100 * float(printed):g}"
  return (
    f"{place} {a.metric.removeprefix('test_').replace('_', ' ')} {printed}, ours "
    f"{a.ours}: {a.words} ([{number.paper}](results/{page}.md))"
  )


def _code_cell(row: Row) -> str:
  """The public code that a test plays beside ours."""
  if not row.code:
    return f"none found: {row.remark}" if row.remark else "-"
  path, _, function = row.replayed.partition("::")
  owner = "its authors'" if row.by == AUTHORS else "public"
  result = f"differs: {row.remark}" if row.remark else "equal"
  return f"{owner} `{row.code}@{row.commit[:8]}`, [{result}](../{path})"


def _studies_cell(name: str) -> str:
  return (
    ", ".join(
      f"[{page.removeprefix('beyond_').replace('_', ' ')}](results/{page}.md)"
      for page in studies().get(name, ())
    )
    or "-"
  )


def evidence_table() -> str:
  """A row for each method of evidence.csv."""
  rows = [
    [
      f'<span id="{row.method}"></span>[{registry.ALGORITHMS[row.method].label}]'
      f"(methods/{row.method}.md)",
      _source_cell(row),
      _oracle_cell(row),
      _numbers_cell(row.method),
      _code_cell(row),
      _studies_cell(row.method),
      row.looked,
    ]
    for row in read_rows()
  ]
  return markdown.table(
    [
      "method",
      "its paper was read",
      "test against an oracle",
      "published numbers",
      "public code beside ours",
      "studies",
      "last look",
    ],
    rows,
  )


def counts_line() -> str:
  """How many methods have which evidence, in a sentence that other pages quote."""
  rows = read_rows()

  def count(source: str) -> int:
    return sum(row.source == source for row in rows)

  return (
    f"Of {len(rows)} methods, {sum(bool(oracle(row)) for row in rows)} are tested "
    f"against an independent oracle, {sum(bool(compared(row.method)) for row in rows)} "
    "have a published number next to ours, and "
    f"{sum(bool(studies().get(row.method)) for row in rows)} are part of a study. "
    f"A test plays public code beside ours for {sum(bool(row.code) for row in rows)}. "
    f"{sum(bool(row.code or compared(row.method)) for row in rows)} have such code or "
    "a published number. "
    f"The paper was read as a whole for {count(ENTIRE)} and in part for "
    f"{count(PART)}. For {count(DESCRIPTION)} it was not read, and "
    f"{count(NO_PAPER)} have none."
  )


def source_of(name: str) -> str:
  """The line on the page of a method whose paper was not read; "" of others."""
  row = next(row for row in read_rows() if row.method == name)
  link = f"[Evidence](../evidence.md#{row.method})."
  if row.source == DESCRIPTION:
    return f"**The paper was not read.** The method follows {row.read}. {link}"
  return ""


def check() -> Iterator[str]:
  """What is wrong with evidence.csv, a line for each fault."""
  rows = read_rows()
  names = [row.method for row in rows]
  for name in registry.ALGORITHMS:
    if name not in names:
      yield f"method={name}: registered, and has no row; write one in docs/evidence.csv"
  for number, row in enumerate(rows, 2):
    place = f"row {number}, method={row.method}"
    if row.method not in registry.ALGORITHMS or names.count(row.method) > 1:
      yield f"{place}: must be a registered method, once"
    if row.source not in SOURCES:
      yield f"{place}, source={row.source}: must be one of {', '.join(SOURCES)}"
    if bool(row.read) != (row.source in (PART, DESCRIPTION)):
      yield f"{place}, read={row.read}: says what was read, of part and description"
    if not (ROOT / row.stated_in).is_file():
      yield f"{place}, stated_in={row.stated_in}: no such file"
    path, _, function = row.oracle.partition("::")
    if row.oracle:
      if find_oracles().get(row.method):
        yield f"{place}, oracle={row.oracle}: one is found by itself, leave it empty"
      elif function not in _module(ROOT / path).names:
        yield f"{place}, oracle={row.oracle}: no such test"
    yield from _check_code(row, place)


def _check_code(row: Row, place: str) -> Iterator[str]:
  """What is wrong with the columns of public code."""
  if not row.code:
    for column in ("commit", "by", "replayed"):
      if value := getattr(row, column):
        yield f"{place}, {column}={value}: needs code=OWNER/NAME"
    return
  if not re.fullmatch(r"[\w.-]+/[\w.-]+", row.code):
    yield f"{place}, code={row.code}: must be OWNER/NAME"
  if not re.fullmatch("[0-9a-f]{40}", row.commit):
    yield f"{place}, commit={row.commit}: must be 40 hexadecimal digits"
  if row.by not in (AUTHORS, OTHERS):
    yield f"{place}, by={row.by}: must be one of {AUTHORS}, {OTHERS}"
  path, _, function = row.replayed.partition("::")
  if not (ROOT / path).is_file() or function not in _module(ROOT / path).names:
    yield f"{place}, replayed={row.replayed}: no such test"
  elif not _module(ROOT / path).compares(function, row.method):
    yield f"{place}, replayed={row.replayed}: must use an oracle and name the method"
