"""Pictures of a table of numbers: dots with intervals, and a map of gains.

A picture is drawn from its table alone (``read_dots``). A figure's command and
``publish`` therefore draw the same picture, the second one without any run.
"""

from collections.abc import Iterable, Mapping, Sequence
import csv
import io
import itertools
import math
import pathlib
import textwrap
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import files
from fedjax_alg.runs import styles, texts

from .plots import Paths, number_paths, plt, save_figure, sheet

from matplotlib.colors import LinearSegmentedColormap  # isort: skip (after the backend)
from matplotlib import ticker  # isort: skip
from matplotlib.patches import Rectangle  # isort: skip

#: The end of the name of a picture's table.
SUFFIX = ".dots.csv"


class Dot(NamedTuple):
  """A number of a picture, and a row of its table."""

  panel: str  #: title of the panel
  row: str  #: what the number is of
  mean: float = math.nan  #: NaN: there is none, and ``note`` stands in its place
  half: float = math.nan  #: half the width of its interval; NaN: it has none
  published: float = math.nan  #: the published number; NaN: there is none
  name: str = ""  #: which of several numbers of the row
  #: the single numbers of which it is the mean
  values: tuple[float, ...] = ()
  note: str = ""  #: what must be known of it, as "10 of 1000 rounds"


class NothingToDraw(Exception):
  """No panel has the runs that a picture compares; the message says so."""


def write_dots(path: pathlib.Path, dots: Iterable[Dot]) -> None:
  """Writes the numbers of a picture as CSV, NaN as an empty cell.

  Args:
    path: the file.
    dots: the numbers, in the order in which they are drawn.
  """
  stream = io.StringIO()
  writer = csv.writer(stream, lineterminator="\n")
  writer.writerow(Dot._fields)
  for dot in dots:
    writer.writerow(
      [
        *dot[:2],
        *("" if math.isnan(number) else f"{number:.6g}" for number in dot[2:5]),
        dot.name,
        " ".join(f"{value:.6g}" for value in dot.values),
        dot.note,
      ]
    )
  with files.replacing(path) as partial:
    partial.write_text(stream.getvalue(), encoding="utf-8")


def read_dots(path: pathlib.Path) -> list[Dot]:
  """The numbers that ``write_dots`` has written."""
  with open(path, newline="", encoding="utf-8") as file:
    return [
      Dot(
        panel=row["panel"],
        row=row["row"],
        mean=float(row["mean"] or "nan"),
        half=float(row["half"] or "nan"),
        published=float(row["published"] or "nan"),
        name=row["name"],
        values=tuple(map(float, row["values"].split())),
        note=row["note"],
      )
      for row in csv.DictReader(file)
    ]


#: Recognizer of a file of ``write_dots``.
IS_TABLE = files.table_with(*Dot._fields)


class Look(NamedTuple):
  """How a picture shows its numbers."""

  x_label: str  #: of the numbers
  interval: str = "95 % CI of the mean"  #: what the intervals are
  published: str = "the paper's number"  #: what the hollow markers are
  reference: float | None = None  #: a number that a vertical line marks
  reference_label: str = ""  #: what that number is
  most: float = math.inf  #: the largest number there can be, at which intervals end
  x_scale: str = "linear"  #: "log" for positive numbers of many orders
  #: which rows stand above: those of "high" or of "low" numbers; "": as in the table
  first: str = "high"
  #: whether the several numbers of a row are steps of one quantity, light to dark
  steps: bool = False
  same_axis: bool = False  #: whether the panels of a picture have one range
  panels: int = 4  #: the most of a picture
  in_a_row: int = 2  #: the most panels side by side
  digits: int = 1  #: of the numbers beside the rows; -1: there are none


#: What our numbers are beside published ones, and the numbers of single runs.
_OURS, _SINGLE = "here", "single runs"
#: Height of a row, and of each further number in it, in inches.
_ROW, _EACH_MORE = 0.23, 0.1
#: The most characters in a line of the name of a row.
_LONG = 44
#: Color of what is no method's.
_INK = "0.2"
#: Values that lie so many quartile ranges below the lower quartile are cut off,
#: if they are at most this share of all.
_FAR, _FEW = 3.0, 0.25
#: The axis shows intervals up to this share of the range of the numbers.
_ROOM = 0.75


def draw_dots(paths: Paths, dots: Sequence[Dot], title: str, look: Look) -> list[Paths]:
  """Draws panels of numbers, a row for each name.

  The number itself stands beside a row that has only one. A row without a number is
  left out, unless a note stands in its place. The axis has the range of the numbers;
  what lies far below is written at its left end.

  Args:
    paths: files of the first picture; further ones are NAME_2, NAME_3, ...
    dots: the numbers.
    title: above all panels.
    look: how they are shown.

  Returns:
    The files of each picture.

  Raises:
    NothingToDraw: there is no number.
  """
  visible = [dot for dot in dots if math.isfinite(dot.mean) or dot.note]
  if not any(math.isfinite(dot.mean) for dot in visible):
    raise NothingToDraw("no panel has the runs that it compares")
  panels = list(dict.fromkeys(dot.panel for dot in visible))
  names = list(dict.fromkeys(dot.name for dot in visible))
  pages: list[Paths] = []
  for number, first in enumerate(range(0, len(panels), look.panels), 1):
    page_panels = panels[first : first + look.panels]
    page_paths = number_paths(paths, number)
    rows_of = {
      panel: rows
      for start in range(0, len(page_panels), look.in_a_row)
      for panel, rows in _order_panels(
        [d for d in visible if d.panel in page_panels[start : start + look.in_a_row]],
        look.first,
      ).items()
    }
    _draw_page(page_paths, rows_of, names, title, look)
    pages.append(page_paths)
  return pages


def _order_panels(dots: Sequence[Dot], first: str) -> dict[str, dict[str, list[Dot]]]:
  """panel -> row -> its numbers, of panels that stand beside each other.

  If all panels have the same rows, they have them in the same order.
  """
  by_panel: dict[str, dict[str, list[Dot]]] = {}
  for dot in dots:
    by_panel.setdefault(dot.panel, {}).setdefault(dot.row, []).append(dot)
  is_common = len({frozenset(rows) for rows in by_panel.values()}) == 1
  common = _order_rows(dots, first) if is_common else []
  return {
    panel: {
      row: rows[row]
      for row in common or _order_rows(list(itertools.chain(*rows.values())), first)
    }
    for panel, rows in by_panel.items()
  }


def _order_rows(dots: Sequence[Dot], first: str) -> list[str]:
  """The rows from above; by the mean of their ranks in the panels."""
  rows = list(dict.fromkeys(dot.row for dot in dots))
  if not first:
    return rows
  places: dict[str, list[float]] = {row: [] for row in rows}
  for panel in dict.fromkeys(dot.panel for dot in dots):
    means = {
      row: float(np.mean(numbers))
      for row in rows
      if (
        numbers := [
          dot.mean
          for dot in dots
          if (dot.panel, dot.row) == (panel, row) and math.isfinite(dot.mean)
        ]
      )
    }
    ordered = sorted(means, key=lambda row: means[row], reverse=first == "high")
    for place, row in enumerate(ordered):
      places[row].append(place / len(ordered))
  return sorted(rows, key=lambda row: np.mean(places[row]) if places[row] else math.inf)


def _draw_page(
  paths: Paths,
  rows_of: Mapping[str, Mapping[str, Sequence[Dot]]],
  names: Sequence[str],
  title: str,
  look: Look,
) -> None:
  """Draws one picture; see ``draw_dots``."""
  columns = min(look.in_a_row, len(rows_of))
  heights = [
    sum(_ROW + _EACH_MORE * (len(dots) - 1) for dots in rows.values())
    for rows in rows_of.values()
  ]
  # Of the panels beside each other.
  heights = [
    max(0.6, *heights[first : first + columns])
    for first in range(0, len(heights), columns)
  ]
  longest = max(len(row) for rows in rows_of.values() for row in rows)
  with sheet(
    paths,
    list(rows_of),
    title,
    in_a_row=columns,
    size=({1: 5.6, 2: 3.5}.get(columns, 2.6), float(np.mean(heights)) + 0.95),
    margin=(0.4 + 0.065 * min(longest, _LONG) * (1 if columns > 1 else 0.6), 0.3),
    gridspec_kw={"height_ratios": [height + 0.3 for height in heights]},
    last=(look.interval, _SINGLE, _OURS, look.published, look.reference_label),
  ) as axes:
    everything = [d for rows in rows_of.values() for row in rows.values() for d in row]
    neighbor: list[str] = []
    for number, (axis, rows) in enumerate(zip(axes, rows_of.values())):
      is_alone = all(len(dots) == 1 for dots in rows.values())
      of_panel = [dot for dots in rows.values() for dot in dots]
      _fit(axis, everything if look.same_axis else of_panel, look)
      if len(names) == 1 and any(math.isfinite(dot.published) for dot in everything):
        axis.plot([], [], "o", color="grey", markersize=6, label=_OURS)
      if look.reference is not None:
        axis.axvline(
          look.reference,
          color=_INK,
          linewidth=1.0,
          linestyle=(0, (4, 2)),
          zorder=1,
          label=look.reference_label or None,
        )
      for y, dots in enumerate(rows.values()):
        if y % 2:
          axis.axhspan(y - 0.5, y + 0.5, color="0.96", linewidth=0, zorder=0)
        for i, dot in enumerate(dots):
          place = y + 0.8 * ((i + 0.5) / len(dots) - 0.5) if len(dots) > 1 else y
          _draw_dot(axis, dot, place, names, look, is_alone)
          if is_alone or dot.note:
            _write_number(axis, dot, place, look, is_alone)
      words = [textwrap.fill(texts.picture_text(row), _LONG) for row in rows]
      axis.set_yticks(range(len(rows)), words, fontsize=9)
      axis.tick_params(axis="y", length=0)
      if number % columns and list(rows) == neighbor:
        axis.tick_params(labelleft=False)
      neighbor = list(rows) if number % columns == 0 else neighbor
      axis.set(ylim=(len(rows) - 0.5, -0.5))
      axis.set_xlabel(textwrap.fill(look.x_label, 50), fontsize=9)
      axis.tick_params(axis="x", labelsize=8)
      axis.grid(visible=False, axis="y")
      axis.grid(visible=True, axis="x", alpha=0.35)
      axis.spines[["top", "right", "left"]].set_visible(False)


def _look_of(dot: Dot, names: Sequence[str], look: Look) -> tuple[Any, str]:
  """Color and marker of a number: of its place among several, or of its method."""
  if len(names) > 1:
    place = names.index(dot.name)
    if look.steps:
      shades = plt.get_cmap("viridis_r")
      return shades(0.12 + 0.88 * place / (len(names) - 1)), "o"
    return styles.COLOURS[place % len(styles.COLOURS)], styles.MARKERS[
      place % len(styles.MARKERS)
    ]
  style = styles.method_style(dot.row) or styles.method_style(dot.panel)
  return style.colour if style else styles.COLOURS[0], "o"


def _draw_dot(
  axis: Any,
  dot: Dot,
  place: float,
  names: Sequence[str],
  look: Look,
  is_alone: bool,
) -> None:
  """Draws a number, its interval, its single values, and the published number."""
  color, marker = _look_of(dot, names, look)
  faint = 0.4 if dot.note else 1.0
  if dot.name:
    axis.plot([], [], marker, color=color, markersize=6, label=dot.name)
  low, high = axis.get_xlim()
  if math.isfinite(dot.half) and dot.half > 0 and low <= dot.mean <= high:
    ends = _ends(dot, look)
    axis.plot(ends, [place] * 2, color=color, linewidth=1.3, alpha=0.75 * faint)
    axis.plot([], [], "-", color="grey", linewidth=1.3, label=look.interval)
    for at, arrow, goes_on in zip(
      (0.006, 0.994), "<>", (ends[0] < low, ends[1] > high)
    ):
      if goes_on:  # beyond the axis
        axis.plot(
          [at],
          [place],
          arrow,
          color=color,
          markersize=4,
          transform=axis.get_yaxis_transform(),
        )
  if dot.values and len(dot.values) > 1:
    axis.plot(
      dot.values,
      [place] * len(dot.values),
      "|",
      color=color,
      markersize=5,
      markeredgewidth=0.8,
      alpha=0.7,
    )
    axis.plot([], [], "|", color="grey", markersize=6, label=_SINGLE)
  if math.isfinite(dot.published) and low <= dot.published <= high:
    if math.isfinite(dot.mean):
      axis.plot(
        [min(max(dot.mean, low), high), dot.published],
        [place] * 2,
        color="0.75",
        linewidth=0.8,
        zorder=1,
      )
    axis.plot(
      [dot.published],
      [place],
      "D",
      markersize=6.5,
      markerfacecolor="none",
      markeredgecolor=_INK,
      markeredgewidth=1.2,
      zorder=4,
      label=look.published,
    )
  if low <= dot.mean <= high:
    axis.plot([dot.mean], [place], marker, color=color, markersize=6, alpha=faint)
  elif math.isfinite(dot.mean):  # far from all others
    is_low = dot.mean < low
    arrow = "\N{LEFTWARDS ARROW}" if is_low else "\N{RIGHTWARDS ARROW}"
    number = f"{dot.mean:.{max(look.digits, 0)}f}"
    words = [arrow] if is_alone else [arrow, number] if is_low else [number, arrow]
    axis.text(
      0.005 if is_low else 0.995,
      place,
      " ".join(words),
      transform=axis.get_yaxis_transform(),
      fontsize=8,
      color=color,
      ha="left" if is_low else "right",
      va="center",
    )


def _write_number(
  axis: Any, dot: Dot, place: float, look: Look, is_alone: bool
) -> None:
  """Writes a number, or the note in its place, at the right of its row.

  A note in the place of one of several numbers stands at the left end of the axis.
  """
  words = ""
  if is_alone and math.isfinite(dot.mean) and look.digits >= 0:
    sign = "+" if look.reference == 0.0 else ""
    words = f"{dot.mean:{sign},.{look.digits}f}"
  if dot.note:
    words = f"{words} ({dot.note})" if words else dot.note
  is_inside = not is_alone and not math.isfinite(dot.mean)
  axis.text(
    0.01 if is_inside else 1.02,
    place,
    words if is_inside else textwrap.fill(words, 34 if is_alone else 16),
    transform=axis.get_yaxis_transform(),
    fontsize=8 if is_alone else 7,
    color="0.4" if dot.note else _INK,
    va="center",
  )


def _ends(dot: Dot, look: Look) -> tuple[float, float]:
  """The ends of an interval; that of a share is between 0 and the most."""
  low, high = dot.mean - dot.half, min(dot.mean + dot.half, look.most)
  return (max(low, min(dot.mean, 0.0)) if math.isfinite(look.most) else low), high


def _fit(axis: Any, dots: Sequence[Dot], look: Look) -> None:
  """Fits the x axis to the numbers, and to their intervals as far as there is room."""
  axis.set_xscale(look.x_scale)
  is_log = look.x_scale == "log"
  change = np.log10 if is_log else np.asarray
  means = np.array([dot.mean for dot in dots if math.isfinite(dot.mean)])
  marks = [dot.published for dot in dots if math.isfinite(dot.published)]
  marks += [] if look.reference is None else [look.reference]
  if not means.size:
    return
  means = change(means)
  if not is_log and len(means) > 4:
    first, third = np.quantile(means, [0.25, 0.75])
    reach = _FAR * max(third - first, 0.5)
    near = (means >= first - reach) & (means <= third + reach)
    if np.mean(~near) <= _FEW:
      means = means[near]
  numbers = np.concatenate([means, change(np.array(marks))])
  low, high = numbers.min(), numbers.max()
  room = _ROOM * max(high - low, 0.5 if not is_log else 0.1)
  whiskers = [
    change(end)
    for dot in dots
    if math.isfinite(dot.half)
    and (dot.mean > 0 or not is_log)
    and low <= change(dot.mean) <= high
    for end in _ends(dot, look)
    if not is_log or end > 0
  ]
  low = min(low, max([low - room, min(whiskers, default=low)]))
  high = max(high, min([high + room, max(whiskers, default=high)]))
  margin = 0.06 * max(high - low, 0.5 if not is_log else 0.2)
  low, high = low - margin, high + margin
  if not is_log:
    axis.set_xlim(low, high)
    axis.xaxis.set_major_locator(ticker.MaxNLocator(7, steps=[1, 2, 5, 10]))
    return
  axis.set_xlim(10**low, 10**high)
  steps = (1, 2, 5) if high - low < 1.6 else (1, 3) if high - low < 2.6 else (1,)
  axis.xaxis.set_major_locator(ticker.LogLocator(subs=steps, numticks=20))
  axis.xaxis.set_major_formatter("{x:g}")
  axis.xaxis.set_minor_locator(ticker.NullLocator())


#: A gain from which on colors are full.
_FULL = 20.0
#: Rows of space above a block, in which its name stands.
_SPACE = 0.75
#: The note of a gain that a test does not tell from none.
UNCLEAR = "not clear"


def draw_gain_map(
  paths: Paths,
  dots: Sequence[Dot],
  title: str,
  blocks: Mapping[str, Sequence[str]],
  columns: Mapping[str, str],
  reference: str,
  words: str,
) -> list[Paths]:
  """Draws gains as a map: better than the reference is blue, worse is orange.

  There is a picture for each panel. White is no difference. Numbers that are not
  clear are gray, cells without one are empty. The rows of a block are sorted by their
  mean gain.

  Args:
    paths: files of the first picture; further ones are NAME_2, NAME_3, ...
    dots: the gains; ``name`` is the column, and those of the reference are its own
      numbers.
    title: above each picture, before the name of the panel.
    blocks: block -> the labels of its rows.
    columns: name of a column -> its heading, in their order.
    reference: label of the row with the reference's own numbers.
    words: below the map.

  Returns:
    The files of each picture.

  Raises:
    NothingToDraw: the reference was not run.
  """
  panels = list(dict.fromkeys(d.panel for d in dots if d.row == reference))
  if not panels:
    raise NothingToDraw(f"no panel has the run of {reference}, the reference")
  pages: list[Paths] = []
  for number, panel in enumerate(panels, 1):
    page_paths = number_paths(paths, number)
    cells = {(d.row, d.name): d for d in dots if d.panel == panel}
    _draw_map(
      page_paths,
      cells,
      blocks,
      {
        name: heading for name, heading in columns.items() if (reference, name) in cells
      },
      reference,
      f"{title}: {panel}",
      words,
    )
    pages.append(page_paths)
  return pages


def _draw_map(
  paths: Paths,
  cells: Mapping[tuple[str, str], Dot],
  blocks: Mapping[str, Sequence[str]],
  columns: Mapping[str, str],
  reference: str,
  title: str,
  words: str,
) -> None:
  """Draws one map of gains; ``cells`` has those of (row, column)."""
  colors = LinearSegmentedColormap.from_list("gain", ["#E9A36B", "white", "#6FA8D0"])
  places: dict[str, float] = {}
  heads: dict[str, float] = {}
  y = 0.0
  for block, rows in blocks.items():
    gains = {
      row: [cells[row, name].mean for name in columns if (row, name) in cells]
      for row in rows
    }
    placed_rows = sorted(
      (row for row in rows if gains[row]), key=lambda row: -float(np.mean(gains[row]))
    )
    if not placed_rows:
      continue
    heads[block] = y + 0.5 + _SPACE / 2
    y += _SPACE
    for row in placed_rows:
      y += 1.0
      places[row] = y
  figure, axis = plt.subplots(figsize=(1.9 + 0.86 * len(columns), 1.7 + 0.225 * y))
  for block, at in heads.items():
    axis.annotate(
      block,
      (0, at + 0.1),
      (-4, 0),
      ("axes fraction", "data"),
      textcoords="offset points",
      ha="right",
      va="center",
      fontsize=9,
      fontweight="bold",
    )
  for x, name in enumerate(columns):
    base = cells[reference, name].mean
    axis.text(x, 0, f"{base:.0f} %", ha="center", va="center", fontsize=9)
    for row, at in places.items():
      if (row, name) in cells:
        _draw_gain(axis, x, at, cells[row, name], colors)
  axis.set(xlim=(-0.5, len(columns) - 0.5), ylim=(y + 0.5, -0.5))
  axis.set_yticks([0, *places.values()], [reference, *places], fontsize=9)
  axis.set_xticks(
    range(len(columns)),
    [textwrap.fill(heading, 11) for heading in columns.values()],
    fontsize=9,
  )
  axis.xaxis.tick_top()
  axis.tick_params(length=0)
  axis.spines[:].set_visible(False)
  figure.supxlabel(textwrap.fill(words, 16 + 13 * len(columns)), fontsize=8)
  figure.suptitle(textwrap.fill(title, 14 + 11 * len(columns)), fontsize=11)
  save_figure(figure, *paths)


def _draw_gain(axis: Any, x: float, y: float, gain: Dot, colors: Any) -> None:
  """Draws a cell of a map of gains around its middle."""
  share = min(1.0, max(-1.0, gain.mean / _FULL))
  axis.add_patch(
    Rectangle(
      (x - 0.5, y - 0.5),
      1,
      1,
      facecolor=colors(0.5 + share / 2),
      edgecolor="white",
      linewidth=1.5,
    )
  )
  axis.text(
    x,
    y,
    f"{gain.mean:+.0f}" if round(gain.mean) else "0",
    ha="center",
    va="center",
    fontsize=9,
    color="0.55" if gain.note else "black",
  )
