"""A pre-trained network as a model whose parameters clients train.

Its last layer is new. Roles say what else is trained: nothing but ``last`` with
``frozen:body``, adapters with ``lora``, the whole network without roles.
"""

from collections.abc import Callable

from flax import linen as nn
import jax
import jax.numpy as jnp

from fedjax_alg.base import Array, Key, Model, Params
from fedjax_alg.data.features import Backbone
from fedjax_alg.errors import OptionError
from fedjax_alg.extras.backbones import networks
from fedjax_alg.models.linen_modules import from_flax


class TunedNetwork(nn.Module):
  """A network for images, and a dense layer on its features.

  Attributes:
    body: the network.
    prepare: images [B, H, W, 1 or 3] in [0, 1] -> what it reads.
    num_classes: L.
  """

  body: nn.Module
  prepare: Callable[[Array], Array]
  num_classes: int

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Computes logits.

    Args:
      x: [B, H, W, 1 or 3] or [B, H, W], images in [0, 1].

    Returns:
      [B, L] float32.
    """
    x = x[..., None] if x.ndim == 3 else x
    return nn.Dense(self.num_classes, name="last")(self.body(self.prepare(x)))


def make_tuned_model(
  backbone: Backbone, input_shape: tuple[int, ...], num_classes: int
) -> Model:
  """Makes the model (``Backbone.build_model``).

  Raises:
    OptionError: the examples are no images, the weights are missing, or the network
      has no such layer.
  """
  label = f"`model`={backbone}"
  if len(input_shape) not in (2, 3) or (*input_shape, 1)[2] not in (1, 3):
    raise OptionError(
      f"{label}: reads images [H, W] or [H, W, 1 or 3], the examples have the shape "
      f"{tuple(input_shape)}"
    )
  height, width = input_shape[:2]
  network = networks.load_network(backbone, (height, width), label)
  module = TunedNetwork(network.module, network.prepare, num_classes)
  model = from_flax(module, input_shape)
  weights = network.params["params"]

  def init(key: Key) -> Params:
    params = model.init(key)["params"]
    body = {name: weights[name] for name in params["body"]}
    return {"params": params | {"body": jax.tree.map(jnp.asarray, body)}}

  return model._replace(init=init)
