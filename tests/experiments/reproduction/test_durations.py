"""The hours of a figure's runs, told before they are made."""

import types

import pytest

from experiments import beyond
from experiments.cli import config
from experiments.reproduction import durations
from fedjax_alg.runs import dry_run, store

#: Seconds of a run that is estimated, and of one that is finished.
ESTIMATE, TOOK = 7200.0, 1800.0


@pytest.fixture(autouse=True)
def fixture_known_runs(monkeypatch):
  """Runs of FedAvgM are finished, the others are estimated without data."""
  monkeypatch.setattr(config.Config, "prepare", lambda run: run)
  monkeypatch.setattr(
    dry_run, "estimate", lambda run: types.SimpleNamespace(seconds=ESTIMATE)
  )
  monkeypatch.setattr(
    store,
    "is_finished",
    lambda run, folder, further: (
      run.algorithm == "fedavgm" and run.values["partition_seed"] % 2 == 0
    ),
  )
  monkeypatch.setattr(
    durations,
    "read_summary",
    lambda folder: {
      "timing": {"seconds_per_round_all_seeds": TOOK / 20 - 1, "compile_s": 20},
      "cost": {"rounds": 20},
    },
  )


def lines_of(capsys, *words):
  assert beyond.main(["--figure=acceleration", "--dry_run", *words]) == 0
  return capsys.readouterr().out.splitlines()


def test_each_line_says_how_its_time_is_known(capsys, tmp_path):
  *lines, last = lines_of(
    capsys,
    "--panels=a",
    "--lines=FedAvg,FedAvgM",
    "--partitions=4",
    f"--out_dir={tmp_path}",
  )
  assert len(lines) == 2 and not list(tmp_path.iterdir())
  assert lines[0].endswith("FedAvg: 4 runs, 0 finished; 2.0 h each (estimated)")
  assert lines[1].endswith("FedAvgM: 4 runs, 2 finished; 30 min each (measured)")
  assert last == (
    "6 of 8 runs are not finished: 1.0 h as finished runs took, 8.0 h estimated from "
    "timed local steps, without compiling"
  )
