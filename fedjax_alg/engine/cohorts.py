"""Names that moved: ``engine.keys`` and ``engine.samplers`` have them now."""

from fedjax_alg.engine.keys import client_keys
from fedjax_alg.engine.samplers import Sampler

__all__ = ["client_keys", "Sampler"]
