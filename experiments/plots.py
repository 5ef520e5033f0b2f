"""Pictures: curves over rounds, and who holds which classes."""

from collections.abc import Mapping
import pathlib
from typing import Any

import matplotlib
import numpy as np

from experiments import results

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402  (after the backend)

X_LABEL = "communication round"


def draw_curves(
    axis: Any, runs: Mapping[str, list[results.Row]], protocol: str,
    metric: str) -> None:
  """Mean over seeds with the range of the seeds, one line per run.

  Args:
    axis: matplotlib axes.
    runs: label -> rows of metrics.csv.
    protocol: which rows.
    metric: which column.
  """
  for label, rows in runs.items():
    values = results.by_seed(rows, protocol, metric)
    if not values.size:
      continue
    numbers = sorted({r["round"] for r in rows})
    line, = axis.plot(numbers, values.mean(0), label=label, linewidth=1.5)
    if len(values) > 1:
      axis.fill_between(numbers, values.min(0), values.max(0),
                        color=line.get_color(), alpha=0.15, linewidth=0)
  axis.set_xlabel(X_LABEL)
  axis.set_ylabel(metric.replace("_", " "))
  axis.grid(alpha=0.3)


def save(figure: Any, *paths: pathlib.Path) -> None:
  """Writes a figure and frees it."""
  figure.tight_layout()
  for path in paths:
    figure.savefig(path, dpi=130)
  plt.close(figure)


def run_curves(path: pathlib.Path, rows: list[results.Row], title: str) -> None:
  """curves.png of one run: accuracy and loss, one line per protocol."""
  figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
  for axis, metric in zip(axes, ("accuracy", "loss")):
    for protocol in results.protocols(rows):
      own = [r for r in rows if r["protocol"] == protocol]
      draw_curves(axis, {protocol: own}, protocol, metric)
  axes[0].legend(fontsize=8)
  figure.suptitle(title, fontsize=10)
  save(figure, path)


def histogram(
    path: pathlib.Path, label_histogram: np.ndarray, title: str) -> None:
  """partition.png: classes of each client, clients sorted by size.

  Args:
    path: where to.
    label_histogram: [C, L].
    title: above it.
  """
  order = np.argsort(-label_histogram.sum(1), kind="stable")
  stacked = label_histogram[order]
  figure, axis = plt.subplots(figsize=(9, 3.6))
  bottom = np.zeros(len(stacked))
  colours = plt.get_cmap("tab10" if stacked.shape[1] <= 10 else "turbo")
  for c in range(stacked.shape[1]):
    shade = colours(c if stacked.shape[1] <= 10 else c / stacked.shape[1])
    axis.bar(np.arange(len(stacked)), stacked[:, c], 1.0, bottom=bottom,
             color=shade, label=str(c))
    bottom += stacked[:, c]
  axis.set_xlabel("client, largest first")
  axis.set_ylabel("training examples")
  if stacked.shape[1] <= 12:
    axis.legend(title="class", fontsize=7, ncol=2)
  axis.set_title(title, fontsize=10)
  save(figure, path)


def panels(
    paths: list[pathlib.Path],
    cells: Mapping[str, Mapping[str, list[results.Row]]],
    protocol: str,
    metric: str,
    title: str,
) -> None:
  """A figure of several panels, two a row.

  Args:
    paths: files to write.
    cells: panel title -> label -> rows.
    protocol: which rows.
    metric: which column.
    title: above all.
  """
  columns = min(2, len(cells))
  lines = -(-len(cells) // columns)
  figure, axes = plt.subplots(
      lines, columns, figsize=(4.6 * columns, 3.4 * lines), squeeze=False)
  for axis, (name, runs) in zip(axes.flat, cells.items()):
    draw_curves(axis, runs, protocol, metric)
    axis.set_title(name, fontsize=9)
    # The first rounds would squeeze everything that matters into a line.
    ends = [results.by_seed(rows, protocol, metric)[:, -1].min()
            for rows in runs.values()]
    if metric != "loss" and ends:
      low = max(0.0, min(ends) - 0.08)
      axis.set_ylim(low, min(1.0, axis.get_ylim()[1] + 0.01))
  for axis in list(axes.flat)[len(cells):]:
    axis.remove()
  axes[0, 0].legend(fontsize=8)
  figure.suptitle(title, fontsize=11)
  save(figure, *paths)
