"""Sums that a client sends for a layer; their total is exact in any partition.

Let X_k be the unfolded inputs of client k at a layer (one row for every
example and output position) and Y_k the one-hot labels, or the numbers of
another task (``tasks.Task.fitted``). The least-squares
problem needs only R_k = X_k' X_k and X_k' T_k (analytic, (4)-(6)). The targets
are T = Y Q for a code Q that every client can draw. X_k' T_k therefore follows
from the sums of the layer's inputs by class; for a dense layer it is
(X_k' Y_k) Q. These sums are linear in the data, so they can be added over
clients before the code is applied.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import tasks, trees
from fedjax_alg.base import Array, Layer, Params, Shard
from fedjax_alg.client import objective
from fedjax_alg.data import layout
from fedjax_alg.exchange.messages import Carrier, carry
from fedjax_alg.least_squares import patch_gram
from fedjax_alg.least_squares.closed_form import ABSENT

#: Maximum number of entries in one unfolded block: 32 MB in float64.
_BLOCK_ENTRIES = 2**22


class Moments(NamedTuple):
  """Sums over the examples of one or more clients; they can be added."""

  gram: Array  #: [d, d] X'X
  total: Array  #: [d] sum of the rows of X
  #: [L, *input_shape] sums of the inputs by class; of real targets weighted by
  #: each of them
  classes: Array
  counts: Array  #: [L] examples by class, or sums of the targets
  rows: Array | None = None  #: [] examples; None: the sum of ``counts``

  @property
  def number(self) -> Array:
    """The number of examples, []."""
    return self.counts.sum(0) if self.rows is None else self.rows


def block_rows(layer: Layer) -> int:
  """The number of examples in one block, bounded by the unfolded matrix."""
  rows = _BLOCK_ENTRIES // (
    patch_gram.entries(layer.kernel, layer.input_shape)
    if (patch_gram.pays(layer))
    else layer.positions * layer.fan_in
  )
  return max(1, min(rows, 128 if layer.fan_in < 2048 else layout.PADDING_ROWS))


def zero_moments(
  layer: Layer,
  num_classes: int,
  dtype: jnp.dtype,
  task: tasks.Task = tasks.CLASSIFICATION,
) -> Moments:
  """Makes the moments of zero examples."""
  d = layer.fan_in
  return Moments(
    jnp.zeros((d, d), dtype),
    jnp.zeros(d, dtype),
    jnp.zeros((num_classes, *layer.input_shape), dtype),
    jnp.zeros(num_classes, dtype),
    None if task.has_classes else jnp.zeros((), dtype),
  )


def clear_classes(moments: Moments) -> Moments:
  """The moments with sums of exactly 0 for classes without examples.

  Real targets, whose sums may be 0, are no classes.
  """
  if moments.rows is not None:
    return moments
  classes = moments.classes
  has_examples = (moments.counts > 0).reshape(-1, *(1,) * (classes.ndim - 1))
  return moments._replace(
    classes=jnp.where(has_examples, classes, jnp.zeros_like(classes))
  )


def carry_sums(moments: Moments, carrier: Carrier | None) -> Moments:
  """A client's sums as the server receives them (``exchange.messages``).

  Of the Gram matrix the upper triangle is sent.
  """
  upper = np.triu_indices(moments.gram.shape[0])
  triangle, others = carry(carrier, (moments.gram[upper], moments[1:]))
  gram = jnp.zeros_like(moments.gram).at[upper].set(triangle)
  return Moments(gram.at[upper[::-1]].set(triangle), *others)


def add_shard(
  moments: Moments,
  layer: Layer,
  params: Params,
  shard: Shard,
  product: jnp.dtype,
  rows: int | None = None,
  task: tasks.Task = tasks.CLASSIFICATION,
) -> Moments:
  """Adds the examples of a client, block by block.

  Args:
    moments: the sums so far; their dtype is that of the result.
    layer: the layer.
    params: parameters of the model; the preceding layers are read.
    shard: the client.
    product: dtype in which the products of a block are computed.
    rows: examples in a block; None means ``block_rows``. It changes only the
      rounding (the weight-invariant property).
    task: what the layer is fitted to.

  Returns:
    The new sums.
  """
  d = layer.fan_in
  chex.assert_shape((moments.gram, moments.total), ((d, d), (d,)))
  assert task.fitted is not None
  targets_of, columns = task.fitted, moments.counts.shape[0]
  dtype = moments.gram.dtype
  by_offset = patch_gram.pays(layer)

  def product_of(a: Array, b: Array) -> Array:
    """a' b of two matrices with one row for each example or position."""
    return jax.lax.dot_general(
      a.astype(product),
      b.astype(product),
      (((0,), (0,)), ((), ())),
      precision=trees.HIGHEST,
    ).astype(dtype)

  def add_block(sums, x, y, mask):
    gram, total, classes, counts, number = sums
    # By default accelerators reduce the precision of float32 products.
    with jax.default_matmul_precision("highest"):
      inputs = layer.inputs(params, x)
    shape = (-1,) + (1,) * (inputs.ndim - 1)
    inputs = jnp.where(mask.reshape(shape), inputs, jnp.zeros_like(inputs))
    member = targets_of(y, mask, columns)
    by_class = product_of(member, inputs.reshape(inputs.shape[0], -1))
    if by_offset:
      gram = patch_gram.add_examples(gram, inputs, product)
      summed = inputs.astype(product).sum(0, keepdims=True)
      total = total + layer.unfold(summed).sum((0, 1)).astype(dtype)
    else:
      unfolded = layer.unfold(inputs).reshape(-1, layer.fan_in)
      ones = jnp.ones((unfolded.shape[0], 1), product)
      gram = gram + product_of(unfolded, unfolded)
      total = total + product_of(ones, unfolded)[0]
    classes = classes + by_class.reshape(classes.shape)
    if number is None:
      counts = counts + member.sum(0, dtype=jnp.int32).astype(dtype)
    else:
      ones = jnp.ones((member.shape[0], 1), product)
      counts = counts + product_of(ones, member)[0]
      number = number + mask.sum(dtype=jnp.int32).astype(dtype)
    return gram, total, classes, counts, number

  no_gram: Array | patch_gram.Products = moments.gram
  if by_offset:
    no_gram = patch_gram.zero_products(layer.kernel, layer.input_shape[-1], dtype)
  gram, *others = objective.fold_blocks(
    shard, add_block, (no_gram, *moments[1:]), rows or block_rows(layer)
  )
  if by_offset:
    gram = moments.gram + patch_gram.patches_gram(gram)
  return Moments(gram, *others)


class ResidualSums(NamedTuple):
  """Sums of units and of residuals, which the units are then fitted to."""

  gram: Array  #: [D, D] float64, Z'Z of the units Z
  cross: Array  #: [D, L] float64, Z'R of the residuals R = Y - outputs
  number: Array  #: [] float64, examples


def zero_residuals(width: int, columns: int) -> ResidualSums:
  """Makes sums of no example, of D units and L outputs."""
  return ResidualSums(
    jnp.zeros((width, width), jnp.float64),
    jnp.zeros((width, columns), jnp.float64),
    jnp.zeros((), jnp.float64),
  )


def add_residuals(
  sums: ResidualSums,
  task: tasks.Task,
  shard: Shard,
  rows: int,
  forward: Callable[[Array], tuple[Array, Array]],
) -> ResidualSums:
  """Adds the examples of a client, block by block.

  Args:
    sums: the sums so far.
    task: what the outputs are fitted to.
    shard: the client.
    rows: examples in a block.
    forward: x [B, ...] -> (units [B, D], outputs [B, L]).

  Returns:
    The new sums.
  """
  assert task.fitted is not None
  targets_of: Callable[..., Array] = task.fitted

  def add_block(sums, x, y, mask):
    with jax.default_matmul_precision("highest"):
      units, outputs = forward(x)
    targets = targets_of(y, mask, sums.cross.shape[1]).astype(jnp.float64)
    # A class that nobody has had is predicted by nobody: nothing is left of it.
    rest = jnp.where(outputs > ABSENT / 2, targets - outputs.astype(jnp.float64), 0.0)
    units, rest = (
      jnp.where(mask[:, None], part, jnp.zeros_like(part))
      for part in (units.astype(jnp.float64), rest)
    )
    gram, cross = (
      jnp.matmul(units.T, part, precision=trees.HIGHEST) for part in (units, rest)
    )
    number = mask.sum(dtype=jnp.int32).astype(gram.dtype)
    return trees.add(sums, ResidualSums(gram, cross, number))

  result: ResidualSums = objective.fold_blocks(shard, add_block, sums, rows)
  return result


def floats_sent(layer: Layer, num_classes: int, width: int) -> int:
  """Counts the floats that a client uploads for one layer.

  The upload consists of the upper triangle of X'X, the smaller of X'T and the
  sums by class from which X'T follows (X'Y for a dense layer), the column sums
  and the class counts.

  Args:
    layer: the layer.
    num_classes: L.
    width: columns of T; 0 without targets.

  Returns:
    The number of floats.
  """
  d = layer.fan_in
  by_class = num_classes
  for size in layer.input_shape:
    by_class *= size
  return d * (d + 1) // 2 + min(d * width, by_class) + d + num_classes


def flops(layer: Layer) -> float:
  """Counts the multiplications and additions of X'X for one example."""
  return 2.0 * layer.positions * layer.fan_in**2
