"""The rule of all verdicts: a measured number beside a claimed one.

A verdict is one of five words, with its reason beside: reached, better, worse,
undecided, not testable. The rule and its thresholds are in
docs/papers/readings.md (V-1 to V-14), registered before they judged anything.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_alg import metrics
from fedjax_alg.data import tfds_source

#: Results that differ by at most this many points count as equal: the papers
#: say "approximately", and two readings of one formula differ by as much.
TIE = 0.3
#: The same on the data sets whose accuracies vary more.
_TIES = {"cifar10": 0.5, "femnist": 0.5}

#: The numbers of the seeds of each partition; flat: those of one.
Parts = Sequence[npt.ArrayLike] | np.ndarray

#: The five verdicts.
REACHED, BETTER, WORSE = "reached", "better", "worse"
UNDECIDED, NOT_TESTABLE = "undecided", "not testable"
VERDICTS = (REACHED, BETTER, WORSE, UNDECIDED, NOT_TESTABLE)

#: Reasons of verdicts that more than one module gives.
NOT_RUN = "not run"
NO_NUMBER = "no number in the paper"
OTHER_THAN_PRINTED = "other than printed"
ONE_RUN, ONE_PARTITION = "one run", "one partition"

#: The reasons for which no run here can test a claim (V-7, V-8, V-10, V-12).
IMPOSSIBLE, HARDWARE = "impossible as printed", "other hardware"
OUR_CLOCK, NO_MEASURE = "our clock", "no measure given"
NEEDS_VALUE = "needs a value that the paper does not give"
DISAGREE = "the paper's measures disagree"
#: What differs may decide the number; it stands behind in brackets.
OTHER_PROTOCOL = "other protocol"
UNTESTABLE = (
  *(IMPOSSIBLE, HARDWARE, OUR_CLOCK, NO_MEASURE),
  *(NEEDS_VALUE, DISAGREE, OTHER_PROTOCOL),
)

#: Beside the verdict on a number whose replicas differ by more than its tie (V-13).
CHAOTIC = "chaotic"

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


class Prediction(NamedTuple):
  """What our runs say of a number of one run like them."""

  mean: float
  ci95: float  #: half the width of the 95 % interval of the mean
  draw95: float  #: the same of one further draw, see ``predict``


#: An interval over the seeds of one partition lacks the spread over partitions:
#: a gap decides from so many of its half-widths on (V-3).
_ONE_PARTITION_FACTOR = 10.0


def predict(parts: Sequence[np.ndarray], repeats: int = 1) -> Prediction:
  """Predicts a number of one draw: one partition of the data with one seed.

  The 95 % prediction interval t sqrt(s^2 (1/k + 1/n) + w^2 (1 - 1/S) / k) of
  n partitions of S seeds: s is the deviation of the partitions' means, w that of
  the seeds within a partition, t of Student's distribution with n - 1 degrees of
  freedom. Seeds that agree leave the mean's half-width times sqrt(n + 1), for
  k = 1.

  Args:
    parts: the numbers of the seeds of each partition. Of one partition the
      seeds are the draws.
    repeats: k, the number of runs of which the predicted number is the mean.

  Returns:
    The mean, its half-width, and that of the prediction; both are NaN for a
    single run.

  Examples:
    >>> low, high = [np.array([v]) for v in (97.0, 98.0)]
    >>> predict([low, high, low, high]).draw95 / predict([low, high, low, high]).ci95
    2.23606797749979
  """
  if len(parts) == 1:
    parts = [np.array([value]) for value in parts[0]]
  means = np.array([part.mean() for part in parts])
  mean, ci95 = metrics.confidence_95(means)
  count = len(means)
  if count < 2:
    return Prediction(mean, math.nan, math.nan)
  deviation = means.std(ddof=1)
  repeated = [part for part in parts if len(part) > 1]
  within = (
    np.mean([part.var(ddof=1) * (1 - 1 / len(part)) for part in repeated])
    if repeated
    else 0.0
  )
  quantile = metrics.quantile_95(count)
  spread = deviation**2 * (1 / repeats + 1 / count) + within / repeats
  return Prediction(mean, ci95, float(quantile * np.sqrt(spread)))


def list_values(parts: Parts) -> str:
  """Writes the numbers of runs: seeds parted by spaces, partitions by semicolons."""
  return "; ".join(
    " ".join(f"{value:.6g}" for value in np.atleast_1d(np.asarray(part, float)))
    for part in parts
  )


def parse_values(text: str) -> list[np.ndarray]:
  """Reads what ``list_values`` has written; [] of ""."""
  parts = text.split(";") if text else []
  return [np.array([*map(float, part.split())]) for part in parts]


def mark_rounding(parts: Parts, replicas: int, tie: float) -> str:
  """Says whether replicas of one run differ by more than the tie (V-13).

  Args:
    parts: the numbers of each partition, those of a replica one after the other.
    replicas: how many runs of the same seeds there are, apart from rounding.
    tie: the differences that count as equal, see ``tie_of``.

  Returns:
    ``CHAOTIC``; "" if they do not, or if there are no replicas.
  """
  if replicas < 2:
    return ""
  for part in parts:
    runs = np.reshape(np.asarray(part, float), (replicas, -1))
    low, high = runs.min(0), runs.max(0)
    # Of a number that no replica gets to there is no difference.
    if (high[high > low] - low[high > low] > tie).any():
      return CHAOTIC
  return ""


def place_number(
  gap: float, ci95: float, draw95: float, tie: float, widest: float
) -> str:
  """Places a measured number beside one that is claimed (V-4).

  A number is reached if our mean, known to ``widest`` to either side, is at most
  the tie off, or if it is inside the interval of one draw and that is so narrow.
  It is above or below if it is outside of both, and undecided otherwise.

  Args:
    gap: the measured number less the claimed one.
    ci95: half the width of the mean's interval; NaN for a single run, 0 for a
      number that does not vary.
    draw95: half the width of the interval of one draw, see ``predict``.
    tie: the differences that count as equal, see ``tie_of``.
    widest: half the width from which an interval decides nothing of a number
      that it contains, see ``widest_of``.

  Returns:
    The place.
  """
  if abs(gap) <= tie and ci95 < widest or abs(gap) <= draw95 < widest:
    return SAME
  if abs(gap) > max(tie, draw95):
    return ABOVE if gap > 0 else BELOW
  return UNDECIDED


def name_data(dataset: object) -> str:
  """Returns the name of a data set, without fields; "" of data without a name.

  Args:
    dataset: its text, or the data set; None: no name.

  Examples:
    >>> name_data("tfds:cifar10"), name_data("femnist:leaky"), name_data(None)
    ('cifar10', 'femnist', '')
  """
  text = str(dataset or "").removeprefix(tfds_source.PREFIX)
  return text.partition(":")[0]


def tie_of(value: float, unit: str, data: str = "") -> float:
  """The tie for a number: points by the data set, or 5 % of numbers that are no share.

  Args:
    value: the claimed number.
    unit: its unit; "%" and "pp" are shares.
    data: the data set as ``name_data`` has it; "": any with the tie ``TIE``.
  """
  return _TIES.get(data, TIE) if unit in ("%", "pp") else 0.05 * abs(value)


def widest_of(value: float, unit: str) -> float:
  """Half the width from which an interval decides nothing of a number."""
  return _WIDEST * (TIE if unit in ("%", "pp") else tie_of(value, unit))


class Placement(NamedTuple):
  """Measured numbers beside a claimed one."""

  ours: str  #: in words
  place: str  #: as ``place_number`` has it
  why: str = ""  #: why it is undecided
  mean: float = math.nan  #: NaN: some runs never get there
  ci95: float = math.nan  #: half the width of the interval of the mean
  draw95: float = math.nan  #: half the width of the prediction interval


def place_values(
  parts: Parts,
  claimed: float,
  unit: str,
  exact: bool = False,
  data: str = "",
  repeats: int = 1,
  has_one_partition: bool = False,
  not_in: float = math.inf,
) -> Placement:
  """Places measured numbers beside a claimed one.

  Args:
    parts: the numbers of the seeds of each partition; inf: never within the
      rounds run. A flat list are the seeds of one.
    claimed: the claimed number; inf: never in ``not_in`` rounds.
    unit: its unit; "" of a plain number.
    exact: whether the number does not vary from run to run.
    data: the data set, see ``tie_of``.
    repeats: see ``predict``.
    has_one_partition: whether the spread over partitions is missing, so that
      only a gap far beyond the interval decides (V-3).
    not_in: the rounds of a claim of never. Ours is below if the interval of one
      draw ends in them, and what comes after them is never.

  Returns:
    Ours in words, the place, and why it is undecided.
  """
  arrays = [np.atleast_1d(np.asarray(part, float)) for part in parts]
  if np.ndim(parts[0]) == 0:
    arrays = [np.concatenate(arrays)]
  numbers = np.concatenate(arrays)
  never = np.isinf(numbers) | (numbers > not_in)
  if never.any():
    ours = list_rounds(numbers)
    # Some runs get there and others do not, or one run alone was run.
    if never.any() != never.all() or len(numbers) < 2:
      why = "some runs only" if len(numbers) > 1 else ONE_RUN
      return Placement(ours, UNDECIDED, why)
    if has_one_partition:
      return Placement(ours, UNDECIDED, ONE_PARTITION)
    return Placement(ours, SAME if np.isinf(claimed) else ABOVE)
  prediction = predict(arrays, repeats)
  ours = metrics.format_estimate(
    {"mean": prediction.mean, "ci95": prediction.ci95, "values": numbers},
    3 if unit == "" and abs(claimed) < 10 else 2,
  )
  ci95, half = (0.0, 0.0) if exact else (prediction.ci95, prediction.draw95)
  if np.isinf(claimed):
    gap = prediction.mean - not_in
    place = BELOW if half <= -gap else UNDECIDED
  else:
    gap = prediction.mean - claimed
    place = place_number(
      gap, ci95, half, tie_of(claimed, unit, data), widest_of(claimed, unit)
    )
  why = "wide interval" if place == UNDECIDED else ""
  if np.isnan(half):
    place, why = UNDECIDED, ONE_RUN
  elif has_one_partition and abs(gap) < _ONE_PARTITION_FACTOR * half:
    place, why = UNDECIDED, ONE_PARTITION
  return Placement(ours, place, why, prediction.mean, prediction.ci95, half)


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
  placement: Placement,
  gap: float | None,
  metric: str,
  unit: str,
  never: bool = False,
) -> tuple[str, str]:
  """Returns the verdict on a number, and its reason.

  Args:
    placement: the measured number beside the claimed one.
    gap: by how much ours is off, without a sign; None: not a number.
    metric: the metric.
    unit: the unit of the claimed number.
    never: whether the claimed number is one that is never reached.
  """
  if placement.place == UNDECIDED:
    return UNDECIDED, placement.why
  if placement.place == SAME:
    return REACHED, "never, as printed" if never else ""
  word = BETTER if (placement.place == BELOW) == _less_is_better(metric) else WORSE
  if never:
    return word, OTHER_THAN_PRINTED
  if gap is None:
    return word, "never in these rounds"
  digits = ".1f" if unit in ("%", "pp", "fraction") else ".3g"
  return word, f"by {gap:{digits}}" + " rounds" * (unit == "rounds")


def list_rounds(values: Sequence[float] | np.ndarray) -> str:
  """Writes the round of each run, "-" for one that never gets there (inf)."""
  return ", ".join("-" if np.isinf(value) else f"{value:g}" for value in values)


def summarize_rounds(values: Sequence[float] | np.ndarray) -> str:
  """Writes the rounds of runs: of three runs or more the median.

  Args:
    values: of each run; inf: never.

  Examples:
    >>> summarize_rounds([36.0, 44.0, np.inf, 40.0])
    '42 (median, never in 1 of 4 runs)'
  """
  if len(values) < 3:
    return list_rounds(values)
  never, middle = int(np.isinf(values).sum()), float(np.median(values))
  if never == len(values):
    return f"never in {never} runs"
  if math.isinf(middle):
    return f"never in {never} of {len(values)} runs"
  often = f", never in {never} of {len(values)} runs" if never else ""
  return f"{middle:g} (median{often})"


def words(word: str, reason: str, rounding: str = "") -> str:
  """Returns a verdict as tables show it.

  Args:
    word: one of ``VERDICTS``.
    reason: stands beside it; may be empty.
    rounding: ``CHAOTIC``, which comes last, or "".
  """
  text = word
  if reason:
    text += f" {reason}" if reason.startswith("by ") else f": {reason}"
  return text + f", {rounding}" * bool(rounding)
