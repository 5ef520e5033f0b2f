"""Keys and cohorts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_alg.base import Algorithm, RoundAux, Work, no_setup, round_cost
from fedjax_alg.data import layout
from fedjax_alg.engine import clock, loop, cohorts


def key_data(keys):
  return np.asarray(jax.random.key_data(keys))


def test_streams_of_a_run_are_independent():
  streams = [key_data(key) for seed in (0, 1) for key in cohorts.run_keys(seed)]
  assert len({tuple(data.tolist()) for data in streams}) == 10
  assert len(cohorts.RunKeys._fields) == 5
  for a, b in zip(cohorts.run_keys(3), cohorts.run_keys(3)):
    np.testing.assert_array_equal(key_data(a), key_data(b))


def test_a_clients_key_follows_its_id_not_its_slot():
  key = jax.random.key(0)
  ids = jnp.array([4, 0, 7, 9], jnp.int32)
  keys = key_data(cohorts.client_keys(key, ids))
  order = np.array([2, 0, 3, 1])
  np.testing.assert_array_equal(
      key_data(cohorts.client_keys(key, ids[order])), keys[order])
  np.testing.assert_array_equal(
      keys[0], key_data(jax.random.fold_in(key, 4)))
  assert len({tuple(row) for row in keys.tolist()}) == 4


@pytest.mark.program
def test_a_cohort_is_sorted_without_repetition_and_uniform(problem):
  draw = jax.jit(lambda key: cohorts.sample_cohort(problem.data, 5, key).ids)
  ids = np.asarray(jax.vmap(draw)(jax.random.split(jax.random.key(0), 2000)))
  assert (np.diff(ids, axis=1) > 0).all()
  assert ids.min() == 0 and ids.max() == 11
  # Each appears in 5 of 12 cohorts.
  counts = np.bincount(ids.reshape(-1), minlength=12)
  assert stats.chisquare(counts).pvalue > 1e-3


def test_a_cohort_holds_its_clients(problem):
  cohort = cohorts.sample_cohort(problem.data, 5, jax.random.key(1))
  ids = np.asarray(cohort.ids)
  np.testing.assert_array_equal(
      cohort.shards.offset, problem.data.offset[ids])
  np.testing.assert_array_equal(cohort.shards.size, problem.data.size[ids])
  np.testing.assert_array_equal(cohort.weight, problem.data.size[ids])
  assert cohort.weight.dtype == jnp.float32


def test_a_full_cohort_is_everyone_whatever_the_key(problem):
  for seed in range(2):
    cohort = cohorts.sample_cohort(problem.data, 12, jax.random.key(seed))
    np.testing.assert_array_equal(cohort.ids, np.arange(12))


@pytest.mark.program
def test_absent_clients_are_never_drawn_and_the_present_evenly(problem):
  joins = np.zeros(12, np.int32)
  joins[[0, 5]], joins[[3, 9, 11]] = 2, 4
  late = problem.data._replace(joins=jnp.asarray(joins))
  draw = jax.jit(lambda key, number: cohorts.sample_cohort(
      late, 5, key, number).ids)
  keys = jax.random.split(jax.random.key(0), 1000)
  for number, there in ((0, 7), (1, 7), (2, 9), (3, 9), (4, 12)):
    ids = np.asarray(jax.vmap(draw, (0, None))(keys, jnp.int32(number)))
    assert (np.diff(ids, axis=1) > 0).all()
    counts = np.bincount(ids.reshape(-1), minlength=12)
    np.testing.assert_array_equal(counts > 0, joins <= number)
    assert stats.chisquare(counts[joins <= number]).pvalue > 1e-3
    assert (joins <= number).sum() == there
  # Fewer than S there: the rest are padding slots.
  few = cohorts.sample_cohort(late, 9, keys[0], 0)
  np.testing.assert_array_equal(few.ids[7:], [12, 12])
  np.testing.assert_array_equal(few.weight[7:], [0, 0])


def test_the_start_and_a_round_see_who_is_there(problem):
  joins = np.where(np.arange(12) % 4 == 1, 3, 0)
  late = problem.data._replace(joins=jnp.asarray(joins, jnp.int32))

  def setup(state, everyone, key):
    del state, key
    return everyone.ids, everyone.weight

  model = problem.model
  algorithm = Algorithm(lambda *_: (), setup, *spy(False)[2:])
  keys = jax.tree.map(lambda leaf: leaf[None], cohorts.run_keys(0))
  ids, weight = loop.initial_states(
      loop.fixed(algorithm), model, problem.spec, late, keys, {})
  absent = joins > 0
  np.testing.assert_array_equal(
      ids[0], np.where(absent, 12, np.arange(12)))
  np.testing.assert_array_equal(
      weight[0], np.where(absent, 0, problem.data.size))
  for number in (2, 3):
    cohort = cohorts.sample_cohort(late, 4, jax.random.key(0), number)
    np.testing.assert_array_equal(
        cohort.everyone.size,
        np.where(joins <= number, problem.data.size, 0))


def spy(with_key):
  """An algorithm whose state is what its last round got."""

  def round_(state, cohort, key):
    del state
    out = cohort.ids, jax.random.key_data(key) if with_key else key
    return out, RoundAux({}, {}, round_cost(0, 0, 0, 0))

  return Algorithm(lambda *_: (), no_setup, round_, lambda *_: None, None)


def test_a_round_is_a_function_of_seed_and_number(problem):
  def play(seed, number):
    state, _ = cohorts.play_round(
        spy(True), problem.data, 5, cohorts.run_keys(seed), jnp.int32(number),
        None)
    return tuple(map(tuple, jax.tree.map(np.ndarray.tolist,
                                         jax.device_get(state))))

  assert play(0, 3) == play(0, 3)
  others = [play(seed, number) for seed in (0, 1) for number in range(4)]
  assert len({ids for ids, _ in others}) == 8
  assert len({key for _, key in others}) == 8


def on_machines(problem):
  return problem.data._replace(devices=clock.make_devices(
      0, 12, bandwidth_gbps=(1e-6, 1e-4)))


def test_a_cohort_brings_its_machines(problem):
  data = on_machines(problem)
  ids = jnp.array([7, 12, 2], jnp.int32)
  devices = layout.take_cohort(data, ids).devices
  for name in ("flops_per_s", "bytes_per_s"):
    held = np.asarray(getattr(data.devices, name))
    got = np.asarray(getattr(devices, name))
    assert got.shape == (3,) and np.isfinite(got).all()
    np.testing.assert_array_equal(got[[0, 2]], held[[7, 2]])
  assert devices.batch_s == data.devices.batch_s
  assert layout.take_cohort(problem.data, ids).devices is None


def test_the_engine_tells_the_time_of_a_round(problem):
  """Means over the participants; one of twelve clients is not there yet."""

  def round_(state, cohort, key):
    del key
    work = Work(1e9 * cohort.weight, cohort.weight / 4)
    return state, RoundAux({}, {}, round_cost(30, 10, 1, 0, 5e9), work)

  algorithm = Algorithm(lambda *_: (), no_setup, round_, lambda *_: None, None)
  joins = np.where(np.arange(12) == 1, 5, 0)
  data = on_machines(problem)._replace(joins=jnp.asarray(joins, jnp.int32))

  def times(data, algorithm=algorithm):
    return cohorts.play_round(
        algorithm, data, 12, cohorts.run_keys(0), jnp.int32(0), ())[1].times

  size = np.delete(np.asarray(problem.data.size, np.float64), 1)
  speed, link = (np.delete(np.asarray(leaf, np.float64), 1)
                 for leaf in data.devices[:2])
  computation = 1e9 * size / speed + size / 4 * 1e-3
  communication = 160 / link
  arrival = computation + communication
  found = times(data)
  np.testing.assert_allclose(found.flops, 1e9 * size.mean(), rtol=1e-5)
  np.testing.assert_allclose(found.computation, computation.mean(), rtol=1e-5)
  np.testing.assert_allclose(
      found.communication, communication.mean(), rtol=1e-5)
  np.testing.assert_allclose(
      found.idle, (arrival.max() - arrival + 5e-3).mean(), rtol=1e-5)
  np.testing.assert_allclose(
      sum(found[1:]), arrival.max() + 5e-3, rtol=1e-5)
  assert times(data._replace(devices=None)) is None
  assert times(data, algorithm._replace(round=lambda state, cohort, key: (
      state, RoundAux({}, {}, round_cost(0, 0, 0, 0))))) is None
