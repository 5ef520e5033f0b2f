"""The map with a wrong number of groups: half as many as there are kinds, or twice.

Clustered methods are told the number of kinds on the map, which nobody knows in
practice. Here the panels of rotated images and permuted labels have four kinds, and
methods are told two, four or eight groups. Everything else is the map's, the learning
rates that were tuned with four groups included.
"""

import numpy as np

from ...drawing import plots
from ...reports import markdown
from .. import figures, pages, partitions, suite
from . import board, kinds_map, tuned_panels

BASE = kinds_map.BASE
#: Methods of the map that are told a number of groups.
METHODS = ("FedGroup", "IFCA", "CFL", "FL+HC", "PACFL")
#: Number of groups -> what it is of the four kinds.
NUMBERS = {2: "half", 4: "right", 8: "double"}
RIGHT = 4
#: (data, kind) of the map, each with four kinds of clients.
PLACES = [
  (data, kind) for data in ("digits", "mnist") for kind in ("rotate", "permute")
]

PANELS = tuple(
  figures.Panel(
    letter,
    f"{kinds_map.DATA[data]}, {kinds_map.KINDS[kind].title}",
    {},
    kinds_map.preset_of(data, kind),
  )
  for letter, (data, kind) in zip("abcd", PLACES)
)
SCORE = kinds_map.SCORE


def name_line(label: str, number: int) -> str:
  """The name of a method that is told a number of groups."""
  return f"{label}, {number} groups"


def _lines(panel: figures.Panel) -> list[figures.FigureLine]:
  def line(label: str, name: str, **told: object) -> figures.FigureLine:
    algorithm = kinds_map.METHODS[label].algorithm
    layers = tuned_panels.method_layers(panel.data, algorithm, {})
    return figures.FigureLine(name, (*layers, told))

  return [
    line(BASE, BASE),
    *(
      line(label, name_line(label, n), **{kinds_map.METHODS[label].groups: n})
      for label in METHODS
      for n in NUMBERS
    ),
  ]


def _scores(runs: suite.Outcomes) -> dict[str, np.ndarray]:
  return {o.cell.label: SCORE(o) for o in runs}


def _table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Every method's gain with each number of groups, and what a wrong one costs."""
  rows = []
  for runs in suite.by_panel(outcomes):
    scores = _scores(runs)
    if BASE not in scores:
      continue
    outcome_of = {o.cell.label: o for o in runs}
    names = [
      [name_line(label, n) for n in NUMBERS]
      for label in METHODS
      if all(name_line(label, n) in scores for n in NUMBERS)
    ]
    costs = board.gap_statistics(
      [
        scores[name] - scores[of_method[list(NUMBERS).index(RIGHT)]]
        for of_method in names
        for number, name in zip(NUMBERS, of_method)
        if number != RIGHT
      ]
    )
    for of_method, cost in zip(names, zip(*2 * [iter(costs)])):
      rows.append(
        [
          runs[0].cell.panel_title,
          of_method[0].partition(", ")[0],
          *(markdown.format_values(scores[name] - scores[BASE]) for name in of_method),
          *(board.format_gap(*gap) for gap in cost),
          " / ".join(
            tuned_panels.format_score(partitions.rand_index(outcome_of[name]), 2)
            for name in of_method
          ),
        ]
      )
  return [
    f"Points above {BASE} with half as many groups as kinds, as many, and twice as "
    "many, and the change by a wrong number, paired by partition; in brackets the p "
    "value of the paired t test, with Holm's correction for the tests of a panel. "
    "ARI is the adjusted Rand index of the groups against the kinds, in the same "
    "order.",
    pages.Table(
      [
        "clients differ by",
        "method",
        *(f"{n} groups ({word})" for n, word in NUMBERS.items()),
        *(f"{word} less right" for n, word in NUMBERS.items() if n != RIGHT),
        "ARI",
      ],
      rows,
    ),
  ]


def _draw(
  paths: plots.Paths, outcomes: suite.Outcomes, title: str, x_axis: str
) -> None:
  """Draws the gains over FedAvg, a row for each method."""
  del x_axis
  panels: tuned_panels.GainsOfPanels = {}
  for runs in suite.by_panel(outcomes):
    scores = _scores(runs)
    for label in METHODS:
      gains = {
        f"{number} groups": scores[name] - scores[BASE]
        for number in NUMBERS
        if (name := name_line(label, number)) in scores and BASE in scores
      }
      if gains:
        panels.setdefault(runs[0].cell.panel_title, {})[label] = gains
  tuned_panels.draw_gains(paths, panels, BASE, title)


FIGURE = figures.Figure(
  "The map with a wrong number of groups, where clients are of four kinds",
  "accuracy",
  "",
  PANELS,
  protocol="local",
  protocols="local",
  eval_every=40,
  lines_of=_lines,
  table=_table,
  sections=(board.replay,),
  num_seeds=1,
  partitions=5,
  draw=_draw,
  pictures=False,
)
