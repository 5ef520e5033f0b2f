"""Clients that take the lanes one after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.base import Shard
from fedjax_alg.client import minibatches, objective, sgd
from fedjax_alg.engine import clients
from fedjax_alg.engine.keys import client_keys
from tests import problems
from tests.algorithms import bridge

pytestmark = pytest.mark.program

#: 13 is a padding slot; its neighbours hold 90 and 3 examples.
IDS = np.array([3, 1, 13, 0, 9, 5, 8], np.int32)
WORK = minibatches.LocalWork(local_epochs=3, batch_size=4)


@pytest.fixture(scope="module", name="inputs")
def fixture_inputs(problem):
  """(two rows of models, shards, keys of each row): the second diverges."""
  cohort = bridge.cohort_of(problem, np.minimum(IDS, 12))
  start = problems.some_params(problem.model)
  starts = jax.tree.map(
    lambda leaf: np.stack([leaf, np.float32(np.inf) * np.asarray(leaf)]), start
  )
  keys = jax.jit(
    lambda ids: jnp.stack([client_keys(jax.random.key(seed), ids) for seed in (0, 1)])
  )(cohort.ids)
  return starts, cohort.shards, keys


def train(model):
  """Code with two loops, one after the other, and one inside another."""

  def one_client(start, shard, key):
    loss = objective.full_loss(model, start, shard)
    params, last = sgd.sgd(model, start, shard, WORK, 0.1 / (1 + loss), key)
    none = jnp.where(shard.size > 0, 0.0, jnp.nan)
    return jax.tree.map(lambda leaf: leaf + none, params), (loss, last, shard.size)

  return one_client


def simulate(problem, inputs, weights, **options):
  """What every client of the first row makes, and two sums of both rows."""
  map_clients = clients.ClientMap(**options)
  code = train(problem.model)

  @problems.quick_jit
  def play(starts, shards, keys, weights):
    first_row = map_clients(
      code, jax.tree.map(lambda leaf: leaf[0], starts), shards, keys[0]
    )
    rows = jax.vmap(
      lambda start, keys: map_clients.reduce(code, weights, start, shards, keys)
    )(starts, keys)
    return first_row, rows

  with problems.quick_compilation():
    return jax.device_get(play(*inputs, weights))


def test_lanes_give_what_clients_give_alone(problem, inputs):
  """In the order of the slots, and by row: NaN of one row stays there."""
  # [S, 2]; the padding slot, which sends NaN, counts in no sum.
  weights = np.float32([[1, 0], [0, 2], [0, 0], [3, 1], [0, 0], [0.5, 0], [0, 4]])
  expected = simulate(problem, inputs, weights, mode="sequential")
  per_client, (sums, reports) = simulate(
    problem, inputs, weights, mode="lanes", lanes=3
  )
  problems.assert_close(per_client, expected[0])
  first, second = (
    jax.tree.map(lambda leaf, row=row: leaf[row], (sums, reports)) for row in (0, 1)
  )
  expected_first, _ = (
    jax.tree.map(lambda leaf, row=row: leaf[row], expected[1]) for row in (0, 1)
  )
  problems.assert_close(first, expected_first)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(first[0]))
  assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(second[0]))


def count_steps(sizes, **options):
  """How many lanes step in each turn of a loop over each client's rows."""
  turns = []

  def note(values):
    turns.append(values.size)
    return np.zeros_like(values)

  def one_client(_, shard):
    return jax.lax.fori_loop(
      0,
      shard.size,
      lambda k, total: (
        total
        + 1
        + jax.pure_callback(
          note, jax.ShapeDtypeStruct((), np.int32), total, vmap_method="broadcast_all"
        )
      ),
      jnp.int32(0),
    )

  def one_row(size):
    shards = Shard(
      jnp.zeros((9, 1)), jnp.zeros(9, jnp.int32), jnp.zeros_like(size), size
    )
    return clients.ClientMap(**options)(one_client, (), shards)

  sizes = np.array(sizes, np.int32)
  out = jax.jit(one_row if sizes.ndim == 1 else jax.vmap(one_row))(sizes)
  np.testing.assert_array_equal(out, sizes)
  return turns


def test_a_lane_takes_the_next_client():
  """By hand: 7 beside 3, 2 and 2, the largest first; then rows together."""
  sizes = [2, 7, 0, 3, 2]
  assert count_steps(sizes, mode="vmap") == [5] * 7
  assert count_steps(sizes, mode="lanes", lanes=2) == [2] * 7
  assert count_steps(sizes, mode="lanes", lanes=9) == [5] * 7
  assert count_steps(sizes, mode="lanes", lanes=1) == [1] * 14
  # Each row by itself would take 7 and 6 turns, one after the other.
  rows = [[7, 1, 1], [3, 3, 6]]
  assert count_steps(rows, mode="lanes", lanes=1) == [2] * 11
  assert count_steps(rows, mode="vmap") == [6] * 7


@pytest.mark.parametrize("mode", ["lanes", "sequential"])
def test_float64_inside_a_client_stays(inputs, mode):
  """A client may compute in float64 where its arguments are float32."""
  _, shards, _ = inputs

  @jax.jit
  def third(size):  # rounding in float32 would give another number
    sizes = jnp.full((2, 2), size.astype(jnp.float64))
    return (sizes @ jnp.array([1e7 / 3, 0.0])).astype(jnp.int32)

  def one_client(_, shard):
    with jax.enable_x64(True):
      start = third(shard.size)
    return start, jax.lax.while_loop(
      lambda i: i < shard.size, lambda i: i + jnp.int32(1), jnp.int32(0)
    )

  map_clients = clients.ClientMap(mode=mode)
  thirds, counts = jax.jit(lambda: map_clients(one_client, (), shards))()
  size = np.asarray(shards.size)
  np.testing.assert_array_equal(counts, size)
  np.testing.assert_array_equal(thirds[:, 1], (size * (1e7 / 3)).astype(np.int32))
