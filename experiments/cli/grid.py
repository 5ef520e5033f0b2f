"""Widens a grid of values whose best one lies at its edge."""

from collections.abc import Callable, Sequence
import math
from typing import Any

#: A grid is widened at most so often.
MOST_WIDENINGS = 3


def beyond(tried: Sequence[float], best: float) -> float | None:
  """The value to try next, if the best one lies at an end of those tried.

  The values go on as they began: the ratio to the neighbour is kept. Whole
  numbers stay whole; 1.0 and 10.0, which are of a flag that takes others, only
  as long as they are at least 1.

  Args:
    tried: the values.
    best: the best of them.

  Returns:
    The value; None if the best one lies inside, or nothing lies beyond it.
  """
  values = sorted(tried)
  if len(values) < 2 or best not in (values[0], values[-1]):
    return None
  neighbour = values[1] if best == values[0] else values[-2]
  if best <= 0 or neighbour <= 0:
    return None
  found = float(f"{best * best / neighbour:.2g}")
  if all(isinstance(value, int) for value in values) or (
      found >= 1 and all(float(value).is_integer() for value in values)):
    found = float(round(found))
  return None if found <= 0 or found in values else found


def search(
    values: Sequence[Any], play: Callable[[list[Any]], list[float]],
    allowed: Callable[[Any], bool] = lambda value: True,
    most: int = MOST_WIDENINGS) -> dict[Any, float]:
  """Plays a grid and widens it while the best value lies at its edge.

  Args:
    values: the grid; one of words is not widened.
    play: plays values and returns their scores, NaN for one that failed.
    allowed: whether a value may be tried.
    most: how often the grid is widened at most.

  Returns:
    Every value that was played -> its score, the values in order.
  """
  found = dict(zip(values, play(list(values))))
  if any(isinstance(value, str) for value in found):
    return found
  for _ in range(most):
    alive = {v: score for v, score in found.items() if not math.isnan(score)}
    if not alive:
      break
    # Of equal ones the smallest.
    best = max(sorted(alive), key=alive.__getitem__)
    more = beyond(list(found), best)
    if more is None or not allowed(more):
      break
    found[more], = play([more])
  return dict(sorted(found.items()))
