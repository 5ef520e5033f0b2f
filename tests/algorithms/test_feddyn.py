"""FedDyn against the oracle, and what always holds."""

import jax
import numpy as np
import pytest

from fedjax_alg import registry, trees
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge
from tests.reference import diversified as oracle
from tests.reference import heterogeneity
from tests.reference.baselines import zero_table

#: Clients that come again, clients that never come, one without examples.
COHORTS = [[0, 1, 4, 5, 8, 11], [1, 2, 6, 9, 11], [0, 4, 7, 8, 10]]
EMPTY, NOBODY = 11, 12
KEYS = [jax.random.key(seed) for seed in (3, 4, 5)]
WORK = dict(local_steps=5, batch_size=6, client_lr=0.1, alpha=0.3)


def with_an_empty_client(problem):
  data = problem.data
  return problem._replace(
      data=data._replace(size=data.size.at[EMPTY].set(0)))


def check_memory(memory, h, table, alpha):
  """G_k = -alpha D_k, and h = -alpha mean D."""

  def term(drift):
    return -alpha * oracle.to_vector(bridge.to_oracle(drift))

  np.testing.assert_allclose(
      term(memory.mean), oracle.to_vector(h), rtol=0, atol=1e-5)
  for i, expected in table.items():
    row = jax.tree.map(lambda leaf: leaf[i], memory.clients)
    np.testing.assert_allclose(
        term(row), oracle.to_vector(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("settings", [
    WORK, dict(local_epochs=1, batch_size=8, client_lr=0.05, alpha=0.8,
               client_weights="examples")])
def test_rounds_are_the_oracles(problem, settings):
  """Slots without a client, and a client without examples, do not count."""
  work = registry.get("feddyn").hparams(**settings)
  there = problem.clients[:EMPTY]
  states, log, cohorts = bridge.history(
      with_an_empty_client(problem), "feddyn",
      [[*ids, *[NOBODY] * (8 - len(ids))] for ids in COHORTS], KEYS,
      problems.some_params(problem.model), **settings)
  w = bridge.to_oracle(problems.some_params(problem.model))
  h, table = oracle.zeros_like(w), zero_table(w, there)
  for state, aux, cohort, ids, key in zip(
      states[1:], log, cohorts, COHORTS, KEYS, strict=True):
    ids = [i for i in ids if i != EMPTY]
    batches = bridge.batches(
        problem, cohort._replace(ids=np.array(ids)), key, work)
    found = heterogeneity.dyn_round(
        w, h, table, there, ids, batches, work.client_lr, work.alpha,
        problems.L2, work.client_weights)
    bridge.assert_step_close(w, bridge.model_of(state), found.model, 2e-4)
    check_memory(state.memory, found.h, found.table, work.alpha)
    w, h, table = found.model, found.h, found.table
    read = sum(len(rows) for i in ids for rows in batches[i])
    assert [int(count) for count in aux.cost[:4]] == [52, 52, 1, read]
  assert np.abs(oracle.to_vector(table[4])).max() > 0.01
  for i in (3, EMPTY):  # never came; came with nothing
    row = jax.tree.map(lambda leaf, i=i: leaf[i], states[-1].memory.clients)
    assert not oracle.to_vector(bridge.to_oracle(row)).any()


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_with_newcomers_m_is_who_is_there(problem, weights):
  """Against the oracle, whose clients are those there and h their mean."""
  joins = [0] * 5 + [1] * 4 + [3] * 3
  keys = [jax.random.key(seed) for seed in range(5)]
  work, states, cohorts = bridge.with_newcomers(
      problem, "feddyn", joins, keys, client_weights=weights, **WORK)
  w = bridge.to_oracle(problems.some_params(problem.model))
  table = zero_table(w, problem.clients)
  for number, (state, cohort, key) in enumerate(zip(
      states[1:], cohorts, keys, strict=True)):
    there = problem.clients[:sum(join <= number for join in joins)]
    shares = heterogeneity.average_weights(there, range(len(there)), weights)
    h = oracle.weighted_sum(shares, [table[i] for i in range(len(there))])
    found = heterogeneity.dyn_round(
        w, h, table, there, np.asarray(cohort.ids).tolist(),
        bridge.batches(problem, cohort, key, work), work.client_lr,
        work.alpha, problems.L2, weights)
    bridge.assert_step_close(w, bridge.model_of(state), found.model, 2e-4)
    check_memory(state.memory, found.h, found.table, work.alpha)
    w, table = found.model, found.table
  assert np.abs(oracle.to_vector(found.h)).max() > 0.01


def test_the_first_round_goes_further_than_fedprox(problem):
  """By 1 + |P|/m: the linear terms are zero, and h is of this round."""
  params = problems.some_params(problem.model)
  more = {k: v for k, v in WORK.items() if k != "alpha"}
  found = bridge.play(
      problem, "feddyn", COHORTS[0], KEYS[0], params, **WORK)[0]
  prox = bridge.play(
      problem, "composed", COHORTS[0], KEYS[0], params, client_update="prox",
      mu=0.3, server_lr=1.5, client_weights="uniform", **more)[0]
  problems.assert_close(found, prox, rtol=1e-5, atol=1e-6)


def test_without_a_regulariser_the_server_is_nesterovs(problem):
  """alpha -> 0, all clients in every round: FedAvg with momentum 1."""
  everyone = list(range(12))
  more = dict(local_steps=2, batch_size=6, client_lr=0.05)
  states, _, cohorts = bridge.history(
      problem, "feddyn", [everyone] * 3, KEYS,
      problems.some_params(problem.model), alpha=1e-7, **more)
  average = registry.build(
      "composed", problem.model, map_clients=clients.ClientMap(),
      client_weights="uniform", **more)
  fresh = average.init(
      problems.some_params(problem.model), problem.spec, KEYS[0])
  round_ = problems.quick_jit(average.round)
  for cohort, key, before, after in zip(cohorts, KEYS, states, states[1:]):
    trained, _ = round_(fresh._replace(models=before.models), cohort, key)
    update = trees.subtract(trained.models, before.models)
    momentum = trees.add(trees.repeat(before.memory.mean, 1), update)
    problems.assert_close(
        trees.repeat(after.memory.mean, 1), momentum, rtol=0, atol=2e-6)
    problems.assert_close(
        after.models, trees.add(trees.add(before.models, update), momentum),
        rtol=0, atol=2e-6)
