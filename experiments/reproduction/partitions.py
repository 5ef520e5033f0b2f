"""The same runs on several partitions of the data, and their pooled numbers.

All seeds of a run share one partition, so an interval over them leaves out the
spread over partitions. Runs on several partitions are pooled: each partition
counts once, with the mean of its seeds, and the interval is that of the mean
over partitions. It so covers seeds as well as partitions.
"""

from collections.abc import Callable, Sequence
import functools
import math
import pathlib
from typing import Any, Protocol, TypeVar

import numpy as np

from fedjax_alg.records import tables as records
from fedjax_alg.records.frames import Frames


class Run(Protocol):
  """What is read here of a run, or of several that are pooled (``suite.Outcome``)."""

  @property
  def folder(self) -> pathlib.Path:
    """The folder of the run."""

  @property
  def frames(self) -> Frames:
    """The metrics and the rounds."""

  @property
  def summary(self) -> dict[str, Any]:
    """The summary; of several partitions that of the first."""

  @property
  def parts(self) -> Sequence["Run"]:
    """The runs on several partitions that are pooled; empty for a single run."""

  @property
  def replicas(self) -> Sequence["Run"]:
    """The same run again, apart from rounding; empty for most."""


_Run = TypeVar("_Run", bound=Run)


def per_partition(
  measure: Callable[[_Run], np.ndarray],
) -> Callable[[_Run], np.ndarray]:
  """Makes a measure of a run's seeds one of a pooled outcome's partitions."""

  @functools.wraps(measure)
  def of_parts(outcome):
    if outcome.parts:
      return np.array([np.mean(measure(part)) for part in outcome.parts])
    return measure(outcome)

  return of_parts


def measure_parts(
  measure: Callable[[Any], np.ndarray], outcome: Run
) -> list[np.ndarray]:
  """Measures the runs of an outcome: the numbers of the seeds of each partition.

  Those of its replicas come after those of a run.
  """
  return [
    np.concatenate(
      [np.atleast_1d(np.asarray(measure(run), float)) for run in (part, *part.replicas)]
    )
    for part in outcome.parts or (outcome,)
  ]


def describe_intervals(outcomes: Sequence[Run]) -> str:
  """Describes what the intervals of a table cover, in a sentence."""
  seeds = {len(outcome.frames.seeds) for outcome in outcomes}
  parts = {max(len(outcome.parts), 1) for outcome in outcomes}
  of_seeds, of_parts = (
    " or ".join(map(str, sorted(counts))) for counts in (seeds, parts)
  )
  plural = "" if seeds == {1} else "s"
  if parts != {1}:
    return (
      f"Intervals: 95 %, over {of_parts} partitions of the data (from the "
      "flags below, and from the next values of --partition_seed), each "
      f"with the mean of {of_seeds} seed{plural}."
    )
  if seeds == {1}:
    return "A run has one seed on one partition and therefore no interval."
  note = " A run of one seed has none." if 1 in seeds else ""
  return (
    f"Intervals: 95 %, over {of_seeds} seeds of one partition; the "
    f"spread over partitions is not in them.{note}"
  )


def rand_index(outcome: Run) -> np.ndarray:
  """The adjusted Rand index of the groups of each partition.

  It is the mean over the evaluations with several kinds, and NaN for a method
  without groups.
  """
  indices = []
  for part in outcome.parts or (outcome,):
    rows = (
      records.read_rows(part.folder / "groups.csv", None)
      if "groups" in part.summary
      else []
    )
    values = [row["ari"] for row in rows if not math.isnan(row["ari"])]
    indices.append(np.mean(values) if values else math.nan)
  return np.array(indices)
