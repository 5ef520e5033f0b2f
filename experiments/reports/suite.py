"""Plays the runs of a figure; a finished run is found again and only read.

The folder of a run is ``<root>/runs/<algorithm>-<identity>``. The identity is a
hash of everything that decides the numbers of the run, so figures that need the
same run share it. An interrupted run continues from its last checkpoint.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import json
import pathlib
import sys
import time
from typing import Any, NamedTuple

from fedjax_alg.engine import sharding
from fedjax_alg.records import tables as records
from fedjax_alg.runs.programs import compile_together, Programs
from fedjax_alg.runs.progress import TimeLeft
from ..cli import config as config_lib
from ..cli import execute

#: At most so many runs are compiled at the same time, each on a core.
_TOGETHER = 4


@dataclasses.dataclass(frozen=True)
class Cell:
  """One run of a figure."""

  panel: str  #: letter of the panel in the paper: "a", "b", ...
  panel_title: str
  label: str  #: the method's name in the figure
  flags: tuple[str, ...]  #: the flags of the run, which tables show

  @functools.cached_property
  def config(self) -> config_lib.Config:
    """The run that the flags ask for, parsed and checked once.

    Raises:
      UsageError: the flags are wrong.
    """
    return config_lib.parse(self.flags)


class Outcome(NamedTuple):
  """A finished cell."""

  cell: Cell
  folder: pathlib.Path
  rows: list[records.Row]  #: rows of metrics.csv with ``seconds`` of timing.csv
  summary: dict[str, Any]

  def rounds(self) -> list[records.Row]:
    """The rows of rounds.csv."""
    return records.read_rows(self.folder / "rounds.csv", None)


def run_folder(root: pathlib.Path, config: config_lib.Config) -> pathlib.Path:
  """The folder of a run."""
  return root / "runs" / f"{config.algorithm}-{config.identity()[:12]}"


def _is_finished(cell: Cell, root: pathlib.Path) -> bool:
  return execute.finished(run_folder(root, cell.config), cell.config)


def _compile_next(
    cells: Sequence[Cell], root: pathlib.Path) -> dict[pathlib.Path, Programs]:
  """Compiles the run of the first cell together with the next few.

  They end before a run on other data: both might not fit into memory. Nothing
  is compiled while a run is played, whose rounds are timed.

  Returns:
    The folder of each run -> its programs.
  """
  chosen: dict[pathlib.Path, config_lib.Config] = {}
  most = min(sharding.available_cores(), _TOGETHER)
  for cell in cells:
    if cell.config.data != cells[0].config.data or len(chosen) == most:
      break
    if not _is_finished(cell, root):
      chosen[run_folder(root, cell.config)] = cell.config
  return dict(zip(chosen, compile_together(
      [execute.prepared_run(config) for config in chosen.values()])))


def read_cell(cell: Cell, root: pathlib.Path) -> Outcome:
  """Reads the finished run of a cell."""
  folder = run_folder(root, cell.config)
  summary = json.loads((folder / "summary.json").read_text("utf-8"))
  rows = records.read_rows(folder / "metrics.csv")
  timing = records.read_rows(folder / "timing.csv", records.TIMING)
  seconds = {row["round"]: row["seconds"] for row in timing}
  for row in rows:
    row["seconds"] = seconds[row["round"]]
  return Outcome(cell, folder, rows, summary)


def run_cells(cells: Sequence[Cell], root: pathlib.Path) -> list[Outcome]:
  """Plays the runs of all cells, or reads those that are finished.

  Raises:
    UsageError: the flags of a cell are wrong. Then no run has been started.
  """
  _ = [cell.config for cell in cells]  # refuses wrong flags
  runs = _Runs(root)
  return [runs.outcome(cells[i:], f"{i + 1}/{len(cells)}")
          for i in range(len(cells))]


class _Runs:
  """Plays the runs of cells one after the other."""

  def __init__(self, root: pathlib.Path):
    self._root, self._left = root, TimeLeft()
    self._programs: dict[pathlib.Path, Programs] = {}  # compiled and not played
    self._compiling = 0.0  # seconds, of each of them

  def outcome(self, cells: Sequence[Cell], number: str) -> Outcome:
    """Plays the first run or continues it; a finished one is only read.

    Args:
      cells: the cell and those that come after it.
      number: the place of the cell among all.
    """
    cell, config = cells[0], cells[0].config
    folder = run_folder(self._root, config)
    print(f"[{number}] {cell.panel_title}: {cell.label}{self._said(cells)}",
          file=sys.stderr, flush=True)
    if not _is_finished(cell, self._root):
      if folder not in self._programs:
        began = time.monotonic()
        self._programs = _compile_next(cells, self._root)
        self._compiling = (time.monotonic() - began) / len(self._programs)
      began = time.monotonic()
      resume = (folder / "config.json").is_file()
      execute.execute(config.with_output(
          out_dir=str(folder), resume=resume, overwrite=not resume),
                      self._programs.pop(folder))
      if not resume:
        self._left.add(
            *_size(config), self._compiling, time.monotonic() - began)
    return read_cell(cell, self._root)

  def _said(self, cells: Sequence[Cell]) -> str:
    """How long the runs of the cells will take, if that is known."""
    runs = {run_folder(self._root, cell.config): cell for cell in cells
            if not _is_finished(cell, self._root)}
    seconds = self._left.estimate(
        _size(cell.config) for cell in runs.values())
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


def by_panel(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
  """The outcomes of each panel, in order of appearance."""
  panels: dict[str, list[Outcome]] = {}
  for outcome in outcomes:
    panels.setdefault(outcome.cell.panel, []).append(outcome)
  return list(panels.values())


def rows_by_panel(
    outcomes: Iterable[Outcome],
) -> Mapping[str, Mapping[str, list[records.Row]]]:
  """panel title -> label -> rows, as ``plots.panels`` takes them."""
  panels: dict[str, dict[str, list[records.Row]]] = {}
  for outcome in outcomes:
    title = outcome.cell.panel_title
    panels.setdefault(title, {})[outcome.cell.label] = outcome.rows
  return panels
