"""The figures of the diversified paper (MA-FSVRG, GA-FSVRG).

  python -m experiments.diversified --figure=NAME
"""

import sys

from experiments.papers.diversified.figures import main

if __name__ == "__main__":
  sys.exit(main())
