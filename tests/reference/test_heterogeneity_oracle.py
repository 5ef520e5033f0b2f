"""Self-tests of the oracle heterogeneity.py."""

import numpy as np
import pytest

from . import diversified as oracle
from . import heterogeneity
from .test_baselines_oracle import (  # noqa: F401
    all_rows, fixture_problem, IDS, L2, RATE)
from .test_oracle import assert_models_close, make_batches, make_model


def unequal(clients):
  """Full batches; client i takes i + 1 steps."""
  return {i: rows[:i + 1] for i, rows in all_rows(clients, 5).items()}


# FedNova.


def test_accumulation_is_the_papers():
  """Section 3: plain, with momentum, and proximal."""
  tau, rho, shrink = 6, .8, .3
  left = np.arange(tau, 0, -1)  # Steps from each gradient to the end.
  np.testing.assert_array_equal(heterogeneity.accumulation(tau), np.ones(tau))
  np.testing.assert_allclose(
      heterogeneity.accumulation(tau, momentum=rho),
      (1 - rho ** left) / (1 - rho))
  np.testing.assert_allclose(
      heterogeneity.accumulation(tau, shrink=shrink),
      (1 - shrink) ** (left - 1))


@pytest.mark.parametrize("more", [
    {}, dict(mu=.7), dict(momentum=.6), dict(mu=.7, momentum=.6)])
def test_nova_of_one_client_is_its_trained_model(problem, more):
  """The vectors say what the steps do."""
  _, clients, batches, w = problem
  result = heterogeneity.nova_round(
      w, clients, [3], batches, RATE, l2=L2, **more)
  assert_models_close(result.model, result.trained[0])


def test_nova_with_equal_steps_is_fedavg(problem):
  _, clients, _, w = problem
  batches = all_rows(clients, 4)
  result = heterogeneity.nova_round(w, clients, IDS, batches, RATE, .9, L2)
  expected = oracle.fedavg_round(w, clients, batches, RATE, .9, L2, IDS)
  assert result.tau_eff == pytest.approx(4.)
  assert_models_close(result.model, expected.model)


def test_nova_is_consistent_where_fedavg_is_not(problem):
  """Tiny steps: along the gradient of sum p_i f_i, however many they are."""
  _, clients, _, w = problem
  rate = 1e-6
  slope = oracle.to_vector(oracle.weighted_sum(
      oracle.cohort_weights(clients, IDS),
      [oracle.gradient(w, *clients[i], L2) for i in IDS]))

  def error(model, steps):
    move = oracle.to_vector(oracle.add(model, w, -1.)) / (-rate * steps)
    return np.linalg.norm(move - slope) / np.linalg.norm(slope)

  found = heterogeneity.nova_round(
      w, clients, IDS, unequal(clients), rate, l2=L2)
  assert error(found.model, found.tau_eff) < 1e-4
  biased = oracle.fedavg_round(
      w, clients, unequal(clients), rate, 1., L2, IDS)
  assert error(biased.model, found.tau_eff) > .05


# FedDyn.


def test_the_first_dyn_round_is_fedprox_twice_over(problem):
  """The linear terms are zero; h moves |P| / m of the mean update more."""
  _, clients, batches, w = problem
  zeros = [oracle.zeros_like(w) for _ in clients]
  result = heterogeneity.dyn_round(
      w, zeros[0], zeros, clients, IDS, batches, RATE, .4, L2)
  move = oracle.add(oracle.uniform_mean(result.trained), w, -1.)
  assert_models_close(
      result.model, oracle.add(w, move, 1. + len(IDS) / len(clients)))
  for i in (0, 2):
    assert_models_close(result.table[i], zeros[0])


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_dyn_ends_where_the_whole_objective_is_flat(problem, weights):
  """FedAvg with as many steps does not; and the terms are the gradients."""
  _, clients, _, w = problem
  shares = heterogeneity.average_weights(
      clients, range(len(clients)), weights)

  def slope(model):
    return np.linalg.norm(oracle.to_vector(oracle.weighted_sum(
        shares, [oracle.gradient(model, x, y, .3) for x, y in clients])))

  batches, everyone = all_rows(clients, 12), list(range(len(clients)))
  average, h = w, oracle.zeros_like(w)
  table = [h] * len(clients)
  for _ in range(60):
    w, h, table = heterogeneity.dyn_round(
        w, h, table, clients, everyone, batches, .3, 1., .3, weights)[1:]
    trained = oracle.fedavg_round(
        average, clients, batches, .3, 1., .3).trained
    average = oracle.weighted_sum(shares, trained)
    assert_models_close(h, oracle.weighted_sum(shares, list(table.values())))
  assert slope(w) < 1e-5 < 1e-2 < slope(average)
  for i, (x, y) in enumerate(clients):
    assert_models_close(table[i], oracle.gradient(w, x, y, .3), 1e-4)


# Ditto.


def test_ditto_has_fedavgs_global_model(problem):
  rng, clients, batches, w = problem
  result = heterogeneity.ditto_round(
      w, {}, clients, IDS, batches, make_batches(rng, clients), RATE, .2, 1.,
      .9, L2)
  expected = oracle.fedavg_round(w, clients, batches, RATE, .9, L2, IDS)
  assert_models_close(result.model, expected.model)
  assert sorted(result.personal) == IDS


def test_ditto_solves_the_personal_objective(problem):
  """(grad f_k + lam (v - w)) is 0 at the end, from wherever v starts."""
  rng, clients, _, w = problem
  result = heterogeneity.ditto_round(
      w, {1: make_model(rng)}, clients, [1, 3], all_rows(clients, 1),
      all_rows(clients, 400), RATE, .2, 1.5, l2=L2)
  for k in (1, 3):
    v = result.personal[k]
    pull = oracle.add(v, w, -1.)
    assert_models_close(
        oracle.add(oracle.gradient(v, *clients[k], L2), pull, 1.5),
        oracle.zeros_like(w), 1e-8)


def test_ditto_without_a_pull_is_local_training(problem):
  _, clients, batches, w = problem
  result = heterogeneity.ditto_round(
      w, {}, clients, IDS, batches, batches, RATE, RATE, 0., l2=L2)
  for k, v in zip(IDS, result.trained):
    assert_models_close(result.personal[k], v)
