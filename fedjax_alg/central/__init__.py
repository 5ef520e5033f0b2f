"""Server steps, written as optax gradient transformations."""

from fedjax_alg.central.adaptive import adaptive
from fedjax_alg.central.adaptive import AdaptiveState

__all__ = ["AdaptiveState", "adaptive"]
