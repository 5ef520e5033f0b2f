"""Makes the runs of a figure; a finished run is found again and only read.

Figures that need the same run share it (``cli.shared_runs``).
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import itertools
import pathlib
from typing import Any, NamedTuple

from fedjax_alg.records import frames
from fedjax_alg.records.frames import Frames
from fedjax_alg.runs import status, store

from ..cli import config as config_lib
from ..cli import part as part_lib
from ..cli import shared_runs, sweeps, writer
from ..reports import rule
from . import chosen as chosen_lib

#: Kinds of settings of a line's method: those of its own preset, which are
#: tuned where a search chose them (``Cell.tuning``); those that the paper
#: states for its own methods; the same with every equation as it is printed;
#: the paper's one learning rate, of a method that is not its own.
TUNED, STATED, PRINTED, ONE_RATE = "tuned", "stated", "as printed", "one rate"


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
  config: config_lib.Config  #: the run
  protocol: str = TUNED  #: or ``STATED`` or ``ONE_RATE``
  #: how its settings were chosen
  choices: tuple[chosen_lib.Choice, ...] = ()
  pictures: bool = True  #: whether the run is drawn, too
  metric: str = ""  #: the metric of its panel, if it is not that of the figure
  #: the most partitions of a costly run; 0: all of the figure
  most_partitions: int = 0
  #: the number of runs of each partition: a run and its replicas, which differ
  #: by rounding (``rounding_seed``)
  replicas: int = 1
  of_rounds: int = 0  #: the rounds of the whole run where fewer are run
  #: the method as the claims name it, where the label says more; see ``method``
  of_method: str = ""
  #: what the title of the panel and the label say, as values
  of: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def name(self) -> str:
    """The label with the protocol, unique within the panel."""
    return method_name(self.label, self.protocol)

  @property
  def method(self) -> str:
    """The name of the method in the claims, without a reading."""
    return self.of_method or self.label

  @property
  def heading(self) -> str:
    """The title of the panel with its letter, as above its curves."""
    return f"({self.panel}) {self.panel_title}"

  @property
  def place(self) -> str:
    """The same, as in the rows of tables."""
    return f"{self.panel}: {self.panel_title}"

  @property
  def data(self) -> str:
    """The data set, as the tie of a number has it."""
    return rule.name_data(self.config.data.dataset)

  @property
  def tuning(self) -> str:
    """The way in which the method's settings were chosen, see ``chosen.tuning``."""
    return self.protocol if self.protocol != TUNED else chosen_lib.tuning(self.choices)

  def on(self, parts: Partitions) -> list["Cell"]:
    """The same run on several partitions of the data."""
    first = self.config.values["partition_seed"]
    seeds = range(first, first + parts) if isinstance(parts, int) else parts
    return [
      self
      if seed == first
      else dataclasses.replace(self, config=self.config.override(partition_seed=seed))
      for seed in seeds[: self.most_partitions or None]
    ]

  def replicated(self) -> list["Cell"]:
    """The run and its replicas."""
    return [
      self,
      *(
        dataclasses.replace(self, config=self.config.override(rounding_seed=number))
        for number in range(1, self.replicas)
      ),
    ]

  def runs_on(self, parts: Partitions) -> list["Cell"]:
    """All runs on several partitions, those of a partition one after the other."""
    return [run for part in self.on(parts) for run in part.replicated()]


#: Data sets that come with their clients, so that none are drawn.
_WITH_CLIENTS = ("leaf", "sent140", "shakespeare")


class Outcome(NamedTuple):
  """A finished cell; see ``shared_runs.FinishedRun`` for the protocols."""

  cell: Cell
  folder: pathlib.Path
  frames: Frames  #: its metrics and rounds, of all partitions
  summary: dict[str, Any]  #: facts of it, of the first partition
  #: the runs on several partitions that are pooled here; (): a single run
  parts: tuple["Outcome", ...] = ()
  #: the same run again, apart from rounding (``Cell.replicas``). They count as
  #: further seeds of a number, and not in comparisons seed by seed
  replicas: tuple["Outcome", ...] = ()

  @property
  def settings(self) -> str:
    """The way in which the settings were chosen, in words."""
    return chosen_lib.describe(self.cell.choices)

  @property
  def is_part(self) -> bool:
    """Whether rounds are missing: it is no result, and is not drawn (V-14)."""
    return bool(self.summary["cost"]["rounds"] < self.cell.of_rounds)

  @property
  def has_one_partition(self) -> bool:
    """Whether other partitions of the data would have been another draw."""
    return not self.parts and self.cell.data not in _WITH_CLIENTS


Outcomes = Sequence[Outcome]


def _with_names(cells: Iterable[Cell]) -> tuple[list[config_lib.Config], list[str]]:
  """The runs of some cells, and what is said of each."""
  all_cells = list(cells)
  return (
    [cell.config for cell in all_cells],
    [f"{cell.panel_title}: {cell.name}" for cell in all_cells],
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
    UsageError: a cell cannot be run. Then no run has been started.
    RunError: another process makes a run of them.
  """
  configs, names = _with_names(
    itertools.chain(*(cell.runs_on(parts) for cell in cells))
  )
  finished_runs = iter(
    shared_runs.make_runs(configs, root, names, any(cell.pictures for cell in cells))
  )
  return [
    _pool(
      [
        _with_replicas(
          [Outcome(run, *next(finished_runs)) for run in part.replicated()]
        )
        for part in cell.on(parts)
      ]
    )
    for cell in cells
  ]


def note_planned_runs(runs: Iterable[Cell], root: pathlib.Path, name: str) -> None:
  """Notes which runs a figure needs, so that ``status`` tells those that are missing.

  Args:
    runs: a cell for each run.
    root: folder of the results.
    name: name of the figure.
  """
  configs = [run.config for run in runs]
  rounds = {store.folder_of(root, config): config.run.rounds for config in configs}
  status.note_planned(root, name, rounds)


def run_part_of_cells(
  cells: Iterable[Cell], root: pathlib.Path, part: part_lib.RunPart
) -> None:
  """Runs a part of the runs of all cells, and says what is left.

  Raises:
    UsageError, RunError: see ``run_cells``.
  """
  all_cells = list(cells)
  configs, names = _with_names(all_cells)
  configs, names = shared_runs.assign_folders(configs, root, names)
  sweeps.run_part(configs, part, names, any(cell.pictures for cell in all_cells))


def select_finished(
  cells: Iterable[Cell], root: pathlib.Path, parts: Partitions = 1
) -> list[Cell]:
  """The cells whose runs are finished on all partitions."""
  return [
    cell
    for cell in cells
    if all(
      store.is_finished(
        part_cell.config,
        store.folder_of(root, part_cell.config),
        writer.added_files(cell.pictures),
      )
      for part_cell in cell.runs_on(parts)
    )
  ]


def _with_replicas(runs: Sequence[Outcome]) -> Outcome:
  """The first run, with the others as its replicas."""
  first, *replicas = runs
  return first._replace(replicas=tuple(replicas))


def _pool(parts: Sequence[Outcome]) -> Outcome:
  """The outcome of a run on several partitions."""
  first = parts[0]
  return (
    first
    if len(parts) == 1
    else first._replace(
      frames=frames.concatenate([part.frames for part in parts]),
      parts=tuple(parts),
    )
  )


def by_panel(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
  """The outcomes of each panel, in order of appearance."""
  panels: dict[str, list[Outcome]] = {}
  for outcome in outcomes:
    panels.setdefault(outcome.cell.panel, []).append(outcome)
  return list(panels.values())


def frames_by_panel(
  outcomes: Iterable[Outcome],
) -> Mapping[str, Mapping[str, Frames]]:
  """heading of a panel -> label -> tables, as ``plots.plot_panels`` takes them."""
  panels: dict[str, dict[str, Frames]] = {}
  for outcome in outcomes:
    panels.setdefault(outcome.cell.heading, {})[outcome.cell.label] = outcome.frames
  return panels
