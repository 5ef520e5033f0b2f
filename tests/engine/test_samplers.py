"""Who takes part."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_alg.base import NEVER, ClientData
from fedjax_alg.engine import samplers
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import sample_cohort
from tests.algorithms import bridge


@pytest.mark.program
def test_absent_clients_are_never_drawn_and_the_present_evenly(problem):
  joins = np.zeros(12, np.int32)
  joins[[0, 5]], joins[[3, 9, 11]] = 2, 4
  late = problem.data._replace(joins=jnp.asarray(joins))
  draw = jax.jit(
    jax.vmap(lambda key, number: sample_cohort(late, 5, key, number).ids, (0, None))
  )
  keys = jax.random.split(jax.random.key(0), 1000)
  for number, num_present in ((0, 7), (1, 7), (2, 9), (3, 9), (4, 12)):
    ids = np.asarray(draw(keys, np.int32(number)))
    assert (np.diff(ids, axis=1) > 0).all()
    counts = np.bincount(ids.reshape(-1), minlength=12)
    np.testing.assert_array_equal(counts > 0, joins <= number)
    assert stats.chisquare(counts[joins <= number]).pvalue > 1e-3
    assert (joins <= number).sum() == num_present
  # Fewer than S there: the rest are padding slots.
  few = bridge.draw_cohort(late, 9, keys[0], 0)
  np.testing.assert_array_equal(few.ids[7:], [12, 12])
  np.testing.assert_array_equal(few.weight[7:], [0, 0])


DRAWS = 4000


@functools.cache
def _sample(sampler, slots):
  return jax.jit(
    jax.vmap(
      lambda key, data, number: sample_cohort(data, slots, key, number, sampler).ids,
      (0, None, None),
    )
  )


def draws(sampler, data, slots, number=0):
  """[DRAWS, slots] cohorts of independent keys."""
  if data.joins is None:  # one program for all data
    data = data._replace(joins=np.zeros(12, np.int32))
  keys = jax.random.split(jax.random.key(3), DRAWS)
  return np.asarray(_sample(sampler, slots)(keys, data, np.int32(number)))


def test_uniform_cohorts_are_those_that_have_always_been_drawn(problem):
  """Otherwise every run of before would have other numbers."""
  key = jax.random.fold_in(run_keys(0).cohort, 3)
  ids = bridge.draw_cohort(problem.data, 5, key, 3).ids
  np.testing.assert_array_equal(ids, np.sort(jax.random.permutation(key, 12)[:5]))
  joins = np.where(np.arange(12) % 4 == 1, 9, 0).astype(np.int32)
  late = problem.data._replace(joins=joins)
  np.testing.assert_array_equal(  # all of them: each in its own slot
    bridge.draw_cohort(late, 12, key, 3).ids, np.where(joins > 3, 12, np.arange(12))
  )


@pytest.mark.program
@pytest.mark.parametrize("slots", (2, 5))
def test_a_bijection_draws_uniformly_without_replacement(problem, slots):
  """Every set of two, and every pair in cohorts of five, equally often."""
  draw = jax.jit(jax.vmap(lambda key: samplers.by_bijection(problem.data, slots, key)))
  ids = np.asarray(draw(jax.random.split(jax.random.key(3), DRAWS)))
  assert (np.diff(ids, axis=1) > 0).all()
  assert ids.min() == 0 and ids.max() == 11
  first, second = np.triu_indices(slots, 1)
  counts = np.zeros((12, 12))
  np.add.at(counts, (ids[:, first], ids[:, second]), 1)
  counts = counts[np.triu_indices(12, 1)]
  share = slots * (slots - 1) / (12 * 11)
  scores = (counts - DRAWS * share) / np.sqrt(DRAWS * share * (1 - share))
  assert np.abs(scores).max() < 4.5  # of 66; 1 in 2,000 by chance
  assert 0.5 < scores.std() < 1.5


def test_a_bijection_makes_nothing_of_the_size_of_all_clients(problem):
  clients = 10**6
  many = problem.data._replace(size=jax.ShapeDtypeStruct((clients,), jnp.int32))

  def largest(sampler):
    """The largest result of an operation, which stands before the sign "="."""

    def draw(key, availability):
      data = many._replace(availability=availability)
      return sampler(data, 100, key, jnp.int32(5))

    text = str(jax.make_jaxpr(draw)(jax.random.key(0), jnp.zeros(clients)))
    results = "".join(re.findall(r"^ +(.*) = ", text, re.MULTILINE))
    return max(int(number) for number in re.findall(r":[a-z0-9<>]+\[(\d+)", results))

  assert largest(samplers.by_bijection) == 100
  assert largest(samplers.uniform) == clients
  for permutation, bijection in (
    (samplers.by_availability, samplers.by_trial),
    (
      samplers.with_daily_cycle(samplers.by_availability, 24, 0),
      samplers.with_daily_cycle(samplers.by_trial, 24, 0),
    ),
  ):
    assert largest(permutation) == clients
    assert largest(bijection) == 1024  # those that are asked at once


@pytest.mark.program
@pytest.mark.parametrize("sampler", (samplers.by_size, samplers.by_examples))
def test_large_clients_are_drawn_more_often(problem, sampler):
  """The first draw takes client i with p_i = n_i / n, the second p_j / rest."""
  p = np.asarray(problem.data.size, float)
  p /= p.sum()
  pairs = np.outer(p, p) / (1 - p)[:, None]
  expected = DRAWS * np.triu(pairs + pairs.T, 1)
  counts = np.zeros((12, 12))
  np.add.at(counts, tuple(draws(sampler, problem.data, 2).T), 1)
  assert counts.sum() == np.triu(counts, 1).sum() == DRAWS
  often = expected > 5
  assert (
    stats.chisquare(
      [*counts[often], counts[~often].sum()], [*expected[often], expected[~often].sum()]
    ).pvalue
    > 1e-3
  )
  # Client 10 has just come, and who is left without examples stays away.
  few = np.where(np.isin(np.arange(12), [3, 10, 11]), problem.data.size, 0)
  joins = np.where(np.arange(12) == 10, 4, 0).astype(np.int32)
  late = problem.data._replace(size=few, joins=joins)
  assert np.unique(draws(sampler, late, 2), axis=0).tolist() == [[3, 11]]
  assert np.unique(draws(sampler, late, 2, 4), axis=0).tolist() == [
    [3, 10],
    [3, 11],
    [10, 11],
  ]
  none = late._replace(size=np.zeros_like(few))
  assert (draws(sampler, none, 2) == 12).all()


@pytest.mark.program
def test_samplers_of_very_many_clients():
  """Blocks of sizes, turns and the end of the clients; nobody twice."""
  size = np.zeros(3000, np.int32)
  size[[5, 127, 128, 2999]] = 1, 2, 10**8, 3
  data = layout_of(size, np.where(np.arange(3000) % 700 == 699, 1.0, 0.0))
  key = jax.random.key(0)
  np.testing.assert_array_equal(
    jax.jit(lambda key: samplers.by_examples(data, 6, key))(key),
    [5, 127, 128, 2999, 3000, 3000],
  )
  np.testing.assert_array_equal(  # the third of three turns
    jax.jit(lambda key: samplers.by_trial(data, 5, key))(key),
    [699, 1399, 2099, 2799, 3000],
  )


def layout_of(size, availability):
  """Clients of these sizes, without rows."""
  size = jnp.asarray(size, jnp.int32)
  return ClientData(
    np.zeros((1, 1), np.float32),
    np.zeros(1, np.int32),
    size,
    size,
    availability=jnp.asarray(availability, jnp.float32),
  )


@pytest.mark.program
@pytest.mark.parametrize("sampler", (samplers.by_availability, samplers.by_trial))
def test_available_clients_are_drawn_evenly_and_slots_stay_empty(problem, sampler):
  """Client i has one of 3 slots with a_i E[min(1, 3 / (1 + others there))]."""
  chance = np.array([0, 1, 1, *[0.3] * 4, *[0.1] * 5])
  joins = np.where(np.arange(12) == 2, 4, 0)
  data = problem.data._replace(
    availability=jnp.asarray(chance, jnp.float32), joins=jnp.asarray(joins, jnp.int32)
  )
  ids = draws(sampler, data, 3)
  assert (np.diff(ids, axis=1) > 0)[ids[:, 1:] < 12].all()
  a = np.where(joins > 0, 0, chance)

  def number_there(chances):
    distribution = np.ones(1)
    for chance in chances:
      distribution = np.convolve(distribution, [1 - chance, chance])
    return distribution

  def slot(i):
    others = number_there(np.delete(a, i))
    return a[i] * (others * np.minimum(1, 3 / (1 + np.arange(12)))).sum()

  expected = np.array([slot(i) for i in range(12)])
  counts = np.bincount(ids[ids < 12], minlength=12)
  assert counts[0] == counts[2] == 0
  z = (counts - DRAWS * expected) / np.sqrt(
    DRAWS * np.maximum(expected * (1 - expected), 1e-9)
  )
  assert (z**2).sum() < stats.chi2.ppf(0.999, 10)
  empty = (number_there(a) * np.maximum(0, 3 - np.arange(13))).sum()
  assert abs((ids == 12).sum(1).mean() - empty) < 4 / np.sqrt(DRAWS)
  nobody = data._replace(availability=np.zeros(12, np.float32))
  assert (draws(sampler, nobody, 3) == 12).all()


@pytest.mark.program
def test_availability_follows_the_time_of_day(problem):
  """Each client's share of days by hour, and its own phase."""
  data = problem.data._replace(availability=np.full(12, 0.5, np.float32))
  sampler = samplers.with_daily_cycle(samplers.by_availability, 4, seed=7)
  hours = np.stack(
    [
      np.stack(
        [
          np.bincount(row[row < 12], minlength=12)
          for row in draws(sampler, data, 12, hour)
        ]
      ).mean(0)
      for hour in (0, 1, 2, 3, 4)
    ]
  )
  phase = np.asarray(
    [jax.random.uniform(jax.random.fold_in(jax.random.key(7), i)) for i in range(12)]
  )
  chance = np.minimum(
    0.5 * (1 + np.sin(2 * np.pi * (phase + np.arange(5)[:, None] / 4))), 1
  )
  assert np.abs(hours - chance).max() < 5 * np.sqrt(0.25 / DRAWS)
  assert np.ptp(chance, 0).min() > 0.5 and np.ptp(chance[0]) > 0.5
  np.testing.assert_array_equal(
    samplers.draw_of(sampler), samplers.draw_of(samplers.by_availability)
  )


@pytest.mark.program
def test_a_sampler_of_ones_own_cannot_break_a_cohort(problem):
  joins = np.where(np.arange(12) == 7, 2, 0)
  late = problem.data._replace(joins=jnp.asarray(joins, jnp.int32))

  def mine(data, cohort_size, key, number):
    del key
    assert (data.size.shape[0], cohort_size) == (12, 6)
    return jnp.stack([5, 7, 5, -1, 13, number])

  sampler = samplers.with_checks(mine)
  draw = jax.jit(
    lambda number: sample_cohort(late, 6, jax.random.key(0), number, sampler)
  )
  for number, ids in ((1, [1, 5, 12, 12, 12, 12]), (2, [2, 5, 7, 12, 12, 12])):
    cohort = jax.device_get(draw(np.int32(number)))
    np.testing.assert_array_equal(cohort.ids, ids)
    np.testing.assert_array_equal(cohort.present, np.array(ids) < 12)
  for bad, pattern in (
    (lambda *_: jnp.asarray(np.zeros(3, np.int32)), r"gives \[3\] int32"),
    (lambda *_: jnp.asarray(np.zeros(6, np.float32)), r"gives \[6\] float32"),
    (lambda *_: None, r"gives \[\] NoneType"),
  ):
    with pytest.raises(ValueError, match="^sampler=<lambda>: " + pattern):
      sample_cohort(late, 6, jax.random.key(0), 0, samplers.with_checks(bad))


def test_availability_needs_to_be_known(problem):
  with pytest.raises(ValueError, match="^sampling=availability: the data do not"):
    sample_cohort(problem.data, 2, jax.random.key(0), 0, samplers.by_availability)


def test_coins_are_independent_and_there_are_slots_for_all(problem):
  """Poisson sampling: every client with probability q, against SciPy."""
  clients, rate, rounds = 12, 0.3, 4000
  slots = samplers.slots_of_poisson(clients, rate)
  data = problem.data._replace(
    availability=jnp.asarray(np.full(clients, rate, np.float32))
  )
  ids = np.asarray(
    jax.jit(jax.vmap(lambda key: samplers.poisson(data, slots, key)))(
      jax.random.split(jax.random.key(1), rounds)
    )
  )
  present = (ids[:, :, None] == np.arange(clients)).any(1)
  numbers = np.bincount(present.sum(1), minlength=clients + 1)
  expected = rounds * stats.binom.pmf(np.arange(clients + 1), clients, rate)
  seen = expected > 5
  assert (
    stats.chisquare(
      numbers[seen], expected[seen] * numbers[seen].sum() / expected[seen].sum()
    ).pvalue
    > 1e-3
  )
  assert abs(np.corrcoef(present.T) - np.eye(clients)).max() < 0.08
  cohort = jax.jit(
    lambda key: sample_cohort(data, slots, key, sampler=samplers.poisson)
  )(jax.random.key(2))
  np.testing.assert_allclose(cohort.draw.expected, rate * clients, rtol=1e-6)
  for clients, rate in ((2000, 0.05), (100, 0.01), (30, 0.9), (5, 1.0)):
    slots = samplers.slots_of_poisson(clients, rate)
    assert stats.binom.sf(slots, clients, rate) <= 1e-12
    assert slots == clients or stats.binom.sf(0.75 * slots, clients, rate) > 1e-12


@pytest.mark.program
def test_clients_take_turns(problem):
  """A second participation too early would move the model more than epsilon says."""
  data = problem.data
  clients, slots, rounds = data.size.shape[0], 5, 12
  every = samplers.turns(clients, slots)
  ids = np.asarray(
    jax.vmap(lambda number: samplers.cyclic(data, slots, jax.random.key(1), number))(
      jnp.arange(rounds)
    )
  )
  assert every == -(-clients // slots)
  for client in range(clients):
    (number,) = np.nonzero((ids == client).any(1))
    assert number[0] < every and (np.diff(number) == every).all()
  sizes = (ids < clients).sum(1)
  assert set(sizes) <= {clients // every, -(-clients // every)}
  assert not (np.diff(ids[0, : sizes[0]]) == 1).all()
  cohort = sample_cohort(data, slots, jax.random.key(1), 0, samplers.cyclic)
  assert cohort.draw.expected == clients / every


def test_clients_that_never_train_have_no_turn_and_are_not_expected(problem):
  never = np.isin(np.arange(12), [0, 5, 7])
  data = problem.data._replace(
    availability=np.full(12, 0.5, np.float32),
    joins=np.where(never, NEVER, 0).astype(np.int32),
  )
  key, slots = jax.random.key(1), 3

  @jax.jit
  def take_turns(data):
    return jax.vmap(lambda number: samplers.cyclic(data, slots, key, number))(
      jnp.arange(3)
    )

  ids = np.asarray(take_turns(data))
  np.testing.assert_array_equal(np.sort(ids[ids < 12]), np.flatnonzero(~never))
  for sampler, expected in ((samplers.cyclic, 9 / 3), (samplers.poisson, 9 * 0.5)):
    assert sample_cohort(data, slots, key, 0, sampler).draw.expected == expected
  # Where everybody trains, the turns are those without ``joins``.
  everybody = data._replace(joins=np.zeros(12, np.int32))
  np.testing.assert_array_equal(
    take_turns(everybody), take_turns(data._replace(joins=None))
  )


def test_clients_have_no_turn_before_they_join(problem):
  """Their place stays empty: a row of theirs would be data that nobody has yet."""
  joins = np.where(np.arange(12) % 3 == 1, 7, 0).astype(np.int32)
  data = problem.data._replace(joins=joins)
  ids = np.asarray(
    jax.vmap(lambda number: samplers.cyclic(data, 3, jax.random.key(0), number))(
      jnp.arange(11)
    )
  )
  rounds, slots = np.nonzero(ids < 12)
  assert (joins[ids[rounds, slots]] <= rounds).all()
  assert set(ids[ids < 12]) == set(range(12))
