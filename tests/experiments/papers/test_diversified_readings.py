"""Figs. 5 to 7 by the readings of what the paper leaves open."""

import pytest

from experiments.papers.diversified import figures as diversified, readings
from experiments.reports import figures, suite

PAPER = diversified.PAPER


@pytest.fixture(scope="module", name="cells")
def fixture_cells():
  figure = PAPER.figures["readings_cifar10"]
  return {(cell.panel, cell.label): cell for cell in figures.cells(
      PAPER, figure, figures.Request(None, (), "here"))}


def test_one_reading_is_changed_at_a_time(cells):
  plain = {k: cells["a", f"{k}-FSVRG"].config for k in ("MA", "GA")}
  shared = figures.cells(
      PAPER, PAPER.figures["fig5"],
      figures.Request(None, (), "here", lines=("MA-FSVRG", "GA-FSVRG")))
  assert {c.config.identity() for c in shared if c.panel == "a"} == {
      config.identity() for config in plain.values()}
  for (panel, label), cell in cells.items():
    if panel != "a" or ", " not in label:
      continue
    one = plain[label[:2]]
    changed = {k for k, v in cell.config.hparams.items()
               if one.hparams[k] != v}
    changed |= {k for k, v in cell.config.values.items()
                if one.values[k] != v}
    if cell.config.hparams.get("group_mean") == "models":
      changed.discard("gradient_step")  # a step that is not taken
    assert changed == {{"own anchors": "anchors", "means of models":
                        "group_mean", "L2 = 0.01 / n_i": "l2"}[
                            label.split(", ")[1]]}
  assert cells["e", "pooled optimum"].config.algorithm == "central"
  assert len(cells) == 4 * 7 + 1


def test_both_readings_of_what_is_measured_stand_beside_the_number(cells):
  def late(value):
    return {metric: {"mean": value, "ci95": 0.001, "values": [value] * 3}
            for metric in readings.METRICS.values()}

  cell = cells["a", "GA-FSVRG, L2 = 0.01 / n_i"]  # nothing chosen on test data
  text = readings.table([suite.Outcome(cell, None, [], {"mean_last_10": {
      "global": late(0.5), "preferred": late(0.95)}})])
  words = text.splitlines()[-1].split(" | ")
  assert words[2:5] == [
      "88", "50.00 +- 0.00 (below)", "95.00 +- 0.00 (above)"]
