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
from ..cli import execute


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


def run_cell(cell: Cell, root: pathlib.Path) -> Outcome:
  """Plays the run of a cell or continues it; a finished run is only read."""
  folder = run_folder(root, cell.config)
  if not execute.finished(folder, cell.config):
    resume = (folder / "config.json").is_file()
    execute.execute(cell.config.with_output(
        out_dir=str(folder), resume=resume, overwrite=not resume))
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
  outcomes = []
  for number, cell in enumerate(cells, 1):
    print(f"[{number}/{len(cells)}] {cell.panel_title}: {cell.label}",
          file=sys.stderr, flush=True)
    outcomes.append(run_cell(cell, root))
  return outcomes


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
