"""Makes the figures and tables of the conjugate paper (CFSVRG, CLSFSVRG).

  python -m experiments.conjugate --figure=NAME [--scale=quick]

``--help=names`` lists the figures, and you find a description of each in
``reproduction/conjugate``.
"""

from .reproduction.conjugate.figures import PAPER

main = PAPER.main

if __name__ == "__main__":
  raise SystemExit(main())
