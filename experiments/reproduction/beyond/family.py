"""The analytic family: what one round of least squares is worth, and what it costs.

Ten methods in closed form on five data sets of images and a table, beside FedAvg,
FedAdam and SCAFFOLD at as many bytes and at as many simulated seconds as AFL
takes. What counts is what clients deploy, on their own test data; the largest
difference over the partitions says whether a method depends on how the data are
dealt. Closed forms have the settings of their papers or usual ones, and a ridge of
1 in all; rates of the others are those of older studies, or of a short search.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import metrics

from ...cli import presets
from ...cli.config import Layer
from ...drawing import dots
from .. import figures, pages, suite, verdicts
from . import board

NAME = "beyond"
#: Ridge regression on all examples in one place, and its federated form.
BOUND, BASE = "pooled ridge", "AFL"
#: What a method deploys, and the points from which on it is not the server's model.
_SERVERS, _PERSONAL = "one model for all clients", "a model of each client"
_SAME_MODEL = 0.01
#: label -> file in presets/beyond/family.
CLOSED = {
  BOUND: "pooled",
  BASE: "afl",
  "Fed3R": "fed3r",
  "FedNCM": "fedncm",
  "FedCOF": "fedcof",
  "AFL dual": "afl_dual",
  "DeepAFL": "deepafl",
  "SAFLe": "safle",
  "FedACnnL": "fedacnnl",
  "pFedACnnL": "pfedacnnl",
}
ITERATIVE = {"FedAvg": "fedavg", "FedAdam": "fedadam", "SCAFFOLD": "scaffold"}
#: Those whose model does not depend on the partition, by their papers.
INVARIANT = (BASE, "Fed3R", "FedNCM", "DeepAFL", "SAFLe", "FedACnnL")
#: The sums of these take so long that images have few partitions of them.
COSTLY = ("DeepAFL", "SAFLe", "pFedACnnL")
FEW = 2
ITERATIVE_PARTITIONS = 3


class StudyData(NamedTuple):
  """A data set of the study."""

  title: str
  clients: int
  features: int  #: D of Fed3R
  #: presets of rates that other studies have chosen; {name} is the method's
  rates: tuple[str, ...] = ()
  share: float = 0.1  #: of the clients in a round of the iterative methods
  few: int = FEW  #: most partitions of the costly ones; 0: all
  model: Mapping[str, Any] = {"model": "softmax"}
  #: labels that do not apply or take too long -> why
  without: Mapping[str, str] = {}
  settings: Mapping[str, Mapping[str, Any]] = {}  #: label -> further ones
  metric: str = "accuracy"


_SUMS = "reads all 3,072 numbers, and their sums take minutes"
#: Letter of a panel -> data preset -> place.
PLACES: dict[str, StudyData] = {
  "mnist": StudyData("MNIST (HoG)", 100, 1000, ("diversified/methods",)),
  "fashion": StudyData(
    "Fashion-MNIST (HoG)",
    100,
    1000,
    ("diversified/methods",),
  ),
  "cifar10_hog": StudyData(
    "CIFAR-10 (HoG)",
    100,
    1000,
    ("diversified/methods", "diversified/methods_cifar10"),
    without={"SAFLe": "its 4,376 patterns take minutes; see MNIST"},
  ),
  "cifar10": StudyData(
    "CIFAR-10 (pixels, 16 x 16)",
    100,
    1000,
    model={"model": "stack:avg2"},
    without=dict.fromkeys(("DeepAFL", "SAFLe"), _SUMS),
    settings={
      "Fed3R": {"model": "softmax"},
      "FedACnnL": {"model": "stack:avg2,dense128"},
      "pFedACnnL": {"model": "stack:avg2,dense128"},
    },
  ),
  "digits": StudyData(
    "digits",
    20,
    500,
    ("beyond/methods_acceleration_digits_20",),
    share=0.25,
    few=0,
  ),
  "diabetes": StudyData(
    "diabetes (a table)",
    20,
    100,
    share=0.25,
    few=0,
    without={
      "FedNCM": "means of classes, and there are none",
      "FedCOF": "as FedNCM",
      "DeepAFL": "no intercept, which a number needs",
      "FedACnnL": "codes of classes in its hidden layer, and there are none",
      "pFedACnnL": "as FedACnnL",
    },
    settings={
      BOUND: {"bias": "centred"},
      BASE: {"bias": "centred"},
      "AFL dual": {"bias": "centred"},
      "Fed3R": {"bias": "centred", "normalize": False},
    },
    metric="r2",
  ),
}
PANELS = tuple(
  figures.Panel(
    letter,
    place.title,
    {},
    f"family_{data}",
    chosen=(
      (figures.Choice("untuned", "anything on Fashion-MNIST"),)
      if data == "fashion"
      else ()
    ),
    metric=place.metric,
  )
  for letter, (data, place) in zip("abcdef", PLACES.items())
)
_PLACE_OF = dict(zip((panel.letter for panel in PANELS), PLACES))


def _clients_of(place: StudyData, label: str) -> dict[str, Any]:
  """Flags of the clients, and what follows from their number."""
  if label == BOUND:
    return {"partition": "iid", "num_clients": 1}
  classes = place.metric == "accuracy"
  flags: dict[str, Any] = {
    "partition": "dirichlet:0.1,min_size=5" if classes else "iid:min_size=5",
    "num_clients": place.clients,
  }
  if label in (BASE, "AFL dual"):
    flags["client_ridge"] = 1 / place.clients
  return flags


def _lines(panel: figures.Panel) -> list[figures.FigureLine]:
  data = _PLACE_OF[panel.letter]
  place = PLACES[data]
  lines = []
  for label, name in {**CLOSED, **ITERATIVE}.items():
    if label in place.without:
      continue
    further = dict(place.settings.get(label, {}))
    model = {} if "model" in further else dict(place.model)
    layers: list[Layer] = [model, f"{NAME}/family/{name}.flags"]
    layers.append(_clients_of(place, label))
    most = 0
    if label in ITERATIVE:
      rates = [f"{folder}/{name}.flags" for folder in place.rates]
      rates.append(f"{NAME}/methods_family_{data}/{name}.flags")
      layers += [preset for preset in rates if presets.exists(preset)]
      layers.append({"participation": place.share})
      most = ITERATIVE_PARTITIONS
    elif label == BOUND:
      most = 1
    elif label in COSTLY:
      most = place.few
    if label == "Fed3R":
      layers.append({"feature_map": f"fourier:{place.features}"})
    layers.append(further)
    lines.append(
      figures.FigureLine(
        label,
        tuple(layer for layer in layers if layer),
        most_partitions=most,
      )
    )
  return lines


def _score(protocol: str) -> verdicts.Measure:
  """Makes the measure of the last round: percent, or 100 R^2, of each partition."""

  def measure(outcome: suite.Outcome) -> np.ndarray:
    name = outcome.cell.metric or "accuracy"
    return 100 * outcome.frames.scores("final", protocol, name)

  return measure


#: What clients deploy, on their own test data; and the model of the server.
SCORE, SERVER = _score("local"), _score("global")


def _spread(values: np.ndarray) -> str:
  """The largest difference over partitions."""
  return f"{np.ptp(values):.2f}" if len(values) > 1 else "-"


def megabytes(outcome: suite.Outcome, column: str) -> float:
  """Megabytes that all participants send or receive, the mean over partitions."""
  total = outcome.frames.of_rounds(column).sum(1).mean()
  return float(outcome.summary["cost"]["clients_per_round"] * total / 1e6)


def _last(outcome: suite.Outcome, column: str) -> float:
  """A running total at the end, the mean over partitions."""
  return float(outcome.frames.end(column).mean())


def format_cost(number: float) -> metrics.Number:
  """A number with three digits, or all digits before the point."""
  return metrics.Number(number, form=",.0f" if number >= 100 else ".3g")


class AtBudget(NamedTuple):
  """What a run has reached within a budget."""

  scores: np.ndarray  #: of each partition, in percent
  round: int  #: the last evaluated one within it; 0: none is
  share: float  #: of the budget that the run has used up to its end, at most 1


def at_budget(outcome: suite.Outcome, column: str, budget: float) -> AtBudget:
  """Reads a curve at the last evaluation whose total is within a budget.

  Args:
    outcome: the run.
    column: a running total.
    budget: its largest value.
  """
  name = outcome.cell.metric or "accuracy"
  frames, at = outcome.frames, outcome.frames.rounds_of("local")
  within = (frames.of_rounds(column, at) <= budget).sum(1)  # totals never fall
  share = min(_last(outcome, column) / budget, 1.0)
  if not within.all():
    return AtBudget(np.array([np.nan]), 0, share)
  scores = [100 * of[n - 1] for of, n in zip(frames.curves("local", name), within)]
  return AtBudget(np.array(scores), int(at[within.min() - 1]), share)


def _table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Every method with its costs, and the iterative ones at equal budgets."""
  rows = [
    [
      o.cell.panel_title,
      o.cell.label,
      f"{SCORE(o).mean():.2f}",
      metrics.Number(float(SERVER(o).mean())),
      _spread(SERVER(o)),
      f"{max(1, len(o.parts))}",
      o.summary["cost"]["rounds"],
      format_cost(megabytes(o, "bytes_up")),
      format_cost(megabytes(o, "bytes_down")),
      format_cost(_last(o, "simulated_s")),
      format_cost(_last(o, "seconds")),
    ]
    for o in outcomes
  ]
  return [
    "You find accuracy in percent (for diabetes 100 R²) after the last round: "
    "deployed by the clients, on their own test data, and of the server's model, on "
    "all test data. The largest difference over the partitions is measured on the "
    "server's model. MB are sums over all participants. The simulated machines have "
    "one to four cores and links of 10 to 100 Mbit/s, without latency. Seconds were "
    "measured on one core that other work shared.",
    pages.Table(
      [
        "data",
        "method",
        "deployed",
        "server's",
        "largest difference",
        "partitions",
        "rounds",
        "MB up",
        "MB down",
        "simulated s",
        "measured s",
      ],
      rows,
    ),
    *_at_equal_costs(outcomes),
  ]


def _at_equal_costs(outcomes: suite.Outcomes) -> list[pages.Block]:
  """The iterative methods where they have cost as much as AFL."""
  rows = []
  for runs in suite.by_panel(outcomes):
    base = next((o for o in runs if o.cell.label == BASE), None)
    for o in runs:
      if base is None or o.cell.label not in ITERATIVE:
        continue
      cells = []
      for column in ("total_bytes", "simulated_s"):
        reached = at_budget(o, column, _last(base, column))
        text = f"{reached.scores.mean():.2f} (round {reached.round})"
        if not reached.round:
          text = "- (before round 5)"
        elif reached.share < 1:
          text += f", at {100 * reached.share:.0f} % of them"
        cells.append(text)
      rows.append(
        [
          o.cell.panel_title,
          o.cell.label,
          f"{SCORE(base).mean():.2f}",
          *cells,
          f"{SCORE(o).mean():.2f}",
        ]
      )
  if not rows:
    return []
  return [
    "Iterative methods at AFL's bytes (both ways, of all participants) and at its "
    "simulated seconds. Every fifth round is evaluated, and the last one within the "
    "budget counts. If a run ends earlier, you see the share of the budget that it "
    "used.",
    pages.Table(
      [
        "data",
        "method",
        "AFL",
        "at equal bytes",
        "at equal seconds",
        "after 200 rounds",
      ],
      rows,
    ),
  ]


def _empty(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Section: the cells that are not there, and why."""
  titles = {o.cell.panel_title for o in outcomes}
  reasons = [
    f"- {place.title}, {label}: {why}."
    for place in PLACES.values()
    if place.title in titles
    for label, why in place.without.items()
  ]
  return ["Cells that stay empty:", "\n".join(reasons)] if reasons else []


def _numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """What is deployed after the last round, and by iterative methods at AFL's bytes."""
  table = []
  for runs in suite.by_panel(outcomes):
    panel = runs[0].cell.heading + ", 100 R²" * (runs[0].cell.metric == "r2")
    base = next((o for o in runs if o.cell.label == BASE), None)
    for o in runs:
      is_personal = abs(SCORE(o).mean() - SERVER(o).mean()) > _SAME_MODEL
      table.append(
        _dot(panel, o.cell.label, SCORE(o), _PERSONAL if is_personal else _SERVERS)
      )
      if base is not None and o.cell.label in ITERATIVE:
        reached = at_budget(o, "total_bytes", _last(base, "total_bytes"))
        row = f"{o.cell.label} at {BASE}'s bytes"
        if reached.round:
          table.append(_dot(panel, row, reached.scores, _SERVERS))
  return table


def _dot(panel: str, row: str, numbers: np.ndarray, name: str) -> dots.Dot:
  mean, half, values = figures.of_parts([numbers])
  return dots.Dot(panel, row, mean, half, name=name, values=values)


def _is_invariant(label: str) -> Callable[[suite.Outcomes], verdicts.Verdict]:
  """Whether the server's model is as good in every partition."""

  def check(outcomes, panel):
    values = SERVER(verdicts.pick(outcomes, panel, label))
    if len(values) < 2:
      raise verdicts.NotRun(f"a single partition in panel {panel}")
    apart = float(np.ptp(values))
    # One of 10,000 test examples may lie on the decision boundary.
    measurement = verdicts.Measurement(f"{apart:.2f} apart", mean=apart, unit="points")
    return verdicts.Verdict(apart <= 0.02, (measurement,))

  letters = [
    panel.letter
    for panel in PANELS
    if label not in PLACES[_PLACE_OF[panel.letter]].without
  ]
  return verdicts.in_panels(check, letters)


def _cheaper(label: str) -> verdicts.Statement:
  """Whether AFL is above an iterative method at its bytes."""

  def check(outcomes, panel):
    base = verdicts.pick(outcomes, panel, BASE)
    other = verdicts.pick(outcomes, panel, label)
    reached = at_budget(other, "total_bytes", _last(base, "total_bytes"))
    # AFL is the same in every partition.
    return verdicts.above(SCORE(base).mean(), reached.scores)

  return verdicts.Statement(
    NAME,
    "family",
    f"At the bytes of one round of {BASE}, {BASE} is above {label}",
    verdicts.in_panels(check),
  )


FIGURE = figures.Figure(
  "The analytic family: what one round of least squares is worth",
  "accuracy",
  "",
  PANELS,
  protocol="local",
  protocols="global,local",
  eval_every=5,
  lines_of=_lines,
  table=_table,
  sections=(_empty, board.replay),
  num_seeds=1,
  partitions=9,
  dots=(
    figures.dot_picture(
      _numbers,
      "deployed accuracy, %",
      interval="95 % CI over partitions",
      most=100.0,
      panels=2,
    ),
  ),
  pictures=False,
  quick=("e",),
  statements=(
    *(
      verdicts.Statement(
        NAME,
        "family",
        f"The model of {label} is as accurate in every partition",
        _is_invariant(label),
      )
      for label in INVARIANT
    ),
    *(_cheaper(label) for label in ITERATIVE),
  ),
)
