"""What sinks are told, and when."""

import jax
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.runs.sinks import Sink


class Told(Sink):
  """Notes what it is told."""

  def __init__(self):
    self.calls = []

  def start(self, programs, records, names, done):
    self.calls.append(("start", list(names), done))

  def __call__(self, step):
    self.calls.append(("step", step.round, sorted(step.stopped)))

  def finish(self, setting, step):
    # The states are there: the next step would reuse their memory.
    seeds = len(step.seeds)
    assert all(
      np.isfinite(leaf[setting * seeds :][:seeds]).all()
      for leaf in jax.tree.leaves(step.states.models)
    )
    self.calls.append(("finish", setting, step.round))

  def close(self):
    self.calls.append(("close",))


def test_a_setting_is_finished_when_it_ends_and_never_if_it_diverged(fed):
  told = Told()
  with pytest.warns(UserWarning, match="test data"):
    sweep = fa.sweep(
      "fedavg",
      fed,
      grid={"client_lr": [1.0, 1e30, 1e-9]},
      cohort_size=4,
      rounds=6,
      eval_every=1,
      seeds=2,
      callbacks=told,
      stop_at="global:loss:2.0",
    )
  assert told.calls[0] == (
    "start",
    ["client_lr=1.0", "client_lr=1e+30", "client_lr=1e-09"],
    0,
  )
  ended = sweep.results[0].rounds[-1]
  assert ended < 6 and sweep.results[1] is None
  assert [call for call in told.calls if call[0] == "finish"] == [
    ("finish", 0, ended),
    ("finish", 2, 6),
  ]
  at = told.calls.index(("finish", 0, ended))
  assert told.calls[at - 1] == ("step", ended, [0])
  assert told.calls[-1] == ("close",) and told.calls.count(("close",)) == 1


def test_sinks_are_closed_where_a_callback_raises(fed):
  told = Told()

  def raises(step):
    raise ZeroDivisionError(step.round)

  with pytest.raises(ZeroDivisionError, match="2"):
    fa.run(
      "fedavg",
      fed,
      cohort_size=4,
      rounds=4,
      eval_every=2,
      evaluate="global",
      callbacks=(told, raises),
    )
  # Functions are asked first, since they may end the run.
  assert told.calls == [("start", [""], 0), ("close",)]
