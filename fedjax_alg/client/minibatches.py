"""Local work of a client: the number of its steps, and the rows each step reads.

The shuffle is the swap-or-not network of Hoang, Morris and Rogaway ("An
enciphering scheme based on a card shuffle", CRYPTO 2012): a keyed bijection of
[0, n) that is evaluated row by row. It needs no array of the client's size, so
a client of 10 rows costs as little next to a client of 3,000 rows as alone,
under ``lax.map`` and under ``vmap``.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, UInt

from fedjax_alg import trees
from fedjax_alg.base import Array, Key, Model, Params, Shard
from fedjax_alg.client import objective
from fedjax_alg.data import store
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.models.roles import NOTHING_MOVED, ClientLeaves
from fedjax_alg.typing import PyTree

# After so many rounds a card is at a uniformly random place but for a
# probability of 2^-rounds, and a pair of cards but for (3/4)^rounds = 0.1 %.
SHUFFLE_ROUNDS = 24

#: For how many steps the rows are drawn at once (``Shard.steps_per_draw``).
CHUNK_STEPS = 64

#: The same of a client that is computed alone: one of few steps draws no rows that
#: it does not read.
FEW_STEPS = 8

#: The name of a local step in a compiled program and in profiles of it.
STEP = "local_step"

#: (*params) -> the pair (mean loss, gradient) on one mini-batch, for each of
#: ``params``
Gradient = Callable[..., tuple[tuple[Array, Params], ...]]


class Differentiate(NamedTuple):
  """Functions that compute the pair (mean loss, gradient) on a client's rows.

  ``params`` is passed through unchanged from the step's call of ``gradient``,
  so it may hold more than parameters: ``client.zeroth_order`` passes
  (params, key). The last argument is the key of the dropout, which is None for
  a model without dropout.
  """

  #: (model, params, x [B, ...], y [B], mask [B], key)
  batch: Callable[..., tuple[Array, Params]] = objective.batch_value_and_grad
  #: (model, params, shard, key), for all the client's data
  full: Callable[..., tuple[Array, Params]] = objective.full_value_and_grad


EXACT = Differentiate()


def in_microbatches(differentiate: Differentiate, rows: int) -> Differentiate:
  """The same loss and gradient of a mini-batch, accumulated over parts of it.

  The means of the parts are weighted by the rows that count, so that a step is that
  of the whole mini-batch but for the rounding of sums, as with ``optax.MultiSteps``
  where all parts are full. Every part has a dropout of its own.

  Args:
    differentiate: how the loss and the gradient are computed.
    rows: the most rows of a part, at least 1.
  """

  def batch(model, params, x, y, mask, key):
    count = -(-mask.shape[0] // rows)
    if count == 1:
      return differentiate.batch(model, params, x, y, mask, key)
    lacks = count * rows - mask.shape[0]

    def split(leaf):
      leaf = jnp.pad(leaf, ((0, lacks), *[(0, 0)] * (leaf.ndim - 1)))
      return leaf.reshape(count, rows, *leaf.shape[1:])

    parts = jax.tree.map(split, (x, y, mask))
    number = parts[2].sum(1).astype(jnp.float32)
    weights = jnp.where(
      number.sum() > 0, number / jnp.maximum(number.sum(), 1.0), 1.0 / count
    )

    def value(part, x, y, mask):
      now = None if key is None else jax.random.fold_in(key, part)
      return differentiate.batch(model, params, x, y, mask, now)

    def add(total, slot):
      weight, *part = slot
      return trees.add_scaled(total, weight, value(*part)), None

    slots = jnp.arange(count, dtype=jnp.int32), *parts
    shapes = jax.eval_shape(value, *trees.index(slots, 0))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, zero, (weights, *slots))[0]

  return differentiate._replace(batch=batch)


class LocalWork(HParams):
  """Amount of a participant's training in one round, in mini-batch steps."""

  GROUP: ClassVar[str] = "local"

  local_steps: int = hyper(
    0, "mini-batch steps per round (K_local); 0: count by `local_epochs`", minimum=0
  )
  local_epochs: int = hyper(
    1,
    "passes over the client's data per round, the short last batch "
    "included; read only where `local_steps`=0",
    minimum=1,
    traced=True,
  )
  batch_size: int = hyper(
    10, "B, examples per step; 0: all the client's examples", minimum=0
  )
  microbatch_size: int = hyper(
    0,
    "the largest number of examples for one gradient computation: gradients are "
    "added up over the parts of a step's B examples, which needs less memory and "
    "gives the same step up to rounding; 0: all B",
    minimum=0,
  )

  def __post_init__(self) -> None:
    if self.microbatch_size and not self.batch_size:
      raise OptionError(
        f"`microbatch_size`={self.microbatch_size}: not with `batch_size`=0, a step "
        "over all examples (allowed: 0)"
      )

  def with_steps(self, steps: int) -> "LocalWork":
    """The same mini-batches, ``steps`` of them in a round."""
    return LocalWork(
      local_steps=steps,
      batch_size=self.batch_size,
      microbatch_size=self.microbatch_size,
    )

  def num_steps(
    self, size: Int[Array, ""], part: Float[Array, ""] | None = None
  ) -> Int[Array, ""]:
    """Counts the steps of a client with ``size`` examples, [] int32.

    Args:
      size: [] int32, number of the client's examples.
      part: [] float32, the part of its work that it does (``Shard.part``): of
        several epochs so many whole ones (as in FedProx), else of its steps;
        rounded up, so at least one. None: all.
    """
    if self.local_steps:
      steps: Any = jnp.int32(self.local_steps)
      if part is not None:
        steps = _part_of(steps, part)
    else:
      epochs, per_epoch = self.local_epochs, batches_per_epoch(size, self.batch_size)
      if part is None:
        steps = epochs * per_epoch
      else:
        steps = jnp.where(
          jnp.asarray(epochs) > 1,
          _part_of(epochs, part) * per_epoch,
          _part_of(per_epoch, part),
        )
    return jnp.where(size > 0, steps, 0)

  def examples_read(
    self, size: Int[Array, ""], part: Float[Array, ""] | None = None
  ) -> Int[Array, ""]:
    """Counts the examples that the steps read, with repetitions, [] int32."""
    if not self.batch_size:
      return self.num_steps(size, part) * size
    per_epoch = batches_per_epoch(size, self.batch_size)
    steps = self.num_steps(size, part)
    epochs = jax.lax.div(steps, jnp.maximum(per_epoch, 1))
    return epochs * size + (steps - epochs * per_epoch) * self.batch_size

  def examples_by_batch(
    self, size: Int[Array, ""], batches_per_step: int
  ) -> Int[Array, " {batches_per_step}"]:
    """Counts the examples in the first, second, ... mini-batches of steps.

    The numbers are sums over all steps of the round.

    Args:
      size: [] int32, number of the client's examples.
      batches_per_step: number of mini-batches that one step takes.

    Returns:
      [batches_per_step] int32.
    """
    places = jnp.arange(batches_per_step, dtype=jnp.int32)
    if not self.batch_size:
      return jnp.zeros_like(places) + self.num_steps(size) * size
    per_epoch = jnp.maximum(batches_per_epoch(size, self.batch_size), 1)

    def add(k, total):
      batch = (k * batches_per_step + places) % per_epoch
      return total + jnp.clip(size - batch * self.batch_size, 0, self.batch_size)

    result: Array = jax.lax.fori_loop(
      jnp.int32(0), self.num_steps(size), add, jnp.zeros_like(places)
    )
    return result


def _part_of(number: Int[Array, ""] | int, part: Float[Array, ""]) -> Int[Array, ""]:
  """ceil(part * number), [] int32."""
  return jnp.ceil(part * jnp.asarray(number, jnp.float32)).astype(jnp.int32)


def batches_per_epoch(
  size: Int[Array, "*clients"], batch_size: int
) -> Int[Array, "*clients"]:
  """ceil(size / batch_size), [] or [S] int32; it is 1 if batch_size is 0."""
  if not batch_size:
    return jnp.ones_like(size)
  return jax.lax.div(size + (batch_size - 1), jnp.int32(batch_size))


def shuffle_bits(key: Key) -> UInt[Array, " rounds"]:
  """The random words that ``shuffle`` takes, [SHUFFLE_ROUNDS] uint32."""
  return jax.random.bits(key, (SHUFFLE_ROUNDS,), jnp.uint32)


def _mix(word: Array) -> Array:
  """A 32-bit finalizer (lowbias32 of C. Wellons)."""
  word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
  word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
  return word ^ (word >> 16)


def shuffle(
  bits: UInt[Array, " rounds"],
  epoch: Int[Array, ""],
  position: Int[Array, " B"],
  size: Int[Array, ""],
) -> Int[Array, " B"]:
  """Returns the row at ``position`` in the shuffled order of ``epoch``.

  Args:
    bits: [SHUFFLE_ROUNDS] uint32 from ``shuffle_bits``.
    epoch: [] int32; every epoch has its own order.
    position: [B] int32 in [0, size).
    size: [] int32, n >= 1.

  Returns:
    [B] int32; over all positions of an epoch a permutation of [0, n).
  """
  chex.assert_shape((bits, epoch, size), ((SHUFFLE_ROUNDS,), (), ()))
  n = size.astype(jnp.uint32)
  words = _mix(bits ^ _mix(epoch.astype(jnp.uint32) + jnp.uint32(1)))
  pivots = jax.lax.rem(words, n)
  coins = words + jnp.arange(SHUFFLE_ROUNDS, dtype=jnp.uint32)

  def swap_or_not(r: Array, card: Array) -> Array:
    pivot = pivots[r]
    partner = jnp.where(pivot >= card, pivot - card, pivot + n - card)
    # The coin belongs to the unordered pair {card, partner}.
    coin = _mix(jnp.maximum(card, partner) ^ coins[r])
    return jnp.where(coin >> 31 == 1, partner, card)

  # A loop: SHUFFLE_ROUNDS copies of the code would take a second to compile.
  card: Array = jax.lax.fori_loop(
    0, SHUFFLE_ROUNDS, swap_or_not, position.astype(jnp.uint32)
  )
  return card.astype(jnp.int32)


def random_order_at(
  key: Key, positions: Int[Array, " B"], size: Int[Array, ""]
) -> Int[Array, " B"]:
  """Returns the numbers at some positions of a random order of [0, size).

  Args:
    key: of the order; consumed.
    positions: [B] int32 in [0, size), the same for every key, or not.
    size: [] int32, at least 1.

  Returns:
    [B] int32, different for different positions.
  """
  bits, rows = shuffle_bits(key), positions
  # The same places are drawn from with every key. A second pass makes their
  # pairs uniform to (3/4)^48.
  for epoch in range(2):
    rows = shuffle(bits, jnp.int32(epoch), rows, size)
  return rows


def batch_rows(
  shard: Shard, bits: UInt[Array, " rounds"], step: Int[Array, ""], batch_size: int
) -> tuple[Int[Array, " {batch_size}"], Bool[Array, " {batch_size}"]]:
  """Rows of mini-batch ``step`` of the client's endless shuffled stream.

  Every epoch visits each example once; its last batch may be short.

  Returns:
    Rows of x and y [B] int32, mask [B] bool.
  """
  per_epoch = jnp.maximum(batches_per_epoch(shard.size, batch_size), 1)
  position = jax.lax.rem(step, per_epoch) * batch_size
  position += jnp.arange(batch_size, dtype=jnp.int32)
  mask = position < shard.size
  position = jnp.clip(position, 0, jnp.maximum(shard.size - 1, 0))
  rows = shard.offset + shuffle(
    bits, jax.lax.div(step, per_epoch), position, jnp.maximum(shard.size, 1)
  )
  return rows, mask


def take_rows(shard: Shard, rows: Int[Array, " B"]) -> tuple[Any, Any]:
  """x [B, ...] and y [B, ...] of the rows, which must exist."""
  result: tuple[Any, Any] = store.gather_rows(
    (shard.x, shard.y), lambda array: array.at[rows].get(mode="promise_in_bounds")
  )
  return result


#: For a model whose parameters are the pair (parameters, statistics).
MOVES = Differentiate(objective.batch_value_and_moves, objective.full_value_and_moves)


def _fold_moving_steps(
  model: Model,
  shard: Shard,
  work: LocalWork,
  key: Key,
  fn: Callable[..., PyTree],
  carry: object,
  batches_per_step: int,
  differentiate: Differentiate,
) -> tuple[Any, ClientLeaves]:
  """``fold_steps`` in which personal parameters or statistics move, too.

  Their step is taken after that of ``fn``, with the gradient and the statistics
  at the first parameters for which ``fn`` asks, or the mean of these where a
  step has several mini-batches.
  """
  has_state, rate = shard.state is not None, shard.rate

  def step(*args):
    *gradients, (carry, (personal, state)) = args
    moves: dict[int, tuple[Params, Any]] = {}

    def of_shared(place, gradient):
      def shared_gradient(*params):
        results = gradient(
          *(((p, personal), state) if has_state else (p, personal) for p in params)
        )
        if not has_state:
          results = [(loss, (grad, None)) for loss, grad in results]
        _, ((_, slope), new) = results[0]
        moves.setdefault(place, (slope, new))
        return tuple((loss, grad) for loss, ((grad, _), _) in results)

      return shared_gradient

    carry = fn(*(of_shared(*pair) for pair in enumerate(gradients)), carry)
    old = state
    for slope, new in moves.values():
      share = 1.0 / len(moves)
      personal = jax.tree.map(
        lambda leaf, slope: leaf - rate * slope, personal, trees.scale(share, slope)
      )
      state = (
        new
        if len(moves) == 1
        else trees.add_scaled(state, share, trees.subtract(new, old))
      )
    return carry, ClientLeaves(personal, state)

  together = model.roles.together(
    model, shard.personal if rate is None else None, has_state
  )
  leaves = ClientLeaves(shard.personal if rate is not None else None, shard.state)
  (carry, leaves), _ = fold_steps(
    together,
    shard._replace(personal=None, rate=None, state=None),
    work,
    key,
    step,
    (carry, leaves),
    batches_per_step,
    MOVES if has_state else differentiate,
  )
  return carry, ClientLeaves(*(() if part is None else part for part in leaves))


def fold_steps(
  model: Model,
  shard: Shard,
  work: LocalWork,
  key: Key,
  fn: Callable[..., PyTree],
  carry: PyTree,
  batches_per_step: int = 1,
  differentiate: Differentiate = EXACT,
) -> tuple[Any, ClientLeaves]:
  """Folds ``fn(gradient, ..., carry)`` over the client's local steps.

  With the steps move the client's personal parameters, if the shard has a
  ``rate``, and running statistics, if it has some (``client.personal``).

  Args:
    model: the model.
    shard: the client's training data.
    work: number of steps and batch size.
    key: consumed.
    fn: one step, which returns the new carry. Its arguments are one function
      ``gradient`` for each mini-batch of the step, and the carry.
      ``gradient(*params)`` returns the pair (mean loss, gradient) on that
      mini-batch for each of ``params``; with batch_size 0 the mini-batch is
      all the client's data. All calls of one ``gradient`` have the same
      dropout.
    carry: the first carry, whose structure every step keeps.
    batches_per_step: number of mini-batches that one step takes.
    differentiate: how the loss and the gradient are computed.

  Returns:
    The carry after the last step, and the leaves that have moved with it, each
    () if there are none (``Trained.leaves``).
  """
  if model.roles is not None and (shard.rate is not None or shard.state is not None):
    return _fold_moving_steps(
      model, shard, work, key, fn, carry, batches_per_step, differentiate
    )
  if work.microbatch_size:
    differentiate = in_microbatches(differentiate, work.microbatch_size)
  if model.roles is not None or model.l2_of_sum:
    model = objective.of_client(model, shard)
  steps = work.num_steps(shard.size, shard.part)

  def dropout(number: Array) -> Key | None:
    """The key of the dropout of a mini-batch, by its number."""
    return objective.dropout_key(model, key, number)

  draws = model.train_apply is not None
  if not work.batch_size:

    def full_gradient(number: Array) -> Gradient:
      on_all = (shard, dropout(number) if draws else None)
      return lambda *params: tuple(
        differentiate.full(model, p, *on_all) for p in params
      )

    @jax.named_scope(STEP)
    def full_step(k: Array, carry: object) -> Any:
      numbers = (k * batches_per_step + j for j in range(batches_per_step))
      return fn(*map(full_gradient, numbers), carry)

    return jax.lax.fori_loop(jnp.int32(0), steps, full_step, carry), NOTHING_MOVED

  bits = shuffle_bits(key)
  # The rows of many steps are drawn at once: the shuffle then costs next to
  # nothing compared with the steps.
  chunk = shard.steps_per_draw
  if not isinstance(chunk, int):  # an array, once ``jax.jit`` has had the shard
    chunk = CHUNK_STEPS
  chunk = min(work.local_steps or chunk, chunk)

  def run_chunk(c: Array, carry: PyTree) -> PyTree:
    first = c * chunk
    rows, mask = jax.vmap(
      lambda batch: batch_rows(shard, bits, batch, work.batch_size)
    )(first * batches_per_step + jnp.arange(chunk * batches_per_step, dtype=jnp.int32))

    def batch_gradient(b: Array) -> Gradient:
      on_batch = (
        *take_rows(shard, rows[b]),
        mask[b],
        dropout(first * batches_per_step + b) if draws else None,
      )
      return lambda *params: tuple(
        differentiate.batch(model, p, *on_batch) for p in params
      )

    @jax.named_scope(STEP)
    def run_step(k: Array, carry: object) -> Any:
      numbers = (k * batches_per_step + j for j in range(batches_per_step))
      return fn(*map(batch_gradient, numbers), carry)

    return jax.lax.fori_loop(
      jnp.int32(0), jnp.minimum(steps - first, chunk), run_step, carry
    )

  chunks = jax.lax.div(steps + (chunk - 1), jnp.int32(chunk))
  return jax.lax.fori_loop(jnp.int32(0), chunks, run_chunk, carry), NOTHING_MOVED
