"""Makes the runs of a figure; a finished run is found again and only read.

The folder of a run is ``<root>/runs/<algorithm>-<identity>``. The identity is a
hash of everything that decides the numbers of the run, so figures that need the
same run share it. An interrupted run continues from its last checkpoint.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import itertools
import pathlib
from typing import Any, NamedTuple

from fedjax_alg.records import summary as results
from fedjax_alg.records import tables as records

from ..cli import config as config_lib
from ..cli import execute, resume, sweeps
from ..cli import part as part_lib
from . import chosen as chosen_lib
from . import partitions

#: Kinds of settings of a line's method: those of its own flag file, which are
#: tuned where a search chose them (``Cell.tuning``); those that the paper
#: states for its own methods; the paper's one learning rate, of a method that
#: is not its own.
TUNED, STATED, ONE_RATE = "tuned", "stated", "one rate"


def method_name(method: str, protocol: str) -> str:
  """The name of a method, with its protocol if that is not ``TUNED``."""
  return method if protocol == TUNED else f"{method} ({protocol})"


#: Number of partitions, from that of a run on; or the seeds of partitions.
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
    return method_name(self.label, self.protocol)

  @property
  def method(self) -> str:
    """The name of the method in the claims, without a reading in brackets."""
    return self.label.split(" (")[0]

  @property
  def heading(self) -> str:
    """The title of the panel with its letter, as above its curves."""
    return f"({self.panel}) {self.panel_title}"

  @property
  def place(self) -> str:
    """The same, as in the rows of tables."""
    return f"{self.panel}: {self.panel_title}"

  @functools.cached_property
  def config(self) -> config_lib.Config:
    """The run that the flags ask for, parsed and checked once.

    Raises:
      UsageError: the flags are wrong.
    """
    return config_lib.parse(self.flags)

  @functools.cached_property
  def choices(self) -> list[chosen_lib.Choice]:
    """The way in which the settings of the run were chosen."""
    return chosen_lib.of_flags(self.flags, self.chosen, self.sources)

  @property
  def tuning(self) -> str:
    """The way in which the method's settings were chosen, see ``chosen.tuning``."""
    return (
      self.protocol
      if self.protocol != TUNED
      else chosen_lib.tuning(chosen_lib.describe(self.choices))
    )

  def on(self, parts: Partitions) -> list["Cell"]:
    """The same run on several partitions of the data."""
    first = self.config.values["partition_seed"]
    return [
      self
      if seed == first
      else dataclasses.replace(self, flags=(*self.flags, f"--partition_seed={seed}"))
      for seed in (range(first, first + parts) if isinstance(parts, int) else parts)
    ]


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
    """The way in which the settings were chosen, in words."""
    return chosen_lib.describe(self.cell.choices)

  def rounds(self) -> list[records.Row]:
    """The rows of rounds.csv."""
    if self.parts:
      return partitions.join_rows([part.rounds() for part in self.parts])
    return records.read_rows(self.folder / "rounds.csv", None)


Outcomes = Sequence[Outcome]


def run_folder(root: pathlib.Path, config: config_lib.Config) -> pathlib.Path:
  """The folder of a run."""
  return root / "runs" / f"{config.algorithm}-{config.identity()[:12]}"


def _runs(
  cells: Iterable[Cell], root: pathlib.Path
) -> tuple[list[config_lib.Config], list[str]]:
  """The runs of some cells in their folders, and what is said of each.

  Several cells may have one run. A run that was begun is gone on with.

  Raises:
    UsageError: the flags of a cell are wrong.
  """
  by_folder = {run_folder(root, cell.config): cell for cell in cells}
  return (
    [
      cell.config.with_output(out_dir=str(folder), resume=True)
      for folder, cell in by_folder.items()
    ],
    [f"{cell.panel_title}: {cell.name}" for cell in by_folder.values()],
  )


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
  several = {
    name.removesuffix("_mean")
    for name in results.protocols(outcome.rows)
    if name.endswith("_mean")
  }
  if not several:
    return outcome
  new_names = {name: f"{name}_best" for name in several} | {
    f"{name}_mean": name for name in several
  }
  rows = [
    row | {"protocol": new_names.get(row["protocol"], row["protocol"])}
    for row in outcome.rows
  ]
  # The protocol that is shown comes first.
  rows.sort(key=lambda row: row["protocol"].endswith("_best"))
  targets = tuple(float(name) for name in outcome.summary["rounds_to"])
  return outcome._replace(
    rows=rows, summary=outcome.summary | (results.summarize_rows(rows, targets))
  )


def run_cells(
  cells: Sequence[Cell], root: pathlib.Path, parts: Partitions = 1
) -> list[Outcome]:
  """Makes the runs of all cells, or reads those that are finished.

  Args:
    cells: the cells.
    root: folder of the results.
    parts: the partitions of the data.

  Returns:
    An outcome for each cell, pooled if there are several partitions.

  Raises:
    UsageError: the flags of a cell are wrong. Then no run has been started.
    RunError: another process makes a run of them.
  """
  every = [cell.on(parts) for cell in cells]
  configs, names = _runs(itertools.chain(*every), root)
  sweeps.run_all(configs, names=names)
  return [
    _pool([_read(cell, run_folder(root, cell.config)) for cell in part_cells])
    for part_cells in every
  ]


def run_part(cells: Iterable[Cell], root: pathlib.Path, part: part_lib.Part) -> None:
  """Runs a part of the runs of all cells, and says what is left.

  Raises:
    UsageError, RunError: see ``run_cells``.
  """
  configs, names = _runs(cells, root)
  sweeps.run_part(configs, part, names)


def select_finished(
  cells: Iterable[Cell], root: pathlib.Path, parts: Partitions = 1
) -> list[Cell]:
  """The cells whose runs are finished on all partitions."""
  return [
    cell
    for cell in cells
    if all(
      resume.is_finished(run_folder(root, part_cell.config), part_cell.config)
      for part_cell in cell.on(parts)
    )
  ]


def _pool(parts: Sequence[Outcome]) -> Outcome:
  """The outcome of a run on several partitions."""
  first = parts[0]
  return (
    first
    if len(parts) == 1
    else first._replace(
      rows=partitions.join_rows([part.rows for part in parts]),
      summary=partitions.pool([part.summary for part in parts]),
      parts=tuple(parts),
    )
  )


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
    panels.setdefault(outcome.cell.heading, {})[outcome.cell.label] = outcome.rows
  return panels
