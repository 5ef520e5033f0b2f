"""A board of clustered and personalized methods, all tuned with equal budgets.

Nine methods on three data sets, nine partitions of each with one seed. Every
method's settings are those of

  python -m experiments.beyond --figure=board --tune=all

Twelve settings a method are compared on a sixth of the training images. What counts is
the accuracy of what the clients deploy after the last round on their own test data.
Every method is compared with FedAvg and with the best one, partition by partition.
"""

from collections.abc import Sequence
import pathlib

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.records.scores import nan_as_worst
from fedjax_alg.runs.compare import holm, paired_t

from ...reports import markdown
from .. import figures, pages, report, suite, verdicts
from . import setting

NAME = "beyond"
BASE = "FedAvg"
#: label -> file in presets/beyond/methods_<data>.
METHODS = {
  BASE: "fedavg",
  "FedProx": "fedprox",
  "FedGroup": "fedgroup",
  "IFCA": "ifca",
  "FeSEM": "fesem",
  "CFL": "cfl",
  "FL+HC": "flhc",
  "Ditto": "ditto",
  "each client alone": "local",
}
#: Title of a panel -> its data preset.
DATA = {
  "MNIST": "board_mnist",
  "Fashion-MNIST": "board_fashion",
  "digits": "board_digits",
}
PANELS = tuple(
  figures.Panel(
    letter,
    title,
    {},
    data,
    of={"data": title},
    tuned=tuple(f"{NAME}/methods_{data}/{name}.flags" for name in METHODS.values()),
  )
  for letter, (title, data) in zip("abc", DATA.items())
)


def _lines(panel: figures.Panel) -> list[figures.FigureLine]:
  folders = ["methods", *[f"methods_{panel.data}"] * panel.is_tuned]
  return [
    figures.FigureLine(
      label, tuple(f"{NAME}/{folder}/{name}.flags" for folder in folders)
    )
    for label, name in METHODS.items()
  ]


#: outcome -> accuracy in percent of each partition.
SCORE = verdicts.late("accuracy", "local")


def gap_statistics(gaps: Sequence[np.ndarray]) -> list[tuple[metrics.Estimate, float]]:
  """The mean with its interval, and Holm's p value, of paired differences."""
  corrected = holm([paired_t(list(gap))[1] for gap in gaps])
  return [(metrics.estimate_mean(list(gap)), p) for gap, p in zip(gaps, corrected)]


def gap_cell(spread: metrics.Estimate, p: float) -> metrics.Number:
  """A paired difference with its sign and its p value, for a table."""
  return metrics.number_of(spread, sign="+", p=p)


def _board_table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Every method's accuracy, and its gaps with the p values of the tests."""
  rows = []
  for runs in suite.by_panel(outcomes):
    means = {o.cell.label: SCORE(o) for o in runs}
    best = max(means, key=lambda label: nan_as_worst(means[label].mean()))
    columns = []
    for reference in (BASE, best):
      labels = [label for label in means if label != reference]
      gaps = gap_statistics([means[label] - means[reference] for label in labels])
      columns.append({label: gap_cell(*gap) for label, gap in zip(labels, gaps)})
    for o in sorted(runs, key=lambda o: -nan_as_worst(means[o.cell.label].mean())):
      label = o.cell.label
      worst = o.frames.estimate("last_10", "local", "worst_decile")
      megabytes = o.frames.end("total_bytes") / 1e6
      rows.append(
        [
          o.cell.panel_title,
          label,
          markdown.format_values(means[label]),
          metrics.format_estimate(worst, 1, 100),
          *(column.get(label, "-") for column in columns),
          f"{megabytes.mean():,.0f}",
        ]
      )
  return [
    "Accuracy of the models that clients deploy after the last round, on their "
    "test data, in percent, and of the worst tenth of them. Gaps are paired "
    "by partition; in brackets the p value of the paired t test, with Holm's "
    "correction for the eight tests of a column.",
    pages.Table(
      [
        "data",
        "method",
        "accuracy",
        "worst tenth",
        f"less {BASE}",
        "less the best",
        "MB",
      ],
      rows,
    ),
  ]


def replay(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Section: the line that runs each cell again."""
  lines = [
    f"- {o.cell.panel_title}, {o.cell.label}: `fedjax-alg run "
    f"{report.format_flags(o)} --partition_seed=P`"
    for o in outcomes
  ]
  last = max(len(o.parts or (o,)) for o in outcomes) - 1
  return [
    pages.Details(
      f"The line that runs each cell again, P = 0 to {last}", ["\n".join(lines)]
    )
  ]


def _describe_setting(folder: pathlib.Path) -> str:
  """Section: what all runs have, and what belongs to it."""
  return (
    setting.describe_setting(PANELS, folder)
    + " [Which method when](../choosing.md) has the conclusions, "
    "[methods](../methods.md) all methods. The [map](beyond_map.md) asks the same "
    "about an MLP and 40 clients that all take part, and about other kinds of "
    "difference. The [bridge](beyond_bridge.md) says why its numbers differ."
  )


FIGURE = figures.Figure(
  "The board: clustered and personalized methods, tuned with equal budgets",
  "accuracy",
  "",
  PANELS,
  protocol="local",
  protocols="local",
  eval_every=50,
  lines_of=_lines,
  table=_board_table,
  sections=(replay,),
  num_seeds=1,
  partitions=9,
  dots=(
    figures.dot_picture(
      figures.measured(SCORE), "accuracy on the clients' own test data, %", most=100.0
    ),
  ),
  setting=_describe_setting,
)
