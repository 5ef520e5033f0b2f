"""SCAFFOLD against the oracle, and what always holds."""

import jax
import numpy as np
import pytest

from fedjax_alg import registry
from tests import problems
from tests.algorithms import bridge
from tests.reference import baselines
from tests.reference import diversified as oracle
from tests.reference import optimisers

#: Clients that come again, and clients that never come.
COHORTS = [[0, 1, 4, 5, 8, 11], [1, 2, 3, 6, 9], [0, 4, 7, 8, 10, 11]]
KEYS = [jax.random.key(seed) for seed in (3, 4, 5)]
WORK = dict(local_steps=5, batch_size=6, client_lr=0.2)
NOBODY = 12


def play(problem, name="scaffold", cohorts=None, **settings):
  return bridge.history(
      problem, name, cohorts or COHORTS, KEYS,
      problems.some_params(problem.model), **settings)


def client_entry(table, i):
  return bridge.to_oracle(jax.tree.map(lambda leaf: leaf[i], table))


def assert_close(mine, theirs, atol=1e-5):
  np.testing.assert_allclose(
      oracle.to_vector(mine), oracle.to_vector(theirs), rtol=0, atol=atol)


@pytest.mark.parametrize("settings", [
    dict(option="I", **WORK),
    dict(option="II", server_lr=0.7, **WORK),
    dict(option="II", local_steps=0, local_epochs=2, batch_size=10,
         client_lr=0.1, server_lr=1.3),
])
def test_rounds_are_the_oracles(problem, settings):
  work = registry.get("scaffold").hparams(**settings)
  states, log, cohorts = play(problem, **settings)
  w = bridge.to_oracle(problems.some_params(problem.model))
  c = oracle.zeros_like(w)
  table = baselines.zero_table(w, problem.clients)
  for state, aux, cohort, ids, key in zip(
      states[1:], log, cohorts, COHORTS, KEYS, strict=True):
    batches = bridge.batches(problem, cohort, key, work)
    found = baselines.scaffold_round(
        w, c, table, problem.clients, ids, batches, work.client_lr,
        work.server_lr, problems.L2, work.option)
    bridge.assert_step_close(w, bridge.model_of(state), found.model, 2e-4)
    assert_close(bridge.to_oracle(state.memory.server), found.c)
    for i, expected in found.table.items():
      assert_close(client_entry(state.memory.clients, i), expected, 2e-5)
    w, c, table = found.model, found.c, found.table
    assert aux.client["loss"].shape == (len(ids),)
    # Option I reads all of a client's examples once more.
    read = sum(len(rows) for i in ids for rows in batches[i])
    if work.option == "I":
      read += sum(len(problem.clients[i][1]) for i in ids)
    assert [int(count) for count in aux.cost[:4]] == [104, 104, 1, read]
  assert np.abs(oracle.to_vector(table[4])).max() > 0.01


@pytest.mark.parametrize("option", ["I", "II"])
def test_with_momentum_c_i_is_the_mean_gradient_all_the_same(problem, option):
  """Momentum acts on the corrected gradient, and never gets into c_i."""
  settings = dict(option=option, client_optimizer="momentum",
                  client_momentum=0.8, **WORK)
  states, _, cohorts = play(
      problem, cohorts=COHORTS[:1] * 3, **settings)
  work = registry.get("scaffold").hparams(**settings)
  ids, (before, after), key = COHORTS[0], states[2:], KEYS[2]
  batches = bridge.batches(problem, cohorts[2], key, work)
  w, c = bridge.model_of(before), before.memory.server
  moves = []
  for i in ids:
    shift = oracle.to_vector(bridge.to_oracle(c)) - oracle.to_vector(
        client_entry(before.memory.clients, i))
    assert np.abs(shift).max() > 0.01
    trained, mean = optimisers.local_training(
        bridge.to_oracle(w), *problem.clients[i], batches[i],
        lambda k: work.client_lr, problems.L2, shift=shift, kind="momentum",
        momentum=0.8)
    moves.append(trained)
    if option == "I":
      mean = oracle.to_vector(oracle.gradient(
          bridge.to_oracle(w), *problem.clients[i], problems.L2))
    np.testing.assert_allclose(
        oracle.to_vector(client_entry(after.memory.clients, i)), mean,
        rtol=0, atol=3e-5)
  bridge.assert_step_close(
      bridge.to_oracle(w), bridge.model_of(after), oracle.uniform_mean(moves),
      2e-4)


@pytest.mark.parametrize("option", ["I", "II"])
def test_c_is_the_mean_of_all_c_i(problem, option):
  """Whoever comes, weighted or not, and with slots that nobody fills."""
  cohorts = [[*ids, NOBODY, NOBODY] for ids in COHORTS]
  states, _, _ = play(
      problem, cohorts=cohorts, option=option, server_lr=0.5,
      client_weights="examples", **WORK)
  for state in states:
    mean = jax.tree.map(lambda leaf: leaf.mean(0), state.memory.clients)
    problems.assert_close(state.memory.server, mean, rtol=0, atol=1e-6)
  never = sorted(set(range(12)) - {i for ids in COHORTS for i in ids})
  for i in range(12):
    row = oracle.to_vector(client_entry(states[-1].memory.clients, i))
    assert row.any() == (i not in never)


@pytest.mark.parametrize("option", ["I", "II"])
def test_with_newcomers_n_is_who_is_there(problem, option):
  """Against the oracle, whose clients are those there and c their mean."""
  joins = [0] * 5 + [1] * 4 + [3] * 3
  keys = [jax.random.key(seed) for seed in range(5)]
  work, states, cohorts = bridge.with_newcomers(
      problem, "scaffold", joins, keys, option=option, **WORK)
  w = bridge.to_oracle(problems.some_params(problem.model))
  table = baselines.zero_table(w, problem.clients)
  for number, (state, cohort, key) in enumerate(zip(
      states[1:], cohorts, keys, strict=True)):
    there = problem.clients[:sum(join <= number for join in joins)]
    c = oracle.uniform_mean([table[i] for i in range(len(there))])
    found = baselines.scaffold_round(
        w, c, table, there, np.asarray(cohort.ids).tolist(),
        bridge.batches(problem, cohort, key, work), work.client_lr,
        work.server_lr, problems.L2, option)
    bridge.assert_step_close(w, bridge.model_of(state), found.model, 2e-4)
    assert_close(bridge.to_oracle(state.memory.server), found.c)
    assert_close(found.c, oracle.uniform_mean(
        [found.table[i] for i in range(len(there))]))
    w, table = found.model, found.table
  assert np.abs(oracle.to_vector(found.c)).max() > 0.01


def test_the_first_round_is_fedavg(problem):
  """All variates are zero: FedAvg with uniform weights."""
  scaffold = play(problem, server_lr=0.7, **WORK)[0]
  fedavg = play(problem, "composed", client_update="sgd", server="average",
                server_lr=0.7, client_weights="uniform", **WORK)[0]
  problems.assert_close(
      scaffold[1].models, fedavg[1].models, rtol=1e-6, atol=1e-7)
  assert problems.differ(scaffold[2].models, fedavg[2].models)


def test_the_options_agree_after_one_full_step(problem):
  """The mean gradient of the only step is the full gradient at w."""
  one, two = (play(problem, option=option, local_steps=1, batch_size=0,
                   client_lr=0.3)[0] for option in ("I", "II"))
  problems.assert_close(one[1:], two[1:], rtol=1e-5, atol=2e-6)


def test_the_two_options_differ(problem):
  one, two = (play(problem, option=option, local_steps=3, batch_size=0)[0]
              for option in ("I", "II"))
  problems.assert_close(one[1].models, two[1].models)
  assert np.abs(
      np.asarray(one[1].memory.server["params"]["kernel"])
      - np.asarray(two[1].memory.server["params"]["kernel"])).max() > 1e-3
