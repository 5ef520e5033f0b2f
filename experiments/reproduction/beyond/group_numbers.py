"""The map with a wrong number of groups: half as many as there are kinds, or twice.

Clustered methods are told the number of kinds on the map, which nobody knows in
practice. Here the panels of rotated images and permuted labels have four kinds, and
methods are told two, four or eight groups. Everything else is the map's, the learning
rates that were tuned with four groups included.
"""

from collections.abc import Mapping

from ...drawing import dots
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


#: method -> number of groups that it is told -> its run.
_Runs = Mapping[str, Mapping[int, suite.Outcome]]


def _line(panel: figures.Panel, method: str, number: int = 0) -> figures.FigureLine:
  """A method that is told a number of groups; 0: it has none."""
  algorithm, groups = kinds_map.METHODS[method].algorithm, {}
  if number:
    groups = {kinds_map.METHODS[method].groups: number}
  return figures.FigureLine(
    f"{method}, {number} groups" if number else method,
    (*tuned_panels.method_layers(panel.data, algorithm, {}), groups),
    method=method,
    of={"groups": number},
  )


def _lines(panel: figures.Panel) -> list[figures.FigureLine]:
  return [
    _line(panel, BASE),
    *(_line(panel, method, number) for method in METHODS for number in NUMBERS),
  ]


def _by_number(runs: suite.Outcomes) -> _Runs:
  """Sorts the runs of a panel."""
  by_number: dict[str, dict[int, suite.Outcome]] = {}
  for o in runs:
    by_number.setdefault(o.cell.method, {})[o.cell.of["groups"]] = o
  return by_number


def _table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Every method's gain with each number of groups, and what a wrong one costs."""
  rows = []
  for runs in suite.by_panel(outcomes):
    by_number = _by_number(runs)
    if BASE not in by_number:
      continue
    base = SCORE(by_number[BASE][0])
    complete = {
      m: by_number[m] for m in METHODS if {*NUMBERS} <= {*by_number.get(m, ())}
    }
    scores = {
      method: {number: SCORE(of_number[number]) for number in NUMBERS}
      for method, of_number in complete.items()
    }
    costs = board.gap_statistics(
      [
        of_number[number] - of_number[RIGHT]
        for of_number in scores.values()
        for number in NUMBERS
        if number != RIGHT
      ]
    )
    for method, cost in zip(scores, zip(*2 * [iter(costs)])):
      rows.append(
        [
          runs[0].cell.panel_title,
          method,
          *(markdown.format_values(scores[method][n] - base) for n in NUMBERS),
          *(board.gap_cell(*gap) for gap in cost),
          " / ".join(
            tuned_panels.format_score(partitions.rand_index(complete[method][n]), 2)
            for n in NUMBERS
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


def _numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """The gains over FedAvg, a row for each method."""
  panels: tuned_panels.GainsOfPanels = {}
  for runs in suite.by_panel(outcomes):
    by_number = _by_number(runs)
    base = by_number.get(BASE)
    for method in METHODS:
      gains = {
        f"{number} groups": SCORE(of_number) - SCORE(base[0])
        for number, of_number in by_number.get(method, {}).items()
        if base
      }
      if gains:
        panels.setdefault(runs[0].cell.panel_title, {})[method] = gains
  return tuned_panels.gain_dots(panels)


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
  dots=(tuned_panels.picture_of_gains(_numbers, BASE),),
  pictures=False,
)
