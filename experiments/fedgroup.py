"""The figures of the FedGroup paper.

  python -m experiments.fedgroup --figure=NAME
"""

import sys

from experiments.papers.fedgroup.figures import main

if __name__ == "__main__":
  sys.exit(main())
