"""The rule of all verdicts: a measured number beside a claimed one."""

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.records import summary as results

#: Results that differ by at most this many points count as equal: the papers
#: say "approximately", and two readings of one formula differ by as much.
TIE = 0.3

ABOVE, SAME, BELOW = "above", "same", "below"
UNDECIDED = "undecided"
NOT_COMPARABLE = "not comparable"
NOT_RUN = "not run"
NO_NUMBER = "no number in the paper"

#: An interval of more than a point decides nothing of numbers that are equal up
#: to ``TIE``; in half-widths for each unit of the tie.
_WIDEST = 0.5 / TIE


def place_gap(gap: float, ci95: float, tie: float = 0.0) -> str:
  """Places a measured number beside a claimed one.

  Let ``gap`` be the measured number less the claimed one.

  - ``above``: the gap is larger than its interval and larger than the tie.
  - ``below``: so is the gap with the other sign.
  - ``same``: the gap is at most the tie, and the interval is narrow enough to
    say so: at most a point wide for the tie of 0.3 points, in proportion for
    other ties.
  - ``undecided``: everything else. An interval that is too wide for the claim
    never counts in its favour, and a single run, which has no interval,
    decides nothing.

  Without a tie, as in "A is above B", ``same`` is left to numbers that are
  equal in every run.

  Args:
    gap: the difference of the means.
    ci95: half the width of its 95 % interval; NaN for a single run, 0 for a
      number that does not vary from run to run (a size, a simulated time).
    tie: the differences that count as equal.

  Returns:
    The verdict.
  """
  if abs(gap) <= tie and ci95 <= _WIDEST * tie:
    return SAME
  # A NaN compares as false.
  if abs(gap) > tie and abs(gap) > ci95:
    return ABOVE if gap > 0 else BELOW
  return UNDECIDED


def tie_of(value: float, unit: str) -> float:
  """The tie for a number of the paper: ``TIE`` points, or 5 % of others."""
  return TIE if unit in ("%", "pp") else 0.05 * abs(value)


def place_values(
  values: object, claimed: float, unit: str, exact: bool = False
) -> tuple[str, str]:
  """Places measured numbers beside a claimed one.

  Args:
    values: [runs], one number per run; inf: never within the rounds run.
    claimed: the claimed number; inf: never.
    unit: its unit; "" of a plain number.
    exact: whether the number does not vary from run to run.

  Returns:
    Ours in words, and the verdict of ``place_gap``.
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
  return ours, place_gap(spread["mean"] - claimed, ci95, tie_of(claimed, unit))


#: Beginnings of metrics of which less is better -> (less, more) in words.
_LESS = {
  "rounds_to": ("sooner", "later"),
  "communication": ("cheaper", "dearer"),
  "floats": ("cheaper", "dearer"),
  "loss": ("lower", "higher"),
  "discrepancy": ("lower", "higher"),
  "central_": ("faster", "slower"),
  "training_time": ("faster", "slower"),
}


def words(
  verdict: str,
  gap: float | None,
  metric: str,
  unit: str,
  is_own: bool,
  never: bool = False,
) -> str:
  """The verdict on a number, as tables say it.

  Args:
    verdict: that of ``place_gap``.
    gap: by how much ours is off, without a sign; None: not a number.
    metric: the metric.
    unit: the unit of the paper's number.
    is_own: whether it is a number of the paper's own method.
    never: whether the method never gets there in the paper.
  """
  if verdict == UNDECIDED:
    return "open"
  if verdict == SAME:
    return "reaches" if is_own and not never else "as printed"
  if verdict not in (ABOVE, BELOW):
    return verdict
  if never:
    return "gets there" if is_own else "baseline stronger here: gets there"
  less = next(
    (
      pair
      for start, pair in _LESS.items()
      if metric.removeprefix("test_").startswith(start)
    ),
    None if metrics.metric(metric).higher else ("lower", "higher"),
  )
  digits = ".1f" if unit in ("%", "pp", "fraction") else ".3g"
  by = "" if gap is None else f" by {gap:{digits}}"
  if by and unit == "rounds":
    by += " rounds"
  if less is not None:
    text = less[verdict == ABOVE] + by
    if is_own:
      return text
    return (
      "baseline stronger here: " if verdict == BELOW else "weaker here too: "
    ) + text
  if is_own:
    return ("exceeds" if verdict == ABOVE else "short") + by
  return ("baseline stronger here," if verdict == ABOVE else "weaker here too,") + by
