"""FedAvg and FedProx against the oracle, and with any model."""

import jax
import numpy as np
import pytest

from tests import problems
from tests.algorithms import bridge
from tests.reference import clustered
from tests.reference import diversified as oracle


@pytest.mark.fast
@pytest.mark.parametrize(
  "name, settings",
  [
    ("fedavg", dict(local_epochs=2, batch_size=10, client_lr=0.2)),
    ("fedavg", dict(local_steps=3, batch_size=0, server_lr=0.6)),
    pytest.param(
      "fedavg",
      dict(local_epochs=2, batch_size=1, client_lr=0.05),
      marks=pytest.mark.slow,
    ),
    ("fedprox", dict(local_steps=6, batch_size=7, mu=0.7, server_lr=1.3)),
    pytest.param(
      "fedprox",
      dict(local_steps=70, batch_size=3, mu=0.7, client_lr=0.05),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_one_round_is_the_oracles(problem, name, settings):
  h, (r,) = bridge.rounds(problem, name, bridge.COHORTS[:1], **settings)
  w = bridge.start(problem)
  expected = oracle.fedprox_round(
    w,
    problem.clients,
    r.batches,
    h.client_lr,
    h.server_lr,
    getattr(h, "mu", 0.0),
    problems.L2,
    r.ids,
  )
  bridge.assert_step_close(w, bridge.model_of(r.state), expected.model)
  assert r.aux.client["loss"].shape == (len(r.ids),)
  np.testing.assert_allclose(
    r.aux.server["train_loss"],
    oracle.average_weights(problem.clients, r.ids) @ r.aux.client["loss"],
    1e-5,
  )
  np.testing.assert_allclose(
    r.aux.server["discrepancy"],
    clustered.discrepancy(expected.trained, [0] * len(r.ids), [expected.model]),
    rtol=1e-4,
  )


def test_fedavg_takes_any_model(image_problem):
  """A perceptron on images, one client a round: plain SGD on that client."""
  start = problems.some_params(image_problem.model)
  params, aux, _ = bridge.play(
    image_problem,
    "fedavg",
    [3],
    jax.random.key(0),
    start,
    local_steps=1,
    batch_size=0,
    client_lr=0.5,
  )
  x, y = image_problem.clients[3]
  model = image_problem.model

  def objective(params):
    squares = sum((leaf**2).sum() for leaf in jax.tree.leaves(params))
    return model.loss(model.apply(params, x), y).mean() + (0.5 * model.l2 * squares)

  loss, gradient = problems.quick_jit(jax.value_and_grad(objective))(start)
  problems.assert_close(params, jax.tree.map(lambda w, g: w - 0.5 * g, start, gradient))
  np.testing.assert_allclose(aux.server["train_loss"], loss, rtol=1e-5)
