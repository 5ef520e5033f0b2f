"""Makes the figures and tables of the analytic paper (FedACnnL, pFedACnnL).

  python -m experiments.analytic --figure=NAME [--scale=quick]

``--help=names`` lists the figures, and you find a description of each in
``reproduction/analytic``.
"""

from .reproduction.analytic.figures import PAPER

main = PAPER.main

if __name__ == "__main__":
  raise SystemExit(main())
