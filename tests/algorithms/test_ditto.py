"""Ditto against the oracle, and what it reduces to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.algorithms import ditto
from fedjax_alg.base import Shard
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge
from tests.reference import heterogeneity

#: Clients that come again, clients that never come, one without examples.
COHORTS = [[0, 1, 4, 5, 8, 11], [1, 2, 6, 9, 11], [0, 4, 7, 8, 10]]
EMPTY, NOBODY, NEVER = 9, 12, 3
KEYS = [jax.random.key(seed) for seed in (3, 4, 5)]
KEY = jax.random.key(9)
WORK = dict(local_steps=4, batch_size=6, client_lr=0.2, personal_lr=0.1,
            lam=0.7)


def with_an_empty_client(problem):
  data = problem.data
  return problem._replace(
      data=data._replace(size=data.size.at[EMPTY].set(0)))


def personal_batches(problem, i, key, work):
  return bridge.client_batches(
      problem, i, jax.random.fold_in(key, ditto._PERSONAL),
      work.personal_work)


def row(tree, i):
  return jax.tree.map(lambda leaf: leaf[i], tree)


def deployed(problem, settings):
  """(state, client id, shard, key) -> the personal model, the copy."""
  algorithm = registry.build(
      "ditto", problem.model, map_clients=clients.ClientMap(),
      **settings)
  return problems.quick_jit(lambda *args: (
      algorithm.client_params(*args), algorithm.client_copy(*args)))


@pytest.mark.parametrize("settings", [
    dict(personal_steps=3, server_lr=0.8, **WORK),
    dict(local_epochs=1, batch_size=20, personal_start="initial", lam=2.0,
         client_weights="uniform")])
def test_rounds_and_what_is_deployed_are_the_oracles(problem, settings):
  work = registry.get("ditto").hparams(**settings)
  params = problems.some_params(problem.model)
  problem = with_an_empty_client(problem)
  states, log, _ = bridge.history(
      problem, "ditto",
      [[*ids, *[NOBODY] * (8 - len(ids))] for ids in COHORTS], KEYS, params,
      **settings)
  w, personal = bridge.to_oracle(params), {}
  if work.personal_start == "initial":
    personal = {i: w for i in range(12)}
  for state, aux, ids, key in zip(
      states[1:], log, COHORTS, KEYS, strict=True):
    ids = [i for i in ids if i != EMPTY]
    keys = {i: jax.random.fold_in(key, i) for i in ids}
    batches = {i: bridge.client_batches(problem, i, keys[i], work)
               for i in ids}
    own = {i: personal_batches(problem, i, keys[i], work) for i in ids}
    found = heterogeneity.ditto_round(
        w, personal, problem.clients, ids, batches, own, work.client_lr,
        work.personal_lr, work.lam, work.server_lr, problems.L2,
        work.client_weights)
    bridge.assert_step_close(w, bridge.model_of(state), found.model, 2e-4)
    for i in ids:
      bridge.assert_step_close(
          w, row(state.memory.models, i), found.personal[i], 3e-4)
    w, personal = found.model, found.personal
    read = sum(len(rows) for i in ids for rows in batches[i] + own[i])
    assert [int(count) for count in aux.cost[:4]] == [52, 52, 1, read]
  state = states[-1]
  met = sorted({i for ids in COHORTS for i in ids} - {EMPTY})
  assert np.flatnonzero(state.memory.met).tolist() == met
  problems.assert_equal(row(state.memory.models, EMPTY), params)

  deploy = deployed(problem, settings)
  for i, known in ((4, 4), (NEVER, NEVER), (NEVER, NOBODY), (0, NOBODY)):
    v, copy = deploy(
        state, jnp.int32(known), layout.shard_of(problem.data, i), KEY)
    start = {}
    if work.personal_start == "initial":
      start = {i: bridge.to_oracle(params)}
    alone = heterogeneity.ditto_round(
        w, start, problem.clients, [i],
        {i: bridge.client_batches(problem, i, KEY, work)},
        {i: personal_batches(problem, i, KEY, work)}, work.client_lr,
        work.personal_lr, work.lam, l2=problems.L2)
    bridge.assert_step_close(w, copy, alone.trained[0], 3e-4)
    if known in met:
      problems.assert_equal(v, row(state.memory.models, known))
    else:
      bridge.assert_step_close(w, v, alone.personal[i], 3e-4)
  nothing = Shard(problem.data.x, problem.data.y, jnp.int32(0), jnp.int32(0))
  for client in (EMPTY, NOBODY):
    for found in deploy(state, jnp.int32(client), nothing, KEY):
      problems.assert_equal(found, bridge.model_of(state))


def test_the_global_model_is_fedavgs_bit_for_bit(problem):
  params = problems.some_params(problem.model)
  work = {k: WORK[k] for k in ("local_steps", "batch_size", "client_lr")}
  found = bridge.chain(problem, "ditto", COHORTS, KEYS, params, **WORK)
  expected = bridge.chain(problem, "fedavg", COHORTS, KEYS, params, **work)
  problems.assert_equal(found[0].models, expected[0].models)
  for mine, theirs in zip(found[1], expected[1], strict=True):
    problems.assert_equal(mine.client, theirs.client)
    problems.assert_equal(mine.server, theirs.server)


@pytest.mark.parametrize("lam, personal_lr", [(0.0, 0.3), (1e4, 1e-4)])
def test_from_local_training_to_the_global_model(problem, lam, personal_lr):
  """lam = 0 is training alone; a large one makes v_k the model received."""
  work = dict(local_steps=3, batch_size=0)
  params = problems.some_params(problem.model)
  everyone = [list(range(12))] * 2
  states = bridge.history(
      problem, "ditto", everyone, KEYS[:2], params, lam=lam,
      personal_lr=personal_lr, **work)[0]
  found = states[-1].memory.models
  if lam:
    received = jax.tree.map(
        lambda leaf, like: np.broadcast_to(leaf, like.shape),
        states[1].models, found)
    gap = jax.tree.map(lambda a, b: np.abs(a - b).max(), found, received)
    assert max(jax.tree.leaves(gap)) < 2e-3
    assert problems.differ(states[1].models, states[0].models)
    return
  alone = bridge.history(
      problem, "local", everyone, KEYS[:2], params, client_lr=personal_lr,
      **work)[0]
  problems.assert_close(found, alone[-1].table, rtol=1e-6, atol=1e-6)


def test_a_newcomer_starts_at_the_model_it_receives(problem):
  """It is unmet until it comes; nothing of it is kept before."""
  joins = [0] * 5 + [2] * 7
  keys = [jax.random.key(seed) for seed in range(4)]
  work, states, cohorts = bridge.with_newcomers(
      problem, "ditto", joins, keys, **WORK)
  seen: set = set()
  for number, (before, after, cohort, key) in enumerate(zip(
      states, states[1:], cohorts, keys, strict=False)):
    ids = np.asarray(cohort.ids).tolist()
    new = [i for i in ids if i not in seen]
    seen |= set(ids)
    assert np.flatnonzero(after.memory.met).tolist() == sorted(seen)
    w = bridge.to_oracle(bridge.model_of(before))
    for i in new if number else []:
      own = personal_batches(problem, i, jax.random.fold_in(key, i), work)
      expected = heterogeneity.ditto_round(
          w, {}, problem.clients, [i], {i: []}, {i: own}, 0.1,
          work.personal_lr, work.lam, l2=problems.L2).personal[i]
      bridge.assert_step_close(
          w, row(after.memory.models, i), expected, 3e-4)
  assert max(seen) > 4


def test_it_warns_where_it_must_diverge():
  caution = registry.get("ditto").caution
  assert not caution(ditto.DittoHParams(), 7850)
  assert caution(ditto.DittoHParams(lam=20.0), 7850).startswith(
      "`personal_lr`=0.1 with `lam`=20: ")
