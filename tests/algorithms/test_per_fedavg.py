"""Per-FedAvg against the oracle; its second-order term; what it deploys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.base import Shard
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge
from tests.reference import baselines
from tests.reference import diversified as oracle

#: Sizes 3, 90, 45, 5, 64, 30.
COHORTS = [[0, 1, 4, 5, 8, 11], [1, 2, 3, 6, 9]]
KEYS = [jax.random.key(seed) for seed in (3, 4)]
WORK = dict(local_steps=4, batch_size=7, client_lr=0.2, adapt_lr=0.3)
BATCHES = {"fo": 2, "hf": 3, "exact": 3}


def play(problem, name="per_fedavg", **settings):
  return bridge.history(
      problem, name, COHORTS, KEYS, problems.some_params(problem.model),
      **settings)


def batches_by_step(problem, cohort, key, work, per_step):
  """client id -> for each step its mini-batches of the client's stream."""
  result = {}
  for i in np.asarray(cohort.ids).tolist():
    steps = int(work.num_steps(jnp.int32(len(problem.clients[i][1]))))
    stream = bridge.batches(
        problem, cohort._replace(ids=cohort.ids[cohort.ids == i]), key,
        LocalWork(local_steps=steps * per_step,
                  batch_size=work.batch_size))[i]
    result[i] = [stream[per_step * k:per_step * (k + 1)]
                 for k in range(steps)]
  return result


@pytest.mark.parametrize("settings", [
    dict(hessian="fo", **WORK),
    dict(hessian="exact", client_weights="examples", server_lr=0.8, **WORK),
    dict(hessian="exact", local_steps=0, local_epochs=2, batch_size=10,
         client_lr=0.1, adapt_lr=0.2),
    dict(hessian="fo", local_steps=3, batch_size=0, adapt_lr=0.5,
         server_lr=1.2),
])
def test_rounds_are_the_oracles(problem, settings):
  h = registry.get("per_fedavg").hparams(**settings)
  states, _, cohorts = play(problem, **settings)
  w = bridge.to_oracle(problems.some_params(problem.model))
  for state, cohort, ids, key in zip(
      states[1:], cohorts, COHORTS, KEYS, strict=True):
    batches = batches_by_step(problem, cohort, key, h, BATCHES[h.hessian])
    found = baselines.per_fedavg_round(
        w, problem.clients, ids, batches, h.adapt_lr, h.client_lr,
        h.server_lr, problems.L2, h.hessian, weights=h.client_weights)
    bridge.assert_step_close(w, bridge.model_of(state), found.model, 2e-4)
    w = found.model


@pytest.mark.parametrize("hessian", list(BATCHES))
@pytest.mark.parametrize("work", [
    dict(local_steps=4, batch_size=7),
    dict(local_steps=0, local_epochs=2, batch_size=4),
    dict(local_steps=2, batch_size=0),
])
def test_the_ledger_counts_every_gradient(problem, hessian, work):
  """One on D, one on D', two on D'': of short batches what they hold."""
  h = registry.get("per_fedavg").hparams(hessian=hessian, **work)
  algorithm = registry.build(
      "per_fedavg", problem.model, map_clients=clients.ClientMap(),
      hessian=hessian, **work)
  cohort = layout.take_cohort(
      problem.data, jnp.array([*COHORTS[0], 12], jnp.int32))
  state = algorithm.init(
      problem.model.init(KEYS[0]), problem.spec, KEYS[0])
  # Of the compiled program only the ledger is left.
  cost = problems.quick_jit(lambda *args: algorithm.round(*args)[1].cost)(
      state, cohort, KEYS[0])
  real = layout.take_cohort(problem.data, cohort.ids[:-1])
  batches = batches_by_step(problem, real, KEYS[0], h, BATCHES[hessian])
  expected = sum(factor * len(rows) for steps in batches.values()
                 for step in steps
                 for factor, rows in zip((1, 1, 2), step))
  assert int(cost.example_gradients) == expected
  assert (int(cost.down), int(cost.up), int(cost.exchanges)) == (52, 52, 1)


def test_a_difference_of_gradients_is_close_to_the_product(problem):
  """In float32, and closest where neither rounding nor curvature rules.

  The difference is over d u of length l = hf_delta (1 + ||w||), about 3
  hf_delta here. Rounding of the gradients, 1e-7, leaves 1e-7 / l of u; the
  third derivative l^2. At hf_delta = 1e-3 that is 3e-5 and 1e-5, at 1e-6 it
  is 3e-2, and at 1 the difference says little.
  """
  exact = bridge.model_of(play(problem, hessian="exact", **WORK)[0][1])
  plain = bridge.model_of(play(
      problem, hessian="exact", **{**WORK, "adapt_lr": 0.0})[0][1])
  difference = {}
  for delta in (1e-6, 1e-3, 1.0):
    other = bridge.model_of(play(
        problem, hessian="hf", hf_delta=delta, **WORK)[0][1])
    difference[delta] = np.linalg.norm(oracle.to_vector(
        bridge.to_oracle(other)) - oracle.to_vector(bridge.to_oracle(exact)))
  step = np.linalg.norm(oracle.to_vector(bridge.to_oracle(plain))
                        - oracle.to_vector(bridge.to_oracle(exact)))
  # In parts of what the adaptation changes.
  assert difference[1e-3] < 1e-4 * step
  assert difference[1e-6] > 10 * difference[1e-3]
  assert difference[1.0] > 10 * difference[1e-3]


def test_without_adaptation_it_is_fedavg(problem):
  """On full batches, where D' is the batch of a plain step."""
  work = dict(local_steps=3, batch_size=0, client_lr=0.3, server_lr=0.8)
  fedavg = play(problem, "composed", client_update="sgd", server="average",
                client_weights="uniform", **work)[0]
  for hessian in BATCHES:
    states = play(problem, hessian=hessian, adapt_lr=0.0, **work)[0]
    problems.assert_close([s.models for s in states],
                          [s.models for s in fedavg], rtol=1e-6)


@pytest.mark.parametrize("batch_size", [7, 0])
def test_what_a_client_deploys_is_adapted(problem, batch_size):
  """One step of adapt_lr on the first mini-batch of its stream."""
  algorithm = registry.build(
      "per_fedavg", problem.model, map_clients=clients.ClientMap(),
      adapt_lr=0.4, batch_size=batch_size)
  params = problems.some_params(problem.model)
  state = algorithm.init(params, problem.spec, KEYS[0])
  deploy = problems.quick_jit(algorithm.client_params)
  work = LocalWork(local_steps=1, batch_size=batch_size)
  w = bridge.to_oracle(params)
  everyone = layout.everyone(problem.data)
  rows = bridge.batches(problem, everyone, KEYS[1], work)
  for i, (x, y) in enumerate(problem.clients):
    found = deploy(state, jnp.int32(i), layout.shard_of(problem.data, i),
                   jax.random.fold_in(KEYS[1], i))
    expected = baselines.adapt(w, x, y, rows[i][0], 0.4, problems.L2)
    bridge.assert_step_close(w, found, expected)
  nothing = Shard(
      problem.data.x, problem.data.y, jnp.int32(0), jnp.int32(0))
  problems.assert_equal(
      deploy(state, jnp.int32(12), nothing, KEYS[1]), params)
