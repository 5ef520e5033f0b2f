"""Why the map and the board differ: one factor changed at a time.

Both have clients of two classes. On the board FedGroup gains nothing over FedAvg, on
the map it does. They differ in the model, in the share of the clients in a round and
in the number of clients. Here are all eight combinations on MNIST and Fashion-MNIST.
Everything else is the map's. Every method has the best of five to eleven learning rates
on a sixth of the training images, in every combination:

  python -m experiments.beyond --figure=bridge --tune=all
"""

from collections.abc import Mapping
import itertools
import string
from typing import NamedTuple

import numpy as np

from ...drawing import dots
from ...reports import markdown
from .. import figures, pages, partitions, suite, verdicts
from . import board, tuned_panels

BASE = "FedAvg"
#: Number of groups of clustered methods, as on the map's panel of two classes.
_GROUPS = 4


class BridgeMethod(NamedTuple):
  """A method of the study."""

  algorithm: str
  settings: Mapping[str, object] = {}  #: flag -> value that is not tuned


METHODS = {
  BASE: BridgeMethod("fedavg"),
  "FedGroup": BridgeMethod("fedgroup", {"num_groups": _GROUPS}),
  "IFCA": BridgeMethod("ifca", {"num_groups": _GROUPS}),
}
#: algorithm -> its settings that are not tuned.
FIXED = {method.algorithm: method.settings for method in METHODS.values()}

DATA = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}
#: factor -> its level on the board and on the map: word of the preset -> title.
FACTORS = {
  "model": {"softmax": "softmax", "mlp": "MLP"},
  "clients in a round": {"10": "10 %", "all": "all"},
  "clients": {"300": "300", "40": "40"},
}


class Setup(NamedTuple):
  """A panel: a data set, and a level of every factor."""

  data: str
  levels: tuple[str, ...]  #: in the order of ``FACTORS``

  @property
  def preset(self) -> str:
    """The name of its data preset, as `tune --data` takes it."""
    return "_".join(["bridge", self.data, *self.levels])

  @property
  def words(self) -> str:
    """Its levels in words."""
    model, share, clients = (
      titles[level] for titles, level in zip(FACTORS.values(), self.levels)
    )
    return f"{model}, {share} of {clients} clients"


SETUPS = [
  Setup(data, levels)
  for data in DATA
  for levels in itertools.product(*FACTORS.values())
]
PANELS = tuple(
  figures.Panel(
    letter,
    f"{DATA[c.data]}, {c.words}",
    {},
    c.preset,
    tuned=tuned_panels.tuned_presets(c.preset, FIXED),
  )
  for letter, c in zip(string.ascii_lowercase, SETUPS)
)
_SETUP_OF = dict(zip((panel.letter for panel in PANELS), SETUPS))

#: outcome -> accuracy in percent of each partition.
SCORE = verdicts.end("accuracy", "local")


def _lines(panel: figures.Panel) -> list[figures.FigureLine]:
  return [
    figures.FigureLine(
      label, tuned_panels.method_layers(panel.data, method.algorithm, method.settings)
    )
    for label, method in METHODS.items()
  ]


def _gains(runs: suite.Outcomes) -> dict[str, np.ndarray]:
  """label -> gain over FedAvg in points, of each partition of a panel."""
  scores = {o.cell.label: SCORE(o) for o in runs}
  if BASE not in scores:
    return {}
  return {
    label: values - scores[BASE] for label, values in scores.items() if label != BASE
  }


def _whole_cubes(
  outcomes: suite.Outcomes,
) -> dict[tuple[str, str], dict[tuple[str, ...], np.ndarray]]:
  """(data, label) -> levels -> gains, where all combinations are finished."""
  cubes: dict[tuple[str, str], dict[tuple[str, ...], np.ndarray]] = {}
  for runs in suite.by_panel(outcomes):
    combination = _SETUP_OF[runs[0].cell.panel]
    for label, gain in _gains(runs).items():
      cubes.setdefault((combination.data, label), {})[combination.levels] = gain
  return {key: cube for key, cube in cubes.items() if len(cube) == 2 ** len(FACTORS)}


def effects(
  cube: Mapping[tuple[str, ...], np.ndarray],
) -> dict[tuple[str, ...], np.ndarray]:
  """The effects of a whole 2 x 2 x 2 design, of each partition.

  Args:
    cube: levels -> a number of each partition.

  Returns:
    Factors -> their effect: of one factor the mean over the others of the map's
    level less the board's; of several their interaction, half the difference of the
    effect of the first ones between the two levels of the last.
  """
  levels = [list(titles) for titles in FACTORS.values()]
  result = {}
  for number in range(1, len(FACTORS) + 1):
    for some in itertools.combinations(range(len(FACTORS)), number):
      signs = {
        cell: np.prod([2 * levels[at].index(cell[at]) - 1 for at in some])
        for cell in cube
      }
      terms = np.stack([sign * cube[cell] for cell, sign in signs.items()])
      result[tuple(list(FACTORS)[at] for at in some)] = terms.sum(0) / (len(cube) / 2)
  return result


def _effects_table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """What each factor changes of a gain; [] before a design is whole."""
  cubes = _whole_cubes(outcomes)
  if not cubes:
    return []
  columns = []
  for cube in cubes.values():
    effect_of = effects(cube)
    columns.append(
      {
        names: board.gap_cell(*gap)
        for names, gap in zip(effect_of, board.gap_statistics(list(effect_of.values())))
      }
    )
  rows = [
    [
      " x ".join(_describe_factor(name) for name in names),
      *(column[names] for column in columns),
    ]
    for names in columns[0]
  ]
  return [
    f"Change by a factor of the gain over {BASE}, in points: the map's level less "
    "the board's, the mean over the other factors. A product is an interaction: "
    "half of what the effect of one factor differs between the levels of the "
    "other. Paired by partition; in brackets the p value of the t test, with Holm's "
    "correction for the seven tests of a column.",
    pages.Table(["factor", *(f"{DATA[data]}, {label}" for data, label in cubes)], rows),
  ]


def _describe_factor(name: str) -> str:
  of_board, of_map = FACTORS[name].values()
  return f"{name} ({of_map}, not {of_board})"


def _table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Every combination with its gains, and what each factor changes."""
  rows = []
  for runs in suite.by_panel(outcomes):
    gain_of = tuned_panels.gains_over(runs, SCORE, BASE)
    combination = _SETUP_OF[runs[0].cell.panel]
    for o in runs:
      rows.append(
        [
          DATA[combination.data],
          combination.words,
          o.cell.label,
          markdown.format_values(SCORE(o)),
          tuned_panels.gain_cell(gain_of.get(o.cell.label)),
          f"{o.cell.config.hparams['client_lr']:g}",
          tuned_panels.format_score(partitions.rand_index(o), 2),
          f"{tuned_panels.mean_total(o, 'total_bytes') / 1e6:,.0f}",
        ]
      )
  return [
    *_effects_table(outcomes),
    "Every method. Accuracy of the models that clients deploy, on their test data "
    "after the last round, in percent. Gaps are paired by partition; in brackets "
    "the p value of the paired t test, with Holm's correction for the tests of a "
    "panel. ARI is the adjusted Rand index of the groups against clients with the "
    "same classes. MB are sums over all participants, both ways.",
    pages.Table(
      [
        "data",
        "combination",
        "method",
        "accuracy",
        f"less {BASE}",
        "rate",
        "ARI",
        "MB",
      ],
      rows,
    ),
  ]


def _numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """The gains over FedAvg, from the board's combination to the map's."""
  panels: tuned_panels.GainsOfPanels = {}
  for runs in suite.by_panel(outcomes):
    combination = _SETUP_OF[runs[0].cell.panel]
    if gains := _gains(runs):
      panels.setdefault(DATA[combination.data], {})[combination.words] = gains
  return tuned_panels.gain_dots(panels)


FIGURE = figures.Figure(
  "The bridge: clients of two classes, from the board's setting to the map's",
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
