"""Maps of clients in windows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.base import Shard
from fedjax_alg.client import objective
from fedjax_alg.data.host_rows import HostRows
from fedjax_alg.engine import sharding, windows
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.engine.windows import Pending, Ranges, Window, WindowMap
from fedjax_alg.errors import RowsOnHostError

_X = np.arange(2000, dtype=np.float32)


def places(*size, test=None):
  size = np.array(size, np.int32)
  test = np.zeros_like(size) if test is None else np.array(test, np.int32)
  return Ranges(np.cumsum(size) - size, size, np.cumsum(test) - test, test)


@pytest.mark.parametrize(
  ("size", "test", "most", "expected"),
  [
    ((2, 2, 2, 2), (0, 0, 0, 0), (4, 9), [(0, 2), (2, 4)]),
    ((2, 9, 2, 2), (0, 0, 0, 0), (4, 9), [(0, 1), (1, 2), (2, 4)]),
    ((1, 1, 1, 1), (3, 3, 3, 3), (9, 6), [(0, 2), (2, 4)]),
    ((0, 0, 0), (0, 0, 0), (1, 1), [(0, 3)]),
  ],
)
def test_windows_have_few_rows_and_together_all_slots(size, test, most, expected):
  assert windows.make_windows(places(*size, test=test), most) == expected


def test_slots_that_read_the_same_rows_count_them_once():
  offset, size = np.zeros(5, np.int32), np.full(5, 8, np.int32)
  none = np.zeros_like(size)
  assert windows.make_windows(Ranges(none, none, offset, size), (8, 8)) == [(0, 5)]


def sums(mapping, data, scale):
  """Two maps, of which the second needs what the first gives."""
  x, y = data

  def total(scale, shard):
    block = lambda x, y, mask: {"sum": scale * jnp.where(mask, x, 0.0).sum()}
    return objective.sum_blocks(shard, block)["sum"]

  size = jnp.array([3, 0, 4], jnp.int32)
  shards = Shard(x, y, jnp.array([0, 3, 3], jnp.int32), size)
  first = mapping(total, scale, shards)
  return mapping(
    lambda scale, shard, add: total(scale, shard) + add, scale, shards, first
  )


@pytest.mark.program
def test_a_function_of_several_maps_is_the_same_in_windows():
  y = np.zeros(2000, np.int32)
  expected = sums(ClientMap(), (jnp.asarray(_X), jnp.asarray(y)), jnp.float32(2))
  host, results = (HostRows(_X), HostRows(y)), []
  while True:
    try:
      windowed = sums(WindowMap(ClientMap(), results, None), host, jnp.float32(2))
      break
    except Pending as pending:
      where = jax.tree.map(np.asarray, pending.result.places)
    parts = []
    for slot in range(3):  # a window of two slots, of which one is empty
      rows = np.zeros(600, np.float32)
      size = np.array([where.size[slot], 0], np.int32)
      host[0].read_into(rows, where.offset[slot : slot + 1], size[:1])
      zeros = jnp.zeros(2, jnp.int32)
      window = Window(
        jnp.array([slot, 0]),
        Ranges(zeros, jnp.asarray(size), zeros, zeros),
        [jnp.asarray(rows), jnp.asarray(y[:600])],
        [],
      )
      with pytest.raises(Pending) as pending:
        sums(WindowMap(ClientMap(), results, window), host, jnp.float32(2))
      parts.append(pending.value.result[:1])
    results.append(jnp.concatenate(parts))
  assert len(results) == 2
  np.testing.assert_array_equal(windowed, expected)
  np.testing.assert_array_equal(expected, [12, 0, 72])


@pytest.mark.parametrize(("devices", "processes"), [(1, 1), (2, 1), (4, 2)])
def test_sums_go_from_window_to_window(devices, processes):
  """Sums of windows that are added up would be rounded in another order."""
  mesh = sharding.clients_mesh(jax.devices()[:devices])
  if processes > 1:
    mesh = sharding.process_mesh(jax.devices()[:devices], processes)
  inner, size = ClientMap(mesh=mesh), np.array([5, 1, 7, 0, 3, 2, 9], np.int32)
  offset = np.cumsum(size, dtype=np.int32) - size
  x = np.random.default_rng(0).normal(size=2000).astype(np.float32)
  y = np.zeros(2000, np.int32)

  def zero():
    with jax.enable_x64(True):
      return jnp.zeros((), jnp.float64)

  def add(total, scale, shard):
    block = lambda x, y, mask: {"sum": scale * jnp.where(mask, x, 0.0).sum()}
    of_client = objective.sum_blocks(shard, block)["sum"]
    with jax.enable_x64(True):
      return total + of_client.astype(jnp.float64) / 3

  @jax.jit
  def run(results, window, so_far):
    mapping, rows = inner, (jnp.asarray(x), jnp.asarray(y))
    if results is not None:
      mapping = WindowMap(inner, results, window, so_far)
      rows = HostRows(x), HostRows(y)
    places = jnp.asarray(offset), jnp.asarray(size)
    try:
      return mapping.total(add, zero, jnp.float32(7), Shard(*rows, *places))
    except Pending as pending:
      return pending.result

  sums = run([], None, ()).total
  for column in inner.order_of_total(size).T:  # a window of one slot of each device
    slots = np.minimum(column, 6)
    zeros = np.zeros(devices, np.int32)
    places = Ranges(offset[slots], np.where(column < 7, size[slots], 0), zeros, zeros)
    sums = run([], Window(slots, places, [x, y], []), sums)
  windowed = run([sums], None, ())
  assert windowed.dtype == np.float64
  np.testing.assert_array_equal(windowed, run(None, None, ()))


def test_a_map_in_a_loop_is_refused():
  rows = HostRows(_X), HostRows(np.zeros(2000, np.int32))
  zeros = jnp.zeros(2, jnp.int32)
  mapping = WindowMap(ClientMap(), [], None)

  def step(number, sums):
    return sums + mapping(lambda _, shard: shard.size, (), Shard(*rows, zeros, zeros))

  with pytest.raises(RowsOnHostError):
    jax.lax.fori_loop(0, 2, step, zeros)


def test_rows_that_no_client_reads_are_not_asked_for():
  rows = HostRows(_X), HostRows(np.zeros(2000, np.int32))
  zeros = jnp.zeros(2, jnp.int32)
  shards = tests = Shard(*rows, zeros, zeros)

  def reads(fn):
    mapping = WindowMap(ClientMap(), [], None)
    with pytest.raises(Pending):
      mapping.with_tests(fn, (), shards, tests)
    return len(mapping.reads[0].shards), len(mapping.reads[0].tests)

  def mean(shard):
    block = lambda x, y, mask: {"sum": jnp.where(mask, x, 0.0).sum()}
    return objective.sum_blocks(shard, block)["sum"] / shard.size.astype(jnp.float32)

  assert reads(lambda _, shard, test: mean(test) + shard.size.astype(jnp.float32)) == (
    0,
    2,
  )
  assert reads(lambda _, shard, test: mean(test) - mean(shard)) == (2, 2)
