"""The pooled optimum against scikit-learn; each client alone."""

import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fedjax_alg.data import layout
from tests import problems
from tests.algorithms import bridge
from tests.reference import diversified as oracle
from tests.reference import optimisers


def test_central_reaches_the_optimum_of_logistic_regression(problem):
  algorithm = bridge.build(problem, "central")
  everyone = layout.everyone(problem.data)

  @jax.jit
  def run(state):
    return jax.lax.fori_loop(
      0, 60, lambda r, s: algorithm.round(s, everyone, jax.random.key(0))[0], state
    )

  state = run(
    bridge.init(problem, algorithm, params=problem.model.init(jax.random.key(0)))
  )
  x = np.concatenate([x for x, _ in problem.clients]).astype(np.float64)
  y = np.concatenate([y for _, y in problem.clients])
  # C = 1 / (n l2) makes it ours; a column of ones stands for the bias, which
  # is penalized here.
  reference = LogisticRegression(
    C=1 / (len(y) * problems.L2), fit_intercept=False, tol=1e-8, max_iter=1000
  )
  reference.fit(np.column_stack([x, np.ones(len(y))]), y)
  optimum = reference.coef_.T
  mine = bridge.to_oracle(state.params)
  np.testing.assert_allclose(mine, optimum, atol=2e-3)
  assert (
    oracle.loss(mine, x, y, problems.L2)
    < oracle.loss(optimum, x, y, problems.L2) + 1e-6
  )


def test_local_counts_rounds_without_participants(problem):
  """Where a schedule of the learning rate reads their number."""
  algorithm = bridge.build(problem, "local", client_lr_schedule="inverse_sqrt")
  state = bridge.init(problem, algorithm)
  later = algorithm.idle(state, None)
  assert (state.round, later.round) == (0, 1)
  problems.assert_equal(later.table, state.table)


@pytest.mark.parametrize(
  "settings, decay",
  [
    (dict(local_steps=6, batch_size=4), 1.0),
    (
      dict(
        local_steps=3,
        batch_size=0,
        client_optimizer="momentum",
        client_lr_schedule="exponential:decay=0.5",
      ),
      0.5,
    ),
  ],
)
def test_local_is_training_on_ones_own_data(problem, settings, decay):
  """Two rounds: participants go on from their own model, others stay."""
  settings = dict(client_lr=0.3, **settings)
  h, rounds = bridge.rounds(problem, "local", [[1, 4, 11]] * 2, slots=4, **settings)
  start = bridge.start(problem)
  models = dict.fromkeys(rounds[0].ids, start)
  for number, r in enumerate(rounds):
    for i in r.ids:
      models[i], _ = optimisers.local_training(
        models[i],
        problem.clients[i],
        r.batches[i],
        lambda k: 0.3 * decay**number,  # noqa: B023
        problems.L2,
        kind=h.client_optimizer.WORD,
      )
  state, initial = rounds[-1].state, problems.some_params(problem.model)
  for i in range(12):
    row = problems.row(state.table, i)
    if i in models:
      bridge.assert_step_close(start, row, models[i])
    else:
      problems.assert_equal(row, initial)
  deploy = bridge.deployer(problem, "local", **settings)
  for i, deployed in ((12, initial), (4, problems.row(state.table, 4))):
    problems.assert_equal(deploy(state, i, holder=1)[0], deployed)
