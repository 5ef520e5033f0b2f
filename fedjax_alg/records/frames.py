"""The tables of a run, or of one on several partitions, as frames of pandas.

Numbers are asked of these frames: curves, costs until an evaluation, and what an
interval is taken over. Runs themselves do not need pandas.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import pathlib

import numpy as np
import pandas as pd

from fedjax_alg import metrics as metrics_lib
from fedjax_alg.hparams import MAX_SEED
from fedjax_alg.records import scores, tables

#: Columns that tell the runs of a frame apart.
KEYS = ["partition", "seed"]


@dataclasses.dataclass(frozen=True, eq=False)
class Frames:
  """The metrics and the rounds of one or more runs of the same options.

  Axes: ``N`` runs (a seed on a partition), ``E`` evaluations, ``R`` rounds, ``P``
  partitions. Runs have the order of the rows.

  Attributes:
    metrics: partition, seed, round, protocol, metric, value.
    rounds: partition, seed, round, and the columns of rounds.csv; "seconds" of
      timing.csv, NaN in rounds without an evaluation.
  """

  metrics: pd.DataFrame
  rounds: pd.DataFrame

  @functools.cached_property
  def protocols(self) -> list[str]:
    """The protocols in order of appearance."""
    return list(self.metrics["protocol"].unique())

  @functools.cached_property
  def names(self) -> list[str]:
    """The names of the metrics in order of appearance."""
    return list(self.metrics["metric"].unique())

  @functools.cached_property
  def evaluated(self) -> np.ndarray:
    """[E] int, the evaluated rounds."""
    return np.sort(self.metrics["round"].unique())

  @property
  def num_partitions(self) -> int:
    """P."""
    return len(self.rounds["partition"].unique())

  @functools.cached_property
  def seeds(self) -> list[int]:
    """The seeds of a partition in order of appearance."""
    return list(self.rounds["seed"].unique())

  @functools.cached_property
  def _num_runs(self) -> int:
    """N."""
    return len(self.rounds[KEYS].drop_duplicates())

  def rounds_of(self, protocol: str) -> np.ndarray:
    """[E'] int, the rounds in which a protocol was evaluated."""
    of = self.metrics["protocol"] == protocol
    return np.sort(self.metrics.loc[of, "round"].unique())

  @functools.cached_property
  def _of_metric(self) -> dict[tuple[str, str], pd.DataFrame]:
    """(protocol, metric) -> its rows."""
    return {
      (str(protocol), str(metric)): rows
      for (protocol, metric), rows in self.metrics.groupby(
        ["protocol", "metric"], sort=False
      )
    }

  def curves(
    self, protocol: str, metric: str, first: float = 0, last: float = np.inf
  ) -> np.ndarray:
    """The curves of a metric.

    Args:
      protocol: its protocol.
      metric: the metric.
      first: leave out rounds before this one.
      last: leave out rounds after this one.

    Returns:
      [N, E'] float64; [0, 0] for a metric without rows.
    """
    rows = self._of_metric.get((protocol, metric))
    if rows is None:
      return np.empty((0, 0))
    return _by_run(rows[rows["round"].between(first, last)], "value")

  def of_rounds(
    self, column: str, rounds: Iterable[int] | None = None, last: float = np.inf
  ) -> np.ndarray:
    """A column of the rounds.

    Args:
      column: its name, or "round".
      rounds: the rounds; None: all.
      last: leave out rounds after this one.

    Returns:
      [N, R] float64.
    """
    of = self.rounds["round"] <= last
    if rounds is not None:
      of &= self.rounds["round"].isin(list(rounds))
    return _by_run(self.rounds[of], column)

  def end(self, column: str) -> np.ndarray:
    """A column of the last round, for example of a running total, [N]."""
    return self.of_rounds(column, [self.rounds["round"].max()])[:, 0]

  def reached(self, protocol: str, metric: str, target: float) -> np.ndarray:
    """The first evaluated rounds that reach a target.

    Args:
      protocol: the protocol.
      metric: the metric; a target is reached from above where less is better
        (the loss), else from below.
      target: the target.

    Returns:
      [N] float64, inf for a run that never reaches it.
    """
    return tables.first_reaching(
      self.curves(protocol, metric), self.rounds_of(protocol), metric, target
    )

  def scores(self, name: str, protocol: str, metric: str) -> np.ndarray:
    """The numbers that stand for the curves, as an interval counts them.

    Args:
      name: which number, see ``scores.score``: final, best, last_10.
      protocol: the protocol.
      metric: the metric.

    Returns:
      [N] float64 of one partition, [P] of several.

    Raises:
      KeyError: a run has no evaluation of the metric by this protocol.
    """
    curves = self.curves(protocol, metric)
    if len(curves) < self._num_runs:
      raise KeyError(f"{protocol}: {metric}, measured in {len(curves)} of the runs")
    values = [scores.score(name, curve, self.evaluated, metric) for curve in curves]
    return self.per_partition(np.array(values, np.float64))

  def estimate(
    self, name: str, protocol: str, metric: str
  ) -> metrics_lib.Estimate | None:
    """The mean of ``scores`` with its interval; None where a run has none."""
    try:
      return metrics_lib.estimate_mean(self.scores(name, protocol, metric))
    except KeyError:
      return None

  def per_partition(self, values: np.ndarray) -> np.ndarray:
    """Numbers of runs, as an interval counts them.

    Args:
      values: [N, ...].

    Returns:
      Of one partition the same numbers, of several the means over the seeds of
      each, [P, ...].
    """
    count = self.num_partitions
    if count == 1 or not len(values):
      return values
    means: np.ndarray = values.reshape(count, -1, *values.shape[1:]).mean(1)
    return means

  def points(self, protocol: str, costs: Sequence[str]) -> pd.DataFrame:
    """The metrics of a protocol beside their costs, a row for each evaluation.

    Args:
      protocol: the protocol.
      costs: columns of the rounds.
    """
    of = self.metrics[self.metrics["protocol"] == protocol]
    names = list(of["metric"].unique())
    keys = [*KEYS, "round"]
    wide = of.pivot(index=keys, columns="metric", values="value")[names].reset_index()
    costs_of = self.rounds[[*keys, *(name for name in costs if name not in keys)]]
    return wide.merge(costs_of, on=keys).sort_values(["round", *KEYS])

  def of_protocol(self, protocol: str, new_name: str) -> "Frames":
    """The same with one protocol alone, which gets another name."""
    metrics = self.metrics[self.metrics["protocol"] == protocol]
    return dataclasses.replace(self, metrics=metrics.assign(protocol=new_name))

  def rename_protocols(self, names: dict[str, str]) -> "Frames":
    """The same with other names of protocols, old -> new."""
    metrics = self.metrics.assign(protocol=self.metrics["protocol"].replace(names))
    return dataclasses.replace(self, metrics=metrics)


def _by_run(frame: pd.DataFrame, column: str) -> np.ndarray:
  """A column as [N, rounds] float64; the runs in order of appearance."""
  if frame.empty:
    return np.empty((0, 0))
  # A pivot of pandas takes ten times as long, and figures ask thousands of times.
  partition, seed = (frame[name].to_numpy(np.int64) for name in KEYS)
  run, runs = pd.factorize(partition * (MAX_SEED + 1) + seed)
  rounds, place = np.unique(frame["round"].to_numpy(), return_inverse=True)
  cells = run * len(rounds) + place
  if len(np.unique(cells)) < len(cells):
    raise ValueError(f"{column}: a round of a run is there twice")
  values = np.full(len(runs) * len(rounds), np.nan)
  values[cells] = frame[column].to_numpy(np.float64)
  return values.reshape(len(runs), len(rounds))


def make_frames(
  metrics: Sequence[tables.Row],
  rounds: Sequence[tables.Row],
  timing: Sequence[tables.Row],
) -> Frames:
  """Makes the frames of a run on one partition, whose number is 0.

  Args:
    metrics: rows of metrics.csv.
    rounds: of rounds.csv.
    timing: of timing.csv.
  """
  order = [*KEYS, "round", "protocol", "metric", "value"]
  long = pd.DataFrame(list(metrics), columns=list(tables.METRICS))
  wide = pd.DataFrame(list(rounds), columns=None if rounds else ["round", "seed"])
  seconds = {row["round"]: row["seconds"] for row in timing}
  wide.insert(0, "partition", 0)
  return Frames(
    long.assign(partition=0)[order],
    wide.assign(seconds=wide["round"].map(seconds)),
  )


def read_frames(folder: pathlib.Path) -> Frames:
  """Reads the tables of a run from its folder.

  Raises:
    OptionError: a table is missing or damaged.
  """
  return make_frames(
    tables.read_rows(folder / "metrics.csv"),
    tables.read_rows(folder / "rounds.csv", None),
    tables.read_rows(folder / "timing.csv", tables.TIMING),
  )


def number_partitions(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
  """A table of several partitions in one frame, numbered from 0."""
  return pd.concat(
    [part.assign(partition=number) for number, part in enumerate(parts)],
    ignore_index=True,
  )


def concatenate(parts: Sequence[Frames]) -> Frames:
  """The frames of the same run on several partitions."""
  return Frames(
    number_partitions(part.metrics for part in parts),
    number_partitions(part.rounds for part in parts),
  )
