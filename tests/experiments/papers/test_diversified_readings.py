"""Figs. 5 to 7 by the readings of what the paper leaves open."""

import itertools

import numpy as np
import pytest

from experiments.papers.diversified import own_classes, readings
from experiments.reports import suite
from tests.experiments import shown


def test_one_reading_is_changed_at_a_time():
  cells = {(cell.panel, cell.label): cell
           for cell in shown.cells("diversified", "readings_cifar10")}
  plain = {k: cells["d", f"{k}-FSVRG"].config for k in ("MA", "GA")}
  assert {cell.config.identity()
          for cell in shown.cells("diversified", "fig5")
          if (cell.panel, cell.protocol) == ("d", suite.STATED)} == {
              config.identity() for config in plain.values()}
  for (panel, label), cell in cells.items():
    if panel != "d" or ", " not in label:
      continue
    one = plain[label[:2]]
    changed = {k for k, v in cell.config.hparams.items()
               if one.hparams[k] != v}
    changed |= {k for k, v in cell.config.values.items()
                if one.values[k] != v}
    assert changed == {
        "own anchors": {"anchors"}, "means of models": {"group_mean"},
        "as printed": {"central_rule", "l2_of"},
        "features to 255": {"hog_norm", "hog_scale"}}[label.split(", ")[1]]
  assert cells["e", "pooled optimum"].config.algorithm == "central"
  assert len(cells) == 9 + 1


def test_own_classes_are_those_of_every_pair():
  """As if each machine had two classes and looked at no other."""
  rng = np.random.default_rng(0)
  logits, y = rng.normal(size=(60, 5)), np.arange(60) % 5
  logits[np.arange(60), y] += 1
  pairs = [np.mean([
      max((i, j), key=lambda c, row=row: row[c]) == label
      for row, label in zip(logits, y) if label in (i, j)])
           for i, j in itertools.combinations(range(5), 2)]
  ranks = np.argsort(np.argsort(-logits, axis=1), axis=1)
  found = own_classes.shares(logits, y)
  assert found.own == pytest.approx(100 * np.mean(pairs))
  assert found.top3 == pytest.approx(
      100 * np.mean(ranks[np.arange(60), y] < 3))


def test_both_readings_of_what_is_measured_stand_beside_the_number():
  def late(value):
    return {metric: {"mean": value, "ci95": 0.001, "values": [value] * 3}
            for metric in readings.METRICS.values()}

  cell = shown.cell("diversified", "readings_cifar10", "d",
                    "GA-FSVRG, as printed")  # nothing chosen on test data
  text = readings.table([suite.Outcome(cell, None, [], {"mean_last_10": {
      "global": late(0.5), "preferred": late(0.95)}})])
  words = text.splitlines()[-1].split(" | ")
  assert words[2:5] == [
      "81", "50.00 +- 0.00 (below)", "95.00 +- 0.00 (above)"]
