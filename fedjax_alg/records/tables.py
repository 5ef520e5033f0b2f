"""The tables of a run: metrics.csv, rounds.csv, timing.csv, groups.csv.

Rows are appended after every stretch of rounds, before the checkpoint, so
what lies after the last checkpoint is dropped on resume and written again.
Wall times stand in timing.csv alone: the others are the same bits in every run
of the same flags, simulated times among them. groups.csv is of methods with
groups of clients.
"""

from collections.abc import Mapping, Sequence
import csv
import os
import pathlib
from typing import Any

import jax
import numpy as np

from fedjax_alg.errors import OptionError
from fedjax_alg import metrics
from fedjax_alg.base import RoundAux, RoundTimes
from fedjax_alg.engine import evaluate
from fedjax_alg.metrics import groups

Row = dict[str, Any]

#: What a participant's mean round takes on the simulated machines; together
#: the round's duration.
SIMULATED = ("computation_s", "communication_s", "idle_s")
#: Cost of a row's own round, all but ``central_flops`` per participating
#: client. NaN from ``client_flops`` on where a method does not count its work.
ROUND_COST = ("floats_down", "floats_up", "exchanges", "example_gradients",
              "central_flops", "client_flops", *SIMULATED)
#: Running totals up to the row's round: over the whole cohort, and the
#: duration of the rounds on the simulated machines.
TOTALS = ("total_floats", "total_example_gradients", "total_central_flops",
          "simulated_s")
COLUMNS = ("round", "seed", "protocol", *metrics.METRICS, *ROUND_COST, *TOTALS)
TIMING = ("round", "seconds")

#: Arrays of ``RoundAux.server`` of more entries are not written, nor the
#: sizes of more groups.
MOST_ENTRIES = 64


def write_rows(
    path: pathlib.Path, rows: Sequence[Row], columns: Sequence[str] = COLUMNS
) -> None:
  """A table, whole or not at all."""
  partial = path.with_name(path.name + ".partial")
  with open(partial, "w", newline="", encoding="utf-8") as file:
    writer = csv.DictWriter(file, columns)
    writer.writeheader()
    writer.writerows(rows)
  os.replace(partial, path)


def append_rows(
    path: pathlib.Path, rows: Sequence[Row], columns: Sequence[str] = COLUMNS
) -> None:
  """Adds rows to a table."""
  with open(path, "a", newline="", encoding="utf-8") as file:
    csv.DictWriter(file, columns).writerows(rows)


def _value(text: str) -> Any:
  """The number a cell was written from, else its text."""
  for kind in (int, float):
    try:
      return kind(text)
    except ValueError:
      pass
  return text


def read_rows(
    path: pathlib.Path, columns: Sequence[str] | None = COLUMNS) -> list[Row]:
  """A table with its numbers as numbers.

  A last line that a killed run left incomplete is dropped: it belongs to a
  round after the last checkpoint.

  Args:
    path: of the table.
    columns: those it must have; None takes what is there.

  Raises:
    OptionError: it is not there or has other columns.
  """
  try:
    with open(path, newline="", encoding="utf-8") as file:
      reader = csv.DictReader(file)
      if columns is not None and (
          tuple(reader.fieldnames or ()) != tuple(columns)):
        raise OptionError(
            f"{path}: damaged or of another version, its columns are not "
            "those of a run; start anew with `overwrite` or in another folder")
      raw = [row for row in reader if None not in row.values() and (
          "" not in row.values())]
  except FileNotFoundError:
    raise OptionError(f"{path}: is missing; start anew with `overwrite` or in "
                     "another folder") from None
  return [{name: _value(text) for name, text in row.items()} for row in raw]


def server_names(server: Mapping[str, Any]) -> tuple[str, ...]:
  """Columns of rounds.csv for ``RoundAux.server``, sorted by name.

  Args:
    server: shapes or arrays of one round, with two leading axes [N, R].

  Returns:
    A scalar's name; name_0, name_1, ... of a small array.
  """
  names = []
  for name, leaf in sorted(server.items()):
    size = int(np.prod(leaf.shape[2:]))
    if len(leaf.shape) == 2:
      names.append(name)
    elif size <= MOST_ENTRIES:
      names += [f"{name}_{i}" for i in range(size)]
  return tuple(names)


def round_rows(
    aux: RoundAux, start: int, count: int, seeds: Sequence[int], cohort: int
) -> list[Row]:
  """Rows of rounds.csv: every round and seed of one stretch.

  Args:
    aux: of the stretch, leaves [N seeds, at least count, ...].
    start: rounds played before it.
    count: its rounds.
    seeds: N of them.
    cohort: S, participating clients of a round.
  """
  cost, server, times = jax.device_get((aux.cost, aux.server, aux.times))
  if times is None:
    nothing: Any = np.full(cost.down.shape, np.nan)
    times = RoundTimes(nothing, nothing, nothing, nothing)
  columns: dict[str, Any] = {
      "floats_down": cost.down, "floats_up": cost.up,
      "exchanges": cost.exchanges,
      "example_gradients": np.asarray(cost.example_gradients) / cohort,
      "central_flops": cost.central_flops, "client_flops": times.flops,
      "computation_s": times.computation,
      "communication_s": times.communication, "idle_s": times.idle}
  wanted = set(server_names(server))
  for name, leaf in sorted(server.items()):
    flat = np.asarray(leaf).reshape(*leaf.shape[:2], -1)
    for i in range(flat.shape[2]):
      key = name if leaf.ndim == 2 else f"{name}_{i}"
      if key in wanted:
        columns[key] = flat[:, :, i]

  def number(value):
    # Not float() of all: whole numbers are written as such.
    value = value.item()
    return int(value) if isinstance(value, bool) else value

  return [{"round": start + r + 1, "seed": seed,
           **{name: number(values[i, r]) for name, values in columns.items()}}
          for r in range(count) for i, seed in enumerate(seeds)]


def _best_and_mean(
    name: str, values: dict[str, np.ndarray]
) -> dict[str, dict[str, np.ndarray]]:
  """Metrics [N, K] of K models: those of the most accurate, and the mean."""
  best = values["accuracy"].argmax(1)
  pick = np.arange(len(best))
  table = {name: {k: v[pick, best] for k, v in values.items()}}
  if values["accuracy"].shape[1] > 1:
    table[f"{name}_mean"] = {k: v.mean(1) for k, v in values.items()}
  return table


def group_columns(num_groups: int) -> tuple[str, ...]:
  """Columns of groups.csv for K groups."""
  sizes = tuple(f"size_{k}" for k in range(num_groups)
                if num_groups <= MOST_ENTRIES)
  return ("round", "seed", "assigned", "used", *sizes, "purity", "ari")


def group_rows(
    membership: np.ndarray, label_histogram: np.ndarray, number: int,
    seeds: Sequence[int], num_groups: int) -> list[Row]:
  """Rows of groups.csv after round ``number``.

  Args:
    membership: [N seeds, C], -1 for a client in no group.
    label_histogram: [C, L], what clients hold now.
    number: rounds played.
    seeds: N of them.
    num_groups: K.
  """
  kinds = groups.kinds(label_histogram)
  rows = []
  for seed, own in zip(seeds, membership, strict=True):
    sizes = groups.sizes(own, num_groups)
    row = {"round": number, "seed": seed, "assigned": int(sizes.sum()),
           "used": int((sizes > 0).sum()),
           **{f"size_{k}": int(size) for k, size in enumerate(sizes)},
           **groups.agreement(own, kinds)._asdict()}
    rows.append({name: row[name] for name in group_columns(num_groups)})
  return rows


def metric_values(
    counts: dict[str, metrics.Counts]) -> dict[str, dict[str, np.ndarray]]:
  """protocol -> metric -> [N] of one evaluation.

  Of K models a protocol of ``evaluate.PER_MODEL`` shows the most accurate
  one, as in the papers' figures (optimistic: for ``global`` the choice reads
  test data), and ``<protocol>_mean`` the mean over the K.

  Args:
    counts: by protocol, leaves [N, ...].
  """
  table: dict[str, dict[str, np.ndarray]] = {}
  for protocol, counted in counts.items():
    values = metrics.summarise(counted)
    table |= (_best_and_mean(protocol, values)
              if protocol in evaluate.PER_MODEL else {protocol: values})
  return table


class Records:
  """The tables of one run, in memory and, where it has a folder, on disk."""

  def __init__(
      self, folder: pathlib.Path | None, seeds: Sequence[int], cohort: int,
      server: Sequence[str], num_groups: int | None = None):
    """Empty tables; nothing is written yet.

    Args:
      folder: of the run; None: the tables stay in memory.
      seeds: of the run.
      cohort: S.
      server: ``server_names`` of the run.
      num_groups: K; None: clients have no groups, there is no groups.csv.
    """
    self.folder, self.seeds, self.cohort = folder, list(seeds), cohort
    self.columns = {
        "metrics": COLUMNS, "rounds": ("round", "seed", *ROUND_COST, *server),
        "timing": TIMING}
    self.num_groups = num_groups
    if num_groups is not None:
      self.columns["groups"] = group_columns(num_groups)
    self.tables: dict[str, list[Row]] = {name: [] for name in self.columns}
    self._totals = {seed: dict.fromkeys(TOTALS, 0) for seed in self.seeds}

  @property
  def rows(self) -> list[Row]:
    """Rows of metrics.csv."""
    return self.tables["metrics"]

  def path(self, name: str) -> pathlib.Path:
    """The file of a table."""
    assert self.folder is not None
    return self.folder / f"{name}.csv"

  def read(self, done: int) -> None:
    """Takes up what a run left, up to round ``done``.

    Raises:
      OptionError: a table is missing, damaged or lacks rounds.
    """
    for name, columns in self.columns.items():
      self.tables[name] = [
          row for row in read_rows(self.path(name), columns)
          if row["round"] <= done]
    for rows in self._grouped(self.tables["rounds"]):
      self._add_totals(rows)
    if len(self.tables["rounds"]) != done * len(self.seeds):
      raise OptionError(f"{self.path('rounds')}: damaged, rows of the first "
                       f"{done} rounds are missing; start anew")

  def write(self) -> None:
    """All tables, whole."""
    for name, columns in self.columns.items():
      write_rows(self.path(name), self.tables[name], columns)

  def _append(self, name: str, rows: list[Row]) -> None:
    self.tables[name] += rows
    if self.folder is not None:
      append_rows(self.path(name), rows, self.columns[name])

  def _grouped(self, rows: list[Row]) -> list[list[Row]]:
    width = len(self.seeds)
    return [rows[i:i + width] for i in range(0, len(rows), width)]

  def _add_totals(self, rows: list[Row]) -> None:
    """Adds one round, in the same order however often a run is resumed."""
    for row in rows:
      total = self._totals[row["seed"]]
      total["total_floats"] += self.cohort * (
          row["floats_down"] + row["floats_up"])
      total["total_example_gradients"] += round(
          self.cohort * row["example_gradients"])
      total["total_central_flops"] += row["central_flops"]
      total["simulated_s"] += sum(row[name] for name in SIMULATED)

  def add_rounds(
      self, aux: RoundAux, start: int, count: int, seconds: float) -> None:
    """Records a stretch of ``count`` rounds after round ``start``.

    Args:
      aux: see ``round_rows``.
      start: rounds played before it.
      count: its rounds.
      seconds: what it took, all seeds together.
    """
    rows = round_rows(aux, start, count, self.seeds, self.cohort)
    for group in self._grouped(rows):
      self._add_totals(group)
    self._append("rounds", rows)
    timing = self.tables["timing"]
    before = timing[-1]["seconds"] if timing else 0.0
    self._append("timing", [{"round": start + count, "seconds":
                             before + seconds / len(self.seeds)}])

  def add_metrics(self, table: dict[str, dict[str, np.ndarray]]) -> None:
    """Records an evaluation of the last round, see ``metric_values``."""
    rows = []
    for i, last in enumerate(self.tables["rounds"][-len(self.seeds):]):
      for protocol, values in table.items():
        rows.append({
            "round": last["round"], "seed": last["seed"], "protocol": protocol,
            **{k: float(v[i]) for k, v in values.items()},
            **{k: last[k] for k in ROUND_COST}, **self._totals[last["seed"]]})
    self._append("metrics", rows)

  def add_groups(
      self, membership: np.ndarray, label_histogram: np.ndarray) -> None:
    """Records the groups after the last round, see ``group_rows``."""
    assert self.num_groups is not None
    self._append("groups", group_rows(
        membership, label_histogram, self.tables["rounds"][-1]["round"],
        self.seeds, self.num_groups))

  def seconds_per_round(self) -> float:
    """Median over the stretches of the seconds a round and seed takes."""
    rows = [{"round": 0, "seconds": 0.0}, *self.tables["timing"]]
    times = [(b["seconds"] - a["seconds"]) / (b["round"] - a["round"])
             for a, b in zip(rows, rows[1:])]
    return float(np.median(times))
