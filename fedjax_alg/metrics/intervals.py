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

  Examples:
    >>> mean, half = confidence_95([0.90, 0.92, 0.94])
    >>> print(f"{mean:.2f} +- {half:.3f}")
    0.92 +- 0.050
  """
  array = np.asarray(values, np.float64)
  mean = float(array.mean())
  if array.size < 2:
    return mean, 0.0
  quantile = stats.t.ppf(0.975, array.size - 1)
  return mean, float(quantile * array.std(ddof=1) / np.sqrt(array.size))
