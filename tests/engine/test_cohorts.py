"""Keys and cohorts."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_alg.base import Algorithm, ClientData, no_setup, round_cost
from fedjax_alg.base import RoundAux, Work
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


def test_keys_of_rows_are_those_of_the_seeds():
  seeds = (4, 0, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1)
  rows = cohorts.keys_of_rows(seeds, 2)
  for row, seed in enumerate(seeds * 2):
    for a, b in zip(rows, cohorts.run_keys(seed), strict=True):
      np.testing.assert_array_equal(key_data(a[row]), key_data(b))


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
        spy(True), problem.data, cohorts.Participation(5),
        cohorts.run_keys(seed), jnp.int32(number), None)
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
        algorithm, data, cohorts.Participation(12), cohorts.run_keys(0),
        jnp.int32(0), ())[1].times

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


DRAWS = 4000


@functools.cache
def _drawn(sampler, slots):
  return jax.jit(jax.vmap(lambda key, data, number: cohorts.sample_cohort(
      data, slots, key, number, sampler).ids, (0, None, None)))


def draws(sampler, data, slots, number=0):
  """[DRAWS, slots] cohorts of independent keys."""
  if data.joins is None:  # one program for all data
    data = data._replace(joins=jnp.zeros(12, jnp.int32))
  keys = jax.random.split(jax.random.key(3), DRAWS)
  return np.asarray(_drawn(sampler, slots)(keys, data, jnp.int32(number)))


def test_uniform_cohorts_are_those_that_have_always_been_drawn(problem):
  """Otherwise every run of before would have other numbers."""
  key = jax.random.fold_in(cohorts.run_keys(0).cohort, 3)
  ids = cohorts.sample_cohort(problem.data, 5, key, 3).ids
  np.testing.assert_array_equal(
      ids, np.sort(jax.random.permutation(key, 12)[:5]))
  joins = jnp.where(jnp.arange(12) % 4 == 1, 9, 0)
  late = problem.data._replace(joins=joins)
  np.testing.assert_array_equal(  # all of them: each in its own slot
      cohorts.sample_cohort(late, 12, key, 3).ids,
      np.where(joins > 3, 12, np.arange(12)))


@pytest.mark.program
@pytest.mark.parametrize("slots", (2, 5))
def test_a_bijection_draws_uniformly_without_replacement(problem, slots):
  """Every set of two, and every pair in cohorts of five, equally often."""
  draw = jax.jit(jax.vmap(
      lambda key: cohorts.by_bijection(problem.data, slots, key)))
  ids = np.asarray(draw(jax.random.split(jax.random.key(3), DRAWS)))
  assert (np.diff(ids, axis=1) > 0).all()
  assert ids.min() == 0 and ids.max() == 11
  first, second = np.triu_indices(slots, 1)
  found = np.zeros((12, 12))
  np.add.at(found, (ids[:, first], ids[:, second]), 1)
  found = found[np.triu_indices(12, 1)]
  share = slots * (slots - 1) / (12 * 11)
  scores = (found - DRAWS * share) / np.sqrt(DRAWS * share * (1 - share))
  assert np.abs(scores).max() < 4.5  # of 66; 1 in 2,000 by chance
  assert 0.5 < scores.std() < 1.5


def test_a_bijection_makes_nothing_of_the_size_of_all_clients(problem):
  many = problem.data._replace(
      size=jax.ShapeDtypeStruct((10 ** 6,), jnp.int32))

  def largest(sampler):
    jaxpr = jax.make_jaxpr(lambda key: sampler(many, 100, key))(
        jax.random.key(0))
    return max(int(number) for number in re.findall(
        r"[a-z0-9]+\[(\d+)", str(jaxpr)))

  assert largest(cohorts.by_bijection) == 100
  assert largest(cohorts.uniform) == 10 ** 6


def test_a_bijection_where_the_permutation_is_needed(problem):
  """Newcomers; and in a cohort of everybody nothing is drawn."""
  key = jax.random.key(1)
  late = problem.data._replace(joins=jnp.where(jnp.arange(12) % 4 == 1, 9, 0))
  for data, slots in ((late, 5), (late, 12), (problem.data, 12)):
    np.testing.assert_array_equal(
        cohorts.by_bijection(data, slots, key, 3),
        cohorts.uniform(data, slots, key, 3))
  # As with uniform, everybody who is drawn is there.
  aux = cohorts.play_round(
      spy(True), problem.data, cohorts.Participation(5, cohorts.by_bijection),
      cohorts.run_keys(0), jnp.int32(0), None)[1]
  assert cohorts.PRESENT not in aux.server


def test_the_draw_follows_the_number_of_clients():
  few = cohorts.FEW_CLIENTS
  assert cohorts.drawn("uniform", "auto", few) is cohorts.uniform
  assert cohorts.drawn("uniform", "auto", few + 1) is cohorts.by_bijection
  assert cohorts.drawn("uniform", "permutation", few + 1) is cohorts.uniform
  assert cohorts.drawn("uniform", "bijection", 2) is cohorts.by_bijection


@pytest.mark.program
@pytest.mark.parametrize("sampler", (cohorts.by_size, cohorts.by_examples))
def test_large_clients_are_drawn_more_often(problem, sampler):
  """The first draw takes client i with p_i = n_i / n, the second p_j / rest."""
  p = np.asarray(problem.data.size, float)
  p /= p.sum()
  pairs = np.outer(p, p) / (1 - p)[:, None]
  expected = DRAWS * np.triu(pairs + pairs.T, 1)
  found = np.zeros((12, 12))
  np.add.at(found, tuple(draws(sampler, problem.data, 2).T), 1)
  assert found.sum() == np.triu(found, 1).sum() == DRAWS
  often = expected > 5
  assert stats.chisquare(
      [*found[often], found[~often].sum()],
      [*expected[often], expected[~often].sum()]).pvalue > 1e-3
  # Client 10 has just come, and who is left without examples stays away.
  few = jnp.where(jnp.isin(jnp.arange(12), jnp.array([3, 10, 11])),
                  problem.data.size, 0)
  late = problem.data._replace(
      size=few, joins=jnp.where(jnp.arange(12) == 10, 4, 0))
  assert np.unique(draws(sampler, late, 2), axis=0).tolist() == [
      [3, 11]]
  assert np.unique(draws(sampler, late, 2, 4), axis=0).tolist() == [
      [3, 10], [3, 11], [10, 11]]
  none = late._replace(size=jnp.zeros_like(few))
  assert (draws(sampler, none, 2) == 12).all()


def test_samplers_of_very_many_clients():
  """Blocks of sizes, turns and the end of the clients; nobody twice."""
  size = np.zeros(3000, np.int32)
  size[[5, 127, 128, 2999]] = 1, 2, 10 ** 8, 3
  data = layout_of(size, np.where(np.arange(3000) % 700 == 699, 1.0, 0.0))
  key = jax.random.key(0)
  assert cohorts.drawn("size", "bijection", 2) is cohorts.by_examples
  assert cohorts.drawn("availability", "auto", 10 ** 5) is cohorts.by_trial
  assert cohorts.drawn("size", "auto", 100) is cohorts.by_size
  np.testing.assert_array_equal(
      cohorts.by_examples(data, 6, key), [5, 127, 128, 2999, 3000, 3000])
  np.testing.assert_array_equal(  # the third of three turns
      cohorts.by_trial(data, 5, key), [699, 1399, 2099, 2799, 3000])


def layout_of(size, availability):
  """Clients of these sizes, without rows."""
  size = jnp.asarray(size, jnp.int32)
  return ClientData(jnp.zeros((1, 1)), jnp.zeros(1, jnp.int32), size, size,
                    availability=jnp.asarray(availability, jnp.float32))


@pytest.mark.program
@pytest.mark.parametrize("sampler", (
    cohorts.by_availability, cohorts.by_trial))
def test_available_clients_are_drawn_evenly_and_slots_stay_empty(
    problem, sampler):
  """Client i has one of 3 slots with a_i E[min(1, 3 / (1 + others there))]."""
  chance = np.array([0, 1, 1, *[0.3] * 4, *[0.1] * 5])
  joins = np.where(np.arange(12) == 2, 4, 0)
  data = problem.data._replace(
      availability=jnp.asarray(chance, jnp.float32),
      joins=jnp.asarray(joins, jnp.int32))
  ids = draws(sampler, data, 3)
  assert (np.diff(ids, axis=1) > 0)[ids[:, 1:] < 12].all()
  a = np.where(joins > 0, 0, chance)

  def number_there(chances):
    found = np.ones(1)
    for one in chances:
      found = np.convolve(found, [1 - one, one])
    return found

  def slot(i):
    others = number_there(np.delete(a, i))
    return a[i] * (others * np.minimum(1, 3 / (1 + np.arange(12)))).sum()

  expected = np.array([slot(i) for i in range(12)])
  found = np.bincount(ids[ids < 12], minlength=12)
  assert found[0] == found[2] == 0
  z = (found - DRAWS * expected) / np.sqrt(
      DRAWS * np.maximum(expected * (1 - expected), 1e-9))
  assert (z ** 2).sum() < stats.chi2.ppf(0.999, 10)
  empty = (number_there(a) * np.maximum(0, 3 - np.arange(13))).sum()
  assert abs((ids == 12).sum(1).mean() - empty) < 4 / np.sqrt(DRAWS)
  nobody = data._replace(availability=jnp.zeros(12))
  assert (draws(sampler, nobody, 3) == 12).all()


def test_availability_follows_the_time_of_day(problem):
  """Each client's share of days by hour, and its own phase."""
  data = problem.data._replace(availability=jnp.full(12, 0.5))
  sampler = cohorts.over_the_day(cohorts.by_availability, 4, seed=7)
  hours = np.stack([
      np.stack([np.bincount(row[row < 12], minlength=12)
                for row in draws(sampler, data, 12, hour)]).mean(0)
      for hour in (0, 1, 2, 3, 4)])
  phase = np.asarray([jax.random.uniform(jax.random.fold_in(
      jax.random.key(7), i)) for i in range(12)])
  chance = np.minimum(0.5 * (1 + np.sin(2 * np.pi * (
      phase + np.arange(5)[:, None] / 4))), 1)
  assert np.abs(hours - chance).max() < 5 * np.sqrt(0.25 / DRAWS)
  assert np.ptp(chance, 0).min() > 0.5 and np.ptp(chance[0]) > 0.5
  np.testing.assert_array_equal(
      cohorts.draw_of(sampler), cohorts.draw_of(cohorts.by_availability))


def test_a_sampler_of_ones_own_cannot_break_a_cohort(problem):
  joins = np.where(np.arange(12) == 7, 2, 0)
  late = problem.data._replace(joins=jnp.asarray(joins, jnp.int32))

  def mine(data, cohort_size, key, number):
    del key
    assert (data.size.shape[0], cohort_size) == (12, 6)
    return jnp.stack([5, 7, 5, -1, 13, number])

  sampler = cohorts.checked(mine)
  for number, ids in ((1, [1, 5, 12, 12, 12, 12]), (2, [2, 5, 7, 12, 12, 12])):
    cohort = cohorts.sample_cohort(
        late, 6, jax.random.key(0), jnp.int32(number), sampler)
    np.testing.assert_array_equal(cohort.ids, ids)
    np.testing.assert_array_equal(cohort.present, np.array(ids) < 12)
  for bad, said in ((lambda *_: jnp.zeros(3, jnp.int32), r"gives \[3\] int32"),
                    (lambda *_: jnp.zeros(6), r"gives \[6\] float32"),
                    (lambda *_: None, r"gives \[\] NoneType")):
    with pytest.raises(ValueError, match="^sampler=<lambda>: " + said):
      cohorts.sample_cohort(late, 6, jax.random.key(0), 0, cohorts.checked(bad))


def test_a_round_without_participants_is_idle(problem):
  """It costs nothing; what is a measure of nobody is NaN."""

  def round_(state, cohort, key):
    del key
    state = {"sum": state["sum"] + cohort.weight.sum(), "round":
             state["round"] + 1}
    work = Work(1e9 * cohort.weight, cohort.weight)
    return state, RoundAux({}, {"loss": jnp.float32(0), "step": jnp.int32(3)},
                           round_cost(30, 10, 1, 0, 5e9), work)

  algorithm = Algorithm(
      lambda *_: (), no_setup, round_, lambda *_: None, None,
      idle=lambda state, cohort: state | {
          "round": state["round"] + 1 + cohort.present.sum()})

  def someone_in_odd_rounds(data, cohort_size, key, number):
    del key
    clients = data.size.shape[0]
    return jnp.full(cohort_size, clients).at[0].set(
        jnp.where(number % 2 == 1, 4, clients))

  play = jax.jit(lambda number, state: cohorts.play_round(
      algorithm, on_machines(problem),
      cohorts.Participation(3, cohorts.checked(someone_in_odd_rounds)),
      cohorts.run_keys(0), number, state))
  before = {"sum": jnp.float32(2), "round": jnp.int32(5)}
  state, aux = play(jnp.int32(0), before)
  assert (state["sum"], state["round"]) == (2, 6)
  assert not any(jax.tree.leaves((aux.cost, aux.times)))
  assert np.isnan(aux.server["loss"]) and aux.server["cohort_present"] == 0
  state, aux = play(jnp.int32(1), before)
  assert (state["sum"], state["round"]) == (2 + int(problem.data.size[4]), 6)
  assert aux.server == {"loss": 0, "step": 3, "cohort_present": 1}
  assert aux.cost.down == 30 and aux.times.computation > 0


def test_availability_needs_to_be_known(problem):
  with pytest.raises(ValueError, match="^sampling=availability: the data say"):
    cohorts.sample_cohort(problem.data, 2, jax.random.key(0), 0,
                          cohorts.by_availability)


def test_coins_are_independent_and_there_are_slots_for_all(problem):
  """Poisson sampling: every client with probability q, against SciPy."""
  clients, rate, rounds = 12, 0.3, 4000
  slots = cohorts.slots_of_coins(clients, rate)
  data = problem.data._replace(
      availability=jnp.full(clients, rate, jnp.float32))
  ids = np.asarray(jax.jit(jax.vmap(
      lambda key: cohorts.by_coins(data, slots, key)))(
          jax.random.split(jax.random.key(1), rounds)))
  there = (ids[:, :, None] == np.arange(clients)).any(1)
  numbers = np.bincount(there.sum(1), minlength=clients + 1)
  expected = rounds * stats.binom.pmf(
      np.arange(clients + 1), clients, rate)
  seen = expected > 5
  assert stats.chisquare(
      numbers[seen], expected[seen] * numbers[seen].sum()
      / expected[seen].sum()).pvalue > 1e-3
  assert abs(np.corrcoef(there.T) - np.eye(clients)).max() < 0.08
  cohort = cohorts.sample_cohort(
      data, slots, jax.random.key(2), sampler=cohorts.by_coins)
  np.testing.assert_allclose(cohort.expected, rate * clients, rtol=1e-6)
  for clients, rate in ((2000, 0.05), (100, 0.01), (30, 0.9), (5, 1.0)):
    slots = cohorts.slots_of_coins(clients, rate)
    assert stats.binom.sf(slots, clients, rate) <= 1e-12
    assert slots == clients or stats.binom.sf(
        0.75 * slots, clients, rate) > 1e-12
