"""Sinks, which receive a run while it is computed (``queue.run_queue``)."""

from collections.abc import Callable, Sequence
import enum
from typing import Final

from fedjax_alg.records.tables import Records
from fedjax_alg.runs.pace import Pace
from fedjax_alg.runs.play import Step
from fedjax_alg.runs.programs import Programs


class _Answer(enum.Enum):
  """What a callback may return to have an effect."""

  STOP = "stop"

  def __repr__(self) -> str:
    return f"fa.{self.name}"


#: A callback returns it to end the run at the evaluation that it was called with.
STOP: Final = _Answer.STOP


class Sink:
  """Takes the settings of one program after another; it may leave parts out."""

  #: splits the rounds between two evaluations into calls and saves between
  #: them; read after ``start``
  pace: Pace | None = None

  def compiling(self, text: str) -> None:
    """Called in another thread if compiling takes longer than a moment.

    Args:
      text: what is compiled, in a line.
    """

  def start(
    self,
    programs: Programs,
    records: Sequence[Records],
    names: Sequence[str],
    done: int,
  ) -> None:
    """Called before the first round.

    Args:
      programs: the compiled programs.
      records: tables of each setting.
      names: a name for each setting.
      done: rounds that were run before.
    """

  def __call__(self, step: Step) -> None:
    """Called at every evaluation."""

  def finish(self, setting: int, step: Step) -> None:
    """Called when a setting has ended that did not diverge.

    Args:
      setting: index of the setting.
      step: the step at which it ended.
    """

  def fail(self, error: BaseException) -> None:
    """Called when an error ends the program before its last round."""

  def close(self) -> None:
    """Called after the last round, or when the program was interrupted."""

  @staticmethod
  def of(callback: Callable[[Step], None]) -> "Sink":
    """Makes a sink of a function that is called with every ``Step``."""
    return callback if isinstance(callback, Sink) else _Function(callback)


class _Function(Sink):
  def __init__(self, function: Callable[[Step], None]):
    self._function = function

  def __call__(self, step: Step) -> None:
    self._function(step)
