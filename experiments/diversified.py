"""The figures and tables of the diversified paper (MA-FSVRG, GA-FSVRG).

  python -m experiments.diversified --figure=NAME [--scale=quick]

``--help`` lists the figures. ``papers/diversified`` says what each one shows.
"""

from collections.abc import Sequence
import sys

from .papers.diversified.figures import PAPER
from .reports import figures


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  return figures.main(PAPER, argv)


if __name__ == "__main__":
  sys.exit(main())
