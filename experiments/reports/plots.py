"""Pictures: curves over rounds or costs, bars, and the clients' classes."""

from collections.abc import Mapping, Sequence
import pathlib
import textwrap
from typing import Any

import matplotlib
import numpy as np

from fedjax_alg import files, metrics
from fedjax_alg.records import tables as records, summary as results
from . import styles as styles_lib

matplotlib.use("Agg")
from matplotlib import pyplot as plt, ticker  # noqa: E402  (after the backend)
from matplotlib.patches import Patch  # noqa: E402

#: --x_axis -> column of the rows, label of the axis.
X_AXES = {
    "rounds": ("round", "communication round"),
    "floats": ("total_floats", "floats sent, all participants, both ways"),
    "bytes": ("total_bytes", "bytes sent, all participants, both ways"),
    "example_gradients": ("total_example_gradients",
                          "per-example gradients, all participants"),
    "seconds": ("seconds", "seconds on this machine, without compiling"),
    "simulated_s": ("simulated_s", "seconds on the simulated machines"),
}

#: Label of the bands in a legend.
BAND = "band: 95 % CI of the mean over seeds"


def draw_curves(
    axis: Any, runs: Mapping[str, list[records.Row]], protocol: str,
    metric: str, x_axis: str = "rounds",
    styles: Mapping[str, Mapping[str, Any]] | None = None) -> None:
  """Draws one line per run: the mean over its seeds, with a band.

  The band is the 95 % confidence interval of the mean (Student t), the one
  that tables report; a single seed has none. It is cut off where a metric
  cannot lie: shares at 0 and 1, the loss at 0.

  Args:
    axis: matplotlib axes.
    runs: label -> rows of metrics.csv, with a column ``seconds`` if x_axis is
      "seconds".
    protocol: the protocol that is drawn.
    metric: the column that is drawn.
    x_axis: one of ``X_AXES``; a point's x is the mean over the seeds.
    styles: label -> options of its line; by default a line has the next colour.
  """
  column, x_label = X_AXES[x_axis]
  for label, rows in runs.items():
    values = results.by_seed(rows, protocol, metric)
    if not values.size:
      continue
    x = results.by_seed(rows, protocol, column).mean(0)
    mean = values.mean(0)
    line, = axis.plot(x, mean, label=label, **{
        "linewidth": 1.5, **(styles or {}).get(label, {})})
    if len(values) > 1:
      with np.errstate(invalid="ignore"):  # a loss may be infinite
        half = metrics.half_width_95(values)
      most = 1.0 if metric in metrics.METRICS and metric != "loss" else None
      axis.fill_between(
          x, np.clip(mean - half, 0.0, None), np.clip(mean + half, None, most),
          color=line.get_color(), alpha=0.15, linewidth=0, label=BAND)
  axis.set_xlabel(x_label)
  axis.set_ylabel(metric.replace("_", " "))
  axis.grid(alpha=0.3)


def _styles(
    cells: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
  """label -> colour and dash, the same in every panel."""
  found = styles_lib.of(label for runs in cells.values() for label in runs)
  return {label: style.matplotlib() for label, style in found.items()}


def _named(figure: Any) -> dict[str, Any]:
  """label -> handle of everything that a figure names, the bands last."""
  named: dict[str, Any] = {}
  for axis in figure.axes:
    for handle, label in zip(*axis.get_legend_handles_labels()):
      named.setdefault(label, handle)
  if named.pop(BAND, None) is not None:
    # Bands have the colours of their lines.
    named[BAND] = Patch(color="grey", alpha=0.3, linewidth=0)
  return named


def legend(figure: Any) -> None:
  """Draws one legend for all panels, below them."""
  named = _named(figure)
  if not named:
    return
  words = [textwrap.fill(label, 48) for label in named]
  longest = max(len(line) for label in words for line in label.split("\n"))
  # About so many characters and the sample of a line fit side by side.
  room = int(15 * figure.get_figwidth() / (longest + 8))
  figure.legend(named.values(), words, fontsize=8, loc="outside lower center",
                ncols=max(1, min(
                    len(named), 7 if figure.axes[1:] else 3, room)))


def save(figure: Any, *paths: pathlib.Path) -> None:
  """Writes a figure and frees its memory."""
  figure.set_layout_engine("constrained")
  for path in paths:
    # Without a date a PDF has the same bytes every time; type 42 are the fonts
    # that journals accept.
    dated = {"CreationDate": None} if path.suffix == ".pdf" else None
    with plt.rc_context({"pdf.fonttype": 42}), files.replacing(
        path) as partial:
      figure.savefig(partial, dpi=130, metadata=dated, format=path.suffix[1:])
  plt.close(figure)


def run_curves(
    paths: list[pathlib.Path], rows: list[records.Row], title: str) -> None:
  """Draws the curves of a run: accuracy and loss, one line per protocol."""
  figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
  protocols = results.protocols(rows)
  # Protocols may have the same values: a wider line is seen below another.
  styles = {name: style.matplotlib() | {
      "linewidth": 1.5 + 2 * (len(protocols) - 1 - i) / len(protocols)}
            for i, (name, style) in enumerate(
                styles_lib.of(protocols).items())}
  for axis, metric in zip(axes, ("accuracy", "loss")):
    for protocol in protocols:
      draw_curves(axis, {protocol: rows}, protocol, metric, styles=styles)
  log_axis(axes[1])
  legend(figure)
  figure.suptitle(title, fontsize=10)
  save(figure, *paths)


def log_axis(axis: Any) -> None:
  """Makes the y axis logarithmic, if a line has a positive value.

  Zeros are gaps of a line. A band that reaches down to zero ends at the lower
  end of the axis, which the lines decide.
  """
  drawn = [np.asarray(line.get_ydata(), float) for line in axis.get_lines()]
  known = np.concatenate([y[np.isfinite(y) & (y > 0)] for y in drawn] or [[]])
  if not known.size:
    return
  low, high = known.min() / 1.2, 1.2 * known.max()
  high = max(high, min(axis.dataLim.y1, 10 * high))
  for line, y in zip(axis.get_lines(), drawn):
    line.set_ydata(np.where(y > 0, y, np.nan))
  for band in axis.collections:
    for path in band.get_paths():
      path.vertices[:, 1] = np.maximum(path.vertices[:, 1], low)
  axis.set_yscale("log")
  axis.set_ylim(low, high)
  if high < 6 * low:  # round numbers at equal steps
    axis.yaxis.set_major_locator(ticker.MaxNLocator(8, steps=[1, 2, 5, 10]))
    axis.yaxis.set_minor_locator(ticker.NullLocator())
    axis.yaxis.set_major_formatter("{x:g}")
  elif high < 1000 * low:  # powers of ten alone would be too few
    digits = "1235" if high < 30 * low else "12" if high < 100 * low else "13"
    plain = ticker.FuncFormatter(
        lambda y, _: f"{y:g}" if f"{y:e}"[0] in digits else "")
    axis.yaxis.set_major_formatter(plain)
    axis.yaxis.set_minor_formatter(plain)


#: Up to so many clients have a bar each in partition.png.
_MOST_BARS = 60
#: Up to so many clients are named below their bars.
_MOST_NAMES = 20
#: Columns of the heat map that stands in for more bars.
_COLUMNS = 400


def histogram(
    path: pathlib.Path, label_histogram: np.ndarray, title: str,
    names: Sequence[str] | np.ndarray | None = None) -> None:
  """Draws partition.png: who holds which classes, and how many examples.

  Few clients have a bar each. Many have a column in a heat map, sorted by
  their most frequent class, and a histogram of their sizes beside it; of very
  many a column is the mean of several.

  Args:
    path: the file to write.
    label_histogram: [C, L], each client's number of examples of each class.
    title: above the picture.
    names: [C], the clients' names, which a few bars have below them instead of
      the clients' numbers.
  """
  if len(label_histogram) <= _MOST_BARS:
    figure, axis = plt.subplots(figsize=(9, 3.6))
    _client_bars(axis, label_histogram, names)
  else:
    figure, axes = plt.subplots(
        1, 2, figsize=(9, 3.6), width_ratios=(2.6, 1), layout="constrained")
    _client_map(figure, axes[0], label_histogram)
    _client_sizes(axes[1], label_histogram.sum(1))
  figure.suptitle(title, fontsize=10)
  save(figure, path)


def _client_bars(
    axis: Any, label_histogram: np.ndarray,
    names: Sequence[str] | np.ndarray | None) -> None:
  """Draws a bar for each client, the largest first."""
  order = np.argsort(-label_histogram.sum(1), kind="stable")
  stacked = label_histogram[order]
  bottom = np.zeros(len(stacked))
  colours = plt.get_cmap("tab10" if stacked.shape[1] <= 10 else "turbo")
  for c in range(stacked.shape[1]):
    shade = colours(c if stacked.shape[1] <= 10 else c / stacked.shape[1])
    # One polygon per class; drawing a bar per client takes seconds.
    axis.stairs(bottom + stacked[:, c], np.arange(len(stacked) + 1) - 0.5,
                baseline=bottom.copy(), fill=True, color=shade, label=str(c))
    bottom += stacked[:, c]
  if names is None or len(order) > _MOST_NAMES:
    words = [str(client) for client in order]
  else:
    words = [textwrap.shorten(str(names[client]), 24, placeholder="...")
             for client in order]
  upright = len("".join(words)) > 60
  axis.set_xticks(range(len(order)), words, rotation=90 if upright else 0,
                  fontsize=7 if len(order) > 30 else 8)
  axis.margins(x=0.01)
  axis.set_xlabel("client, largest first")
  axis.set_ylabel("training examples")
  if stacked.shape[1] <= 12:
    axis.legend(title="class", fontsize=7, ncol=2, loc="upper right")


def _client_map(figure: Any, axis: Any, label_histogram: np.ndarray) -> None:
  """Draws the share of each class at each client, sorted by classes."""
  held = label_histogram[label_histogram.sum(1) > 0]
  shares = held / held.sum(1, keepdims=True)
  ranks = np.argsort(-shares, axis=1, kind="stable")
  second = ranks[:, min(1, ranks.shape[1] - 1)]
  order = np.lexsort((-shares.max(1), second, ranks[:, 0]))
  starts = np.linspace(
      0, len(held), min(len(held), _COLUMNS), endpoint=False).astype(int)
  columns = np.add.reduceat(shares[order], starts, axis=0)
  columns /= np.diff(starts, append=len(held))[:, None]
  # The usual share of a class may be small; the largest is the darkest.
  image = axis.imshow(
      columns.T, aspect="auto", interpolation="nearest", cmap="magma_r",
      vmin=0.0, vmax=columns.max(), origin="lower",
      extent=(0, len(held), -0.5, columns.shape[1] - 0.5))
  figure.colorbar(image, ax=axis, label="share of the client's examples")
  each = f", {len(held) / len(starts):.0f} a column" if (
      len(held) >= 2 * len(starts)) else ""
  axis.set_xlabel(f"rank of the client by most frequent class{each}")
  axis.set_ylabel("class")
  axis.yaxis.set_major_locator(ticker.MaxNLocator(12, integer=True))


def _client_sizes(axis: Any, sizes: np.ndarray) -> None:
  """Draws how many clients have how many examples."""
  low, high = int(sizes.min()), int(sizes.max())
  # Whole numbers in each bin: as many, or bins would seem empty.
  width = max(1, -(-(high - low + 1) // 40))
  axis.hist(sizes, np.arange(low, high + width + 1, width) - 0.5,
            color="tab:blue")
  axis.axvline(np.median(sizes), color="black", linewidth=1.0,
               label=f"median {np.median(sizes):g}")
  axis.margins(y=0.2)  # room for the legend
  axis.set_xlabel("training examples")
  axis.set_ylabel("clients")
  axis.legend(fontsize=7)


def _zoom(axis: Any, curves: list[np.ndarray], metric: str) -> None:
  """Fits the y axis to the last rounds; the first ones would squeeze curves.

  Args:
    axis: the axes with the curves.
    curves: the values of each line, [seeds, rounds].
    metric: the metric of the curves; for the loss the axis is logarithmic
      instead.
  """
  curves = [c for c in curves if c.size and np.isfinite(c).all()]
  if not curves:
    return
  if metric == "loss":
    log_axis(axis)
    return
  low = max(0.0, min(c[:, -1].min() for c in curves) - 0.08)
  axis.set_ylim(low, min(1.0, axis.get_ylim()[1] + 0.01))


def bars(
    paths: list[pathlib.Path],
    parts: Mapping[str, Mapping[str, Sequence[float | None]]],
    groups: Sequence[str],
    title: str,
    stacked: bool = False,
) -> None:
  """Draws panels of grouped bars in one row.

  Args:
    paths: files to write.
    parts: y label of a panel -> method -> a height for each group; None is
      drawn as a cross at the bottom.
    groups: names below the bars.
    title: above all panels.
    stacked: whether the bars of a group are stacked, with their sum above them;
      ``parts`` then has the parts of a whole instead of methods.
  """
  longest = max(map(len, groups))
  # Long or many names would overlap if they were written horizontally.
  upright = len(groups) * longest > 40
  figure, axes = plt.subplots(
      1, len(parts), squeeze=False,
      figsize=(4.6 * len(parts) + 1, 3.6 + upright * 0.07 * longest))
  for axis, (name, methods) in zip(axes.flat, parts.items()):
    side_by_side = 1 if stacked else max(len(methods), 1)
    width, bottom = 0.8 / side_by_side, np.zeros(len(groups))
    for i, (label, heights) in enumerate(methods.items()):
      i %= side_by_side
      x = np.arange(len(groups)) + (i - (side_by_side - 1) / 2) * width
      known = np.array([h or 0.0 for h in heights])
      drawn = axis.bar(x, known, width, bottom, label=label)
      missing = [at for at, h in zip(x, heights) if h is None]
      if missing:
        axis.plot(missing, [0.0] * len(missing), "x", clip_on=False,
                  color=drawn.patches[0].get_facecolor(), markersize=5)
      if stacked:
        bottom += known
    if stacked:
      axis.bar_label(drawn, [f"{sum_:.3g}" for sum_ in bottom], fontsize=8)
      axis.margins(y=0.12)
    axis.set_xticks(np.arange(len(groups)), groups,
                    rotation=90 if upright else 0)
    axis.set_ylabel(name)
    axis.grid(alpha=0.3, axis="y")
    axis.set_axisbelow(True)
  legend(figure)
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
  """Draws panels of curves, two in a row.

  Args:
    paths: files to write.
    cells: panel title -> label -> rows.
    protocol: the protocol that is drawn.
    metric: the column that is drawn.
    title: above all panels.
    x_axis: one of ``X_AXES``.
  """
  columns = min(2, len(cells))
  lines = -(-len(cells) // columns)
  # A single panel must be wide enough for the title and the legend.
  width = 4.6 * columns if columns > 1 else 7.5
  figure, axes = plt.subplots(
      lines, columns, figsize=(width, 3.4 * lines), squeeze=False)
  styles = _styles(cells)
  for axis, (name, runs) in zip(axes.flat, cells.items()):
    draw_curves(axis, runs, protocol, metric, x_axis, styles)
    axis.set_title(name, fontsize=9)
    _zoom(axis, [results.by_seed(rows, protocol, metric)
                 for rows in runs.values()], metric)
  for axis in list(axes.flat)[len(cells):]:
    axis.remove()
  legend(figure)
  figure.suptitle(title, fontsize=11)
  save(figure, *paths)


def grid(
    paths: list[pathlib.Path],
    cells: Mapping[str, Mapping[str, list[records.Row]]],
    curves: Sequence[tuple[str, str]],
    title: str,
    x_axis: str = "rounds",
) -> None:
  """Draws a column for each panel and a row for each kind of curve.

  Args:
    paths: files to write.
    cells: panel title -> label -> rows.
    curves: (protocol, metric) of each row.
    title: above all panels.
    x_axis: one of ``X_AXES``, for curves of the first row's protocol. Curves of
      another protocol are drawn over rounds.
  """
  figure, axes = plt.subplots(
      len(curves), len(cells), figsize=(4.6 * len(cells), 2.9 * len(curves)),
      squeeze=False)
  styles = _styles(cells)
  for column, (name, runs) in zip(axes.T, cells.items()):
    column[0].set_title(name, fontsize=9)
    for axis, (protocol, metric) in zip(column, curves):
      draw_curves(axis, runs, protocol, metric,
                  x_axis if protocol == curves[0][0] else "rounds", styles)
  legend(figure)
  figure.suptitle(title, fontsize=11)
  save(figure, *paths)


def twins(
    paths: list[pathlib.Path],
    cells: Mapping[str, list[records.Row]],
    left: tuple[str, str],
    right: tuple[str, str],
    title: str,
) -> None:
  """Draws panels in one row, with two y axes that all of them share.

  Args:
    paths: files to write.
    cells: panel title -> rows.
    left: protocol and metric of the left axis.
    right: protocol and metric of the right axis.
    title: above all panels.
  """
  figure, axes = plt.subplots(
      1, len(cells), figsize=(3.6 * len(cells) + 0.6, 3.0), squeeze=False,
      sharey=True)
  others = [axis.twinx() for axis in axes.flat]
  for axis in others[1:]:
    axis.sharey(others[0])
  for axis, other, (name, rows) in zip(axes.flat, others, cells.items()):
    for side, (protocol, metric), colour in (
        (axis, left, "black"), (other, right, "tab:blue")):
      values = results.by_seed(rows, protocol, metric)
      side.plot(results.by_seed(rows, protocol, "round").mean(0),
                values.mean(0), color=colour, linewidth=1.0)
      side.set_ylabel(metric.replace("_", " "), color=colour)
    axis.set_xlabel("communication round")
    axis.set_title(name, fontsize=9)
    axis.grid(alpha=0.3)
    axis.label_outer()
    if other is not others[-1]:
      other.set_ylabel("")
  figure.suptitle(title, fontsize=11)
  save(figure, *paths)


def scatters(
    paths: list[pathlib.Path],
    cells: Mapping[str, tuple[np.ndarray, np.ndarray, tuple[float, float]]],
    labels: tuple[str, str],
    title: str,
) -> None:
  """Draws point clouds with a straight line through each.

  Args:
    paths: files to write.
    cells: panel title -> x [n], y [n], (slope, intercept).
    labels: of the axes.
    title: above all panels.
  """
  figure, axes = plt.subplots(
      1, len(cells), figsize=(3.4 * len(cells), 3.2), squeeze=False)
  for axis, (name, (x, y, (slope, intercept))) in zip(
      axes.flat, cells.items()):
    # In the PDF the points are an image; thousands of vector points would take
    # much space.
    axis.plot(x, y, ".", markersize=2, alpha=0.3, rasterized=True)
    ends = np.array([x.min(), x.max()])
    axis.plot(ends, slope * ends + intercept, color="black", linewidth=1.0)
    axis.set_xlabel(labels[0])
    axis.set_ylabel(labels[1])
    axis.set_title(name, fontsize=9)
    axis.grid(alpha=0.3)
  figure.suptitle(title, fontsize=11)
  save(figure, *paths)


def groups(
    paths: list[pathlib.Path],
    cells: Mapping[str, tuple[np.ndarray, np.ndarray, Sequence[str]]],
    labels: tuple[str, str],
    title: str,
) -> None:
  """Draws points coloured by group, with a word for points of the same kind.

  Args:
    paths: files to write.
    cells: panel title -> points [n, 2], groups [n], words [n].
    labels: of the axes.
    title: above all panels.
  """
  figure, axes = plt.subplots(
      1, len(cells), figsize=(5.2 * len(cells), 4.6), squeeze=False)
  for axis, (name, (points, group, words)) in zip(axes.flat, cells.items()):
    for g in sorted(set(group.tolist())):
      axis.scatter(*points[group == g].T, s=12, label=f"group {g + 1}")
    # A word is written once, in the middle of its points.
    for word in sorted(set(words)):
      alike = np.array([other == word for other in words])
      axis.annotate(word, np.median(points[alike], axis=0), fontsize=8,
                    xytext=(5, 5), textcoords="offset points")
    axis.set_xlabel(labels[0])
    axis.set_ylabel(labels[1])
    axis.set_title(name, fontsize=9)
    axis.legend(fontsize=7, loc="best")
    axis.grid(alpha=0.3)
  figure.suptitle(title, fontsize=11)
  save(figure, *paths)
