"""Figs. 5 to 7 by the readings of what the paper leaves open, CIFAR-10.

What is measured: the global models on the "entire test dataset" (`global`), or
the model that each machine prefers on its own classes, "across all
participating machines" (`preferred`). What is computed, from the stated
settings on: (64) and L2 as printed, features of 0 to 255 (reading R-D4),
anchor gradients over those who prefer a model (errata D-06), GA's models moved
by means of trained models (D-17). The pooled optimum is what any method with
one such model comes to at best.
"""

from collections.abc import Callable
import math

from ...drawing import dots
from ...reports import markdown
from .. import figures, pages, partitions, report, suite, verdicts
from ..figures import FigureLine, Panel
from ..suite import STATED

#: Figure -> its metric.
METRICS = {"Fig5": "macro_recall", "Fig6": "macro_f1", "Fig7": "micro_precision"}
#: Protocol -> what it reads.
MEASURED = {"global": "entire test set", "preferred": "all machines"}
POOLED = "pooled optimum"

_READINGS: dict[str, dict[str, object]] = {
  "": {},
  ", as printed": {"central_rule": "printed", "l2_of": "mean"},
  ", features to 255": {"features": "hog:norm=none,scale=255"},
  ", own anchors": {"anchors": "preferring"},
  ", means of models": {"group_mean": "models"},
}


def lines_of_readings(
  base: Callable[[Panel], list[FigureLine]],
) -> Callable[[Panel], list[FigureLine]]:
  """Makes the ``Figure.lines_of`` of the readings.

  Args:
    base: the lines of Figs. 5 to 7.
  """

  def lines(panel: Panel) -> list[FigureLine]:
    if not panel.values:  # nobody takes part in the pooled optimum
      return [FigureLine(POOLED, ({"algorithm": "central"},))]
    return [
      line._replace(
        label=line.label + end, layers=(*line.layers, values), method=line.label
      )
      for line in base(panel)
      if line.protocol == STATED
      for end, values in _READINGS.items()
      if line.label == "GA-FSVRG" or "group_mean" not in values
    ]

  return lines


def reading_dots(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """The macro recall by every reading of the method and of what is measured."""
  stated = report.paper_numbers("diversified", "Fig5", "test_macro_recall")
  table = []
  for o in outcomes:
    for protocol, words in MEASURED.items():
      if protocol not in o.frames.protocols:
        continue
      mean, half, values = figures.of_parts(
        partitions.measure_parts(verdicts.late("macro_recall", protocol), o)
      )
      published = stated.get((o.cell.panel, o.cell.method), math.nan)
      table.append(
        dots.Dot("", o.cell.label, mean, half, published, name=words, values=values)
      )
  return table


def readings_table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Every metric by every reading of what is measured, beside the paper's."""
  claims = {
    (c.panel, c.method, metric): c
    for figure, metric in METRICS.items()
    for c in report.load_claims("diversified", figure)
    if c.metric.removeprefix("test_") == metric
  }
  head = ["panel", "method"]
  for metric in METRICS.values():
    head += [f"{metric}, paper", *(f"{metric}, {words}" for words in MEASURED.values())]
  rows = []
  for o in outcomes:
    words = [o.cell.place, o.cell.label]
    for metric in METRICS.values():
      claim = claims.get((o.cell.panel, o.cell.method, metric))
      words.append(markdown.format_number(claim and claim.value))
      for protocol in MEASURED:
        if protocol not in o.frames.protocols:
          words.append("-")
          continue
        values = verdicts.late(metric, protocol)(o)
        words.append(markdown.format_values(values))
        if claim is not None:
          # Whether another measure gives the number, even an impossible one.
          tested = claim._replace(untestable="")
          answer = report.answer_number(
            values,
            tested,
            o.cell.choices,
            data=o.cell.data,
            has_one_partition=o.has_one_partition,
          )
          words[-1] += f" ({answer.verdict})"
    rows.append(words)
  return [
    "Percent, mean of the last ten rounds; with K models the mean of the K, or "
    "the model that a client prefers, on its classes. One model on the entire test "
    "set cannot reach the paper's numbers; in brackets you see whether a reading "
    "reaches them all the same.",
    pages.Table(head, rows),
  ]
