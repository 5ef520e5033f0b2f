"""Every number and sentence of a claims file gets an answer or a reason."""

import collections
import csv
import functools
import math
import pathlib
import re
import statistics

import numpy as np
import pytest

from experiments import publish
from experiments.reports import rule
from experiments.reproduction import (
  answers,
  chosen,
  claims_page,
  figures,
  pages,
  report,
  suite,
  verdicts,
)
from fedjax_alg import metrics
from tests.each import each
from tests.experiments.reproduction import test_verdicts as sample_runs

pytestmark = pytest.mark.fast

POINTS = report.Claim("Fig1", "a", "A", "test_accuracy", 98.0, "%", "", None, "98.0")
ROUNDS = POINTS._replace(
  metric="rounds_to_98%", value=40.0, unit="rounds", printed="40"
)
NEVER = ROUNDS._replace(value=math.inf, printed=">100", not_in=100)
#: FedAvg's rounds to 98 % at 5 % of the clients, in nine runs of three partitions.
LATE = [[84, 77, 82], [100, 73, 79], [75, 80, 83]]


@each(
  "values,claim,verdict",
  [
    ([98.1, 98.2, 98.0], POINTS, "reached"),
    # Further than 0.3 points, but inside the interval of one draw, which is
    # narrow enough; the interval of the mean, 0.12, leaves it out.
    ([97.6, 97.8, 97.5, 97.8, 97.55, 97.75], POINTS, "reached"),
    # Outside of the interval of the mean, 0.29, and inside that of one draw.
    ([97.2, 97.6, 97.0, 97.7, 97.3, 97.5], POINTS, "undecided: wide interval"),
    # Three partitions of two seeds.
    ([[97.1, 97.2], [97.2, 97.1], [97.1, 97.1]], POINTS, "worse by 0.9"),
    ([98.9, 97.8], POINTS, "undecided: wide interval"),
    ([98.9, 98.8, 98.9], POINTS, "better by 0.9"),
    ([97.1, 97.2, 97.1], POINTS, "worse by 0.9"),
    ([90.0], POINTS, "undecided: one run"),
    ([39, 41, 40], ROUNDS, "reached"),
    ([19, 21, 20], ROUNDS, "better by 20 rounds"),
    ([59, 61, 60], ROUNDS, "worse by 20 rounds"),
    ([39, math.inf, 41], ROUNDS, "undecided: some runs only"),
    ([math.inf] * 3, ROUNDS, "worse: never in these rounds"),
    ([math.inf] * 3, NEVER, "reached: never, as printed"),
    ([60, 61, 63], NEVER, "better: other than printed"),
    # The interval of one draw, 32.9, goes on to round 114.
    (LATE, NEVER, "undecided: wide interval"),
    ([80, math.inf], NEVER, "undecided: some runs only"),
    # What comes after the rounds of the claim is never in them.
    ([120, 130, math.inf], NEVER, "reached: never, as printed"),
    ([80, 81, 120], NEVER, "undecided: some runs only"),
    ([math.inf], NEVER, "undecided: one run"),
  ],
)
def test_numbers(values, claim, verdict):
  """One rule gives the verdict and its reason, whatever the number is."""
  assert rule.words(*report.answer_number(values, claim)[1:3]) == verdict
  assert report.answer_number(values, claim, [chosen.Choice("test", "l2")])[1:3] == (
    rule.NOT_TESTABLE,
    "settings chosen on test data",
  )


def test_the_tie_is_wider_on_two_data_sets():
  """The thresholds of docs/papers/readings.md: 0.5 on CIFAR-10 and FEMNIST."""
  values = [98.39, 98.41, 98.40]
  assert report.answer_number(values, POINTS)[1] == rule.BETTER
  for data in ("cifar10", "femnist"):
    assert report.answer_number(values, POINTS, data=data)[1] == rule.REACHED


def test_the_thresholds_are_the_registered_ones():
  """The page of the readings says 0.3 (0.5) points and an interval below 1."""
  line = next(
    line
    for line in (DOCS / "papers" / "readings.md").read_text("utf-8").splitlines()
    if line.startswith("| reaches its number |")
  )
  assert re.findall(r"[\d.]+", line) == ["0.3", "0.5", "10", "95", "1"]
  assert rule.tie_of(98.0, "%") == 0.3 and rule.tie_of(9.0, "%", "cifar10") == 0.5
  assert 2 * rule.widest_of(98.0, "%") == pytest.approx(1.0)


@pytest.mark.parametrize(
  "partitions, seeds, repeats", [(3, 1, 1), (9, 3, 1), (4, 2, 3)]
)
def test_a_prediction_holds_19_of_20_draws(partitions, seeds, repeats):
  """A rule with the interval of the mean would call most of them better or worse."""
  rng = np.random.default_rng(0)
  trials, of_partition, of_seed = 4000, 0.8, 0.6
  hits = 0
  for _ in range(trials):
    middle = rng.normal(0, of_partition, (partitions, 1))
    values = middle + rng.normal(0, of_seed, (partitions, seeds))
    drawn = rng.normal(0, math.hypot(of_partition, of_seed), repeats).mean()
    prediction = rule.predict(list(values), repeats)
    hits += abs(prediction.mean - drawn) <= prediction.draw95
  assert 0.94 <= hits / trials <= 0.975


def test_seeds_that_agree_leave_the_factor_of_the_partitions():
  """V-1 of docs/papers/readings.md: half the width times sqrt(n + 1)."""
  values = [np.full(3, value) for value in (97.0, 97.4, 98.1)]
  prediction = rule.predict(values)
  assert prediction.draw95 == pytest.approx(2 * prediction.ci95)


def test_a_mean_of_several_runs_is_compared_with_such_a_mean():
  """V-2, also in the table beside a page; no claim said of how many runs it is."""
  claim, parts = POINTS._replace(repeats=5), [[97.0], [97.4], [98.1]]
  answer = report.answer_number(parts, claim)
  assert answer.draw95 == pytest.approx(answer.ci95 * math.sqrt(3 / 5 + 1))
  arrays = tuple(map(np.array, parts))
  runs = sample_runs.pool(*(sample_runs.flat("A", 0.97) for _ in parts))
  row = report.PaperComparison(runs, "accuracy", arrays, claim)
  assert row.prediction.draw95 == answer.draw95
  # The papers that say so, and what is published beside their numbers.
  for name, artifact, runs_of in (
    ("analytic", "Fig6", 5),
    ("analytic", "Table2", 5),
    ("trust", "tamuna", 3),
    ("trust", "afl", 5),
  ):
    repeats = {
      c.repeats for c in report.load_claims(name, artifact) if c.unit in ("%", "")
    }
    assert repeats == {runs_of}
    for a in answers.read_answers(DOCS / "results" / f"{name}.answers.csv"):
      if a.artifact == artifact and not math.isnan(a.draw95):
        factor = math.sqrt(3 / runs_of + 1)
        assert a.draw95 == pytest.approx(factor * a.ci95, rel=1e-3)


def test_one_partition_decides_only_what_is_far_off():
  """Its seeds say nothing of the spread over partitions (V-3)."""
  near, far = [97.2, 97.0, 97.1], [91.2, 91.0, 91.1]

  def words(values, **options):
    return rule.words(*report.answer_number(values, POINTS, **options)[1:3])

  assert words(near, has_one_partition=True) == "undecided: one partition"
  assert words(near) == "worse by 0.9"
  same = [97.875, 98.125, 98.0]
  assert words(same, has_one_partition=True) == "undecided: one partition"
  assert words(same) == "reached"
  assert words(far, has_one_partition=True) == "worse by 6.9"
  assert words([math.inf] * 3, has_one_partition=True) == "undecided: one partition"
  early = report.answer_number([60, 61, 63], NEVER, has_one_partition=True)
  assert early[1:3] == ("undecided", "one partition")


def test_rounds_of_a_claim_of_never_have_the_interval_of_one_draw():
  """It decides them, and was not published beside them."""
  answer = report.answer_number(LATE, NEVER)
  assert answer.mean + answer.draw95 == pytest.approx(114.4, abs=0.1)


def test_a_size_needs_no_interval():
  devices = POINTS._replace(metric="devices", value=1000.0, unit="clients")
  assert report.answer_number([1000], devices, exact=True)[1] == rule.REACHED
  assert report.answer_number([200], devices, exact=True)[1] == rule.WORSE


def test_answers_of_a_figure_are_kept(tmp_path):
  runs = [
    sample_runs.pool(run, run)
    for run in (
      sample_runs.rising("CLSFSVRG", 48),
      sample_runs.rising("CLSFSVRG", 20, protocol="stated"),
      sample_runs.rising("FedAvg", None),
    )
  ]
  rows = answers.answer_numbers(
    "conjugate",
    "fig2",
    runs,
    {"rounds_to_98%": verdicts.rounds_until(0.98)},
  )
  by_method = {(a.method, a.protocol): (a.claim, a.verdict) for a in rows}
  assert by_method == {
    ("CLSFSVRG", "tuned"): ("48", "reached"),
    ("FedAvg", "tuned"): (">100", "reached"),
    ("CLSFSVRG", "stated"): ("48", "better"),
  }
  path = tmp_path / "a.csv"
  path.write_text(answers.answers_csv(rows))
  assert answers.answers_csv(answers.read_answers(path)) == answers.answers_csv(rows)
  ours, stated, never = answers.read_answers(path)
  assert (ours.mean, ours.ci95, ours.values) == (48.0, 0.0, ((48.0, 48.0),) * 2)
  assert stated.tuning == "stated" and stated.mean == 20.0
  assert never.ours == "never in 4 runs" and never.values == ((math.inf,) * 2,) * 2
  assert math.isnan(never.mean) and math.isnan(never.ci95)
  assert not answers.read_answers(tmp_path / "none.csv")


def test_rounds_that_were_not_run_decide_nothing():
  """With --scale=quick the target is not reached in the rounds of the claim."""

  def answers_of(end, at=None):
    runs = [
      sample_runs.rising(label, at, end=end, seeds=3)
      for label in ("CLSFSVRG", "FedAvg")
    ]
    runs = [sample_runs.pool(run, run) for run in runs]
    measures = {"rounds_to_98%": verdicts.rounds_until(0.98)}
    rows = answers.answer_numbers("conjugate", "fig2", runs, measures)
    return {row.claim: (row.verdict, row.reason) for row in rows}

  not_run = (rule.NOT_TESTABLE, rule.NOT_RUN)
  assert answers_of(30) == {"48": not_run, ">100": not_run}
  worse = (rule.WORSE, "never in these rounds")
  assert answers_of(60) == {"48": worse, ">100": not_run}
  assert answers_of(60, at=20)["48"] == (rule.BETTER, "by 28 rounds")


def measurement(words, *place, **numbers):
  return verdicts.Measurement(words, place, **numbers)


def test_measurements_of_a_sentence_are_kept(tmp_path):
  """The numbers behind the words, of all panels, and what is said of all."""
  sentence = answers.PaperAnswer(
    *("fig2", "Fig2", "", "", "", "A is first", "in words", rule.WORSE, "", ""),
    measurements=(
      measurement("+1.25 +- 0.50", "a", "A", mean=1.25, ci95=0.5, of="A - B"),
      measurement("0.0 s", "a", "B", mean=0.0, unit="s"),
      measurement("3, - against 4, 5", "b", values=((3.0, math.inf), (4.0, 5.0))),
    ),
    note="(else: reached)",
  )
  path = tmp_path / "a.csv"
  path.write_text(answers.answers_csv([sentence]))
  (read,) = answers.read_answers(path)
  assert repr(read) == repr(sentence)


def row_of(rows, **key):
  (row,) = [
    r for r in rows if all(r.claim[name] == value for name, value in key.items())
  ]
  return row


ABOVE_MA = "GA-FSVRG above MA-FSVRG"
ABOVE_ALL = "both above every other method at every rate"


def test_rows_of_a_claims_file():
  answer = answers.PaperAnswer(
    "fig1",
    "Fig1",
    "a",
    "MA-FSVRG",
    "test_accuracy",
    "98.2",
    "98.4 +- 0.1",
    rule.REACHED,
    "",
    "validation: l2",
    tuning=chosen.TUNED,
  )
  stated = answer._replace(
    protocol=suite.STATED,
    tuning=suite.STATED,
    ours="46.7",
    verdict=rule.WORSE,
    reason="by 51.5",
    settings="stated",
  )
  sentences = [
    answers.PaperAnswer(
      f"fig{n}",
      f"Fig{n}",
      "",
      "",
      "",
      text,
      "+1",
      verdict,
      "",
      "",
      protocol=protocol,
      tuning=protocol,
      measurements=(measurement("+1", mean=1.0),),
    )
    for n, protocol, text, verdict in (
      (1, suite.TUNED, f"{ABOVE_MA} at every rate (deviation)", rule.REACHED),
      (2, suite.TUNED, ABOVE_ALL, rule.REACHED),
      (2, verdicts.PAPERS_OWN, ABOVE_ALL, rule.WORSE),
      (5, suite.TUNED, ABOVE_ALL, rule.WORSE),
    )
  ]
  rows = claims_page.claim_rows(
    "diversified",
    ("MA-", "GA-"),
    [answer, stated, *sentences],
    {"Fig3": "Fig1", "Fig4": "Fig1"},
  )
  row = row_of(rows, artifact="Fig1", panel="a", method="MA-FSVRG")
  assert row.kind == "own" and row.tried
  assert (row.answer.words, row.answer.ours) == ("reached", "98.4 +- 0.1")
  assert (row.stated.ours, row.stated.words) == ("46.7", "worse by 51.5")
  # Micro recall and micro F1 of the same runs are the accuracy.
  assert row.printed == ("97 (Fig3)", "96.5 (Fig4)")
  assert not [r for r in rows if r.claim["artifact"] == "Fig3" and r.kind == "own"]
  sentence = row_of(rows, artifact="Fig1-4")
  assert sentence.answer.words == sentence.answer.verdict == rule.REACHED
  assert sentence.stated.ours == f"{ABOVE_ALL}: +1"
  assert sentence.stated.verdict == rule.WORSE
  assert row_of(rows, artifact="Fig5-7").answer.words == "worse: method short"
  not_run = row_of(rows, artifact="Fig1", panel="a", method="GA-FSVRG")
  assert not not_run.answer.is_run and not not_run.is_measured
  tuned, by_paper, no_run = (
    list(map(str, line)) for line in claims_page._head({"diversified": rows}).rows
  )
  assert tuned == ["diversified, tuned", "1", *9 * ["0"], "1", "1", "0", "0"]
  assert by_paper == ["diversified, stated", *3 * ["0"], "1", *6 * ["0"]] + (
    ["0", "1", "0", "0"]
  )
  assert no_run[:4] == ["diversified, no run", "0", "0", "0"]
  # A baseline's number is no number of the paper's methods.
  above = answer._replace(verdict=rule.BETTER, reason="by 0.2")
  baseline = row_of(
    claims_page.claim_rows("diversified", ("X",), [above]),
    artifact="Fig1",
    panel="a",
    method="MA-FSVRG",
  )
  assert (baseline.kind, baseline.answer.words) == ("other", "better by 0.2")


@pytest.mark.parametrize(
  "rounds, words",
  [
    ([36, 40, 65, 45, math.inf, 48, 43, 44, 45], "45 (median, never in 1 of 9 runs)"),
    ([3, 5, 4], "4 (median)"),
    ([math.inf] * 3, "never in 3 runs"),
    ([7, math.inf, math.inf], "never in 2 of 3 runs"),
    ([1, math.inf], "1, -"),
  ],
)
def test_rounds_of_many_runs_are_shown_as_their_median(rounds, words):
  """Cells of pages had 28 to 60 numbers."""
  assert rule.summarize_rounds(rounds) == words


def test_of_several_panels_the_ends_are_shown():
  """A cell of the page has the least and the greatest number alone."""
  measurements = (
    measurement("-0.24 +- 0.43", "a", of="GA-FSVRG - SCAFFOLD", mean=-0.24, ci95=0.43),
    measurement("+0.80 +- 0.10", "b", of="CLS-0.1 - CLS-1", mean=0.8, ci95=0.1),
    measurement("-3.00 +- 0.20", "c", of="FedAvg - FedProx", mean=-3.0, ci95=0.2),
  )
  assert verdicts.ends_in_words(measurements) == (
    "c: FedAvg - FedProx -3.00 +- 0.20 to b: CLS-0.1 - CLS-1 +0.80 +- 0.10"
  )
  # What is no number, and two numbers, are shown as they are.
  for few in (measurements[:2], (*measurements, measurement("none", "d"))):
    assert verdicts.ends_in_words(few) == verdicts.in_words(few)


def test_a_place_is_said_once():
  nested = (
    measurement("1 s", "a", "FedAvg"),
    measurement("2 s", "a", "FedZO"),
    measurement("3 s", "a", "FedZO"),
    measurement("4 s", "b", "FedZO"),
  )
  assert verdicts.in_words(nested) == "a: FedAvg: 1 s; FedZO: 2 s; 3 s; b: FedZO: 4 s"


def test_what_is_said_of_all_panels_stays_beside_the_ends():
  """The note of the last panel was dropped where that is neither end."""
  sentence = answers.PaperAnswer(
    *("table3", "Table3", "", "", ""),
    "FeSEM is the worst, Synthetic and the ablations apart",
    "in words",
    *(rule.UNDECIDED, "", ""),
    measurements=tuple(
      measurement(f"{gap:+.2f}", panel, mean=gap)
      for panel, gap in (("a", 3.0), ("b", -1.0), ("c", 2.0))
    ),
    note="(other data, not testable: c)",
  )
  row = row_of(
    claims_page.claim_rows("fedgroup", ("FG",), [sentence]),
    artifact="Table3",
    value="FeSEM worst except Synthetic",
  )
  assert row.answer.ours == "b: -1.00 to a: +3.00 (other data, not testable: c)"


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
    "wide interval",
    "stated",
  )
  nine = answer._replace(figure="table3_mnist", ours="96.1", verdict=rule.REACHED)
  for verdict, ours in (
    (rule.REACHED, "96.1"),
    (rule.UNDECIDED, "96.1"),
    (rule.NOT_TESTABLE, "95.4"),
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
    assert row.answer.ours == ours
  # So it does for a sentence, even to one that it does not decide.
  sentence = answer._replace(
    panel="",
    method="",
    metric="",
    measurements=(measurement("+5 +- 4"),),
    claim="FG-EDC is 14.1 points above FedAvg on FEMNIST-MLP",
  )
  longer = sentence._replace(figure="table3_mnist", measurements=(measurement("+5.5"),))
  for verdict, ours in (
    (rule.WORSE, "+5.5"),
    (rule.UNDECIDED, "+5.5"),
    (rule.NOT_TESTABLE, "+5 +- 4"),
  ):
    for order in (1, -1):
      row = row_of(
        claims_page.claim_rows(
          "fedgroup",
          ("FG-EDC",),
          [
            sentence._replace(verdict=rule.REACHED),
            longer._replace(verdict=verdict),
          ][::order],
        ),
        artifact="Abstract",
        value="14.1",
      )
      assert row.answer.ours == ours
      assert row.answer.verdict == (
        rule.REACHED if verdict == rule.NOT_TESTABLE else verdict
      )


@pytest.mark.parametrize("name", publish.CLAIMED)
def test_no_row_is_silent(name):
  """Without a run each row says what was tried or why it has no number."""
  paper = publish.PAPERS[name]
  texts = [s.text for figure in paper.figures.values() for s in figure.statements]
  rows = claims_page.claim_rows(name, paper.own, [])
  assert all(row.tried or row.answer.reason != rule.NOT_RUN for row in rows)
  assert {row.answer.verdict for row in rows} == {rule.NOT_TESTABLE}
  assert all(row.answer.reason for row in rows)
  for pattern in report.read_claims(name, "judged"):
    if pattern["kind"] == "sentences" and pattern["artifact"] not in (
      "Fig7",
      "Fig8",
      "Fig5",
      "Intro",
    ):
      start = pattern["text"]
      assert any(text.startswith(start) for text in texts), start


DOCS = pathlib.Path(__file__).parents[3] / "docs"


@functools.cache
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


def test_the_published_table_is_that_of_the_answers():
  """Each measurement is counted once."""
  tables = claim_rows()
  assert (DOCS / "results" / "claims.md").read_text("utf-8") == (
    claims_page.claims_text(tables)
  )
  lines = claims_page._head(tables).rows
  for name, rows in tables.items():
    counts = [line for line in lines if str(line[0]).startswith(f"{name}, ")]
    numbers = 1 + len(claims_page._NUMBERS)
    assert sum(n for line in counts for n in line[1:numbers]) == sum(
      1 + bool(row.stated) + bool(row.literal) for row in rows if row.kind == "own"
    )


def own_counts(name, tuning, artifacts=()):
  """The verdicts on the numbers of a paper's own methods, by their column."""
  return collections.Counter(
    claims_page.standing(
      {"stated": row.stated, "as printed": row.literal}.get(tuning) or row.answer
    )
    for row in claim_rows()[name]
    if row.kind == "own"
    and (not artifacts or row.claim["artifact"] in artifacts)
    and (tuning != "as printed" or row.literal)
  )


def test_the_readme_counts_what_the_answers_say():
  """Every number of README's table of results, from the answers."""
  readme = (DOCS.parent / "README.md").read_text("utf-8")
  part = readme.partition("## Results")[2].partition("\n## ")[0]

  def good(counts):
    return counts["reached"] + counts["better"]

  of_mnist = own_counts("diversified", "stated", ("Fig1",))
  tuned = own_counts("diversified", "tuned", ("Fig1",))
  assert (
    f"then {good(of_mnist)} of {of_mnist.total()} accuracies are reached or better, "
    f"tuned {good(tuned)} of {tuned.total()}." in part
  )
  precisions = own_counts("diversified", "stated", ("Fig2",))
  assert precisions.keys() == {rule.DISAGREE}
  assert f"The {precisions.total()} precisions contradict the accuracies" in part
  assert own_counts("diversified", "tuned", ("Fig5", "Fig6")).keys() == {
    rule.IMPOSSIBLE
  }
  counts = own_counts("conjugate", "tuned", ("Fig2",))
  chaotic = sum(row.answer.rounding == "chaotic" for row in claim_rows()["conjugate"])
  assert (
    f"{good(counts)} of {counts.total()} numbers is better" in part
    and f"{counts['other than printed']} are other than printed" in part
    and f"{counts['undecided']} are undecided ({chaotic} chaotic)" in part
  )
  counts = own_counts("conjugate", "stated", ("Fig2",))
  assert (
    f"settings {counts['worse']} is worse, {counts['undecided']} undecided, "
    f"{counts[rule.NEEDS_VALUE]} need a step"
    in part
    and not good(counts)
  )
  counts = own_counts("conjugate", "as printed", ("Fig2",))
  assert "as printed 98 % is never reached" in part
  assert counts == {"worse": 4, "undecided": 1}  # the one is an accuracy
  counts = own_counts("fedgroup", "stated")
  assert (
    f"{good(counts)} numbers are reached or better, {counts['worse']} are worse" in part
    and f"{counts['undecided']} are undecided" in part
    and f"{counts['not testable']} need data" in part
  )
  times = [
    row.answer.reason
    for row in claim_rows()["analytic"]
    if row.kind == "sentence" and "time" in row.claim["metric"]
  ]
  assert {rule.OUR_CLOCK} == {*times} and "not testable: the times are by our" in part


def test_the_readme_has_what_the_printed_equations_give():
  """That they need two corrections stood on the page of the paper alone.

  With all formulas as printed they end elsewhere, in the runs of Fig. 1.
  """
  readme = (DOCS.parent / "README.md").read_text("utf-8")
  page = (DOCS / "papers" / "diversified.md").read_text("utf-8")
  (row,) = re.findall(r"^\| \(64\) as printed, L2 on the mean loss \|.*", page, re.M)
  ma, ga = (float(mean) for mean, _ in PAIR.findall(row))
  assert f"as printed, at 10 %: [MA {ma:.1f}, GA {ga:.1f}]" in readme
  with open(DOCS / "results" / "diversified_fig1.csv", encoding="utf-8") as file:
    rows = [row for row in csv.DictReader(file) if row["protocol"] == suite.PRINTED]
  means = [float(row["ours"]) for row in rows]
  widest = max(float(row["ci95"]) for row in rows)
  assert len(rows) == 8 and {row["verdict"].split(":")[0] for row in rows} == {
    rule.UNDECIDED
  }
  words = f"all as printed {min(means):.1f} to {max(means):.1f}, +- up to {widest:.0f}"
  assert words in readme


def format_range(artifacts, method, stated=False, digits=0):
  """Writes the least and the largest mean of a method of the diversified paper."""
  means = [
    float((row.stated if stated else row.answer).ours.split(" +- ")[0])
    for row in claim_rows()["diversified"]
    if row.kind == "own"
    and row.claim["artifact"] in artifacts
    and method in row.claim["method"]
  ]
  return f"{min(means):.{digits}f} to {max(means):.{digits}f}"


def test_the_readme_has_the_ranges_of_the_answers():
  """A figure that is run again changes them, as it changes the tables."""
  readme = (DOCS.parent / "README.md").read_text("utf-8")
  mnist = [
    format_range(["Fig1"], method, stated, 1)
    for stated in (True, False)
    for method in ("MA", "GA")
  ]
  assert "accuracy: MA {}, GA {}; tuned: {} and {};".format(*mnist) in readme
  figures_of = ("Fig5", "Fig6")
  stated = [format_range(figures_of, method, True) for method in ("MA", "GA")]
  assert "| MA {}, GA {};".format(*stated) in readme
  assert f"tuned: {format_range(figures_of, 'FSVRG')} |" in readme
  medians = []
  for answer in answers.read_answers(DOCS / "results" / "conjugate.answers.csv"):
    if answer.claim.startswith("CLSFSVRG is the first to reach 98 %"):
      medians.append([statistics.median(f.values[0]) for f in answer.measurements])
  tuned, stated = medians
  words = ["not in 100" if math.isinf(median) else f"{median:.0f}" for median in stated]
  assert f"CLSFSVRG {', '.join(words)}, no baseline" in readme
  assert f"tuned: {min(tuned):.0f} to {max(tuned):.0f}, CFSVRG" in readme
  (gain,) = (
    row.answer.ours.split(" +- ")[0]
    for row in claim_rows()["fedgroup"]
    if row.claim["metric"] == "gain_over_FeSEM"
    and (row.claim["panel"], row.claim["method"]) == ("a", "FG-EDC")
  )
  assert f"{float(gain):.1f} points over FeSEM |" in readme


_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
PAIR = re.compile(rf"([+-]?{_NUMBER}) \+- ({_NUMBER})")

#: Intervals in the notes that no published table has: of the same command on another
#: machine, of other works, of data, of paired differences, of runs beside the figures.
ELSEWHERE = {
  "analytic": {"96.28 +- 0.09"},
  "diversified": {
    *("+0.27 +- 0.10", "+0.30 +- 0.18", "+0.34 +- 0.05", "+0.39 +- 0.16"),
    *("97.90 +- 0.49", "97.93 +- 0.37", "97.92 +- 0.21", "97.80 +- 0.33"),
    *("97.75 +- 0.06", "22.2 +- 5.6"),
  },
  "fedgroup": {"69 +- 136", "69 +- 106"},
  "trust": {"89.1 +- 0.3", "89.37 +- 0.14"},
}


def published_figures(name):
  """figure -> what is published of it."""
  return publish._read_published(publish.PAPERS[name], DOCS / "results")


def published_intervals(name):
  """(mean, half-width) of everything that the tables of a paper have."""
  results = DOCS / "results"
  text = pages.format_blocks(
    block for figure in published_figures(name).values() for block in figure.blocks
  )
  tables = "".join(line for line in text.splitlines() if line.startswith("|"))
  for path in results.glob(f"{name}*.csv"):
    text = path.read_text("utf-8")
    tables += text
    for row in csv.DictReader(text.splitlines()):
      if row.get("ours") and row.get("ci95"):
        yield float(row.get("mean") or row["ours"]), float(row["ci95"])
  for mean, half in PAIR.findall(tables):
    yield float(mean.replace(",", "")), float(half.replace(",", ""))


@pytest.mark.parametrize("name", sorted(publish.PAPERS))
def test_intervals_in_the_notes_are_those_of_the_tables(name):
  """Notes are written by hand, and stay when a figure is run again."""
  published = set(published_intervals(name))
  notes = "\n".join(
    path.read_text("utf-8")
    for path in sorted((DOCS / "results").glob(f"{name}_*.notes.md"))
  )
  stale = set()
  for pair in PAIR.finditer(notes):
    mean, half = (float(part.replace(",", "")) for part in pair.groups())
    digits = [len(part.partition(".")[2]) for part in pair.groups()]
    signed = pair[1][0] in "+-"  # "lower by 2" has none
    if not any(
      abs((m if signed else abs(m)) - mean) < 0.50001 * 10 ** -digits[0]
      and abs(h - half) < 0.50001 * 10 ** -digits[1]
      for m, h in published
    ):
      stale.add(pair[0])
  assert stale == ELSEWHERE.get(name, set())


def test_leads_in_the_notes_are_paired_by_partition():
  """Their intervals were of other runs, up to a third wider or narrower."""
  results, parts = DOCS / "results", {}
  table = (results / "diversified_fig1.csv").read_text("utf-8")
  for row in csv.DictReader(table.splitlines()):
    if row["protocol"] == "tuned":
      of_seeds = rule.parse_values(row["values"])
      parts[row["panel"], row["method"]] = np.array([s.mean() for s in of_seeds])
  notes = (results / "diversified_fig1.notes.md").read_text("utf-8")
  for panel in "abcd":
    lead = parts[panel, "MA-FSVRG"] - parts[panel, "SCAFFOLD"]
    assert metrics.format_estimate(metrics.estimate_mean(lead), sign="+") in notes


def test_the_page_of_collapsed_seeds_has_the_published_runs():
  """FedAvg's was of a run on another machine, which is published no more."""
  page = (DOCS / "results" / "collapsed_seeds.md").read_text("utf-8")
  best = {
    a.method: a.values[0][0] if a.values else a.mean
    for a in answers.read_answers(DOCS / "results" / "trust.answers.csv")
    if (a.figure, a.panel) == ("niid_bench", "e")
  }
  words = f"FedAvg reaches {best['FedAvg']:.1f} % and FedProx {best['FedProx']:.1f} %"
  assert f"On partition 0, {words}." in page


def test_every_verdict_is_one_of_five_words():
  """In the answers, in the tables beside the pages, and on the pages."""
  results = DOCS / "results"
  for name in publish.PAPERS:
    for answer in answers.read_answers(results / f"{name}.answers.csv"):
      assert answer.verdict in rule.VERDICTS, answer
  for path in results.glob("*.csv"):
    for row in csv.DictReader(path.read_text("utf-8").splitlines()):
      words = row.get("verdict", rule.NO_NUMBER)
      assert words.startswith((*rule.VERDICTS, rule.NO_NUMBER)), (path, words)
  old = re.compile(
    r"\b(reaches|exceeds by|short by|open|as printed|gets there|holds|does not hold"
    r"|too close to call|not comparable|stronger here|weaker here)\b[^|]*\|$"
  )
  for path in results.glob("*.md"):
    if path.stem == "claims" or path.stem.endswith(".notes"):
      continue
    for line in path.read_text("utf-8").splitlines():
      if line.startswith("|") and not line.startswith(("| Fig", "| Table")):
        last = line.rstrip("| ").rpartition("|")[2] + "|"
        last = last.replace(rule.IMPOSSIBLE, "")
        assert not old.search(last), (path.name, line)


def test_sentences_on_pages_are_those_of_the_answers():
  """A page that says another verdict than the csv is found."""
  for name in publish.PAPERS:
    rows = answers.read_answers(DOCS / "results" / f"{name}.answers.csv")
    text = "".join(
      path.read_text("utf-8") for path in sorted((DOCS / "results").glob(f"{name}*.md"))
    )
    for figure, page in published_figures(name).items():
      table = answers.sentences_table(a for a in rows if a.figure == figure)
      if table and not page.runs_of:
        assert pages.format_blocks([table]) in text, (name, figure)


@each(
  "name, figure",
  [
    (path.stem.partition("_")[0], path.stem.partition("_")[2])
    for path in sorted((DOCS / "results").glob("*_fig*.csv"))
    if "verdict" in path.read_text("utf-8").partition("\n")[0]
  ],
)
def test_numbers_beside_the_pages_have_the_verdict_of_the_rule(name, figure):
  """The definition of reaching is one: recomputed from the stored numbers."""
  data = "cifar10" if (name, figure) in CIFAR else ""
  with open(DOCS / "results" / f"{name}_{figure}.csv", encoding="utf-8") as file:
    for row in csv.DictReader(file):
      if not row["paper"] or row["verdict"].startswith(rule.NOT_TESTABLE):
        continue
      gap, rounding = float(row["ours"]) - float(row["paper"]), ""
      if row["values"]:
        parts = rule.parse_values(row["values"])
        assert float(row["ours"]) == pytest.approx(
          np.mean([part.mean() for part in parts]), rel=1e-5
        )
        placement = rule.place_values(
          parts, float(row["paper"]), "%", data=data, has_one_partition=len(parts) == 1
        )
        seeds = int(re.search(r"--num_seeds=(\d+)", row["flags"])[1])
        rounding = rule.mark_rounding(
          parts, len(parts[0]) // seeds, rule.tie_of(float(row["paper"]), "%", data)
        )
      else:  # of runs before single values were stored
        place = rule.place_number(
          gap,
          float(row["ci95"]),
          float(row["draw95"]),
          rule.tie_of(0.0, "%", data),
          rule.widest_of(0.0, "%"),
        )
        placement = rule.Placement("", place, "wide interval")
      verdict = rule.verdict(placement, abs(gap), row["metric"], "%")
      assert row["verdict"] == rule.words(*verdict, rounding), row


@each("name", publish.CLAIMED)
def test_answers_have_the_verdict_of_the_rule(name):
  """Recomputed from the numbers of the runs that are stored with them."""
  claims = {
    (c.artifact, c.panel, c.method, c.metric, c.printed): c
    for artifact in dict.fromkeys(row["artifact"] for row in report.read_claims(name))
    for c in report.load_claims(name, artifact)
  }
  for a in answers.read_answers(DOCS / "results" / f"{name}.answers.csv"):
    claim = claims.get((a.artifact, a.panel, a.method, a.metric, a.claim))
    if not a.values or claim is None:
      continue
    data = "cifar10" if (name, a.figure) in CIFAR else ""
    is_part = len(a.values) == 1
    ours = report.answer_number(a.values, claim, data=data, has_one_partition=is_part)
    assert a.draw95 == pytest.approx(ours.draw95, rel=1e-3, nan_ok=True), a
    if a.verdict != rule.NOT_TESTABLE:
      assert (a.verdict, a.reason) == (ours.verdict, ours.reason), a


def test_published_margins_have_the_verdict_of_the_registered_words():
  """The gain of 4.3 points, which the interval contains, was undecided."""
  claimed = {
    "the best accuracy gains 4.3": 4.3,
    "the variance of the discrepancy": 92.5,
  }
  verdict_of = {}
  for a in answers.read_answers(DOCS / "results" / "fedgroup.answers.csv"):
    for start, number in claimed.items():
      if a.claim.startswith(start):
        (gain,) = a.measurements
        low, high = gain.mean - gain.ci95, gain.mean + gain.ci95
        holds = low > 0 and high >= number
        assert a.verdict == (rule.REACHED if holds else rule.WORSE)
        verdict_of[start] = a.verdict
  assert verdict_of.keys() == claimed.keys()


@each("name", publish.CLAIMED)
def test_numbers_beside_the_pages_have_the_verdict_of_the_answers(name):
  """And the interval of one draw, of as many runs as the paper's number is of."""
  words = {
    (a.figure, a.panel, a.method, a.metric.removeprefix("test_"), a.tuning): a
    for a in answers.read_answers(DOCS / "results" / f"{name}.answers.csv")
  }
  for path in (DOCS / "results").glob(f"{name}_*.csv"):
    figure = path.stem.removeprefix(f"{name}_")
    for row in csv.DictReader(path.read_text("utf-8").splitlines()):
      if row.get("paper") and "draw95" in row:
        key = (row["panel"], row["method"], row["metric"], row["protocol"])
        answer = words[figure, *key]
        assert row["verdict"] == answer.words, (path.name, key)
        # Answers that were stored without their values have two decimals.
        assert float(row["draw95"]) == pytest.approx(answer.draw95, abs=0.011)


def draws_of(row, figure):
  """(partitions, seeds of each) of a row of a table beside a page."""
  seeds = int(re.findall(r"--num_seeds=(\d+)", row["flags"])[-1])
  if row["values"]:
    parts = rule.parse_values(row["values"])
    return len(parts), len(parts[0])
  over = re.search(r"over ([\d or]+) partitions", figure.provenance.notes)
  counts = [int(n) for n in over[1].split(" or ")] if over else [1]
  if len(counts) == 1:
    return counts[0], seeds
  (table,) = (
    block
    for block in figure.blocks
    if isinstance(block, pages.Table) and "partitions" in block.head
  )
  at = table.head.index("partitions")
  of_line = {(line[0], line[1]): int(line[at]) for line in table.rows}
  return of_line[row["title"], row["method"]], seeds


@each("name", sorted(publish.PAPERS))
def test_intervals_of_one_draw_are_those_of_the_partitions(name):
  """That of three draws, 2, stood beside nine and two partitions.

  Several seeds in several partitions need their values (V-1), so without these
  there is no interval of one draw.
  """
  figures_of = published_figures(name)
  for figure, page in figures_of.items():
    path = DOCS / "results" / page.numbers
    if not page.numbers or "draw95" not in path.read_text("utf-8").partition("\n")[0]:
      continue
    page = figures_of[page.runs_of.lower()] if page.runs_of else page
    for row in csv.DictReader(path.read_text("utf-8").splitlines()):
      if not row["ci95"]:
        continue
      partitions, seeds = draws_of(row, page)
      if partitions > 1 and seeds > 1:
        assert bool(row["draw95"]) == bool(row["values"]), (figure, row["method"])
        continue
      factor = math.sqrt(max(partitions, seeds) + 1)
      expected = factor * float(row["ci95"])
      assert float(row["draw95"]) == pytest.approx(expected, rel=2e-5)


CIFAR = {("diversified", name) for name in ("fig5", "fig6", "fig7")}


@each("name", sorted(publish.PAPERS))
def test_what_no_run_can_test_is_not_testable_everywhere(name):
  """The answers, the tables and the pages had "worse" where claims.md had this."""
  results = DOCS / "results"
  artifacts = dict.fromkeys(row["artifact"] for row in report.read_claims(name))
  reasons = {
    (c.artifact, c.panel, c.method, c.metric, c.printed): c.untestable
    for artifact in artifacts
    for c in report.load_claims(name, artifact)
    if c.untestable
  }
  for a in answers.read_answers(results / f"{name}.answers.csv"):
    reason = reasons.get((a.artifact, a.panel, a.method, a.metric, a.claim))
    if reason:
      assert (a.verdict, a.reason) == (rule.NOT_TESTABLE, reason), a
  for artifact in artifacts:
    path = results / f"{name}_{artifact.lower()}.csv"
    if artifact in {key[0] for key in reasons} and path.is_file():
      cells = [
        (row["panel"], row["method"], row["metric"], row["verdict"])
        for row in csv.DictReader(path.read_text("utf-8").splitlines())
      ]
      untestable = {
        (panel, method, metric.removeprefix("test_"))
        for source, panel, method, metric, _ in reasons
        if source == artifact
      }
      for *cell, words in cells:
        if tuple(cell) in untestable and words != rule.NO_NUMBER:
          assert words.startswith(rule.NOT_TESTABLE), (path.name, cell)
      figure = published_figures(name)[artifact.lower()]
      assert ", worse by" not in pages.format_blocks(figure.blocks)


def test_what_is_impossible_is_above_the_bound_on_pooled_data():
  """No number below the bound may be called impossible."""
  for row in claim_rows()["diversified"]:
    if row.answer.reason == rule.IMPOSSIBLE:
      assert float(row.claim["value"]) > 0.56


def cells_of(name, figure):
  """The runs of a figure with their own settings, by panel and label."""
  paper = publish.PAPERS[name]
  request = figures.Request(pathlib.Path("out"), (), "")
  return {
    (cell.panel, cell.name): cell
    for cell in figures._each_cell(paper, paper.figures[figure], request)
  }


#: Figures of which nothing, a part or everything is tuned.
@pytest.mark.program
@each(
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
      cell = cells[answer.panel, suite.method_name(answer.method, answer.protocol)]
      assert answer.tuning == cell.tuning
      if "stand-in" not in answer.settings:  # by a flag of the command
        assert answer.settings == chosen.describe(cell.choices)
  tunings = {
    cell.label: cell.tuning for cell in cells.values() if cell.protocol == suite.TUNED
  }
  labels = {a.tuning for a in records if not a.metric and a.protocol == suite.TUNED}
  assert labels <= {*tunings.values(), chosen.tuning_of_several(tunings.values())}
  if len({*tunings.values()}) == 1:
    assert labels <= {*tunings.values()}
  part = pages.format_blocks(published_figures(name)[figure].blocks)
  for label, word in re.findall(
    r"^\| ([^|]*), (tuned|stated|not tuned|tuned in part) \|", part, re.M
  ):
    assert word in {tunings.get(label), suite.STATED}, label
  sentences = answers.sentences_table(records)
  assert sentences is None or sentences.head[1] in (*labels, "ours")


def test_a_number_of_another_protocol_has_no_other_verdict():
  """Rows with other initial weights once were "better"; nothing is run again."""
  claims = {
    ("tamuna", "FedAvg"): "better",
    ("niid_bench", "FedAvg"): "undecided",
  }
  stored = [
    answers.PaperAnswer(
      artifact, artifact, "a", method, metric, "83", "91.90", verdict, "by 9", ""
    )
    for (artifact, method), verdict in claims.items()
    for metric in ("test_accuracy_end", "test_accuracy_max")
  ]
  not_run = stored[0]._replace(verdict=rule.NOT_TESTABLE, reason=rule.NOT_RUN)
  sentence = stored[0]._replace(metric="", claim="It is better")
  tamuna, no_claim, *others = answers.without_untestable(
    "trust", [*stored, not_run, sentence]
  )
  assert tamuna.verdict == rule.NOT_TESTABLE and tamuna.ours == "91.90"
  assert re.fullmatch(r"other protocol \(.*initial weights.*\)", tamuna.reason)
  assert others[-2:] == [not_run, sentence]
  # A number that no claim names, and a claim that nothing differs for, stay.
  assert [no_claim, *others[:-2]] == stored[1:]


def test_what_differs_is_said_of_every_other_protocol():
  for paper in publish.PAPERS:
    for row in report.read_claims(paper, "judged"):
      assert row["kind"] != rule.OTHER_PROTOCOL or row["text"]
    for artifact in {row["artifact"] for row in report.read_claims(paper)}:
      for claim in report.load_claims(paper, artifact):
        assert not claim.untestable or claim.untestable.startswith(rule.UNTESTABLE)
