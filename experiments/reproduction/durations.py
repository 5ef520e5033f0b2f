"""How long the runs of a figure take, told before they are made."""

from collections.abc import Iterable, Iterator, Sequence
import pathlib
import statistics
from typing import NamedTuple

from fedjax_alg.runs import dry_run, store

from ..cli import writer
from ..cli.config import Config
from ..cli.execute import read_summary
from . import suite

MEASURED, ESTIMATED = "measured", "estimated"


class Work(NamedTuple):
  """Runs that take equally long."""

  words: str  #: what they are of
  configs: Sequence[Config]
  root: pathlib.Path  #: folder of their results
  pictures: bool  #: whether each is drawn, too


class Duration(NamedTuple):
  """The time of runs that take equally long."""

  words: str  #: what they are of
  runs: int
  finished: int
  #: of one run; None: unknown, on accelerators and for methods without a count of
  #: their work
  seconds: float | None
  #: ``MEASURED``: the mean of the finished runs; ``ESTIMATED``: see ``dry_run``
  source: str

  @property
  def remaining_s(self) -> float:
    """Seconds of the runs that are not finished; unknown ones count nothing."""
    return (self.runs - self.finished) * (self.seconds or 0.0)

  def __str__(self) -> str:
    """Says it in a line."""
    runs = f"{self.runs} run{'s' * (self.runs != 1)}, {self.finished} finished"
    each = "" if self.runs == 1 else " each"
    time = "unknown time"
    if self.seconds is not None:
      time = f"{_in_words(self.seconds)}{each} ({self.source})"
    return f"{self.words}: {runs}; {time}"


def _in_words(seconds: float) -> str:
  return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.2g} min"


def work_of_cells(
  cells: Sequence[suite.Cell], root: pathlib.Path, parts: suite.Partitions
) -> list[Work]:
  """The runs of each cell on all partitions.

  Args:
    cells: the cells.
    root: folder of the results.
    parts: the partitions of the data.
  """
  return [
    Work(
      f"{cell.place}: {cell.name}",
      [run.config for run in cell.runs_on(parts)],
      root,
      cell.pictures,
    )
    for cell in cells
  ]


def durations(works: Iterable[Work], folders: set[pathlib.Path]) -> Iterator[Duration]:
  """Tells how long runs take.

  Args:
    works: the runs.
    folders: those of the runs that were counted already; the new ones are added.

  Yields:
    A ``Duration`` for each work that has new runs.
  """
  for words, configs, root, pictures in works:
    seconds, number, first = [], 0, None
    for config in configs:
      folder = store.folder_of(root, config)
      if folder in folders:
        continue
      folders.add(folder)
      number, first = number + 1, first or config
      if store.is_finished(config, folder, writer.added_files(pictures)):
        summary = read_summary(folder)
        timing, rounds = summary["timing"], summary["cost"]["rounds"]
        seconds.append(
          rounds * timing["seconds_per_round_all_seeds"] + timing["compile_s"]
        )
    if first is None:
      continue
    if seconds:
      mean = statistics.fmean(seconds)
      yield Duration(words, number, len(seconds), mean, MEASURED)
    else:
      estimate = dry_run.estimate(first.prepare())
      yield Duration(words, number, 0, estimate.seconds, ESTIMATED)


def total_time(all_durations: Sequence[Duration]) -> str:
  """Says in a line how long all unfinished runs take, and how that is known."""
  open_runs = [each for each in all_durations if each.runs > each.finished]
  sources = {
    MEASURED: "as finished runs took",
    ESTIMATED: "estimated from timed local steps, without compiling",
  }
  times = [
    f"{_in_words(sum(each.remaining_s for each in known))} {words}"
    for source, words in sources.items()
    if (known := [each for each in open_runs if each.source == source])
  ]
  unknown = sum(each.runs - each.finished for each in open_runs if each.seconds is None)
  times += [f"{unknown} of unknown length"] * (unknown > 0)
  remaining = sum(each.runs - each.finished for each in open_runs)
  runs = sum(each.runs for each in all_durations)
  return (
    f"{remaining} of {runs} runs are not finished"
    + ": " * bool(times)
    + (", ".join(times))
  )
