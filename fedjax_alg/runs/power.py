"""How many partitions or seeds a comparison needs: the power of the paired t test."""

import numpy as np

from fedjax_alg.errors import OptionError, a_type
from fedjax_alg.hparams import plain
from fedjax_alg.runs.compare import Comparison, PairedRuns

#: With more pairs the answer would be no help.
_MOST = 1_000_000


def power_of_pairs(pairs: int, effect: float, alpha: float = 0.05) -> float:
  """Computes the power of the two-sided paired t test.

  Args:
    pairs: number of pairs, at least 2.
    effect: the true mean difference divided by the standard deviation of the
      differences.
    alpha: the level of the test.

  Returns:
    The probability that p is below ``alpha``, for normal differences. It is exact:
    the statistic has a noncentral t distribution.

  Examples:
    >>> print(f"{power_of_pairs(5, 1.0):.2f} {power_of_pairs(10, 1.0):.2f}")
    0.40 0.80
  """
  from scipy import stats  # pylint: disable=g-import-not-at-top  (0.6 s)

  # Beyond a million the power is 1 in float64, and scipy's series ends in NaN.
  freedom, shift = pairs - 1, min(abs(effect) * np.sqrt(pairs), 1e6)
  limit = stats.t.ppf(1 - alpha / 2, freedom)
  beyond = stats.nct.sf(limit, freedom, shift)
  # The other side, where the sign of the difference is wrong, is only of weight where
  # the shift is small. Where it has none scipy's series of it may give NaN.
  wrong = stats.nct.cdf(-limit, freedom, shift) if shift < 5 else 0.0
  return float(beyond + np.nan_to_num(wrong))


def sample_size(
  difference: float,
  spread: float | PairedRuns | Comparison,
  *,
  power: float = 0.8,
  alpha: float = 0.05,
) -> int:
  """Computes how many partitions, or seeds, a paired comparison needs.

  Args:
    difference: the least true difference that the comparison should detect, in the
      unit of the metric: 0.01 is one point of accuracy.
    spread: the standard deviation of the paired differences. It may be a pair of a
      comparison, or a comparison, whose pair with the largest one counts.
    power: the probability of p < ``alpha`` if the true difference is ``difference``.
    alpha: the level of the two-sided paired t test. For k tests with Holm's
      correction, alpha / k is enough for each.

  Returns:
    The smallest number of pairs, at least 2. It is exact for normal differences. A
    standard deviation of few pairs is itself uncertain: with five pairs the true one
    may be 0.6 to 2.9 times as large.

  Raises:
    OptionError: a number out of its range, or a comparison without two pairs of runs.

  Examples:
    With a standard deviation of 2 points, for a difference of 1 and of 3 points:

    >>> sample_size(0.01, 0.02), sample_size(0.03, 0.02)
    (34, 6)
  """
  difference = _number("difference", difference)
  if not 0 < abs(difference) < np.inf:
    raise OptionError(f"`difference`={difference:g}: must be finite and not 0")
  deviation = _deviation(spread)
  alpha, power = _number("alpha", alpha), _number("power", power)
  if not 0 < alpha < 1:
    raise OptionError(f"`alpha`={alpha:g}: must be between 0 and 1")
  if not alpha < power < 1:
    raise OptionError(f"`power`={power:g}: must be between `alpha`={alpha:g} and 1")
  if deviation == 0:
    return 2
  effect = abs(difference) / deviation

  def is_enough(pairs: int) -> bool:
    return power_of_pairs(pairs, effect, alpha) >= power

  most = 2
  while not is_enough(most):
    most *= 2
    if most > _MOST:
      raise OptionError(
        f"`difference`={difference:g}: with a standard deviation of {deviation:g} it "
        f"needs more than {_MOST:,} pairs"
      )
  least = most // 2  # not enough, or 1
  while most - least > 1:
    middle = (least + most) // 2
    least, most = (least, middle) if is_enough(middle) else (middle, most)
  return most


def _number(name: str, value: object) -> float:
  value = plain(value)
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise OptionError(f"`{name}`: {a_type(value)}, must be a number")
  return float(value)


def _deviation(spread: object) -> float:
  """The standard deviation of paired differences."""
  if isinstance(spread, Comparison):
    pairs = spread.pairs
  elif isinstance(spread, PairedRuns):
    pairs = (spread,)
  else:
    deviation = _number("spread", spread)
    if not 0 <= deviation < np.inf:
      raise OptionError(f"`spread`={deviation:g}: must be finite and at least 0")
    return deviation
  deviations = [
    float(np.std(pair.difference.values, ddof=1))
    for pair in pairs
    if len(pair.difference.values) > 1
  ]
  if not deviations or not np.isfinite(deviations).all():
    raise OptionError(
      "`spread`: the comparison has no pair of runs with two finite differences"
    )
  return max(deviations)
