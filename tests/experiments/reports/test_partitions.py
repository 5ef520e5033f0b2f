"""Runs on several partitions are pooled; each partition counts once."""

import numpy as np
import pytest

from experiments.reports import answers, cost_to_accuracy, partitions, report
from experiments.reports import suite, verdicts
from fedjax_alg.records import summary as results
from tests.experiments.reports import test_verdicts as made

pytestmark = pytest.mark.fast


def pool(*parts):
  return suite._pool(parts)


def test_the_interval_is_over_the_means_of_the_partitions():
  one, two = made.flat("A", 0.9, 0.92), made.flat("A", 0.8, 0.82)
  found = pool(one, two)
  late = found.summary["mean_last_10"]["global"]["accuracy"]
  assert late["values"] == pytest.approx([0.91, 0.81])
  assert late["ci95"] == pytest.approx(results.spread([0.91, 0.81])["ci95"])
  for measure in (verdicts.late("accuracy"), verdicts.mean_over(1, 5),
                  verdicts.best("accuracy")):
    np.testing.assert_allclose(measure(found), [91, 81])
  assert {r["seed"] for r in found.rows} == {
      0, 1, partitions.STRIDE, partitions.STRIDE + 1}
  assert len(verdicts.rounds_to(0.85)(found)) == 4
  assert [r["round"] for r in found.rows] == sorted(
      r["round"] for r in found.rows)
  assert found.summary["rounds_to"]["0.98"]["values"] == [None] * 4


def test_another_partition_may_undo_what_seeds_show():
  """Seeds alone are 5 points apart for sure; a second partition disagrees."""
  above = verdicts.Statement("p", "f", "", verdicts.higher(
      "A", "B", verdicts.late("accuracy")))
  first = [made.flat("A", 0.9, 0.9, 0.9), made.flat("B", 0.85, 0.85, 0.85)]
  second = [made.flat("A", 0.7, 0.7, 0.7), made.flat("B", 0.8, 0.8, 0.8)]
  assert verdicts.judge(above, first)[1] == "holds"
  both = [pool(*pair) for pair in zip(first, second)]
  assert verdicts.judge(above, both)[1] == "undecided"


def test_the_first_partition_is_that_of_the_plain_run():
  cell = suite.Cell("a", "A", "A", ("--algorithm=fedavg",
                                    "--partition_seed=5"))
  assert [one.flags[2:] for one in cell.on(3)] == [
      (), ("--partition_seed=6",), ("--partition_seed=7",)]
  assert [one.flags[2:] for one in cell.on((5, 9))] == [
      (), ("--partition_seed=9",)]


def test_a_table_says_what_its_intervals_cover():
  plain = made.flat("A", 0.9, 0.9, 0.9)
  assert "over 3 seeds of one partition" in partitions.said([plain])
  assert "of one seed has none" not in partitions.said([plain])
  mixed = partitions.said([plain, made.flat("A", 0.9)])
  assert "over 1 or 3 seeds" in mixed and "A run of one seed has none" in mixed
  words = partitions.said([pool(plain, plain)])
  assert "over 2 partitions of the data" in words
  assert words.endswith("each with the mean of 3 seeds.")
  assert "no interval" in partitions.said([made.flat("A", 0.9)])


def test_several_models_are_shown_by_their_mean():
  """The best of K on test data is never what is judged."""
  run = made.flat("MA", 0.9, 0.9)
  rows = [row | {"protocol": "global_mean", "accuracy": 0.6}
          for row in run.rows if row["protocol"] == "global"]
  run = run._replace(rows=[*run.rows, *rows])
  found = suite.fair(run._replace(summary=run.summary | results.summarise(
      run.rows, (0.98,))))
  np.testing.assert_allclose(verdicts.late("accuracy")(found), 60)
  np.testing.assert_allclose(
      verdicts.late("accuracy", "global_best")(found), 90)
  np.testing.assert_allclose(verdicts.mean_over(1, 5)(found), 60)
  assert suite.fair(made.flat("A", 0.9)).rows == made.flat("A", 0.9).rows


def test_savings_count_each_partition_once():
  parts = [made.rising("A", 20)] * 3
  saved = cost_to_accuracy.saving(
      [10, 20, 30, 40, None, 5], [20, 20, 60, 60, 9, 10], parts)
  # In the third partition both get there with one seed alone.
  np.testing.assert_allclose(saved, [25.0, (50 + 100 / 3) / 2, 50.0])
  np.testing.assert_allclose(
      cost_to_accuracy.saving([10, None, 30], [20, 8, 60]), [50.0, 50.0])
  with pytest.raises(verdicts.NotRun):
    cost_to_accuracy.saving([None, 3], [4, None], parts[:2])


def test_a_number_of_pooled_runs_has_an_interval_over_partitions():
  pooled = pool(*(made.rising("A", at, "d") for at in (20, 30, 40)))
  claim = report.Claim(
      "Fig2", "d", "A", "rounds_to_98%", 30.0, "rounds", "", None)
  measured = verdicts.rounds_to(0.98)(pooled)
  assert len(measured) == 6
  said, _ = answers.number(measured, claim, parts=pooled.parts)
  assert said == results.shown(results.spread([20.0, 30.0, 40.0]))
  said, _ = answers.number(measured, claim)
  assert said == results.shown(results.spread(measured))


def test_the_accuracy_at_a_round_has_an_interval_over_partitions():
  levels = (0.95, 0.96, 0.98)
  pooled = pool(*(made.flat("MimeSVRG", level, level, panel="d", rounds=100)
                  for level in levels))
  text = cost_to_accuracy.accuracy_at("conjugate", "Fig2")([pooled])
  assert results.shown(results.spread([100 * v for v in levels])) in text
