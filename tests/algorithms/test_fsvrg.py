"""FSVRG against the oracle, and against gradient descent."""

import jax
import numpy as np
import pytest

from fedjax_alg import registry
from tests import problems
from tests.algorithms import bridge
from tests.reference import diversified as oracle

IDS = [0, 1, 4, 5, 8, 11]


def play(problem, ids, key, start, **settings):
  return bridge.play(problem, "fsvrg", ids, key, start, **settings)


@pytest.mark.parametrize("settings", [
    dict(local_steps=5, batch_size=6, client_lr=1.0),
    dict(local_steps=5, batch_size=6, client_lr=1.0, local_scaling=False,
         aggregate_scaling="paper"),
    dict(local_steps=0, local_epochs=2, batch_size=4, client_lr=0.5,
         aggregate_scaling="none"),
    dict(local_steps=3, batch_size=0, client_lr=1.0),
])
def test_one_round_is_the_oracles(problem, settings):
  key, start = jax.random.key(3), problems.some_params(problem.model)
  params, aux, cohort = play(problem, IDS, key, start, **settings)
  work = registry.get("fsvrg").hparams(**settings)
  w = bridge.to_oracle(start)
  expected = oracle.fsvrg_round(
      w, problem.clients, bridge.batches(problem, cohort, key, work),
      work.client_lr, problems.L2, IDS, work.aggregate_scaling,
      work.local_scaling)
  bridge.assert_step_close(w, params, expected.model)
  losses = [oracle.loss(w, *problem.clients[i], problems.L2) for i in IDS]
  np.testing.assert_allclose(aux.client["loss"], losses, rtol=1e-5)


PLAIN = dict(local_scaling=False, aggregate_scaling="none")


def gradient_descent(problem, ids, start, rate):
  w = bridge.to_oracle(start)
  g = oracle.anchor_gradient(w, problem.clients, ids, problems.L2)
  return w, oracle.add(w, g, -rate)


def test_of_one_client_it_is_gradient_descent(problem):
  """One client, one full batch, client_lr = 0.3 n: w - 0.3 grad f."""
  start = problems.some_params(problem.model)
  size = problems.SIZES[4]
  params, _, _ = play(
      problem, [4], jax.random.key(0), start, local_steps=1, batch_size=0,
      client_lr=0.3 * size, **PLAIN)
  w, expected = gradient_descent(problem, [4], start, 0.3)
  bridge.assert_step_close(w, params, expected)


def test_one_step_is_gradient_descent_whatever_the_batch(problem):
  """After one step the correction is 0: w - alpha_l (S / n) grad f."""
  start = problems.some_params(problem.model)
  ids = list(range(len(problem.clients)))
  params, _, _ = play(
      problem, ids, jax.random.key(0), start, local_steps=1, batch_size=3,
      client_lr=2.0, **PLAIN)
  rate = 2.0 * len(ids) / sum(problems.SIZES)
  w, expected = gradient_descent(problem, ids, start, rate)
  bridge.assert_step_close(w, params, expected)


def test_a_model_without_features_is_not_scaled(image_problem):
  """Lambda and A are the identity for a perceptron."""
  start = problems.some_params(image_problem.model)
  work = dict(local_steps=3, batch_size=4, client_lr=1.0)
  scaled = play(image_problem, [0, 3], jax.random.key(0), start, **work)
  plain = play(image_problem, [0, 3], jax.random.key(0), start, **PLAIN, **work)
  problems.assert_equal(scaled[:2], plain[:2])
