"""One color and one dash pattern for each method, in pictures and on pages.

A method's entry in the registry has its look, so it looks the same in every figure.
Two methods differ in their dashes, or else in a color that is of another lightness.
In pictures a marker follows from both, and any two of color, dash pattern and marker
tell the third: a copy in gray will do, and so will a line that is too rough to show
its dashes.
"""

from collections.abc import Iterable, Iterator, Mapping
import itertools
import re
from typing import Any, NamedTuple

from fedjax_alg import registry

#: Any two colors are at least 4 units of lightness (CIE L*) apart, and color-blind
#: readers can tell them apart, too. No figure of the papers' gradient methods has one
#: twice.
COLOURS = (
  "#006BAA",
  "#D55E00",
  "#22AD82",
  "#882255",
  "#000000",
  "#EAA60A",
  "#332288",
  "#A52DFF",
  "#695A2D",
)
#: Labels of figures that are no entry of the registry -> color and dash pattern.
_VARIANTS = {
  "FedACnnL-WA": ("#006BAA", "dash"),
  "pFedACnnL-WP": ("#D55E00", "dashdot"),
  "FG-RAC-EDC": ("#22AD82", "longdash"),
  "pFedACnnL-WC": ("#22AD82", "5px,2px,2px,2px,2px,2px"),
  "FG-RCC-EDC": ("#22AD82", "dot"),
  "FG-MADC": ("#882255", "dashdot"),
  "FedAvg + pre-training": ("#000000", "dot"),
  "FGP-MADC": ("#EAA60A", "longdashdot"),
  "LoSAC, client": ("#695A2D", "longdashdot"),
}
MARKERS = "os^DvPX<>"
#: Of numbers above and below a reference.
BETTER, WORSE = COLOURS[:2]

#: Dash pattern in Plotly -> (in matplotlib, width of the line, hatch of a bar).
#: The more of a line is drawn, the lower it lies and the wider it is, so that
#: it is seen below another of the same values.
_DASHES: dict[str, tuple[Any, float, str]] = {
  "solid": ("-", 1.9, ""),
  "longdash": ((0, (9, 2)), 1.75, "//"),
  "dash": ((0, (4, 1.5)), 1.7, "\\\\"),
  "longdashdot": ((0, (9, 1.5, 1.2, 1.5)), 1.65, "xx"),
  "dashdot": ((0, (4, 1.5, 1.2, 1.5)), 1.6, "--"),
  "5px,2px,2px,2px,2px,2px": ((0, (4, 1.3, 1.2, 1.3, 1.2, 1.3)), 1.6, "++"),
  "dot": ((0, (1.2, 1.2)), 1.6, ".."),
  "4px,4px": ((0, (2.4, 2.4)), 1.6, "oo"),
}


class Style(NamedTuple):
  """Color and dash pattern of a line."""

  colour: str
  dash: str  #: the dash pattern in Plotly: a name, or lengths

  @property
  def marker(self) -> str:
    """The marker in matplotlib."""
    place = COLOURS.index(self.colour) + list(_DASHES).index(self.dash)
    return MARKERS[place % len(MARKERS)]

  def matplotlib(self) -> dict[str, Any]:
    """The options of ``axis.plot``."""
    pattern, width, _ = _DASHES[self.dash]
    return {
      "color": self.colour,
      "linestyle": pattern,
      "linewidth": width,
      "marker": self.marker,
      "zorder": 2 + 0.1 * list(_DASHES).index(self.dash),
    }

  def bar(self) -> dict[str, Any]:
    """The options of ``axis.bar``."""
    return {
      "facecolor": self.colour,
      "hatch": _DASHES[self.dash][2],
      "edgecolor": "white",
      "linewidth": 0.0,
    }


#: Name of a method -> the name that it has in ``METHODS``.
_SAME = {"FedGroup": "FG-EDC", "FedGrouProx": "FGP-EDC"}

#: Label of a method -> its style.
METHODS: Mapping[str, Style] = {
  label: Style(*style)
  for label, style in (
    *(
      (_SAME.get(entry.label, entry.label), entry.display.style)
      for entry in registry.ALGORITHMS.values()
    ),
    *_VARIANTS.items(),
  )
  if any(style)
}


def _every() -> list[Style]:
  """All styles, in the order in which lines of no method get them."""
  dashes = list(_DASHES)
  # Neighbors differ in both, and no two are the same.
  order = [dashes[i] for i in (0, 2, 4, 6, 1, 3, 5)]
  return [
    Style(colour, order[(i + 2 * turn) % len(order)])
    for turn in range(len(order))
    for i, colour in enumerate(COLOURS)
  ] + [Style(colour, dashes[7]) for colour in COLOURS]


#: What may follow the name of a method in a label of one of its variants:
#: " (stated)", ", w_k", " client_lr=0.1".
_VARIANT = re.compile(r" \(|, | (?=\w+=)")


def _exactly(label: str) -> Style | None:
  return METHODS.get(_SAME.get(label, label))


def _registered(name: str) -> Style | None:
  """The style of a method by the name that runs call it with."""
  is_method = name in registry.ALGORITHMS
  return _exactly(registry.get(name).label) if is_method else None


def method_style(label: str) -> Style | None:
  """The style of a method; None where the label names none.

  A label may go on after the name of the method: " (stated)", ", w_k",
  " client_lr=0.1".
  """
  ends = [match.start() for match in _VARIANT.finditer(label)]
  for end in (None, *reversed(ends)):
    style = _exactly(label[:end])
    if style is not None:
      return style
  return None


def _same_colour(style: Style) -> Iterator[Style]:
  """The styles of a color, the given one first."""
  dashes = list(_DASHES)
  first = dashes.index(style.dash)
  for dash in (*dashes[first:], *dashes[:first]):
    yield Style(style.colour, dash)


def line_styles(labels: Iterable[str], are_protocols: bool = False) -> dict[str, Style]:
  """label -> style, where lines are told apart by their styles alone.

  The label of a method, or its name in ``registry.ALGORITHMS``, gets the method's
  style. Of several variants of a method the first has the method's style, if the
  method itself is not there, and the others have its color with other dashes, as long
  as there are some. Other labels get what is left, in turn. 72 lines differ.

  Args:
    labels: the labels.
    are_protocols: whether they are protocols, of which one has the name of a method.
  """
  names = list(dict.fromkeys(labels))
  by_label: dict[str, Style] = {}
  for look_up, dashes in (
    (_exactly, 1),
    (_registered, 0 if are_protocols else len(_DASHES)),
    (method_style, 1),
    (method_style, len(_DASHES)),
  ):
    for label in names:
      style = look_up(label)
      if label in by_label or style is None:
        continue
      for variant in itertools.islice(_same_colour(style), dashes):
        if variant not in by_label.values():
          by_label[label] = variant
          break
  used = set(by_label.values())
  free = itertools.cycle([s for s in _every() if s not in used] or _every())
  return {
    label: by_label[label] if label in by_label else next(free) for label in names
  }
