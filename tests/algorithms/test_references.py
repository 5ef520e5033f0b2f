"""The pooled optimum against scikit-learn; each client alone."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.linear_model import LogisticRegression

from fedjax_alg import registry
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from fedjax_alg.engine.keys import client_keys
from tests import problems
from tests.algorithms import bridge
from tests.reference import diversified as oracle


def test_central_reaches_the_optimum_of_logistic_regression(problem):
  algorithm = registry.build(
      "central", problem.model, map_clients=clients.ClientMap())
  everyone = layout.everyone(problem.data)

  @jax.jit
  def run(state):
    return jax.lax.fori_loop(
        0, 60, lambda r, s: algorithm.round(s, everyone, jax.random.key(0))[0],
        state)

  state = run(algorithm.init(
      problem.model.init(jax.random.key(0)), problem.spec, jax.random.key(0)))
  x = np.concatenate([x for x, _ in problem.clients]).astype(np.float64)
  y = np.concatenate([y for _, y in problem.clients])
  # C = 1 / (n l2) makes it ours; a column of ones stands for the bias, which
  # is penalised here.
  reference = LogisticRegression(
      C=1 / (len(y) * problems.L2), fit_intercept=False, tol=1e-8,
      max_iter=1000)
  reference.fit(np.column_stack([x, np.ones(len(y))]), y)
  optimum = {"kernel": reference.coef_[:, :-1].T,
             "bias": reference.coef_[:, -1]}
  mine = bridge.to_oracle(state.params)
  np.testing.assert_allclose(mine["kernel"], optimum["kernel"], atol=2e-3)
  np.testing.assert_allclose(mine["bias"], optimum["bias"], atol=2e-3)
  assert oracle.loss(mine, x, y, problems.L2) < oracle.loss(
      optimum, x, y, problems.L2) + 1e-6


def test_local_counts_rounds_without_participants(problem):
  """Where a schedule of the learning rate reads their number."""
  algorithm = registry.build(
      "local", problem.model, map_clients=clients.ClientMap(),
      client_lr_schedule="inverse_sqrt")
  state = algorithm.init(
      problems.some_params(problem.model), problem.spec, jax.random.key(0))
  later = algorithm.idle(state, None)
  assert (state.round, later.round) == (0, 1)
  problems.assert_equal(later.table, state.table)


def test_local_is_sgd_on_ones_own_data(problem):
  """Two rounds: participants go on from their own model, others stay."""
  work = dict(local_steps=6, batch_size=4)
  algorithm = registry.build(
      "local", problem.model, map_clients=clients.ClientMap(),
      client_lr=0.3, **work)
  initial = problems.some_params(problem.model)
  state = algorithm.init(initial, problem.spec, jax.random.key(0))
  cohort = layout.take_cohort(
      problem.data, jnp.array([1, 4, 11, 12], jnp.int32))  # 12: padding
  round_ = jax.jit(algorithm.round)
  for number in range(2):
    state, _ = round_(state, cohort, jax.random.key(number))

  @jax.jit
  def alone(params, shard, key):
    return sgd(problem.model, params, shard, LocalWork(**work), 0.3, key)[0]

  for i in range(12):
    expected = initial
    if i in (1, 4, 11):
      for number in range(2):
        key = client_keys(
            jax.random.key(number), jnp.array([i], jnp.int32))[0]
        expected = alone(expected, layout.shard_of(problem.data, i), key)
    problems.assert_close(
        jax.tree.map(lambda leaf: leaf[i], state.table), expected)
  shard = layout.shard_of(problem.data, 1)
  key = jax.random.key(0)
  problems.assert_equal(
      algorithm.client_params(state, jnp.int32(12), shard, key), initial)
  problems.assert_equal(
      algorithm.client_params(state, jnp.int32(4), shard, key),
      jax.tree.map(lambda leaf: leaf[4], state.table))
