"""Tests of ``experiments.status``, on runs that were really made and stopped."""

import json
import os

from experiments import status as command
from experiments import sweep as sweep_command

_FLAGS = ["--algorithm=fedavg", "--dataset=digits", "--num_clients=8", "--rounds=4"]
_FLAGS += [
  "--eval_every=2",
  "--cohort_size=3",
  "--eval_protocols=global",
  "--noprogress",
]


def _states(root, capsys):
  status_code = command.main([str(root), "--json"])
  runs = json.loads(capsys.readouterr().out)
  return status_code, {os.path.basename(run["folder"]): run for run in runs}


def test_a_sweep_is_told_from_its_first_setting_to_the_last(tmp_path, capsys):
  """Without the note of what was planned, settings that nobody began are lost."""
  words = [*_FLAGS, "--sweep=client_lr=0.1,0.2,1e30", f"--out_dir={tmp_path}"]
  assert sweep_command.main([*words, "--part=1/3"]) == 0
  capsys.readouterr()
  code, runs = _states(tmp_path, capsys)
  assert code == 1
  assert [runs[name]["state"] for name in sorted(runs)] == ["done", *2 * ["missing"]]
  assert runs["client_lr=0.2"]["seconds_left"] > 0  # of the setting that was run
  assert sweep_command.main(words) == 0
  capsys.readouterr()
  code, runs = _states(tmp_path, capsys)
  assert code == 1 and runs["client_lr=0.2"]["state"] == "done"
  assert runs["client_lr=1e30"]["state"] == "diverged"
  assert "round" in runs["client_lr=1e30"]["why"]
  assert command.main([str(tmp_path), "--of=fig1"]) == 2  # nobody asked for it
  assert "fig1" in capsys.readouterr().err
