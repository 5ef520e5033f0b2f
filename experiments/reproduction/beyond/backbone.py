"""Pre-trained features: closed form in one round, beside probes trained in rounds.

Every image passes once through EfficientNet-Lite0 at 128 x 128 pixels
(``--features=backbone``). Methods in closed form then need a round or a few; FedAvg,
FedAdam and SCAFFOLD train one layer on the same features, each with the best of as
many settings by validation clients. Data sets are dealt in eight ways, of which the
first is where rates are chosen and where costly methods run. The whole study:

  python -m experiments.beyond --figure=backbone --tune=all
"""

from collections.abc import Mapping, Sequence
import itertools
import string
from typing import NamedTuple

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.runs import styles

from ...cli.config import Layer
from ...drawing import dots, plots
from .. import figures, pages, suite, verdicts
from . import board, family, tuned_panels

NAME = "beyond"
BASE = family.BASE
#: Labels of the methods that train in rounds -> algorithms.
PROBES = {"FedAvg": "fedavg", "FedAdam": "fedadam", "SCAFFOLD": "scaffold"}
#: Methods in closed form that run wherever the data are dealt.
CHEAP = (BASE, "FedNCM", "FedCOF")
#: Those with sums so large that they run in the first way alone -> what else they have.
COSTLY: dict[str, Mapping[str, object]] = {
  "Fed3R": {"feature_map": "none"},
  "DeepAFL": {},
  "SAFLe": {"feature_map": "buckets:0.25,group_size=2"},
  "FedACnnL": {},
}
#: Methods with one model however data are dealt, so they run on one partition.
INVARIANT = family.INVARIANT


class Deal(NamedTuple):
  """A way to deal examples to clients."""

  words: str
  partition: str
  clients: int = 100


DEALS = (
  Deal("Dirichlet 0.1", "dirichlet:0.1"),
  Deal("Dirichlet 0.05", "dirichlet:0.05,min_size=1"),
  Deal("Dirichlet 1", "dirichlet:1"),
  Deal("one class", "classes:1"),
  Deal("two shards", "shards:2"),
  Deal("ten shards", "shards:10"),
  Deal("two shards", "shards:2", 500),
  Deal("two shards", "shards:2", 1000),
)
#: data preset -> its title.
DATA = {
  "backbone_cifar10": "CIFAR-10",
  "backbone_fashion": "Fashion-MNIST",
  "backbone_mnist": "MNIST",
}
#: letter -> data preset and deal.
PLACES = dict(zip(string.ascii_lowercase, itertools.product(DATA, DEALS)))


PANELS = tuple(
  figures.Panel(
    letter,
    f"{DATA[data]}, {deal.words}, {deal.clients:,} clients",
    {"partition": deal.partition, "num_clients": deal.clients},
    data,
    of={"data": DATA[data]},
    tuned=tuned_panels.tuned_presets(data, PROBES.values()),
  )
  for letter, (data, deal) in PLACES.items()
)
#: Letters of the panels of the first deal.
FIRST = tuple(letter for letter, (_, deal) in PLACES.items() if deal == DEALS[0])


def methods_in(letter: str) -> list[str]:
  """Labels of the methods that run in a panel."""
  return [*CHEAP, *(COSTLY if letter in FIRST else ()), *PROBES]


def _lines(panel: figures.Panel) -> list[figures.FigureLine]:
  deal = PLACES[panel.letter][1]
  lines = []
  for label in methods_in(panel.letter):
    layers: list[Layer]
    if label in PROBES:
      layers = [
        f"{NAME}/methods_backbone/{PROBES[label]}.flags",
        *tuned_panels.tuned_layers(panel.data, PROBES[label]),
      ]
    else:
      layers = [{"model": "softmax"}, f"{NAME}/family/{family.CLOSED[label]}.flags"]
      layers.append(dict(COSTLY.get(label, {})))
    if label == BASE:
      layers.append({"client_ridge": 1 / deal.clients})
    lines.append(
      figures.FigureLine(
        label,
        tuple(layer for layer in layers if layer),
        most_partitions=1 if label in INVARIANT else 0,
      )
    )
  return lines


#: Percent of the test images that the server's model has right after the last round.
SCORE = family.SERVER


def _work(outcome: suite.Outcome) -> np.ndarray:
  """[rounds] operations of all clients up to each round, without their features."""
  clients = outcome.summary["cost"]["clients_per_round"]
  work = clients * outcome.frames.of_rounds("client_flops").cumsum(1)
  return np.asarray(work.mean(0))


def _table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Every method: accuracy, what it sends and what its clients compute."""
  rows = [
    [
      o.cell.panel_title,
      o.cell.label,
      metrics.number_of(metrics.estimate_mean(list(SCORE(o))))
      if o.parts
      else metrics.Number(float(SCORE(o).mean())),
      f"{max(1, len(o.parts))}",
      o.summary["cost"]["rounds"],
      family.format_cost(family.megabytes(o, "bytes_up")),
      family.format_cost(family.megabytes(o, "bytes_down")),
      family.format_cost(float(_work(o)[-1]) / 1e9),
    ]
    for o in outcomes
  ]
  features = {o.cell.of["data"]: o.summary["cost"]["feature_flops"] for o in outcomes}
  of_features = ", ".join(
    f"{flops / 1e9:,.0f} billions on {data}" for data, flops in features.items()
  )
  return [
    "You find accuracy in percent of the server's model on all test images after the "
    "last round, with its interval over partitions. MB are sums over all "
    "participants, and so are the billions of operations of clients. To these come "
    f"the features of all clients, whatever the method: {of_features}.",
    pages.Table(
      [
        "data",
        "method",
        "accuracy",
        "partitions",
        "rounds",
        "MB up",
        "MB down",
        "10^9 operations",
      ],
      rows,
    ),
  ]


def _states(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Section: which panels are finished."""
  return tuned_panels.describe_panels(
    outcomes,
    [
      tuned_panels.PanelState(panel, tuple(methods_in(panel.letter)))
      for panel in PANELS
    ],
    FIGURE.partitions,
    "backbone",
    {
      "Dirichlet 0.005": "leaves clients without examples; one class a client is "
      "its limit",
      "costly methods": "run in the first way to deal the data of each set, since "
      "their model is the same in all",
    },
  )


#: Column of the tables of rounds -> the axis of a picture.
_AXES = {"bytes": "MB of all participants", "work": "10^9 operations of all clients"}


def _curves(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """Accuracy over bytes and over operations, of the first deal of each data set.

  A dot is a method at its end. Its values are the costs at all evaluations, and after
  them the accuracies.
  """
  table = []
  for o in outcomes:
    if o.cell.panel not in FIRST:
      continue
    at = o.frames.rounds_of("global")
    accuracy = 100 * o.frames.curves("global", "accuracy").mean(0)
    costs = {
      "bytes": o.frames.of_rounds("total_bytes").mean(0) / 1e6,
      "work": _work(o) / 1e9,
    }
    for name, words in _AXES.items():
      spent = costs[name][at - 1]
      table.append(
        dots.Dot(
          f"{o.cell.of['data']}, {words}",
          o.cell.label,
          float(accuracy[-1]),
          values=tuple(map(float, (*spent, *accuracy))),
        )
      )
  return table


def _draw_curves(
  paths: plots.Paths, table: Sequence[dots.Dot], title: str
) -> list[plots.Paths]:
  """Draws ``_curves``: a line for each method in rounds, a marker for the others."""
  panels = list(dict.fromkeys(dot.panel for dot in table))
  if not panels:
    raise dots.NothingToDraw("no panel has the runs that it compares")
  labels = list(dict.fromkeys(dot.row for dot in table))
  with plots.sheet(paths, panels, title, size=(4.2, 3.2)) as axes:
    for axis, panel in zip(axes, panels):
      for place, label in enumerate(labels):
        dot = next((d for d in table if (d.panel, d.row) == (panel, label)), None)
        if dot is None:
          continue
        x, y = np.split(np.array(dot.values), 2)
        is_curve = label in PROBES
        axis.plot(
          x if is_curve else x[-1:],
          y if is_curve else y[-1:],
          "-" if is_curve else styles.MARKERS[place % len(styles.MARKERS)],
          color=styles.COLOURS[place % len(styles.COLOURS)],
          markersize=7,
          label=label,
        )
      axis.set(xscale="log", xlabel=panel.split(", ", 1)[1], ylabel="test accuracy, %")
  return [paths]


def _numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """Accuracy in every way to deal the data: a panel for each data set."""
  table = []
  for o in outcomes:
    deal = PLACES[o.cell.panel][1]
    if o.cell.label in (*CHEAP, *PROBES):
      mean, half, values = figures.of_parts([SCORE(part) for part in o.parts or (o,)])
      table.append(
        dots.Dot(
          o.cell.of["data"],
          f"{deal.words}, {deal.clients:,} clients",
          mean,
          half,
          name=o.cell.label,
          values=values,
        )
      )
  return table


def _is_invariant(outcomes: suite.Outcomes) -> verdicts.Verdict:
  """Whether AFL's accuracy is one number for each data set, however it is dealt."""
  apart = []
  for data, title in DATA.items():
    scores = [
      SCORE(o)
      for o in outcomes
      if o.cell.label == BASE and PLACES[o.cell.panel][0] == data
    ]
    if len(scores) < 2:
      continue
    gap = float(np.ptp(np.concatenate(scores)))
    words = verdicts.Measurement(
      f"{gap:.2f} apart in {len(scores)} ways", (title,), mean=gap, unit="points"
    )
    # One of 10,000 test examples may lie on the decision boundary.
    apart.append((gap <= 0.02, words))
  if not apart:
    raise verdicts.NotRun("no data set is dealt in two ways")
  return verdicts.Verdict(
    all(holds for holds, _ in apart), tuple(words for _, words in apart)
  )


def _is_above(label: str) -> verdicts.Statement:
  """Whether AFL is above a probe after its last round, in every panel."""

  def check(outcomes: suite.Outcomes, panel: str) -> verdicts.Verdict:
    base = SCORE(verdicts.pick(outcomes, panel, BASE)).mean()
    return verdicts.above(base, SCORE(verdicts.pick(outcomes, panel, label)))

  return verdicts.Statement(
    NAME,
    "backbone",
    f"However data are dealt, {BASE} is above {label} after 200 rounds",
    verdicts.in_panels(check),
  )


FIGURE = figures.Figure(
  "Pre-trained features: one round in closed form, or two hundred",
  "accuracy",
  "",
  PANELS,
  eval_every=5,
  lines_of=_lines,
  table=_table,
  sections=(_states, board.replay),
  num_seeds=1,
  partitions=3,
  dots=(
    figures.dot_picture(
      _numbers,
      "test accuracy, %",
      interval="95 % CI over partitions",
      first="",
      in_a_row=1,
      panels=3,
      digits=-1,
    ),
    figures.DotPicture(
      _curves, _draw_curves, "_costs", "Pre-trained features: accuracy and its price"
    ),
  ),
  pictures=False,
  quick=("a",),
  statements=(
    verdicts.Statement(
      NAME,
      "backbone",
      f"The model of {BASE} is as accurate however data are dealt",
      _is_invariant,
    ),
    *(_is_above(label) for label in PROBES),
  ),
)
