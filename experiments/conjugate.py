"""The figures and tables of the conjugate paper (CFSVRG, CLSFSVRG).

  python -m experiments.conjugate --figure=NAME [--scale=quick]

``--help`` lists the figures. ``papers/conjugate`` says what each one shows.
"""

from collections.abc import Sequence
import sys

from .papers.conjugate.figures import PAPER
from .reports import figures


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  return figures.main(PAPER, argv)


if __name__ == "__main__":
  sys.exit(main())
