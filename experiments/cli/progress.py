"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Any

from tqdm import tqdm


class Progress:
  """Shows rounds, accuracy and the time left; compile time apart."""

  def __init__(self, name: str, rounds: int, start: int, shown: bool):
    self._name, self._rounds, self._shown = name, rounds, shown
    self._bar: Any = None
    self._start, self._began = start, time.monotonic()
    if shown and sys.stderr.isatty():
      self._bar = tqdm(total=rounds, initial=start, desc=name, unit="round")

  def compiled(self, seconds: float) -> None:
    """Says how long compiling took; it is not part of the time per round."""
    self.say(f"{self._name}: compiled in {seconds:.1f} s")
    self._began = time.monotonic()
    if self._bar is not None:
      self._bar.unpause()

  def evaluated(self, number: int, accuracy: float) -> None:
    """Round ``number`` is done and evaluated."""
    if self._bar is not None:
      self._bar.set_postfix_str(f"accuracy {accuracy:.4f}")
      self._bar.update(number - self._bar.n)
    elif self._shown:
      done = max(number - self._start, 1)
      left = (time.monotonic() - self._began) / done * (self._rounds - number)
      self.say(f"{self._name}: round {number}/{self._rounds} accuracy "
               f"{accuracy:.4f}, {left:.0f} s left")

  def say(self, line: str) -> None:
    """A line of its own."""
    if self._bar is not None:
      self._bar.write(line, file=sys.stderr)
    elif self._shown:
      print(line, file=sys.stderr, flush=True)

  def close(self) -> None:
    """Ends the bar."""
    if self._bar is not None:
      self._bar.close()
