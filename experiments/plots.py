"""Pictures: curves over rounds or costs, bars, who holds which classes."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

import matplotlib
import numpy as np

from experiments import records, results

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402  (after the backend)

#: --x_axis -> column of the rows, label of the axis.
X_AXES = {
    "rounds": ("round", "communication round"),
    "floats": ("total_floats", "floats sent, all participants, both ways"),
    "example_gradients": ("total_example_gradients",
                          "per-example gradients, all participants"),
    "seconds": ("seconds", "seconds on this machine, without compiling"),
}


def draw_curves(
    axis: Any, runs: Mapping[str, list[records.Row]], protocol: str,
    metric: str, x_axis: str = "rounds") -> None:
  """Mean over seeds with the range of the seeds, one line per run.

  Args:
    axis: matplotlib axes.
    runs: label -> rows of metrics.csv (with ``seconds`` where x is seconds).
    protocol: which rows.
    metric: which column.
    x_axis: of ``X_AXES``; each point stands at the mean of its seeds' x.
  """
  column, x_label = X_AXES[x_axis]
  for label, rows in runs.items():
    values = results.by_seed(rows, protocol, metric)
    if not values.size:
      continue
    x = results.by_seed(rows, protocol, column).mean(0)
    line, = axis.plot(x, values.mean(0), label=label, linewidth=1.5)
    if len(values) > 1:
      axis.fill_between(x, values.min(0), values.max(0),
                        color=line.get_color(), alpha=0.15, linewidth=0)
  axis.set_xlabel(x_label)
  axis.set_ylabel(metric.replace("_", " "))
  axis.grid(alpha=0.3)


def _legend(figure: Any, axis: Any) -> None:
  """The lines of one panel, named below all of them."""
  handles, labels = axis.get_legend_handles_labels()
  figure.legend(handles, labels, fontsize=8, loc="outside lower center",
                ncols=min(len(labels), 7 if axis.figure.axes[1:] else 4))


def save(figure: Any, *paths: pathlib.Path) -> None:
  """Writes a figure and frees it."""
  figure.set_layout_engine("constrained")
  for path in paths:
    figure.savefig(path, dpi=130)
  plt.close(figure)


def run_curves(path: pathlib.Path, rows: list[records.Row], title: str) -> None:
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


def _zoom(axis: Any, curves: list[np.ndarray], metric: str) -> None:
  """Fits y to what matters: the first rounds would squeeze it into a line.

  Args:
    axis: drawn.
    curves: [seeds, rounds] of each line.
    metric: the loss has a logarithmic axis instead.
  """
  curves = [c for c in curves if c.size and np.isfinite(c).all()]
  if not curves:
    return
  if metric == "loss":
    axis.set_yscale("log")
    return
  low = max(0.0, min(c[:, -1].min() for c in curves) - 0.08)
  axis.set_ylim(low, min(1.0, axis.get_ylim()[1] + 0.01))


def bars(
    paths: list[pathlib.Path],
    parts: Mapping[str, Mapping[str, Sequence[float | None]]],
    groups: Sequence[str],
    title: str,
) -> None:
  """A picture of grouped bars, one panel beside the other.

  Args:
    paths: files to write.
    parts: panel, its y label -> method -> a height for each group; None is
      drawn as a cross at the bottom.
    groups: below the bars.
    title: above all.
  """
  figure, axes = plt.subplots(
      1, len(parts), figsize=(4.6 * len(parts) + 1, 3.6), squeeze=False)
  for axis, (name, methods) in zip(axes.flat, parts.items()):
    width = 0.8 / max(len(methods), 1)
    for i, (label, heights) in enumerate(methods.items()):
      x = np.arange(len(groups)) + (i - (len(methods) - 1) / 2) * width
      drawn = axis.bar(x, [h or 0.0 for h in heights], width, label=label)
      missing = [at for at, h in zip(x, heights) if h is None]
      if missing:
        axis.plot(missing, [0.0] * len(missing), "x", clip_on=False,
                  color=drawn.patches[0].get_facecolor(), markersize=5)
    axis.set_xticks(np.arange(len(groups)), groups)
    axis.set_ylabel(name)
    axis.grid(alpha=0.3, axis="y")
    axis.set_axisbelow(True)
  _legend(figure, axes[0, 0])
  figure.suptitle(title, fontsize=11)
  save(figure, *paths)


def panels(
    paths: list[pathlib.Path],
    cells: Mapping[str, Mapping[str, list[records.Row]]],
    protocol: str,
    metric: str,
    title: str,
    x_axis: str = "rounds",
) -> None:
  """A figure of several panels, two a row.

  Args:
    paths: files to write.
    cells: panel title -> label -> rows.
    protocol: which rows.
    metric: which column.
    title: above all.
    x_axis: of ``X_AXES``.
  """
  columns = min(2, len(cells))
  lines = -(-len(cells) // columns)
  figure, axes = plt.subplots(
      lines, columns, figsize=(4.6 * columns, 3.4 * lines), squeeze=False)
  for axis, (name, runs) in zip(axes.flat, cells.items()):
    draw_curves(axis, runs, protocol, metric, x_axis)
    axis.set_title(name, fontsize=9)
    _zoom(axis, [results.by_seed(rows, protocol, metric)
                 for rows in runs.values()], metric)
  for axis in list(axes.flat)[len(cells):]:
    axis.remove()
  _legend(figure, axes[0, 0])
  figure.suptitle(title, fontsize=11)
  save(figure, *paths)
