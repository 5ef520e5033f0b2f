"""Tables of other works that a federated-learning library is trusted by.

  python -m experiments.trust --table=NAME [--scale=quick]

``--help`` lists the tables. ``papers/trust`` says what each one shows.
"""

from collections.abc import Sequence
import sys

from .papers.trust.figures import PAPER
from .reports import figures


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  return figures.main(PAPER, argv)


if __name__ == "__main__":
  sys.exit(main())
