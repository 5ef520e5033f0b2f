"""The tables and the picture of ``fedjax_alg.compare``."""

from collections.abc import Callable, Iterable, Sequence
import math
import pathlib
import textwrap
from typing import NamedTuple

from matplotlib import pyplot as plt
import numpy as np

from fedjax_alg import metrics
from fedjax_alg.engine import evaluate
from fedjax_alg.errors import one_line
from fedjax_alg.runs import texts
from fedjax_alg.runs.compare import (
  Comparison,
  Line,
  differing_options,
  option_table,
)
from fedjax_alg.runs.result import RunResult

from ..drawing import plots
from . import markdown

#: Powers of ten of large numbers, and their names in the head of a column.
_UNITS = ((1e9, "10\u2079"), (1e6, "10\u2076"), (1e3, "10\u00b3"))


#: A word, or a number that the format of a table writes.
Cell = str | metrics.Number


class ComparisonTable(NamedTuple):
  """A table that no format has written yet."""

  title: str
  head: tuple[str, ...]
  rows: tuple[tuple[Cell, ...], ...]
  note: str = ""
  name: str = ""  #: of its label in LaTeX


def _p_value(p: float) -> str:
  if math.isnan(p):
    return "-"
  return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def _metric(comparison: Comparison) -> str:
  """The metric in words, with its unit."""
  unit = ", %" if metrics.metric(comparison.metric).share else ""
  return comparison.metric.replace("_", " ") + unit


def scores(comparison: Comparison) -> ComparisonTable:
  """Final, late and best values of every run."""
  factor = metrics.factor(comparison.metric)
  digits, metric_text = metrics.digits(comparison.metric), _metric(comparison)
  rows: tuple[tuple[Cell, ...], ...] = tuple(
    (
      line.label,
      str(len(line.result.seeds)),
      str(int(line.costs["round"].mean)),
      *(
        metrics.number_of(line.scores[name], digits, factor)
        for name in ("final", "last_10", "best")
      ),
    )
    for line in comparison.lines
  )
  caution = (
    ""
    if evaluate.is_honest(comparison.protocol)
    else (" The best round is chosen on test data, which is optimistic.")
  )
  interval = _interval_note(comparison)
  return ComparisonTable(
    f"{comparison.metric.replace('_', ' ').capitalize()}, protocol "
    f"{comparison.protocol}",
    (
      "run",
      "seeds",
      "rounds",
      f"final {metric_text}",
      "mean of the evaluations in the last 10 rounds",
      "best round",
    ),
    rows,
    interval + caution,
    "scores",
  )


_TWO_SEEDS = "Two seeds: the interval is hardly informative."


def _interval_note(comparison: Comparison) -> str:
  if all(len(line.result.seeds) < 2 for line in comparison.lines):
    return "Every run has one seed, so there is no interval."
  note = "Mean, and half-width of its 95 % Student-t interval over the seeds."
  if any(len(line.result.seeds) < 2 for line in comparison.lines):
    note += " A run of one seed has no interval."
  if any(len(line.result.seeds) == 2 for line in comparison.lines):
    note += " " + _TWO_SEEDS
  return note


def _scale_column(name: str, values: Sequence[float]) -> tuple[str, float]:
  """The head of a column of large numbers, and the factor of its numbers."""
  most = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
  for power, unit in _UNITS:
    if most >= power:
      return f"{name}, {unit}", 1 / power
  return name, 1.0


def _significant(
  column: Sequence[metrics.Estimate | None], factor: float
) -> list[metrics.Number]:
  """The cells of a cost, all with the same number of decimals.

  The largest has three significant digits, the smallest at least two. What is the
  same in every seed has no interval.
  """
  estimates = [cost for cost in column if cost is not None and math.isfinite(cost.mean)]
  sizes = [abs(factor * cost.mean) for cost in estimates if cost.mean]
  if not sizes or all(
    (factor * cost.mean).is_integer() and not cost.ci95 > 0 for cost in estimates
  ):
    digits = 0
  else:
    most, least = (math.floor(math.log10(f(sizes))) for f in (max, min))
    digits = max(0, 2 - most, 1 - least)
  return [
    metrics.number_of(
      cost._replace(ci95=math.nan) if cost is not None and cost.ci95 == 0.0 else cost,
      digits,
      factor,
    )
    for cost in column
  ]


def _cost_columns(
  names: dict[str, str], of: Callable[[str], Sequence[metrics.Estimate | None]]
) -> dict[str, list[metrics.Number]]:
  """The columns of some costs: head -> a cell for each estimate."""
  out = {}
  for name, words in names.items():
    estimates = of(name)
    means = [cost.mean for cost in estimates if cost is not None]
    if not any(mean > 0 for mean in means):  # nobody counts or spends it
      continue
    head, factor = _scale_column(words, means)
    out[head] = _significant(estimates, factor)
  return out


def _traffic_columns(comparison: Comparison) -> dict[str, str]:
  """The columns of what is sent: bytes, too, where floats do not tell them."""
  columns = {"total_floats": "floats sent"}
  if not all(
    np.allclose(
      line.costs["total_bytes"].values, 4 * np.array(line.costs["total_floats"].values)
    )
    for line in comparison.lines
  ):
    columns["total_bytes"] = "bytes sent"
  return columns


def target_table(comparison: Comparison) -> ComparisonTable:
  """Rounds, what is sent and simulated seconds until every target."""
  factor = metrics.factor(comparison.metric)
  unit = " %" if factor == 100 else ""
  if all(
    at is None
    for line in comparison.lines
    for reached_at in line.reached.values()
    for at in reached_at
  ):
    *most, last = [f"{factor * target:g}" for target in comparison.targets]
    missed = f"{', '.join(most)} or {last}" if most else last
    return ComparisonTable(
      "Cost to targets",
      (),
      (),
      f"No run reached {missed}{unit} (--targets).",
      "targets",
    )
  pairs = [(line, target) for target in comparison.targets for line in comparison.lines]

  def count_reached(line: Line, target: float) -> str:
    reached_at = line.reached[target]
    return f"{sum(at is not None for at in reached_at)} of {len(reached_at)} seeds"

  def cost(line: Line, target: float, name: str) -> metrics.Estimate | None:
    estimate = line.cost_to(target, name)
    if estimate is None or len(estimate.values) < len(line.result.seeds):
      # An interval of the seeds that get there would say nothing of the rest.
      return estimate and estimate._replace(ci95=math.nan)
    return estimate

  columns = _cost_columns(
    {"round": "rounds", **_traffic_columns(comparison), "simulated_s": "simulated s"},
    lambda name: [cost(*pair, name) for pair in pairs],
  )
  rows: tuple[tuple[Cell, ...], ...] = tuple(
    (
      line.label,
      f"{factor * target:g}{unit}",
      count_reached(line, target),
      *(cells[i] for cells in columns.values()),
    )
    for i, (line, target) in enumerate(pairs)
  )
  return ComparisonTable(
    "Cost to targets",
    ("run", "target", "reached by", *columns),
    rows,
    "Up to the first evaluation at or beyond the target. If only some seeds reach "
    "it, the mean is over these, which is too low, and there is no interval.",
    "targets",
  )


def cost_table(comparison: Comparison) -> ComparisonTable:
  """The costs of the whole runs."""
  columns = _cost_columns(
    {
      "round": "rounds",
      **_traffic_columns(comparison),
      "total_example_gradients": "example gradients",
      "total_central_flops": "server operations",
      "simulated_s": "simulated s",
    },
    lambda name: [line.costs[name] for line in comparison.lines],
  )
  rows: tuple[tuple[Cell, ...], ...] = tuple(
    (line.label, *(cells[i] for cells in columns.values()))
    for i, line in enumerate(comparison.lines)
  )
  return ComparisonTable(
    "Cost of the whole run",
    ("run", *columns),
    rows,
    "All participants together, both ways; simulated s is the time on the "
    "simulated machines of the clients.",
    "costs",
  )


def _difference_table(comparison: Comparison, baseline: str = "") -> ComparisonTable:
  """The runs against a baseline, seed by seed; by default the first one."""
  baseline = baseline or comparison.baseline
  factor = metrics.factor(comparison.metric)
  unit = ", points" if factor == 100 else ""
  digits = metrics.digits(comparison.metric)
  pairs = [pair for pair in comparison.pairs if pair.baseline == baseline]
  rows: tuple[tuple[Cell, ...], ...] = tuple(
    (
      pair.label,
      str(len(pair.difference.values)),
      metrics.number_of(pair.difference, digits, factor, "+"),
      "-" if math.isnan(pair.t) else metrics.Number(pair.t),
      _p_value(pair.p),
      _p_value(pair.holm),
    )
    for pair in pairs
  )
  which = {
    "final": "Final value",
    "last_10": "Mean of the evaluations in the last 10 rounds",
    "best": "Best value",
  }[comparison.score]
  notes = []
  if pairs:
    seeds = max(len(pair.difference.values) for pair in pairs)
    number = sum(not math.isnan(pair.p) for pair in comparison.pairs)
    notes.append(
      f"{which} of the run minus that of {baseline}, over equal seeds, with its 95 % "
      f"interval. Two-sided paired t test; Holm's correction for {number} "
      f"test{'s' * (number != 1)}."
    )
    if seeds == 2:
      notes.append(_TWO_SEEDS)
    if 2 <= seeds <= 5:
      notes.append(
        f"A rank test could not tell the runs apart: with {seeds} "
        "seeds the least p value of Wilcoxon's signed-rank test is "
        f"{2 / 2**seeds:.2g}."
      )
    if any(math.isnan(pair.t) for pair in pairs):
      notes.append(
        "There is no test (-) with one seed or with equal differences in all seeds."
      )
  notes += [f"{pair.label}: {'; '.join(pair.notes)}." for pair in pairs if pair.notes]
  if baseline == comparison.baseline:
    notes += [
      f"Not paired: {label}, {reason}." for label, reason in comparison.unpaired.items()
    ]
  number = comparison.baselines.index(baseline)
  return ComparisonTable(
    f"Difference from {baseline}",
    ("run", "seeds", f"difference{unit}", "t", "p", "p (Holm)"),
    rows,
    " ".join(notes),
    f"differences{f'_{number + 1}' if number else ''}",
  )


def flag_tables(
  results: dict[str, RunResult],
) -> tuple[ComparisonTable, ComparisonTable]:
  """The options of every run; and those that some run reads and that differ.

  The second one has the method first, then numbers that not every method has. A run
  that does not read an option has nothing there.
  """
  provenance = {
    name: [_provenance(result, name) for result in results.values()]
    for name in ("device", "versions")
  }
  every, differing = (
    table(list(results.values())) | provenance
    for table in (option_table, differing_options)
  )
  return (
    ComparisonTable(
      "Flags of every run",
      ("flag", *results),
      tuple((name, *values) for name, values in every.items()),
    ),
    ComparisonTable(
      "Flags that differ",
      ("flag", *results),
      tuple(
        (name, *values) for name, values in differing.items() if len(set(values)) > 1
      ),
    ),
  )


def _provenance(result: RunResult, name: str) -> str:
  value = result.summary().get(name, "unknown")
  if isinstance(value, dict):
    return ", ".join(f"{k} {str(v)[:12]}" for k, v in value.items())
  return str(value)


def all_tables(comparison: Comparison) -> list[ComparisonTable]:
  """The tables of a comparison, without empty ones."""
  tables = [scores(comparison)]
  if comparison.targets:
    tables.append(target_table(comparison))
  tables.append(cost_table(comparison))
  if len(comparison.lines) > 1:
    tables += [
      _difference_table(comparison, baseline) for baseline in comparison.baselines
    ]
  return tables


def comparison_page(title: str, comparison: Comparison, command_line: str) -> str:
  """The tables as a Markdown page."""
  parts = []
  for table in all_tables(comparison):
    part = [f"## {texts.markdown_text(table.title)}", ""]
    if table.rows:
      part += [_markdown(table.head, table.rows), ""]
    parts.append("\n".join([*part, texts.markdown_text(table.note)]))
  _, differing = flag_tables(comparison.results)
  if differing.rows:
    parts.append(
      f"## {differing.title}\n\n" + _markdown(differing.head, differing.rows)
    )
  parts.append(f"Made by {texts.markdown_code(command_line)}.")
  return markdown.page(texts.markdown_text(title), parts)


def plain_text(comparison: Comparison) -> str:
  """The tables as text for a terminal."""
  out = []
  for table in all_tables(comparison):
    out.append(one_line(table.title))
    every = [[one_line(str(cell)) for cell in row] for row in (table.head, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*every)]
    for row in every if table.rows else ():
      first, *others = (
        f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
        for i, (cell, width) in enumerate(zip(row, widths))
      )
      out.append("  ".join(["  " + first, *others]).rstrip())
    out += [f"  {one_line(table.note)}" * bool(table.note), ""]
  return "\n".join(out).rstrip()


def _markdown(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
  cells = [[texts.markdown_text(str(cell)) for cell in row] for row in (head, *rows)]
  return markdown.table(cells[0], cells[1:])


def latex(comparison: Comparison, command_line: str) -> str:
  """The tables for a paper, each a ``table`` with rules of booktabs.

  The caption is a title; what explains the numbers stands below them.
  """
  out = [
    f"% Made by {one_line(command_line)}",
    r"% Needs \usepackage{booktabs} in the preamble.",
  ]
  for table in all_tables(comparison):
    title, note = texts.latex_text(table.title), texts.latex_text(table.note)
    if not table.rows:
      out += ["", f"{title}: {note}"]
      continue
    rows = [
      [str(first), *map(texts.latex_cell, others)] for first, *others in table.rows
    ]
    out += [
      "",
      r"\begin{table}",
      r"  \centering",
      rf"  \caption{{{title}}}",
      rf"  \label{{tab:{table.name}}}",
      textwrap.indent(texts.latex_table(table.head, rows, note).rstrip(), "  "),
      r"\end{table}",
    ]
  return "\n".join(out) + "\n"


def draw_comparison(
  paths: Sequence[pathlib.Path],
  comparison: Comparison,
  title: str,
  x_axis: str = "rounds",
) -> None:
  """Draws the curves of all runs over each other.

  Args:
    paths: files to write, PNG or PDF.
    comparison: the runs.
    title: above the picture.
    x_axis: one of ``plots.X_AXES``.
  """
  figure, axis = plt.subplots(figsize=(7.2, 4.6))
  comparison.plot(axis, x_axis)
  axis.legend_ = None  # one for the figure is below
  if not metrics.is_cost(comparison.metric):
    protocol, metric = comparison.protocol, comparison.metric
    curves = (run.metrics[protocol][metric] for run in comparison.results.values())
    axis.set_ylim(shown_range(curves, metric))
  plots.legend(figure)
  axis.set_title(texts.picture_text(title), fontsize=11)
  plots.save_figure(figure, *paths)


def shown_range(curves: Iterable[np.ndarray], metric: str) -> tuple[float, float]:
  """The range of a y axis that shows the means: wide bands would squeeze them.

  Of runs of a single evaluation it shows the intervals, too.

  Args:
    curves: [seeds, evaluations] of each run.
    metric: the metric, which may be bounded.

  Returns:
    The ends; (NaN, NaN) without a finite mean.
  """
  curves = list(curves)
  means = [curve.mean(0) for curve in curves]
  if all(curve.shape[1] == 1 for curve in curves):
    halves = list(map(metrics.half_width_95, curves))
    means += [
      mean + sign * half for mean, half in zip(means, halves) for sign in (-1, 1)
    ]
  values = np.concatenate(means or [[]])
  values = values[np.isfinite(values)]
  if not values.size:
    return math.nan, math.nan
  margin = 0.12 * (np.ptp(values) or 0.1)
  share = metrics.metric(metric).share
  return (
    max(values.min() - margin, 0.0 if share else -np.inf),
    min(values.max() + margin, 1.0 if share else np.inf),
  )
