"""Confidence intervals over seeds."""

from collections.abc import Sequence

import numpy as np


def half_width_95(values: np.ndarray) -> np.ndarray:
  """Computes the half-width of the 95 % Student-t interval of the mean.

  Args:
    values: [N, ...], one entry per seed.

  Returns:
    [...]; NaN for a single seed, which does not determine an interval.
  """
  seeds = len(values)
  if seeds < 2:
    return np.full(values.shape[1:], np.nan)
  result: np.ndarray = quantile_95(seeds) * values.std(axis=0, ddof=1) / np.sqrt(seeds)
  return result


def quantile_95(count: int) -> float:
  """Returns the 97.5 % quantile of Student's t for the mean of some numbers.

  Args:
    count: how many numbers, at least 2; the degrees of freedom are one less.
  """
  from scipy import special  # a third of a second, which not all runs need

  return float(special.stdtrit(count - 1, 0.975))


def confidence_95(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
  """Computes the mean over seeds and its 95 % Student-t confidence interval.

  Args:
    values: one number per seed.

  Returns:
    The mean and the half-width of the interval. The half-width is NaN for a
    single seed, which does not determine an interval.

  Examples:
    >>> mean, half = confidence_95([0.90, 0.92, 0.94])
    >>> print(f"{mean:.2f} +- {half:.3f}")
    0.92 +- 0.050
  """
  array = np.asarray(values, np.float64)
  return float(array.mean()), float(half_width_95(array))
