"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

import collections
from collections.abc import Iterable, Sequence
import sys
import time
from typing import Any

import numpy as np
from tqdm import tqdm

from fedjax_alg.metrics.names import is_known
from fedjax_alg.part import of_type
from fedjax_alg.records.tables import Records
from fedjax_alg.runs.play import Step
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.sinks import Sink


class ProgressBar(Sink):
  """A callback that shows the rounds run, a metric and the time left.

  The metric is the first one of the task, of the first protocol.

  The compile time is shown separately and is not part of the estimate. If it is
  longer than a moment, a line says what is compiled.
  """

  def __init__(self, name: str = "run", visible: bool = True):
    """Prepares a progress bar; the bar appears at the first evaluation.

    Args:
      name: label that is shown before the bar.
      visible: whether to show anything at all.
    """
    self._name, self._shown = name, visible
    self._bar: Any = None
    self._start, self._began = 0, time.monotonic()
    self._compiled = False

  def compiling(self, text: str) -> None:
    self.say(text)

  def start(
    self,
    programs: Programs,
    records: Sequence[Records],
    names: Sequence[str],
    done: int,
  ) -> None:
    self._start = done
    self.show_compile_time(programs.compile_s)

  def show_compile_time(self, seconds: float) -> None:
    """Shows the compile time and starts the clock of the rounds.

    Args:
      seconds: the time that compilation took.
    """
    self.say(f"{self._name}: compiled in {seconds:.1f} s")
    self._began, self._compiled = time.monotonic(), True

  def __call__(self, step: Step) -> None:
    """Shows the progress at an evaluation.

    Args:
      step: the state of the run at this evaluation.
    """
    if not self._compiled:
      self.show_compile_time(step.compile_s)
      self._began -= step.seconds
    first = next(
      (
        (name, value)
        for of in step.metrics.values()
        for name, value in of.items()
        if is_known(name)
      ),
      None,
    )
    text = (
      ""
      if first is None
      else (f"{first[0].replace('_', ' ')} {float(np.mean(first[1])):.4f}")
    )
    if self._shown and sys.stderr.isatty():
      if self._bar is None:
        self._bar = tqdm(
          total=step.rounds, initial=self._start, desc=self._name, unit="round"
        )
      self._bar.set_postfix_str(text)
      self._bar.update(step.round - self._bar.n)
    elif self._shown:
      done = max(step.round - self._start, 1)
      seconds = (time.monotonic() - self._began) / done * (step.rounds - step.round)
      self.say(
        f"{self._name}: round {step.round}/{step.rounds} {text}, {seconds:.0f} s left"
      )
    if step.last:
      self.close()

  def say(self, line: str) -> None:
    """Shows a line of text without disturbing the bar.

    Args:
      line: the text.
    """
    if self._bar is not None:
      self._bar.write(line, file=sys.stderr)
    elif self._shown:
      print(line, file=sys.stderr, flush=True)

  def close(self) -> None:
    """Ends the bar; the next ``Step`` starts a new one."""
    if self._bar is not None:
      self._bar.close()
    self._bar, self._start, self._compiled = None, 0, False


def format_seconds(seconds: float) -> str:
  """Writes a duration as a reader wants it: seconds, minutes or hours."""
  minutes = round(seconds / 60)
  if minutes < 3:
    return f"{seconds:.0f} s"
  return f"{minutes} min" if minutes < 180 else f"{minutes / 60:.1f} h"


class TimeLeft:
  """Estimates how long the runs still to come will take, with compiling.

  Runs of an algorithm take as long as those of the same algorithm so far, for
  each round and seed; those of an algorithm that has not been run yet take
  the mean of the others.
  """

  def __init__(self) -> None:
    #: algorithm -> seconds of compiling and of a round, for each run
    self._taken: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)

  def add(self, algorithm: str, rounds: int, compiling: float, running: float) -> None:
    """Adds a run that has been run.

    Args:
      algorithm: name of its algorithm.
      rounds: rounds that it has run, of all seeds together.
      compiling: seconds that compiling took.
      running: seconds that the rest of the run took.
    """
    self._taken[algorithm].append((compiling, running / max(rounds, 1)))

  def estimate(self, runs: Iterable[tuple[str, int]]) -> float | None:
    """Estimates the seconds that runs will take.

    Args:
      runs: algorithm and rounds of each run, as for ``add``.

    Returns:
      The seconds; None before the first run has been run.
    """
    if not self._taken:
      return None
    means = {name: np.array(times).mean(0) for name, times in self._taken.items()}
    mean_of_all = np.array(list(means.values())).mean(0)
    total = 0.0
    for algorithm, rounds in runs:
      compiling, a_round = means[algorithm] if algorithm in means else mean_of_all
      total += compiling + rounds * a_round
    return float(total)


def progress_bar(name: str = "run") -> ProgressBar:
  """Makes a progress bar for the argument ``callbacks`` of ``run``.

  Args:
    name: label that is shown before the bar.

  Returns:
    The callback.

  Raises:
    OptionError: the name is no text.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", num_clients=10)
    >>> result = fa.run("fedncm", fed, callbacks=progress_bar("digits"))
  """
  return ProgressBar(of_type("name", name, str))
