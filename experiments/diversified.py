"""Makes the figures and tables of the diversified paper (MA-FSVRG, GA-FSVRG).

  python -m experiments.diversified --figure=NAME [--scale=quick]

``--help=names`` lists the figures, and you find a description of each in
``reproduction/diversified``.
"""

from .reproduction.diversified.figures import PAPER

main = PAPER.main

if __name__ == "__main__":
  raise SystemExit(main())
