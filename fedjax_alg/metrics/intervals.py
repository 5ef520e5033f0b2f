"""Confidence intervals over seeds, and how a mean is written with its interval."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Estimate(NamedTuple):
  """The mean of numbers, one of each seed, with its interval."""

  mean: float
  ci95: float  #: half-width of the 95 % interval; NaN with less than two numbers
  values: tuple[float, ...]  #: the numbers


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


def estimate_mean(values: Iterable[float | None]) -> Estimate:
  """The mean with its 95 % Student-t interval.

  Args:
    values: one number per seed; None counts as NaN.
  """
  numbers = tuple(np.nan if v is None else float(v) for v in values)
  return Estimate(*confidence_95(numbers), numbers)


def format_estimate(
  estimate: Estimate | Mapping[str, Any] | None,
  digits: int | None = 2,
  factor: float = 1.0,
  sign: str = "",
  between: str = " +- ",
  mean_as: str = "{}",
) -> str:
  """Writes a mean with its interval: the one form of all tables.

  Args:
    estimate: the numbers, or an entry of summary.json with "mean" and "ci95".
    digits: number of decimals; None: the interval has two digits, or a mean
      without one four.
    factor: both numbers are multiplied by it.
    sign: "+" to show the sign of a positive mean, too.
    between: what stands between the mean and the half-width.
    mean_as: how the mean is written, for example bold; "{}" is the number.

  Returns:
    "mean +- half-width". A single seed has no interval, so its number alone is
    shown; "-" if there is no number.

  Examples:
    >>> format_estimate(estimate_mean([0.90, 0.92, 0.94]), 1, 100)
    '92.0 +- 5.0'
  """
  if estimate is None:
    return "-"
  numbers = estimate._asdict() if isinstance(estimate, Estimate) else estimate
  mean, half = (
    np.nan if numbers[name] is None else factor * numbers[name]
    for name in ("mean", "ci95")
  )
  if np.isnan(mean):
    return "-"
  if digits is None:
    if not (np.isfinite(half) and half > 0):
      return mean_as.format(f"{mean:{sign}.4g}")
    digits = max(0, 1 - int(np.floor(np.log10(half))))
  number = mean_as.format(f"{mean:{sign}.{digits}f}")
  return number if np.isnan(half) else f"{number}{between}{half:.{digits}f}"
