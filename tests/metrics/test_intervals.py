"""Confidence intervals against scipy."""

import numpy as np
import pytest
from scipy import stats

from fedjax_alg import metrics


@pytest.mark.parametrize("number", [2, 3, 10])
def test_interval_is_that_of_scipy(number):
  values = np.random.default_rng(number).normal(size=number)
  mean, half = metrics.confidence_95(values)
  low, high = stats.t.interval(
      0.95, number - 1, loc=values.mean(), scale=stats.sem(values))
  np.testing.assert_allclose([mean - half, mean + half], [low, high])
  # The bands of curves are the same numbers.
  curves = np.stack([values, values ** 2], axis=1)
  np.testing.assert_allclose(metrics.half_width_95(curves), [
      metrics.confidence_95(curve)[1] for curve in curves.T])


def test_one_seed_has_no_interval():
  mean, half = metrics.confidence_95([0.25])
  assert mean == 0.25 and np.isnan(half)
