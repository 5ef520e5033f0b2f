"""Models as flax modules, wrapped with their training objective."""

from fedjax_alg.models.models import CNN
from fedjax_alg.models.models import from_flax
from fedjax_alg.models.models import MLP
from fedjax_alg.models.models import MODELS
from fedjax_alg.models.models import make_model
from fedjax_alg.models.models import Softmax

__all__ = ["CNN", "MLP", "MODELS", "Softmax", "from_flax", "make_model"]
