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
