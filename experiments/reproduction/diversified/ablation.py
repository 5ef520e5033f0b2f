"""Ablation of variance reduction, several models and central acceleration.

MA-FSVRG is FSVRG's local steps, K models and a server step like Adam's. The
ablation runs every combination of

- local steps: FedAvg's, FSVRG's, SCAFFOLD's;
- the server's step: the average, MA's adaptive step, CFSVRG's conjugate one;
- K = 1, 2, 4 models, by MA's grouping,

each with its own rates, chosen on validation clients:

  python -m experiments.tune --paper=diversified --methods=ablation --write
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.records import summary as results
from fedjax_alg.records import tables as records

from ...drawing import plots
from ...reports import markdown, rule
from .. import cost_to_accuracy as targets
from .. import figures, partitions, suite, verdicts

#: The accuracy that counts as reached.
TARGET = 0.98
#: Where the axis of accuracies begins, in percent.
_LEAST = 95.0

#: Local steps -> --client_update.
LOCAL = {"FedAvg": "sgd", "FSVRG": "svrg", "SCAFFOLD": "scaffold"}
#: The server's step -> --server.
SERVER = {
  "average": "average",
  "adaptive": "adaptive",
  "conjugate": "conjugate_gradient",
}
MODELS = (1, 2, 4)


class Combination(NamedTuple):
  """A cell of the grid."""

  local: str  #: one of ``LOCAL``
  server: str  #: one of ``SERVER``
  models: int  #: K

  @property
  def label(self) -> str:
    return f"{self.local}, {self.server}, K = {self.models}"

  @property
  def name(self) -> str:
    """The name of its preset, and of its cell."""
    return f"{LOCAL[self.local]}_{self.server}_{self.models}"

  @property
  def preset(self) -> str:
    return f"diversified/ablation/{self.name}.flags"

  def start(self) -> dict[str, Any]:
    """The settings of the run before its rates are tuned."""
    values = {
      "algorithm": "composed",
      "client_update": LOCAL[self.local],
      "server": SERVER[self.server],
      "num_models": self.models,
      "local_steps": 20,
      "batch_size": 10,
    }
    # As the paper states.
    return values | ({"threshold": 4} if self.models > 1 else {})


#: Name -> combination.
CELLS = {
  cell.name: cell
  for cell in itertools.starmap(Combination, itertools.product(LOCAL, SERVER, MODELS))
}
_BY_LABEL = {cell.label: cell for cell in CELLS.values()}


#: The 27 lines of a panel.
lines = figures.of_files(
  "diversified/ablation", {label: cell.name for label, cell in _BY_LABEL.items()}
)

#: The mean of the last ten rounds, in percent; one for each repetition.
_accuracy = verdicts.late("accuracy")


@partitions.per_partition
def _rounds(outcome: suite.Outcome) -> np.ndarray:
  """The rounds to the target; NaN for a repetition that does not reach it.

  A repetition is a seed, or a partition with the mean of its seeds.
  """
  return np.array(targets.costs_at_target(outcome, TARGET, "round"), float)


class _Component(NamedTuple):
  """A part of MA-FSVRG, and what stands in its place without it."""

  field: str  #: of ``Combination``
  title: str
  without: Any
  values: tuple[Any, ...]


PARTS = (
  _Component("local", "variance reduction", "FedAvg", ("FSVRG", "SCAFFOLD")),
  _Component("models", "several models", 1, (2, 4)),
  _Component("server", "central acceleration", "average", ("adaptive", "conjugate")),
)


def _pairs(
  outcomes: suite.Outcomes, part: _Component, value: Any
) -> Iterator[tuple[Combination, suite.Outcome, suite.Outcome]]:
  """(combination without the part, its run, the run with the part)."""
  for runs in suite.by_panel(outcomes):
    by_cell = {_BY_LABEL[o.cell.label]: o for o in runs}
    for cell, outcome in by_cell.items():
      if getattr(cell, part.field) == part.without:
        partner = by_cell.get(cell._replace(**{part.field: value}))
        if partner is not None:
          yield cell, outcome, partner


def _difference(
  pairs: Sequence[tuple[Combination, suite.Outcome, suite.Outcome]],
  measure: Callable[[suite.Outcome], np.ndarray],
) -> tuple[dict[str, Any], int]:
  """The mean difference over the pairs, and how many pairs have one.

  All runs share their seeds and partitions, so there is a difference for each
  repetition, and the spread is that over the repetitions.
  """
  gaps = np.array([measure(b) - measure(a) for _, a, b in pairs])
  complete = ~np.isnan(gaps).any(1)
  if not complete.any():
    return results.spread([np.nan]), 0
  return results.spread(gaps[complete].mean(0)), int(complete.sum())


def _words(difference: Mapping[str, Any]) -> str:
  """The verdict on a difference of accuracies."""
  verdict = rule.place_gap(difference["mean"], difference["ci95"], rule.TIE)
  return {
    rule.ABOVE: "gains more than the tie",
    rule.BELOW: "costs more than the tie",
    rule.SAME: f"at most {rule.TIE} points either way",
  }.get(verdict, verdict)


def ablation_section(outcomes: suite.Outcomes) -> str:
  """Section: what each part gains, by itself, on average, and added to the rest."""
  intro = (
    "## What each part brings\n\nYou see paired differences of the accuracy "
    "in points, with the part less without it. *By itself*: added to FedAvg's "
    "steps with the average and one model. *To the rest*: added to both other "
    "parts of MA-FSVRG (FSVRG's steps, the adaptive step, K = 4). *On "
    "average*: over all combinations of the other parts. All "
    "are means over the panels that were run. The verdict is on the "
    f"average. Rounds saved are rounds to {100 * TARGET:g} %, over the "
    "pairs in which all repetitions of both reach it.\n\n"
  )
  rows, sentences = [], []
  full = Combination("FSVRG", "adaptive", 4)
  for part in PARTS:
    for value in part.values:
      pairs = list(_pairs(outcomes, part, value))
      if not pairs:
        continue
      without = {part.field: part.without}
      on_fedavg = [p for p in pairs if p[0] == Combination("FedAvg", "average", 1)]
      on_rest = [p for p in pairs if p[0] == full._replace(**without)]
      mean, _ = _difference(pairs, _accuracy)
      rounds, number = _difference(pairs, lambda o: -_rounds(o))
      text = f"K = {value}" if part.field == "models" else str(value)
      rows.append(
        [
          f"{part.title}: {text}",
          part.without,
          *(
            results.format_spread(_difference(some, _accuracy)[0], sign="+")
            if some
            else "-"
            for some in (on_fedavg, on_rest)
          ),
          results.format_spread(mean, sign="+"),
          _words(mean),
          f"{results.format_spread(rounds, 1, sign='+')} ({number} of {len(pairs)})",
        ]
      )
      sentences.append(
        f"{part.title.capitalize()} ({text}): "
        f"{results.format_spread(mean, sign='+')} points, {_words(mean)}."
      )
  if not sentences:
    return ""
  return (
    intro
    + markdown.table(
      [
        "part",
        "instead of",
        "by itself",
        "to the rest",
        "on average",
        "compared",
        "rounds saved (pairs)",
      ],
      rows,
    )
    + f"\n\n{' '.join(sentences)}"
  )


def ablation_table(outcomes: suite.Outcomes) -> str:
  """The accuracy and the rounds to the target of every combination."""
  panels = suite.by_panel(outcomes)
  titles = [runs[0].cell.panel_title for runs in panels]
  rows = []
  by_cell = {(o.cell.panel, o.cell.label): o for o in outcomes}
  for cell in CELLS.values():
    runs = [by_cell.get((panel[0].cell.panel, cell.label)) for panel in panels]
    if any(o is not None for o in runs):
      rows.append(
        [
          cell.local,
          cell.server,
          cell.models,
          *("-" if o is None else _accuracies(o) for o in runs),
          *("-" if o is None else _median(o) for o in runs),
        ]
      )
  return (
    "Test accuracy in percent, mean of the last ten rounds and, with several "
    "models, of the K; in brackets of the model that is best on validation "
    f"data. Then the rounds to {100 * TARGET:g} %, median over the runs; - "
    "if half of them do not reach it.\n\n"
    + markdown.table(
      [
        "local steps",
        "server",
        "K",
        *titles,
        *(f"rounds, {title}" for title in titles),
      ],
      rows,
    )
  )


def _accuracies(outcome: suite.Outcome) -> str:
  late = outcome.summary["mean_last_10"]
  picked = ""
  if records.GLOBAL_CHOSEN in late:
    picked = f" ({100 * late[records.GLOBAL_CHOSEN]['accuracy']['mean']:.2f})"
  return results.format_spread(late["global"]["accuracy"], factor=100) + picked


def _median(outcome: suite.Outcome) -> str:
  return markdown.format_number(
    targets.median(targets.costs_at_target(outcome, TARGET, "round"))
  )


def _dot(values: np.ndarray, cell: Combination) -> plots.Dot:
  """A mean with its interval; none where a repetition has no value."""
  mean, half = (
    (None, np.nan)
    if np.isnan(values).any()
    else (metrics.confidence_95(values.tolist()))
  )
  return plots.Dot(
    mean,
    half,
    None,
    f"K = {cell.models}",
    (list(SERVER).index(cell.server), MODELS.index(cell.models)),
  )


def draw_ablation(
  paths: plots.Paths, outcomes: suite.Outcomes, title: str, x_axis: str
) -> None:
  """Draws accuracy, and in a second picture the rounds to the target."""
  over = "partitions" if any(o.parts for o in outcomes) else "seeds"
  for number, words, measure, least, most in (
    (1, "test accuracy, %", _accuracy, _LEAST, 100.0),
    (2, f"rounds to {100 * TARGET:g} %", _rounds, -math.inf, math.inf),
  ):
    dots: dict[str, dict[str, list[plots.Dot]]] = {}
    for runs in suite.by_panel(outcomes):
      rows = dots[runs[0].cell.heading] = {}
      for o in runs:
        cell = _BY_LABEL[o.cell.label]
        rows.setdefault(f"{cell.local}, {cell.server}", []).append(
          _dot(measure(o), cell)
        )
    plots.dots(
      plots.number_paths(paths, number),
      dots,
      words,
      title,
      f"95 % CI over {over}",
      "not in all runs",
      most=most,
      least=least,
    )


def note(outcomes: suite.Outcomes) -> str:
  """Section: how to read the intervals."""
  return (
    "FSVRG's local steps are the paper's, with the scalings "
    "Lambda_i and A_r. SCAFFOLD's have one variate for each client, "
    "for all of the K models. The adaptive step is (64) as "
    f"printed, the conjugate one CFSVRG's. {partitions.describe_intervals(outcomes)}"
  )
