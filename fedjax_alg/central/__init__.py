"""Server steps, written as optax gradient transformations."""

from fedjax_alg.central.adaptive import adaptive, AdaptiveState

__all__ = ["AdaptiveState", "adaptive"]
