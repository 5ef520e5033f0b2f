"""f_v, the loss on the server's validation examples (conjugate, (29))."""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_alg import trees
from fedjax_alg.base import Array, MapClients, Model, Params, Shard
from fedjax_alg.client import objective
from fedjax_alg.errors import OptionError

#: The number of pieces into which the examples are cut, so that several devices
#: can share them.
PIECES = 16


def _pieces(shard: Shard) -> Shard:
  ends = shard.size * jnp.arange(PIECES + 1, dtype=jnp.int32) // PIECES
  return Shard(
    shard.x,
    shard.y,
    shard.offset + ends[:-1],
    ends[1:] - ends[:-1],
    state=None if shard.state is None else trees.repeat(shard.state, PIECES),
  )


def validation_loss(
  model: Model, shard: Shard, map_clients: MapClients
) -> Callable[[Params], Array]:
  """f_v: the training objective (L2 included) on the validation examples.

  Args:
    model: the model.
    shard: the server's examples, offset and size [].
    map_clients: maps the pieces of the examples as it maps clients.

  Returns:
    (params) -> [] float32; ``jax.vmap`` over params reads the examples once.
  """
  # Their statistics travel with the pieces.
  pieces, model = _pieces(shard), objective.of_client(model, shard._replace(state=None))

  def value(params: Params) -> Float[Array, ""]:
    losses = map_clients(functools.partial(objective.full_loss, model), params, pieces)
    loss: Array = trees.slot_mean(pieces.size.astype(jnp.float32), losses)
    return loss

  return value


def validation_line(
  model: Model, shard: Shard, map_clients: MapClients
) -> Callable[[Params, Params, Array], Array]:
  """f_v along a line, for many steps in one pass over the examples.

  Args:
    model: a model whose logits z are linear in its parameters, so that
      z(w + eta d) = z(w) + eta z(d).
    shard: the server's examples, offset and size [].
    map_clients: maps the pieces of the examples as it maps clients.

  Returns:
    (w, d, eta [T]) -> f_v(w + eta d), [T] float32.
  """
  assert model.linear
  pieces, model = _pieces(shard), objective.of_client(model, shard)

  def piece(shared, shard):
    params, direction, steps = shared

    def of_block(x, y, mask):
      start, slope = model.apply(params, x), model.apply(direction, x)
      losses = jax.vmap(lambda eta: model.loss(start + eta * slope, y))(steps)
      return jnp.where(mask, losses, jnp.zeros_like(losses)).sum(1)

    return objective.sum_blocks(shard, of_block)

  def values(
    params: Params, direction: Params, steps: Float[Array, " T"]
  ) -> Float[Array, " T"]:
    sums = map_clients(piece, (params, direction, steps), pieces)
    mean: Array = sums.sum(0) / jnp.maximum(shard.size, 1).astype(jnp.float32)
    if not objective.is_regularised(model):
      return mean
    square = (
      trees.squared_norm(params)
      + 2.0 * steps * trees.dot(params, direction)
      + steps * steps * trees.squared_norm(direction)
    )
    return mean + 0.5 * model.l2 * square

  return values


def validation_arguments(
  model: Model, validation: Shard | None, map_clients: MapClients
) -> dict[str, Any]:
  """The extra arguments of a line search: f_v, and f_v along a line.

  Raises:
    OptionError: there are no validation data.
  """
  if validation is None:
    raise OptionError("the server step needs validation clients (`validation_clients`)")
  extra: dict[str, Any] = {"value_fn": validation_loss(model, validation, map_clients)}
  if model.linear:
    extra["line_fn"] = validation_line(model, validation, map_clients)
  return extra
