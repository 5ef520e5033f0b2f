"""Models as flax modules, wrapped with their training objective.

Softmax, perceptrons, convolutional networks and any other stack of layers can
also be seen layer by layer (``Model.layers``), for least squares.
"""

from fedjax_alg.models.flops import forward_flops
from fedjax_alg.models.layers import check_layers
from fedjax_alg.models.layers import DEFAULT_LAYERS
from fedjax_alg.models.layers import layer_views
from fedjax_alg.models.layers import parse_layers
from fedjax_alg.models.layers import Stack
from fedjax_alg.models.models import CNN
from fedjax_alg.models.models import from_flax
from fedjax_alg.models.models import MLP
from fedjax_alg.models.models import MODELS
from fedjax_alg.models.models import make_model
from fedjax_alg.models.models import Softmax

__all__ = [
    "CNN", "DEFAULT_LAYERS", "MLP", "MODELS", "Softmax", "Stack",
    "check_layers", "forward_flops", "from_flax", "layer_views", "make_model",
    "parse_layers",
]


def as_model(model, input_shape, num_classes, *, l2=0.0, input_dtype=None, **options):
  if isinstance(model, str):
    return make_model(model, input_shape, num_classes, l2=l2, **options)
  return model
