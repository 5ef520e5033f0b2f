"""The shuffle, the mini-batches it makes and how many there are."""

import functools
import itertools

import chex
from hypothesis import example, given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from fedjax_alg import models
from fedjax_alg.algorithms.ditto import DittoHParams
from fedjax_alg.algorithms.fedavg import FedAvgHParams
from fedjax_alg.algorithms.fsvrg import FSVRGHParams, SVRGUpdate
from fedjax_alg.base import Shard
from fedjax_alg.client import minibatches, objective
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd
from fedjax_alg.engine.clients import ClientMap
from tests import problems

LARGEST = 2000


@jax.jit
def first_places(bits, epoch, size):
  """What stands at 0, 1, ... 1999; sensible below ``size``."""
  places = jnp.minimum(jnp.arange(LARGEST, dtype=jnp.int32), size - 1)
  return minibatches.shuffle(bits, epoch, places, size)


def bits_of(seed):
  return minibatches.shuffle_bits(jax.random.key(seed))


@given(st.integers(1, LARGEST), st.integers(0, 2**31 - 1), st.integers(0, 10**6))
@example(1, 0, 0)
@example(2, 1, 0)
@example(LARGEST, 2, 2**31 - 3)
def test_shuffled_is_a_permutation(size, seed, epoch):
  rows = np.asarray(first_places(bits_of(seed), jnp.int32(epoch), jnp.int32(size)))[
    :size
  ]
  np.testing.assert_array_equal(np.sort(rows), np.arange(size))


def test_keys_and_epochs_give_other_orders():
  orders = [
    np.asarray(first_places(bits_of(seed), jnp.int32(epoch), jnp.int32(500)))[:500]
    for seed in range(3)
    for epoch in range(3)
  ]
  for first, second in itertools.combinations(orders, 2):
    assert (first == second).mean() < 0.03


@functools.cache
def many_orders(size):
  """[4000, 2 epochs, size] orders of as many keys."""
  keys = jax.random.split(jax.random.key(7), 4000)
  epochs = jnp.arange(2, dtype=jnp.int32)
  places = jnp.arange(size, dtype=jnp.int32)

  def order(key, epoch):
    return minibatches.shuffle(
      minibatches.shuffle_bits(key), epoch, places, jnp.int32(size)
    )

  both = jax.vmap(jax.vmap(order, (None, 0)), (0, None))
  return np.asarray(jax.jit(both)(keys, epochs))


def assert_uniform(table):
  """The counts are those of equally likely cells; fails once in 10^4."""
  table = np.asarray(table).reshape(-1)
  assert stats.chisquare(table).pvalue > 1e-4, table


@pytest.mark.parametrize("size", [2, 7, 16])
def test_a_card_may_stand_anywhere(size):
  orders = many_orders(size)
  for place in (0, size - 1):
    for epoch in (0, 1):
      assert_uniform(np.bincount(orders[:, epoch, place], minlength=size))


@pytest.mark.parametrize("size", [7, 16])
def test_a_pair_of_cards_may_stand_anywhere(size):
  orders = many_orders(size)
  for i, j in ((0, 1), (2, size - 1)):
    table = np.zeros((size, size), int)
    np.add.at(table, (orders[:, 0, i], orders[:, 0, j]), 1)
    assert not np.diag(table).any()
    assert_uniform(table[~np.eye(size, dtype=bool)])


def test_epochs_are_independent():
  orders = many_orders(7)
  table = np.zeros((7, 7), int)
  np.add.at(table, (orders[:, 0, 3], orders[:, 1, 3]), 1)
  assert_uniform(table)


ROWS = jnp.arange(400, dtype=jnp.int32)


@functools.partial(jax.jit, static_argnums=4)
def batch(bits, step, offset, size, batch_size):
  """Rows (as labels) and mask of a batch; row r has the label r."""
  shard = Shard(ROWS[:, None].astype(jnp.float32), ROWS, offset, size)
  rows, mask = minibatches.batch_rows(shard, bits, step, batch_size)
  return *minibatches.take_rows(shard, rows), mask


@given(st.integers(1, 60), st.integers(0, 300), st.integers(0, 1000))
@example(7, 0, 0)
@example(14, 5, 1)
def test_an_epoch_visits_every_example_once(size, offset, seed):
  bits = bits_of(seed)
  steps = -(-size // 7)
  for epoch in range(2):
    seen = []
    for k in range(steps):
      x, y, mask = batch(
        bits, jnp.int32(epoch * steps + k), jnp.int32(offset), jnp.int32(size), 7
      )
      x, y, mask = map(np.asarray, (x, y, mask))
      np.testing.assert_array_equal(x[:, 0], y)
      assert np.all((y >= offset) & (y < offset + size))  # masked ones too
      seen += y[mask].tolist()
    assert sorted(seen) == list(range(offset, offset + size))


def test_an_empty_client_reads_nothing():
  _, _, mask = batch(bits_of(0), jnp.int32(3), jnp.int32(0), jnp.int32(0), 7)
  assert not np.asarray(mask).any()


@pytest.mark.parametrize(
  "work",
  [
    LocalWork(local_steps=0, local_epochs=1, batch_size=10),
    LocalWork(local_steps=0, local_epochs=3, batch_size=7),
    LocalWork(local_steps=0, local_epochs=2, batch_size=0),
    LocalWork(local_steps=5, batch_size=4),
    LocalWork(local_steps=20, batch_size=10),
    LocalWork(local_steps=3, batch_size=0),
  ],
)
def test_steps_and_examples_are_what_a_loop_counts(work):
  sizes = np.arange(0, 60, dtype=np.int32)
  steps, read = jax.device_get(
    jax.jit(lambda n: (jax.vmap(work.num_steps)(n), jax.vmap(work.examples_read)(n)))(
      sizes
    )
  )
  assert steps.dtype == read.dtype == jnp.int32
  for size in sizes.tolist():
    chunk = work.batch_size or max(size, 1)
    epoch = [min(chunk, size - start) for start in range(0, size, chunk)]
    number = (work.local_steps or work.local_epochs * len(epoch)) if size else 0
    assert steps[size] == number, size
    assert read[size] == sum(epoch[k % len(epoch)] for k in range(number)), size


@pytest.mark.parametrize(
  "work, full_steps, per_epoch",
  [
    (LocalWork(local_epochs=5, batch_size=7), 15, 3),
    (LocalWork(local_epochs=1, batch_size=7), 3, 1),
    (LocalWork(local_steps=8, batch_size=7), 8, 1),
  ],
)
def test_a_part_is_whole_epochs_or_steps(work, full_steps, per_epoch):
  """A client of 20 examples; ceil, so every straggler does something."""
  parts = np.float32([1e-9, 0.2, 0.2001, 0.5, 0.99, 1.0])
  num_steps, examples_read = jax.jit(work.num_steps), jax.jit(work.examples_read)
  actual = jax.jit(jax.vmap(work.num_steps, (None, 0)))(jnp.int32(20), parts)
  np.testing.assert_array_equal(
    actual, np.ceil(parts * np.float32(full_steps // per_epoch)) * per_epoch
  )
  actual = np.asarray(actual)
  assert actual[0] == per_epoch and actual[-1] == int(num_steps(jnp.int32(20)))
  assert int(num_steps(jnp.int32(0), jnp.float32(1))) == 0
  read = examples_read(jnp.int32(20), jnp.float32(1))
  assert int(read) == int(examples_read(jnp.int32(20)))


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_shuffle_has_all_its_words():
  with pytest.raises(AssertionError, match="assert_shape"):
    minibatches.shuffle(bits_of(0)[:1], jnp.int32(0), jnp.arange(3), jnp.int32(3))


@pytest.mark.program
def test_parts_of_a_batch_make_its_step():
  """Three steps of optax.MultiSteps where all rows count; masked rows count nowhere."""
  model = models.Softmax().build((3,), 4, l2=0.1)
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32),
    model.init(jax.random.key(0)),
  )
  x = jnp.asarray(rng.normal(size=(12, 3)), jnp.float32)
  y = jnp.arange(12, dtype=jnp.int32) % 4
  of_parts = minibatches.in_microbatches(minibatches.EXACT, 4).batch
  for number in (12, 9, 3, 0):
    mask = jnp.arange(12) < number
    whole = objective.batch_value_and_grad(model, params, x, y, mask)
    # 10 of the rows, too: the last of three parts is filled up.
    for rows in (12, 10) if number < 10 else (12,):
      parts = of_parts(model, params, x[:rows], y[:rows], mask[:rows], None)
      chex.assert_trees_all_close(parts, whole, rtol=1e-5, atol=1e-6)
  multi = optax.MultiSteps(optax.sgd(0.3), 3)
  state, moved = multi.init(params), params
  for part in range(3):
    rows = slice(4 * part, 4 * part + 4)
    grad = objective.batch_value_and_grad(
      model, params, x[rows], y[rows], jnp.ones(4, bool)
    )[1]
    with jax.numpy_dtype_promotion("standard"):
      updates, state = multi.update(grad, state, moved)
    moved = optax.apply_updates(moved, updates)
  _, grad = of_parts(model, params, x, y, jnp.ones(12, bool), None)
  expected = jax.tree.map(lambda p, g: p - 0.3 * g, params, grad)
  chex.assert_trees_all_close(moved, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.program
def test_local_steps_are_those_of_parts():
  """The option reaches the steps of a client, whose last mini-batch is short."""
  problem = problems.of_sizes((8,))
  shard = Shard(problem.data.x, problem.data.y, jnp.int32(0), jnp.int32(8))
  start = problems.some_params(problem.model)

  def train(rows):
    work = LocalWork(batch_size=5, microbatch_size=rows)
    key = jax.random.key(1)
    return jax.jit(lambda w: sgd(problem.model, w, shard, work, 0.1, key))(start)

  whole, parts = train(0), train(3)
  chex.assert_trees_all_close(parts, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.program
def test_a_client_may_be_a_program_of_its_own():
  """Under ``jit``, ``Shard.steps_per_draw`` is an array and no int."""
  problem = problems.of_sizes((8,))
  start, work = problems.some_params(problem.model), LocalWork(batch_size=5)
  key = jax.random.key(1)

  def train(shard):
    return sgd(problem.model, start, shard, work, 0.1, key)

  offset, size = jnp.zeros(1, jnp.int32), jnp.full(1, 8, jnp.int32)
  shards = Shard(problem.data.x, problem.data.y, offset, size)
  for mode in ("sequential", "lanes"):
    run = ClientMap(mode)
    results = [
      jax.jit(lambda of=of, run=run: run(lambda _, shard: of(shard), (), shards))()
      for of in (train, jax.jit(train), jax.checkpoint(train))
    ]
    for result in results[1:]:
      chex.assert_trees_all_equal(result, results[0])


def test_steps_of_another_number_have_the_same_parts():
  """The memory limit was lost where a method takes steps of its own."""
  settings = dict(batch_size=8, microbatch_size=4)
  parts = LocalWork(local_steps=3, **settings)
  assert FedAvgHParams(local_epochs=5, **settings).with_steps(3) == parts
  assert DittoHParams(personal_steps=3, **settings).personal_work == parts
  model = problems.softmax_problem().model
  half = SVRGUpdate().build(model, FSVRGHParams(local_steps=3, **settings), None)
  assert half.work.microbatch_size == 4
