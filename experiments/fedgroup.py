"""The figures and tables of the fedgroup paper (FedGroup, FedGrouProx).

  python -m experiments.fedgroup --figure=NAME [--scale=quick]

``--help`` lists the figures. ``reproduction/fedgroup`` says what each one shows.
"""

from .reproduction.fedgroup.figures import PAPER

main = PAPER.main

if __name__ == "__main__":
  raise SystemExit(main())
