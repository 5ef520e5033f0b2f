"""A small causal transformer for the next token, or a class of a sequence.

Vaswani et al., "Attention Is All You Need", NeurIPS 2017, the decoder alone,
with the normalization before each part and GELU (Radford et al., "Language
Models are Unsupervised Multitask Learners", 2019), and learned positions.
"""

from flax import linen as nn
import jax.numpy as jnp

from fedjax_alg.base import Array
from fedjax_alg.tasks import PADDING


class TransformerBlock(nn.Module):
  """Attention and a perceptron, each beside a way around it."""

  heads: int

  @nn.compact
  def __call__(self, x: Array, mask: Array) -> Array:
    """Computes x [B, T, D] with mask [B, 1, T, T] bool -> [B, T, D]."""
    width = x.shape[-1]
    x += nn.MultiHeadDotProductAttention(self.heads, deterministic=True)(
      nn.LayerNorm()(x), mask=mask
    )
    y = nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x)))
    return x + nn.Dense(width)(y)


class TransformerModule(nn.Module):
  """Logits of the token after each one; its last layer is named ``last``."""

  num_classes: int  #: V, number of tokens that may come next, or of classes
  tokens: int  #: number of different tokens, including padding
  d_model: int = 128  #: D, a multiple of ``heads``
  blocks: int = 2
  heads: int = 4
  per_position: bool = True  #: whether every place has outputs, not the last alone
  remat: bool = False  #: whether a gradient computes activations of blocks again

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Computes [B, T] int32 -> [B, T, V], the t-th of the first t tokens.

    Without ``per_position`` it is [B, V], of the last token that is no padding.
    """
    length = x.shape[1]
    places = self.param(
      "position", nn.initializers.normal(0.02), (length, self.d_model)
    )
    y = nn.Embed(self.tokens, self.d_model)(x) + places[None]
    mask = (
      jnp.tril(jnp.ones((length, length), bool))[None, None]
      & ((x != PADDING)[:, None, None, :])
    )
    # The softmax over no place is uniform over all of them, also over later ones.
    mask |= ~mask.any(-1, keepdims=True) & jnp.eye(length, dtype=bool)[None, None]
    kind = nn.remat(TransformerBlock) if self.remat else TransformerBlock
    for block in range(self.blocks):
      # The name is that of earlier checkpoints.
      y = kind(self.heads, name=f"Block_{block}")(y, mask)
    if not self.per_position:
      last = jnp.where(x != PADDING, jnp.arange(length), 0).max(1)
      y = jnp.take_along_axis(y, last[:, None, None], 1)[:, 0]
    return nn.Dense(self.num_classes, name="last")(nn.LayerNorm()(y))
