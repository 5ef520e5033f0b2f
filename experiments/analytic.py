"""The figures of the analytic paper (FedACnnL, pFedACnnL).

  python -m experiments.analytic --figure=NAME
"""

import sys

from experiments.papers.analytic.figures import main

if __name__ == "__main__":
  sys.exit(main())
