"""Regression: metrics against scikit-learn, also far from zero."""

import jax
import numpy as np
import pytest
from sklearn import metrics as sk

from fedjax_alg import tasks
from fedjax_alg.tasks import REGRESSION


def sums(task, outputs, y, mask):
  return jax.jit(task.of_batch)(outputs, y, task.loss(outputs, y), mask)


@pytest.mark.parametrize("centre", [0.0, 2000.0])
@pytest.mark.parametrize("targets", [1, 3])
def test_metrics_are_those_of_scikit_learn(centre, targets):
  """In blocks with rows of NaN; about 0 an r2 of such targets would be lost."""
  rng = np.random.default_rng(targets)
  y = (centre + rng.normal(size=(96, targets))).astype(np.float32)
  outputs = (y + 0.5 * rng.normal(size=y.shape)).astype(np.float32)
  task = REGRESSION.for_data(y)
  mask = np.arange(96) % 32 < 25
  poisoned = np.where(mask[:, None], outputs, np.nan)
  total = jax.tree.map(lambda *leaves: sum(leaves), *(
      sums(task, poisoned[i:i + 32], y[i:i + 32], mask[i:i + 32])
      for i in (0, 32, 64)))
  found = tasks.summarise(task, tasks.Counts(total))
  truth, predicted = y[mask].astype(float), outputs[mask].astype(float)
  for name, expected in (
      ("mse", sk.mean_squared_error(truth, predicted)),
      ("mae", sk.mean_absolute_error(truth, predicted)),
      ("r2", sk.r2_score(truth, predicted)),
      ("loss", 0.5 * np.square(truth - predicted).sum(1).mean())):
    np.testing.assert_allclose(found[name], expected, rtol=1e-4, err_msg=name)
  assert found["rmse"] == pytest.approx(found["mse"] ** 0.5)


def test_each_client_has_its_error():
  y = np.array([[0.0], [1], [2]], np.float32)
  each = [sums(REGRESSION, y + off, y, np.array(rows)) for off, rows in (
      (1, [True, True, False]), (3, [True] * 3), (0, [False] * 3))]
  counts = tasks.over_clients(
      REGRESSION, jax.tree.map(lambda *leaves: np.stack(leaves), *each))
  found = tasks.summarise(REGRESSION, counts)
  assert (found["client_mse"], found["worst_decile_mse"]) == (5, 9)
  np.testing.assert_allclose(found["mse"], (2 * 1 + 3 * 9) / 5)
  at = tasks.at_clients(REGRESSION, counts.clients, 1)
  np.testing.assert_array_equal(at["mse"], [1, 9, np.nan])
  np.testing.assert_array_equal(at["test_examples"], [2, 3, 0])


def test_a_single_target_lies_between_quantiles_of_the_training_set():
  y = np.random.default_rng(0).exponential(size=(500, 1)).astype(np.float32)
  labels = REGRESSION.labels(y[:400], y[400:], 1)
  assert labels.number == 10
  np.testing.assert_array_equal(np.bincount(labels.train), np.full(10, 40))
  order = np.argsort(y[400:, 0])
  assert (np.diff(labels.test[order]) >= 0).all() and labels.test.max() == 9
  few = REGRESSION.labels(np.round(y[:400]), y[400:], 1)
  assert few.number == few.train.max() + 1 < 10
  assert REGRESSION.labels(np.tile(y, 2), y, 2) is None
