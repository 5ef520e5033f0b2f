"""Many runs for one figure: each is made once and found again.

A run lives in ``<root>/runs/<algorithm>-<identity>``, its identity being a hash
of everything that decides its numbers. Figures that need the same run share
it; an interrupted run goes on from its last checkpoint.
"""

from collections.abc import Iterable, Mapping, Sequence
import json
import pathlib
import sys
from typing import Any, NamedTuple

from experiments.cli import config as config_lib
from experiments.cli import execute
from fedjax_alg.records import tables as records


class Cell(NamedTuple):
  """One run of a figure."""

  panel: str  #: "a", "b", ... as the paper letters its panels
  panel_title: str
  label: str  #: the method's name in the figure
  flags: tuple[str, ...]


class Outcome(NamedTuple):
  """A finished cell."""

  cell: Cell
  folder: pathlib.Path
  rows: list[records.Row]  #: metrics.csv, with ``seconds`` of timing.csv
  summary: dict[str, Any]

  def rounds(self) -> list[records.Row]:
    """rounds.csv."""
    return records.read_rows(self.folder / "rounds.csv", None)


def run_folder(root: pathlib.Path, config: config_lib.Config) -> pathlib.Path:
  """Where a run lives."""
  return root / "runs" / f"{config.algorithm}-{config.identity()[:12]}"


def run_cell(cell: Cell, root: pathlib.Path) -> Outcome:
  """Runs a cell, goes on with it, or reads it if it is finished."""
  config = config_lib.parse(cell.flags)
  folder = run_folder(root, config)
  if not execute.finished(folder, config):
    mode = "--resume" if (folder / "config.json").is_file() else "--overwrite"
    flags = [*cell.flags, f"--out_dir={folder}", mode]
    execute.execute(config_lib.parse(flags))
  summary = json.loads((folder / "summary.json").read_text("utf-8"))
  rows = records.read_rows(folder / "metrics.csv")
  timing = records.read_rows(folder / "timing.csv", records.TIMING)
  seconds = {row["round"]: row["seconds"] for row in timing}
  for row in rows:
    row["seconds"] = seconds[row["round"]]
  return Outcome(cell, folder, rows, summary)


def run_cells(cells: Sequence[Cell], root: pathlib.Path) -> list[Outcome]:
  """All cells, checked before the first one starts.

  Raises:
    UsageError: a cell's flags are wrong; nothing has been run.
  """
  for cell in cells:
    config_lib.parse(cell.flags)
  outcomes = []
  for number, cell in enumerate(cells, 1):
    print(f"[{number}/{len(cells)}] {cell.panel_title}: {cell.label}",
          file=sys.stderr, flush=True)
    outcomes.append(run_cell(cell, root))
  return outcomes


def by_panel(
    outcomes: Iterable[Outcome],
) -> Mapping[str, Mapping[str, list[records.Row]]]:
  """panel title -> label -> rows, for ``plots.panels``."""
  panels: dict[str, dict[str, list[records.Row]]] = {}
  for outcome in outcomes:
    title = outcome.cell.panel_title
    panels.setdefault(title, {})[outcome.cell.label] = outcome.rows
  return panels
