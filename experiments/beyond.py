"""Studies beyond the papers.

  python -m experiments.beyond --figure=NAME [--scale=quick]

``--help`` lists the figures. ``reproduction/beyond`` says what each one shows.
"""

from .reproduction.beyond.figures import PAPER

main = PAPER.main

if __name__ == "__main__":
  raise SystemExit(main())
