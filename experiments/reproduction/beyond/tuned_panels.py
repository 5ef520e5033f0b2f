"""Studies whose panels are data sets on which every method is tuned by itself.

Such a panel is there once all of its methods are tuned:

  python -m experiments.beyond --figure=NAME --panels=LETTER --tune=missing
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import metrics

from ...cli import presets
from ...cli.config import Layer
from ...drawing import dots
from ...reports import markdown
from .. import figures, pages, suite
from . import board

NAME = "beyond"
#: panel -> row -> name -> gains in points, of each partition.
GainsOfPanels = dict[str, dict[str, dict[str, np.ndarray]]]


def tuned_preset(data: str, algorithm: str) -> str:
  """The preset with the settings that a method has on a data preset."""
  return f"{NAME}/methods_{data}/{algorithm}.flags"


def tuned_presets(data: str, algorithms: Iterable[str]) -> tuple[str, ...]:
  """The presets of all methods of a panel (``Panel.tuned``)."""
  return tuple(tuned_preset(data, name) for name in algorithms)


def tuned_layers(data: str, algorithm: str) -> tuple[Layer, ...]:
  """The tuned settings of a method; () if it is not tuned yet."""
  return tuple(filter(presets.exists, tuned_presets(data, [algorithm])))


def method_layers(
  data: str, algorithm: str, told: Mapping[str, object]
) -> tuple[Layer, ...]:
  """The settings of a method in a panel: those of all data, told, and tuned ones."""
  of_all = f"{NAME}/methods/{algorithm}.flags"
  return (
    *filter(presets.exists, [of_all]),
    {"algorithm": algorithm, **told},
    *tuned_layers(data, algorithm),
  )


def gains_over(
  runs: Sequence[suite.Outcome],
  score: Callable[[suite.Outcome], np.ndarray],
  base: str,
) -> dict[str, tuple[metrics.Estimate, float]]:
  """Every method's gain over a base method in a panel.

  Args:
    runs: the outcomes of one panel, the base method's among them.
    score: outcome -> a number of each partition.
    base: label of the base method.

  Returns:
    label -> the mean with its 95 % interval, paired by partition, and the p value
    with Holm's correction for the tests of the panel. {} without the base.
  """
  scores = {o.cell.label: score(o) for o in runs}
  if base not in scores:
    return {}
  labels = [label for label in scores if label != base]
  statistics = board.gap_statistics([scores[label] - scores[base] for label in labels])
  return dict(zip(labels, statistics))


def mean_total(outcome: suite.Outcome, column: str) -> float:
  """What all participants of a run sent or computed, the mean over partitions."""
  return float(outcome.frames.end(column).mean())


class PanelState(NamedTuple):
  """A panel, and the labels of its methods."""

  panel: figures.Panel
  labels: tuple[str, ...]


def finished_labels(outcomes: suite.Outcomes) -> dict[str, set[str]]:
  """letter of a panel -> the labels of its finished cells."""
  finished: dict[str, set[str]] = {}
  for o in outcomes:
    finished.setdefault(o.cell.panel, set()).add(o.cell.label)
  return finished


def describe_panels(
  outcomes: suite.Outcomes,
  panels: Sequence[PanelState],
  partitions: suite.Partitions,
  figure: str,
  empty: Mapping[str, str],
) -> list[pages.Block]:
  """Section: which panels are finished, and which cells stay empty and why.

  Args:
    outcomes: the finished cells.
    panels: all of them, also those that are not tuned yet.
    partitions: of a whole cell.
    figure: name of the figure.
    empty: what stays empty -> why.
  """
  finished = finished_labels(outcomes)
  parts = {max(1, len(o.parts)) for o in outcomes}
  lines = []
  for panel, labels in panels:
    count, of = len(finished.get(panel.letter, ())), len(labels)
    state = (
      "finished"
      if count == of
      else f"{count} of {of} methods are finished"
      if count
      else "not run yet"
      if panel.is_tuned
      else "not tuned yet"
    )
    lines.append([panel.letter, panel.title, state])
  blocks: list[pages.Block] = [pages.Heading("What is there")]
  if parts:
    blocks.append(
      f"Finished are cells of {' or '.join(map(str, sorted(parts)))} of "
      f"{partitions} partitions."
    )
  return [
    *blocks,
    "This command chooses the settings that a panel lacks, and then runs it. It "
    "continues where it was stopped. `--dry_run` tells the hours, and `--tune=all` "
    "chooses all settings anew:",
    f"```\n./launch.sh {NAME} --figure={figure} --panels=LETTER --tune=missing\n```",
    pages.Table(["letter", "panel", "state"], lines),
    "Cells that stay empty: "
    + "; ".join(f"{what}: {why}" for what, why in empty.items())
    + ".",
  ]


def format_score(values: np.ndarray, digits: int = 1) -> str:
  """The mean with its interval; "-" where a partition has no number."""
  return "-" if np.isnan(values).any() else markdown.format_values(values, digits)


def gain_cell(gain: tuple[metrics.Estimate, float] | None) -> metrics.Number | str:
  """A gain with its p value, for a table; "-" for none."""
  return board.gap_cell(*gain) if gain else "-"


def gain_dots(panels: GainsOfPanels) -> list[dots.Dot]:
  """The gains over a method with their intervals, and each partition's."""
  return [
    dots.Dot(
      panel,
      row,
      *metrics.confidence_95(gains.tolist()),
      name=name,
      values=tuple(gains.tolist()),
    )
    for panel, rows in panels.items()
    for row, gains_of in rows.items()
    for name, gains in gains_of.items()
  ]


def picture_of_gains(
  numbers: Callable[[suite.Outcomes], list[dots.Dot]],
  base: str,
  words: str = "",
  **look: Any,
) -> figures.DotPicture:
  """A picture of gains over a method, which a line at 0 marks.

  Args:
    numbers: makes the gains of runs.
    base: the method that the gains are over.
    words: what else the axis says.
    **look: further fields of ``dots.Look``.
  """
  return figures.dot_picture(
    numbers,
    f"points above {base}{words}",
    interval="95 % CI over partitions, paired",
    reference=0.0,
    reference_label=base,
    first="",
    **look,
  )
