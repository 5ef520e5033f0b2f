"""Every kind of verdict, from made-up outcomes."""

import dataclasses
import pathlib

import numpy as np
import pytest

from experiments.reports import report, suite, cost_to_accuracy as targets
from experiments.reports import verdicts
from fedjax_alg.records import tables as records, summary as results
from experiments.papers.conjugate import claims as conjugate
from experiments.papers.diversified import claims as diversified
from experiments.papers.fedgroup import claims as fedgroup

pytestmark = pytest.mark.fast


def outcome(label, curves, panel="a", loss=None, floats=10, steady=0.1,
            down=2, up=3, how="tuned"):
  """A run whose accuracy is ``curves`` [seeds][rounds], from round 1 on."""
  rows = []
  for seed, curve in enumerate(np.atleast_2d(np.asarray(curves, float))):
    for number, value in enumerate(curve, 1):
      here = {"accuracy": value,
              "loss": 1 - value if loss is None else loss[number - 1]}
      for protocol in ("global", "train"):
        rows.append({
            "round": number, "seed": seed, "protocol": protocol,
            **dict.fromkeys(records.COLUMNS[3:], 0.5), **here,
            "floats_down": down, "floats_up": up,
            "total_floats": floats * number, "seconds": steady * number})
  rows.sort(key=lambda r: (r["round"], r["seed"]))
  summary = {**results.summarise(rows, (0.98,)),
             "cost": results.cost(rows, 2, rows),
             "timing": {"steady_s_per_round": steady}}
  cell = suite.Cell(panel, f"panel {panel}", label, (), protocol=how)
  return suite.Outcome(cell, pathlib.Path("nowhere"), rows, summary)


def flat(label, *levels, panel="a", rounds=20, how="tuned"):
  """One level a seed, in every round."""
  return outcome(label, [[level] * rounds for level in levels], panel,
                 how=how)


ABOVE = verdicts.Statement(
    "p", "Fig1", "A above B",
    verdicts.higher("A", "B", verdicts.late("accuracy")))


@pytest.mark.parametrize("a,b,word", [
    ((0.9, 0.91, 0.9), (0.8, 0.8, 0.81), "holds"),
    ((0.7, 0.71, 0.7), (0.8, 0.8, 0.81), "does not hold"),
    ((0.8, 0.9, 0.7), (0.8, 0.8, 0.79), "undecided"),
    ((0.9,), (0.8,), "undecided")])
def test_difference(a, b, word):
  measured, verdict = verdicts.judge(ABOVE, [flat("A", *a), flat("B", *b)])
  assert verdict == word
  assert measured.startswith("a: ") and (" +- " in measured) == (len(a) > 1)


def test_other_data_than_the_papers_decide_nothing():
  """Panel b is on a stand-in: it is shown, and the others decide."""

  def on(panel, more, *levels):
    runs = [flat("A", *levels, panel=panel), flat("B", 0.8, 0.8, 0.81,
                                                  panel=panel)]
    return [o._replace(cell=dataclasses.replace(o.cell, chosen=more))
            for o in runs]

  above, below = (0.9, 0.91, 0.9), (0.7, 0.71, 0.7)
  for more, word in (("", "does not hold"), ("stand-in, data", "holds"),
                     ("stand-in, sizes", "holds"),
                     ("stand-in, dirichlet_alpha", "does not hold")):
    measured, verdict = verdicts.judge(
        ABOVE, [*on("a", "", *above), *on("b", more, *below)])
    assert verdict == word and "; b: " in measured
    assert ("not judged: b" in measured) == (word == "holds")
  alone = on("b", "stand-in, data", *above)
  assert verdicts.judge(ABOVE, alone)[1] == "not comparable"
  # A sentence on every panel that there is does not hold of none.
  (claim,) = [s for s in fedgroup.FIG3 if "not above" in s.text]
  runs = [flat(label, 0.9, 0.9, 0.9, panel="b")
          for label in ("FGP-EDC", "FG-EDC")]
  runs = [o._replace(
      cell=dataclasses.replace(o.cell, chosen="stand-in, data"),
      summary=o.summary | {"best": {"local": o.summary["best"]["global"]}})
          for o in runs]
  assert verdicts.judge(claim, runs)[1] == "not comparable"


def test_missing_method_is_not_run():
  measured, verdict = verdicts.judge(ABOVE, [flat("A", 0.9)])
  assert verdict == "not run" and "B" in measured


def test_one_panel_against_is_enough():
  found = [flat("A", 0.9, 0.9), flat("B", 0.8, 0.8),
           flat("A", 0.7, 0.7, panel="b"), flat("B", 0.8, 0.8, panel="b")]
  measured, verdict = verdicts.judge(ABOVE, found)
  assert verdict == "does not hold"
  assert measured == "a: +10.00 +- 0.00; b: -10.00 +- 0.00"


def test_section():
  text = verdicts.section([ABOVE], [flat("A", 0.9), flat("B", 0.8)])
  assert text.splitlines()[0] == (
      "## What is said in words")
  assert "| A above B | a: +10.00 | too close to call |" in text.splitlines()
  stated = [flat("A", 0.7, 0.7, how="stated"),
            flat("B", 0.8, 0.8, how="one rate")]
  text = verdicts.section(
      [ABOVE], [flat("A", 0.9, 0.9), flat("B", 0.8, 0.8), *stated])
  assert ("| A above B | a: +10.00 +- 0.00 | holds | a: -10.00 +- 0.00 | does "
          "not hold |") in text
  text = verdicts.section([ABOVE], [flat("A", 0.9), flat("B", 0.8)])
  assert "One seed" in text
  text = verdicts.section([ABOVE], [flat("A", 0.9, 0.8), flat("B", 0.8)])
  assert "One seed" not in text
  assert verdicts.section((), []) == ""


def test_above_all_is_decided_by_the_closest():
  check = verdicts.higher_than_all(("A",), verdicts.late("accuracy"))
  found = [flat("A", 0.9, 0.9), flat("B", 0.7, 0.7), flat("C", 0.89, 0.89)]
  assert check(found) == (True, "a: A - C +1.00 +- 0.00")
  assert check([*found, flat("D", 0.95, 0.95)]).holds is False
  below = verdicts.higher_than_all(
      ("B",), verdicts.late("accuracy"), sign=-1)
  assert below(found) == (True, "a: B - C -19.00 +- 0.00")


def test_growth_over_panels():
  found = [flat("A", 0.8, 0.8), flat("A", 0.9, 0.9, panel="d")]
  assert verdicts.grows("A", verdicts.late("accuracy"))(found).holds
  assert verdicts.grows(
      "A", verdicts.late("accuracy"), -1)(found).holds is False
  with pytest.raises(verdicts.NotRun):
    verdicts.grows("A", verdicts.late("accuracy"))(found[:1])


@pytest.mark.parametrize("a,b,tie,exact,holds", [
    ([98.2, 98.21], 98.0, 0.3, False, True),
    (98.2, 98.0, 0.3, True, True), (98.2, 97.0, 0.3, True, False),
    (98.2, 98.0, 0.3, False, None),  # one run
    ([98.5, 98.51, 98.49], 98.0, 0.3, False, False),
    # Within the interval, which is too wide to say so.
    ([98.0, 99.0, 97.5], [98.5, 97.0, 97.5], 0.3, False, None),
    ([98.0, 98.0], [97.99, 97.99], 0.0, False, False)])
def test_same(a, b, tie, exact, holds):
  assert verdicts.same(a, b, tie, exact).holds is holds


@pytest.mark.parametrize("a,exact,holds,measured", [
    (0.01, True, True, "+0.01"), (-0.01, True, False, "-0.01"),
    (0.01, False, None, "+0.01"), (0.0, True, False, "+0.00"),
    ([-0.2, -0.21, -0.19], False, False, "-0.20 +- 0.02"),
    ([-0.2, -0.6, 0.2], False, None, "-0.20 +- 0.99")])
def test_above_decides_by_the_sign(a, exact, holds, measured):
  """A small difference counts as much as a large one; a tie does not apply."""
  assert verdicts.above(a, 0.0, exact=exact) == (holds, measured)


@pytest.mark.parametrize("values,holds", [
    ([5.0, 5.1, 5.2], True), ([8.5, 8.6, 8.7], False), ([7.0, 8.0, 9.0], None),
    ([5.0], None)])
def test_a_range_holds_the_whole_interval(values, holds):
  assert verdicts.within(values, 4.0, 8.0).holds is holds


def test_columns_of_rounds(monkeypatch):
  monkeypatch.setattr(suite.Outcome, "rounds", lambda self: [
      {"round": n, "seed": s, "discrepancy": 10.0 * s + n}
      for n in (1, 2, 3, 4) for s in (0, 1)])
  run = flat("A", 0.5)
  np.testing.assert_array_equal(
      verdicts.of_rounds("discrepancy")(run), [2.5, 12.5])
  np.testing.assert_array_equal(
      verdicts.of_rounds("discrepancy", np.max, last=3)(run), [3, 13])


def test_wobble_and_speed():
  calm, wild = flat("A", 0.9, rounds=40), outcome("B", [[0.8, 1.0] * 20])
  assert verdicts.wobble()(calm)[0] == pytest.approx(0)
  assert verdicts.wobble()(wild)[0] == pytest.approx(10)
  np.testing.assert_allclose(verdicts.mean_over(1, 5)(wild), 88.0)
  with pytest.raises(verdicts.NotRun):
    verdicts.mean_over(41, 50)(calm)
  with pytest.raises(verdicts.NotRun):
    verdicts.wobble()(flat("A", 0.9, rounds=30))


def rising(label, at, panel="a", seeds=2, end=100, how="tuned"):
  """Reaches 98 % in round ``at`` (None: never)."""
  curve = [0.5 if at is None or n < at else 0.985 for n in range(1, end + 1)]
  return outcome(label, [curve] * seeds, panel, how=how)


@pytest.mark.parametrize("own,other,words", [
    (40, None, ["holds", "holds", "not run"]),
    (40, 90, ["holds", "does not hold", "holds"]),
    (40, 60, ["holds", "does not hold", "does not hold"]),
    (80, 60, ["does not hold"] * 3)])
def test_rounds_to_98(own, other, words):
  found = [rising("CLSFSVRG", own), rising("FedAvg", other)]
  assert [verdicts.judge(s, found)[1] for s in conjugate.FIG2[:3]] == words


def test_a_short_run_says_nothing_of_100_rounds():
  found = [rising("CLSFSVRG", None, end=30), rising("FedAvg", None, end=30)]
  assert {verdicts.judge(s, found)[1] for s in conjugate.FIG2[:3]} == {
      "not run"}


@pytest.mark.parametrize("floats,word", [
    (100, "holds"), (40, "does not hold")])
def test_communication_saved(floats, word):
  found = [outcome("CLSFSVRG", [[0.5, 0.97]] * 2, "d"),
           *(outcome(label, [[0.5, 0.97]] * 2, "d", floats=floats)
             for label in ("LoSAC", "LoSAC, client"))]
  (statement,) = conjugate.fig7(0.965)
  measured, verdict = verdicts.judge(statement, found)
  saved = f"{100 - 1000 / floats:+.1f} +- 0.0 %"
  assert (verdict, measured) == (
      word, f"LoSAC: {saved}; LoSAC, client: {saved}")


@pytest.mark.parametrize("floats,word", [
    (100, "holds"), (40, "undecided")])
def test_one_that_never_gets_there_gives_a_bound(floats, word):
  """What LoSAC has spent by then: enough for the claim, or undecided."""
  found = [outcome("CLSFSVRG", [[0.5, 0.97]] * 2, "d"),
           outcome("LoSAC", [[0.5, 0.6]] * 2, "d", floats=floats),
           outcome("LoSAC, client", [[0.5, 0.97]] * 2, "d", floats=100)]
  (statement,) = conjugate.fig7(0.965)
  measured, verdict = verdicts.judge(statement, found)
  assert verdict == word
  assert f"LoSAC: more than {100 - 1000 / floats:+.1f} +- 0.0 %;" in measured


def central(monkeypatch, **seconds):
  monkeypatch.setattr(targets.central_time, "central_seconds",
                      lambda cell: seconds[cell.label])


def test_seconds_of_server_and_clients(monkeypatch):
  found = [outcome("CLSFSVRG", [[0.5, 0.97]] * 2, "d"),
           outcome("LoSAC", [[0.5] * 9 + [0.97]] * 2, "d")]
  central(monkeypatch, CLSFSVRG=0.02, LoSAC=0.01)
  server, clients = targets.seconds(found[0], 0.965)
  assert server == pytest.approx([0.04] * 2)
  assert clients == pytest.approx([0.16] * 2)
  more, less = conjugate.fig8((0.965,))
  # 2 rounds of .02 s against 10 of .01 s: less, not more, server time.
  assert verdicts.judge(more, found)[1] == "does not hold"
  assert verdicts.judge(less, found) == ("+80.0 +- 0.0 %", "holds")


def test_tables_of_targets(monkeypatch):
  monkeypatch.setattr(suite.Outcome, "rounds", lambda self: [
      {"round": n, "seed": s, "floats_up": 3} for n in range(1, 101)
      for s in (0, 1)])
  found = [rising("CLSFSVRG", 48), rising("LoSAC", None)]
  text = targets.rounds_table("conjugate", "Fig2", 0.98)(found)
  assert "| CLSFSVRG | 48 (48) |" in text
  assert "| LoSAC | not in 100 (not in 100) |" in text
  found = [rising("CLSFSVRG", 48, "d"), rising("LoSAC", 96, "d")]
  text = targets.communication(found, (0.98,), "CLSFSVRG", "LoSAC", 82.4)
  assert "| 98 % | LoSAC | 96 | 10 | 960 | 4 | 2 |" in text
  assert ("| 98 % | 82.4 % | 50.0 +- 0.0 | 50.0 +- 0.0 | 50.0 +- 0.0 |"
          in text)
  text = targets.accuracy_at("conjugate", "Fig2")(found)
  assert "| d | CLSFSVRG | 16 | 96.14 | 50.00 +- 0.00 | 48 | 48, 48 |" in text
  assert targets.accuracy_at("conjugate", "Fig2")([rising("X", 1)]) == ""


def test_median_counts_a_seed_that_never_gets_there():
  assert targets.median([3, None, 5]) == 5
  assert targets.median([3, None, None]) is None


def test_claims_of_rounds_are_no_claims_of_the_end():
  found = report.compare([rising("CLSFSVRG", 48, "d")], report.load_claims(
      "conjugate", "fig2"), "global", "accuracy")
  assert found[0].paper is None


def _all_statements():
  return [*diversified.compared("Fig1", "accuracy"), *diversified.FIG8,
          *diversified.FIG9, *diversified.FIG10, *conjugate.FIG2,
          *conjugate.FIG3, *conjugate.FIG4, *conjugate.FIG5, *conjugate.FIG6]


@pytest.mark.parametrize("rounds", [20, 100])
def test_every_statement_can_be_judged(rounds):
  """Methods that are alike everywhere: nothing crashes, little holds."""
  rng = np.random.default_rng(0)
  labels = ["MA-FSVRG", "GA-FSVRG", "FedAvg", "FedProx", "SCAFFOLD",
            "MimeSVRG", "LoSAC", "CFSVRG", "CLSFSVRG", "CLSFSVRG-0.1",
            "CLSFSVRG-0.5", "CLSFSVRG-0.8", "CLSFSVRG-1"]
  found = [outcome(label, rng.uniform(0.8, 0.82, (3, rounds)), panel)
           for panel in "abcd" for label in labels]
  words = [verdicts.judge(s, found)[1] for s in _all_statements()]
  assert set(words) <= {"holds", "does not hold", "undecided", "not run"}
  if rounds == 100:
    # No method reaches 98 %, so "50 % fewer rounds" alone stays open.
    assert words.count("not run") == 1


# Verdicts that an older rule gave and that are wrong.


def around(mean, half, count=3):
  """Three numbers with this mean and half-width of their interval."""
  values = mean + np.linspace(-1, 1, count)
  found = results.spread(values)
  return mean + (values - mean) * half / found["ci95"]


def test_an_interval_of_41_points_is_not_the_same():
  """MA-FSVRG, stated: 72.94 +- 41.61 beside the paper's 95.0."""
  row = report.Comparison(
      flat("MA-FSVRG", 0.7), "macro_precision", 95.0, 72.94, 41.61)
  assert row.verdict == "undecided"
  assert verdicts.same(around(72.94, 41.61), 95.0).holds is None


def test_an_interval_that_touches_0_does_not_show_that_nothing_is_gained():
  """FedGrouProx - FedGroup: +0.42 +- 0.42, claimed not to be above."""
  levels = around(0.42, 0.421) / 100
  found = [flat("FGP-EDC", *(0.9 + levels)), flat("FG-EDC", *[0.9] * 3)]
  found = [o._replace(summary=o.summary | {"best": {
      "local": o.summary["best"]["global"]}}) for o in found]
  (claim,) = [s for s in fedgroup.FIG3 if "not above" in s.text]
  assert verdicts.judge(claim, found) == ("a: +0.42 +- 0.42", "undecided")


def test_a_loss_beyond_its_interval_is_a_loss():
  """CLSFSVRG from 20 to 5 %: -0.29 +- 0.09, claimed to lose nothing."""
  found = [flat(label, *(0.98 + lost / 100), panel=panel)
           for label in ("CLSFSVRG", "CFSVRG")
           for panel, lost in (("a", np.zeros(3)), ("d", around(-0.29, 0.09)))]
  (claim,) = [s for s in conjugate.FIG2 if "lose nothing" in s.text]
  assert verdicts.judge(claim, found)[1] == "does not hold"
  assert verdicts.not_below(around(0.01, 0.1), 0.0).holds
  assert verdicts.not_below(around(0.01, 0.9), 0.0).holds is None


def test_more_than_seven_times_as_long_is_not_a_little_longer(monkeypatch):
  found = [outcome("CLSFSVRG", [[0.5] * 7 + [0.97]] * 3, "d"),
           outcome("LoSAC", [[0.5] * 7 + [0.97]] * 3, "d")]
  slightly, _ = conjugate.fig8((0.965,))
  central(monkeypatch, CLSFSVRG=0.076, LoSAC=0.01)
  measured, verdict = verdicts.judge(slightly, found)
  assert verdict == "does not hold" and "7.6 times" in measured
  central(monkeypatch, CLSFSVRG=0.012, LoSAC=0.01)
  assert verdicts.judge(slightly, found)[1] == "holds"


def test_a_saving_on_the_weaker_variant_is_not_enough():
  """82.4 % on one variant of LoSAC, 64 % on the other."""
  (claim,) = conjugate.fig7(0.965)
  found = [outcome("CLSFSVRG", [[0.5, 0.97]] * 3, "d"),
           outcome("LoSAC", [[0.5, 0.6]] * 3, "d", floats=100)]
  assert verdicts.judge(claim, found)[1] == "not run"
  found.append(outcome("LoSAC, client", [[0.5, 0.97]] * 3, "d", floats=28))
  measured, verdict = verdicts.judge(claim, found)
  assert verdict == "does not hold" and "LoSAC, client: +64.3" in measured
