"""Late clients: servers that wait, and servers that do not.

FedProx's experiment on simulated machines, of which the fastest is five times
as fast as the slowest: none, half and nine tenths of a round's participants do
a part of their local work. FedAvg drops what these have done, FedProx keeps it,
and both wait for the slowest participant that counts. FedBuff and FedAsync wait
for nobody. In all four, 10 clients train at the same time.
"""

import math

from ...drawing import dots
from ...reports import markdown
from .. import cost_to_accuracy, figures, pages, report, suite, verdicts

NAME = "beyond"

#: label -> file in presets/beyond/late.
_METHODS = {
  "FedAvg": "fedavg",
  "FedProx": "fedprox",
  "FedBuff": "fedbuff",
  "FedAsync": "fedasync",
}
_TARGETS = (0.8, 0.85)
_SHARES = (0, 0.5, 0.9)


def _takes(target: float, column: str, unit: float) -> report.Column:
  """Makes a column of a run's cost to an accuracy, the median over its seeds."""

  def cell(outcome: suite.Outcome) -> str:
    middle = cost_to_accuracy.median(
      cost_to_accuracy.costs_at_target(outcome, target, column)
    )
    return "never" if middle is None else f"{middle / unit:,.1f}"

  return cell


def _table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Tabulates every method's cost to an accuracy."""
  table = report.of_runs(
    outcomes,
    {
      "last ten rounds, % +- 95 % CI": lambda o: markdown.format_values(
        verdicts.late("accuracy")(o)
      ),
      **{
        f"{cost} to {100 * target:g} %": _takes(target, column, unit)
        for target in _TARGETS
        for cost, column, unit in (
          ("simulated minutes", "simulated_s", 60.0),
          ("MB", "total_bytes", 1e6),
          ("rounds", "round", 1.0),
        )
      },
    },
    "stragglers",
  )
  return [
    table,
    "Costs are medians over seeds, at the first evaluation that "
    "reaches the accuracy; MB are sums over all participants, both ways. "
    "A round has 5 clients with FedBuff and 10 with the others. FedBuff's "
    "clients have equal weights. FedAvg and FedProx weight clients with their "
    "examples, as in FedAvg's paper.",
  ]


def _sooner(label: str, than: str, panel: str) -> verdicts.Statement:
  """Whether a method is there in less simulated time than another."""

  def check(outcomes):
    # The other method may never get there: then its whole run is the bound.
    took, bound = (
      cost_to_accuracy.costs_at_target(
        verdicts.pick(outcomes, panel, name),
        _TARGETS[0],
        "simulated_s",
        or_last=name == than,
      )
      for name in (label, than)
    )
    return verdicts.above(
      cost_to_accuracy.saved_percent(took, bound), 0.0, "% less time", 1
    )

  share = _SHARES["abc".index(panel)]
  return verdicts.Statement(
    NAME,
    "late",
    f"With {100 * share:g} % stragglers {label} is at "
    f"{100 * _TARGETS[0]:g} % in less simulated time than {than}",
    check,
  )


def _keeps(panel: str) -> verdicts.Statement:
  """Whether partial work is worth keeping (FedProx, Figure 1)."""
  share = _SHARES["abc".index(panel)]
  return verdicts.Statement(
    NAME,
    "late",
    f"With {100 * share:g} % stragglers FedProx, which keeps "
    "what they have done, ends above FedAvg, which drops it",
    verdicts.higher("FedProx", "FedAvg", verdicts.late("accuracy"), panel),
  )


def _numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """The simulated minutes to each accuracy, by the share of stragglers."""
  table = []
  for target in _TARGETS:
    for o in outcomes:
      seconds = cost_to_accuracy.median(
        cost_to_accuracy.costs_at_target(o, target, "simulated_s")
      )
      table.append(
        dots.Dot(
          f"to {100 * target:g} %",
          o.cell.label,
          math.nan if seconds is None else seconds / 60.0,
          name=o.cell.panel_title,
          note="never" if seconds is None else "",
        )
      )
  return table


FIGURE = figures.Figure(
  "Late clients on MNIST (power law): simulated time to a test accuracy",
  "accuracy",
  "late",
  figures.make_panels(
    {
      f"{100 * share:g} % stragglers": {"stragglers": f"share:{share:g}"}
      if share
      else {}
      for share in _SHARES
    }
  ),
  figures.of_files("beyond/late", _METHODS),
  eval_every=5,
  table=_table,
  dots=(
    figures.dot_picture(
      _numbers,
      "simulated minutes, median over seeds (log scale)",
      x_scale="log",
      first="low",
      steps=True,
      same_axis=True,
    ),
  ),
  shrunk={
    "dataset": "digits",
    "features": "none",
    "partition": "classes:2",
    "num_clients": 60,
    "local_epochs": 5,
    "client_lr": 0.1,
    "targets": "0.6,0.7",
  },
  statements=(
    *(_keeps(panel) for panel in "bc"),
    *(
      _sooner(label, "FedAvg", panel)
      for panel in "abc"
      for label in ("FedBuff", "FedAsync")
    ),
  ),
)
