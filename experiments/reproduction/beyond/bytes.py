"""Accuracy over bytes: what compressed messages save.

FedAvg, MA-FSVRG and CLSFSVRG with every compressor of their updates. Anchor
gradients are compressed by qsgd alone, which is unbiased (docs/compression.md),
so a method that sends them saves less.
"""

import math
from typing import Any

import numpy as np

from fedjax_alg import metrics

from ...drawing import dots
from ...reports import markdown, rule
from .. import cost_to_accuracy, figures, pages, partitions, suite
from ..chosen import Choice

NAME = "beyond"

#: label -> file in presets/beyond/bytes.
METHODS = {"FedAvg": "fedavg", "MA-FSVRG": "ma_fsvrg", "CLSFSVRG": "clsfsvrg"}
#: label -> --compress_up.
COMPRESSORS = {
  "whole": "none",
  "top 5 %": "topk:0.05",
  "random 5 %": "randk:0.05",
  "4 bits": "qsgd:4",
  "signs": "sign",
  "rank 1": "powersgd:1",
}
#: Data set -> values, the accuracy to reach.
DATA: dict[str, tuple[dict[str, Any], float]] = {
  "MNIST": ({}, 0.95),
  "Fashion-MNIST": ({"dataset": "fashion_mnist"}, 0.8),
}
#: Data set -> how settings were chosen that are those of MNIST.
_UNTUNED = {"Fashion-MNIST": (Choice("untuned", "anything on Fashion-MNIST"),)}
UNCOMPRESSED = "whole"
#: What stands in the place of the bytes to an accuracy that a run misses.
NOT_REACHED = "not reached in every run"


def _lines(panel: figures.Panel) -> list[figures.FigureLine]:
  preset = f"{NAME}/bytes/{METHODS[panel.of['method']]}.flags"
  return [
    figures.FigureLine(label, (preset, {"compress_up": value}))
    for label, value in COMPRESSORS.items()
  ]


def _target(outcome: suite.Outcome) -> float:
  return DATA[outcome.cell.of["data"]][1]


def _to_target(outcome: suite.Outcome, up: bool) -> np.ndarray:
  """Bytes of all participants; NaN: the target is not reached.

  Args:
    outcome: the run.
    up: those that participants send alone; else both ways.

  Returns:
    One for each seed, or for each partition the mean of its seeds.
  """
  column = "bytes_up" if up else "total_bytes"

  def of_seeds(part: suite.Outcome) -> np.ndarray:
    spent = cost_to_accuracy.costs_at_target(part, _target(part), column)
    return np.array(spent, float)

  return partitions.per_partition(of_seeds)(outcome)


def _compare_bytes(ours: np.ndarray, uncompressed: np.ndarray) -> tuple[str, str]:
  """(how many times fewer bytes, the comparison in words)."""
  if np.isnan(uncompressed).any():
    return "-", "whole does not reach it"
  if np.isnan(ours).any():
    return "-", "does not reach it" if np.isnan(ours).all() else (rule.UNDECIDED)
  ratio = metrics.estimate_mean(uncompressed / ours)
  place = rule.place_gap(ratio.mean - 1.0, ratio.ci95, rule.tie_of(1.0, "times"))
  return metrics.format_estimate(ratio, 1), {
    rule.ABOVE: "fewer bytes",
    rule.BELOW: "more bytes",
    rule.SAME: "as many bytes",
  }.get(place, place)


def _table_of_targets(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Tabulates what every compressor sends, reaches and saves."""
  rows = []
  for runs in suite.by_panel(outcomes):
    uncompressed = next((o for o in runs if o.cell.label == UNCOMPRESSED), None)
    for o in runs:
      spent = []
      for up in (True, False):
        needed = _to_target(o, up)
        spent += [
          "-" if np.isnan(needed).any() else markdown.format_values(needed / 1e6, 1),
          *(
            ("-", "-")
            if uncompressed in (None, o)
            else _compare_bytes(needed, _to_target(uncompressed, up))
          ),
        ]
      rows.append(
        [
          o.cell.panel_title,
          o.cell.label,
          metrics.format_estimate(
            o.frames.estimate("last_10", "global", "accuracy"), factor=100
          ),
          f"{o.summary['cost']['last_round']['bytes_up']:,.0f}",
          f"{100 * _target(o):g} %",
          *spent,
        ]
      )
  return [
    "Bytes are sums over all participants, to an accuracy of the global model. "
    "Ratios to whole updates are paired by runs. Models are sent down whole, "
    "so at most half of FedAvg's bytes is saved both ways.",
    pages.Table(
      [
        "data, method",
        "update",
        "accuracy, last ten rounds",
        "bytes up, a client a round",
        "target",
        "MB up",
        "times fewer than whole",
        "compared",
        "MB both ways",
        "times fewer than whole",
        "compared",
      ],
      rows,
    ),
  ]


def _numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """The bytes to the accuracy of a data set, of every method and compressor."""
  table = []
  for o in outcomes:
    data, method = o.cell.of["data"], o.cell.of["method"]
    for words, up in (("sent to the server", True), ("both ways", False)):
      needed = _to_target(o, up) / 1e6
      is_reached = not np.isnan(needed).any()
      mean, half, values = figures.of_parts([needed])
      table.append(
        dots.Dot(
          f"{data}, to {100 * _target(o):g} %",
          f"{method}, {o.cell.label}",
          mean if is_reached else math.nan,
          half if is_reached else math.nan,
          name=words,
          values=values if is_reached else (),
          note="" if is_reached or not up else NOT_REACHED,
        )
      )
  return table


FIGURE = figures.Figure(
  "Fewer bytes: megabytes to a test accuracy",
  "accuracy",
  "bytes",
  tuple(
    figures.Panel(
      letter,
      f"{data}, {method}",
      DATA[data][0],
      chosen=_UNTUNED.get(data, ()),
      of={"data": data, "method": method},
    )
    for letter, (data, method) in zip(
      "abcdef", ((data, method) for data in DATA for method in METHODS)
    )
  ),
  _lines,
  table=_table_of_targets,
  dots=(
    figures.dot_picture(
      _numbers, "MB of all participants (log scale)", x_scale="log", first=""
    ),
  ),
  quick=("a",),
  shrunk={
    "dataset": "digits",
    "features": "none",
    "num_clients": 100,
    "validation_clients": 10,
  },
)
