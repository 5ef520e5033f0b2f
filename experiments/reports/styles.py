"""One colour and one dash pattern for each line, in pictures and on pages.

The colours are those of Okabe and Ito, which colour-blind readers can tell
apart. Neighbouring lines also differ in their dashes, so that they stay apart
in grey.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9",
           "#E69F00")

#: Name of a dash pattern in Plotly -> the same pattern in matplotlib.
_DASHES = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":",
           "longdash": (0, (9, 3))}


class Style(NamedTuple):
  """How a line is drawn."""

  colour: str
  dash: str  #: name of the dash pattern in Plotly

  def matplotlib(self) -> dict[str, Any]:
    """The options of ``axis.plot``."""
    return {"color": self.colour, "linestyle": _DASHES[self.dash]}


def of(labels: Iterable[str]) -> dict[str, Style]:
  """label -> style; 35 lines differ."""
  dashes = list(_DASHES)
  return {label: Style(COLOURS[i % len(COLOURS)], dashes[i % len(dashes)])
          for i, label in enumerate(dict.fromkeys(labels))}
