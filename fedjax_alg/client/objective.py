"""The objective of one client, its gradient, and counts of its features.

f_i(w) = (1/n_i) sum_k loss(w; x_k, y_k) + (l2/2) ||w||^2   (diversified, (2))

The regularizer includes the bias (errata D-28). With ``Model.l2_of_sum`` it is
a term of the sum, so l2 / n_i takes the place of l2. A pass over a client's
data is a loop over contiguous blocks of its rows, with a mask on the last
block. It needs no gather, and no padding to the size of the largest client.

A function with an argument ``key`` runs the model as in training, with dropout,
if a key is given, and as in evaluation if it is None. The steps of local
training give a key (``dropout_key``). Anchor gradients and the losses that
compare models are measured as in evaluation: without dropout, and with running
statistics (``Model.roles``) in the place of those of the rows read.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_alg import trees
from fedjax_alg.base import Array, Key, Model, Params, Shard
from fedjax_alg.data import store
from fedjax_alg.typing import PyTree

#: Number of rows in a block of a full pass; at most data.layout.PADDING_ROWS.
BLOCK_ROWS = 64

# Larger than every counter of the shuffle's random words, which are made of the
# same key.
_DROPOUT = 0xD509


def dropout_key(model: Model, key: Key, number: Int[Array, ""] | int) -> Key | None:
  """The key of a training step's dropout; None for a model without dropout.

  ``key`` also shuffles the rows, so a model reads the same rows with and
  without dropout.

  Args:
    model: the model.
    key: the key of the client in this round.
    number: [] int32, number of the mini-batch.
  """
  if model.train_apply is None:
    return None
  return jax.random.fold_in(jax.random.fold_in(key, _DROPOUT), number)


def logits(
  model: Model,
  params: Params,
  x: Any,
  key: Key | None = None,
  mask: Bool[Array, " B"] | None = None,
) -> Any:
  """Logits [B, L] float32: as in training with a key, else as in evaluation.

  Those of other tasks are what the model returns, leaves [B, ...].

  Args:
    model: the model.
    params: its parameters.
    x: [B, ...] examples.
    key: key of the dropout; None: as in evaluation.
    mask: [B] bool, the rows that enter statistics of the batch; None: all.
  """
  if model.observe is not None:
    return model.observe(params, x, mask, key)[0]
  if key is None:
    return model.apply(params, x)
  assert model.train_apply is not None
  return model.train_apply(params, x, key)


def of_client(model: Model, shard: Shard) -> Model:
  """The model with this client's l2, personal parameters and statistics."""
  if model.roles is not None and not (shard.personal is None and shard.state is None):
    model = model.roles.of_client(model, shard)
  if not (model.l2_of_sum and is_regularised(model)):
    return model
  size = jnp.maximum(shard.size, 1).astype(jnp.float32)
  return model._replace(l2=model.l2 / size, l2_of_sum=False)


def is_regularised(model: Model) -> bool:
  """Whether there is an l2 term; that of one client may be traced."""
  return not isinstance(model.l2, float) or model.l2 != 0.0


def regularise(
  model: Model, params: Params, loss: Float[Array, "*losses"], grad: Params
) -> tuple[Float[Array, "*losses"], Params]:
  """Adds (l2/2) ||w||^2, to one loss or several, and its gradient.

  ``model`` is that of the client.
  """
  if not is_regularised(model):
    return loss, grad
  loss = loss + 0.5 * model.l2 * trees.squared_norm(params)
  return loss, trees.add_scaled(grad, model.l2, params)


def masked_sum(losses: Float[Array, " B"], mask: Bool[Array, " B"]) -> Float[Array, ""]:
  """The sum of the losses [B] of the rows in ``mask`` [B]."""
  chex.assert_equal_shape((losses, mask))
  return jnp.where(mask, losses, jnp.zeros_like(losses)).sum()


def _masked_sum_and_grad(
  model: Model,
  params: Params,
  x: Any,
  y: Any,
  mask: Bool[Array, " B"],
  key: Key | None,
  state: Params = None,
) -> tuple[Float[Array, ""], Params, Params]:
  """Sum of the losses of the rows in ``mask`` and its gradient, without L2.

  Beside them are the statistics after the batch, if there are any that move.
  """

  def loss_sum(params):
    if state is None:
      outputs, new = logits(model, params, x, key, mask), None
    else:
      assert model.observe is not None
      outputs, new = model.observe((params, state), x, mask, key)
    return masked_sum(model.loss(outputs, y), mask), new

  (loss, new), grad = jax.value_and_grad(loss_sum, has_aux=True)(params)
  return loss, grad, new


def _mean(
  model: Model,
  params: Params,
  loss: Float[Array, ""],
  grad: Params,
  rows: Int[Array, ""],
) -> tuple[Float[Array, ""], Params]:
  """Makes the mean over ``rows`` rows, plus L2, of the sums over them."""
  per_row = 1.0 / jnp.maximum(rows, 1).astype(jnp.float32)
  return regularise(model, params, loss * per_row, trees.scale(per_row, grad))


def batch_value_and_grad(
  model: Model,
  params: Params,
  x: PyTree,
  y: PyTree,
  mask: Bool[Array, " B"],
  key: Key | None = None,
) -> tuple[Float[Array, ""], Params]:
  """Mean loss over a mini-batch plus L2, and its gradient.

  Args:
    model: the model.
    params: its parameters.
    x: [B, ...] examples.
    y: [B, ...] targets.
    mask: [B] bool, rows that count; if none counts, the result is that of the
      regularizer alone.
    key: key of the dropout; None: as in evaluation.

  Returns:
    The loss [] float32, and the gradient with the structure of params.
  """
  loss, grad, _ = _masked_sum_and_grad(model, params, x, y, mask, key)
  return _mean(model, params, loss, grad, mask.sum())


def batch_value_and_moves(
  model: Model,
  at: Any,
  x: Any,
  y: Any,
  mask: Bool[Array, " B"],
  key: Key | None = None,
) -> tuple[Float[Array, ""], Any]:
  """``batch_value_and_grad`` of a model that moves its statistics.

  Args:
    model: a model whose parameters are the pair (parameters, statistics).
    at: such a pair.
    x: see ``batch_value_and_grad``.
    y: see ``batch_value_and_grad``.
    mask: see ``batch_value_and_grad``.
    key: see ``batch_value_and_grad``.

  Returns:
    The loss, and the pair (gradient, statistics after the batch).
  """
  params, state = at
  loss, grad, state = _masked_sum_and_grad(model, params, x, y, mask, key, state)
  loss, grad = _mean(model, params, loss, grad, mask.sum())
  return loss, (grad, state)


def fold_blocks(shard: Shard, fn: Any, carry: PyTree, rows: int = BLOCK_ROWS) -> Any:
  """Folds ``fn(carry, x, y, mask)`` over the blocks of a client's rows.

  Args:
    shard: the client's data.
    fn: gets x [rows, ...], y [rows, ...] and mask [rows], and returns the new
      carry.
    carry: the first carry, whose structure ``fn`` keeps.
    rows: number of rows in a block, at most data.layout.PADDING_ROWS; with
      fewer rows less work is wasted on small shards.

  Returns:
    The carry after the last block.
  """
  blocks = jax.lax.div(shard.size + (rows - 1), jnp.int32(rows))

  def body(b, carry):
    start = shard.offset + b * rows
    x, y = store.gather_rows(
      (shard.x, shard.y),
      lambda array: jax.lax.dynamic_slice_in_dim(
        array, start, rows, allow_negative_indices=False
      ),
    )
    mask = b * rows + jnp.arange(rows, dtype=jnp.int32) < shard.size
    return fn(carry, x, y, mask)

  return jax.lax.fori_loop(jnp.int32(0), blocks, body, carry)


def sum_blocks(
  shard: Shard, fn: Callable[[PyTree, PyTree, Array], PyTree], rows: int = BLOCK_ROWS
) -> Any:
  """Adds up the trees ``fn(x, y, mask)`` over the blocks of a client's rows."""
  fn = jax.jit(fn, inline=True)  # traced once, for the shapes and for the loop
  zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(fn, *block_shapes(shard, rows)))
  return fold_blocks(
    shard, lambda sums, *block: trees.add(sums, fn(*block)), zero, rows
  )


def sum_and_keep(
  shard: Shard,
  fn: Callable[[PyTree, PyTree, Array], tuple[PyTree, dict[str, Array]]],
  rows: int,
  width: int,
) -> Any:
  """``sum_blocks`` of a function that gives numbers of each row, too.

  Args:
    shard: the client's data, of at most ``width`` rows.
    fn: (x, y, mask) -> the tree that is summed, and name -> [rows].
    rows: number of rows in a block.
    width: W; places for the numbers, a multiple of ``rows``.

  Returns:
    The sums, and name -> [W]; places without a row hold anything.
  """
  fn = jax.jit(fn, inline=True)
  sums, of_rows = jax.eval_shape(fn, *block_shapes(shard, rows))
  zero = (
    jax.tree.map(jnp.zeros_like, sums),
    {name: jnp.zeros(width, leaf.dtype) for name, leaf in of_rows.items()},
    jnp.int32(0),
  )

  def add(carry, *block):
    total, numbers, place = carry
    part, of_rows = fn(*block)
    numbers = {
      name: jax.lax.dynamic_update_slice_in_dim(
        numbers[name], leaf, place, 0, allow_negative_indices=False
      )
      for name, leaf in of_rows.items()
    }
    return trees.add(total, part), numbers, place + rows

  return fold_blocks(shard, add, zero, rows)[:2]


def block_shapes(shard: Shard, rows: int = BLOCK_ROWS) -> Any:
  """The shapes of x, y and mask that ``fold_blocks`` gives its function."""
  return jax.eval_shape(
    lambda x, y: (
      *store.gather_rows((x, y), lambda array: array[:rows]),
      jnp.zeros(rows, bool),
    ),
    shard.x,
    shard.y,
  )


def full_value_and_grad(
  model: Model, params: Params, shard: Shard, key: Key | None = None
) -> tuple[Float[Array, ""], Params]:
  """f_i(w) and grad f_i(w) over all examples of one client.

  Under ``jax.vmap`` over params alone, one pass serves K models and reads the
  blocks once.

  Args:
    model: the model.
    params: its parameters.
    shard: the client's data.
    key: key of the dropout; None: as in evaluation.

  Returns:
    The loss [] float32, and the gradient. For an empty shard they are those of
    the regularizer alone.
  """
  loss, (grad, _) = full_value_and_moves(model, (params, None), shard, key)
  return loss, grad


def full_value_and_moves(
  model: Model, at: Any, shard: Shard, key: Key | None = None
) -> tuple[Float[Array, ""], Any]:
  """``full_value_and_grad`` of a model that moves its statistics.

  They are those of each block of ``BLOCK_ROWS`` rows, and move block by block.

  Args:
    model: see ``batch_value_and_moves``.
    at: see ``batch_value_and_moves``.
    shard: the client's data.
    key: key of the dropout; None: as in evaluation.

  Returns:
    See ``batch_value_and_moves``.
  """
  params, state = at

  def add_block(carry, x, y, mask):
    total, gradient, state, key = carry
    now = None
    if key is not None:
      key, now = jax.random.split(key)
    loss, grad, state = _masked_sum_and_grad(model, params, x, y, mask, now, state)
    return total + loss, trees.add(gradient, grad), state, key

  if model.roles is not None or model.l2_of_sum:
    model = of_client(model, shard)
  zero = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params), state, key
  loss, grad, state, _ = fold_blocks(shard, add_block, zero)
  loss, grad = _mean(model, params, loss, grad, shard.size)
  return loss, (grad, state)


def full_loss(
  model: Model, params: Params, shard: Shard, key: Key | None = None
) -> Float[Array, ""]:
  """f_i(w) over all examples of one client, [] float32.

  Args:
    model: the model.
    params: its parameters.
    shard: the client's data.
    key: key of the dropout; None: as in evaluation.
  """

  def add_block(carry, x, y, mask):
    total, key = carry
    now = None
    if key is not None:
      key, now = jax.random.split(key)
    losses = model.loss(logits(model, params, x, now, mask), y)
    return total + masked_sum(losses, mask), key

  model = of_client(model, shard)
  total: Array
  total, _ = fold_blocks(shard, add_block, (jnp.zeros(()), key))
  loss = total / jnp.maximum(shard.size, 1).astype(jnp.float32)
  if is_regularised(model):
    loss = loss + 0.5 * model.l2 * trees.squared_norm(params)
  return loss


def over_models(model: Model, fn: Callable[[Params], PyTree], models: Params) -> Any:
  """Applies a function to each of K models.

  Models with convolutions are processed one after the other: vectorized, they
  become grouped convolutions, which take minutes on a CPU. Dense layers of
  several models are vectorized to one product.

  Args:
    model: the model; tells whether it has convolutions.
    fn: function of the parameters of one model.
    models: parameters, leaves [K, ...].

  Returns:
    The results, leaves [K, ...].
  """
  convolves = any(layer.positions > 1 for layer in model.layers or ())
  return jax.lax.map(fn, models) if convolves else jax.vmap(fn)(models)


def full_losses(model: Model, models: Params, shard: Shard) -> Float[Array, " K"]:
  """f_i at K models ([K, ...]) in one pass over the data, [K] float32.

  If the shard has statistics, they are those of the K models, [K, ...].
  """
  return jax.vmap(
    lambda params, state: full_loss(model, params, shard._replace(state=state))
  )(models, shard.state)


def preferred_model(model: Model, models: Params, shard: Shard) -> Int[Array, ""]:
  """The model whose loss on all the client's data is least (diversified, (18)).

  Args:
    model: the model.
    models: K models, leaves [K, ...].
    shard: the client's training data.

  Returns:
    [] int32 in [0, K); of equal losses the lowest index.
  """
  return jnp.argmin(full_losses(model, models, shard)).astype(jnp.int32)


def feature_counts(shard: Shard) -> Float[Array, " D"]:
  """n_i^j: in how many of the client's examples feature j is non-zero.

  Returns:
    [D] float32, where D is the number of entries of one example, of all its
    arrays.
  """

  def count_features(x, y, mask):
    flat = [array.reshape(BLOCK_ROWS, -1) != 0 for array in jax.tree.leaves(x)]
    is_nonzero = flat[0] if len(flat) == 1 else jnp.concatenate(flat, 1)
    return (is_nonzero & mask[:, None]).sum(0, dtype=jnp.int32)

  counts: Array = sum_blocks(shard, count_features)
  return counts.astype(jnp.float32)


def label_counts(shard: Shard, num_classes: int) -> Float[Array, " {num_classes}"]:
  """Counts the client's examples of each class, [L] float32."""
  labels = jnp.arange(num_classes, dtype=jnp.int32)

  def count_labels(x, y, mask):
    matches = (y[:, None] == labels[None]) & mask[:, None]
    return matches.sum(0, dtype=jnp.int32)

  counts: Array = sum_blocks(shard, count_labels)
  return counts.astype(jnp.float32)
