"""Tests of ``runs.status``, on runs that were really stopped, failed and damaged."""

import os
import socket

import pytest

import fedjax_alg as fa
from fedjax_alg.errors import RunFolderError
from fedjax_alg.records import lock
from fedjax_alg.runs import status


def _run(folder, error=None):
  def stop(step):
    if error is not None and step.round == 4:
      raise error

  fed = fa.federate("digits", num_clients=8)
  options = dict(rounds=4, eval_every=2, cohort_size=3, evaluate="global")
  return fa.run("fedavg", fed, **options, out_dir=folder, callbacks=stop)


def test_an_interrupted_and_a_failed_run_until_they_are_done(tmp_path):
  """Without the reason in the folder, a failed run looks like an interrupted one."""
  stopped, failed = tmp_path / "a", tmp_path / "b"
  for folder, error in ((stopped, KeyboardInterrupt()), (failed, ValueError("wet"))):
    with pytest.raises(type(error)):
      _run(folder, error)
  first, second = status.read_status(tmp_path)
  assert (first.folder, first.state, first.why) == (stopped, "interrupted", "")
  assert (first.round, first.rounds) == (2, 4) and first.seconds_left > 0
  assert (second.folder, second.state, second.why) == (failed, "failed", "wet")
  for folder in (stopped, failed):
    _run(folder)
  states = status.read_status(tmp_path)
  assert status.count_states(states) == {"done": 2}


def test_missing_runs_are_those_that_were_asked_for(tmp_path):
  for name, folder in (("fig1", "a"), ("fig2", "b"), ("fig1", "c")):  # c replaces a
    status.note_planned(tmp_path, name, {tmp_path / "runs" / folder: 4})
  names = [state.folder.name for state in status.read_status(tmp_path)]
  assert names == ["b", "c"]
  (state,) = status.read_status(tmp_path, "fig1")
  assert (state.folder.name, state.state) == ("c", "missing")
  with pytest.raises(RunFolderError, match="fig3"):
    status.read_status(tmp_path, "fig3")
  with pytest.raises(RunFolderError, match="no run"):
    status.read_status(tmp_path / "nothing")


def test_rounds_that_were_asked_for_and_not_run_are_missing(tmp_path):
  """A script that loops until all is done ended before the sweep had its rounds."""
  folder = tmp_path / "a"
  _run(folder)
  for rounds, state in ((4, "done"), (6, "interrupted"), (2, "done")):
    status.note_planned(tmp_path, "sweep", {folder: rounds})
    (run,) = status.read_status(tmp_path)
    assert (run.state, run.round, run.rounds) == (state, 4, max(4, rounds))
    assert (run.seconds_left is None) == (state == "done")
  (tmp_path / status.PLANNED).write_text('{"sweep": ["a", "b"]}', "utf-8")  # as before
  states = {run.folder.name: run.state for run in status.read_status(tmp_path)}
  assert states == {"a": "done", "b": "missing"}


def test_who_runs_it_and_what_is_damaged(tmp_path):
  folder = tmp_path / "run"
  _run(folder)
  with lock.hold(folder):
    (state,) = status.read_status(folder)
  assert state.state == "running" and str(os.getpid()) in state.where
  # A process that was killed, whose number another one has now.
  stale = f"{os.getpid()}\n{socket.gethostname()}\n"
  (folder / lock.NAME).write_text(stale, "utf-8")
  assert status.read_status(folder)[0].state == "done"
  table = folder / "metrics.csv"
  table.write_text(table.read_text("utf-8").replace(",0.", ",1.", 1), "utf-8")
  (state,) = status.read_status(folder)
  assert state.state == "failed" and "metrics.csv" in state.why
