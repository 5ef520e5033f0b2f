"""How much local work a client does, and which rows each step reads.

The shuffle is the swap-or-not network of Hoang, Morris and Rogaway ("An
enciphering scheme based on a card shuffle", CRYPTO 2012): a keyed bijection of
[0, n) that is evaluated row by row. It needs no array of the client's size, so
a client of 10 rows costs what 10 rows cost beside a client of 3,000, under
``lax.map`` as under ``vmap``.
"""

from collections.abc import Callable
import dataclasses

import jax
import jax.numpy as jnp

from fedjax_alg.base import Array, Key, Model, Params, Shard
from fedjax_alg.client import objective
from fedjax_alg.hparams import hyper

# A card has been moved to a uniformly random place with probability
# 1 - 2^-ROUNDS, a pair of cards is mixed up to (3/4)^ROUNDS = 0.1 %.
ROUNDS = 24


@dataclasses.dataclass(frozen=True)
class LocalWork:
  """Local work of one round; shared by every method that trains by steps."""

  local_steps: int = hyper(
      0, "mini-batch steps per round (K_local); 0: count by --local_epochs",
      minimum=0)
  local_epochs: int = hyper(
      1, "passes over the client's data per round, the short last batch kept; "
      "read where --local_steps=0", minimum=1)
  batch_size: int = hyper(
      10, "examples per step (B); 0: the client's whole data", minimum=0)

  def num_steps(self, size: Array) -> Array:
    """Steps of a client that holds ``size`` examples, [] int32."""
    if self.local_steps:
      steps = jnp.int32(self.local_steps)
    else:
      steps = self.local_epochs * batches_per_epoch(size, self.batch_size)
    return jnp.where(size > 0, steps, 0)

  def examples_read(self, size: Array) -> Array:
    """Examples whose gradient the steps take, [] int32."""
    if not self.local_steps:
      return self.local_epochs * size
    if not self.batch_size:
      return self.local_steps * size
    per_epoch = batches_per_epoch(size, self.batch_size)
    epochs = self.local_steps // jnp.maximum(per_epoch, 1)
    rest = (self.local_steps - epochs * per_epoch) * self.batch_size
    return jnp.where(size > 0, epochs * size + rest, 0)


def batches_per_epoch(size: Array, batch_size: int) -> Array:
  """ceil(size / batch_size), [] int32; 1 with batch_size 0."""
  if not batch_size:
    return jnp.ones_like(size)
  return (size + batch_size - 1) // batch_size


def shuffle_bits(key: Key) -> Array:
  """The random words that ``shuffled`` takes, [ROUNDS] uint32."""
  return jax.random.bits(key, (ROUNDS,), jnp.uint32)


def _mix(word: Array) -> Array:
  """A 32-bit finaliser (lowbias32 of C. Wellons)."""
  word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
  word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
  return word ^ (word >> 16)


def shuffled(bits: Array, epoch: Array, position: Array, size: Array) -> Array:
  """The row that stands at ``position`` after the shuffle of ``epoch``.

  Args:
    bits: [ROUNDS] uint32 from ``shuffle_bits``.
    epoch: [] int32; every epoch has its own order.
    position: [B] int32 in [0, size).
    size: [] int32, n >= 1.

  Returns:
    [B] int32; over all positions of an epoch a permutation of [0, n).
  """
  n = size.astype(jnp.uint32)
  card = position.astype(jnp.uint32)
  salt = _mix(epoch.astype(jnp.uint32) + jnp.uint32(1))
  for r in range(ROUNDS):
    word = _mix(bits[r] ^ salt)
    pivot = word % n
    partner = jnp.where(pivot >= card, pivot - card, pivot + n - card)
    # The coin belongs to the unordered pair {card, partner}.
    coin = _mix(jnp.maximum(card, partner) ^ (word + jnp.uint32(r)))
    card = jnp.where(coin >> 31 == 1, partner, card)
  return card.astype(jnp.int32)


def minibatch(
    shard: Shard, bits: Array, step: Array, batch_size: int
) -> tuple[Array, Array, Array]:
  """Mini-batch ``step`` of the client's endless shuffled stream.

  Every epoch visits each example once; its last batch may be short.

  Returns:
    x [B, ...], y [B] int32, mask [B] bool.
  """
  per_epoch = jnp.maximum(batches_per_epoch(shard.size, batch_size), 1)
  position = step % per_epoch * batch_size + jnp.arange(
      batch_size, dtype=jnp.int32)
  mask = position < shard.size
  position = jnp.clip(position, 0, jnp.maximum(shard.size - 1, 0))
  rows = shard.offset + shuffled(
      bits, step // per_epoch, position, jnp.maximum(shard.size, 1))
  x = shard.x.at[rows].get(mode="promise_in_bounds")
  y = shard.y.at[rows].get(mode="promise_in_bounds")
  return x, y, mask


def stochastic_gradient(
    model: Model, shard: Shard, work: LocalWork, key: Key
) -> Callable[..., tuple[Array, ...]]:
  """The client's gradient oracle: ``gradient(step, *params)``.

  Returns:
    A function that gives, for each of the params it gets, the pair (mean
    loss, gradient) on the one mini-batch of ``step`` (on all the client's
    data with batch_size 0).
  """
  if not work.batch_size:
    del key
    return lambda step, *params: tuple(
        objective.full_value_and_grad(model, p, shard) for p in params)
  bits = shuffle_bits(key)

  def gradient(step: Array, *params: Params):
    batch = minibatch(shard, bits, step, work.batch_size)
    return tuple(
        objective.batch_value_and_grad(model, p, *batch) for p in params)

  return gradient
