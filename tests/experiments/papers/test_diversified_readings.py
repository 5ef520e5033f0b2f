"""Figs. 5 to 7 by the readings of what the paper leaves open."""


from experiments.papers.diversified import figures as diversified, readings
from experiments.reports import suite
from tests.experiments import shown

PAPER = diversified.PAPER


def test_both_readings_of_what_is_measured_stand_beside_the_number():
  def late(value):
    return {metric: {"mean": value, "ci95": 0.001, "values": [value] * 3}
            for metric in readings.METRICS.values()}

  cell = shown.cell("diversified", "readings_cifar10", "a",
                    "GA-FSVRG, L2 = 0.01 / n_i")  # nothing chosen on test data
  text = readings.table([suite.Outcome(cell, None, [], {"mean_last_10": {
      "global": late(0.5), "preferred": late(0.95)}})])
  words = text.splitlines()[-1].split(" | ")
  assert words[2:5] == [
      "88", "50.00 +- 0.00 (below)", "95.00 +- 0.00 (above)"]
