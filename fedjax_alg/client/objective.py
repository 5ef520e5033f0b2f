"""The objective of one client, its gradient, and counts of its features.

f_i(w) = (1/n_i) sum_k loss(w; x_k, y_k) + (l2/2) ||w||^2   (diversified, (2))

The regulariser includes the bias (errata D-28). A pass over a client is a loop
over contiguous blocks of its rows with a mask on the last one: no gather, no
padding to the largest client.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Model, Params, Shard

#: Rows of one block of a full pass; at most data.layout.PADDING_ROWS.
BLOCK_ROWS = 64


def regularised(model: Model, params: Params, loss: Array, grad: Params):
  """Adds (l2/2) ||w||^2 and its gradient."""
  if not model.l2:
    return loss, grad
  loss = loss + 0.5 * model.l2 * trees.squared_norm(params)
  return loss, trees.add_scaled(grad, model.l2, params)


def _masked_sum_and_grad(model: Model, params: Params, x, y, mask):
  """Sum of the losses of the rows in ``mask`` and its gradient, without L2."""

  def loss_sum(params):
    losses = model.loss(model.apply(params, x), y)
    return jnp.where(mask, losses, jnp.zeros_like(losses)).sum()

  return jax.value_and_grad(loss_sum)(params)


def batch_value_and_grad(
    model: Model, params: Params, x: Array, y: Array, mask: Array
) -> tuple[Array, Params]:
  """Mean loss over a mini-batch plus L2, and its gradient.

  Args:
    model: the model.
    params: its parameters.
    x: [B, ...] examples.
    y: [B] int32 labels.
    mask: [B] bool, rows that count; if none does, the result is the
      regulariser's.

  Returns:
    ([] float32, gradient with the structure of params).
  """
  loss, grad = _masked_sum_and_grad(model, params, x, y, mask)
  per_row = 1.0 / jnp.maximum(mask.sum(), 1).astype(jnp.float32)
  return regularised(model, params, loss * per_row, trees.scale(per_row, grad))


def fold_blocks(
    shard: Shard, fn: Any, carry: Any, rows: int = BLOCK_ROWS) -> Any:
  """Folds ``fn(carry, x, y, mask)`` over the blocks of a client's rows.

  Args:
    shard: the client.
    fn: gets x [rows, ...], y and mask [rows].
    carry: the start; its structure is kept.
    rows: number of rows in a block, at most data.layout.PADDING_ROWS; fewer
      waste less on small shards.
  """
  blocks = (shard.size + rows - 1) // rows

  def body(b, carry):
    start = shard.offset + b * rows
    x = jax.lax.dynamic_slice_in_dim(shard.x, start, rows)
    y = jax.lax.dynamic_slice_in_dim(shard.y, start, rows)
    mask = b * rows + jnp.arange(rows, dtype=jnp.int32) < shard.size
    return fn(carry, x, y, mask)

  return jax.lax.fori_loop(jnp.int32(0), blocks, body, carry)


def full_value_and_grad(
    model: Model, params: Params, shard: Shard
) -> tuple[Array, Params]:
  """f_i(w) and grad f_i(w) over all examples of one client.

  ``jax.vmap`` over params alone turns it into one pass for K models (the
  blocks are read once).

  Returns:
    ([] float32, gradient); an empty shard gives the regulariser alone.
  """

  def add_block(carry, x, y, mask):
    loss, grad = _masked_sum_and_grad(model, params, x, y, mask)
    return carry[0] + loss, trees.add(carry[1], grad)

  zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
  loss, grad = fold_blocks(shard, add_block, zero)
  per_row = 1.0 / jnp.maximum(shard.size, 1).astype(jnp.float32)
  return regularised(model, params, loss * per_row, trees.scale(per_row, grad))


def full_loss(model: Model, params: Params, shard: Shard) -> Array:
  """f_i(w) over all examples of one client, [] float32."""

  def add_block(total, x, y, mask):
    losses = model.loss(model.apply(params, x), y)
    return total + jnp.where(mask, losses, jnp.zeros_like(losses)).sum()

  loss = fold_blocks(shard, add_block, jnp.zeros(()))
  loss = loss / jnp.maximum(shard.size, 1).astype(jnp.float32)
  if model.l2:
    loss = loss + 0.5 * model.l2 * trees.squared_norm(params)
  return loss


def full_losses(model: Model, models: Params, shard: Shard) -> Array:
  """f_i at K models ([K, ...]) in one pass over the data, [K] float32."""
  return jax.vmap(lambda params: full_loss(model, params, shard))(models)


def preferred_model(model: Model, models: Params, shard: Shard) -> Array:
  """The global model of least full local loss (diversified, (18)).

  Args:
    model: the model.
    models: K models, leaves [K, ...].
    shard: the client's training data.

  Returns:
    [] int32 in [0, K), ties to the lowest index.
  """
  return jnp.argmin(full_losses(model, models, shard)).astype(jnp.int32)


def feature_counts(shard: Shard) -> Array:
  """n_i^j: how many of the client's examples have feature j non-zero.

  Returns:
    [D] float32, D the number of entries of one example.
  """
  features = shard.x[0].size

  def add_block(counts, x, y, mask):
    del y
    held = (x.reshape(BLOCK_ROWS, -1) != 0) & mask[:, None]
    return counts + held.sum(0, dtype=jnp.int32)

  counts = fold_blocks(shard, add_block, jnp.zeros(features, jnp.int32))
  return counts.astype(jnp.float32)


def label_counts(shard: Shard, num_classes: int) -> Array:
  """Examples of each class that the client holds, [L] float32."""
  labels = jnp.arange(num_classes, dtype=jnp.int32)

  def add_block(counts, x, y, mask):
    del x
    held = (y[:, None] == labels[None]) & mask[:, None]
    return counts + held.sum(0, dtype=jnp.int32)

  counts = fold_blocks(shard, add_block, jnp.zeros(num_classes, jnp.int32))
  return counts.astype(jnp.float32)
