"""Scores, which stand for a curve: its end, a mean of it, or its best value."""

from collections.abc import Sequence

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.errors import OptionError
from fedjax_alg.part import of_type

#: score -> the number of last rounds whose evaluations it averages; None: all
LAST_ROUNDS: dict[str, int | None] = {"final": 1, "last_10": 10, "all": None}


def in_last(rounds: Sequence[int] | np.ndarray, last: int | None) -> np.ndarray:
  """Marks the evaluations in the last rounds.

  Args:
    rounds: [E] int, the evaluated rounds.
    last: number of last rounds; None: all.

  Returns:
    [E] bool.
  """
  return np.asarray(rounds) > (max(rounds) - last if last else 0)


def nan_as_worst(scores: np.ndarray | float) -> np.ndarray:
  """Numbers that can be ordered, -inf in the place of NaN.

  NaN is neither more nor less than a number, so ``max``, ``argmax`` and ``sorted``
  may take it for the best one.

  Args:
    scores: [...], of which more is better.

  Returns:
    [...] of the same type.
  """
  result: np.ndarray = np.where(np.isnan(scores), -np.inf, scores)
  return result


def last_evaluations(last: object) -> slice:
  """The final evaluations, as an index of a curve's last axis.

  Args:
    last: how many of them; None: all. Of a shorter curve all.

  Raises:
    OptionError: no whole number, or below 1.
  """
  count = of_type("last", last, int | None)
  if count is not None and count < 1:
    raise OptionError(f"`last`={count}: must be at least 1, or None (all evaluations)")
  return slice(None if count is None else -count, None)


def score(
  name: str, curve: np.ndarray, rounds: Sequence[int] | np.ndarray, metric: str
) -> float:
  """The number that stands for a curve.

  Args:
    name: a name of ``LAST_ROUNDS``; or "best", the least loss or the largest
      accuracy, whose round is chosen on the data of the curve.
    curve: [E'], the values of one seed. A protocol may be younger than the
      first evaluations of a run, so E' may be less than E.
    rounds: [E] int, the evaluated rounds of the run, in order.
    metric: the metric.

  Returns:
    The number; NaN where the metric has none.
  """
  score: float
  if name == "best":
    # The first evaluations are NaN if no client was counted then.
    finite = curve[~np.isnan(curve)]
    curve = finite if finite.size else curve
    score = curve.max() if metrics.metric(metric).higher else curve.min()
    return score
  score = curve[in_last(rounds, LAST_ROUNDS[name])[-len(curve) :]].mean()
  return score
