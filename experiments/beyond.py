"""Studies beyond the papers.

  python -m experiments.beyond --figure=NAME [--scale=quick]

``--help`` lists the figures. ``papers/beyond`` says what each one shows.
"""

from collections.abc import Sequence
import sys

from .papers.beyond import gradient
from .papers.beyond import bytes as fewer_bytes
from .papers.beyond import hostile, late, private
from .reports import figures

#: name -> a figure, or a table with pictures of its own.
FIGURES: dict[str, figures.Figure | figures.Table] = {
    "gradient": gradient.FIGURE,
    "hostile": hostile.FIGURE,
    "bytes": fewer_bytes.FIGURE,
    "late": late.FIGURE,
    "private": private.FIGURE,
}

PAPER = figures.Paper(
    "beyond", (),
    {name: one for name, one in FIGURES.items()
     if isinstance(one, figures.Figure)},
    {name: one for name, one in FIGURES.items()
     if isinstance(one, figures.Table)},
    "Settings are chosen on validation clients.", ("",),
    subject="studies beyond the papers", files=fewer_bytes.FILES,
    fit=fewer_bytes.fit)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  return figures.main(PAPER, argv)


if __name__ == "__main__":
  sys.exit(main())
