"""Makes the figures of studies beyond the papers.

  python -m experiments.beyond --figure=NAME [--scale=quick]

``--help=names`` lists the figures, and you find a description of each in
``reproduction/beyond``.
"""

from .reproduction.beyond.figures import PAPER

main = PAPER.main

if __name__ == "__main__":
  raise SystemExit(main())
