"""The readings of what the diversified paper leaves open."""

import itertools

import numpy as np
import pytest

from experiments.reproduction import pages, report, suite
from experiments.reproduction.diversified import figures as diversified
from experiments.reproduction.diversified import own_classes, readings
from tests import made_runs
from tests.experiments import shown

PAPER = diversified.PAPER


def test_one_reading_is_changed_at_a_time():
  cells = {
    (cell.panel, cell.label): cell
    for cell in shown.cells("diversified", "readings_cifar10")
  }
  plain = {k: cells["d", f"{k}-FSVRG"].config for k in ("MA", "GA")}
  assert {
    cell.config.identity
    for cell in shown.cells("diversified", "fig5")
    if (cell.panel, cell.protocol) == ("d", suite.STATED)
  } == {config.identity for config in plain.values()}
  for (panel, label), cell in cells.items():
    if panel != "d" or ", " not in label:
      continue
    config = plain[label[:2]]
    changed = {k for k, v in cell.config.hparams.items() if config.hparams[k] != v}
    changed |= {k for k, v in cell.config.values.items() if config.values[k] != v}
    assert (
      changed
      == {
        "own anchors": {"anchors"},
        "means of models": {"group_mean"},
        "as printed": {"central_rule", "l2_of"},
        "features to 255": {"features"},
      }[label.split(", ")[1]]
    )
  assert cells["e", "pooled optimum"].config.algorithm == "central"
  assert len(cells) == 9 + 1


def test_own_classes_are_those_of_every_pair():
  """As if each machine had two classes and looked at no other."""
  rng = np.random.default_rng(0)
  logits, y = rng.normal(size=(60, 5)), np.arange(60) % 5
  logits[np.arange(60), y] += 1
  pairs = [
    np.mean(
      [
        max((i, j), key=lambda c, row=row: row[c]) == label
        for row, label in zip(logits, y)
        if label in (i, j)
      ]
    )
    for i, j in itertools.combinations(range(5), 2)
  ]
  ranks = np.argsort(np.argsort(-logits, axis=1), axis=1)
  actual = own_classes._rank_shares(logits, y)
  assert actual.own == pytest.approx(100 * np.mean(pairs))
  assert actual.top3 == pytest.approx(100 * np.mean(ranks[np.arange(60), y] < 3))


def test_both_readings_of_what_is_measured_stand_beside_the_number():
  cell = shown.cell(
    "diversified", "readings_cifar10", "d", "GA-FSVRG, as printed"
  )  # nothing chosen on test data
  rows = [
    {"round": 1, "seed": seed, "protocol": protocol}
    | dict.fromkeys(readings.METRICS.values(), value)
    for protocol, value in (("global", 0.5), ("preferred", 0.95))
    for seed in range(3)
  ]
  text = pages.format_blocks(
    readings.readings_table([suite.Outcome(cell, None, made_runs.frames_of(rows), {})])
  )
  words = text.splitlines()[-1].split(" | ")
  assert words[2:5] == ["81", "50.00 +- 0.00 (worse)", "95.00 +- 0.00 (better)"]


def test_the_papers_measures_of_one_run_disagree():
  """Reading D-30: recall is below accuracy, and F1 the harmonic mean of two others."""
  values = {
    (row["panel"], row["method"], row["metric"].removeprefix("test_")): float(
      row["value"]
    )
    for row in report.read_claims("diversified")
    if row["artifact"] in ("Fig1", "Fig2", "Fig3", "Fig4") and row["unit"]
  }
  for panel, method in itertools.product("abcd", ("MA-FSVRG", "GA-FSVRG")):
    accuracy, precision, recall, f1 = (
      values[panel, method, metric]
      for metric in ("accuracy", "macro_precision", "micro_recall", "micro_f1")
    )
    assert recall < accuracy / 100 - 0.009
    harmonic = 2 * precision * recall / (precision + recall)
    assert f1 == pytest.approx(harmonic, abs=5e-5)
