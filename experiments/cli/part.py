"""Parts of many runs, each for a process of its own (--part=3/16)."""

from collections.abc import Sequence
import re
from typing import NamedTuple, TypeVar

from .config import UsageError

HELP = (
  "K/N: run only the K-th of N parts of the runs, for a job array; the "
  "same command without it, afterwards, makes the tables and pictures"
)

Item = TypeVar("Item")


class RunPart(NamedTuple):
  """One of ``total`` parts, its number counted from 1."""

  number: int
  total: int

  def __str__(self) -> str:
    return f"{self.number}/{self.total}"

  def of(self, items: Sequence[Item]) -> list[Item]:
    """This part: neighbors, as many as in other parts, or one more or less."""
    start, end = (
      (number * len(items)) // self.total for number in (self.number - 1, self.number)
    )
    return list(items[start:end])


def parse_part(text: str | None) -> RunPart | None:
  """Reads the value of --part.

  Raises:
    UsageError: it is not K/N, K from 1 to N.
  """
  if text is None:
    return None
  match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
  if not match or not 1 <= int(match[1]) <= int(match[2]):
    raise UsageError(f"--part={text}: must be K/N, K from 1 to N, such as 3/16")
  return RunPart(int(match[1]), int(match[2]))


def report_part(part: RunPart, ended: int, remaining: int, count: int) -> str:
  """Returns the closing message of a command that has run a part.

  Args:
    part: the part.
    ended: its runs, which have ended.
    remaining: runs that are not finished.
    count: all runs.
  """
  return (
    f"part {part}: its runs have ended ({ended} of {count}), {remaining} runs "
    "are left for other parts; the same command without --part makes the "
    "tables and pictures"
  )
