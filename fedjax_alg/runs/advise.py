"""Names the panel of the map whose clients differ as those of a federation do.

The map (docs/results/beyond_map.md) has run eighteen methods on clients that differ in
one way each. ``advise`` measures how the clients of a federation differ
(``metrics.differences``) and compares the measures with those of the map's panels,
``panels.csv``. ``panel_gains.csv`` has what each method gained there. Both files are
written from the published study by docs/make_pages.py.
"""

from collections.abc import Sequence
import csv
import dataclasses
import functools
import pathlib
from typing import NamedTuple

import numpy as np

from fedjax_alg import tasks
from fedjax_alg.data.federation import Federation
from fedjax_alg.data.partition import client_rows
from fedjax_alg.errors import OptionError, a_type
from fedjax_alg.metrics.differences import (
  ClientExamples,
  Differences,
  client_differences,
)
from fedjax_alg.metrics.intervals import Number
from fedjax_alg.runs.result import RunResult

PANELS, GAINS = (
  pathlib.Path(__file__).with_name(name) for name in ("panels.csv", "panel_gains.csv")
)
#: The panel whose examples are dealt at random, of any data set.
NOTHING, ANY = "nothing", "any data"
#: Largest distance at which a panel is near. Of the map's panels none is further from
#: those of its kind on other data sets (docs/results/beyond_differences.md).
NEAR = 0.4
#: p value, after Holm's correction, up to which a gain is clear.
CLEAR = 0.05


class MapPanel(NamedTuple):
  """A panel of the map."""

  data: str  #: the data set, or ``ANY``
  difference: str  #: in what its clients differ
  measures: Differences


class PanelMethod(NamedTuple):
  """A method on a panel, next to FedAvg."""

  algorithm: str  #: name for ``run``
  label: str  #: name in tables
  gain: float  #: points above FedAvg, the mean over nine partitions
  half: float  #: half the width of its 95 % interval
  p: float  #: of the paired t test, with Holm's correction
  megabytes: float  #: as a multiple of FedAvg's
  gradients: float  #: likewise

  @property
  def is_clear(self) -> bool:
    """Whether the test tells the gain from none."""
    return self.p <= CLEAR


@dataclasses.dataclass(frozen=True)
class Advice:
  """How clients differ, and the nearest panel of the map."""

  differences: Differences
  panel: MapPanel  #: the nearest one, near or not
  distance: float  #: to it
  #: every method of the panel, the largest gain first; () if it is not near
  methods: tuple[PanelMethod, ...]
  has_time: bool = True  #: whether the examples have steps, so that drift would show

  @property
  def is_near(self) -> bool:
    """Whether the panel is near enough to say something about these clients."""
    return self.distance <= NEAR

  def __str__(self) -> str:
    return "\n".join([*self._measure_lines(), *self._panel_lines()])

  def _measure_lines(self) -> list[str]:
    numbers = [
      f"{name} {value:.2f}" for name, value in self.differences._asdict().items()
    ]
    if not self.has_time:
      numbers[-1] = "time unknown (the data have no steps)"
    return [
      "how clients differ (0: as if dealt at random, 1: nothing in common)",
      f"  {', '.join(numbers)}",
    ]

  def _panel_lines(self) -> list[str]:
    name = f"{self.panel.data}, {self.panel.difference}"
    if not self.is_near:
      return [
        f"no panel of the map is near: the nearest one ({name}) has distance "
        f"{self.distance:.2f}, at most {NEAR:g} is near"
      ]
    if self.panel.difference == NOTHING:
      return [
        f"nearest: clients that differ in nothing (distance {self.distance:.2f}), so "
        "there is nothing to divide: one model for all, such as fedavg"
      ]
    head = (
      f"nearest panel of the map: {name} (distance {self.distance:.2f}, at most "
      f"{NEAR:g} is near)"
    )
    best = [method for method in self.methods if method.is_clear and method.gain > 0]
    if not best:
      return [head, "  no method gains clearly over FedAvg there: use fedavg"]
    width = max(len(method.algorithm) for method in best)
    return [
      head,
      "  points above FedAvg there; bytes and gradients as multiples of FedAvg's",
      *(
        f"  {method.algorithm:<{width}}  "
        f"{Number(method.gain, method.half, '.1f', '+')}, "
        f"bytes {method.megabytes:.1f}, gradients {method.gradients:.1f}"
        for method in best[:5]
      ),
    ]


def advise(target: Federation | RunResult) -> Advice:
  """Measures how clients differ, and names the nearest panel of the map.

  Use it to choose methods to compare: the panel says what eighteen methods gained
  over FedAvg on clients that differ in the same way. The map has an MLP and 40 clients
  that all take part in every round, so take its numbers as a hint.

  Args:
    target: a federation, or a finished run, in memory or loaded.

  Returns:
    The measures, the nearest panel with its distance, and its methods if it is near.
    ``print`` shows them.

  Raises:
    OptionError: ``target`` is no federation or run; its task has no classes; its
      examples are not one array of numbers each; it has fewer than two clients with
      examples; or another process holds some of them.
    RunFolderError: see ``RunResult.client_params``.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", partition="classes", num_clients=40)
    >>> advice = fa.advise(fed)
    >>> advice.panel.difference, advice.methods[0].algorithm
    ('two classes', 'apfl')
  """
  if isinstance(target, RunResult):
    target = target._state().prepared.federation
  if not isinstance(target, Federation):
    raise OptionError(f"`target`: {a_type(target)}, must be a federation or a run")
  differences = measure(target)
  panel, distance = nearest(differences, read_panels())
  methods: tuple[PanelMethod, ...] = ()
  if distance <= NEAR:
    methods = tuple(
      sorted(
        read_gains().get((panel.data, panel.difference), ()), key=lambda m: -m.gain
      )
    )
  return Advice(
    differences, panel, distance, methods, target.kinds_of_steps is not None
  )


def measure(federation: Federation) -> Differences:
  """Measures how the clients of a federation differ, on their training examples.

  Raises:
    OptionError: see ``advise``.
  """
  task = tasks.of(federation)
  if not task.has_classes:
    raise OptionError(
      f"`target`: its task is {task.name}, must be classification (the map has no "
      "other)"
    )
  x = federation.data.train.x
  if isinstance(x, dict) or np.asarray(x[:1]).dtype.kind not in "fu":
    raise OptionError(
      "`target`: its examples must be one array of numbers each, not tokens or several "
      "arrays"
    )
  if federation.rows is not None:
    raise OptionError("`target`: this process must hold the examples of all clients")
  try:
    return client_differences(_examples(federation), federation.num_classes)
  except ValueError as error:
    raise OptionError(f"`target`: {error}") from None


def _examples(federation: Federation) -> list[ClientExamples]:
  """The training examples of all clients, of all steps if there are any."""
  train, schedule = federation.data.train, federation.schedule
  if schedule is None or federation.kinds_of_steps is None:
    return [
      ClientExamples(*federation.client(name)) for name in federation.client_names
    ]
  of_steps = [schedule.at(step).rows for step in range(len(federation.kinds_of_steps))]
  step_of_row = np.zeros(len(of_steps[0].train_order), np.int64)
  for step in reversed(range(len(of_steps))):  # the first at which a client holds it
    partition = of_steps[step]
    step_of_row[client_rows(partition.train_offset, partition.train_size)] = step
  begin, last = of_steps[0].train_offset, of_steps[-1]
  end = last.train_offset + last.train_size
  return [
    ClientExamples(
      np.asarray(train.x[rows]), np.asarray(train.y[rows]), step_of_row[rows]
    )
    for rows in map(slice, begin.tolist(), end.tolist())
  ]


def distance(a: Differences, b: Differences) -> float:
  """The distance of two vectors of measures: that of the square roots of both."""
  return float(np.linalg.norm(np.sqrt(np.array(a)) - np.sqrt(np.array(b))))


def nearest(
  differences: Differences, panels: Sequence[MapPanel]
) -> tuple[MapPanel, float]:
  """The panel of least distance, and the distance."""
  distances = [distance(differences, panel.measures) for panel in panels]
  best = int(np.argmin(distances))
  return panels[best], distances[best]


@functools.cache
def read_panels() -> tuple[MapPanel, ...]:
  """The panels of the map with the means of their measures."""
  with PANELS.open(newline="", encoding="utf-8") as file:
    return tuple(
      MapPanel(
        row["data"],
        row["difference"],
        Differences(*(float(row[name]) for name in Differences._fields)),
      )
      for row in csv.DictReader(file)
    )


@functools.cache
def read_gains() -> dict[tuple[str, str], list[PanelMethod]]:
  """(data, difference) -> the methods of a panel."""
  gains: dict[tuple[str, str], list[PanelMethod]] = {}
  with GAINS.open(newline="", encoding="utf-8") as file:
    for row in csv.DictReader(file):
      gains.setdefault((row["data"], row["difference"]), []).append(
        PanelMethod(
          row["algorithm"],
          row["label"],
          *(float(row[name]) for name in PanelMethod._fields[2:]),
        )
      )
  return gains
