"""The commands that run experiments; ``python -m experiments.NAME --help``."""

import gc

# Imports and traces make millions of objects that stay; looking through them
# again and again takes a tenth of a short run.
gc.set_threshold(200_000, 20, 100)
