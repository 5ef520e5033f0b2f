"""The map on natural clients: people who do exercises with a smart watch.

The methods, the budget and the tuning are the map's, and clustered methods are told as
many groups as where labels alone differ. A panel is a way to test; see
``fa.Watch``:

  python -m experiments.beyond --figure=natural --tune=missing

Partitions draw what is for testing. The people stay.
"""

import pathlib

from ...drawing import dots
from .. import figures, pages, suite
from . import board, kinds_map, setting, tuned_panels

BASE = kinds_map.BASE
#: The kind of the map with as many groups: labels alone differ.
LIKE = "classes"
#: What is for testing -> title.
PLACES = {
  "arm": "by person, tested on the other arm",
  "part": "by person, tested on the same arm",
}
#: Panels that are not there -> why.
EMPTY = {
  "letters, by writer": "no package brings letters with their writers; if you have "
  "LEAF's FEMNIST, `--dataset=leaf:PATH` reads it",
}


PANELS = tuple(
  figures.Panel(
    letter,
    f"watch, {title}",
    {},
    f"natural_{test}",
    protocols="local",
    of={"data": "watch"},
    tuned=tuned_panels.tuned_presets(f"natural_{test}", kinds_map.fixed_settings(LIKE)),
  )
  for letter, (test, title) in zip("ab", PLACES.items())
)


def _lines(panel: figures.Panel) -> list[figures.FigureLine]:
  told = kinds_map.fixed_settings(LIKE)
  return [
    figures.FigureLine(
      label,
      tuned_panels.method_layers(panel.data, method.algorithm, told[method.algorithm]),
    )
    for label, method in kinds_map.methods_of(LIKE).items()
  ]


def _describe_panels(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Section: which panels are finished, and what is not there and why."""
  labels = tuple(kinds_map.methods_of(LIKE))
  return tuned_panels.describe_panels(
    outcomes,
    [tuned_panels.PanelState(panel, labels) for panel in PANELS],
    FIGURE.partitions,
    "natural",
    EMPTY,
  )


def _describe_setting(folder: pathlib.Path) -> str:
  """Section: what all runs have, and what belongs to it."""
  return (
    setting.describe_setting(PANELS, folder)
    + " Clustered methods are told four groups. [Data](../data.md#series-and-the-smart-"
    "watch) has the exercises and the two ways to test, [the map](beyond_map.md) the "
    "same methods on clients that differ in one way each."
  )


def _numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """The gains over FedAvg, a row for each method."""
  panels: tuned_panels.GainsOfPanels = {}
  for runs in suite.by_panel(outcomes):
    scores = {o.cell.label: kinds_map.SCORE(o) for o in runs}
    for label, score in scores.items():
      if label != BASE and BASE in scores:
        rows = panels.setdefault(runs[0].cell.panel_title, {})
        rows[label] = {"": score - scores[BASE]}
  return tuned_panels.gain_dots(panels)


FIGURE = kinds_map.FIGURE._replace(
  title="The map on natural clients: people with a smart watch",
  panels=PANELS,
  protocols="local",
  lines_of=_lines,
  sections=(_describe_panels, board.replay),
  partitions=5,
  dots=(tuned_panels.picture_of_gains(_numbers, BASE),),
  setting=_describe_setting,
)
