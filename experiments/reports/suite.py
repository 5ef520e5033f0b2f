"""Plays the runs of a figure; a finished run is found again and only read.

The folder of a run is ``<root>/runs/<algorithm>-<identity>``. The identity is a
hash of everything that decides the numbers of the run, so figures that need the
same run share it. An interrupted run continues from its last checkpoint.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
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
from ..cli.part import Part
from . import chosen as chosen_lib
from . import partitions

#: At most so many runs are compiled at the same time, each on a core.
_TOGETHER = 4


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


#: A run and its folder.
_Run = tuple[pathlib.Path, Cell]


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


class Incomplete(config_lib.RunError):
  """Not all runs of a figure are finished.

  Attributes:
    own: folders of the runs that this process was to play.
    left: folders of the runs, of all that the figure needs, that are not
      finished.
    every: folders of all runs that the figure needs.
    held: why runs of ``own`` are not finished.
  """

  def __init__(
      self, own: Iterable[pathlib.Path], left: Iterable[pathlib.Path],
      every: Iterable[pathlib.Path], held: Sequence[lock.HeldError]):
    self.own, self.left, self.every = set(own), set(left), set(every)
    self.held = list(held)
    super().__init__(str(lock.still_held(held)) if held else "a part")


def _compile_next(runs: Sequence[_Run]) -> dict[pathlib.Path, Programs]:
  """Compiles the first run together with the next few.

  They end before a run on other data: both might not fit into memory. Nothing
  is compiled while a run is played, whose rounds are timed.

  Returns:
    The folder of each run -> its programs.
  """
  chosen: dict[pathlib.Path, config_lib.Config] = {}
  most = min(sharding.available_cores(), _TOGETHER)
  for folder, cell in runs:
    if cell.config.data != runs[0][1].config.data or len(chosen) == most:
      break
    if not (chosen and resume.finished(folder, cell.config)):
      chosen[folder] = cell.config
  return dict(zip(chosen, compile_together(
      [config.prepare() for config in chosen.values()])))


class _Player:
  """Plays runs one after the other."""

  def __init__(self) -> None:
    self._left = TimeLeft()
    #: folders; to find out reads every file of a run
    self._finished: set[pathlib.Path] = set()
    self._programs: dict[pathlib.Path, Programs] = {}  # of runs to come
    self._compiling = 0.0  # seconds, of each of them

  def play(self, runs: Sequence[_Run]) -> None:
    """Plays the first run or continues it, unless it is finished.

    Args:
      runs: the run and those that come after it.

    Raises:
      HeldError: another process plays it.
    """
    folder, config = runs[0][0], runs[0][1].config
    programs = self._programs.pop(folder, None)
    if self._is_finished(folder, config):
      return
    with lock.held(folder):
      if programs is None:
        signals.check()
        signals.wait_at_most(config.output.grace_s)
        began = time.monotonic()
        self._programs = _compile_next(runs)
        self._compiling = (time.monotonic() - began) / len(self._programs)
        programs = self._programs.pop(folder)
      began = time.monotonic()
      resume = (folder / "config.json").is_file()
      execute.execute(config.with_output(
          out_dir=str(folder), resume=resume, overwrite=not resume), programs)
      if not resume:
        self._left.add(
            *_size(config), self._compiling, time.monotonic() - began)

  def _is_finished(
      self, folder: pathlib.Path, config: config_lib.Config) -> bool:
    if folder not in self._finished and resume.finished(folder, config):
      self._finished.add(folder)
    return folder in self._finished

  def left(self, runs: Iterable[_Run]) -> str:
    """How long the runs will take, if that is known."""
    seconds = self._left.estimate(
        _size(cell.config) for folder, cell in runs
        if not self._is_finished(folder, cell.config))
    if seconds is None:
      return ""
    return f", about {_duration(seconds)} left with compiling"


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
    cells: Sequence[Cell], root: pathlib.Path, part: Part | None = None
) -> list[Outcome]:
  """Plays the runs of all cells, or reads those that are finished.

  A run that another process plays is passed over.

  Args:
    cells: the cells.
    root: folder of the results.
    part: play this part of the runs alone.

  Raises:
    UsageError: the flags of a cell are wrong. Then no run has been started.
    Incomplete: only a part was asked for, or other processes still play.
  """
  folders = [run_folder(root, cell.config) for cell in cells]  # checks flags
  runs = list(dict(zip(folders, cells)).items())
  own = runs if part is None else part.of(runs)
  player, elsewhere = _Player(), {}
  for number, (folder, cell) in enumerate(own, 1):
    coming = own[number - 1:]
    print(f"[{number}/{len(own)}] {cell.panel_title}: {cell.label}"
          f"{player.left(coming)}", file=sys.stderr, flush=True)
    try:
      player.play(coming)
    except lock.HeldError as error:
      print(error, file=sys.stderr)
      elsewhere[folder] = error
  held = [error for folder, error in elsewhere.items()  # it may have ended
          if not resume.finished(folder, dict(own)[folder].config)]
  if part is not None or held:
    raise Incomplete(
        dict(own), [folder for folder, cell in runs
                    if not resume.finished(folder, cell.config)],
        folders, held)
  return [_read(cell, folder) for folder, cell in zip(folders, cells)]


def _each_partition(cell: Cell, number: int) -> list[Cell]:
  """The cell on each of so many partitions."""
  return [dataclasses.replace(cell, flags=(*cell.flags, *more))
          for more in partitions.flags(
              cell.config.values["partition_seed"], number)]


def finished(
    cells: Sequence[Cell], root: pathlib.Path, number: int) -> list[Cell]:
  """The cells whose runs, on all of so many partitions, are finished."""
  return [cell for cell in cells if all(
      resume.finished(run_folder(root, one.config), one.config)
      for one in _each_partition(cell, number))]


def run_on_partitions(
    cells: Sequence[Cell], root: pathlib.Path, number: int,
    part: Part | None = None) -> list[Outcome]:
  """As ``run_cells``, with every cell on several partitions of the data.

  Args:
    cells: the cells.
    root: folder of the results.
    number: how many partitions; the first one is that of the cell's flags.
    part: play this part of the runs alone.

  Returns:
    An outcome for each cell, pooled if there are several partitions.
  """
  if number == 1:
    return run_cells(cells, root, part)
  every = [one for cell in cells for one in _each_partition(cell, number)]
  found = run_cells(every, root, part)
  return [_pool(found[i * number:(i + 1) * number])
          for i in range(len(cells))]


def _pool(parts: Sequence[Outcome]) -> Outcome:
  """The outcome of a run on several partitions."""
  first = parts[0]
  return first._replace(
      rows=partitions.joined([part.rows for part in parts]),
      summary=partitions.pooled([part.summary for part in parts]),
      parts=tuple(parts))


def by_panel(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
  """The outcomes of each panel, in order of appearance."""
  panels: dict[str, list[Outcome]] = {}
  for outcome in outcomes:
    panels.setdefault(outcome.cell.panel, []).append(outcome)
  return list(panels.values())


def heading(cell: Cell) -> str:
  """The title of a panel with its letter, as above its curves."""
  return f"({cell.panel}) {cell.panel_title}"


def rows_by_panel(
    outcomes: Iterable[Outcome],
) -> Mapping[str, Mapping[str, list[records.Row]]]:
  """heading of a panel -> label -> rows, as ``plots.panels`` takes them."""
  panels: dict[str, dict[str, list[records.Row]]] = {}
  for outcome in outcomes:
    panels.setdefault(heading(outcome.cell), {})[
        outcome.cell.label] = outcome.rows
  return panels
