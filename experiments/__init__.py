"""The commands that run experiments; ``python -m experiments.NAME --help``."""

import fedjax_alg  # noqa: F401  (first of all: it watches for Ctrl-C)
