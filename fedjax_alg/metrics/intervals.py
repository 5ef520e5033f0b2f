"""Confidence intervals over seeds."""

from collections.abc import Sequence

import numpy as np
from scipy import stats


def confidence_95(values: Sequence[float]) -> tuple[float, float]:
  """Computes the mean over seeds and its 95 % Student-t confidence interval.

  Args:
    values: one number per seed.

  Returns:
    The mean and the half-width of the interval. The half-width is 0 for a
    single seed, which does not determine an interval.
  """
  array = np.asarray(values, np.float64)
  mean = float(array.mean())
  if array.size < 2:
    return mean, 0.0
  quantile = stats.t.ppf(0.975, array.size - 1)
  return mean, float(quantile * array.std(ddof=1) / np.sqrt(array.size))


def bands_95(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Computes ``confidence_95`` of every point of some curves.

  Args:
    values: [N, ...], the curves of N seeds.

  Returns:
    The mean and the half-width of the interval, [...]. The half-width is NaN
    for a single seed, which does not determine an interval.
  """
  values = np.asarray(values, np.float64)
  number = len(values)
  if number < 2:
    return values.mean(0), np.full(values.shape[1:], np.nan)
  quantile = stats.t.ppf(0.975, number - 1)
  return values.mean(0), quantile * values.std(0, ddof=1) / np.sqrt(number)
