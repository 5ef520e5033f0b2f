"""Private clients: accuracy for the epsilon that it costs, on MNIST.

3,000 clients of 18 images each; the server sees what is released alone.
DP-FedAvg, with a fixed norm and with one that follows a quantile, and CFSVRG,
which releases an anchor gradient beside the updates, run 100 rounds with a
twentieth of the clients, drawn by Poisson sampling; AFL releases its noised
moments once, FedACnnL once for each of two layers. All see HoG features. The
noise of every method is what the accountant asks for the epsilon of the panel.
"""

from collections.abc import Sequence
import math

import numpy as np

from fedjax_alg.runs import styles

from ...drawing import plots
from ...reports import markdown
from .. import figures, pages, report, suite, verdicts

NAME = "beyond"

#: label -> file in presets/beyond/private, and what its rounds release.
METHODS = {
  "FedAvg": ("fedavg", "sampled"),
  "FedAvg, adaptive norm": ("fedavg_adaptive", "sampled"),
  "CFSVRG": ("cfsvrg", "sampled"),
  "AFL": ("afl", "once"),
  "FedACnnL": ("fedacnnl", "twice"),
}

#: Epsilon of each panel at a delta of 1e-5.
EPSILONS = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0, "e": math.inf}

#: Kinds of release -> z for the epsilon of each panel but the last. The
#: accountant gives them; a test asks it again.
NOISE = {
  "sampled": (2.143, 1.345, 0.940, 0.696),
  "once": (3.731, 1.994, 1.082, 0.601),
  "twice": (5.276, 2.820, 1.529, 0.849),
}

_BUDGETS = ("a", "b", "c", "d")


def _lines(panel: figures.Panel) -> list[figures.FigureLine]:
  """Every method with the noise of a panel; without privacy in the last."""
  lines = []
  for label, (file, released) in METHODS.items():
    if panel.letter in _BUDGETS:
      noise = NOISE[released][_BUDGETS.index(panel.letter)]
      preset = f"beyond/private/{file}.flags"
      lines.append(figures.FigureLine(label, (preset, {"private.noise": noise})))
    elif file != "fedavg_adaptive":
      lines.append(figures.FigureLine(label, (f"beyond/private/{file}_plain.flags",)))
  return lines


#: Of the last evaluation, in percent, of every seed.
_accuracies = verdicts.end("accuracy")


def _epsilon(outcome: suite.Outcome) -> float:
  """Reads epsilon: infinite without privacy, NaN without the accountant."""
  if "privacy" not in outcome.summary:
    return math.inf
  epsilon = outcome.summary["privacy"]["epsilon"]
  return math.nan if epsilon is None else epsilon


def _table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Accuracy and epsilon of every run."""
  return [
    report.of_runs(
      outcomes,
      {
        "epsilon": lambda o: "-" if math.isinf(_epsilon(o)) else f"{_epsilon(o):.3f}",
        "z": lambda o: (
          f"{o.summary['privacy']['noise_multiplier']:g}"
          if math.isfinite(_epsilon(o))
          else "-"
        ),
        "accuracy, % +- 95 % CI": lambda o: markdown.format_values(_accuracies(o)),
        "rounds": lambda o: o.summary["cost"]["rounds"],
      },
    ),
    "Epsilon protects a client with all its data, added or removed (delta "
    "1e-5). In all panels, all settings except z have the best validation "
    "accuracy at epsilon 2.",
    *_at_equal_accuracy(outcomes),
  ]


def _at_equal_accuracy(outcomes: suite.Outcomes) -> list[pages.Block]:
  """The epsilon at which each method is as accurate as DP-FedAvg."""
  curves = _curves(outcomes)
  if "FedAvg" not in curves:
    return []
  budgets, means = (
    np.array(column)
    for column in zip(
      *[(epsilon, values.mean()) for epsilon, values in curves["FedAvg"]]
    )
  )
  others = {label: points for label, points in curves.items() if label != "FedAvg"}
  table = pages.Table(
    ["DP-FedAvg at epsilon", "accuracy, %", *(f"{label} needs" for label in others)],
    [
      [
        f"{budget:.2f}",
        f"{mean:.2f}",
        *(
          _needed_epsilon(
            [epsilon for epsilon, _ in points],
            [values.mean() for _, values in points],
            mean,
          )
          for points in others.values()
        ),
      ]
      for budget, mean in zip(budgets, means)
    ],
  )
  return [
    table,
    "Epsilons between two that were run are interpolated, linearly in their logarithm.",
  ]


def _needed_epsilon(
  epsilons: Sequence[float], accuracies: Sequence[float], target: float
) -> str:
  """The least epsilon of an accuracy, in words; linear in its logarithm.

  Args:
    epsilons: ascending.
    accuracies: at each of them.
    target: the accuracy.
  """
  if accuracies[0] >= target:
    return f"at most {epsilons[0]:.2f}"
  for i in range(1, len(epsilons)):
    if accuracies[i] >= target:
      share = (target - accuracies[i - 1]) / (accuracies[i] - accuracies[i - 1])
      low, high = np.log(epsilons[i - 1 : i + 1])
      return f"{math.exp(low + share * (high - low)):.2f}"
  return f"more than {epsilons[-1]:.2f}"


def _curves(outcomes: suite.Outcomes) -> dict[str, list[tuple[float, np.ndarray]]]:
  """label -> (epsilon, accuracy of every seed) by epsilon, where finite."""
  curves: dict[str, list[tuple[float, np.ndarray]]] = {}
  for outcome in outcomes:
    epsilon = _epsilon(outcome)
    if math.isfinite(epsilon):
      curves.setdefault(outcome.cell.label, []).append((epsilon, _accuracies(outcome)))
  return {
    label: sorted(points, key=lambda point: point[0])
    for label, points in curves.items()
  }


def _draw(
  paths: plots.Paths, outcomes: suite.Outcomes, title: str, x_axis: str
) -> None:
  """Accuracy over epsilon; ticks at the right are without privacy."""
  style = styles.line_styles(METHODS)
  with plots.sheet(paths, [""], title, size=(6.4, 4.0)) as (axis,):
    for label, points in _curves(outcomes).items():
      plots.draw_means(axis, label, points, style[label], 0.0, 100.0)
    for outcome in outcomes:
      if math.isinf(_epsilon(outcome)):
        axis.plot(
          1.0,
          _accuracies(outcome).mean(),
          "_",
          clip_on=False,
          color=style[outcome.cell.label].colour,
          markersize=16,
          markeredgewidth=2,
          transform=axis.get_yaxis_transform(),
        )
    axis.set_xscale("log")
    ticks = [e for e in EPSILONS.values() if math.isfinite(e)]
    axis.set_xticks(ticks, [f"{e:g}" for e in ticks])
    axis.minorticks_off()
    axis.set_xlabel(
      "epsilon of a client (delta = 1e-5); at the right edge: without privacy"
    )
    axis.set_ylabel("test accuracy, %")


def _above(label: str, than: str, panel: str) -> verdicts.Statement:
  """Whether a method is more accurate than another at the same epsilon."""

  return verdicts.Statement(
    NAME,
    "private",
    f"At epsilon {EPSILONS[panel]:g} {label} is above {than}",
    verdicts.higher(label, than, _accuracies, panel),
  )


FIGURE = figures.Figure(
  "Private clients: accuracy over epsilon, MNIST (HoG), 3,000 clients",
  "accuracy",
  "private",
  figures.make_panels(
    {
      "without privacy" if math.isinf(epsilon) else f"epsilon {epsilon:g}": {}
      for epsilon in EPSILONS.values()
    }
  ),
  _lines,
  eval_every=20,
  table=_table,
  of_claims=True,
  draw=_draw,
  quick=("a", "d"),
  shrunk={
    "dataset": "digits",
    "features": "flatten",
    "num_clients": 120,
    "validation_clients": 0,
  },
  statements=(
    _above("AFL", "FedAvg", "a"),
    _above("FedAvg", "AFL", "d"),
    _above("FedAvg, adaptive norm", "FedAvg", "b"),
    _above("CFSVRG", "FedAvg", "b"),
  ),
)
