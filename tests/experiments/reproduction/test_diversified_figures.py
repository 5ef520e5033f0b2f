"""The ablation, and the readings of what the diversified paper leaves open."""

import itertools
import re
import shutil

import numpy as np
import pytest

from experiments import diversified as command
from experiments.cli import config, presets
from experiments.reproduction import report, suite, tuning
from experiments.reproduction.diversified import ablation, own_classes, readings
from experiments.reproduction.diversified import figures as diversified
from tests.experiments import shown

PAPER = diversified.PAPER


def cells():
  return [cell for cell in shown.cells("diversified", "ablation") if cell.panel == "c"]


@pytest.mark.parametrize(
  "name", ["sgd_average_1", "scaffold_conjugate_2", "svrg_adaptive_4"]
)
def test_what_is_tuned_of_a_combination_is_written_to_its_preset(
  name, tmp_path, monkeypatch
):
  study = tuning.Study("diversified", "mnist", tmp_path)
  assert name in study.names(["ablation"])
  assert name not in study.names(None)
  trials = [
    tuning.Trial(setting, (90.0 + i,))
    for i, setting in enumerate(study.settings(name, 5))
  ]
  start = config.build_config(*study.method_layers(name))
  preset = study.preset_names()[name]
  shutil.copytree(presets.PRESETS, tmp_path, dirs_exist_ok=True)
  monkeypatch.setattr(presets, "PRESETS", tmp_path)
  tuning.write(preset, name, trials, "here", 3)
  hparams = config.parse_config([f"--flagfile={preset}"]).hparams
  assert hparams == start.hparams | trials[-1].setting
  same = {"sgd_average_1": "fedavg", "svrg_adaptive_4": "ma_fsvrg"}.get(name)
  if same:  # an algorithm of the figures has the same settings in both
    assert [trial.setting for trial in trials] == study.settings(same, 5)


def outcome(cell, accuracy, to_target):
  """A run of two seeds, of which only what is read is there."""
  rows = []
  for seed, (value, first) in enumerate(zip(accuracy, to_target)):
    rows += [
      dict(
        round=n,
        seed=seed,
        protocol="global",
        accuracy=0.98 if n >= first else value / 100,
      )
      for n in (10, 20, 30)
    ]
  return suite.Outcome(
    cell,
    None,
    rows,
    dict(
      mean_last_10={"global": {"accuracy": {"values": [v / 100 for v in accuracy]}}}
    ),
  )


def make_outcomes():
  """Parts bring known points: FSVRG 1, SCAFFOLD -1, K 0.1 (K - 1), ..."""
  outcomes = []
  for cell in cells():
    combination = ablation._BY_LABEL[cell.label]
    points = (
      {"FedAvg": 0, "FSVRG": 1, "SCAFFOLD": -1}[combination.local]
      + 0.1 * (combination.models - 1)
      + {"average": 0, "adaptive": 2, "conjugate": 0}[combination.server]
      + (combination == ablation.Combination("FSVRG", "adaptive", 4))
    )
    first = 20 if combination.server == "adaptive" else 30
    if combination.local == "SCAFFOLD":
      first = 99
    # Seeds differ by far more than methods, but all by the same.
    outcomes.append(outcome(cell, (70 + points, 90 + points), (first, first)))
  return outcomes


def row(text, start):
  (line,) = [line for line in text.splitlines() if line.startswith(f"| {start}")]
  return [word.strip() for word in line.split("|")[1:-1]]


def test_parts_bring_what_they_were_given():
  text = ablation.ablation_section(make_outcomes())
  _, _, on_fedavg, on_rest, mean, verdict, rounds = row(
    text, "variance reduction: FSVRG"
  )
  assert (on_fedavg, on_rest) == ("+1.00 +- 0.00", "+2.00 +- 0.00")
  assert mean == f"{1 + 1 / 9:+.2f} +- 0.00" and verdict.startswith("gains")
  assert rounds == "+0.0 +- 0.0 (9 of 9)"
  assert row(text, "variance reduction: SCAFFOLD")[5:] == [
    "costs more than the tie",
    "- (0 of 9)",
  ]
  assert row(text, "several models: K = 2")[4:6] == [
    "+0.10 +- 0.00",
    "at most 0.3 points either way",
  ]
  several = row(text, "several models: K = 4")
  assert several[2:4] == ["+0.30 +- 0.00", "+1.30 +- 0.00"]
  adaptive = row(text, "central acceleration: adaptive")
  assert adaptive[4] == f"{2 + 1 / 9:+.2f} +- 0.00"
  assert adaptive[6] == "+10.0 +- 0.0 (6 of 9)"  # those of SCAFFOLD never do
  assert len(re.findall("points,", text.splitlines()[-1])) == 6


def test_pooled_runs_count_once_for_each_partition():
  first, second = make_outcomes()[:2]
  pooled = first._replace(parts=(first, second))
  np.testing.assert_array_equal(ablation._rounds(pooled), [30, 30])
  never = outcome(first.cell, (1, 1), (10, 99))
  np.testing.assert_array_equal(ablation._rounds(never), [10, np.nan])
  np.testing.assert_array_equal(
    ablation._rounds(first._replace(parts=(first, never))), [30, np.nan]
  )


@pytest.mark.slow
@pytest.mark.program
@pytest.mark.usefixtures("whole_pictures")
def test_the_figure_is_made(tmp_path, capsys):
  status = command.main(
    [
      "--figure=ablation",
      "--scale=quick",
      '--lines="FedAvg, average, K = 1","FedAvg, average, K = 2"',
      "--dataset=digits",
      "--features=none",
      "--num_clients=20",
      "--validation_clients=2",
      "--size_sigma=0.3",
      "--rounds=4",
      "--eval_every=2",
      "--participation=0.3",
      "--local_steps=4",
      "--noprogress",
      f"--out_dir={tmp_path}",
    ]
  )
  output = capsys.readouterr().out
  assert not status
  assert row(output, "FedAvg | average | 2")[3].endswith(")")  # picked
  assert row(output, "several models: K = 2")[5] == "undecided"  # a single seed
  assert (tmp_path / "ablation" / "ablation.pdf").stat().st_size > 5000


def test_one_reading_is_changed_at_a_time():
  cells = {
    (cell.panel, cell.label): cell
    for cell in shown.cells("diversified", "readings_cifar10")
  }
  plain = {k: cells["d", f"{k}-FSVRG"].config for k in ("MA", "GA")}
  assert {
    cell.config.identity()
    for cell in shown.cells("diversified", "fig5")
    if (cell.panel, cell.protocol) == ("d", suite.STATED)
  } == {config.identity() for config in plain.values()}
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
        "features to 255": {"hog_norm", "hog_scale"},
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
  def late(value):
    return {
      metric: {"mean": value, "ci95": 0.001, "values": [value] * 3}
      for metric in readings.METRICS.values()
    }

  cell = shown.cell(
    "diversified", "readings_cifar10", "d", "GA-FSVRG, as printed"
  )  # nothing chosen on test data
  text = readings.readings_table(
    [
      suite.Outcome(
        cell, None, [], {"mean_last_10": {"global": late(0.5), "preferred": late(0.95)}}
      )
    ]
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
