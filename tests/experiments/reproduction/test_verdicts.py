"""Every kind of verdict, from made-up outcomes, also of several partitions."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from experiments.cli import config, shared_runs
from experiments.reports import rule
from experiments.reproduction import answers, pages, partitions, report, suite, verdicts
from experiments.reproduction import cost_to_accuracy as targets
from experiments.reproduction.chosen import Choice
from experiments.reproduction.conjugate import claims as conjugate
from experiments.reproduction.diversified import claims as diversified
from experiments.reproduction.fedgroup import claims as fedgroup
from fedjax_alg import metrics
from fedjax_alg.records import summary as results
from tests import made_runs
from tests.experiments import shown

pytestmark = pytest.mark.fast


def outcome(label, curves, panel="a", floats=10, steady=0.1, protocol="tuned"):
  """A run whose accuracy is ``curves`` [seeds][rounds], from round 1 on."""

  def columns(number, value, protocol):
    del protocol
    return {
      "loss": 1 - value,
      "floats_down": 2,
      "floats_up": 3,
      "total_floats": floats * number,
      "seconds": steady * number,
    }

  run = made_runs.outcome(
    suite.Cell(panel, f"panel {panel}", label, shown.config_of(), protocol),
    curves,
    columns,
    ("global", "train"),
  )
  return run._replace(
    summary=run.summary
    | {
      "cost": results.cost(run.frames.rounds.to_dict("records"), 2),
      "timing": {"steady_s_per_round": steady},
    }
  )


def flat(label, *levels, panel="a", rounds=20, protocol="tuned"):
  """One level a seed, in every round."""
  return outcome(
    label, [[level] * rounds for level in levels], panel, protocol=protocol
  )


def of_clients(run):
  """The same, measured on the test data of clients."""
  return run._replace(frames=run.frames.rename_protocols({"global": "local"}))


ABOVE = verdicts.Statement(
  "p", "Fig1", "A above B", verdicts.higher("A", "B", verdicts.late("accuracy"))
)


def judge(claim, runs):
  """What was measured in words, the verdict, and its reason."""
  judgment = verdicts.judge_statement(claim, runs)
  return judgment.measured, judgment.verdict, judgment.reason


@pytest.mark.parametrize(
  "a,b,word",
  [
    ((0.9, 0.91, 0.9), (0.8, 0.8, 0.81), "reached"),
    ((0.7, 0.71, 0.7), (0.8, 0.8, 0.81), "worse"),
    ((0.8, 0.9, 0.7), (0.8, 0.8, 0.79), "undecided"),
    ((0.9,), (0.8,), "undecided"),
    ((0.9,), (), "not testable"),
  ],
)
def test_difference(a, b, word):
  runs = [flat(label, *levels) for label, levels in (("A", a), ("B", b)) if levels]
  measured, verdict, _ = judge(ABOVE, runs)
  assert verdict == word
  assert measured.startswith("a: ") if b else "B" in measured
  assert (" +- " in measured) == (len(a) > 1)


def test_other_data_than_the_papers_decide_nothing():
  """Panel b is on a stand-in: it is shown, and the others decide."""

  def stand_in(setting):
    return (Choice("stand-in", setting),)

  def on(panel, choice, *levels):
    runs = [flat("A", *levels, panel=panel), flat("B", 0.8, 0.8, 0.81, panel=panel)]
    return [o._replace(cell=dataclasses.replace(o.cell, choices=choice)) for o in runs]

  above, below = (0.9, 0.91, 0.9), (0.7, 0.71, 0.7)
  for choice, word in (
    ((), "worse"),
    (stand_in("data"), "reached"),
    (stand_in("sizes"), "reached"),
    (stand_in("partition"), "worse"),
  ):
    measured, verdict, _ = judge(
      ABOVE, [*on("a", (), *above), *on("b", choice, *below)]
    )
    assert verdict == word and "; b: " in measured
    assert ("not testable: b" in measured) == (word == "reached")
  # Nor do they where ours may be better than a claimed range.
  within = ABOVE._replace(
    check=lambda runs: ABOVE.check(runs)._replace(holds=False), beyond=ABOVE.check
  )
  runs = [*on("a", (), *above), *on("b", stand_in("data"), *below)]
  assert judge(within, runs)[1:] == ("better", "beyond the range")
  stand_ins = on("b", stand_in("data"), *above)
  assert verdicts.judge_statement(ABOVE, stand_ins)[1] == "not testable"
  # A sentence on every panel that there is does not hold of none.
  (claim,) = [s for s in fedgroup.FIG3 if "not above" in s.text]
  runs = [flat(label, 0.9, 0.9, 0.9, panel="b") for label in ("FGP-EDC", "FG-EDC")]
  runs = [
    of_clients(o)._replace(cell=dataclasses.replace(o.cell, choices=stand_in("data")))
    for o in runs
  ]
  assert verdicts.judge_statement(claim, runs)[1] == "not testable"


def test_one_panel_against_is_enough():
  runs = [
    flat("A", 0.9, 0.9),
    flat("B", 0.8, 0.8),
    flat("A", 0.7, 0.7, panel="b"),
    flat("B", 0.8, 0.8, panel="b"),
  ]
  measured, verdict, _ = judge(ABOVE, runs)
  assert verdict == "worse"
  assert measured == "a: +10.00 +- 0.00; b: -10.00 +- 0.00"


def test_sentences():
  def text(a, b, *runs):
    table = answers.sentences_table(
      answers.answer_sentences("fig1", [ABOVE], [flat("A", *a), flat("B", *b), *runs])
    )
    return pages.format_blocks([table])

  lines = text((0.9,), (0.8,)).splitlines()
  assert "| A above B | a: +10.00 | undecided |" in lines
  assert (
    "| A above B | a: +10.00 +- 0.00 | reached | a: -10.00 +- 0.00 | worse |"
  ) in text(
    (0.9, 0.9),
    (0.8, 0.8),
    flat("A", 0.7, 0.7, protocol="stated"),
    flat("B", 0.8, 0.8, protocol="one rate"),
  )
  # With the paper's settings A runs alone, so nothing is compared there.
  text_of_one = text((0.9, 0.9), (0.8, 0.8), flat("A", 0.7, 0.7, protocol="stated"))
  assert "| A above B | a: +10.00 +- 0.00 | reached |" in text_of_one.splitlines()
  assert answers.sentences_table([]) is None


def test_above_all_is_decided_by_the_pair_that_is_least_clear():
  check = verdicts.higher_than_all(("A",), verdicts.late("accuracy"))
  runs = [flat("A", 0.9, 0.9), flat("B", 0.7, 0.7), flat("C", 0.89, 0.89)]
  assert check(runs).holds and check(runs).measured == "a: A - C +1.00 +- 0.00"
  assert check([*runs, flat("D", 0.95, 0.95)]).holds is False
  # Of a method that varies from run to run even a long lead is no lead.
  verdict = check([*runs, flat("E", 0.5, 0.89)])
  assert verdict.holds is None
  assert verdict.measured.startswith("a: A - E +20.50 +- ")
  (measurement,) = verdict.measurements
  assert (measurement.place, measurement.of, measurement.mean) == (
    ("a",),
    "A - E",
    20.5,
  )
  below = verdicts.higher_than_all(("B",), verdicts.late("accuracy"), sign=-1)
  assert below(runs).holds and below(runs).measured == "a: B - C -19.00 +- 0.00"


def test_more_than_a_range_is_better():
  late = verdicts.late("accuracy")
  claim = verdicts.Statement(
    "p",
    "Fig1",
    "A between 60 and 70",
    lambda runs: verdicts.lies_within(late(verdicts.pick(runs, "a", "A")), 60, 70),
    beyond=lambda runs: verdicts.above(late(verdicts.pick(runs, "a", "A")), 60),
  )
  for level, *expected in (
    (0.8, "better", "beyond the range"),
    (0.65, "reached", ""),
    (0.5, "worse", ""),
  ):
    _, *answer = judge(claim, [flat("A", level, level)])
    assert answer == expected


def test_growth_over_panels():
  runs = [flat("A", 0.8, 0.8), flat("A", 0.9, 0.9, panel="d")]
  assert verdicts.grows("A", verdicts.late("accuracy"))(runs).holds
  assert verdicts.grows("A", verdicts.late("accuracy"), -1)(runs).holds is False
  with pytest.raises(verdicts.NotRun):
    verdicts.grows("A", verdicts.late("accuracy"))(runs[:1])


@pytest.mark.parametrize(
  "a,b,tie,exact,holds",
  [
    ([98.2, 98.21], 98.0, 0.3, False, True),
    (98.2, 98.0, 0.3, True, True),
    (98.2, 97.0, 0.3, True, False),
    (98.2, 98.0, 0.3, False, None),  # one run
    ([98.5, 98.51, 98.49], 98.0, 0.3, False, False),
    # Within the interval, which is too wide to say so.
    ([98.0, 99.0, 97.5], [98.5, 97.0, 97.5], 0.3, False, None),
    ([98.0, 98.0], [97.99, 97.99], 0.0, False, False),
  ],
)
def test_same(a, b, tie, exact, holds):
  assert verdicts.same(a, b, tie, exact).holds is holds


@pytest.mark.parametrize(
  "a,exact,holds,measured",
  [
    (0.01, True, True, "+0.01"),
    (-0.01, True, False, "-0.01"),
    (0.01, False, None, "+0.01"),
    (0.0, True, False, "+0.00"),
    ([-0.2, -0.21, -0.19], False, False, "-0.20 +- 0.02"),
    ([-0.2, -0.6, 0.2], False, None, "-0.20 +- 0.99"),
  ],
)
def test_above_decides_by_the_sign(a, exact, holds, measured):
  """A small difference counts as much as a large one; a tie does not apply."""
  verdict = verdicts.above(a, 0.0, exact=exact)
  assert (verdict.holds, verdict.measured) == (holds, measured)


@pytest.mark.parametrize(
  "values,holds",
  [
    ([5.0, 5.1, 5.2], True),
    ([8.5, 8.6, 8.7], False),
    ([7.0, 8.0, 9.0], None),
    ([5.0], None),
  ],
)
def test_a_range_holds_the_whole_interval(values, holds):
  assert verdicts.lies_within(values, 4.0, 8.0).holds is holds


@pytest.mark.parametrize(
  "mean, half, claimed, holds",
  [
    (4.0, 0.76, 4.3, True),  # contains it
    (9.0, 0.5, 4.3, True),
    (3.0, 0.76, 4.3, False),
    (1.0, 1.5, 0.5, None),  # 0 is in the interval, too
    (-2.0, 0.5, -3.0, False),  # no gain at all
    (5.0, np.nan, 4.3, None),  # one run
  ],
)
def test_a_margin_holds_by_the_registered_words(mean, half, claimed, holds):
  """Its interval lies above 0, and contains the printed margin or exceeds it.

  The gain of FedGroup's Table 1, +4.00 +- 0.76 beside 4.3, was undecided.
  """
  gap = np.array([mean]) if np.isnan(half) else around(mean, half)
  verdict = verdicts.margin(gap, claimed)
  assert verdict.holds is holds
  assert verdict.measured == verdicts.above(gap, 0.0).measured


def test_printed_margins_are_judged_as_margins():
  """A whole interval above the printed number was asked for."""
  (claim,) = [s for s in fedgroup.TABLE1 if "4.3 points" in s.text]
  runs = [
    flat("FedAvg", *(0.85 + gained / 100), panel=panel)
    for panel, gained in (("a", np.zeros(3)), ("d", around(4.0, 0.757)))
  ]
  assert judge(claim, runs)[:2] == ("+4.00 +- 0.76", "reached")


def test_columns_of_rounds():
  rows = [
    {"round": n, "seed": s, "discrepancy": 10.0 * s + n}
    for n in (1, 2, 3, 4)
    for s in (0, 1)
  ]
  run = flat("A", 0.5)._replace(frames=made_runs.frames_of(rows))
  np.testing.assert_array_equal(verdicts.of_rounds("discrepancy")(run), [2.5, 12.5])
  np.testing.assert_array_equal(
    verdicts.of_rounds("discrepancy", np.max, last=3)(run), [3, 13]
  )


def test_wobble_and_speed():
  calm, wild = flat("A", 0.9, rounds=40), outcome("B", [[0.8, 1.0] * 20])
  assert verdicts.wobble()(calm)[0] == pytest.approx(0)
  assert verdicts.wobble()(wild)[0] == pytest.approx(10)
  np.testing.assert_allclose(verdicts.mean_over(1, 5)(wild), 88.0)
  with pytest.raises(verdicts.NotRun):
    verdicts.mean_over(41, 50)(calm)
  with pytest.raises(verdicts.NotRun):
    verdicts.wobble()(flat("A", 0.9, rounds=30))


def rising(label, at, panel="a", seeds=2, end=100, protocol="tuned"):
  """Reaches 98 % in round ``at`` (None: never)."""
  curve = [0.5 if at is None or n < at else 0.985 for n in range(1, end + 1)]
  return outcome(label, [curve] * seeds, panel, protocol=protocol)


@pytest.mark.parametrize(
  "own_round,baseline_round,end,words",
  [
    (40, None, 100, ["reached", "reached", "not testable"]),
    (40, 90, 100, ["reached", "worse", "reached"]),
    (40, 60, 100, ["reached", "worse", "worse"]),
    (80, 60, 100, ["worse"] * 3),
    (None, None, 30, ["not testable"] * 3),
  ],
)  # says nothing of 100 rounds
def test_rounds_to_98(own_round, baseline_round, end, words):
  runs = [
    rising("CLSFSVRG", own_round, end=end),
    rising("FedAvg", baseline_round, end=end),
  ]
  assert [verdicts.judge_statement(s, runs)[1] for s in conjugate.FIG2[:3]] == words


@pytest.mark.parametrize(
  "losac,floats,word,bound",
  [
    (0.97, 100, "reached", ""),
    (0.97, 40, "worse", ""),
    # What LoSAC has spent by then: enough for the claim, or undecided.
    (0.6, 100, "reached", "more than "),
    (0.6, 40, "undecided", "more than "),
  ],
)
def test_communication_saved(losac, floats, word, bound):
  """One that never gets there gives a bound."""
  runs = [
    outcome("CLSFSVRG", [[0.5, 0.97]] * 2, "d"),
    outcome("LoSAC", [[0.5, losac]] * 2, "d", floats=floats),
    outcome("LoSAC, client", [[0.5, 0.97]] * 2, "d", floats=100 if bound else floats),
  ]
  (statement,) = conjugate.fig7(0.965)
  saved, saved_by_client = (
    f"{100 - 1000 / total:+.1f} +- 0.0 %"
    for total in (floats, 100 if bound else floats)
  )
  assert judge(statement, runs)[:2] == (
    f"LoSAC: {bound}{saved}; LoSAC, client: {saved_by_client}",
    word,
  )


def central(monkeypatch, **seconds):
  monkeypatch.setattr(
    targets.central_time, "central_seconds", lambda cell: seconds[cell.label]
  )


def test_seconds_of_server_and_clients(monkeypatch):
  runs = [
    outcome("CLSFSVRG", [[0.5, 0.97]] * 2, "d"),
    outcome("LoSAC", [[0.5] * 9 + [0.97]] * 2, "d"),
  ]
  central(monkeypatch, CLSFSVRG=0.02, LoSAC=0.01)
  server, clients = targets.seconds(runs[0], 0.965)
  assert server == pytest.approx([0.04] * 2)
  assert clients == pytest.approx([0.16] * 2)
  not_slower, faster = conjugate.fig8((0.965,))
  # 2 rounds of .02 s against 10 of .01 s: less, not more, server time.
  assert not_slower.check(runs).holds is False
  # Seconds of another machine show nothing, whatever they are (V-7).
  for claim in (not_slower, faster):
    assert judge(claim, runs)[1:] == (
      "not testable",
      "other hardware",
    )
  assert judge(faster, runs)[0] == "+80.0 +- 0.0 %"


@pytest.mark.parametrize(
  "peaks, word",
  [
    ((0.97, 0.975), "reached"),
    ((0.97, 0.985), "undecided"),
    ((0.985, 0.99), "worse"),
  ],
)
def test_a_run_that_stays_below_has_no_round_above(peaks, word):
  """The mean of 20 rounds, most of them below, could not fail."""
  (claim,) = [s for s in diversified.FIG10 if "stays below 98 %" in s.text]
  curves = [[0.5] * 9 + [high] + [0.5] * 10 + [0.99] * 10 for high in peaks]
  measured, verdict, _ = judge(claim, [outcome("GA-FSVRG", curves, "d")])
  low, high = (f"{100 * value:.2f}" for value in peaks)
  assert measured == f"highest of rounds 1 to 20: {low} to {high} %"
  assert verdict == word


def test_the_deviation_after_30_rounds_is_of_70_rounds():
  """Only the last 30 of 100 rounds decided for which method it grows more."""
  (claim,) = [s for s in diversified.FIG10 if "more for MA than" in s.text]
  calm = [0.9] * 100
  swings = [0.9] * 30 + [0.8, 1.0] * 10 + [0.9] * 50
  runs = [
    outcome(label, [curve] * 2, panel)
    for label, panel, curve in (
      ("MA-FSVRG", "a", calm),
      ("MA-FSVRG", "d", swings),
      ("GA-FSVRG", "a", calm),
      ("GA-FSVRG", "d", calm),
    )
  ]
  assert judge(claim, runs)[1] == "reached"


def test_tables_of_targets():
  runs = [rising("CLSFSVRG", 48), rising("LoSAC", None)]
  text = pages.format_blocks(targets.rounds_table("conjugate", "Fig2", 0.98)(runs))
  assert "| CLSFSVRG | 48 (48) |" in text
  assert "| LoSAC | not in 100 (not in 100) |" in text
  runs = [rising("CLSFSVRG", 48, "d"), rising("LoSAC", 96, "d")]
  text = pages.format_blocks(
    targets.communication_section(runs, (0.98,), "CLSFSVRG", "LoSAC", 82.4)
  )
  assert "| 98 % | LoSAC | 96 | 10 | 960 | 4 | 2 |" in text
  assert "| 98 % | 82.4 % | 50.0 +- 0.0 | 50.0 +- 0.0 | 50.0 +- 0.0 |" in text
  text = pages.format_blocks(targets.accuracy_at("conjugate", "Fig2")(runs))
  assert "| d | CLSFSVRG | 16 | 96.14 | 50.00 +- 0.00 | 48 |" in text
  assert targets.accuracy_at("conjugate", "Fig2")([rising("X", 1)]) == []


def test_median_counts_a_seed_that_never_gets_there():
  assert targets.median([3, None, 5]) == 5
  assert targets.median([3, None, None]) is None


def test_claims_of_rounds_are_no_claims_of_the_end():
  rows = report.compare_with_paper(
    [rising("CLSFSVRG", 48, "d")],
    report.load_claims("conjugate", "fig2"),
    "global",
    "accuracy",
  )
  assert rows[0].claim is None


def _all_statements():
  return [
    *diversified.comparison_claims("Fig1", "accuracy"),
    *diversified.FIG8,
    *diversified.FIG9,
    *diversified.FIG10,
    *conjugate.FIG2,
    *conjugate.FIG3,
    *conjugate.FIG4,
    *conjugate.FIG5,
    *conjugate.FIG6,
  ]


@pytest.mark.program
@pytest.mark.parametrize("rounds", [20, 100])
def test_every_statement_can_be_judged(rounds):
  """Methods that are alike everywhere: nothing crashes, little holds."""
  rng = np.random.default_rng(0)
  labels = [
    "MA-FSVRG",
    "GA-FSVRG",
    "FedAvg",
    "FedProx",
    "SCAFFOLD",
    "MimeSVRG",
    "LoSAC",
    "CFSVRG",
    "CLSFSVRG",
    "CLSFSVRG-0.1",
    "CLSFSVRG-0.5",
    "CLSFSVRG-0.8",
    "CLSFSVRG-1",
  ]
  runs = [
    outcome(label, rng.uniform(0.8, 0.82, (3, rounds)), panel)
    for panel in "abcd"
    for label in labels
  ]
  words = [verdicts.judge_statement(s, runs)[1] for s in _all_statements()]
  assert set(words) <= {"reached", "worse", "undecided", "not testable"}
  if rounds == 100:
    # No method reaches 98 %, so "50 % fewer rounds" alone stays open.
    assert words.count("not testable") == 1


# Verdicts that an older rule gave and that are wrong.


def around(mean, half, count=3):
  """Three numbers with this mean and half-width of their interval."""
  values = mean + np.linspace(-1, 1, count)
  spread = metrics.estimate_mean(values)
  return mean + (values - mean) * half / spread.ci95


def test_an_interval_of_41_points_is_not_the_same():
  """MA-FSVRG, stated: 72.94 +- 41.61 beside the paper's 95.0."""
  parts = tuple(np.array([value]) for value in around(72.94, 41.61))
  run = pool(flat("MA-FSVRG", 0.7), flat("MA-FSVRG", 0.7))
  claim = report.Claim("Fig2", "a", "MA-FSVRG", "macro_precision", 95.0, "%", "", None)
  for paper, verdict in (
    (claim, "undecided: wide interval"),
    (None, "no number in the paper"),
  ):
    comparison = report.PaperComparison(run, "macro_precision", parts, paper)
    assert comparison.verdict == verdict
  assert verdicts.same(around(72.94, 41.61), 95.0).holds is None


def test_an_interval_that_touches_0_does_not_show_that_nothing_is_gained():
  """FedGrouProx - FedGroup: +0.42 +- 0.42, claimed not to be above."""
  levels = around(0.42, 0.421) / 100
  runs = [flat("FGP-EDC", *(0.9 + levels)), flat("FG-EDC", *[0.9] * 3)]
  runs = [of_clients(o) for o in runs]
  (claim,) = [s for s in fedgroup.FIG3 if "not above" in s.text]
  assert judge(claim, runs)[:2] == ("a: +0.42 +- 0.42", "undecided")


def test_a_loss_beyond_its_interval_is_a_loss():
  """CLSFSVRG from 20 to 5 %: -0.29 +- 0.09, claimed to lose nothing."""
  runs = [
    flat(label, *(0.98 + lost / 100), panel=panel)
    for label in ("CLSFSVRG", "CFSVRG")
    for panel, lost in (("a", np.zeros(3)), ("d", around(-0.29, 0.09)))
  ]
  (claim,) = [s for s in conjugate.FIG2 if "lose nothing" in s.text]
  assert verdicts.judge_statement(claim, runs)[1] == "worse"
  assert verdicts.not_below(around(0.01, 0.1), 0.0).holds
  assert verdicts.not_below(around(0.01, 0.9), 0.0).holds is None


def test_more_than_seven_times_as_long_is_not_a_little_longer(monkeypatch):
  """On other hardware, so it is measured and decides nothing."""
  runs = [
    outcome("CLSFSVRG", [[0.5] * 7 + [0.97]] * 3, "d"),
    outcome("LoSAC", [[0.5] * 7 + [0.97]] * 3, "d"),
  ]
  slightly, _ = conjugate.fig8((0.965,))
  for seconds, measure, holds in ((0.076, "7.6 times", False), (0.012, "1.2", True)):
    central(monkeypatch, CLSFSVRG=seconds, LoSAC=0.01)
    measured, verdict, reason = judge(slightly, runs)
    assert measure in measured
    assert (verdict, reason) == (rule.NOT_TESTABLE, rule.HARDWARE)
    assert bool(slightly.check(runs).holds) is holds


def test_a_saving_on_the_weaker_variant_is_not_enough():
  """82.4 % on one variant of LoSAC, 64 % on the other."""
  (claim,) = conjugate.fig7(0.965)
  runs = [
    outcome("CLSFSVRG", [[0.5, 0.97]] * 3, "d"),
    outcome("LoSAC", [[0.5, 0.6]] * 3, "d", floats=100),
  ]
  assert verdicts.judge_statement(claim, runs)[1] == "not testable"
  runs.append(outcome("LoSAC, client", [[0.5, 0.97]] * 3, "d", floats=28))
  measured, verdict, _ = judge(claim, runs)
  assert verdict == "worse" and "LoSAC, client: +64.3" in measured


def pool(*parts):
  return suite._pool(parts)


def test_the_interval_is_over_the_means_of_the_partitions():
  first, second = flat("A", 0.9, 0.92), flat("A", 0.8, 0.82)
  pooled = pool(first, second)
  late = pooled.frames.estimate("last_10", "global", "accuracy")
  assert late.values == pytest.approx([0.91, 0.81])
  assert late.ci95 == pytest.approx(metrics.estimate_mean([0.91, 0.81]).ci95)
  for measure in (
    verdicts.late("accuracy"),
    verdicts.mean_over(1, 5),
    verdicts.best("accuracy"),
  ):
    np.testing.assert_allclose(measure(pooled), [91, 81])
  assert (pooled.frames.num_partitions, pooled.frames.seeds) == (2, [0, 1])
  assert len(verdicts.rounds_until(0.85)(pooled)) == 4
  assert list(pooled.frames.reached("global", "accuracy", 0.98)) == [np.inf] * 4


def test_another_partition_may_undo_what_seeds_show():
  """Seeds alone are 5 points apart for sure; a second partition disagrees."""
  above = verdicts.Statement(
    "p", "f", "", verdicts.higher("A", "B", verdicts.late("accuracy"))
  )
  first = [flat("A", 0.9, 0.9, 0.9), flat("B", 0.85, 0.85, 0.85)]
  second = [flat("A", 0.7, 0.7, 0.7), flat("B", 0.8, 0.8, 0.8)]
  assert verdicts.judge_statement(above, first)[1] == "reached"
  both = [pool(*pair) for pair in zip(first, second)]
  assert verdicts.judge_statement(above, both)[1] == "undecided"


def test_the_first_partition_is_that_of_the_plain_run():
  cell = suite.Cell("a", "A", "A", shown.config_of("--partition_seed=5"))

  def parts(which):
    return [
      (part.config.data.partition_seed, config.layer_words(part.config.layers)[2:])
      for part in cell.on(which)
    ]

  assert parts(3) == [
    (5, []),
    (6, ["--partition_seed=6"]),
    (7, ["--partition_seed=7"]),
  ]
  assert parts((5, 9)) == [(5, []), (9, ["--partition_seed=9"])]


def test_a_table_says_what_its_intervals_cover():
  plain = flat("A", 0.9, 0.9, 0.9)
  assert "over 3 seeds of one partition" in partitions.describe_intervals([plain])
  assert "of one seed has none" not in partitions.describe_intervals([plain])
  mixed = partitions.describe_intervals([plain, flat("A", 0.9)])
  assert "over 1 or 3 seeds" in mixed and "A run of one seed has none" in mixed
  words = partitions.describe_intervals([pool(plain, plain)])
  assert "over 2 partitions of the data" in words
  assert words.endswith("each with the mean of 3 seeds.")
  assert "no interval" in partitions.describe_intervals([flat("A", 0.9)])


def test_several_models_are_shown_by_their_mean():
  """The best of K on test data is never what is judged."""
  run = flat("MA", 0.9, 0.9)
  mean = run.frames.of_protocol("global", new_name="global_mean").metrics
  mean.loc[mean["metric"] == "accuracy", "value"] = 0.6
  first, last = (
    run.frames.of_protocol(name, new_name=name).metrics for name in ("global", "train")
  )
  both = dataclasses.replace(run.frames, metrics=pd.concat([first, mean, last]))
  fair = run._replace(frames=shared_runs.name_protocols(both))
  assert fair.frames.protocols == ["global", "train", "global_best"]
  assert not np.isfinite(fair.frames.reached("global", "accuracy", 0.7)).any()
  np.testing.assert_allclose(verdicts.late("accuracy")(fair), 60)
  np.testing.assert_allclose(verdicts.late("accuracy", "global_best")(fair), 90)
  np.testing.assert_allclose(verdicts.mean_over(1, 5)(fair), 60)
  alone = flat("A", 0.9)
  assert shared_runs.name_protocols(alone.frames) is alone.frames


def test_savings_count_each_partition_once():
  parts = [rising("A", 20)] * 3
  saved = targets.saved_percent(
    [10, 20, 30, 40, None, 5], [20, 20, 60, 60, 9, 10], parts
  )
  # In the third partition both get there with one seed alone.
  np.testing.assert_allclose(saved, [25.0, (50 + 100 / 3) / 2, 50.0])
  np.testing.assert_allclose(
    targets.saved_percent([10, None, 30], [20, 8, 60]), [50.0, 50.0]
  )
  with pytest.raises(verdicts.NotRun):
    targets.saved_percent([None, 3], [4, None], parts[:2])


def test_replicas_count_as_seeds_and_mark_what_rounding_decides():
  """GA-FSVRG reached 1 of 4 numbers on one machine and 3 of 4 on another."""
  run = suite.Cell("a", "a", "A", shown.config_of(), replicas=3)
  assert [cell.config.values["rounding_seed"] for cell in run.runs_on(2)] == (
    [0, 1, 2] * 2
  )

  def with_replicas(*levels):
    first, *others = (flat("A", level, level) for level in levels)
    cell = dataclasses.replace(first.cell, replicas=len(levels))
    return first._replace(cell=cell, replicas=tuple(others))

  pooled = pool(with_replicas(0.98, 0.97, 0.98), with_replicas(0.98, 0.98, 0.98))
  claim = report.Claim("Fig1", "a", "A", "test_accuracy", 98.0, "%", "", None, "98")
  measure = verdicts.late("accuracy")
  parts = partitions.measure_parts(measure, pooled)
  assert rule.list_values(parts) == "98 98 97 97 98 98; 98 98 98 98 98 98"
  # Comparisons seed by seed are those of the runs themselves.
  np.testing.assert_allclose(measure(pooled), [98.0, 98.0])
  answer = report.answer_number(parts, claim, replicas=3)
  assert (answer.verdict, answer.rounding) == ("undecided", "chaotic")
  (row,) = report.compare_with_paper([pooled], [claim], "global", "accuracy")
  assert row.verdict == "undecided: wide interval, chaotic"
  assert row.prediction.mean == pytest.approx(np.mean([97 + 2 / 3, 98]))
  calm = report.answer_number(parts[1:] * 2, claim, replicas=3)
  assert (calm.verdict, calm.rounding) == ("reached", "")


def test_a_number_of_pooled_runs_has_an_interval_over_partitions():
  pooled = pool(*(rising("A", at, "d") for at in (20, 30, 40)))
  claim = report.Claim("Fig2", "d", "A", "rounds_to_98%", 30.0, "rounds", "", None)
  parts = partitions.measure_parts(verdicts.rounds_until(0.98), pooled)
  assert [len(part) for part in parts] == [2, 2, 2]
  answer = report.answer_number(parts, claim)
  spread = metrics.estimate_mean([20.0, 30.0, 40.0])
  assert answer.ours == metrics.format_estimate(spread)
  assert answer.values == ((20.0, 20.0), (30.0, 30.0), (40.0, 40.0))
  assert answer.draw95 == pytest.approx(2 * spread.ci95, rel=1e-3)


def test_the_accuracy_at_a_round_has_an_interval_over_partitions():
  levels = (0.95, 0.96, 0.98)
  pooled = pool(
    *(flat("MimeSVRG", level, level, panel="d", rounds=100) for level in levels)
  )
  text = pages.format_blocks(targets.accuracy_at("conjugate", "Fig2")([pooled]))
  estimate = metrics.estimate_mean([100 * v for v in levels])
  assert metrics.format_estimate(estimate) in text


@pytest.mark.parametrize(
  "rounds, words",
  [
    ([7.0, 9.0, 6.0], "7, 6 to 9"),
    ([80.0, None, 64.0], "80, 64 to not in 100"),
    ([None, None, 64.0], "not in 100, 64 to not in 100"),
    ([3.0, 3.0, 3.0], "3"),
    ([None, None], "not in 100"),
  ],
)
def test_a_median_of_rounds_has_its_range(rounds, words):
  """A seed that never gets there is behind all others."""
  assert targets.format_rounds(rounds, 100, spread=True) == words
