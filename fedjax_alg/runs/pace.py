"""Division of the rounds between two evaluations into calls.

The number of rounds of a call is an input of the compiled program, so many
short calls run the same rounds as a long one, bit for bit. Between two calls
a run can be saved or stopped.
"""

from collections.abc import Callable, Collection
import dataclasses
from typing import Any

#: A call has at most this many times the rounds of the one before it, whose
#: rounds may have been faster than those to come.
_GROWTH = 8


@dataclasses.dataclass(frozen=True)
class Pause:
  """A run between two calls, with no evaluation there."""

  round: int  #: rounds run so far
  states: Any  #: as of ``play.Step``
  diverged: Collection[int]  #: rows that are not finite


class Pace:
  """Makes every call take about the same time, and saves between calls."""

  def __init__(
    self, seconds: float, due: Callable[[], bool], save: Callable[[Pause], None]
  ):
    """Makes a pace; the first call has one round.

    Args:
      seconds: wall time that a call may take. A round that takes longer is a
        call of its own.
      due: asked between two calls: whether to save now.
      save: saves; when it is called the tables have all rounds run. What it
        raises ends the run.
    """
    self._seconds, self._most = seconds, 1
    self.due, self.save = due, save

  def rounds(self, remaining: int) -> int:
    """The number of rounds of the next call.

    Args:
      remaining: rounds to the next evaluation.
    """
    return min(remaining, self._most)

  def record_call(self, count: int, seconds: float) -> None:
    """Learns from a call how long a round takes.

    Args:
      count: its number of rounds.
      seconds: its wall time.
    """
    fitting = int(self._seconds * count / max(seconds, 1e-9))
    self._most = max(1, min(fitting, _GROWTH * max(count, self._most)))
