"""Figs. 5 to 7 by the readings of what the paper leaves open, CIFAR-10.

What is measured: the global models on the "entire test dataset" (`global`), or
the model that each machine prefers on its own classes, "across all
participating machines" (`preferred`). What is computed, from the stated
settings on: (64) and L2 as printed, features of 0 to 255 (reading R-D4), anchor
gradients over those who prefer a model (errata D-06), GA's models moved by means
of trained models (D-17). The pooled optimum is what any method with one such
model comes to at best.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_alg.records import summary as results
from ...reports import chosen, report, rule, styles, suite

#: Figure -> its metric.
METRICS = {"Fig5": "macro_recall", "Fig6": "macro_f1",
           "Fig7": "micro_precision"}
#: Protocol -> what it reads.
MEASURED = {"global": "entire test set", "preferred": "all machines"}
POOLED = "pooled optimum"

_READINGS: dict[str, tuple[str, ...]] = {
    "": (),
    ", as printed": ("--central_rule=printed", "--l2_of=mean"),
    ", features to 255": ("--hog_norm=none", "--hog_scale=255"),
    ", own anchors": ("--anchors=preferring",),
    ", means of models": ("--group_mean=models",)}


def lines(base: Mapping[str, tuple[str, ...]], panel: Any) -> list[
    tuple[str, tuple[str, ...]]]:
  """The lines of a panel.

  Args:
    base: label -> flags of MA-FSVRG and GA-FSVRG in Figs. 5 to 7.
    panel: the panel; that of the pooled optimum takes part in nothing.
  """
  if not panel.flags:
    return [(POOLED, ("--algorithm=central",))]
  return [(styles.without_protocol(label) + end, (*words, *more))
          for label, words in base.items() for end, more in _READINGS.items()
          if label.startswith("GA") or "--group_mean=models" not in more]


def table(outcomes: Sequence[suite.Outcome]) -> str:
  """Every metric by every reading of what is measured, beside the paper's."""
  stated = {(c.panel, c.method, metric): c.value
            for figure, metric in METRICS.items()
            for c in report.load_claims("diversified", figure)
            if c.metric.removeprefix("test_") == metric}
  head = ["panel", "method"]
  for metric in METRICS.values():
    head += [f"{metric}, paper", *(
        f"{metric}, {words}" for words in MEASURED.values())]
  rows = []
  for o in outcomes:
    late = o.summary["mean_last_10"]
    words = [f"{o.cell.panel}: {o.cell.panel_title}", o.cell.label]
    for metric in METRICS.values():
      said = stated.get((o.cell.panel, o.cell.label.split(", ")[0], metric))
      words.append("-" if said is None else f"{said:g}")
      for protocol in MEASURED:
        if protocol not in late:
          words.append("-")
          continue
        found = late[protocol][metric]
        words.append(results.shown(found, factor=100))
        if said is not None:
          words[-1] += f" ({_verdict(found, said, o)})"
    rows.append(words)
  return (
      "Percent, mean of the last ten rounds; of K models the mean of the K, or "
      "the one that a machine prefers on its own classes. In brackets the "
      "verdict on the paper's number.\n\n"
      + report.table(head, rows))


def _verdict(
    found: dict[str, Any], said: float, outcome: suite.Outcome) -> str:
  if chosen.incomparable(outcome.cell.choices):
    return rule.NOT_COMPARABLE
  ci95 = float("nan") if found["ci95"] is None else 100 * found["ci95"]
  return rule.place(100 * found["mean"] - said, ci95, rule.TIE)
