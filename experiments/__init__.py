"""The commands that run experiments; ``python -m experiments.NAME --help``."""
