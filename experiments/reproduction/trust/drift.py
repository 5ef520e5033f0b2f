"""FedDrift's SINE-2 and CIRCLE-2, beside a grouping that knows the concepts.

Jothimurugesan, Hsieh, Wang, Joshi, Gibbons, "Federated Learning under Distributed
Concept Drift", AISTATS 2023. Its table of numbers could not be opened, so no number
of it is here: two sentences of its abstract are checked.
"""

from collections.abc import Callable

import numpy as np

from fedjax_alg import metrics

from .. import figures, pages, partitions, suite, verdicts

ROUNDS, STEPS = 2_000, 10
#: That of the data preset, on all steps so far.
_ALL_STEPS = "turns:5,1-5,3-6,3-7,7,3-6,5,2-5,4-8,7,data=all"
ORACLE = "oracle grouping"
OBLIVIOUS = "FedAvg on all steps (oblivious)"
_FEDDRIFT = ("FedDrift", "FedDrift-Eager")
#: label -> preset in presets/trust/methods.
_LINES = {
  "FedDrift": "drift_feddrift",
  "FedDrift-Eager": "drift_eager",
  ORACLE: "drift_oracle",
  "IFCA on the step": "drift_ifca",
  "FedAvg on the step": "drift_fedavg",
  OBLIVIOUS: "drift_fedavg",
}
#: Points up to which two methods count as comparable.
_COMPARABLE = 1.0


def _lines(panel: figures.Panel) -> list[figures.FigureLine]:
  end = {label: panel.values["dataset"] == "circle2" for label in _FEDDRIFT}
  return [
    figures.FigureLine(
      label,
      (
        f"trust/methods/{name}{'_circle2' * end.get(label, False)}.flags",
        {"concepts": _ALL_STEPS} if label == OBLIVIOUS else {},
      ),
    )
    for label, name in _LINES.items()
  ]


def _of_steps(reduce: Callable[..., np.ndarray]) -> verdicts.Measure:
  """Measures the accuracy of what clients deploy at the ends of the steps.

  Args:
    reduce: NumPy reduction of percentages [seeds, steps] over axis 1.

  Returns:
    The measure, which raises NotRun for a run that lacks steps.
  """

  @partitions.per_partition
  def measure(outcome: suite.Outcome) -> np.ndarray:
    verdicts.needs_rounds([outcome], ROUNDS)
    return 100 * reduce(outcome.frames.curves("local", "accuracy", first=1), axis=1)

  return measure


#: The mean over the steps, and the worst step.
MEAN, WORST = _of_steps(np.mean), _of_steps(np.min)


def _format(values: np.ndarray, digits: int = 2) -> str:
  return (
    "-"
    if np.isnan(values).all()
    else metrics.format_estimate(metrics.estimate_mean(values), digits)
  )


def _less_oracle(runs: suite.Outcomes) -> verdicts.Measure:
  return lambda outcome: (
    MEAN(outcome) - MEAN(verdicts.pick(runs, outcome.cell.panel, ORACLE))
  )


def _table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """A row for each method and data set, with its gap to the oracle."""
  rows = []
  for runs in suite.by_panel(outcomes):
    for outcome in runs:
      numbers = []
      for measure in (MEAN, _less_oracle(runs), WORST):
        try:
          numbers.append(_format(measure(outcome)))
        except verdicts.NotRun as error:
          numbers.append(str(error) if measure is MEAN else "-")
      rows.append(
        [
          f"{outcome.cell.panel}: {outcome.cell.panel_title}",
          outcome.cell.label,
          *numbers,
          _format(partitions.rand_index(outcome)),
        ]
      )
  return [
    "Accuracy in percent of the models that clients deploy, on their test data at "
    "the ends of the ten steps. ARI is the adjusted Rand index of groups against "
    "concepts, over the steps at which the clients have two.",
    pages.Table(
      [
        "panel",
        "method",
        "mean of the steps",
        f"less the {ORACLE}",
        "worst step",
        "ARI",
      ],
      rows,
    ),
  ]


def _comparable(label: str) -> Callable[..., verdicts.Verdict]:
  return verdicts.in_panels(
    lambda outcomes, panel: verdicts.same(
      MEAN(verdicts.pick(outcomes, panel, label)),
      MEAN(verdicts.pick(outcomes, panel, ORACLE)),
      _COMPARABLE,
    )
  )


_BASELINES = [label for label in _LINES if label not in (*_FEDDRIFT, ORACLE)]

FIGURE = figures.Figure(
  "FedDrift: two concepts that ten clients turn between, change points A",
  "accuracy",
  "feddrift",
  figures.make_panels(
    {"SINE-2": {"dataset": "sine2"}, "CIRCLE-2": {"dataset": "circle2"}}
  ),
  _lines,
  protocol="local",
  protocols="local",
  eval_every=ROUNDS // STEPS,
  num_seeds=1,
  partitions=5,
  table=_table,
  statements=verdicts.for_paper(
    "trust",
    "feddrift",
    {
      **{
        f"{label} is comparable to the {ORACLE} (here: within a point)": _comparable(
          label
        )
        for label in _FEDDRIFT
      },
      **{
        f"FedDrift is more accurate than {label}": verdicts.higher(
          "FedDrift", label, MEAN
        )
        for label in _BASELINES
      },
    },
  ),
  shrunk={"rounds": 20, "concepts.rounds": 2, "step_rounds": 2},
)
