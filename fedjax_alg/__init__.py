"""Federated learning algorithms as pure functions over PyTrees, in JAX."""

from fedjax_alg.base import Algorithm
from fedjax_alg.base import ClientData
from fedjax_alg.base import Cohort
from fedjax_alg.base import FedSpec
from fedjax_alg.base import Model
from fedjax_alg.base import RoundAux
from fedjax_alg.base import RoundCost
from fedjax_alg.base import Shard

__all__ = ["Algorithm", "ClientData", "Cohort", "FedSpec", "Model",
           "RoundAux", "RoundCost", "Shard"]
__version__ = "0.1.0"
