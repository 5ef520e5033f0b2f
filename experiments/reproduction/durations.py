"""How long the runs of a figure take, told before they are made."""

from collections.abc import Iterable, Iterator, Sequence
import pathlib
import statistics
from typing import NamedTuple

from fedjax_alg.data.features import FeatureWork
from fedjax_alg.runs import dry_run, store

from ..cli import writer
from ..cli.config import Config
from ..cli.execute import read_summary
from . import suite

MEASURED, ESTIMATED = "measured", "estimated"


class RunGroup(NamedTuple):
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


class FeatureDuration(NamedTuple):
  """The time of the features of a data set, which all of its runs share."""

  words: str  #: the data set and its features
  work: FeatureWork

  def __str__(self) -> str:
    """Says it in a line."""
    return (
      f"{self.words}: {self.work.missing:,} of {self.work.examples:,} examples are not "
      f"stored; {_in_words(self.work.seconds)} ({ESTIMATED})"
    )


def group_runs(
  cells: Sequence[suite.Cell], root: pathlib.Path, parts: suite.Partitions
) -> list[RunGroup]:
  """The runs of each cell on all partitions.

  Args:
    cells: the cells.
    root: folder of the results.
    parts: the partitions of the data.
  """
  return [
    RunGroup(
      f"{cell.place}: {cell.name}",
      [run.config for run in cell.runs_on(parts)],
      root,
      cell.pictures,
    )
    for cell in cells
  ]


def durations(
  groups: Iterable[RunGroup], folders: set[pathlib.Path]
) -> Iterator[Duration | FeatureDuration]:
  """Tells how long runs take, and the features that they need first.

  Args:
    groups: the runs.
    folders: those of the runs that were counted already; the new ones are added.

  Yields:
    A ``Duration`` for each group that has new runs, and a ``FeatureDuration`` before
    the first one of a data set with features that are not stored.
  """
  works = dict[str, FeatureWork | None]()
  for words, configs, root, pictures in groups:
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
      of_data = f"features={first.data.features} of {first.data.dataset}"
      if of_data not in works:
        works[of_data] = work = dry_run.estimate_features(first)
        if work is not None and work.missing:
          yield FeatureDuration(of_data, work)
      planned = dry_run.without_features(first, works[of_data])
      estimate = dry_run.estimate(planned.prepare())
      yield Duration(words, number, 0, estimate.seconds, ESTIMATED)


def total_time(estimates: Sequence[Duration | FeatureDuration]) -> str:
  """Says in a line how long all unfinished runs take, and how that is known."""
  all_durations = [duration for duration in estimates if isinstance(duration, Duration)]
  features = [
    feature.work for feature in estimates if isinstance(feature, FeatureDuration)
  ]
  open_runs = [
    duration for duration in all_durations if duration.runs > duration.finished
  ]
  sources = {
    MEASURED: "as finished runs took",
    ESTIMATED: "estimated from timed local steps, without compiling",
  }
  times = [
    f"{_in_words(sum(duration.remaining_s for duration in known))} {words}"
    for source, words in sources.items()
    if (known := [duration for duration in open_runs if duration.source == source])
  ]
  unknown = sum(
    duration.runs - duration.finished
    for duration in open_runs
    if duration.seconds is None
  )
  times += [f"{unknown} of unknown length"] * (unknown > 0)
  if features:
    times.append(f"{_in_words(sum(work.seconds for work in features))} for features")
  remaining = sum(duration.runs - duration.finished for duration in open_runs)
  runs = sum(duration.runs for duration in all_durations)
  return (
    f"{remaining} of {runs} runs are not finished"
    + ": " * bool(times)
    + (", ".join(times))
  )
