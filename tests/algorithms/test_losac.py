"""LoSAC against the oracle, and what its estimate always is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.algorithms import losac
from fedjax_alg.base import Shard
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge
from tests.reference import baselines
from tests.reference import diversified as oracle

#: Sizes 3 to 90: with batches of 6 some clients hold fewer than 5, some more.
COHORTS = [[0, 1, 4, 5, 8, 11], [1, 2, 3, 6, 9], [0, 4, 7, 8, 10, 11]]
KEYS = [jax.random.key(seed) for seed in (3, 4, 5)]
WORK = dict(local_steps=5, batch_size=6, client_lr=0.2)
NOBODY = 12

_fixed_batch = jax.jit(losac.fixed_batch, static_argnums=3)
_picks = jax.jit(losac.picks, static_argnums=1)


def num_batches(size, batch_size):
  return -(-size // batch_size)


def partition_of(problem, batch_size):
  """client id -> rows of each of its fixed batches."""
  result = {}
  for i, (_, y) in enumerate(problem.clients):
    shard = Shard(
        problem.data.x, problem.data.y, jnp.int32(0), jnp.int32(len(y)))
    result[i] = []
    for j in range(num_batches(len(y), batch_size)):
      rows, mask = _fixed_batch(shard, jnp.int32(i), jnp.int32(j), batch_size)
      result[i].append(np.asarray(rows)[np.asarray(mask)])
  return result


def picks_of(partition, ids, key, steps):
  """client id -> the batch of each step; fewer batches come round again."""
  result = {}
  for i in ids:
    count = len(partition[i])
    order = np.asarray(_picks(
        jax.random.fold_in(key, i), steps, jnp.int32(count)))
    result[i] = [int(order[k % count]) for k in range(steps)]
  return result


def play(problem, cohorts=None, **settings):
  return bridge.history(
      problem, "losac", cohorts or COHORTS, KEYS,
      problems.some_params(problem.model), **settings)


def entry(table, row):
  return bridge.to_oracle(problems.row(table, row))


def assert_close(mine, theirs, atol=2e-5):
  np.testing.assert_allclose(
      oracle.to_vector(mine), oracle.to_vector(theirs), rtol=0, atol=atol)


@pytest.mark.parametrize("settings", [
    dict(first_gradients="zeros", server_lr=0.8, **WORK),
    dict(first_gradients="full", **WORK),
    dict(first_gradients="full", local_steps=0, local_epochs=2,
         batch_size=10, client_lr=0.1),
])
def test_variant_client_is_the_oracles(problem, settings):
  h = registry.get("losac").hparams(**settings)
  states, _, cohorts = play(problem, **settings)
  w = bridge.to_oracle(problems.some_params(problem.model))
  table = baselines.zero_table(w, problem.clients)
  if h.first_gradients == "full":
    table = {i: oracle.gradient(w, x, y, problems.L2)
             for i, (x, y) in enumerate(problem.clients)}
  estimate = baselines.losac_estimate(table, problem.clients, "C")
  assert_close(bridge.to_oracle(states[0].memory.estimate), estimate)
  for state, cohort, ids, key in zip(
      states[1:], cohorts, COHORTS, KEYS, strict=True):
    found = baselines.losac_round(
        w, estimate, table, problem.clients, ids,
        bridge.batches(problem, cohort, key, h), h.client_lr, h.server_lr,
        problems.L2)
    bridge.assert_step_close(w, bridge.model_of(state), found.model, 3e-4)
    assert_close(bridge.to_oracle(state.memory.estimate), found.G)
    for i, expected in found.table.items():
      assert_close(entry(state.memory.table, i), expected)
    w, estimate, table = found.model, found.G, found.table


@pytest.mark.parametrize("server_lr, batch_size", [(1.0, 6), (0.6, 20)])
def test_variant_table_is_the_oracles(problem, server_lr, batch_size):
  settings = {**WORK, "batch_size": batch_size}
  states, log, _ = play(
      problem, variant="table", server_lr=server_lr, **settings)
  partition = partition_of(problem, batch_size)
  first_row = np.asarray(states[0].memory.first_row)
  w = bridge.to_oracle(problems.some_params(problem.model))
  table = baselines.zero_batch_table(w, partition)
  estimate = oracle.zeros_like(w)
  for state, aux, ids, key in zip(
      states[1:], log, COHORTS, KEYS, strict=True):
    picks = picks_of(partition, ids, key, WORK["local_steps"])
    found = baselines.losac_round(
        w, estimate, table, problem.clients, ids, None, WORK["client_lr"],
        server_lr, problems.L2, "T", partition, picks)
    bridge.assert_step_close(w, bridge.model_of(state), found.model, 3e-4)
    assert_close(bridge.to_oracle(state.memory.estimate), found.G)
    for i, rows in found.table.items():
      for j, expected in enumerate(rows):
        assert_close(entry(state.memory.table, first_row[i] + j), expected)
    # Exactly what the steps read, short batches as short as they are.
    assert int(aux.cost.example_gradients) == sum(
        len(partition[i][j]) for i in ids for j in picks[i])
    w, estimate, table = found.model, found.G, found.table


def test_fixed_batches_are_a_partition(problem):
  for i, batches in partition_of(problem, 6).items():
    size = len(problem.clients[i][1])
    assert sorted(np.concatenate(batches).tolist()) == list(range(size))
    assert [len(rows) for rows in batches[:-1]] == [6] * (len(batches) - 1)


@pytest.mark.parametrize("count", [1, 3, 5, 9])
def test_picks_visit_as_many_batches_as_there_are(count):
  visited = np.asarray(_picks(KEYS[0], 5, jnp.int32(count)))
  assert visited.shape == (5,)
  assert len(set(visited.tolist())) == min(count, 5)
  assert (0 <= visited).all() and (visited < count).all()


@pytest.mark.parametrize("settings", [
    dict(), dict(first_gradients="full"), dict(variant="table")])
def test_the_estimate_is_the_mean_of_the_delayed_gradients(problem, settings):
  """After every round, also with slots that nobody fills."""
  cohorts = [[ids[0], NOBODY, *ids[1:], NOBODY] for ids in COHORTS]
  states, _, _ = play(problem, cohorts, **WORK, **settings)
  sizes = np.array(problems.SIZES)
  for state in states:
    memory = state.memory
    share = np.zeros(jax.tree.leaves(memory.table)[0].shape[0])
    if settings.get("variant") == "table":
      for i, batches in partition_of(problem, WORK["batch_size"]).items():
        for j, rows in enumerate(batches):
          share[int(memory.first_row[i]) + j] = len(rows)
    else:
      share[:] = sizes
    assert share.sum() == sizes.sum() == float(memory.examples)
    for g, table in zip(jax.tree.leaves(memory.estimate),
                        jax.tree.leaves(memory.table), strict=True):
      mean = np.tensordot(
          share / sizes.sum(), np.asarray(table, np.float64), axes=1)
      np.testing.assert_allclose(g, mean, rtol=0, atol=1e-6)
  assert problems.differ(states[1].memory.estimate, states[3].memory.estimate)


@pytest.mark.parametrize("settings", [
    dict(), dict(first_gradients="full"), dict(variant="table")])
def test_the_estimate_follows_who_is_there(problem, settings):
  """With newcomers; the rounds are the oracle's of the clients there."""
  joins = [0] * 5 + [1] * 4 + [3] * 3
  keys = [jax.random.key(seed) for seed in range(5)]
  h, states, cohorts = bridge.with_newcomers(
      problem, "losac", joins, keys, **WORK, **settings)
  partition = partition_of(problem, WORK["batch_size"])
  per_batch, full = h.variant == "table", h.first_gradients == "full"
  w = bridge.to_oracle(problems.some_params(problem.model))
  table = (baselines.zero_batch_table(w, partition) if per_batch
           else baselines.zero_table(w, problem.clients))
  for number, (state, cohort, key) in enumerate(zip(
      states[1:], cohorts, keys, strict=True)):
    there = [i for i, join in enumerate(joins) if join <= number]
    if full:
      table |= {i: oracle.gradient(w, *problem.clients[i], problems.L2)
                for i in there if joins[i] == number}
    known = {i: table[i] for i in there}
    now = problem.clients[:len(there)]
    variant = "T" if per_batch else "C"
    estimate = baselines.losac_estimate(known, now, variant, partition)
    ids = np.asarray(cohort.ids).tolist()
    found = baselines.losac_round(
        w, estimate, known, now, ids,
        None if per_batch else bridge.batches(problem, cohort, key, h),
        h.client_lr, h.server_lr, problems.L2, variant, partition,
        picks_of(partition, ids, key, WORK["local_steps"]))
    bridge.assert_step_close(w, bridge.model_of(state), found.model, 3e-4)
    assert_close(bridge.to_oracle(state.memory.estimate), found.G)
    for i, expected in found.table.items():
      rows = [expected]
      first = i
      if per_batch:
        rows, first = expected, int(state.memory.first_row[i])
      for j, row in enumerate(rows):
        assert_close(entry(state.memory.table, first + j), row)
    w, table = found.model, table | found.table
  assert len(there) == 12


def test_padding_slots_change_nothing(problem):
  cohorts = [[ids[0], NOBODY, *ids[1:], NOBODY] for ids in COHORTS]
  plain, log, _ = play(problem, variant="table", **WORK)
  padded, padded_log, _ = play(problem, cohorts, variant="table", **WORK)
  problems.assert_close(padded, plain)
  problems.assert_equal([aux.cost for aux in padded_log],
                        [aux.cost for aux in log])


@pytest.mark.parametrize("flag", ["local_steps", "batch_size"])
@pytest.mark.parametrize("name, more", [
    ("losac", {}), ("composed", dict(client_update="losac"))])
def test_a_table_of_no_fixed_size_is_refused(problem, flag, name, more):
  with pytest.raises(ValueError) as error:
    registry.build(
        name, problem.model, map_clients=clients.ClientMap(),
        variant="table", **{**WORK, flag: 0}, **more)
  assert str(error.value) == f"{flag}=0: variant=table needs at least 1"
