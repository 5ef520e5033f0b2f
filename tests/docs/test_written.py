"""What docs/make_pages.py writes of the results: evidence, and which method when."""

import csv
import importlib
import pathlib
import re
import sys

import pytest

from experiments.reports import rule
from fedjax_alg import registry
from fedjax_alg.runs import advise

pytestmark = pytest.mark.fast

ROOT = pathlib.Path(__file__).parents[2]
DOCS, RESULTS = ROOT / "docs", ROOT / "docs" / "results"


@pytest.fixture(scope="module", name="modules")
def fixture_modules():
  """name -> module of docs/_extensions, which import each other."""
  folder = str(DOCS / "_extensions")
  sys.path.insert(0, folder)
  yield {name: importlib.import_module(name) for name in ("evidence", "choosing")}
  sys.path.remove(folder)


@pytest.fixture(scope="module", name="evidence")
def fixture_evidence(modules):
  return modules["evidence"]


@pytest.fixture(scope="module", name="choosing")
def fixture_choosing(modules):
  return modules["choosing"]


def rows_of(path):
  with path.open(newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


def test_every_page_of_a_method_has_its_parts(modules):
  """``make_pages`` only renews what stands in a page."""
  for page in sorted((DOCS / "methods").glob("*.md")):
    name, text = page.stem, page.read_text("utf-8")
    parts = re.findall(r"^<!-- generated: (\w+)", text, re.M)
    source = ["source"] * bool(modules["evidence"].source_of(name))
    assert sorted(parts) == sorted(["method", "studies", *source]), name


def test_the_tables_of_the_advice_are_up_to_date(choosing):
  """Else fa.advise says something else than the pages; python docs/make_pages.py."""
  assert advise.PANELS.read_text("utf-8") == choosing.panels_csv()
  assert advise.GAINS.read_text("utf-8") == choosing.gains_csv()


def test_every_method_has_evidence(evidence):
  assert not list(evidence.check())


def test_the_readme_says_how_many_methods_have_which_evidence(evidence):
  """ "63 algorithms" alone says nothing of what stands behind them."""
  readme = (ROOT / "README.md").read_text("utf-8")
  counts = evidence.counts_line()
  count, tested, compared, studied = re.findall(r"\d+", counts)[:4]
  assert count == tested and (
    f"All are tested against an independent computation, {compared} have published "
    f"numbers next to ours, {studied} are in studies" in readme
  )


@pytest.mark.parametrize(
  "column, value, message",
  [
    ("method", "fedfoo", "method=fedfoo: must be a registered method, once"),
    ("source", "all", "source=all: must be one of whole, part, description"),
    ("read", "", "read=: says what was read"),
    ("stated_in", "docs/none.md", "stated_in=docs/none.md: no such file"),
    ("oracle", "tests/a.py::b", "oracle=tests/a.py::b: one is found by itself"),
    ("commit", "1234", "commit=1234: must be 40 hexadecimal digits"),
    ("by", "me", "by=me: must be one of authors, others"),
    (
      "replayed",
      "tests/algorithms/test_cfl.py::test_rounds_are_the_oracles_when_all_come",
      "must use an oracle and name the method",
    ),
  ],
)
def test_a_wrong_row_is_named(evidence, monkeypatch, column, value, message):
  """With its number, its column, its value and what is allowed."""
  rows = evidence.read_rows()
  at = next(i for i, row in enumerate(rows) if row.method == "feddyn")
  rows[at] = rows[at]._replace(**{column: value})
  monkeypatch.setattr(evidence, "read_rows", lambda: rows)
  faults = list(evidence.check())
  assert any(message in fault and f"row {at + 2}" in fault for fault in faults)


def test_a_registered_method_without_a_row_is_refused(evidence, monkeypatch):
  faults = list(evidence.check())
  rows = [row for row in evidence.read_rows() if row.method != "fedavg"]
  monkeypatch.setattr(evidence, "read_rows", lambda: rows)
  new = [fault for fault in evidence.check() if fault not in faults]
  assert new == [
    "method=fedavg: registered, and has no row; write one in docs/evidence.csv"
  ]


def test_the_oracle_tests_are_there_and_use_an_oracle(evidence):
  """By text: the file imports tests.reference, and has the test and the method."""
  tests_of = evidence.find_oracles()
  assert sum(bool(tests) for tests in tests_of.values()) > 50
  for name, tests in tests_of.items():
    assert name in registry.ALGORITHMS
    for test in tests:
      path, _, function = test.partition("::")
      text = (ROOT / path).read_text("utf-8")
      assert "from tests.reference" in text and f"def {function}(" in text
      assert f'"{name}"' in text
  for row in evidence.read_rows():
    path, _, function = evidence.oracle(row).partition("::")
    assert f"def {function}(" in (ROOT / path).read_text("utf-8"), row.method


def test_a_test_without_an_oracle_is_none(evidence, tmp_path):
  path = tmp_path / "test_a.py"
  path.write_text(
    "import pytest\nfrom tests.reference import diversified as oracle\n"
    "def helper():\n  return oracle.x\n"
    "@pytest.fixture(name='state')\ndef fixture_state():\n  return helper()\n"
    "@pytest.mark.parametrize('name', ['ifca', 'cfl'])\n"
    "def test_with(name, state):\n  assert state\n"
    "def test_without():\n  assert 'ifca'\n"
  )
  module = evidence._Module(path)
  assert module.compares("test_with", "cfl") and module.compares("test_with", "ifca")
  assert not module.compares("test_with", "fedavg")
  assert not module.compares("test_without", "ifca")


def test_the_counts_are_those_of_the_table(evidence):
  """Counted again from the cells that a reader sees."""
  page = (DOCS / "evidence.md").read_text("utf-8")
  rows = [
    line.strip("|").split(" | ")
    for line in page.splitlines()
    if line.startswith("| <span")
  ]
  numbers = list(map(int, re.findall(r"\d+", evidence.counts_line())))
  sources = [row[1].partition(":")[0].strip() for row in rows]
  decided = re.compile(rf"\d+ (?:{'|'.join(evidence.COMPARED)})\b")
  assert numbers == [
    len(rows),
    sum(row[2] != "-" for row in rows),
    sum(bool(decided.match(row[3].strip())) for row in rows),
    sum(row[5] != "-" for row in rows),
    sum("@" in row[4] for row in rows),
    sum("@" in row[4] or bool(decided.match(row[3].strip())) for row in rows),
    *(sources.count(word) for word in ("whole", "part", "description", "no paper")),
  ]
  assert sum(numbers[6:]) == len(rows) == len(evidence.read_rows())


def test_published_numbers_are_those_of_the_answers(evidence):
  """FedProx in the table of FedExP's notebook, from the csv of the answers."""
  answers = [
    row
    for row in rows_of(RESULTS / "trust.answers.csv")
    if row["figure"] == "fedexp" and row["method"] == "FedProx"
  ]
  tests_of = [
    n.answer
    for n in evidence.numbers()["fedprox"]
    if (n.paper, n.answer.figure) == ("trust", "fedexp")
  ]
  assert [(a.metric, a.ours) for a in tests_of] == [
    (row["metric"], row["ours"]) for row in answers
  ]
  # Our labels of FedGroup's variants are not its name in the registry.
  labels = {n.answer.method for n in evidence.numbers()["fedgroup"]}
  assert {"FG-EDC", "FG-MADC"} <= labels
  # A number that another protocol has is none that was compared.
  assert not evidence.compared("afl")
  assert all(n.answer.verdict != rule.NOT_TESTABLE for n in evidence.compared("fedavg"))


def test_a_paper_that_was_not_read_is_said_first(evidence):
  """Before the first formula of the page; and on no other page."""
  for row in rows_of(DOCS / "evidence.csv"):
    text = (DOCS / "methods" / f"{row['method']}.md").read_text("utf-8")
    first = text.partition("$$")[0]
    unread = row["source"] == "description"
    assert ("**The paper was not read" in first) == unread, row["method"]
    assert not unread or row["read"] in first


# Which method when.

STUDIES = {"map": "beyond_map", "board": "beyond_board"}


@pytest.mark.parametrize("study", STUDIES)
def test_gains_are_those_of_the_csv(choosing, study):
  """The page has the interval of paired gaps, which the csv lacks; means are there."""
  ours = {
    (row["title"], row["method"]): float(row["ours"])
    for row in rows_of(RESULTS / f"{STUDIES[study]}.csv")
  }
  gains = {"map": choosing.map_gains, "board": choosing.board_gains}[study]()
  assert len(gains) == sum(method != "FedAvg" for _, method in ours)
  drift = 0
  for gain in gains:
    title = f"{gain.place}, {gain.situation}" if study == "map" else gain.place
    if gain.situation == "drift":  # the page has all steps, the csv the last one
      drift += 1
      continue
    expected = ours[title, gain.label] - ours[title, "FedAvg"]
    assert gain.points.mean == pytest.approx(expected, abs=0.0051), (title, gain.label)
  assert drift == (51 if study == "map" else 0)


def test_no_recommendation_contradicts_the_map(choosing):
  """methods.md once named MA-FSVRG for kinds, FedDrift for drift, FedProx for skew."""
  ours = {
    (row["title"], row["method"]): float(row["ours"])
    for row in rows_of(RESULTS / "beyond_map.csv")
  }
  places = {title.split(", ")[0] for title, _ in ours}
  for situation in {title.split(", ", 1)[1] for title, _ in ours} - {"drift"}:
    titles = [
      f"{p}, {situation}" for p in places if (f"{p}, {situation}", "FedAvg") in ours
    ]
    for label in choosing.recommended(situation):
      assert all(ours[title, label] > ours[title, "FedAvg"] for title in titles)
    for label in choosing.harmful(situation):
      assert all(ours[title, label] < ours[title, "FedAvg"] for title in titles)
  for label, situations in {
    "MA-FSVRG": ("rotated images", "permuted labels", "two sources", "drift"),
    "FedDrift": ("drift",),
    "FedProx": ("two classes", "Dirichlet 0.1", "rotated images"),
    "PACFL": ("permuted labels",),
  }.items():
    assert not any(label in choosing.recommended(s) for s in situations), label
  # In the first table of methods.md a row of the map names its methods alone.
  table = choosing.needs_table()
  (row,) = [line for line in table.splitlines() if "concept drift" in line]
  assert re.findall(r"methods/(\w+)\.md", row)[0] == "ifca" and "feddrift" not in row
  (row,) = [line for line in table.splitlines() if "rotated images |" in line]
  assert "ma_fsvrg" not in row and "pacfl" in row


def test_nothing_is_recommended_without_a_clear_gain(choosing):
  assert choosing.recommended("noisy images") == []
  (row,) = [r for r in choosing.kinds_table().splitlines() if r.startswith("| noisy")]
  assert "[FedAvg]" in row and "nothing gains clearly" in row


def test_the_part_of_a_method_has_its_numbers(choosing):
  """Of every study: map, board, acceleration, family and late; and of none."""
  ours = {
    (row["title"], row["method"]): float(row["ours"])
    for row in rows_of(RESULTS / "beyond_map.csv")
  }
  head, _, *rows = choosing.method_part("ifca").splitlines()[2:]
  places = [cell.strip() for cell in head.strip("|").split("|")][1:]
  (row,) = [row for row in rows if "[rotated images]" in row]
  for number, place in zip(row.strip("|").split("|")[1:], places, strict=True):
    title = f"{place}, rotated images"
    gain = ours[title, "IFCA"] - ours[title, "FedAvg"]
    assert float(number.strip(" *")) == pytest.approx(gain, abs=0.051)
  for name, words in {
    "ifca": "beyond_board.md",
    "scaffold": "beyond_acceleration.md",
    "afl": "beyond_family.md",
    "fedbuff": "beyond_late.md",
    "feddyn": "no comparison with it yet",
  }.items():
    assert words in choosing.method_part(name)


def test_a_page_without_its_table_is_refused(choosing):
  with pytest.raises(ValueError, match="no table with the columns"):
    choosing.read_table("beyond_map", "clients differ by", "no such column")
