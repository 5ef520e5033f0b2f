"""Central acceleration from 2019 to today, every method tuned in the same way.

Sixteen methods on four data sets, with two shares of the clients in a round. All
have the same rounds, local steps and batch size. A method that takes two gradients
in a step, or measures gradients at the server's model, pays for them: what a method
costs is counted up to one target. Twelve settings a method are compared on a sixth
of the training images:

  python -m experiments.beyond --figure=acceleration --panels=a --tune=all

Scaffnew takes all clients in every round, so it has
a column of its own, beside FedAvg and SCAFFOLD with all clients.
"""

from collections.abc import Mapping
import math
import string
from typing import NamedTuple

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.records.scores import nan_as_worst

from ...cli import presets
from ...drawing import dots
from .. import cost_to_accuracy, figures, pages, suite
from . import board, tuned_panels

NAME = "beyond"
BASE = "FedAvg"


#: What every method is told but Scaffnew, whose number of steps is drawn.
_STEPS = {"local_steps": 20}


class Acceleration(NamedTuple):
  """A method of the study."""

  algorithm: str
  year: str  #: of its paper; "": not stated
  told: Mapping[str, object] = _STEPS  #: flag -> value that is not tuned


_SEVERAL = {**_STEPS, "num_models": 4, "threshold": 4, "central_rule": "corrected"}
#: The base method is that of AISTATS 2017.
EARLIER = "2019 to 2021"
LATER = "2021 to 2026"
OF_FSVRG = "FSVRG, and FSVRG with a central step"
#: era -> label -> method, in the order of the years.
ERAS: dict[str, dict[str, Acceleration]] = {
  EARLIER: {
    "FedAvgM": Acceleration("fedavgm", "2019"),
    "SCAFFOLD": Acceleration("scaffold", "2020"),
    "FedAdam": Acceleration("fedadam", "2021"),
    "FedYogi": Acceleration("fedyogi", "2021"),
  },
  LATER: {
    "FedCM": Acceleration("fedcm", "2021"),
    # A round has 20 local steps on average, as those of the others.
    "Scaffnew": Acceleration("scaffnew", "2022", {"communication": 0.05}),
    "FedExP": Acceleration("fedexp", "2023"),
    "SCAFFOLD-M": Acceleration("scaffold_m", "2024"),
    "FedACG": Acceleration("fedacg", "2024"),
    "FedMuon": Acceleration("fedmuon", "2026"),
  },
  OF_FSVRG: {
    "FSVRG": Acceleration("fsvrg", "2016"),
    "MA-FSVRG": Acceleration("ma_fsvrg", "2024", _SEVERAL),
    "GA-FSVRG": Acceleration("ga_fsvrg", "2024", _SEVERAL),
    "CFSVRG": Acceleration("cfsvrg", ""),
    "CLSFSVRG": Acceleration("clsfsvrg", ""),
  },
}
METHODS = {BASE: Acceleration("fedavg", "2017")} | {
  label: method for era in ERAS.values() for label, method in era.items()
}
#: The method that takes all clients in every round.
ALONE = "Scaffnew"
#: What is compared where all clients take part in every round.
OF_ALL_CLIENTS = (BASE, "SCAFFOLD", ALONE)


class AcceleratedData(NamedTuple):
  """A data set of the study."""

  title: str
  target: float  #: accuracy up to which costs are counted
  shares: tuple[str, ...] = ("20", "5", "all")
  eval_every: int = 0  #: rounds, if they are not those of the figure
  labels: tuple[str, ...] = ()  #: of the methods that are compared; (): all


#: With a CNN a method needs 45 runs: those of these three take a minute each, of
#: FedMuon two, and of FSVRG's family two to fifteen.
_CHEAP = (BASE, "SCAFFOLD", "SCAFFOLD-M")

#: name -> data set, as in presets/beyond/acceleration_<name>.flags.
DATA = {
  "digits": AcceleratedData("digits, softmax", 0.9, ("20", "10", "all")),
  "mnist": AcceleratedData("MNIST, softmax on HoG", 0.95),
  "fashion": AcceleratedData("Fashion-MNIST, MLP", 0.8),
  "cifar10": AcceleratedData("CIFAR-10, CNN", 0.5, eval_every=5, labels=_CHEAP),
}
#: (data, share of the clients), in the order of the panels.
PLACES = [(name, share) for name, data in DATA.items() for share in data.shares]

#: What stays empty -> why.
EMPTY = {
  ALONE: "takes all clients in every round, so it is compared in the panels of "
  f"all clients, with {' and '.join(OF_ALL_CLIENTS[:2])}",
  "5 % of digits": "would be two or three clients, so there are 10 %",
}

#: Rounds after which accuracy is compared.
EARLY, LATE = 20, 100


def data_preset(data: str, share: str) -> str:
  """The name of the data preset of a panel, as `tune --data` takes it."""
  return f"acceleration_{data}_{share}"


def methods_on(data: str, share: str) -> dict[str, Acceleration]:
  """The methods that run on a data set with a share of the clients, by label."""
  if share != "all":
    return {
      label: METHODS[label] for label in DATA[data].labels or METHODS if label != ALONE
    }
  # Scaffnew does not read the share: it has all clients by itself.
  return {
    label: method
    if label == ALONE
    else method._replace(told={**method.told, "participation": 1.0})
    for label, method in METHODS.items()
    if label in OF_ALL_CLIENTS
  }


def told_settings(data: str, share: str) -> dict[str, Mapping[str, object]]:
  """algorithm -> its settings that are not tuned."""
  return {method.algorithm: method.told for method in methods_on(data, share).values()}


def describe_share(share: str) -> str:
  """Describes who takes part in a round."""
  return "all clients" if share == "all" else f"{share} % of the clients"


PANELS = tuple(
  figures.Panel(
    letter,
    f"{DATA[data].title}, {describe_share(share)}",
    {},
    data_preset(data, share),
    eval_every=DATA[data].eval_every,
    tuned=tuned_panels.tuned_presets(
      data_preset(data, share), told_settings(data, share)
    ),
  )
  for letter, (data, share) in zip(string.ascii_lowercase, PLACES)
)
_PLACE_OF = dict(zip((panel.letter for panel in PANELS), PLACES))


def _lines(panel: figures.Panel) -> list[figures.FigureLine]:
  return [
    figures.FigureLine(
      label, tuned_panels.method_layers(panel.data, method.algorithm, method.told)
    )
    for label, method in methods_on(*_PLACE_OF[panel.letter]).items()
  ]


def accuracy_after(outcome: suite.Outcome, last: int) -> np.ndarray:
  """The accuracy after some rounds, in percent of each partition.

  With K models it is the mean of theirs.
  """
  values = outcome.frames.curves("global", "accuracy", last, last)
  if not values.size:
    return np.array([math.nan])
  return 100 * outcome.frames.per_partition(values[:, 0])


def _late_accuracy(outcome: suite.Outcome) -> np.ndarray:
  return accuracy_after(outcome, LATE)


def _early_accuracy(outcome: suite.Outcome) -> np.ndarray:
  return accuracy_after(outcome, EARLY)


def select_whole(outcomes: suite.Outcomes) -> list[list[suite.Outcome]]:
  """The outcomes of each panel of which all methods are finished.

  A panel that lacks some has no tests, since Holm's correction is for all of them.
  """
  finished = tuned_panels.finished_labels(outcomes)
  return [
    list(runs)
    for runs in suite.by_panel(outcomes)
    if finished[runs[0].cell.panel] == set(methods_on(*_place(runs)))
  ]


def _place(runs: suite.Outcomes) -> tuple[str, str]:
  return _PLACE_OF[runs[0].cell.panel]


def _by_year(runs: suite.Outcomes) -> list[suite.Outcome]:
  """The base method, and the others era by era."""
  order = list(METHODS)
  return sorted(runs, key=lambda o: order.index(o.cell.label))


#: Heading of a cost -> its column, and what it is divided by.
_COSTS = {
  "rounds": ("round", 1.0),
  "thousand gradients": ("total_example_gradients", 1e3),
  "MB": ("total_bytes", 1e6),
}


def costs_to_target(outcome: suite.Outcome, target: float) -> list[str]:
  """Formats the costs until the target: medians over the partitions.

  A partition that does not get there counts as infinite.
  """
  texts = []
  for column, unit in _COSTS.values():
    median = cost_to_accuracy.median(
      cost_to_accuracy.costs_at_target(outcome, target, column)
    )
    texts.append("not reached" if median is None else f"{median / unit:,.4g}")
  return texts


def _table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Every method of the finished panels, with its gains and costs."""
  rows = []
  for runs in select_whole(outcomes):
    data, share = _place(runs)
    early = tuned_panels.gains_over(runs, _early_accuracy, BASE)
    late = tuned_panels.gains_over(runs, _late_accuracy, BASE)
    for o in _by_year(runs):
      label = o.cell.label
      rows.append(
        [
          f"{DATA[data].title}, {describe_share(share)}",
          label,
          METHODS[label].year or "-",
          tuned_panels.format_score(_early_accuracy(o)),
          tuned_panels.gain_cell(early.get(label)),
          tuned_panels.format_score(_late_accuracy(o)),
          tuned_panels.gain_cell(late.get(label)),
          f"{100 * DATA[data].target:g} %",
          *costs_to_target(o, DATA[data].target),
        ]
      )
  if not rows:
    return ["No panel is finished, so there is nothing to compare."]
  return [
    *_answer(outcomes),
    "Every method. Accuracy of the global model on all test data, in percent, "
    f"after {EARLY} and after {LATE} rounds; of MA-FSVRG and GA-FSVRG the mean of "
    f"their models. Gains over {BASE} are paired by partition; in brackets the p "
    "value of the paired t test, with Holm's correction for the tests of a panel. "
    f"Hyper-parameters are the best ones in the last ten of {LATE} rounds. "
    f"Others may be better after {EARLY}. Costs are sums over all participants "
    "until the target, medians over the partitions: bytes both ways, and "
    "per-example gradients with anchors and second passes.",
    pages.Table(
      [
        "data and clients",
        "method",
        "year",
        f"after {EARLY}",
        f"less {BASE}",
        f"after {LATE}",
        f"less {BASE}",
        "target",
        *_COSTS,
      ],
      rows,
    ),
  ]


def validation_accuracy(data: str, algorithm: str) -> float:
  """The validation accuracy of a method's tuned settings; NaN: it has none."""
  preset = tuned_panels.tuned_preset(data, algorithm)
  if not presets.exists(preset):
    return math.nan
  scores = [row.score for row in presets.load_preset(preset).settings if row.score]
  return float(scores[0]) if scores else math.nan


def choose_method(data: str, labels: list[str]) -> str:
  """The method of best validation accuracy on a data preset."""
  return max(
    labels,
    key=lambda label: nan_as_worst(validation_accuracy(data, METHODS[label].algorithm)),
  )


def compare_eras(
  runs: suite.Outcomes,
) -> tuple[dict[str, str], dict[str, np.ndarray]]:
  """The best method of every era in a finished panel.

  Validation chooses it, so its test accuracy is not that of a choice by test data.

  Returns:
    era -> label; and era -> its gain over the base method in points, of each
    partition. An era of which the data set has no method is left out.
  """
  data = data_preset(*_place(runs))
  accuracies = {o.cell.label: _late_accuracy(o) for o in runs}
  best = {
    era: choose_method(data, labels)
    for era, members in ERAS.items()
    if (labels := [label for label in members if label in accuracies])
  }
  return best, {
    era: accuracies[label] - accuracies[BASE] for era, label in best.items()
  }


def _format_points(gain: np.ndarray) -> str:
  return metrics.format_estimate(metrics.estimate_mean(list(gain)), sign="+")


def _answer(outcomes: suite.Outcomes) -> list[pages.Block]:
  """What later methods gain over earlier ones; [] without a panel that says it."""
  panels = [runs for runs in select_whole(outcomes) if _place(runs)[1] != "all"]
  if not panels:
    return []
  compared = [compare_eras(runs) for runs in panels]
  gaps = board.gap_statistics([gain[LATER] - gain[EARLIER] for _, gain in compared])
  rows = []
  for runs, (best, gain), gap in zip(panels, compared, gaps):
    data, share = _place(runs)
    rows.append(
      [
        f"{DATA[data].title}, {describe_share(share)}",
        *(
          f"{best[era]} {_format_points(gain[era])}" if era in best else "not run"
          for era in ERAS
        ),
        board.gap_cell(*gap),
      ]
    )
  return [
    f"The method of every era that has the best validation accuracy, and its "
    f"points above {BASE} on the test data after {LATE} rounds. The last column "
    f"is the gain of {LATER} over {EARLIER}, paired by partition; in brackets the "
    "p value of the paired t test, with Holm's correction for the rows.",
    pages.Table(["data and clients", *ERAS, "later less earlier"], rows),
  ]


def _describe_panels(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Section: which panels are finished, and which cells stay empty and why."""
  return tuned_panels.describe_panels(
    outcomes,
    [
      tuned_panels.PanelState(panel, tuple(methods_on(*place)))
      for panel, place in zip(PANELS, PLACES)
    ],
    FIGURE.partitions,
    "acceleration",
    EMPTY,
  )


def _name_row(label: str) -> str:
  return f"{label} {METHODS[label].year}".strip()


def _numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """The gains over FedAvg in order of the years; a panel for each data set.

  A data set on which fewer than ``_FEWEST`` methods were run has none.
  """
  panels: tuned_panels.GainsOfPanels = {}
  for runs in select_whole(outcomes):
    data, share = _place(runs)
    accuracies = {o.cell.label: _late_accuracy(o) for o in runs}
    name = _NAMES[DATA[data].shares.index(share)]
    rows = panels.setdefault(DATA[data].title, {})
    for label in METHODS:
      if label != BASE and label in accuracies:
        gains = rows.setdefault(_name_row(label), {})
        gains[name] = accuracies[label] - accuracies[BASE]
  order = [_name_row(label) for label in METHODS]
  return tuned_panels.gain_dots(
    {
      panel: {row: rows[row] for row in order if row in rows}
      for panel, rows in panels.items()
      if len(rows) >= _FEWEST
    }
  )


#: The fewest methods of a panel of the picture.
_FEWEST = 3
#: Names of the three shares of the clients.
_NAMES = ("20 % of the clients", "5 % (digits: 10 %)", "all clients")

FIGURE = figures.Figure(
  "Central acceleration from 2019 to 2026, tuned with equal budgets",
  "accuracy",
  "",
  PANELS,
  lines_of=_lines,
  table=_table,
  sections=(_describe_panels, board.replay),
  num_seeds=1,
  partitions=9,
  dots=(
    tuned_panels.picture_of_gains(
      _numbers, BASE, f" after {LATE} rounds", in_a_row=3, panels=3
    ),
  ),
  pictures=False,
)
