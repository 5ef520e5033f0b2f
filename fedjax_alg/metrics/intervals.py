"""Confidence intervals over seeds, and how a mean is written with its interval."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np


class Estimate(NamedTuple):
  """The mean of numbers, one of each seed, with its interval."""

  mean: float
  ci95: float  #: half-width of the 95 % interval; NaN with less than two numbers
  values: tuple[float, ...]  #: the numbers


@dataclasses.dataclass(frozen=True)
class Number:
  """A number of a table, perhaps with its interval, until a format writes it.

  Attributes:
    mean: the number; None if there is none.
    ci95: half-width of its 95 % interval; None without one.
    form: how both are written, as ``format`` takes it.
    sign: "+" to show the sign of a positive mean, too.
    p: p value of a test; None without one.
  """

  mean: float | None
  ci95: float | None = None
  form: str = ".2f"
  sign: str = ""
  p: float | None = None

  def write(self, between: str = " +- ", mean_as: str = "{}") -> str:
    """Writes it: the one form of all tables.

    Args:
      between: what stands between the mean and the half-width.
      mean_as: how the mean is written, for example bold; "{}" is the number.

    Returns:
      "mean +- half-width (p value)", without what is None; "-" if there is no mean.

    Examples:
      >>> Number(1.234, 0.5, ".1f", "+", 0.01).write()
      '+1.2 +- 0.5 (0.01)'
    """
    if self.mean is None:
      return "-"
    return (
      mean_as.format(f"{self.mean:{self.sign}{self.form}}")
      + ("" if self.ci95 is None else f"{between}{self.ci95:{self.form}}")
      + ("" if self.p is None else f" ({self.p:.2g})")
    )

  def __str__(self) -> str:
    return self.write()


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


def number_of(
  estimate: Estimate | Mapping[str, Any] | None,
  digits: int | None = 2,
  factor: float = 1.0,
  sign: str = "",
  p: float = np.nan,
) -> Number:
  """Makes the cell of an estimate.

  Args:
    estimate: the numbers, or an entry of summary.json with "mean" and "ci95".
    digits: number of decimals; None: the interval has two digits, or a mean
      without one four.
    factor: both numbers are multiplied by it.
    sign: "+" to show the sign of a positive mean, too.
    p: p value of a test; NaN without one.

  Returns:
    The number. What is None or NaN is None in it, also a mean.
  """
  if estimate is None:
    return Number(None)
  numbers = estimate._asdict() if isinstance(estimate, Estimate) else estimate
  mean, half = (
    np.nan if numbers[name] is None else float(factor * numbers[name])
    for name in ("mean", "ci95")
  )
  if np.isnan(mean):
    return Number(None)
  if digits is not None:
    form = f".{digits}f"
  elif np.isfinite(half) and half > 0:
    form = f".{max(0, 1 - int(np.floor(np.log10(half))))}f"
  else:
    form, half = ".4g", np.nan
  return Number(
    mean,
    None if np.isnan(half) else half,
    form,
    sign,
    None if np.isnan(p) else float(p),
  )


def format_estimate(
  estimate: Estimate | Mapping[str, Any] | None,
  digits: int | None = 2,
  factor: float = 1.0,
  sign: str = "",
) -> str:
  """Writes a mean with its interval, see ``number_of`` and ``Number.write``.

  Examples:
    >>> format_estimate(estimate_mean([0.90, 0.92, 0.94]), 1, 100)
    '92.0 +- 5.0'
  """
  return number_of(estimate, digits, factor, sign).write()
