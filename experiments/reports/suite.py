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
from typing import Any, NamedTuple

from fedjax_alg.records import tables as records
from ..cli import config as config_lib
from ..cli import execute, lock
from ..cli.part import Part


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


def _play(folder: pathlib.Path, config: config_lib.Config) -> None:
  """Plays a run or continues it, unless it is finished."""
  if execute.finished(folder, config):
    return
  with lock.held(folder):
    resume = (folder / "config.json").is_file()
    execute.execute(config.with_output(
        out_dir=str(folder), resume=resume, overwrite=not resume))


def _read(cell: Cell, folder: pathlib.Path) -> Outcome:
  """Reads the finished run of a cell."""
  summary = json.loads((folder / "summary.json").read_text("utf-8"))
  rows = records.read_rows(folder / "metrics.csv")
  timing = records.read_rows(folder / "timing.csv", records.TIMING)
  seconds = {row["round"]: row["seconds"] for row in timing}
  for row in rows:
    row["seconds"] = seconds[row["round"]]
  return Outcome(cell, folder, rows, summary)


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
  elsewhere = {}
  for number, (folder, cell) in enumerate(own, 1):
    print(f"[{number}/{len(own)}] {cell.panel_title}: {cell.label}",
          file=sys.stderr, flush=True)
    try:
      _play(folder, cell.config)
    except lock.HeldError as error:
      print(error, file=sys.stderr)
      elsewhere[folder] = error
  held = [error for folder, error in elsewhere.items()  # it may have ended
          if not execute.finished(folder, dict(own)[folder].config)]
  if part is not None or held:
    raise Incomplete(
        dict(own), [folder for folder, cell in runs
                    if not execute.finished(folder, cell.config)],
        folders, held)
  return [_read(cell, folder) for folder, cell in zip(folders, cells)]


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
