"""Tables of other works that a federated-learning library is trusted by.

  python -m experiments.trust --table=NAME [--scale=quick]

``--help`` lists the tables. ``reproduction/trust`` says what each one shows.
"""

from .reproduction.trust.figures import PAPER

main = PAPER.main

if __name__ == "__main__":
  raise SystemExit(main())
