"""Label codes Q: what a hidden layer is asked to give for each class.

(1) of the analytic paper fits T = Y Q, Q normal from a seed that all share and
the identity in the output layer. For a convolution T has a column for every
channel and a row for every position; the paper's "fits the dimensionality of
the real output matrix" leaves open whether a position has a code of its own
(``position``: filters of any rank) or all share one (``class``: filters of
rank at most L).
"""

import jax
import jax.numpy as jnp

from fedjax_alg.base import Array, Key, Layer

#: position: a code for every position and channel; class: one for every
#: channel; random_filters: no code, untrained filters (a control).
CODES = ("position", "class", "random_filters")


def draw(
    key: Key, layer: Layer, num_classes: int, kind: str, dtype: jnp.dtype
) -> Array:
  """Q of a hidden layer, [L, positions or 1, width] standard normal.

  Args:
    key: the layer's, the same at every client.
    layer: the layer.
    num_classes: L.
    kind: "position" or "class".
    dtype: of the result; the numbers are drawn in float32, so they are the
      same in every dtype.
  """
  positions = layer.positions if kind == "position" else 1
  shape = (num_classes, positions, layer.width)
  return jax.random.normal(key, shape, jnp.float32).astype(dtype)


def identity(num_classes: int, dtype: jnp.dtype) -> Array:
  """Q of the output layer, [L, 1, L]."""
  return jnp.eye(num_classes, dtype=dtype)[:, None, :]


def centred(code: Array, counts: Array) -> Array:
  """Q less its mean over examples: the targets then have mean 0 everywhere.

  Args:
    code: [L, positions or 1, width].
    counts: [L] examples by class.
  """
  share = counts / jnp.maximum(counts.sum(), jnp.ones((), counts.dtype))
  return code - jnp.tensordot(share, code, axes=1)[None]


def high_passed(maps: Array) -> Array:
  """4 S - up - down - left - right, edges repeated: [L, H, W, c] -> same.

  Applied to the class sums S instead of the code, which is the same but for
  the border: the operator is symmetric. It makes the codes of neighbouring
  positions negatively correlated, so that they ask for edges, not for areas.
  """
  padded = jnp.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
  return (4 * maps - padded[:, :-2, 1:-1] - padded[:, 2:, 1:-1]
          - padded[:, 1:-1, :-2] - padded[:, 1:-1, 2:])
