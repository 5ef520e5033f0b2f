"""What the figures share beside their runs: panels, and timed calls."""

import pathlib
import time

import jax.numpy as jnp

from experiments.reports import suite, timing


def outcome(panel, label):
  cell = suite.Cell(panel, f"panel {panel}", label, ())
  return suite.Outcome(cell, pathlib.Path("nowhere"), [{"round": 1}], {})


def test_outcomes_by_panel_keep_their_order():
  found = [outcome(*words) for words in ("bX", "aX", "bY")]
  assert suite.by_panel(found) == [[found[0], found[2]], [found[1]]]
  assert suite.rows_by_panel(found) == {
      "panel b": {"X": [{"round": 1}], "Y": [{"round": 1}]},
      "panel a": {"X": [{"round": 1}]}}


def test_runs_are_compiled_together_and_played_in_turn(
    tmp_path, monkeypatch, capsys):
  """Up to one on other data; no run twice, and a finished one not at all."""
  done, events = set(), []

  def compile_together(runs):
    events.append(("compile", *runs))
    return list(runs)

  def execute(config, programs):
    assert programs == config.hparams["client_lr"]
    events.append(("play", programs))
    done.add(programs)

  monkeypatch.setattr(suite, "compile_together", compile_together)
  monkeypatch.setattr(suite.sharding, "available_cores", lambda: 3)
  monkeypatch.setattr(suite.execute, "execute", execute)
  monkeypatch.setattr(suite.execute, "prepared_run",
                      lambda config: config.hparams["client_lr"])
  monkeypatch.setattr(suite.execute, "finished", lambda folder, config: (
      config.hparams["client_lr"] in done))
  monkeypatch.setattr(suite, "read_cell", lambda cell, root: cell)
  done.add(0.5)
  cells = [suite.Cell("a", "panel", f"rate {rate}", (
      "--algorithm=fedavg", "--dataset=digits", f"--client_lr={rate}",
      f"--num_clients={clients}"))
           for rate, clients in [(.1, 9), (.5, 9), (.2, 9), (.1, 9), (.3, 9),
                                 (.4, 9), (.6, 8)]]
  assert suite.run_cells(cells, tmp_path) == cells
  assert events == [
      ("compile", .1, .2, .3), ("play", .1), ("play", .2), ("play", .3),
      ("compile", .4), ("play", .4), ("compile", .6), ("play", .6)]
  lines = capsys.readouterr().err.splitlines()
  assert lines[0] == "[1/7] panel: rate 0.1"  # nothing is known yet
  assert lines[1] == (
      "[2/7] panel: rate 0.5, about 0 s left with compiling")


def test_the_first_call_is_not_timed():
  calls = []

  def slow_at_first(x):
    calls.append(x)
    if len(calls) == 1:
      time.sleep(0.2)
    return jnp.float32(len(calls))

  out, seconds = timing.repeated(slow_at_first, 7, repeats=3)
  assert calls == [7] * 4 and out == 4
  assert len(seconds) == 3 and max(seconds) < 0.2
