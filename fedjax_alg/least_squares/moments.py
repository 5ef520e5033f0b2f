"""What a client sends of a layer: sums over its rows, exact in any partition.

With X_k the unfolded inputs of client k at a layer (a row for every example
and output position) and Y_k its one-hot labels, the least-squares problem
needs only R_k = X_k' X_k and X_k' T_k (analytic, (4)-(6)). The targets are
T = Y Q for a code Q that every client can draw, so X_k' T_k follows from the
sums of the layer's inputs by class: with a dense layer it is (X_k' Y_k) Q.
Those sums are linear in the data, so they may be added over clients before the
code is applied.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Layer, Params, Shard
from fedjax_alg.client import objective
from fedjax_alg.data import layout

#: Numbers in one unfolded block, at most: 32 MB in float64.
_BLOCK_ENTRIES = 2 ** 22


class Moments(NamedTuple):
  """Sums over the examples of one client, or of many; they add."""

  gram: Array  #: [d, d] X'X
  total: Array  #: [d] sum of the rows of X
  classes: Array  #: [L, *input_shape] sum of the layer's inputs by class
  counts: Array  #: [L] examples by class


def block_rows(layer: Layer) -> int:
  """Examples of one block: its unfolded matrix bounds the memory."""
  rows = _BLOCK_ENTRIES // (layer.positions * layer.fan_in)
  return max(1, min(rows, 128 if layer.fan_in < 2048 else layout.PADDING_ROWS))


def zeros(layer: Layer, num_classes: int, dtype: jnp.dtype) -> Moments:
  """The moments of no example."""
  d = layer.fan_in
  return Moments(
      jnp.zeros((d, d), dtype), jnp.zeros(d, dtype),
      jnp.zeros((num_classes, *layer.input_shape), dtype),
      jnp.zeros(num_classes, dtype))


def add_shard(
    moments: Moments, layer: Layer, params: Params, shard: Shard,
    product: jnp.dtype, rows: int | None = None) -> Moments:
  """Adds a client's examples, block by block.

  Args:
    moments: so far; their dtype is that of the sums.
    layer: whose inputs; ``params`` hold the layers before it.
    params: the model's.
    shard: the client.
    product: dtype in which a block's products are taken.
    rows: examples of a block; None: ``block_rows``. It changes rounding only
      (the weight-invariant property).

  Returns:
    The moments with the client's.
  """
  labels = jnp.arange(moments.counts.shape[0], dtype=jnp.int32)
  dtype = moments.gram.dtype

  def product_of(a: Array, b: Array) -> Array:
    """a' b of two matrices with a row for each example or position."""
    return jax.lax.dot_general(
        a.astype(product), b.astype(product), (((0,), (0,)), ((), ())),
        precision=trees.HIGHEST).astype(dtype)

  def add_block(moments, x, y, mask):
    # Accelerators shorten the factors of float32 products unless told.
    with jax.default_matmul_precision("highest"):
      inputs = layer.inputs(params, x)
    shape = (-1,) + (1,) * (inputs.ndim - 1)
    inputs = jnp.where(mask.reshape(shape), inputs, jnp.zeros_like(inputs))
    unfolded = layer.unfold(inputs).reshape(-1, layer.fan_in)
    member = (y[:, None] == labels[None]) & mask[:, None]
    by_class = product_of(member, inputs.reshape(inputs.shape[0], -1))
    ones = jnp.ones((unfolded.shape[0], 1), product)
    return Moments(
        moments.gram + product_of(unfolded, unfolded),
        moments.total + product_of(ones, unfolded)[0],
        moments.classes + by_class.reshape(moments.classes.shape),
        moments.counts + member.sum(0, dtype=jnp.int32).astype(dtype))

  return objective.fold_blocks(
      shard, add_block, moments, rows or block_rows(layer))


def floats_sent(layer: Layer, num_classes: int, width: int) -> int:
  """Floats of a client's upload for one layer.

  The upper triangle of X'X; of X'T the smaller of its two exact forms, X'T
  itself and the sums by class it is made of (X'Y of a dense layer); the
  column sums and the class counts.

  Args:
    layer: the layer.
    num_classes: L.
    width: columns of T; 0 where there is no T.
  """
  d = layer.fan_in
  by_class = num_classes
  for size in layer.input_shape:
    by_class *= size
  return d * (d + 1) // 2 + min(d * width, by_class) + d + num_classes


def flops(layer: Layer) -> float:
  """Multiplications and additions that one example adds: X'X."""
  return 2.0 * layer.positions * layer.fan_in ** 2
