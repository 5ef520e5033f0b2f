"""The figures of the conjugate paper (CFSVRG, CLSFSVRG).

  python -m experiments.conjugate --figure=NAME
"""

import sys

from experiments.papers.conjugate.figures import main

if __name__ == "__main__":
  sys.exit(main())
