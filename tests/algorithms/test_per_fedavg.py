"""Per-FedAvg against the oracle; its second-order term; what it deploys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.client.minibatches import LocalWork
from tests import problems
from tests.algorithms import bridge
from tests.reference import baselines

COHORTS = bridge.COHORTS[:2]
WORK = dict(local_steps=4, batch_size=7, client_lr=0.2, adapt_lr=0.3)
BATCHES = {"fo": 2, "hf": 3, "exact": 3}


def by_step(problem, ids, key, work, per_step):
  """client id -> for each step its mini-batches of the client's stream."""
  result = {}
  for i in ids:
    steps = int(work.num_steps(jnp.int32(len(problem.clients[i][1]))))
    stream = bridge.client_batches(
      problem,
      i,
      jax.random.fold_in(key, i),
      LocalWork(local_steps=steps * per_step, batch_size=work.batch_size),
    )
    result[i] = [stream[per_step * k : per_step * (k + 1)] for k in range(steps)]
  return result


@pytest.mark.parametrize(
  "settings",
  [
    dict(hessian="fo", **WORK),
    dict(hessian="exact", client_weights="examples", server_lr=0.8, **WORK),
    pytest.param(
      dict(
        hessian="exact",
        local_steps=0,
        local_epochs=2,
        batch_size=10,
        client_lr=0.1,
        adapt_lr=0.2,
      ),
      marks=pytest.mark.slow,
    ),
    dict(hessian="fo", local_steps=3, batch_size=0, adapt_lr=0.5, server_lr=1.2),
  ],
)
def test_rounds_are_the_oracles(problem, settings):
  h, rounds = bridge.rounds(problem, "per_fedavg", COHORTS, **settings)
  w = bridge.start(problem)
  for r in rounds:
    batches = by_step(problem, r.ids, r.key, h, BATCHES[h.hessian.WORD])
    expected = baselines.per_fedavg_round(
      w,
      problem.clients,
      r.ids,
      batches,
      h.adapt_lr,
      h.client_lr,
      h.server_lr,
      problems.L2,
      h.hessian.WORD,
      weights=h.client_weights,
    )
    bridge.assert_step_close(w, bridge.model_of(r.state), expected, 2e-4)
    check_ledger(r, batches)
    w = expected


def check_ledger(r, batches):
  """Gradients on D, on D' and two on D'': of short batches what they hold."""
  assert bridge.counts(r.aux) == [
    52,
    52,
    1,
    sum(
      factor * len(rows)
      for steps in batches.values()
      for step in steps
      for factor, rows in zip((1, 1, 2), step)
    ),
  ]


def test_a_difference_of_gradients_is_close_to_the_product(problem):
  """In float32, and closer than where rounding rules.

  The difference is over d u of length l = delta (1 + ||w||), about 3
  delta here. Rounding of the gradients, 1e-7, leaves 1e-7 / l of u; the
  third derivative l^2. At delta = 1e-3 that is 3e-5 and 1e-5, at 1e-6 it
  is 3e-2.
  """
  results = {}
  for hessian in ("exact", "hf:0.001", "hf:1e-6"):
    h, (r,) = bridge.rounds(problem, "per_fedavg", COHORTS[:1], **WORK, hessian=hessian)
    check_ledger(r, by_step(problem, r.ids, r.key, h, BATCHES[h.hessian.WORD]))
    results[hessian] = bridge.to_oracle(bridge.model_of(r.state))
  exact = results["exact"]
  step = np.linalg.norm(exact - bridge.start(problem))
  close, rounded = (
    np.linalg.norm(results[hessian] - exact) for hessian in ("hf:0.001", "hf:1e-6")
  )
  assert close < 1e-4 * step and rounded > 10 * close


@pytest.mark.parametrize("batch_size", [7, 0])
def test_what_a_client_deploys_is_adapted(problem, batch_size):
  """One step of adapt_lr on the first mini-batch of its stream."""
  settings = dict(adapt_lr=0.4, batch_size=batch_size)
  state = bridge.init(problem, bridge.build(problem, "per_fedavg", **settings))
  deploy = bridge.deployer(problem, "per_fedavg", **settings)
  work, w = LocalWork(local_steps=1, batch_size=batch_size), bridge.start(problem)
  for i in (0, 1, 4):
    x, y = problem.clients[i]
    key = jax.random.fold_in(bridge.KEYS[1], i)
    (rows,) = bridge.client_batches(problem, i, key, work)
    bridge.assert_step_close(
      w, deploy(state, i, key)[0], baselines.adapt(w, x, y, rows, 0.4, problems.L2)
    )
  problems.assert_equal(
    deploy(state, bridge.NOBODY)[0], problems.some_params(problem.model)
  )
