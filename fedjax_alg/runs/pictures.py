"""Curves of runs, and mean ranks; matplotlib is imported when one is plotted.

All pictures of curves are plotted here: of a run, of a comparison, on the command
line and of papers' figures. A method has the same color, dashes and marker in every
picture (``styles``), and so has a run in all pictures of a comparison.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.errors import OptionError, a_type
from fedjax_alg.runs import styles, texts

#: What an x axis shows -> column of ``RunResult.costs``, label of the axis.
X_AXES = {
  "rounds": ("round", "communication round"),
  "floats": ("total_floats", "floats sent, all participants, both ways"),
  "bytes": ("total_bytes", "bytes sent, all participants, both ways"),
  "bytes_up": ("total_bytes_up", "bytes sent to the server, all participants"),
  "example_gradients": (
    "total_example_gradients",
    "per-example gradients, all participants",
  ),
  "seconds": ("seconds", "seconds on this machine, without compiling"),
  "simulated_s": ("simulated_s", "seconds on the simulated machines"),
}
_DASHED = (0, (4, 3))
#: From so many seconds on, an axis is in hours.
_HOURS = 7200.0
#: An axis of costs is logarithmic if a line ends at this share of the longest.
_SHORT = 0.25
#: About so many markers are on a line.
_MARKERS = 6
#: Bands of more lines would hide each other; these have bars at their ends.
MOST_BANDS = 3
#: Labels of the intervals in a legend: of runs on one partition of the data, and on
#: several.
BAND = "95 % CI of the mean over seeds"
BAND_OF_PARTITIONS = "95 % CI of the mean over partitions"
BANDS = (BAND, BAND_OF_PARTITIONS)
#: Lines are thinner than elsewhere by this factor.
_THIN = 0.8
#: Size of the names at the ends of lines, in points.
_LABEL = 8
#: One in so many of the first evaluations does not decide the range of an axis.
_FIRST = 4
#: An axis of shares shows at least this range.
_LEAST_RANGE = 0.02
#: The most characters of a label that stands inside of the axes.
LONG_LABEL = 48


def new_axis(axis: Any = None, size: tuple[float, float] = (6.4, 4.0)) -> Any:
  """The axes to draw on.

  Args:
    axis: axes of matplotlib; None makes a new figure.
    size: of a new figure, in inches.

  Raises:
    OptionError: ``axis`` is something else.
  """
  from matplotlib import axes  # half a second
  from matplotlib import pyplot as plt

  if axis is not None:
    if not isinstance(axis, axes.Axes):
      raise OptionError(f"`axis`={axis!r}: {a_type(axis)}, must be axes of matplotlib")
    return axis
  _, axis = plt.subplots(figsize=size, layout="constrained")
  return axis


class Curve(NamedTuple):
  """A line of a picture."""

  x: np.ndarray  #: [E], rounds or what they have cost
  values: np.ndarray  #: [N, E], over whose N the interval is taken
  of_partitions: bool = False  #: whether N are partitions of the data, not seeds


def draw_curves(
  axis: Any,
  curves: Mapping[str, Curve],
  metric: str,
  x_axis: str = "rounds",
  looks: Mapping[str, Mapping[str, Any]] | None = None,
  longest: int = 100,
  window: int = 1,
) -> None:
  """Draws one line per curve: the mean over its seeds, with a band.

  The band is the 95 % confidence interval of the mean (Student t), the one that
  tables report. A single seed has none. It is cut off where a metric cannot lie:
  shares at 0 and 1, the loss at 0. More than ``MOST_BANDS`` lines have a bar at their
  ends instead, beside each other, because bands would hide each other.

  Each line has its markers at other rounds than the other lines, so that those of
  the same values are all seen. An axis of costs is logarithmic where a line ends so
  early that a linear axis would hide it, and in hours if it is long.

  Args:
    axis: axes of matplotlib.
    curves: label -> curve; one without evaluations is left out.
    metric: name of the y axis; it decides the scale.
    x_axis: what x is, one of ``X_AXES``.
    looks: label -> options of its line; by default those of ``styles.line_styles``.
    longest: of a longer label the middle is left out.
    window: a line and its band are of running means of so many evaluations; the
      mean of the evaluations is drawn below it, in light. 1: the evaluations
      themselves.
  """
  from matplotlib import ticker

  if looks is None:
    styles_of = styles.line_styles(curves)
    looks = {label: style.matplotlib() for label, style in styles_of.items()}
  number = len(curves)
  plotted = {label: curve for label, curve in curves.items() if curve.values.size}
  ends = [curve.x[-1] for curve in plotted.values()]
  has_bands = sum(len(curve.values) > 1 for curve in plotted.values()) <= MOST_BANDS
  single = [label for label, curve in plotted.items() if len(curve.x) == 1]
  unit, x_label = 1.0, X_AXES[x_axis][1]
  if x_label.startswith("seconds") and max(ends, default=0.0) >= _HOURS:
    unit, x_label = 3600.0, x_label.replace("seconds", "hours", 1)
  for place, (label, curve) in enumerate(curves.items()):
    if label not in plotted:
      continue
    x, values = curve.x / unit, curve.values
    look = {**looks[label], "linewidth": _THIN * looks[label]["linewidth"]}
    if window > 1:
      axis.plot(x, values.mean(0), color=look["color"], linewidth=0.7, alpha=0.3)
      values = _running_mean(values, window)
    mean = values.mean(0)
    (line,) = axis.plot(
      x,
      mean,
      label=texts.picture_text(label, longest),
      markersize=5,
      markeredgecolor="white",
      markeredgewidth=0.4,
      markevery=_marker_points(len(x), place, number),
      **look,
    )
    artists: list[Any] = [line]
    if len(values) > 1:
      part = slice(None) if has_bands else slice(-1, None)
      with np.errstate(invalid="ignore"):  # a loss may be infinite
        half = metrics.half_width_95(values)
      band = draw_band(
        axis,
        x[part],
        np.clip(mean - half, 0.0 if _is_bounded(metric) else None, None)[part],
        np.clip(mean + half, None, 1.0 if is_share(metric) else None)[part],
        color=line.get_color(),
        label=BAND_OF_PARTITIONS if curve.of_partitions else BAND,
      )
      artists.append(band)
      if not has_bands and label not in single:
        set_apart(axis, [band], place, number, 3.0)
    if label in single:
      set_apart(axis, artists, single.index(label), len(single))
  if x_axis != "rounds" and ends and 0 < min(ends) <= _SHORT * max(ends):
    axis.set_xscale("log")
  if x_axis == "rounds" and len(single) == len(plotted):
    axis.set_xticks(sorted(set(ends)))
  elif x_axis == "rounds":  # a few rounds have no halves either
    axis.xaxis.set_major_locator(
      ticker.MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True)
    )
  axis.set(xlabel=x_label, ylabel=metric.replace("_", " "))
  if is_share(metric):
    in_percent(axis)
  axis.grid(alpha=0.3)


def _running_mean(values: np.ndarray, window: int) -> np.ndarray:
  """The mean [N, E] of the last ``window`` of values [N, E], at the start of fewer."""
  sums = np.pad(values, ((0, 0), (1, 0))).cumsum(1)
  ends = np.arange(1, values.shape[1] + 1)
  starts = np.maximum(ends - window, 0)
  means: np.ndarray = (sums[:, ends] - sums[:, starts]) / (ends - starts)
  return means


def fit_shares(
  axis: Any,
  curves: Iterable[np.ndarray],
  also: Iterable[float],
  window: int = 1,
) -> None:
  """Fits the y axis of a share to the lines, whose first rounds would squeeze them.

  The axis of a single line has room for its band, too.

  Args:
    axis: axes of matplotlib, on which the lines are.
    curves: the values of each line [N, E].
    also: what the axis must show, too.
    window: that of ``draw_curves``.
  """
  lines = [curve for curve in curves if curve.size]
  means = [curve.mean(0) for curve in lines if np.isfinite(curve).all()]
  if not means:
    return
  late = [mean[_first_late(len(mean)) :] for mean in means]
  low = min(min(np.quantile(mean, 0.05), mean[-1]) for mean in late)
  high = max(mean.max() for mean in late)
  if len(lines) == 1 and len(lines[0]) > 1:
    half = metrics.half_width_95(_running_mean(lines[0], window))
    room_of_band = float(np.median(half[_first_late(len(half)) :]))
    low, high = low - room_of_band, high + room_of_band
  marks = list(map(float, also))
  low, high = min([low, *marks]), max([high, *marks])
  room = 0.06 * max(high - low, _LEAST_RANGE)
  spare = max(0.0, _LEAST_RANGE - (high - low))
  axis.set_ylim(max(low - room - spare, 0.0), min(high + room, 1.0))


def _first_late(number: int) -> int:
  """The first of so many evaluations that an axis of shares is fit to."""
  return min(-(-number // _FIRST), number - 1)


def label_ends(axis: Any, labels: Iterable[str], x: float = 1.015) -> None:
  """Writes the names of lines beside their ends, in their colors, apart.

  Args:
    axis: axes of matplotlib with its final limits.
    labels: those of the lines.
    x: where the words begin, as a share of the width of the axes.
  """
  names = set(labels)
  lines = [line for line in axis.get_lines() if line.get_label() in names]
  ends = []
  for line in lines:
    y = np.asarray(line.get_ydata(), float)
    finite = y[np.isfinite(y)]
    if finite.size:
      point = axis.transData.transform((0.0, finite[-1]))
      ends.append((float(axis.transAxes.inverted().transform(point)[1]), line))
  ends.sort(key=lambda end: end[0])
  height = axis.get_window_extent().height / axis.figure.dpi * 72  # points
  step = 1.25 * _LABEL / height
  places = _spread([min(max(y, 0.0), 1.0) for y, _ in ends], step)
  for (_, line), place in zip(ends, places):
    axis.text(
      x,
      place,
      line.get_label(),
      transform=axis.transAxes,
      color=line.get_color(),
      fontsize=_LABEL,
      va="center",
    )


def _spread(places: list[float], step: float) -> list[float]:
  """Moves ascending places as little as needed to be ``step`` apart."""
  groups: list[tuple[float, int]] = []  # middle, number
  for place in places:
    groups.append((place, 1))
    while len(groups) > 1:
      (middle, number), (last, count) = groups[-2:]
      if last - middle >= step * (number + count) / 2:
        break
      total = number + count
      groups[-2:] = [((middle * number + last * count) / total, total)]
  return [
    middle + step * (i - (number - 1) / 2)
    for middle, number in groups
    for i in range(number)
  ]


def looks_of_protocols(protocols: list[str], label: str) -> dict[str, dict[str, Any]]:
  """Options of the curves of one run, protocol -> options.

  The first curve looks as the method does in comparisons. Protocols often have the
  same numbers, so the others are dashed: what is below has to be seen.

  Args:
    protocols: the protocols in the order of drawing.
    label: that of the method.
  """
  names = [label, *protocols[1:]] if protocols else []
  styles_of = styles.line_styles(names, are_protocols=True)
  return {
    protocol: styles_of[name].matplotlib()
    | ({"linestyle": _DASHED, "zorder": 3 + place} if place else {})
    for place, (protocol, name) in enumerate(zip(protocols, names))
  }


def decorate(axis: Any, metric: str, title: str) -> None:
  """Gives axes that stand alone their scale, a legend and a title.

  Args:
    axis: the axes, on which the curves are.
    metric: their metric.
    title: above them.
  """
  if metrics.is_cost(metric):
    log_axis(axis)
  entries = list(zip(*axis.get_legend_handles_labels()))
  lines = [(handle, label) for handle, label in entries if label not in BANDS]
  bands = {label: handle for handle, label in entries if label in BANDS}
  lines += [(handle, label) for label, handle in bands.items()]
  axis.legend(*map(list, zip(*lines)), fontsize=8)
  axis.set_title(texts.picture_text(title), fontsize=10)


def in_percent(axis: Any) -> None:
  """Writes a y axis of shares in percent, as tables have them."""
  from matplotlib import ticker

  axis.yaxis.set_major_formatter(
    ticker.FuncFormatter(lambda share, _: f"{round(100 * share, 6):g}")
  )
  axis.set_ylabel(f"{axis.get_ylabel()}, %")


def log_axis(axis: Any) -> None:
  """Makes the y axis logarithmic, if a line has a positive value.

  Zeros are gaps of a line. A band that reaches down to zero ends at the lower
  end of the axis, which the lines decide.
  """
  from matplotlib import ticker

  heights = [np.asarray(line.get_ydata(), float) for line in axis.get_lines()]
  positive = np.concatenate([y[np.isfinite(y) & (y > 0)] for y in heights] or [[]])
  if not positive.size:
    return
  low, high = positive.min() / 1.2, 1.2 * positive.max()
  high = max(high, min(axis.dataLim.y1, 10 * high))
  for line, y in zip(axis.get_lines(), heights):
    line.set_ydata(np.where(y > 0, y, np.nan))
  for band in axis.collections:
    for path in band.get_paths():
      path.vertices[:, 1] = np.maximum(path.vertices[:, 1], low)
  axis.set(yscale="log", ylim=(low, high))
  if high < 6 * low:  # round numbers at equal steps
    axis.yaxis.set(
      major_locator=ticker.MaxNLocator(8, steps=[1, 2, 5, 10]),
      minor_locator=ticker.NullLocator(),
      major_formatter="{x:g}",
    )
  elif high < 1000 * low:  # powers of ten alone would be too few
    digits = "1235" if high < 30 * low else "12" if high < 100 * low else "13"
    plain = ticker.FuncFormatter(lambda y, _: f"{y:g}" if f"{y:e}"[0] in digits else "")
    axis.yaxis.set(major_formatter=plain, minor_formatter=plain)


def _marker_points(points: int, place: int, lines: int) -> list[int]:
  """The points of a line that have a marker.

  Args:
    points: how many it has.
    place: the number of the line.
    lines: how many lines there are. No two have a marker at the same point, if
      there are at least as many points.
  """
  step = max(min(lines, points), round(points / _MARKERS))
  start = place * step // lines if step >= lines else place % step
  return list(range(start, points, step))


def set_apart(
  axis: Any, artists: Iterable[Any], place: int, number: int, step: float = 9.0
) -> None:
  """Moves what is plotted of a single point, so that points stand side by side.

  Args:
    axis: axes of matplotlib.
    artists: the point and its interval.
    place: of the point, from 0.
    number: of points.
    step: the distance of two points, in typographic points.
  """
  from matplotlib import transforms

  aside = step * (place - (number - 1) / 2)
  for artist in artists:
    artist.set_transform(
      transforms.offset_copy(axis.transData, axis.figure, aside, units="points")
    )


def draw_band(
  axis: Any, x: np.ndarray, low: np.ndarray, high: np.ndarray, **options: Any
) -> Any:
  """Draws the intervals [E] at x [E]; a bar if there is one, which has no area.

  Args:
    axis: axes of matplotlib.
    x: where they are.
    low: their lower ends.
    high: their upper ends.
    **options: of what is plotted, such as its color.

  Returns:
    What is plotted.
  """
  if len(x) > 1:
    return axis.fill_between(x, low, high, alpha=0.15, linewidth=0, **options)
  return axis.vlines(x, low, high, alpha=0.7, linewidth=2, **options)


def is_share(metric: str) -> bool:
  """Whether a metric is a share, which axes show in percent."""
  return metrics.is_known(metric) and metrics.metric(metric).share


def _is_bounded(metric: str) -> bool:
  """Whether a metric is not below 0."""
  return not metrics.is_known(metric) or is_share(metric) or metrics.is_cost(metric)


def draw_critical_differences(
  axis: Any, ranks: Mapping[str, float], difference: float
) -> None:
  """Draws mean ranks on a line, with bars over methods that do not differ.

  Args:
    axis: axes of matplotlib.
    ranks: method -> mean rank, 1 is the best.
    difference: from which on two mean ranks differ.
  """
  ordered = sorted(ranks, key=lambda name: ranks[name])
  values = np.array([ranks[name] for name in ordered])
  number = len(ordered)
  left = (number + 1) // 2
  looks = styles.line_styles(ordered)
  lowest, highest = 1.0, float(number)
  margin = 0.06 * (highest - lowest)
  axis.plot([lowest, highest], [0, 0], color="black", linewidth=1)
  for tick in range(1, number + 1):
    axis.plot([tick, tick], [0, 0.15], color="black", linewidth=1)
    axis.text(tick, 0.25, str(tick), ha="center", va="bottom", fontsize=9)
  for place, (name, value) in enumerate(zip(ordered, values)):
    is_left = place < left
    row = place if is_left else number - 1 - place
    height, end = -1.0 - 0.6 * row, lowest - margin if is_left else highest + margin
    look, words = looks[name].matplotlib(), texts.picture_text(name, LONG_LABEL)
    axis.plot(
      [value, value, end],
      [0, height, height],
      color=look["color"],
      linestyle=look["linestyle"],
      linewidth=1.4,
    )
    axis.text(
      end,
      height,
      f"{words} ({value:.2f}) " if is_left else f" ({value:.2f}) {words}",
      ha="right" if is_left else "left",
      va="center",
      fontsize=9,
    )
  for row, (first, last) in enumerate(_cliques(values, difference)):
    height = -0.25 - 0.17 * row
    axis.plot(
      [values[first] - 0.02, values[last] + 0.02],
      [height, height],
      color="black",
      linewidth=3.5,
      solid_capstyle="round",
    )
  axis.plot([lowest, lowest + difference], [1.3, 1.3], color="black", linewidth=1.6)
  for x in (lowest, lowest + difference):
    axis.plot([x, x], [1.2, 1.4], color="black", linewidth=1.6)
  axis.text(
    lowest + difference / 2,
    1.45,
    f"critical difference {difference:.2f}",
    ha="center",
    va="bottom",
    fontsize=9,
  )
  width = highest - lowest
  axis.set_xlim(lowest - 0.45 * width, highest + 0.45 * width)
  axis.set_ylim(-1.6 - 0.6 * (left - 1), 2.2)
  axis.set_axis_off()


def _cliques(values: np.ndarray, difference: float) -> list[tuple[int, int]]:
  """The longest runs of sorted ranks that do not differ, as places."""
  pairs: list[tuple[int, int]] = []
  for first in range(len(values)):
    last = int(np.flatnonzero(values - values[first] < difference)[-1])
    if last > first and (not pairs or last > pairs[-1][1]):
      pairs.append((first, last))
  return pairs
