"""Makes the figures and tables of the fedgroup paper (FedGroup, FedGrouProx).

  python -m experiments.fedgroup --figure=NAME [--scale=quick]

``--help=names`` lists the figures, and you find a description of each in
``reproduction/fedgroup``.
"""

from .reproduction.fedgroup.figures import PAPER

main = PAPER.main

if __name__ == "__main__":
  raise SystemExit(main())
