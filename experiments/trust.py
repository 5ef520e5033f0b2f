"""Makes tables of other works, by which you can judge whether to trust the library.

  python -m experiments.trust --table=NAME [--scale=quick]

``--help=names`` lists the tables, and you find a description of each in
``reproduction/trust``.
"""

from .reproduction.trust.figures import PAPER

main = PAPER.main

if __name__ == "__main__":
  raise SystemExit(main())
