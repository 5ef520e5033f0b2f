"""A map of what to use when: methods x kinds of difference between clients.

Eighteen methods on clients that differ in one way each: in their classes, in
what their images look like, in what their labels mean, in the noise or the
source of their images, or by a concept that drifts. All have the same rounds and
local steps, and the number of groups that is the truth. Their learning rate is
the best of three by validation:

  python -m experiments.beyond --figure=map --panels=c --tune=all

What counts is what clients deploy on their own test data,
beside FedAvg, partition by partition. A panel is a kind on a data set; there is
none before its methods are tuned.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import math
import pathlib
import string
from typing import NamedTuple

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.records.scores import nan_as_worst

from ...drawing import dots
from .. import figures, pages, partitions, suite
from . import board, setting, tuned_panels

NAME = "beyond"
BASE = "FedAvg"
#: p value, after Holm's correction, up to which a gain is clear.
_CLEAR = 0.05


class MapMethod(NamedTuple):
  """A method of the map."""

  algorithm: str
  #: its hyper-parameter that is the number of groups; "": it has none
  groups: str = ""


#: family -> label -> method.
FAMILIES: dict[str, dict[str, MapMethod]] = {
  "one model": {BASE: MapMethod("fedavg"), "FedProx": MapMethod("fedprox")},
  "clusters": {
    "FedGroup": MapMethod("fedgroup", "num_groups"),
    "FedGrouProx": MapMethod("fedgrouprox", "num_groups"),
    "MA-FSVRG": MapMethod("ma_fsvrg", "num_models"),
    "GA-FSVRG": MapMethod("ga_fsvrg", "num_models"),
    "IFCA": MapMethod("ifca", "num_groups"),
    "FeSEM": MapMethod("fesem", "num_groups"),
    "CFL": MapMethod("cfl", "max_groups"),
    "FL+HC": MapMethod("flhc", "max_groups"),
    "PACFL": MapMethod("pacfl", "max_groups"),
    "FedDrift": MapMethod("feddrift"),
  },
  "mixtures": {
    "FedSoft": MapMethod("fedsoft", "num_groups"),
    "FedEM": MapMethod("fedem", "num_components"),
  },
  "personal": {
    "Ditto": MapMethod("ditto"),
    "APFL": MapMethod("apfl"),
    "FedRep": MapMethod("fedrep"),
  },
  "nothing shared": {"each client alone": MapMethod("local")},
}
METHODS = {label: m for family in FAMILIES.values() for label, m in family.items()}


class Difference(NamedTuple):
  """A way in which clients differ."""

  title: str
  groups: int  #: number of groups that clustered methods are told
  data: tuple[str, ...] = ("digits", "mnist", "fashion")
  steps: int = 0  #: rounds of a step of a schedule; 0: nothing changes
  has_kinds: bool = True  #: whether clients are of kinds; else labels alone differ


#: name -> kind, as in presets/beyond/map_<data>_<name>.flags.
KINDS = {
  "classes": Difference("two classes", 4, has_kinds=False),
  "dirichlet": Difference("Dirichlet 0.1", 4, has_kinds=False),
  "rotate": Difference("rotated images", 4),
  "permute": Difference("permuted labels", 4),
  "noise": Difference("noisy images", 4),
  "sources": Difference("two sources", 2, ("mnist",)),
  "drift": Difference("drift", 2, steps=10),
}
DATA = {"digits": "digits", "mnist": "MNIST", "fashion": "Fashion-MNIST"}
#: (data, kind), in the order of the panels.
PLACES = [(data, name) for data in DATA for name in KINDS if data in KINDS[name].data]

#: What stays empty -> why.
EMPTY = {
  "FedDrift": "opens models only where a schedule of concepts has steps; without "
  "drift it is FedAvg",
  "two sources": "the sources are MNIST and Fashion-MNIST, so only MNIST has them",
}


def preset_of(data: str, kind: str) -> str:
  """The name of the data preset of a panel, as `tune --data` takes it."""
  return f"map_{data}_{kind}"


def methods_of(kind: str) -> dict[str, MapMethod]:
  """The methods that run on a kind of difference, by their labels."""
  return {
    label: method
    for label, method in METHODS.items()
    if KINDS[kind].steps or method.algorithm != "feddrift"
  }


def fixed_settings(kind: str) -> dict[str, dict[str, int]]:
  """algorithm -> what it is told of a kind: the number of groups, or of rounds."""
  told: dict[str, dict[str, int]] = {}
  for method in methods_of(kind).values():
    told[method.algorithm] = (
      {method.groups: KINDS[kind].groups}
      if method.groups
      else {"step_rounds": KINDS[kind].steps}
      if method.algorithm == "feddrift"
      else {}
    )
  return told


PANELS = tuple(
  figures.Panel(
    letter,
    f"{DATA[data]}, {KINDS[kind].title}",
    {},
    preset_of(data, kind),
    eval_every=KINDS[kind].steps,
    protocols="" if KINDS[kind].has_kinds else "local",
    of={"data": DATA[data]},
    tuned=tuned_panels.tuned_presets(preset_of(data, kind), fixed_settings(kind)),
  )
  for letter, (data, kind) in zip(string.ascii_lowercase, PLACES)
)
_PLACE_OF = dict(zip((panel.letter for panel in PANELS), PLACES))


def _lines(panel: figures.Panel) -> list[figures.FigureLine]:
  kind = _PLACE_OF[panel.letter][1]
  told = fixed_settings(kind)
  return [
    figures.FigureLine(
      label,
      tuned_panels.method_layers(panel.data, method.algorithm, told[method.algorithm]),
    )
    for label, method in methods_of(kind).items()
  ]


def _mean_of_evaluations(
  protocol: str, metric: str
) -> Callable[[suite.Outcome], np.ndarray]:
  """Makes a measure in percent, for each partition.

  It is the mean over the evaluations: of the last round, or with drift of the last
  round of every step.
  """

  def measure(outcome: suite.Outcome) -> np.ndarray:
    curves = outcome.frames.curves(protocol, metric)
    if not curves.size:
      return np.array([math.nan])
    return 100 * outcome.frames.per_partition(curves.mean(1))

  return measure


#: outcome -> accuracy in percent of each partition.
SCORE = _mean_of_evaluations("local", "accuracy")
_WORST_KIND = _mean_of_evaluations("kinds_worst", "accuracy")
_WORST_TENTH = _mean_of_evaluations("local", "worst_decile")


def panel_gains(
  runs: Sequence[suite.Outcome],
) -> dict[str, tuple[metrics.Estimate, float]]:
  """Every method's gain over FedAvg in points, as ``tuned_panels.gains_over``."""
  return tuned_panels.gains_over(runs, SCORE, BASE)


def _work(outcome: suite.Outcome) -> float:
  return tuned_panels.mean_total(outcome, "total_example_gradients")


def _table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """The best method of every family, and every method with its intervals."""
  best, rows = [], []
  for runs in suite.by_panel(outcomes):
    title, gain_of = runs[0].cell.panel_title, panel_gains(runs)
    base = next((o for o in runs if o.cell.label == BASE), None)
    best.append([title, *(_best_of(family, gain_of) for family in FAMILIES.values())])
    for o in sorted(runs, key=lambda o: -nan_as_worst(SCORE(o).mean())):
      rows.append(
        [
          title,
          o.cell.label,
          tuned_panels.format_score(SCORE(o)),
          tuned_panels.gain_cell(gain_of.get(o.cell.label)),
          tuned_panels.format_score(_WORST_KIND(o)),
          tuned_panels.format_score(_WORST_TENTH(o)),
          tuned_panels.format_score(partitions.rand_index(o), 2),
          metrics.Number(tuned_panels.mean_total(o, "total_bytes") / 1e6, form=",.0f"),
          metrics.Number(_work(o) / _work(base), form=".1f") if base else "-",
        ]
      )
  return [
    f"The best method of every family and its points above {BASE}. The best is "
    "chosen by these numbers, so they are optimistic where a family has many "
    "methods.",
    pages.Table(["clients differ by", *FAMILIES], best),
    "Every method. Accuracy of the models that clients deploy, on their test data "
    "after the last round, in percent; with drift the mean over the last rounds of "
    "the steps. Gaps are paired by partition; in brackets the p value of the "
    "paired t test, with Holm's correction for the tests of a panel. The worst kind "
    "is measured on the examples of all its clients. ARI is the adjusted Rand index "
    "of the groups against the kinds, without kinds against clients with the same "
    "classes. MB are sums over all participants, both ways; work is the number of "
    f"per-example gradients, as a multiple of {BASE}'s.",
    pages.Table(
      [
        "clients differ by",
        "method",
        "accuracy",
        f"less {BASE}",
        "worst kind",
        "worst tenth of clients",
        "ARI",
        "MB",
        "work",
      ],
      rows,
    ),
  ]


def _best_of(
  family: Mapping[str, MapMethod], gain_of: Mapping[str, tuple[metrics.Estimate, float]]
) -> str:
  members = [label for label in family if label in gain_of]
  if not members:
    return "-"
  label = max(members, key=lambda name: nan_as_worst(gain_of[name][0].mean))
  return f"{label} {metrics.format_estimate(gain_of[label][0], 1, sign='+')}"


def _describe_panels(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Section: which panels are finished, and which cells stay empty and why."""
  return tuned_panels.describe_panels(
    outcomes,
    [
      tuned_panels.PanelState(panel, tuple(methods_of(place[1])))
      for panel, place in zip(PANELS, PLACES)
    ],
    FIGURE.partitions,
    "map",
    EMPTY,
  )


def _numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """The gains over FedAvg, and its accuracy; a panel for each data set."""
  table = []
  for runs in suite.by_panel(outcomes):
    data, kind = _PLACE_OF[runs[0].cell.panel]
    base = next((o for o in runs if o.cell.label == BASE), None)
    if base is None:
      continue
    table.append(dots.Dot(DATA[data], BASE, float(SCORE(base).mean()), name=kind))
    for label, (gain, p) in panel_gains(runs).items():
      note = "" if p <= _CLEAR else dots.UNCLEAR
      table.append(
        dots.Dot(DATA[data], label, gain.mean, gain.ci95, name=kind, note=note)
      )
  return table


def _describe_setting(folder: pathlib.Path) -> str:
  """Section: what all runs have, and what belongs to it."""
  return (
    setting.describe_setting(PANELS, folder)
    + " Clustered methods are told the number of kinds, and 4 where clients differ in "
    "labels alone. [Which method when](../choosing.md) has the conclusions, "
    "[methods](../methods.md) all methods. The [board](beyond_board.md) asks about two "
    "classes with softmax regression and a tenth of 300 clients in a round. The "
    "[bridge](beyond_bridge.md) says why its numbers differ."
  )


FIGURE = figures.Figure(
  "The map: which method to use when clients differ in kind",
  "accuracy",
  "",
  PANELS,
  protocol="local",
  protocols="local,kinds",
  eval_every=40,
  lines_of=_lines,
  table=_table,
  sections=(_describe_panels, board.replay),
  num_seeds=1,
  partitions=9,
  dots=(
    figures.DotPicture(
      _numbers,
      functools.partial(
        dots.draw_gain_map,
        blocks={
          family: [label for label in members if label != BASE]
          for family, members in FAMILIES.items()
        },
        columns={kind: difference.title for kind, difference in KINDS.items()},
        reference=BASE,
        words=f"Gray: not clear in a paired t test (p > {_CLEAR:g}). Empty: not made "
        "for it, or not run.",
      ),
      title=f"Points above {BASE}; MLP of 32, all of 40 clients take part",
    ),
  ),
  pictures=False,
  setting=_describe_setting,
)
