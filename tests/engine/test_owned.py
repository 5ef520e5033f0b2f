"""The client map of several processes, on a mesh of this one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.data import layout
from fedjax_alg.engine import clients, owned, sharding
from tests import problems

MODES = [("sequential", 0), ("vmap", 0), ("chunks", 3)]


@pytest.fixture(scope="module", name="two")
def fixture_two():
  """Two processes of two devices."""
  return sharding.process_mesh(jax.devices("cpu")[:4], 2)


@pytest.fixture(scope="module", name="data")
def fixture_data(problem, two):
  return problems.in_blocks(problem.data, two)


def test_a_slot_is_of_its_owner_and_work_is_even():
  size = jnp.array([9, 1, 0, 4, 5, 8, 3], jnp.int32)
  owner = jnp.array([0, 0, 0, 0, 1, 1, 1], jnp.int32)
  device = np.asarray(owned.assign(size, owner, 2, 2))
  np.testing.assert_array_equal(device // 2, owner)
  load = np.bincount(device, np.asarray(size), 4)
  assert load.tolist() == [9, 5, 8, 8]
  anyone = np.asarray(owned.assign(size, None, 2, 2))
  assert np.bincount(anyone, np.asarray(size), 4).tolist() == [9, 8, 6, 7]
  np.testing.assert_array_equal(owned.assign(size, owner, 2, 1), owner)


@pytest.mark.parametrize("mode, chunk", MODES)
def test_the_results_are_those_of_one_process(problem, data, two, mode, chunk):
  """A map, a reduce and a total, and nothing of the rows is sent."""
  ids = jnp.array([3, 12, 1, 0, 9, 5, 11, 12, 2], jnp.int32)
  weights = jnp.array([0.5, 0.0, 2.0, 1.0, 0.0, 4.0, 0.25, 0.0, 1.0])

  def one_client(shared, shard, pair, number):
    x = jnp.where(shard.size > 0, shard.x[shard.offset], 0.0)
    nan = jnp.where(shard.size > 0, 0.0, jnp.nan)
    return {"x": x + pair.sum() + shared}, {
        "id": number, "nan": nan, "any": shard.y[shard.offset] > 1}

  def add(total, shared, shard, number):
    return total + shared.astype(jnp.int32) * shard.size * (number + 1)

  def everything(map_clients):
    def compute(data, shared, weights, pairs, ids):
      shards = layout.take_cohort(data, ids).shards
      args = (shared, shards, pairs, ids)
      mapped = map_clients(one_client, *args)
      return (mapped, map_clients.reduce(one_client, weights, *args),
              map_clients.reduce(
                  one_client, weights[:, None] * jnp.arange(3.0)[None], *args),
              map_clients.total(
                  add, lambda: jnp.zeros((), jnp.int32), *args[:2], ids))

    return jax.jit(compute)

  inputs = (jnp.float32(2), weights, jnp.arange(18.0).reshape(9, 2), ids)
  want = everything(clients.make_map_clients())(problem.data, *inputs)
  inputs = sharding.replicate(inputs, two)
  compiled = everything(clients.make_map_clients(
      mode, chunk=chunk, mesh=two)).lower(data, *inputs).compile()
  got = compiled(data, *inputs)
  real = np.asarray(ids) < 12

  def equal(a, b):
    a, b = np.asarray(a), np.asarray(b)
    if a.shape[:1] == real.shape:
      a, b = a[real], b[real]
    np.testing.assert_allclose(a, b, rtol=1e-6)
    assert a.dtype == b.dtype

  jax.tree.map(equal, got, want)
  text = compiled.as_text()
  assert "all-reduce" in text
  assert "all-gather" not in text and "all-to-all" not in text


def test_one_client_is_computed_where_its_rows_are(problem, data, two):
  map_clients = clients.make_map_clients(mesh=two)

  def first(shared, shard, factor):
    return shared + factor * shard.x[shard.offset]

  @jax.jit
  def compute(data, client):
    return owned.for_one(map_clients, first, jnp.float32(1),
                         layout.shard_of(data, client), jnp.float32(3))

  for client in (1, 10):
    x, _ = problem.clients[client]
    np.testing.assert_allclose(
        compute(data, jnp.int32(client)), 1 + 3 * x[0], rtol=1e-6)
