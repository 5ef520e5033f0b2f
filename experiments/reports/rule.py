"""The rule of all verdicts: a measured number beside a claimed one.

A verdict is one of five words, with its reason beside: reached, better, worse,
undecided, not testable. The thresholds are in docs/papers/readings.md, which says
which of them were registered before the runs.
"""

import math
import re

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.records import summary as results

#: Results that differ by at most this many points count as equal: the papers
#: say "approximately", and two readings of one formula differ by as much.
TIE = 0.3
#: The same on the data sets whose accuracies vary more.
_TIES = {"cifar10": 0.5, "femnist": 0.5}

#: The five verdicts.
REACHED, BETTER, WORSE = "reached", "better", "worse"
UNDECIDED, NOT_TESTABLE = "undecided", "not testable"
VERDICTS = (REACHED, BETTER, WORSE, UNDECIDED, NOT_TESTABLE)

#: Reasons of verdicts that more than one module gives.
NOT_RUN = "not run"
NO_NUMBER = "no number in the paper"
OTHER_THAN_PRINTED = "other than printed"

#: Places of a measured number beside a claimed one; the fourth is ``UNDECIDED``.
ABOVE, SAME, BELOW = "above", "same", "below"

#: An interval of more than a point decides nothing of numbers that are equal up
#: to ``TIE``; in half-widths for each unit of the tie.
_WIDEST = 0.5 / TIE


def place_gap(gap: float, ci95: float, tie: float = 0.0) -> str:
  """Places the difference of two measured numbers.

  - ``above``: the gap is larger than its interval and larger than the tie.
  - ``below``: so is the gap with the other sign.
  - ``same``: the gap is at most the tie, and the interval is narrow enough to
    say so: at most a point wide for the tie of 0.3 points, in proportion for
    other ties.
  - ``undecided``: everything else. An interval that is too wide for the claim
    never counts in its favor, and a single run, which has no interval,
    decides nothing.

  Without a tie, as in "A is above B", ``same`` is left to numbers that are
  equal in every run.

  Args:
    gap: the difference of the means.
    ci95: half the width of its 95 % interval; NaN for a single run, 0 for a
      number that does not vary from run to run (a size, a simulated time).
    tie: the differences that count as equal.

  Returns:
    The place.
  """
  if abs(gap) <= tie and ci95 <= _WIDEST * tie:
    return SAME
  # A NaN compares as false.
  if abs(gap) > tie and abs(gap) > ci95:
    return ABOVE if gap > 0 else BELOW
  return UNDECIDED


def place_number(gap: float, ci95: float, tie: float, widest: float) -> str:
  """Places a measured number beside one that is claimed.

  As ``place_gap``, but for ``same``: a number is reached if the gap is at most
  the tie, or inside the interval, and the interval is narrower than ``widest``
  to either side (docs/papers/readings.md, Thresholds).

  Args:
    gap: the measured number less the claimed one.
    ci95: half the width of its interval, see ``place_gap``.
    tie: the differences that count as equal, see ``tie_of``.
    widest: half the width from which an interval decides nothing of a number
      that it contains, see ``widest_of``.

  Returns:
    The place.
  """
  if abs(gap) <= max(tie, ci95) and ci95 < widest:
    return SAME
  if abs(gap) > tie and abs(gap) > ci95:
    return ABOVE if gap > 0 else BELOW
  return UNDECIDED


def tie_of(value: float, unit: str, data: str = "") -> float:
  """The tie for a number: points by the data set, or 5 % of numbers that are no share.

  Args:
    value: the claimed number.
    unit: its unit; "%" and "pp" are shares.
    data: the data set; "": any with the tie ``TIE``.
  """
  return _TIES.get(data, TIE) if unit in ("%", "pp") else 0.05 * abs(value)


def widest_of(value: float, unit: str) -> float:
  """Half the width from which an interval decides nothing of a number."""
  return _WIDEST * (TIE if unit in ("%", "pp") else tie_of(value, unit))


def place_values(
  values: object, claimed: float, unit: str, exact: bool = False, data: str = ""
) -> tuple[str, str]:
  """Places measured numbers beside a claimed one.

  Args:
    values: [runs], one number per run; inf: never within the rounds run.
    claimed: the claimed number; inf: never.
    unit: its unit; "" of a plain number.
    exact: whether the number does not vary from run to run.
    data: the data set, see ``tie_of``.

  Returns:
    Ours in words, and the place of ``place_number``.
  """
  numbers = np.asarray(values, float)
  never = np.isinf(numbers)
  if never.any():
    ours = ", ".join("-" if np.isinf(number) else f"{number:g}" for number in numbers)
  else:
    spread = results.spread(numbers)
    ours = results.format_spread(spread, 3 if unit == "" and abs(claimed) < 10 else 2)
  if np.isinf(claimed) or never.any():
    # Some runs get there and others do not, or one run alone was run.
    if never.any() != never.all() or len(numbers) < 2:
      return ours, UNDECIDED
    if np.isinf(claimed) == never.all():
      return ours, SAME
    return ours, BELOW if np.isinf(claimed) else ABOVE
  ci95 = 0.0 if exact else spread["ci95"]
  return ours, place_number(
    spread["mean"] - claimed,
    ci95,
    tie_of(claimed, unit, data),
    widest_of(claimed, unit),
  )


#: Beginnings of metrics of which less is better.
_LESS = (
  "rounds_to",
  "communication",
  "floats",
  "loss",
  "discrepancy",
  "central_",
  "training_time",
)


def _less_is_better(metric: str) -> bool:
  name = metric.removeprefix("test_")
  return name.startswith(_LESS) or not metrics.metric(metric).higher


def verdict(
  place: str,
  ours: str,
  gap: float | None,
  metric: str,
  unit: str,
  never: bool = False,
) -> tuple[str, str]:
  """Returns the verdict on a number, and its reason.

  Args:
    place: that of ``place_number``.
    ours: the measured number in words, as ``place_values`` has it.
    gap: by how much ours is off, without a sign; None: not a number.
    metric: the metric.
    unit: the unit of the claimed number.
    never: whether the claimed number is one that is never reached.
  """
  if place == UNDECIDED:
    if ", " in ours:
      return UNDECIDED, "some runs only"
    return UNDECIDED, "wide interval" if "+-" in ours else "one run"
  if place == SAME:
    return REACHED, "never, as printed" if never else ""
  word = BETTER if (place == BELOW) == _less_is_better(metric) else WORSE
  if never:
    return word, OTHER_THAN_PRINTED
  if gap is None:
    return word, "never in these rounds"
  digits = ".1f" if unit in ("%", "pp", "fraction") else ".3g"
  return word, f"by {gap:{digits}}" + " rounds" * (unit == "rounds")


#: Whole numbers of runs, "-" for one that never gets there, in a text.
_RUNS = re.compile(r"(?<![\w.])(?:\d+|-)(?:, (?:\d+|-)){2,}(?![\w.])")


def shorten(text: str) -> str:
  """Returns a text with the median in the place of three runs' numbers or more."""

  def median(match: re.Match[str]) -> str:
    values = [math.inf if part == "-" else float(part) for part in match[0].split(", ")]
    never, middle = sum(map(math.isinf, values)), float(np.median(values))
    if never == len(values):
      return f"never in {never} runs"
    if math.isinf(middle):
      return f"never in {never} of {len(values)} runs"
    often = f", never in {never} of {len(values)} runs" if never else ""
    return f"{middle:g} (median{often})"

  return _RUNS.sub(median, text)


def words(word: str, reason: str) -> str:
  """Returns a verdict with its reason beside it, as in tables."""
  if not reason:
    return word
  return f"{word} {reason}" if reason.startswith("by ") else f"{word}: {reason}"
