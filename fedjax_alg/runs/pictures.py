"""Pictures of runs in memory; matplotlib is imported when one is drawn.

A method has the same color, dashes and marker in every picture (``styles``), and
so has a run in all pictures of a comparison.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.errors import OptionError, a_type
from fedjax_alg.runs import styles, texts

#: What an x axis shows -> column of the rows with costs, label of the axis.
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
#: The most characters of a label that stands inside of the axes.
_LONG_LABEL = 48


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


def draw_lines(
  axis: Any,
  curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
  metric: str,
  names: Mapping[str, str] | None = None,
  x_axis: str = "rounds",
) -> None:
  """Draws means over seeds with bands, the 95 % interval of the mean.

  A run of one seed has no band. The band of a single evaluation is a bar.

  Args:
    axis: axes of matplotlib.
    curves: label -> x [E], for example rounds, and values [N, E].
    metric: name of the y axis; it decides the scale.
    names: of the curves of a single run, protocol -> the name by which it gets its
      style; by default the curves are of runs, each with its label.
    x_axis: what x is, one of ``X_AXES``.
  """
  looks = styles.line_styles(
    ((names or {}).get(label, label) for label in curves), are_protocols=bool(names)
  )
  single = [label for label, (rounds, _) in curves.items() if len(rounds) == 1]
  for place, (label, (rounds, values)) in enumerate(curves.items()):
    look = looks[(names or {}).get(label, label)].matplotlib()
    if names and label not in names:
      # Protocols often have the same numbers: what is below has to be seen.
      look |= {"linestyle": _DASHED, "zorder": 3 + place}
    mean, step = values.mean(0), max(len(curves), len(rounds) // 6)
    (line,) = axis.plot(
      rounds,
      mean,
      label=texts.picture_text(label, _LONG_LABEL),
      markersize=5,
      markeredgecolor="white",
      markeredgewidth=0.4,
      markevery=(place % len(rounds), step),
      **look,
    )
    artists = [line]
    if len(values) > 1:
      half = metrics.half_width_95(values)
      band = draw_band(
        axis,
        rounds,
        np.clip(mean - half, 0.0 if _is_bounded(metric) else None, None),
        np.clip(mean + half, None, 1.0 if metrics.metric(metric).share else None),
        color=look["color"],
      )
      artists.append(band)
    if label in single:
      set_apart(axis, artists, single.index(label), len(single))
  if metrics.is_cost(metric):
    axis.set_yscale("log")
  if len(single) == len(curves):
    axis.set_xticks(sorted({place for x, _ in curves.values() for place in x}))
  elif x_axis == "rounds":
    axis.locator_params(axis="x", integer=True)
  axis.set(xlabel=X_AXES[x_axis][1], ylabel=metric.replace("_", " "))
  axis.grid(alpha=0.3)
  axis.legend(fontsize=8)


def set_apart(axis: Any, artists: Iterable[Any], place: int, number: int) -> None:
  """Moves what is drawn of a single point, so that points stand side by side.

  Args:
    axis: axes of matplotlib.
    artists: the point and its interval.
    place: of the point, from 0.
    number: of points.
  """
  from matplotlib import transforms

  aside = 9 * (place - (number - 1) / 2)
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
    **options: of what is drawn, such as its color.

  Returns:
    What is drawn.
  """
  if len(x) > 1:
    return axis.fill_between(x, low, high, alpha=0.15, linewidth=0, **options)
  return axis.vlines(x, low, high, alpha=0.4, linewidth=5, **options)


def _is_bounded(metric: str) -> bool:
  """Whether a metric is not below 0."""
  return metrics.metric(metric).share or metrics.is_cost(metric)


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
    look, words = looks[name].matplotlib(), texts.picture_text(name, _LONG_LABEL)
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
