"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Any

import numpy as np
from tqdm import tqdm

from fedjax_alg.runs.play import Step


class ProgressBar:
  """A callback: rounds, accuracy and the time left, compile time apart."""

  def __init__(self, name: str = "run", start: int = 0, shown: bool = True):
    """Shows nothing yet.

    Args:
      name: before the bar.
      start: rounds that a resumed run has behind it.
      shown: False shows nothing at all.
    """
    self._name, self._shown = name, shown
    self._bar: Any = None
    self._start, self._began = start, time.monotonic()
    self._compiled = False

  def compiled(self, seconds: float) -> None:
    """Says how long compiling took; it is not part of the time per round."""
    self.say(f"{self._name}: compiled in {seconds:.1f} s")
    self._began, self._compiled = time.monotonic(), True

  def __call__(self, step: Step) -> None:
    """A run has come to an evaluation."""
    if not self._compiled:
      self.compiled(step.compile_s)
      self._began -= step.seconds
    first = next((of["accuracy"] for of in step.metrics.values()
                  if "accuracy" in of), None)
    said = "" if first is None else f"accuracy {float(np.mean(first)):.4f}"
    if self._shown and sys.stderr.isatty():
      if self._bar is None:
        self._bar = tqdm(total=step.rounds, initial=self._start,
                         desc=self._name, unit="round")
      self._bar.set_postfix_str(said)
      self._bar.update(step.round - self._bar.n)
    elif self._shown:
      done = max(step.round - self._start, 1)
      left = (time.monotonic() - self._began) / done * (
          step.rounds - step.round)
      self.say(f"{self._name}: round {step.round}/{step.rounds} {said}, "
               f"{left:.0f} s left")
    if step.round == step.rounds:
      self.close()

  def say(self, line: str) -> None:
    """A line of its own."""
    if self._bar is not None:
      self._bar.write(line, file=sys.stderr)
    elif self._shown:
      print(line, file=sys.stderr, flush=True)

  def close(self) -> None:
    """Ends the bar; the next Step starts another one."""
    if self._bar is not None:
      self._bar.close()
    self._bar, self._start, self._compiled = None, 0, False


def progress_bar(name: str = "run") -> ProgressBar:
  """A progress bar for ``callbacks``."""
  return ProgressBar(name)
