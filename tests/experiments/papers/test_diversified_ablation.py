"""The ablation: its grid, its flag files, what it says each part brings."""

import re

import numpy as np
import pytest

from experiments import diversified as command
from experiments.papers import tuning
from experiments.cli import config
from experiments.papers.diversified import ablation, figures as diversified
from experiments.reports import suite
from tests.experiments import shown

PAPER = diversified.PAPER


def cells():
  return [cell for cell in shown.cells("diversified", "ablation")
          if cell.panel == "c"]


@pytest.mark.parametrize("name", ["sgd_average_1", "scaffold_conjugate_2",
                                  "svrg_adaptive_4"])
def test_what_is_tuned_of_a_combination_is_written_to_its_file(name, tmp_path):
  study = tuning.Study("diversified", "mnist", tmp_path)
  assert name in study.names(["ablation"])
  assert name not in study.names(None)
  trials = [tuning.Trial(setting, (90.0 + i,)) for i, setting in enumerate(
      study.settings(name, 5))]
  file = tmp_path / study.files()[name].name
  tuning.write(file, name, trials, "here", 3)
  chosen = config.parse([f"--flagfile={file}"]).hparams
  start = config.parse(study.method_flags(name))
  assert chosen == start.hparams | trials[-1].setting
  same = {"sgd_average_1": "fedavg", "svrg_adaptive_4": "ma_fsvrg"}.get(name)
  if same:  # an algorithm of the figures has the same settings in both
    assert [trial.setting for trial in trials] == study.settings(
        same, 5)


def outcome(cell, accuracy, to_target):
  """A run of two seeds, of which only what is read is there."""
  rows = []
  for seed, (value, first) in enumerate(zip(accuracy, to_target)):
    rows += [dict(round=n, seed=seed, protocol="global",
                  accuracy=0.98 if n >= first else value / 100)
             for n in (10, 20, 30)]
  return suite.Outcome(cell, None, rows, dict(
      mean_last_10={"global": {"accuracy": {
          "values": [v / 100 for v in accuracy]}}}))


def made():
  """Parts bring known points: FSVRG 1, SCAFFOLD -1, K 0.1 (K - 1), ..."""
  found = []
  for cell in cells():
    one = ablation._BY_LABEL[cell.label]
    points = ({"FedAvg": 0, "FSVRG": 1, "SCAFFOLD": -1}[one.local]
              + 0.1 * (one.models - 1)
              + {"average": 0, "adaptive": 2, "conjugate": 0}[one.server]
              + (one == ablation.Combination("FSVRG", "adaptive", 4)))
    first = 20 if one.server == "adaptive" else 30
    if one.local == "SCAFFOLD":
      first = 99
    # Seeds differ by far more than methods, but all by the same.
    found.append(outcome(cell, (70 + points, 90 + points), (first, first)))
  return found


def row(text, start):
  line, = [line for line in text.splitlines() if line.startswith(f"| {start}")]
  return [word.strip() for word in line.split("|")[1:-1]]


def test_parts_bring_what_they_were_given():
  text = ablation.answer(made())
  _, _, alone, rest, mean, verdict, rounds = row(
      text, "variance reduction: FSVRG")
  assert (alone, rest) == ("+1.00 +- 0.00", "+2.00 +- 0.00")
  assert mean == f"{1 + 1 / 9:+.2f} +- 0.00" and verdict.startswith("brings")
  assert rounds == "+0.0 +- 0.0 (9 of 9)"
  assert row(text, "variance reduction: SCAFFOLD")[5:] == [
      "costs more than the tie", "- (0 of 9)"]
  assert row(text, "several models: K = 2")[4:6] == [
      "+0.10 +- 0.00", "at most 0.3 points either way"]
  several = row(text, "several models: K = 4")
  assert several[2:4] == ["+0.30 +- 0.00", "+1.30 +- 0.00"]
  adaptive = row(text, "central acceleration: adaptive")
  assert adaptive[4] == f"{2 + 1 / 9:+.2f} +- 0.00"
  assert adaptive[6] == "+10.0 +- 0.0 (6 of 9)"  # those of SCAFFOLD never do
  assert len(re.findall("points,", text.splitlines()[-1])) == 6


def test_pooled_runs_count_once_for_each_partition():
  one, two = made()[:2]
  pooled = one._replace(parts=(one, two))
  np.testing.assert_array_equal(ablation._rounds(pooled), [30, 30])
  never = outcome(one.cell, (1, 1), (10, 99))
  np.testing.assert_array_equal(ablation._rounds(never), [10, np.nan])
  np.testing.assert_array_equal(
      ablation._rounds(one._replace(parts=(one, never))), [30, np.nan])


@pytest.mark.slow
@pytest.mark.program
def test_the_figure_is_made(tmp_path, capsys):
  status = command.main([
      "--figure=ablation", "--scale=quick",
      '--lines="FedAvg, average, K = 1","FedAvg, average, K = 2"',
      "--dataset=digits", "--features=none", "--num_clients=20",
      "--validation_clients=2", "--size_sigma=0.3", "--rounds=4",
      "--eval_every=2", "--participation=0.3", "--local_steps=4",
      "--noprogress", f"--out_dir={tmp_path}"])
  said = capsys.readouterr().out
  assert not status
  assert row(said, "FedAvg | average | 2")[3].endswith(")")  # picked
  assert row(said, "several models: K = 2")[5] == "undecided"  # a single seed
  assert (tmp_path / "ablation" / "ablation.pdf").stat().st_size > 5000
