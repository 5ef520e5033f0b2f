"""Models with their objective: by name, from flax modules or from functions.

Softmax regression, perceptrons, convolutional networks and other stacks of
layers also give access to their single layers (``Model.layers``), for least
squares.
"""

from typing import Any

from fedjax_alg import optional
from fedjax_alg.models.adapt import shape_of_all, with_flops
from fedjax_alg.models.flops import forward_flops
from fedjax_alg.models.functions import from_functions
from fedjax_alg.models.layers import (
  DEFAULT_LAYERS,
  check_layers,
  layer_views,
  parse_layers,
)
from fedjax_alg.models.linen_modules import from_flax
from fedjax_alg.models.models import (
  CNN,
  LAYERED,
  LSTM,
  MLP,
  OF_TOKENS,
  Architecture,
  Residual,
  ResNet18,
  Softmax,
  Stack,
  Transformer,
)
from fedjax_alg.models.resolve import MODELS, OwnModel, as_model, parse_model
from fedjax_alg.tasks import cross_entropy

__all__ = [
  "Architecture",
  "CNN",
  "DEFAULT_LAYERS",
  "LAYERED",
  "LSTM",
  "MLP",
  "MODELS",
  "OF_TOKENS",
  "OwnModel",
  "ResNet18",
  "Residual",
  "Softmax",
  "Stack",
  "Transformer",
  "as_model",
  "check_layers",
  "cross_entropy",
  "forward_flops",
  "from_flax",
  "from_functions",
  "from_nnx",
  "generate",
  "layer_views",
  "parse_layers",
  "parse_model",
  "shape_of_all",
  "with_flops",
]


def __getattr__(name: str) -> Any:
  """``from_nnx``: flax.nnx is slow to import; ``generate``, which is of an extra."""
  if name == "generate":
    return optional.load_extra("generation", "fa.models.generate").generate
  if name != "from_nnx":
    raise AttributeError(name)
  from fedjax_alg.models import nnx_modules

  return nnx_modules.from_nnx
