"""The figures and tables of the fedgroup paper (FedGroup, FedGrouProx).

  python -m experiments.fedgroup --figure=NAME [--scale=quick]

``--help`` lists the figures. ``papers/fedgroup`` says what each one shows.
"""

from collections.abc import Sequence
import sys

from .papers.fedgroup.figures import PAPER
from .reports import figures


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  return figures.main(PAPER, argv)


if __name__ == "__main__":
  sys.exit(main())
