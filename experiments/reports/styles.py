"""One colour and one dash pattern for each method, in pictures and on pages.

``METHODS`` is the only place where a method gets its look, so it looks the same
in every figure. Two methods differ in their dashes, or else in a colour that is
of another lightness. In pictures a marker follows from both, and any two of
colour, dash pattern and marker tell the third: a copy in grey will do, and so
will a line that is too rough to show its dashes.
"""

from collections.abc import Iterable, Mapping
import itertools
from typing import Any, NamedTuple

_BLACK, _INDIGO, _WINE, _BLUE = "#000000", "#332288", "#882255", "#006BAA"
_RED, _GREEN, _ORANGE = "#D55E00", "#22AD82", "#EAA60A"
_PURPLE, _OLIVE = "#A52DFF", "#695A2D"

#: Any two are at least 4 units of lightness (CIE L*) apart, and colour-blind
#: readers can tell them apart, too. No figure of the papers' gradient methods
#: has one twice.
COLOURS = (_BLUE, _RED, _GREEN, _WINE, _BLACK, _ORANGE, _INDIGO, _PURPLE,
           _OLIVE)
MARKERS = "os^DvPX<>"

#: Dash pattern in Plotly -> (in matplotlib, width of the line, hatch of a bar).
#: The more of a line is drawn, the lower it lies and the wider it is, so that
#: it is seen below another of the same values.
_DASHES: dict[str, tuple[Any, float, str]] = {
    "solid": ("-", 1.9, ""),
    "longdash": ((0, (9, 2)), 1.75, "//"),
    "dash": ((0, (4, 1.5)), 1.7, "\\\\"),
    "longdashdot": ((0, (9, 1.5, 1.2, 1.5)), 1.65, "xx"),
    "dashdot": ((0, (4, 1.5, 1.2, 1.5)), 1.6, "--"),
    "5px,2px,2px,2px,2px,2px": (
        (0, (4, 1.3, 1.2, 1.3, 1.2, 1.3)), 1.6, "++"),
    "dot": ((0, (1.2, 1.2)), 1.6, "..")}
_SOLID, _LONG, _DASH, _LONGDOT, _DASHDOT, _DOTDOT, _DOT = _DASHES


class Style(NamedTuple):
  """How a line is drawn."""

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
    return {"color": self.colour, "linestyle": pattern, "linewidth": width,
            "marker": self.marker, "zorder": 2 + 0.1 * list(
                _DASHES).index(self.dash)}

  def bar(self) -> dict[str, Any]:
    """The options of ``axis.bar``."""
    return {"facecolor": self.colour, "hatch": _DASHES[self.dash][2],
            "edgecolor": "white", "linewidth": 0.0}


#: Label of a method -> its style.
METHODS: Mapping[str, Style] = {
    "FedAvg": Style(_BLACK, _SOLID),
    "FedAvgM": Style(_BLACK, _LONG),
    "FedAvg + pre-training": Style(_BLACK, _DOT),
    "FSVRG": Style(_GREEN, _DASH),
    "each client alone": Style(_BLACK, _DASHDOT),
    "composed": Style(_BLACK, _LONGDOT),
    "pooled optimum": Style(_BLACK, _DOTDOT),
    "FedProx": Style(_ORANGE, _DASH),
    "FedNova": Style(_ORANGE, _LONG),
    "FedDyn": Style(_ORANGE, _DOT),
    "FedBuff": Style(_WINE, _DASH),
    "FedAsync": Style(_INDIGO, _DOTDOT),
    "FedYogi": Style(_ORANGE, _DASHDOT),
    "FedAdagrad": Style(_RED, _LONGDOT),
    "FedAdam": Style(_WINE, _LONGDOT),
    "SCAFFOLD": Style(_PURPLE, _DASHDOT),
    "MimeSVRG": Style(_INDIGO, _LONG),
    "Mime": Style(_INDIGO, _DASHDOT),
    "MimeLite": Style(_INDIGO, _LONGDOT),
    "LoSAC": Style(_OLIVE, _LONG),
    "LoSAC, client": Style(_OLIVE, _LONGDOT),
    "PFedAvg": Style(_WINE, _DOTDOT),
    "FedPer": Style(_OLIVE, _SOLID),
    "FedRep": Style(_OLIVE, _DASH),
    "LG-FedAvg": Style(_OLIVE, _DASHDOT),
    "FedBABU": Style(_OLIVE, _DOT),
    "FedBN": Style(_OLIVE, _DOTDOT),
    "Ditto": Style(_WINE, _DOT),
    "APFL": Style(_PURPLE, _DOTDOT),
    "MA-FSVRG": Style(_BLUE, _SOLID),
    "GA-FSVRG": Style(_RED, _SOLID),
    "CLSFSVRG": Style(_WINE, _SOLID),
    "CFSVRG": Style(_RED, _LONG),
    "FG-EDC": Style(_GREEN, _SOLID),
    "FG-RCC-EDC": Style(_GREEN, _DOT),
    "FG-RAC-EDC": Style(_GREEN, _LONG),
    "FG-MADC": Style(_WINE, _DASHDOT),
    "FGP-EDC": Style(_INDIGO, _DASH),
    "FGP-MADC": Style(_ORANGE, _LONGDOT),
    "IFCA": Style(_BLUE, _DOT),
    "FeSEM": Style(_RED, _DOT),
    "CFL": Style(_BLUE, _DASHDOT),
    "FL+HC": Style(_RED, _DASH),
    "FedACnnL": Style(_ORANGE, _SOLID),
    "FedACnnL-WA": Style(_BLUE, _DASH),
    "pFedACnnL": Style(_INDIGO, _SOLID),
    "pFedACnnL-WC": Style(_GREEN, _DOTDOT),
    "pFedACnnL-WP": Style(_RED, _DASHDOT),
    "AFL": Style(_INDIGO, _DOT),
    "FedZO": Style(_RED, _DOTDOT),
    "BAFFLE": Style(_GREEN, _LONGDOT),
    "pFedMe": Style(_WINE, _LONG),
    "pFedZO": Style(_BLUE, _DOTDOT)}

#: Name of a method -> the name that it has in ``METHODS``.
_SAME = {"FedGroup": "FG-EDC", "FedGrouProx": "FGP-EDC"}


def _every() -> list[Style]:
  """All styles, in the order in which lines of no method get them."""
  dashes = list(_DASHES)
  # Neighbours differ in both, and no two are the same.
  order = [dashes[i] for i in (0, 2, 4, 6, 1, 3, 5)]
  return [Style(colour, order[(i + 2 * turn) % len(order)])
          for turn in range(len(order)) for i, colour in enumerate(COLOURS)]


def _exactly(label: str) -> Style | None:
  return METHODS.get(_SAME.get(label, label))


def method(label: str) -> Style | None:
  """The style of a method; None where the label names none.

  A label may go on after the name of the method: " (stated)", ", w_k".
  """
  for name in (label, label.split(" (")[0], label.split(", ")[0]):
    found = _exactly(name)
    if found is not None:
      return found
  return None


def of(labels: Iterable[str]) -> dict[str, Style]:
  """label -> style, where lines are told apart by their styles alone.

  The label of a method gets the method's style. Other labels get what is left,
  in turn; of several variants of a method the first has the method's style, if
  the method itself is not there. 63 lines differ.
  """
  wanted = list(dict.fromkeys(labels))
  found: dict[str, Style] = {}
  for look_up in (_exactly, method):
    for label in wanted:
      own = look_up(label)
      if label not in found and own is not None and (own not in found.values()):
        found[label] = own
  used = set(found.values())
  free = itertools.cycle([s for s in _every() if s not in used] or _every())
  return {label: found[label] if label in found else next(free)
          for label in wanted}
