"""The loop over evaluations: steps, tables, what is no longer finite."""

import dataclasses

import chex
import jax
import numpy as np
import pytest

from fedjax_alg.engine import loop
from fedjax_alg.records import tables
from fedjax_alg.runs import play
from fedjax_alg.runs.pace import Pace
from fedjax_alg.runs.prepare import prepare
from tests import shared_programs
from tests.runs import test_programs


@pytest.fixture(scope="module", name="programs")
def fixture_programs(fed):
  """FedAvg with a learning rate that trains, and one that diverges."""
  return shared_programs.make(
    prepare(
      test_programs.method(),
      fed,
      test_programs.OPTIONS,
      settings=({"client_lr": 0.3}, {"client_lr": 1e38}),
    )
  )


@pytest.mark.fast
def test_the_first_round_that_is_not_finite():
  good = np.ones((4, 6), bool)
  a, b = good.copy(), good.copy()
  a[1, 4:] = b[1, 3:] = b[2, 2:] = a[3, 5:] = False
  divergences = play.first_nonfinite(
    loop.RunLog(None, {"w/bias": a, "w/kernel": b}), 10, 5, [7, 8]
  )
  assert divergences == {
    1: play.Divergence(14, "w/kernel", 8),
    2: play.Divergence(13, "w/kernel", 7),
  }  # not past round 15
  assert divergences[2].text("why") == (
    "training became non-finite in round 13: w/kernel (seed 7): why"
  )
  assert divergences[2].text() + ": why" == divergences[2].text("why")


def test_a_run_stops_where_it_diverges(programs):
  with pytest.raises(play.NonFiniteError, match="in round [12]: .*seed 0"):
    list(play.run_steps(programs, play.new_records(programs, [None, None])))


def test_a_setting_that_diverges_is_recorded_no_further(programs):
  records = play.new_records(programs, [None, None])
  steps = list(play.run_steps(programs, records, stop=False))
  assert [(step.round, step.count) for step in steps] == [(3, 3), (6, 3), (7, 1)]
  for step in steps:
    assert set(step.diverged) == {2, 3}  # both seeds of the second setting
    assert [step.diverged[row].seed for row in (2, 3)] == [0, 1]
    assert step.aux.cost.down.shape == (4, step.count)
  good, bad = records
  assert not bad.rows and not bad.tables["rounds"]
  assert list(good.evaluated) == [3, 6, 7]
  assert len(good.tables["rounds"]) == 14
  curves = tables.curves(good.rows)["local"]
  for step, value in zip(steps, curves["accuracy"][1], strict=True):  # of seed 1
    assert step.metrics["local"]["accuracy"][1] == value
  assert np.isfinite(curves["loss"]).all()


def test_a_run_without_a_round_left_is_evaluated_alike(programs):
  *_, last = play.run_steps(
    programs, play.new_records(programs, [None, None]), stop=False
  )
  step = play.final_step(programs, last.states, last.round)
  assert step.round == step.rounds == 7 and step.count == 0
  for name, values in last.metrics["local"].items():
    np.testing.assert_array_equal(step.metrics["local"][name], values)
  assert step.aux.cost.down.shape == (4, 0)


def test_a_replica_differs_from_its_run_by_rounding(programs, monkeypatch):
  """Else it says nothing of what results owe to rounding.

  It is the same however its rounds are shared out to calls.
  """
  p = programs.prepared

  def play_replica(seed, pace=None):
    options = dataclasses.replace(p.options, rounding_seed=seed)
    monkeypatch.setattr(programs, "prepared", dataclasses.replace(p, options=options))
    records = play.new_records(programs, [None, None])
    *_, last = play.run_steps(programs, records, stop=False, pace=pace)
    weights = jax.device_get(last.states.models)  # of the setting that trains
    rows = [row["round"] for row in records[0].rows]
    return jax.tree.map(lambda leaf: leaf[:2], weights), rows

  (run, rows), (replica, rows_of_replica) = play_replica(0), play_replica(1)
  assert rows == rows_of_replica
  chex.assert_trees_all_close(run, replica, rtol=1e-4, atol=1e-6)
  assert not all(map(np.array_equal, *map(jax.tree.leaves, (run, replica))))
  no_pause = Pace(1e9, lambda: False, lambda pause: None)
  chex.assert_trees_all_equal(play_replica(1, no_pause)[0], replica)
  assert not all(
    map(np.array_equal, *map(jax.tree.leaves, (play_replica(2)[0], replica)))
  )


def test_a_setting_that_has_ended_keeps_its_states(programs, monkeypatch):
  """Also where it is resumed, before the others go on."""
  p = programs.prepared
  rule = "local:loss:1000"  # of setting 0 at once; setting 1 diverges
  monkeypatch.setattr(
    programs,
    "prepared",
    dataclasses.replace(p, options=dataclasses.replace(p.options, stop_at=rule)),
  )
  records = play.new_records(programs, [None, None])
  first, states = None, None
  for step in play.run_steps(programs, records, stop=False):
    assert step.stopped == {0: f"stop_at {rule}"} and step.last
    first, states = step, jax.device_get(step.states)
  assert first.round == 3 and first.recorded == (0,)
  steps = []
  for step in play.run_steps(programs, records, programs.place(states), 3, stop=False):
    steps.append((step.round, step.recorded, step.stopped, step.last))
    if step.round == 3:
      chex.assert_trees_all_equal(jax.device_get(step.states), states)
  assert [round_number for round_number, *_ in steps] == [3, 6]
  assert all(not of[1] and of[2] == first.stopped for of in steps)
  assert [of[-1] for of in steps] == [False, True]
  assert {row["round"] for row in records[0].rows} == {3}
  assert records[0].stopped == f"stop_at {rule}"
  assert records[1].stopped == "rounds"
