"""Residual blocks with fixed random weights inside, and a head.

  Phi_0 = x,  Phi_(t+1) = Phi_t + F_t(Phi_t) Delta_t,  F_t(z) = gelu(z B_t + b_t)

B_t and b_t are drawn by a constant seed, uniform on [-1/sqrt(d), 1/sqrt(d)] as
PyTorch draws those of a dense layer; Delta_t [F, d] and the head W [d, L] are
the parameters. A block starts with Delta_t = 0, as the identity. So the model
with its first blocks fitted is the model of these blocks alone (DeepAFL, Tang et
al., ICLR 2026, whose public code was read).
"""

from collections.abc import Sequence
import math

from flax import linen as nn
import jax.numpy as jnp
import numpy as np

from fedjax_alg import memory
from fedjax_alg.base import Array, Layer, Params
from fedjax_alg.models.layers import one_row

_SEED = 0


def _draw(block: int, d: int, width: int) -> tuple[np.ndarray, np.ndarray]:
  """(B_t [d, F], b_t [F])."""
  memory.refuse(
    f"`model`=residual:features={width}: the fixed weights [{d}, {width}] of a block",
    8.0 * d * width,
  )
  rng, bound = np.random.default_rng((_SEED, block)), 1.0 / math.sqrt(d)
  return rng.uniform(-bound, bound, (d, width)), rng.uniform(-bound, bound, width)


def hidden(block: int, phi: Array, width: int) -> Array:
  """F_t of a block, [B, d] -> [B, F]."""
  weights, bias = _draw(block, phi.shape[1], width)
  result: Array = nn.gelu(
    phi @ jnp.asarray(weights, phi.dtype) + jnp.asarray(bias[None], phi.dtype)
  )
  return result


class ResidualModule(nn.Module):
  """T residual blocks of F random units each, and a head for every class."""

  num_classes: int
  blocks: int  #: T
  width: int  #: F

  @nn.compact
  def __call__(self, x: Array, stop: int | None = None) -> Array:
    """Computes [B, ...] -> logits [B, L], or F_t before block ``stop``.

    Args:
      x: the examples; all but the first axis are one.
      stop: t of the units [B, F] to return; -1: Phi_T [B, d]; None: the logits.
    """
    phi = x.reshape(x.shape[0], -1)
    for t in range(self.blocks):
      units = hidden(t, phi, self.width)
      if stop == t:
        return units
      delta = self.param(
        f"Delta_{t}", nn.initializers.zeros, (self.width, phi.shape[1]), jnp.float32
      )
      phi = phi + units @ delta.astype(phi.dtype)
    if stop == -1:
      return phi
    return nn.Dense(self.num_classes, name="head", kernel_init=nn.initializers.zeros)(
      phi
    )


def residual_views(
  module: ResidualModule, input_shape: Sequence[int]
) -> tuple[Layer, ...]:
  """Lists Delta_0, ..., Delta_(T-1) and the head of a ``ResidualModule``.

  A Delta has no bias: ``get`` gives zeros, and ``put`` drops what it is given.
  """
  d = math.prod(input_shape)

  def view(t: int) -> Layer:
    name = f"Delta_{t}"

    def put(params: Params, weights: Array, bias: Array) -> Params:
      del bias
      return {"params": {**params["params"], name: weights}}

    return Layer(
      name,
      (module.width,),
      (1, 1),
      module.width,
      d,
      lambda params, x: jnp.asarray(module.apply(params, x, t)),
      one_row,
      lambda params: (params["params"][name], jnp.zeros(d)),
      put,
      residual=True,
    )

  def put_head(params: Params, weights: Array, bias: Array) -> Params:
    return {"params": {**params["params"], "head": {"kernel": weights, "bias": bias}}}

  head = Layer(
    "head",
    (d,),
    (1, 1),
    d,
    module.num_classes,
    lambda params, x: jnp.asarray(module.apply(params, x, -1)),
    one_row,
    lambda params: (
      params["params"]["head"]["kernel"],
      params["params"]["head"]["bias"],
    ),
    put_head,
  )
  return (*(view(t) for t in range(module.blocks)), head)
