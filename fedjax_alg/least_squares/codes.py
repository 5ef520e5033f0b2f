"""Label codes Q: the targets of a hidden layer for each class.

(1) of the analytic paper fits T = Y Q. Q is drawn from a normal distribution
with a seed that all clients share; in the output layer Q is the identity. For
a convolution, T has a column for every channel and a row for every position.
The paper says that Q "fits the dimensionality of the real output matrix". This
leaves open whether every position has a different code (``position``: filters
of any rank) or all positions share one code (``class``: filters of rank at
most L).
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_alg.base import Array, Key, Layer
from fedjax_alg.hparams import field_like, hyper
from fedjax_alg.part import Part


class ClassCode(Part):
  """A random code for every channel, the same at all positions."""

  WORD, EXAMPLE = "class", "class:centred"
  high_passed: ClassVar[int] = 0  #: see ``PositionCode``

  centred: bool = hyper(False, "subtract from the codes their mean over examples")


class PositionCode(Part):
  """A random code for every output position and channel."""

  WORD, EXAMPLE = "position", "position:1,centred"

  high_passed: int = hyper(
    0,
    "number of convolutions, counted from the first, with codes that are high-passed "
    "over space",
    minimum=0,
  )
  centred: bool = field_like(ClassCode, "centred")


class RandomFilters(Part):
  """No targets but whitened random filters, a control."""

  WORD = EXAMPLE = "random_filters"
  high_passed: ClassVar[int] = 0
  centred: ClassVar[bool] = False


#: The targets of the hidden layers.
CODES = PositionCode | ClassCode | RandomFilters


def draw_code(
  key: Key, layer: Layer, num_classes: int, kind: str, dtype: jnp.dtype
) -> Float[Array, "{num_classes} p width"]:
  """Draws Q of a hidden layer.

  Args:
    key: key of the layer, the same at every client.
    layer: the layer.
    num_classes: L.
    kind: "position" or "class".
    dtype: dtype of the result. The numbers are drawn in float32, so they are
      the same for every dtype.

  Returns:
    [L, positions or 1, width], standard normal.
  """
  positions = layer.positions if kind == "position" else 1
  shape = (num_classes, positions, layer.width)
  return jax.random.normal(key, shape, jnp.float32).astype(dtype)


def identity(
  num_classes: int, dtype: jnp.dtype
) -> Float[Array, "{num_classes} 1 {num_classes}"]:
  """Makes Q of the output layer, the identity [L, 1, L]."""
  return jnp.eye(num_classes, dtype=dtype)[:, None, :]


def centred(
  code: Float[Array, "L p width"], counts: Float[Array, " L"]
) -> Float[Array, "L p width"]:
  """Subtracts from Q its mean over the examples; the targets then have mean 0.

  Args:
    code: [L, positions or 1, width].
    counts: [L] examples by class.

  Returns:
    The centered code.
  """
  share = counts / jnp.maximum(counts.sum(), jnp.ones((), counts.dtype))
  return code - jnp.tensordot(share, code, axes=1)[None]


def high_passed(maps: Float[Array, "L H W c"]) -> Float[Array, "L H W c"]:
  """Applies a high-pass filter over space: 4 S - up - down - left - right.

  The image is extended by its edges. The filter is applied to the class sums S
  instead of the code; because it is symmetric, the result is the same except at
  the border. It makes the codes of neighboring positions negatively
  correlated, so that the layer learns edges rather than areas.

  Args:
    maps: [L, H, W, c].

  Returns:
    [L, H, W, c].
  """
  padded = jnp.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
  return (
    maps * 4
    - padded[:, :-2, 1:-1]
    - padded[:, 2:, 1:-1]
    - padded[:, 1:-1, :-2]
    - padded[:, 1:-1, 2:]
  )
