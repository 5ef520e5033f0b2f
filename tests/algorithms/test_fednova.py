"""FedNova against the oracle, and its normalizer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.algorithms import fednova
from tests import problems
from tests.algorithms import bridge
from tests.reference import heterogeneity


@pytest.mark.parametrize(
  "settings",
  [
    dict(local_epochs=2, client_lr=0.2),
    dict(
      local_epochs=1,
      batch_size=4,
      client_lr=0.15,
      mu=0.9,
      tau_eff="steps",
      client_weights="uniform",
      server_lr=0.7,
    ),
    dict(local_epochs=1, batch_size=6, client_lr=0.1, mu=0.5, client_momentum=0.6),
  ],
)
def test_a_round_is_the_oracles(problem, settings):
  h, (r,) = bridge.rounds(problem, "fednova", bridge.COHORTS[:1], **settings)
  w = bridge.start(problem)
  expected = heterogeneity.nova_round(
    w,
    problem.clients,
    r.ids,
    r.batches,
    h.client_lr,
    h.server_lr,
    problems.L2,
    h.mu,
    h.client_momentum,
    h.tau_eff,
    h.client_weights,
  )
  bridge.assert_step_close(w, bridge.model_of(r.state), expected, 2e-4)
  assert bridge.counts(r.aux) == [52, 52, 1, bridge.read(r.batches)]


@pytest.mark.parametrize(
  "momentum, shrink", [(0.0, 0.0), (0.9, 0.0), (0.0, 0.2), (0.7, 0.3)]
)
def test_the_normaliser_is_the_sum_of_the_weights(momentum, shrink):
  step_counts = [0, 1, 2, 7, 40]
  actual = jax.vmap(lambda tau: fednova.normaliser(tau, momentum, shrink))(
    jnp.array(step_counts, jnp.int32)
  )
  np.testing.assert_allclose(
    actual,
    [heterogeneity.accumulation(tau, momentum, shrink).sum() for tau in step_counts],
    rtol=1e-6,
  )
