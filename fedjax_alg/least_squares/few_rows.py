"""A personal dense layer of a client with fewer examples than inputs.

(13) is W = (X'X + lambda I)^-1 (X'T + lambda W_meta), which takes 2 n d^2 + d^3
/ 3 operations for n examples of d inputs. The same layer is
W = W_meta + X'(XX' + lambda I)^-1 (T - X W_meta), which takes 2 n^2 d + n^3 / 3
(``solve.by_rows``): a sixtieth of it for 500 examples of 8,192 inputs. The two
differ by rounding.

X has a fixed number of rows here, those of the next larger size of a few, so
that no client is padded to the largest one.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedjax_alg import tasks
from fedjax_alg.base import Array, Layer, Params, Shard
from fedjax_alg.client import objective
from fedjax_alg.least_squares import solve

#: From so many inputs on the rows are used; below the sums take a moment.
LEAST_INPUTS = 2048
_FEWEST = 256  # rows of the smallest size, and of a block


def row_limits(layer: Layer, ridge: float) -> tuple[int, ...]:
  """The numbers of rows for which a layer is fitted by its rows.

  They double up to half of the inputs. There are none for a convolution, for a
  layer of few inputs, and without a finite and positive ridge.
  """
  if (
    layer.positions > 1
    or layer.fan_in < LEAST_INPUTS
    or ridge == 0
    or math.isinf(ridge)
  ):
    return ()
  doublings = (layer.fan_in // (2 * _FEWEST)).bit_length()
  return tuple(_FEWEST * 2**i for i in range(doublings))


def _rows(
  layer: Layer, params: Params, shard: Shard, size: int, dtype: jnp.dtype
) -> tuple[Float[Array, "{size} d"], Array, Bool[Array, " {size}"]]:
  """X [size, d], y [size, ...] and which rows there are [size], by blocks."""

  def put(carry, x, y, mask):
    b, *arrays = carry
    with jax.default_matmul_precision("highest"):
      inputs = layer.unfold(layer.inputs(params, x))[:, 0]
    inputs = jnp.where(mask[:, None], inputs, jnp.zeros_like(inputs))
    arrays = [
      jax.lax.dynamic_update_slice_in_dim(
        array, new.astype(array.dtype), b * _FEWEST, 0
      )
      for array, new in zip(arrays, (inputs, y, mask))
    ]
    return b + 1, *arrays

  _, x, y, mask = objective.fold_blocks(
    shard,
    put,
    (
      jnp.int32(0),
      jnp.zeros((size, layer.fan_in), dtype),
      jnp.zeros((size, *shard.y.shape[1:]), shard.y.dtype),
      jnp.zeros(size, bool),
    ),
    _FEWEST,
  )
  return x, y, mask


def fit_by_rows(
  layer: Layer,
  params: Params,
  shard: Shard,
  code: Float[Array, "L 1 width"],
  meta: solve.Fit,
  ridge: float,
  bias: str,
  size: int,
  task: tasks.Task = tasks.CLASSIFICATION,
) -> tuple[Float[Array, "d width"], Float[Array, " width"]]:
  """Fits a personal dense layer by the rows of one client, (13).

  Args:
    layer: the layer.
    params: parameters of the client's model; the preceding layers are read.
    shard: the client, of at most ``size`` examples.
    code: Q of the layer, [L, 1, width].
    meta: fit of this layer for the group.
    ridge: lambda, above 0 and finite.
    bias: one of ``solve.BIASES``.
    size: rows of X, one of ``row_limits``.
    task: what the layer is fitted to.

  Returns:
    W [d, width] and b [width], in the dtype of ``meta``.
  """
  dtype = meta.basis.dtype
  x, y, mask = _rows(layer, params, shard, size, dtype)
  assert task.fitted is not None
  t = task.fitted(y, mask, code.shape[0]).astype(dtype)
  present = mask[:, None].astype(dtype)
  number = jnp.maximum(present.sum(), jnp.ones((), dtype))
  mean, target = x.sum(0) / number, t.sum(0) / number
  if bias == "centred":
    x, t = x - present * mean[None], t - present * target[None]
  elif bias == "ones":
    x = jnp.concatenate([x, present], 1)
  basis = solve.by_rows(x, t, jnp.asarray(ridge, dtype), meta.basis)
  return solve.weights_by_means(
    meta._replace(basis=basis), code[:, 0], target, mean, bias
  )
