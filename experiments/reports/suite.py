"""Plays the runs of a figure; a finished run is found again and only read.

The folder of a run is ``<root>/runs/<algorithm>-<identity>``. The identity is a
hash of everything that decides the numbers of the run, so figures that need the
same run share it. An interrupted run continues from its last checkpoint.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import itertools
import pathlib
import sys
import time
from typing import Any, NamedTuple

from fedjax_alg.engine import sharding
from fedjax_alg.records import summary as results
from fedjax_alg.records import tables as records
from fedjax_alg.runs.programs import compile_together, Programs
from fedjax_alg.runs.progress import TimeLeft
from ..cli import config as config_lib
from ..cli import execute, lock, resume, signals
from ..cli import part as part_lib
from . import chosen as chosen_lib
from . import partitions

#: At most so many runs are compiled at the same time, each on a core.
_TOGETHER = 4

#: How the settings of a line were found: by validation, with equal budgets;
#: those that the paper states for its own methods; the paper's one learning
#: rate, of a method that is not its own.
TUNED, STATED, ONE_RATE = "tuned", "stated", "one rate"


def named(method: str, protocol: str) -> str:
  """The name of a method with its protocol, if its settings are not tuned."""
  return method if protocol == TUNED else f"{method} ({protocol})"


#: How many partitions, from that of a run on; or the seeds of partitions.
Partitions = int | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Cell:
  """One run of a figure."""

  panel: str  #: letter of the panel in the paper: "a", "b", ...
  panel_title: str
  label: str  #: the method's name in the figure
  flags: tuple[str, ...]  #: the flags of the run, which tables show
  #: how flags that are in no flag file were chosen; "": as stated
  chosen: str = ""
  #: flag files of which the run has flags without naming them
  sources: tuple[str, ...] = ()
  protocol: str = TUNED  #: or ``STATED`` or ``ONE_RATE``

  @property
  def name(self) -> str:
    """The label with the protocol, unique within the panel."""
    return named(self.label, self.protocol)

  @property
  def method(self) -> str:
    """The name of the method in the claims, without a reading in brackets."""
    return self.label.split(" (")[0]

  @property
  def heading(self) -> str:
    """The title of the panel with its letter, as above its curves."""
    return f"({self.panel}) {self.panel_title}"

  @functools.cached_property
  def config(self) -> config_lib.Config:
    """The run that the flags ask for, parsed and checked once.

    Raises:
      UsageError: the flags are wrong.
    """
    return config_lib.parse(self.flags)

  @functools.cached_property
  def choices(self) -> list[chosen_lib.Choice]:
    """How the settings of the run were chosen."""
    return chosen_lib.of_flags(self.flags, self.chosen, self.sources)

  def on(self, parts: Partitions) -> list["Cell"]:
    """The same run on several partitions of the data."""
    first = self.config.values["partition_seed"]
    return [self if seed == first else dataclasses.replace(
        self, flags=(*self.flags, f"--partition_seed={seed}"))
            for seed in (range(first, first + parts)
                         if isinstance(parts, int) else parts)]


class Outcome(NamedTuple):
  """A finished cell.

  With K global models a protocol such as ``global`` is the mean of the K, which
  can be compared with a single model. ``global_best`` is the best of the K on
  the data of the protocol, ``global_chosen`` the best on validation data.
  """

  cell: Cell
  folder: pathlib.Path
  rows: list[records.Row]  #: rows of metrics.csv with ``seconds`` of timing.csv
  summary: dict[str, Any]
  #: the runs on several partitions that are pooled here; (): a single run
  parts: tuple["Outcome", ...] = ()

  @property
  def settings(self) -> str:
    """How the settings were chosen, in words."""
    return chosen_lib.said(self.cell.choices)

  def rounds(self) -> list[records.Row]:
    """The rows of rounds.csv."""
    if self.parts:
      return partitions.joined([part.rounds() for part in self.parts])
    return records.read_rows(self.folder / "rounds.csv", None)


def run_folder(root: pathlib.Path, config: config_lib.Config) -> pathlib.Path:
  """The folder of a run."""
  return root / "runs" / f"{config.algorithm}-{config.identity()[:12]}"


def _runs(cells: Iterable[Cell], root: pathlib.Path) -> dict[
    pathlib.Path, Cell]:
  """The folder of each run -> the run; several cells may have the same.

  Raises:
    UsageError: the flags of a cell are wrong.
  """
  return {run_folder(root, cell.config): cell for cell in cells}


def _compile_next(
    runs: Sequence[tuple[pathlib.Path, Cell]]) -> dict[pathlib.Path, Programs]:
  """Compiles the first run together with the next few.

  They end before a run on other data: both might not fit into memory. Nothing
  is compiled while a run is played, whose rounds are timed.

  Returns:
    The folder of each run -> its programs.
  """
  data = runs[0][1].config.data
  same = dict(itertools.takewhile(
      lambda run: run[1].config.data == data,
      runs[:min(sharding.available_cores(), _TOGETHER)]))
  return dict(zip(same, compile_together(
      [cell.config.prepare() for cell in same.values()])))


def _play(runs: Mapping[pathlib.Path, Cell]) -> None:
  """Plays the runs that are not finished one after the other.

  One that another process plays is passed over.

  Raises:
    UsageError: see ``_runs``. Then no run has been started.
    RunError: such a run is not finished in the end.
  """
  waiting = [(folder, cell) for folder, cell in runs.items()
             if not resume.finished(folder, cell.config)]
  left, elsewhere = TimeLeft(), dict[pathlib.Path, lock.HeldError]()
  programs: dict[pathlib.Path, Programs] = {}
  compiling = 0.0  # seconds, of each of the programs
  for number, (folder, cell) in enumerate(waiting):
    config, coming = cell.config, waiting[number:]
    seconds = left.estimate(_size(own.config) for _, own in coming)
    print(f"[{number + 1}/{len(waiting)}] {cell.panel_title}: {cell.name}"
          + ("" if seconds is None else
             f", about {_duration(seconds)} left with compiling"),
          file=sys.stderr, flush=True)
    try:
      with lock.held(folder):
        if resume.finished(folder, config):  # by now, by another
          continue
        if folder not in programs:
          signals.check()
          signals.wait_at_most(config.output.grace_s)
          began = time.monotonic()
          programs = _compile_next(coming)
          compiling = (time.monotonic() - began) / len(programs)
        began, resuming = time.monotonic(), (folder / "config.json").is_file()
        execute.execute(config.with_output(
            out_dir=str(folder), resume=resuming, overwrite=not resuming),
                        programs.pop(folder))
        if not resuming:
          left.add(*_size(config), compiling, time.monotonic() - began)
    except lock.HeldError as error:
      print(error, file=sys.stderr)
      elsewhere[folder] = error
  held = [error for folder, error in elsewhere.items()  # it may have ended
          if not resume.finished(folder, runs[folder].config)]
  if held:
    raise lock.StillHeld(held)


def _size(config: config_lib.Config) -> tuple[str, int]:
  """The algorithm of a run, and its rounds, of all seeds together."""
  return config.algorithm, (config.run.rounds or 1) * len(config.run.seeds)


def _duration(seconds: float) -> str:
  minutes = round(seconds / 60)
  return f"{seconds:.0f} s" if minutes < 3 else (
      f"{minutes} min" if minutes < 180 else f"{minutes / 60:.1f} h")


def _read(cell: Cell, folder: pathlib.Path) -> Outcome:
  """Reads the finished run of a cell."""
  summary = execute.read_summary(folder)
  rows = records.read_rows(folder / "metrics.csv")
  timing = records.read_rows(folder / "timing.csv", records.TIMING)
  seconds = {row["round"]: row["seconds"] for row in timing}
  for row in rows:
    row["seconds"] = seconds[row["round"]]
  return fair(Outcome(cell, folder, rows, summary))


def fair(outcome: Outcome) -> Outcome:
  """Renames the protocols of K models, see ``Outcome``."""
  several = {name.removesuffix("_mean") for name in results.protocols(
      outcome.rows) if name.endswith("_mean")}
  if not several:
    return outcome
  named = {name: f"{name}_best" for name in several} | {
      f"{name}_mean": name for name in several}
  rows = [row | {"protocol": named.get(row["protocol"], row["protocol"])}
          for row in outcome.rows]
  # The protocol that is shown comes first.
  rows.sort(key=lambda row: row["protocol"].endswith("_best"))
  targets = tuple(float(name) for name in outcome.summary["rounds_to"])
  return outcome._replace(rows=rows, summary=outcome.summary | (
      results.summarise(rows, targets)))


def run_cells(
    cells: Sequence[Cell], root: pathlib.Path, parts: Partitions = 1
) -> list[Outcome]:
  """Plays the runs of all cells, or reads those that are finished.

  Args:
    cells: the cells.
    root: folder of the results.
    parts: the partitions of the data.

  Returns:
    An outcome for each cell, pooled if there are several partitions.

  Raises:
    UsageError: the flags of a cell are wrong. Then no run has been started.
    RunError: another process plays a run of them.
  """
  every = [cell.on(parts) for cell in cells]
  _play(_runs(itertools.chain(*every), root))
  return [_pool([_read(cell, run_folder(root, cell.config)) for cell in own])
          for own in every]


def play_part(
    cells: Iterable[Cell], root: pathlib.Path, part: part_lib.Part) -> None:
  """Plays a part of the runs of all cells, and says what is left.

  Raises:
    UsageError, RunError: see ``run_cells``.
  """
  runs = _runs(cells, root)
  own = dict(part.of(list(runs.items())))
  _play(own)
  left = sum(not resume.finished(folder, cell.config)
             for folder, cell in runs.items())
  print(part_lib.played(part, len(own), left, len(runs)))


def finished(cells: Iterable[Cell], root: pathlib.Path,
             parts: Partitions = 1) -> list[Cell]:
  """The cells whose runs are finished on all partitions."""
  return [cell for cell in cells if all(
      resume.finished(folder, one.config)
      for folder, one in _runs(cell.on(parts), root).items())]


def _pool(parts: Sequence[Outcome]) -> Outcome:
  """The outcome of a run on several partitions."""
  first = parts[0]
  return first if len(parts) == 1 else first._replace(
      rows=partitions.joined([part.rows for part in parts]),
      summary=partitions.pooled([part.summary for part in parts]),
      parts=tuple(parts))


def by_panel(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
  """The outcomes of each panel, in order of appearance."""
  panels: dict[str, list[Outcome]] = {}
  for outcome in outcomes:
    panels.setdefault(outcome.cell.panel, []).append(outcome)
  return list(panels.values())


def rows_by_panel(
    outcomes: Iterable[Outcome],
) -> Mapping[str, Mapping[str, list[records.Row]]]:
  """heading of a panel -> label -> rows, as ``plots.panels`` takes them."""
  panels: dict[str, dict[str, list[records.Row]]] = {}
  for outcome in outcomes:
    panels.setdefault(outcome.cell.heading, {})[
        outcome.cell.label] = outcome.rows
  return panels
