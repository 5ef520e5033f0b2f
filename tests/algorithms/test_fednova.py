"""FedNova against the oracle, and what it reduces to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.algorithms import fednova
from tests import problems
from tests.algorithms import bridge
from tests.reference import heterogeneity

IDS = [0, 1, 4, 5, 8, 11]  # sizes 3, 90, 45, 5, 64, 30
KEY = jax.random.key(3)


@pytest.mark.parametrize("settings", [
    dict(local_epochs=2, client_lr=0.2),
    dict(local_epochs=1, batch_size=4, client_lr=0.15, mu=0.9,
         tau_eff="steps", client_weights="uniform", server_lr=0.7),
    dict(local_epochs=1, batch_size=6, client_lr=0.1, mu=0.5,
         client_momentum=0.6),
])
def test_a_round_is_the_oracles(problem, settings):
  h = registry.get("fednova").hparams(**settings)
  params = problems.some_params(problem.model)
  model, aux, cohort = bridge.play(
      problem, "fednova", IDS, KEY, params, **settings)
  w = bridge.to_oracle(params)
  batches = bridge.batches(problem, cohort, KEY, h)
  found = heterogeneity.nova_round(
      w, problem.clients, IDS, batches, h.client_lr, h.server_lr, problems.L2,
      h.mu, h.client_momentum, h.tau_eff, h.client_weights)
  bridge.assert_step_close(w, model, found.model, 2e-4)
  read = sum(len(rows) for i in IDS for rows in batches[i])
  assert [int(count) for count in aux.cost[:4]] == [52, 52, 1, read]


def test_with_equal_steps_it_is_fedprox(problem):
  """tau_eff then is what any client's steps add up to; mu = 0 is FedAvg."""
  params = problems.some_params(problem.model)
  settings = dict(local_steps=4, batch_size=6, client_lr=0.2, mu=0.4)
  found, expected = (
      bridge.play(problem, method, IDS, KEY, params, **settings)[0]
      for method in ("fednova", "fedprox"))
  problems.assert_close(found, expected, rtol=1e-6, atol=1e-6)
  assert problems.differ(found, params)


def test_with_equal_sizes_it_is_fedavg(problem):
  """Clients of equal sizes take equally many steps per epoch."""
  size = problem.data.size
  alike = problem._replace(data=problem.data._replace(
      size=np.minimum(size, 15)))
  params = problems.some_params(problem.model)
  found, expected = (
      bridge.play(alike, method, [1, 4, 8, 11], KEY, params, local_epochs=2,
                  batch_size=4, client_lr=0.2)[0]
      for method in ("fednova", "fedavg"))
  problems.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("momentum, shrink", [
    (0.0, 0.0), (0.9, 0.0), (0.0, 0.2), (0.7, 0.3)])
def test_the_normaliser_is_the_sum_of_the_weights(momentum, shrink):
  taken = [0, 1, 2, 7, 40]
  found = jax.vmap(lambda tau: fednova.normaliser(tau, momentum, shrink))(
      jnp.array(taken, jnp.int32))
  np.testing.assert_allclose(found, [
      heterogeneity.accumulation(tau, momentum, shrink).sum()
      for tau in taken], rtol=1e-6)


def test_it_warns_where_gradients_cancel():
  caution = registry.get("fednova").caution
  assert not caution(fednova.FedNovaHParams(mu=9.0), 7850)
  assert caution(fednova.FedNovaHParams(mu=20.0), 7850).startswith(
      "`mu`=20 with `client_lr`=0.1: ")
