"""Confidence intervals over seeds."""

from collections.abc import Sequence

import numpy as np
from scipy import stats


def confidence_95(values: Sequence[float]) -> tuple[float, float]:
  """Mean and half-width of its 95 % Student-t interval over seeds.

  Args:
    values: one number per seed.

  Returns:
    (mean, half-width); the half-width is 0 with a single seed, where no
    interval can be given.
  """
  array = np.asarray(values, np.float64)
  mean = float(array.mean())
  if array.size < 2:
    return mean, 0.0
  quantile = stats.t.ppf(0.975, array.size - 1)
  return mean, float(quantile * array.std(ddof=1) / np.sqrt(array.size))
