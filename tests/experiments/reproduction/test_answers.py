"""Every number and sentence of a claims file gets an answer or a reason."""

import math
import pathlib
import re

import pytest

from experiments import publish
from experiments.reports import rule
from experiments.reproduction import (
  answers,
  chosen,
  claims_page,
  figures,
  report,
  suite,
)
from tests.experiments.reproduction import test_verdicts as sample_runs

pytestmark = pytest.mark.fast

POINTS = report.Claim("Fig1", "a", "A", "test_accuracy", 98.0, "%", "", None, "98.0")
ROUNDS = POINTS._replace(
  metric="rounds_to_98%", value=40.0, unit="rounds", printed="40"
)
NEVER = ROUNDS._replace(value=math.inf, printed=">100")


@pytest.mark.parametrize(
  "values,claim,verdict",
  [
    ([98.1, 98.2, 98.0], POINTS, "same"),
    ([98.9, 97.8], POINTS, "undecided"),
    ([98.9, 98.8, 98.9], POINTS, "above"),
    ([90.0], POINTS, "undecided"),
    ([39, 41, 40], ROUNDS, "same"),
    ([19, 21, 20], ROUNDS, "below"),
    ([39, math.inf, 41], ROUNDS, "undecided"),
    ([math.inf] * 3, ROUNDS, "above"),
    ([math.inf] * 3, NEVER, "same"),
    ([80, 81, 90], NEVER, "below"),
    ([80, math.inf], NEVER, "undecided"),
    ([math.inf], NEVER, "undecided"),
  ],
)
def test_numbers(values, claim, verdict):
  assert answers.answer_number(values, claim)[1] == verdict
  assert answers.answer_number(values, claim, [chosen.Choice("test", "l2")])[1] == (
    rule.NOT_COMPARABLE
  )


def test_a_verdict_on_what_is_never_reached_says_no_gap():
  """The table of the 2NN fails where a run misses its target."""
  text, verdict = answers.answer_number([math.inf] * 3, ROUNDS)
  answer = answers.PaperAnswer(
    "table", "Table1", "a", "A", "rounds_to_98%", "40", text, verdict, ""
  )
  assert answer.words(40.0, "rounds", is_own=True) == rule.words(
    "above", None, "rounds_to_98%", "rounds", True
  )


def test_a_size_needs_no_interval():
  devices = POINTS._replace(metric="devices", value=1000.0, unit="clients")
  assert answers.answer_number([1000], devices, exact=True)[1] == "same"
  assert answers.answer_number([200], devices, exact=True)[1] == "below"


def test_answers_of_a_figure_are_kept(tmp_path):
  runs = [
    sample_runs.rising("CLSFSVRG", 48),
    sample_runs.rising("CLSFSVRG", 20, protocol="stated"),
    sample_runs.rising("FedAvg", None),
  ]
  rows = answers.answer_numbers(
    "conjugate",
    "fig2",
    runs,
    {"rounds_to_98%": sample_runs.verdicts.rounds_until(0.98)},
  )
  by_method = {a.method: (a.claim, a.verdict) for a in rows}
  assert by_method == {
    "CLSFSVRG": ("48", "same"),
    "FedAvg": (">100", "same"),
    "CLSFSVRG (stated)": ("48", "below"),
  }
  path = tmp_path / "a.csv"
  path.write_text(answers.answers_csv(rows))
  assert answers.read_answers(path) == rows
  assert [a.of for a in rows if "(" in a.method] == [("CLSFSVRG", "stated")]
  assert not answers.read_answers(tmp_path / "none.csv")


def row_of(rows, **key):
  (row,) = [
    r for r in rows if all(r.claim[name] == value for name, value in key.items())
  ]
  return row


def test_rows_of_a_claims_file():
  answer = answers.PaperAnswer(
    "fig1",
    "Fig1",
    "a",
    "MA-FSVRG",
    "test_accuracy",
    "98.2",
    "98.4 +- 0.1",
    rule.SAME,
    "validation: l2",
  )
  stated = answer._replace(
    method="MA-FSVRG (stated)", ours="46.7", verdict=rule.BELOW, settings="stated"
  )
  sentences = [
    answers.PaperAnswer(
      f"fig{n}",
      f"Fig{n}",
      "",
      method,
      "",
      text,
      "+1",
      verdict,
      "" if method else chosen.TUNED,
    )
    for n, method, text, verdict in (
      (1, "", "GA-FSVRG above MA-FSVRG ...", "holds"),
      (2, "", "both above every other ...", "holds"),
      (
        2,
        sample_runs.verdicts.PAPERS_OWN,
        "both above every other ...",
        "does not hold",
      ),
      (5, "", "both above every other ...", "does not hold"),
    )
  ]
  rows = claims_page.claim_rows(
    "diversified",
    ("MA-", "GA-"),
    [answer, stated, *sentences],
    {"Fig3": "Fig1", "Fig4": "Fig1"},
  )
  row = row_of(rows, artifact="Fig1", panel="a", method="MA-FSVRG")
  assert (row.words, row.ours, row.kind) == ("reaches", "98.4 +- 0.1", "own")
  assert row.stated == "46.7: short by 51.5" and row.tried
  # Micro recall and micro F1 of the same runs are the accuracy.
  assert row.printed == ("97 (Fig3)", "96.5 (Fig4)")
  assert not [r for r in rows if r.claim["artifact"] == "Fig3" and r.kind == "own"]
  sentence = row_of(rows, artifact="Fig1-4")
  assert (sentence.words, sentence.verdict) == ("holds", "holds")
  assert sentence.stated.endswith("+1: does not hold")
  assert row_of(rows, artifact="Fig5-7").words == "fails: method short"
  assert (
    row_of(rows, artifact="Fig1", panel="a", method="GA-FSVRG").verdict == rule.NOT_RUN
  )
  tuned, by_paper, no_run = (
    [part.strip() for part in line.split("|")[1:-1]]
    for line in claims_page._head({"diversified": rows}).splitlines()[2:]
  )
  assert tuned == ["diversified, tuned", "1", "0", "0", "0", "0", "1", "0", "1", "0"]
  assert by_paper == [
    "diversified, stated",
    "0",
    "0",
    "1",
    "0",
    "0",
    "0",
    "0",
    "1",
    "-",
  ]
  assert no_run[:5] == ["diversified, no run", "0", "0", "0", "0"]
  # A baseline above its number is stronger here, and no failure of anybody.
  above = answer._replace(verdict=rule.ABOVE)
  baseline = row_of(
    claims_page.claim_rows("diversified", ("X",), [above]),
    artifact="Fig1",
    panel="a",
    method="MA-FSVRG",
  )
  assert (baseline.kind, baseline.words) == ("other", "baseline stronger here, by 0.2")


@pytest.mark.parametrize(
  "verdict, metric, unit, is_own, never, words",
  [
    ("same", "accuracy", "%", True, False, "reaches"),
    ("above", "accuracy", "%", True, False, "exceeds by 2.0"),
    ("below", "accuracy", "%", True, False, "short by 2.0"),
    ("undecided", "accuracy", "%", True, False, "open"),
    ("same", "accuracy", "%", False, False, "as printed"),
    ("same", "rounds_to_98%", "rounds", True, True, "as printed"),
    ("below", "rounds_to_98%", "rounds", True, True, "gets there"),
    ("above", "accuracy", "%", False, False, "baseline stronger here, by 2.0"),
    ("below", "accuracy", "%", False, False, "weaker here too, by 2.0"),
    ("below", "rounds_to_98%", "rounds", True, False, "sooner by 2 rounds"),
    ("above", "rounds_to_98%", "rounds", True, False, "later by 2 rounds"),
    (
      "below",
      "rounds_to_98%",
      "rounds",
      False,
      False,
      "baseline stronger here: sooner by 2 rounds",
    ),
    (
      "below",
      "rounds_to_98%",
      "rounds",
      False,
      True,
      "baseline stronger here: gets there",
    ),
    ("below", "loss", "", True, False, "lower by 2"),
    ("below", "communication_cost", "KB", True, False, "cheaper by 2"),
    ("not comparable", "accuracy", "%", True, False, "not comparable"),
  ],
)
def test_verdicts_in_words(verdict, metric, unit, is_own, never, words):
  assert rule.words(verdict, 2.0, metric, unit, is_own, never) == words


def test_of_several_panels_the_ends_are_shown():
  """A cell of the page has the least and the greatest difference alone."""
  ours = (
    "a: GA-FSVRG - SCAFFOLD -0.24 +- 0.43; b: CLS-0.1 - CLS-1 +0.80 +- "
    "0.10; c: FedAvg - FedProx -3.00 +- 0.20"
  )
  assert claims_page._finding(ours) == (
    "c: FedAvg - FedProx -3.00 +- 0.20 to b: CLS-0.1 - CLS-1 +0.80 +- 0.10"
  )
  assert claims_page._finding("a: x; b: +2; c: +3") == "a: x; b: +2; c: +3"


def test_a_figure_that_goes_further_than_the_papers_counts_first():
  """Unless it cannot be compared, or was not run."""
  answer = answers.PaperAnswer(
    "table3",
    "Table3",
    "a",
    "FG-EDC",
    "test_accuracy_max",
    "96.0",
    "95.4",
    rule.UNDECIDED,
    "stated",
  )
  nine = answer._replace(figure="table3_mnist", ours="96.1", verdict=rule.SAME)
  for verdict, ours in (
    (rule.SAME, "96.1"),
    (rule.UNDECIDED, "96.1"),
    (rule.NOT_RUN, "95.4"),
    (rule.NOT_COMPARABLE, "95.4"),
  ):
    row = row_of(
      claims_page.claim_rows(
        "fedgroup", ("FG-EDC",), [answer, nine._replace(verdict=verdict)]
      ),
      artifact="Table3",
      panel="a",
      method="FG-EDC",
      metric="test_accuracy_max",
    )
    assert row.ours == ours
  # So it does for a sentence, even to one that it does not decide.
  sentence = answer._replace(
    panel="",
    method="",
    metric="",
    ours="+5 +- 4",
    claim="FG-EDC is 6.9 points above FeSEM on MNIST-MCLR",
  )
  for verdict, ours in (
    ("does not hold", "+5.5"),
    (rule.UNDECIDED, "+5.5"),
    (rule.NOT_RUN, "+5 +- 4"),
  ):
    for order in (1, -1):
      row = row_of(
        claims_page.claim_rows(
          "fedgroup",
          ("FG-EDC",),
          [
            sentence._replace(verdict="holds"),
            sentence._replace(figure="table3_mnist", ours="+5.5", verdict=verdict),
          ][::order],
        ),
        artifact="Abstract",
        value="6.9",
      )
      assert row.ours == ours
      assert row.verdict == ("holds" if verdict == rule.NOT_RUN else verdict)


@pytest.mark.parametrize("name", publish.CLAIMED)
def test_no_row_is_silent(name):
  """Without a run each row says what was tried or why it has no number."""
  paper = publish.PAPERS[name]
  texts = [s.text for figure in paper.figures.values() for s in figure.statements]
  rows = claims_page.claim_rows(name, paper.own, [])
  assert all(row.tried or row.verdict != rule.NOT_RUN for row in rows)
  assert {row.verdict for row in rows} <= {rule.NOT_COMPARABLE, rule.NOT_RUN, "lost"}
  for pattern in report.read_claims(name, "judged"):
    if pattern["kind"] == "sentences" and pattern["artifact"] not in (
      "Fig7",
      "Fig8",
      "Fig5",
      "Intro",
    ):
      for word in pattern["text"].split(" & "):
        start = word.rpartition("|")[2]
        assert any(text.startswith(start) for text in texts), start


DOCS = pathlib.Path(__file__).parents[3] / "docs"


def claim_rows():
  """paper -> the rows of the page of claims, from the answers."""
  return {
    name: claims_page.claim_rows(
      name,
      paper.own,
      answers.read_answers(DOCS / "results" / f"{name}.answers.csv"),
      paper.same_runs,
      paper.balanced,
    )
    for name, paper in publish.PAPERS.items()
    if name in publish.CLAIMED
  }


def test_the_published_tables_are_those_of_the_answers():
  """README's table, too, and each measurement is counted once."""
  tables = claim_rows()
  head = claims_page._head(tables)
  readme = (DOCS.parent / "README.md").read_text("utf-8")
  assert head in readme and readme.count("| paper, settings |") == 1
  assert (DOCS / "results" / "claims.md").read_text("utf-8") == (
    claims_page.claims_text(tables)
  )
  lines = [
    [part.strip() for part in line.split("|")[1:-1]] for line in head.splitlines()[2:]
  ]
  for name, rows in tables.items():
    counts = [line for line in lines if line[0].startswith(f"{name}, ")]
    assert sum(int(n) for line in counts for n in line[1:6]) == sum(
      1 + bool(row.stated) for row in rows if row.kind == "own"
    )


@pytest.mark.parametrize("words", claims_page._REACHED)
def test_what_is_reached_is_a_number(words):
  """A method that gets there where the paper's does not reaches none."""
  assert claims_page._standing(words) == "reached"
  assert claims_page._standing("gets there") == "gets there"


def cells_of(name, figure):
  """The runs of a figure with their own settings, by panel and label."""
  paper = publish.PAPERS[name]
  request = figures.Request(pathlib.Path("out"), (), "")
  return {
    (cell.panel, cell.name): cell
    for cell in figures._each_cell(paper, paper.figures[figure], request)
  }


#: Figures of which nothing, a part or everything is tuned.
@pytest.mark.parametrize(
  "name, figure",
  [
    ("fedgroup", "table1"),
    ("fedgroup", "table3"),
    ("fedgroup", "fig3"),
    ("fedgroup", "table3_mnist"),
    ("analytic", "fig5"),
    ("analytic", "fig6"),
    ("analytic", "table2"),
    ("conjugate", "fig2"),
    ("conjugate", "fig4"),
    ("diversified", "fig8"),
  ],
)
def test_published_labels_are_what_the_flag_files_declare(name, figure):
  """Nothing is called tuned of which nothing was tuned."""
  cells = cells_of(name, figure)
  records = [
    a
    for a in answers.read_answers(DOCS / "results" / f"{name}.answers.csv")
    if a.figure == figure
  ]
  for answer in records:
    if answer.metric:
      cell = cells[answer.panel, answer.method]
      assert answer.tuning == cell.tuning
      if "stand-in" not in answer.settings:  # by a flag of the command
        assert answer.settings == chosen.describe(cell.choices)
  tunings = {
    cell.label: cell.tuning for cell in cells.values() if cell.protocol == suite.TUNED
  }
  labels = {a.tuning for a in records if not a.metric and not a.method}
  assert labels <= {*tunings.values(), chosen.tuning_of_several(tunings.values())}
  if len({*tunings.values()}) == 1:
    assert labels <= {*tunings.values()}
  text = "".join(
    path.read_text("utf-8") for path in (DOCS / "results").glob(f"{name}*.md")
  )
  part = text.partition(f"<!-- {figure} -->")[2].partition(
    "<details><summary>How this"
  )[0]
  for label, word in re.findall(
    r"^\| ([^|]*), (tuned|stated|not tuned|tuned in part) \|", part, re.M
  ):
    assert word in {tunings.get(label), suite.STATED}, label
  heads = re.findall(r"^\| what is said \| (.*?) \|", part, re.M)
  assert all(head in (*labels, "ours") for head in heads)
