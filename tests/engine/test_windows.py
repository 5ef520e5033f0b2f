"""Maps of clients in windows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.base import Shard
from fedjax_alg.client import objective
from fedjax_alg.data.host_rows import HostRows
from fedjax_alg.engine import windows
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.engine.windows import Pending, Ranges, Window, WindowMap

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


def test_a_function_of_several_maps_is_the_same_in_windows():
  y = np.zeros(2000, np.int32)
  expected = sums(ClientMap(), (jnp.asarray(_X), jnp.asarray(y)), jnp.float32(2))
  host, results = (HostRows(_X), HostRows(y)), []
  while True:
    try:
      windowed = sums(WindowMap(ClientMap(), results, None), host, jnp.float32(2))
      break
    except Pending as pending:
      where = jax.tree.map(np.asarray, pending.result)
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
