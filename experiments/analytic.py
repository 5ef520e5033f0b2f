"""The figures and tables of the analytic paper (FedACnnL, pFedACnnL).

  python -m experiments.analytic --figure=NAME [--scale=quick]

``--help`` lists the figures. ``reproduction/analytic`` says what each one shows.
"""

from .reproduction.analytic.figures import PAPER

main = PAPER.main

if __name__ == "__main__":
  raise SystemExit(main())
