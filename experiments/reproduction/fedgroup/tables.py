"""The tables of the FedGroup paper, made from finished runs."""

from collections.abc import Callable

import numpy as np

from fedjax_alg import metrics

from ...reports import markdown
from .. import answers, cost_to_accuracy, pages, partitions, report, suite, verdicts
from . import claims

PROTOCOL = "local"


def _accuracy(outcome: suite.Outcome, which: str, protocol: str) -> str:
  """An accuracy in percent; "-" without the protocol."""
  if protocol not in outcome.frames.protocols:
    return "-"
  scores = outcome.frames.scores(which, protocol, "accuracy")
  return markdown.format_values(scores, factor=100.0)


def gains(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Table 3: the best round of all methods, and the mean of the last ten.

  The first table has the form of the paper, with numbers ``ours (paper)``.
  """
  stated = report.paper_numbers(claims.NAME, "Table3", "test_accuracy_max")
  # Panel g has the data of the other generator; the paper's numbers are those
  # of panel c.
  alias = {"g": "c"}
  order = [*claims.COLUMNS, *claims.BEYOND]
  runs = sorted(
    outcomes,
    key=lambda o: order.index(o.cell.label) if o.cell.label in order else len(order),
  )

  def cells(which: str) -> pages.Table:
    return report.panel_table(
      (
        o.cell.heading,
        o.cell.label,
        _accuracy(o, which, PROTOCOL)
        + ("" if published is None or which != "best" else f" ({published:.1f})"),
      )
      for o in runs
      for published in [
        stated.get((alias.get(o.cell.panel, o.cell.panel), o.cell.label))
      ]
    )

  return [
    "Accuracy of the clients' models on their test data, in percent: the best "
    "evaluated round, as in the paper. The paper's numbers are in brackets.",
    cells("best"),
    "The mean of the last ten rounds, which no test data chose:",
    cells("last_10"),
  ]


def by_partition(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Synthetic: every method on each partition, and their spread."""
  verdict_of = {
    a.method: a.words
    for a in of_table3("synthetic")(outcomes)
    if a.metric == "test_accuracy_max"
  }
  stated = report.paper_numbers(claims.NAME, "Table3", "test_accuracy_max")
  rows = []
  for o in outcomes:
    parts = o.parts or (o,)
    means = [float(claims.SCORE(part).mean()) for part in parts]
    rows.append(
      [
        o.cell.label,
        markdown.format_number(stated.get(("e", o.cell.label)), ".1f"),
        *(markdown.format_values(claims.SCORE(part)) for part in parts),
        f"{min(means):.1f} to {max(means):.1f}",
        metrics.format_estimate(metrics.estimate_mean(means)),
        verdict_of.get(o.cell.label, "-"),
      ]
    )
  return [
    "Best evaluated round of `local`, in percent, mean of the seeds. "
    "The partitions have about as many examples as the paper's; "
    "none is chosen by accuracy. The last columns count each partition "
    "as one draw.",
    pages.Table(
      [
        "method",
        "paper",
        *(
          f"partition {part.cell.config.values['partition_seed']}"
          for part in outcomes[0].parts or outcomes[:1]
        ),
        "lowest to highest",
        "mean +- 95 % CI over partitions",
        "verdict",
      ],
      rows,
    ),
  ]


def of_table3(figure: str) -> Callable[[suite.Outcomes], list[answers.PaperAnswer]]:
  """Makes the ``Figure.extra_answers`` that answers Table 3 by another figure."""

  def judge(outcomes: suite.Outcomes) -> list[answers.PaperAnswer]:
    return [
      answer._replace(figure=figure)
      for answer in answers.answer_numbers(claims.NAME, "Table3", outcomes, OF_TABLE3)
    ]

  return judge


def survives(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Section: how much of FedGroup's gain over FedAvg is due to its groups."""
  rows = []
  for runs in suite.by_panel(outcomes):
    scores = {o.cell.label: claims.SCORE(o) for o in runs}
    if {"FedAvg", claims.FG, claims.PRETRAINED} <= set(scores):
      plain, groups, without = (
        scores[label] for label in ("FedAvg", claims.FG, claims.PRETRAINED)
      )
      rows.append(
        [
          runs[0].cell.place,
          markdown.format_values(groups - plain),
          markdown.format_values(without - plain),
          markdown.format_values(groups - without),
        ]
      )
  if not rows:
    return []
  return [
    pages.Heading("Groups or pre-training"),
    "FedGroup pre-trains clients before round 1. "
    f'"{claims.PRETRAINED}" pre-trains as many, puts them '
    "into one group and continues as FedAvg.",
    pages.Table(
      [
        "data and model",
        "FG-EDC - FedAvg, points",
        "of these without groups",
        "of groups",
      ],
      rows,
    ),
  ]


@partitions.per_partition
def _median(outcome: suite.Outcome) -> np.ndarray:
  """The median over rounds of the accuracy in percent, [seeds]."""
  median: np.ndarray = 100.0 * np.median(
    outcome.frames.curves("global", "accuracy"), axis=1
  )
  return median


#: metric of the claims file -> what is measured.
OF_TABLE3: answers.Measures = {
  "test_accuracy_max": claims.SCORE,
  "gain_over_FeSEM": (claims.SCORE, "FeSEM"),
}
OF_TABLE1 = {
  "discrepancy_mean": verdicts.of_rounds("discrepancy"),
  "discrepancy_variance": verdicts.of_rounds("discrepancy", np.var),
  "test_accuracy_max": verdicts.best("accuracy"),
  "test_accuracy_median": _median,
  "rounds_to_85%": verdicts.rounds_until(0.85),
}


def heterogeneity(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Table 1: discrepancy and accuracy by the number of a client's classes."""

  def column(metric: str, form: str, digits: int = 2) -> report.Column:
    """Ours, and the paper's number in brackets."""
    stated = report.paper_numbers(claims.NAME, "Table1", metric)

    def cell(o: suite.Outcome) -> str:
      numbers = OF_TABLE1[metric](o)
      ours = (
        markdown.format_values(numbers, digits)
        if digits
        else cost_to_accuracy.format_rounds(
          [n if np.isfinite(n) else None for n in numbers],
          o.summary["cost"]["rounds"],
          spread=True,
        )
      )
      value = stated.get((o.cell.panel, "FedAvg"))
      return ours + ("" if value is None else f" ({value:{form}})")

    return cell

  columns = {
    "classes": lambda o: o.cell.panel_title,
    "discrepancy, mean (paper)": column("discrepancy_mean", ".3f", 3),
    "variance (paper)": column("discrepancy_variance", ".4g", 4),
    "best accuracy (paper)": column("test_accuracy_max", ".1f"),
    "median (paper)": column("test_accuracy_median", ".1f"),
    "rounds to 85 %: median, range (paper)": column("rounds_to_85%", ".0f", 0),
    "`local`, best round": lambda o: _accuracy(o, "best", "local"),
  }
  return [
    pages.Table(
      list(columns), [[cell(o) for cell in columns.values()] for o in outcomes]
    )
  ]


def _after(outcome: suite.Outcome, protocol: str, number: int) -> str:
  """Accuracy after a round in percent; "-" if it was not evaluated then."""
  values = 100 * outcome.frames.curves(protocol, "accuracy", number, number)
  return markdown.format_values(values[:, 0]) if values.size else "-"


def newcomers(outcomes: suite.Outcomes) -> list[pages.Block]:
  """A table of the accuracy of newcomers and of the other clients."""
  ((when, _),) = outcomes[0].cell.config.values["newcomers_at"]
  rows = []
  for o in outcomes:
    late = [verdicts.late("accuracy", p)(o) for p in ("newcomers", PROTOCOL)]
    rows.append(
      [
        o.cell.label,
        _after(o, "newcomers", when),
        *map(markdown.format_values, late),
        markdown.format_values(late[0] - late[1]),
      ]
    )
  return [
    pages.Table(
      [
        "method",
        f"newcomers after {when} rounds, when they come",
        "newcomers, mean of the last ten",
        "the others, mean of the last ten",
        "difference",
      ],
      rows,
    )
  ]


def shifts(outcomes: suite.Outcomes) -> list[pages.Block]:
  """A table of the accuracy before and after the clients' data change."""
  when = outcomes[0].cell.config.data.shift.period
  assert when is not None
  last = outcomes[0].summary["cost"]["rounds"]
  parts = [n for n in (when, when + 1, when + 10, last) if n <= last]
  return [
    pages.Table(
      ["method", *(f"after round {n}" for n in parts), "mean of the last ten"],
      [
        [
          o.cell.label,
          *(_after(o, PROTOCOL, n) for n in parts),
          _accuracy(o, "last_10", PROTOCOL),
        ]
        for o in outcomes
      ],
    )
  ]
