"""APFL against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge
from tests.reference import diversified as oracle

#: Clients that come again, clients that never come.
COHORTS = [[0, 1, 4, 5], [1, 2, 6, 9], [0, 4, 7, 8]]
NEVER, NOBODY = 3, 12
KEYS = [jax.random.key(seed) for seed in (3, 4, 5)]


def play(w, kept, clients_, ids, batches, rate, adaptive, server_lr=1.0):
  """Deng et al., Algorithm 1: a round; ``kept``: client -> (v, alpha)."""
  trained = []
  for i in ids:
    x, y = clients_[i]
    own, (v, alpha) = w, kept[i]
    for step, rows in enumerate(batches[i]):
      mixed = oracle.weighted_sum([alpha, 1 - alpha], [v, own])
      g = oracle.batch_gradient(own, x, y, rows, problems.L2)
      of_mixed = oracle.batch_gradient(mixed, x, y, rows, problems.L2)
      gap = oracle.add(v, own, -1.0)
      slope = sum((gap[name] * of_mixed[name]).sum() for name in gap)
      own = oracle.add(own, g, -rate)
      v = oracle.add(v, of_mixed, -rate * alpha)
      if adaptive and step == 0:
        alpha = min(max(alpha - rate * slope, 0.0), 1.0)
    kept[i] = v, alpha
    trained.append(own)
  change = oracle.weighted_sum([1 / len(ids)] * len(ids), [
      oracle.add(own, w, -1.0) for own in trained])
  return oracle.add(w, change, server_lr)


@pytest.mark.parametrize("settings", [
    dict(local_steps=4, batch_size=6, client_lr=0.2, personal_weight=0.3,
         server_lr=0.8),
    dict(local_epochs=1, batch_size=20, adaptive_weight=True,
         personal_start="initial")])
def test_rounds_and_what_is_deployed_are_those_of_numpy(problem, settings):
  work = registry.get("apfl").hparams(**settings)
  params = problems.some_params(problem.model)
  states, log, _ = bridge.history(
      problem, "apfl", COHORTS, KEYS, params, **settings)
  w, kept = bridge.to_oracle(params), {}
  start = w
  for state, aux, ids, key in zip(states[1:], log, COHORTS, KEYS, strict=True):
    first = start if work.personal_start == "initial" else w
    for i in ids:
      kept.setdefault(i, (first, work.personal_weight))
    batches = {i: bridge.client_batches(
        problem, i, jax.random.fold_in(key, i), work) for i in ids}
    before, w = w, play(
        w, kept, problem.clients, ids, batches, work.client_lr,
        work.adaptive_weight, work.server_lr)
    bridge.assert_step_close(before, bridge.model_of(state), w, 3e-4)
    table = state.memory
    for i in ids:
      bridge.assert_step_close(before, jax.tree.map(
          lambda leaf, i=i: leaf[i], table.models), kept[i][0], 3e-4)
      np.testing.assert_allclose(table.weight[i], kept[i][1], rtol=1e-4)
    read = 2 * sum(len(rows) for i in ids for rows in batches[i])
    assert [int(count) for count in aux.cost[:4]] == [52, 52, 1, read]
  weights = {alpha for _, alpha in kept.values()}
  assert (len(weights) > 1) == work.adaptive_weight

  algorithm = registry.build(
      "apfl", problem.model, map_clients=clients.ClientMap(), **settings)
  deploy = problems.quick_jit(algorithm.client_params)
  for client in (4, NEVER, NOBODY):
    found = deploy(states[-1], jnp.int32(client),
                   layout.shard_of(problem.data, 0), KEYS[0])
    if client not in kept:
      problems.assert_equal(found, bridge.model_of(states[-1]))
      continue
    v, alpha = kept[client]
    bridge.assert_step_close(
        w, found, oracle.weighted_sum([alpha, 1 - alpha], [v, w]), 3e-4)
