"""Pictures: curves over rounds or costs, bars, dots, the clients' classes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import itertools
import math
import pathlib
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import matplotlib
import numpy as np

from fedjax_alg import files, metrics
from fedjax_alg.data.kinds import ClientKinds
from fedjax_alg.records import tables as records
from fedjax_alg.runs import pictures, texts
from fedjax_alg.runs import styles as styles_lib
from fedjax_alg.runs.pictures import BAND, BAND_OF_PARTITIONS, X_AXES

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402  (after the backend)
from matplotlib import ticker
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402
from matplotlib.text import Text  # noqa: E402

if TYPE_CHECKING:  # it imports pandas, which a run does not need
  from fedjax_alg.records.frames import Frames

#: Labels of the marks of the paper's numbers: at a round, and at none.
PAPER = "hollow: the paper's number"
PAPER_BESIDE = "hollow, beside: the paper's number"

_BAND = Patch(color="grey", alpha=0.3, linewidth=0)
_HOLLOW = Line2D(
  [],
  [],
  linestyle="",
  marker="o",
  markersize=7,
  color="grey",
  markerfacecolor="white",
  markeredgewidth=1.4,
)
#: Handles in a legend for bands and marks, which have the colors of their
#: lines.
_NOTES = {
  BAND: _BAND,
  BAND_OF_PARTITIONS: _BAND,
  PAPER: _HOLLOW,
  PAPER_BESIDE: _HOLLOW,
}

#: Up to so many lines have their names at their ends, and not in a legend.
_MOST_LABELS = 14
#: The most characters of a title.
_LONG_TITLE = 300


#: The files of one picture.
Paths = Sequence[pathlib.Path]
_Panel = TypeVar("_Panel")


class Mark(NamedTuple):
  """A number that the paper gives for a line."""

  label: str  #: of the line
  value: float  #: in the unit of the axis
  round: float | None = None  #: None: the paper states none
  metric: str = ""  #: "": that of the first row of panels


#: The protocol of what is reported of every round, in the place of an evaluation.
ROUNDS = "rounds"


def curve_of(
  frames: "Frames", protocol: str, metric: str, x_axis: str = "rounds"
) -> pictures.Curve:
  """A curve of a run, or of one on several partitions of the data.

  Each partition counts once, with the mean of its seeds.

  Args:
    frames: the tables of the run.
    protocol: the protocol, or ``ROUNDS``.
    metric: the metric, or with ``ROUNDS`` a column of the rounds.
    x_axis: one of ``X_AXES``; a point's x is the mean over the seeds.
  """
  if protocol == ROUNDS:
    values, at = frames.of_rounds(metric), None
  else:
    values, at = frames.curves(protocol, metric), frames.rounds_of(protocol)
  x = frames.of_rounds(X_AXES[x_axis][0], at)
  return pictures.Curve(
    x.mean(0) if x.size else np.empty(0),
    frames.per_partition(values),
    frames.num_partitions > 1,
  )


class Reference(NamedTuple):
  """A bound or a target, which a line marks in every panel."""

  value: float  #: in the unit of the axis
  label: str
  metric: str = ""  #: "": that of the first row of panels


def _draw_references(axis: Any, references: Iterable[Reference]) -> None:
  for value, label, _ in references:
    axis.axhline(
      value, color="0.35", linewidth=1.2, linestyle=(0, (1, 2)), zorder=1, label=label
    )


def _draw_marks(
  axis: Any, marks: Iterable[Mark], styles: Mapping[str, Mapping[str, object]]
) -> float:
  """Draws the paper's numbers, as hollow markers of the lines they are for.

  A number of no stated round stands to the right of the panel, and marks at the
  same height beside each other. The y axis is not changed, so it should reach
  as far as the marks.

  Returns:
    Where there is room at the right of the panel, as a share of its width.
  """
  limits, free = axis.get_ylim(), 1.015
  occupied: list[tuple[float, float]] = []  # of marks beside the panel
  for label, value, number, _ in marks:
    x, where, words = number, axis.transData, PAPER
    if number is None:
      where = axis.get_yaxis_transform()
      height = axis.transAxes.inverted().transform(
        axis.transData.transform((0.0, value))
      )[1]
      column = 0
      while any(column == c and abs(height - h) < 0.035 for h, c in occupied):
        column += 1
      occupied.append((height, column))
      free = max(free, 1.05 + 0.03 * column)
      x, words = 1.025 + 0.03 * column, PAPER_BESIDE
    colour, shape = (styles[label][key] for key in ("color", "marker"))
    axis.plot(
      [x],
      [value],
      shape,
      transform=where,
      markersize=7,
      markerfacecolor="white",
      markeredgecolor=colour,
      markeredgewidth=1.4,
      clip_on=False,
      zorder=4,
      label=words,
    )
  axis.set_ylim(limits)
  return free


def _styles(cells: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, Any]]:
  """label -> options of its line, the same in every panel."""
  styles = styles_lib.line_styles(label for runs in cells.values() for label in runs)
  return {label: style.matplotlib() for label, style in styles.items()}


def _collect_handles(figure: Any, *last: str) -> dict[str, Any]:
  """label -> handle of everything that a figure names.

  ``last`` and the notes come after the lines.
  """
  handles: dict[str, Any] = {}
  for axis in figure.axes:
    for handle, label in zip(*axis.get_legend_handles_labels()):
      handles.setdefault(label, _NOTES.get(label, handle))
  for label in (*last, *_NOTES):
    if label in handles:
      handles[label] = handles.pop(label)
  return handles


def legend(figure: Any, *last: str) -> None:
  """Draws one legend for all panels, below them, with ``last`` at its end."""
  handles = _collect_handles(figure, *last)
  if not handles:
    return
  words = [textwrap.fill(label, 24 if label in _NOTES else 48) for label in handles]
  longest = max(len(line) for label in words for line in label.split("\n"))
  # About so many characters and the sample of a line fit side by side.
  room = max(1, int(15 * figure.get_figwidth() / (longest + 14)))
  room = min(room, 7 if figure.axes[1:] else 3)
  rows = -(-len(handles) // room)
  figure.legend(
    handles.values(),
    words,
    fontsize=8,
    loc="outside lower center",
    # So long that a long dash has a gap beside the marker.
    handlelength=5.6,
    ncols=-(-len(handles) // rows),
  )


def save_figure(figure: Any, *paths: pathlib.Path) -> None:
  """Writes a figure and frees its memory."""
  figure.set_layout_engine("constrained")
  for path in paths:
    # Without a date a PDF has the same bytes every time; type 42 are the fonts
    # that journals accept.
    dated = {"CreationDate": None} if path.suffix == ".pdf" else None
    with plt.rc_context({"pdf.fonttype": 42}), files.replacing(path) as partial:
      figure.savefig(partial, dpi=130, metadata=dated, format=path.suffix[1:])
  plt.close(figure)


def number_paths(paths: Paths, number: int) -> list[pathlib.Path]:
  """Returns the files of a figure's picture: NAME, NAME_2, NAME_3, ..."""
  end = f"_{number}" if number > 1 else ""
  return [path.with_stem(path.stem + end) for path in paths]


def paginate(
  paths: Paths, panels: Sequence[_Panel], most: int
) -> Iterator[tuple[list[pathlib.Path], Sequence[_Panel]]]:
  """Yields the files and the panels of each picture, ``most`` panels or fewer."""
  for number, first in enumerate(range(0, len(panels), most), 1):
    yield number_paths(paths, number), panels[first : first + most]


@contextlib.contextmanager
def sheet(
  paths: Iterable[pathlib.Path],
  titles: Sequence[str],
  title: str,
  *,
  in_a_row: int = 2,
  size: tuple[float, float] = (4.6, 3.4),
  margin: tuple[float, float] = (0.0, 0.0),
  last: Sequence[str] = (),
  **options: Any,
) -> Iterator[list[Any]]:
  """Panels that are drawn in the context, and written at its end.

  Args:
    paths: files to write.
    titles: of the panels.
    title: above all panels.
    in_a_row: the most panels side by side.
    size: width and height of a panel, in inches.
    margin: width and height of the picture beside them.
    last: labels at the end of the legend.
    **options: of ``plt.subplots``.

  Yields:
    The axes of the panels.
  """
  columns = max(min(in_a_row, len(titles)), 1)
  lines = -(-len(titles) // columns)
  figure, axes = plt.subplots(
    lines,
    columns,
    squeeze=False,
    figsize=(size[0] * columns + margin[0], size[1] * lines + margin[1]),
    **options,
  )
  panels_of = list(axes.flat)
  for axis in panels_of[len(titles) :]:
    axis.remove()
  for axis, name in zip(panels_of, titles):
    axis.set_title(name, fontsize=9)
    axis.grid(alpha=0.3)
  yield panels_of[: len(titles)]
  legend(figure, *last)
  figure.suptitle(texts.picture_text(title, _LONG_TITLE), fontsize=11)
  save_figure(figure, *paths)


#: Up to so many kinds of clients have a line each in curves.png.
_MOST_LINES = 4


def run_curves(
  paths: Paths,
  curves: Mapping[str, Mapping[str, np.ndarray]],
  rounds: np.ndarray,
  title: str,
) -> None:
  """Draws a run's main metric and its loss, one line per protocol.

  Of many kinds of clients the mean and the worst are drawn alone.

  Args:
    paths: files to write.
    curves: protocol -> metric -> [N, E'].
    rounds: [E] int, the evaluated rounds, of which the last E' count.
    title: above both panels.
  """
  protocols = list(curves)
  of_one = [name for name in protocols if name.removeprefix("kinds_").isdecimal()]
  if len(of_one) > _MOST_LINES:
    protocols = [name for name in protocols if name not in of_one]
  main = records.main_metric(curves[protocols[0]]) if protocols else "accuracy"
  styles = styles_lib.line_styles(protocols, are_protocols=True)
  looks = {protocol: style.matplotlib() for protocol, style in styles.items()}
  with sheet(paths, ("", ""), title, size=(4.5, 3.6)) as axes:
    for axis, metric in zip(axes, (main, "loss")):
      of_metric = {name: curves[name][metric] for name in protocols}
      pictures.draw_curves(
        axis,
        {
          name: pictures.Curve(rounds[-values.shape[1] :], values)
          for name, values in of_metric.items()
        },
        metric,
        looks=looks,
      )
    pictures.log_axis(axes[1])


#: Up to so many clients have a bar each in partition.png.
_MOST_BARS = 60
#: Columns of the heat map that stands in for more bars.
_COLUMNS = 400


def histogram(
  path: pathlib.Path,
  label_histogram: np.ndarray,
  title: str,
  names: Sequence[str] | np.ndarray | None = None,
  kinds: ClientKinds | None = None,
) -> None:
  """Draws partition.png: who holds which classes, and how many examples.

  Few clients have a bar each. Many have a column in a heat map, sorted by
  their most frequent class, and a histogram of their sizes beside it; of very
  many a column is the mean of several. Clients of one kind are side by side.

  Args:
    path: the file to write.
    label_histogram: [C, L], each client's number of examples of each class.
    title: above the picture.
    names: [C], the clients' names, which stand below their bars; None: their
      positions.
    kinds: the kinds of the clients; None if they have none.
  """
  if kinds is not None and kinds.number > 1:
    title += f" of {kinds.number} kinds"
  of_client = np.zeros(len(label_histogram), int) if kinds is None else kinds.of_client
  marks = () if kinds is None else kinds.names
  if len(label_histogram) <= _MOST_BARS:
    figure, axis = plt.subplots(figsize=(9, 3.6))
    _client_bars(axis, label_histogram, names, of_client)
    _mark_kinds(axis, of_client, marks, -0.5)
  else:
    figure, axes = plt.subplots(
      1, 2, figsize=(9, 3.6), width_ratios=(2.6, 1), layout="constrained"
    )
    _client_map(figure, axes[0], label_histogram, of_client)
    _mark_kinds(axes[0], of_client[label_histogram.sum(1) > 0], marks, 0.0)
    _client_sizes(axes[1], label_histogram.sum(1))
  figure.suptitle(texts.picture_text(title, _LONG_TITLE), fontsize=10)
  save_figure(figure, path)


#: Up to so many kinds of clients are marked in partition.png.
_MOST_KINDS = 20


def _mark_kinds(
  axis: Any, of_client: np.ndarray, names: Sequence[str], first: float
) -> None:
  """Draws lines between clients of different kinds, and the kinds' names."""
  if not 1 < len(names) <= _MOST_KINDS:
    return
  ends = first + np.cumsum(np.bincount(of_client, minlength=len(names)))
  for end in ends[:-1]:
    axis.axvline(end, color="black", linewidth=1.0)
  for name, end, start in zip(names, ends, (first, *ends[:-1])):
    axis.text(
      (start + end) / 2,
      1.01,
      texts.picture_text(name, 16),
      transform=axis.get_xaxis_transform(),
      ha="center",
      va="bottom",
      fontsize=8,
    )


def _client_bars(
  axis: Any,
  label_histogram: np.ndarray,
  names: Sequence[str] | np.ndarray | None,
  kinds: np.ndarray | None = None,
) -> None:
  """Draws a bar for each client, by kind and the largest first."""
  kinds = np.zeros(len(label_histogram), int) if kinds is None else kinds
  order = np.lexsort((-label_histogram.sum(1), kinds))
  stacked = label_histogram[order]
  bottom = np.zeros(len(stacked))
  colours = plt.get_cmap("tab10" if stacked.shape[1] <= 10 else "turbo")
  for c in range(stacked.shape[1]):
    shade = colours(c if stacked.shape[1] <= 10 else c / stacked.shape[1])
    # One polygon per class; drawing a bar per client takes seconds.
    axis.stairs(
      bottom + stacked[:, c],
      np.arange(len(stacked) + 1) - 0.5,
      baseline=bottom.copy(),
      fill=True,
      color=shade,
      label=str(c),
    )
    bottom += stacked[:, c]
  clients = np.arange(len(order)) if names is None else names
  words = [texts.picture_text(str(clients[i]), 24) for i in order]
  upright = len("".join(words)) > 60
  axis.set_xticks(
    range(len(order)),
    words,
    rotation=90 if upright else 0,
    fontsize=7 if len(order) > 30 else 8,
  )
  axis.margins(x=0.01)
  first = "by kind, " if kinds.any() else ""
  axis.set(xlabel=f"client, {first}largest first", ylabel="training examples")
  if stacked.shape[1] <= 12:
    axis.legend(title="class", fontsize=7, ncol=2, loc="upper right")


def _client_map(
  figure: Any,
  axis: Any,
  label_histogram: np.ndarray,
  kinds: np.ndarray | None = None,
) -> None:
  """Draws the share of each class at each client, sorted by kinds and classes."""
  holds = label_histogram.sum(1) > 0
  counts = label_histogram[holds]
  kinds = np.zeros(len(counts), int) if kinds is None else kinds[holds]
  shares = counts / counts.sum(1, keepdims=True)
  ranks = np.argsort(-shares, axis=1, kind="stable")
  second = ranks[:, min(1, ranks.shape[1] - 1)]
  order = np.lexsort((-shares.max(1), second, ranks[:, 0], kinds))
  starts = np.linspace(
    0, len(counts), min(len(counts), _COLUMNS), endpoint=False
  ).astype(int)
  columns = np.add.reduceat(shares[order], starts, axis=0)
  columns /= np.diff(starts, append=len(counts))[:, None]
  # The usual share of a class may be small; the largest is the darkest.
  image = axis.imshow(
    columns.T,
    aspect="auto",
    interpolation="nearest",
    cmap="magma_r",
    vmin=0.0,
    vmax=columns.max(),
    origin="lower",
    extent=(0, len(counts), -0.5, columns.shape[1] - 0.5),
  )
  figure.colorbar(image, ax=axis, label="share of the client's examples")
  note = (
    f", {len(counts) / len(starts):.0f} a column"
    if (len(counts) >= 2 * len(starts))
    else ""
  )
  first = "kind and " if kinds.any() else ""
  axis.set_xlabel(f"rank of the client by {first}most frequent class{note}")
  axis.set_ylabel("class")
  axis.yaxis.set_major_locator(ticker.MaxNLocator(12, integer=True))


def _client_sizes(axis: Any, sizes: np.ndarray) -> None:
  """Draws how many clients have how many examples."""
  low, high = int(sizes.min()), int(sizes.max())
  # Whole numbers in each bin: as many, or bins would seem empty.
  width = max(1, -(-(high - low + 1) // 40))
  axis.hist(
    sizes, np.arange(low, high + width + 1, width) - 0.5, color=styles_lib.COLOURS[0]
  )
  axis.axvline(
    np.median(sizes), color="black", linewidth=1.0, label=f"median {np.median(sizes):g}"
  )
  axis.margins(y=0.2)  # room for the legend
  axis.set(xlabel="training examples", ylabel="clients")
  axis.legend(fontsize=7)


def bars(
  paths: Paths,
  parts: Mapping[str, Mapping[str, Sequence[float | None]]],
  groups: Sequence[str],
  title: str,
  missing: str = "",
  marks: Mapping[str, Sequence[float | None]] | None = None,
  marked: str = "",
) -> None:
  """Draws panels of grouped bars in one row.

  The axis of a panel is logarithmic where a bar would be too low to be seen.

  Args:
    paths: files to write.
    parts: y label of a panel -> method -> a height for each group; None is no
      bar, but a cross at its place.
    groups: names below the bars.
    title: above all panels.
    missing: what None means, for the legend.
    marks: y label of a panel -> for each group a height that is marked across
      it, None for no mark.
    marked: what a mark means, for the legend.
  """
  groups = list(map(texts.picture_text, groups))
  longest = max(map(len, groups))
  # Long or many names would overlap if they were written horizontally.
  upright = len(groups) * longest > 40
  styles = styles_lib.line_styles(
    label for methods in parts.values() for label in methods
  )
  with sheet(
    paths,
    [""] * len(parts),
    title,
    in_a_row=len(parts),
    size=(4.6, 3.6 + upright * 0.07 * longest),
    margin=(1.0, 0.0),
    last=(missing, marked),
  ) as axes:
    for axis, (name, methods) in zip(axes, parts.items()):
      width = 0.8 / max(len(methods), 1)
      absent: list[float] = []
      for i, (label, heights) in enumerate(methods.items()):
        x = np.arange(len(groups)) + (i - (len(methods) - 1) / 2) * width
        # A bar of height NaN is not drawn, but the legend has its color.
        axis.bar(
          x,
          [math.nan if h is None else h for h in heights],
          0.92 * width,
          label=label,
          **styles[label].bar(),
        )
        for at, height in zip(x, heights):
          if height is None:
            absent.append(at)
          elif height == 0.0:  # a bar that is not seen, but is a number
            axis.annotate(
              "0",
              (at, 0.0),
              xycoords=axis.get_xaxis_transform(),
              ha="center",
              va="bottom",
              fontsize=7,
            )
      _log_bars(axis, [h for heights in methods.values() for h in heights])
      if absent:
        axis.plot(
          absent,
          [0.02] * len(absent),
          "x",
          color="grey",
          markersize=4,
          transform=axis.get_xaxis_transform(),
          label=missing or None,
        )
      for at, height in enumerate((marks or {}).get(name, ())):
        if height is not None:
          axis.plot(
            [at - 0.48, at + 0.48],
            [height] * 2,
            "--",
            color="black",
            linewidth=1.2,
            label=marked or None,
          )
      axis.set_xticks(np.arange(len(groups)), groups, rotation=90 if upright else 0)
      axis.set_ylabel(name)
      axis.grid(visible=False, axis="x")
      axis.set_axisbelow(True)


#: A bar lower than the highest one by this factor is hardly seen.
_LOW = 20.0


def _log_bars(axis: Any, heights: Iterable[float | None]) -> None:
  """Makes the y axis of bars logarithmic if that shows more of them."""
  positive = [h for h in heights if h]
  if not positive:
    axis.set_yticks([])
  elif max(positive) > _LOW * min(positive) > 0:
    axis.set(yscale="log", ylim=(min(positive) / 2.0, 1.6 * max(positive)))


def draw_means(
  axis: Any,
  label: str,
  points: Iterable[tuple[float, Any]],
  style: styles_lib.Style,
  least: float = -math.inf,
  most: float = math.inf,
) -> None:
  """Draws means with their 95 % intervals, joined by a line.

  Args:
    axis: matplotlib axes.
    label: of the line; "": none.
    points: (x, one number for each run).
    style: of the line.
    least: the least number there can be.
    most: the largest one.
  """
  x, mean, half = (
    np.array([(at, *metrics.confidence_95(list(values))) for at, values in points])
    .reshape(-1, 3)
    .T
  )
  ends = np.minimum(half, np.maximum([mean - least, most - mean], 0.0))
  axis.errorbar(
    x,
    mean,
    None if np.isnan(half).all() else ends,
    markersize=5,
    capsize=3,
    label=texts.picture_text(label) or None,
    **style.matplotlib(),
  )


def plot_panels(
  paths: Paths,
  cells: Mapping[str, Mapping[str, "Frames"]],
  protocol: str,
  metric: str,
  title: str,
  x_axis: str = "rounds",
  marks: Mapping[str, Sequence[Mark]] | None = None,
  in_a_row: int = 2,
  x_scale: str = "",
  below: Sequence[tuple[str, str]] = (),
  references: Sequence[Reference] = (),
  window: int = 1,
) -> None:
  """Draws panels of curves, with the names of few lines at their ends.

  Args:
    paths: files to write.
    cells: panel title -> label -> the tables of its run.
    protocol: the protocol that is drawn.
    metric: the metric that is drawn.
    title: above all panels.
    x_axis: one of ``X_AXES``, for curves of the protocol.
    marks: panel title -> the paper's numbers. Those at a round are drawn over
      rounds alone, if so many were run.
    in_a_row: the most panels side by side.
    x_scale: "log" where the x axis is always logarithmic.
    below: (protocol, metric) of further curves, in a row of panels each; those
      of another protocol are drawn over rounds.
    references: bounds and targets, each a line across the panels of its metric.
    window: see ``pictures.draw_curves``.
  """
  measures = [(protocol, metric), *below]
  columns = min(in_a_row, len(cells))
  if below and len(cells) % columns:
    columns = len(cells)  # a place that stays free would move the rows below
  names = list(cells)
  # The rows of a few panels, then those of the next ones.
  places = [
    (curve, name)
    for first in range(0, len(names), columns)
    for curve in measures
    for name in names[first : first + columns]
  ]
  titles = [name if curve == measures[0] else "" for curve, name in places]
  # A single panel must be wide enough for the title and the legend.
  size = (4.6 if columns > 1 else 7.5, 2.9 if below else 3.4)
  styles = _styles(cells)
  panels_with_names: list[tuple[Any, list[str], float]] = []
  with sheet(paths, titles, title, in_a_row=columns, size=size) as axes:
    for axis, ((panel_protocol, column), name) in zip(axes, places):
      runs = cells[name]
      over = x_axis if panel_protocol == protocol else "rounds"
      panel_marks = [
        mark
        for mark in (marks or {}).get(name, ())
        if column == (mark.metric or metric)
        and (
          mark.round is None
          or over == "rounds"
          and runs[mark.label].evaluated[-1] >= mark.round
        )
      ]
      curves = {
        label: curve_of(frames, panel_protocol, column, over)
        for label, frames in runs.items()
      }
      pictures.draw_curves(axis, curves, column, over, styles, window=window)
      lines = [line for line in references if column == (line.metric or metric)]
      _draw_references(axis, lines)
      if x_scale:
        axis.set_xscale(x_scale)
      if column.endswith("loss") or metrics.is_cost(column):
        pictures.log_axis(axis)
      elif pictures.is_share(column):
        pictures.fit_shares(
          axis,
          [curve.values for curve in curves.values()],
          [*(mark.value for mark in panel_marks), *(line.value for line in lines)],
          window,
        )
      place = _draw_marks(axis, panel_marks, styles)
      if len(styles) <= _MOST_LABELS:
        panels_with_names.append((axis, list(runs), place))
    axes[0].figure.canvas.draw()  # the heights of the panels are known from here on
    for axis, names, place in panels_with_names:
      words = [texts.picture_text(name, 100) for name in names]
      pictures.label_ends(axis, words, place)
      for line in axis.get_lines():
        if line.get_label() in words:
          line.set_label(f"_{line.get_label()}")  # not in the legend


def scatters(
  paths: Paths,
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
  with sheet(paths, list(cells), title, in_a_row=3, size=(3.4, 3.2)) as axes:
    for axis, (x, y, (slope, intercept)) in zip(axes, cells.values()):
      # In the PDF the points are an image; thousands of vector points would
      # take much space.
      axis.plot(
        x, y, ".", color=styles_lib.COLOURS[0], markersize=2, alpha=0.3, rasterized=True
      )
      ends = np.array([x.min(), x.max()])
      axis.plot(
        ends,
        slope * ends + intercept,
        color="black",
        linewidth=1.0,
        label="line of least squares",
      )
      axis.set(xlabel=labels[0], ylabel=labels[1])


def plot_groups(
  paths: Paths,
  cells: Mapping[str, tuple[np.ndarray, np.ndarray, Sequence[str]]],
  labels: tuple[str, str],
  title: str,
) -> None:
  """Draws points colored by group, with a word for points of the same kind.

  Args:
    paths: files to write.
    cells: panel title -> points [n, 2], groups [n], words [n].
    labels: of the axes.
    title: above all panels.
  """
  figure, axes = plt.subplots(
    1, len(cells), figsize=(5.2 * len(cells), 4.6), squeeze=False
  )
  for axis, (name, (points, group, _)) in zip(axes.flat, cells.items()):
    label_of = {number: f"group {number + 1}" for number in sorted(set(group.tolist()))}
    styles = styles_lib.line_styles(label_of.values())
    for number, label in label_of.items():
      style = styles[label]
      axis.scatter(
        *points[group == number].T,
        s=16,
        label=label,
        color=style.colour,
        marker=style.marker,
        linewidths=0,
      )
    axis.set(xlabel=labels[0], ylabel=labels[1])
    axis.set_title(name, fontsize=9)
    axis.legend(fontsize=7, loc="best")
    axis.grid(alpha=0.3)
  figure.suptitle(title, fontsize=11)
  figure.set_layout_engine("constrained")
  figure.canvas.draw()  # where things lie is known from here on
  for axis, (points, _, words) in zip(axes.flat, cells.values()):
    # A word is written once, at the middle of its points.
    _write_apart(
      axis,
      points,
      {
        word: np.median(points[[entry == word for entry in words]], axis=0)
        for word in sorted(set(words))
      },
    )
  save_figure(figure, *paths)


def _write_apart(axis: Any, points: np.ndarray, at: Mapping[str, np.ndarray]) -> None:
  """Writes words near places [2], where nothing else is, within the axes.

  Args:
    axis: whose points and legend are drawn.
    points: [n, 2].
    at: word -> its place. A line leads to it from the word.
  """
  spots = axis.transData.transform(points)
  boxes = [axis.get_legend().get_window_extent()]
  frame = axis.get_window_extent()
  for word, place in at.items():
    text = axis.annotate(
      word,
      place,
      (0, 0),
      fontsize=8,
      textcoords="offset points",
      va="center",
      arrowprops={
        "arrowstyle": "-",
        "color": "grey",
        "linewidth": 0.5,
        "shrinkA": 0.0,
        "shrinkB": 0.0,
        "relpos": (0.5, 0.5),
      },
    )
    for far, turn in itertools.product(
      (9.0, 16.0, 24.0, 34.0, 46.0, 60.0), np.linspace(0.25, 2.25, 16)
    ):
      x, y = far * np.cos(np.pi * turn), far * np.sin(np.pi * turn)
      text.xyann = x, y
      text.set_horizontalalignment("left" if x >= 0 else "right")
      text.update_positions(axis.figure.canvas.get_renderer())
      box = Text.get_window_extent(text)  # without its line
      if (
        frame.contains(box.x0, box.y0)
        and frame.contains(box.x1, box.y1)
        and not box.padded(2.0).count_contains(spots)
        and not any(box.overlaps(neighbour) for neighbour in boxes)
      ):
        break
    boxes.append(Text.get_window_extent(text))
