"""Server steps, written as optax gradient transformations."""

from fedjax_alg.central.adaptive import AdaptiveState, adaptive

__all__ = ["AdaptiveState", "adaptive"]
