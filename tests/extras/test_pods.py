"""The client map of several processes, on a mesh of this one."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import trees
from fedjax_alg.data import layout
from fedjax_alg.engine import clients, sharding
from tests import problems


@pytest.fixture(scope="module", name="two")
def fixture_two():
  """Two processes of two devices."""
  return sharding.process_mesh(jax.devices("cpu")[:4], 2)


@pytest.fixture(scope="module", name="data")
def fixture_data(problem, two):
  return problems.in_blocks(problem.data, two)


@pytest.mark.program
def test_the_results_are_those_of_one_process(problem, data, two):
  """A map, a reduce and a total, and nothing of the rows is sent.

  Of examples in a dictionary with targets of several numbers, [Q, M, 2].
  """
  single, data = (
    source._replace(
      x={"a": source.x, "b": source.x[..., :1]},
      y=jnp.stack([source.y, 7 - source.y], -1),
      validation=None,
    )
    for source in (problem.data, data)
  )
  ids = jnp.array([3, 12, 1, 0, 9, 5, 11, 12, 2], jnp.int32)
  weights = jnp.array([0.5, 0.0, 2.0, 1.0, 0.0, 4.0, 0.25, 0.0, 1.0])

  def one_client(shared, shard, pair, number):
    x, y = jax.tree.map(
      lambda array: jnp.where(shard.size > 0, array[shard.offset], 0),
      (shard.x, shard.y),
    )
    nan = jnp.where(shard.size > 0, 0.0, jnp.nan)
    return {"x": x["a"] + pair.sum() + shared, "b": x["b"]}, {
      "id": number,
      "nan": nan,
      "y": y,
      "any": y > 1,
    }

  def add(total, shared, shard, number):
    return total + shared.astype(jnp.int32) * shard.size * (number + 1)

  def everything(map_clients):
    def compute(data, shared, weights, pairs, ids):
      shards = layout.take_cohort(data, ids).shards
      args = (shared, shards, pairs, ids)
      mapped = map_clients(one_client, *args)
      return (
        mapped,
        map_clients.reduce(one_client, weights, *args),
        map_clients.reduce(one_client, weights[:, None] * jnp.arange(3.0)[None], *args),
        map_clients.total(add, lambda: jnp.zeros((), jnp.int32), *args[:2], ids),
      )

    return jax.jit(compute)

  inputs = (jnp.float32(2), weights, jnp.arange(18.0).reshape(9, 2), ids)
  want = everything(clients.ClientMap())(single, *inputs)
  inputs = sharding.replicate(inputs, two)
  compiled = (
    everything(clients.ClientMap("sequential", mesh=two)).lower(data, *inputs).compile()
  )
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


#: The four devices as one group: a list, rows of a grid, or axes of the mesh
#: (from JAX 0.11 on).
_ALL_DEVICES = r"(\{\{0,1,2,3\}\}|\[1,4\]|mesh\[.*\] \{.*'processes'.*\})"


@pytest.mark.program
def test_what_clients_keep_stays_where_they_are(problem, data, two):
  """A table of clients is changed as in one process, and nothing of it sent."""
  cuts = np.searchsorted(
    np.asarray(data.offset) // data.y.shape[1], np.arange(3)
  ).tolist()
  ids = jnp.array([3, 12, 1, 0, 9, 5, 11, 12, 2], jnp.int32)
  wide = jnp.asarray(np.random.default_rng(0).normal(size=(12, 17)), jnp.float32)
  table = {"a": wide, "b": jnp.arange(12) % 2 == 0}

  def one_client(shared, shard, rows, number):
    updated = {"a": shared * rows["a"], "b": ~rows["b"]}
    return updated, rows["a"].sum() + shard.x[shard.offset].sum(), number + 1

  def everything(map_clients, table):
    def compute(data, weights, table, ids, shared):
      shards = layout.take_cohort(data, ids).shards
      table, summed, stacked = map_clients.update(
        one_client,
        trees.set_rows,
        map_clients.keep(table),
        ids,
        weights,
        shared,
        shards,
        ids,
      )

      def change_client(*args):
        updated, summed, stacked = one_client(*args)
        return updated, (summed, stacked)

      table, (outputs, _) = map_clients.change(
        change_client, trees.set_rows, table, ids, shared, shards, ids
      )
      read = map_clients(
        lambda table, shard, number: trees.rows(table, number)["a"].sum(),
        table,
        shards,
        ids,
      )
      return table, summed, stacked, outputs, read

    weights = (ids < 12).astype(jnp.float32) * 0.5
    return jax.jit(compute), (weights, table, ids, jnp.float32(3))

  compute, inputs = everything(clients.ClientMap(), table)
  want_table, *want = compute(problem.data, *inputs)
  map_clients = clients.ClientMap("vmap", mesh=two, cuts=tuple(cuts))
  stored = jax.jit(map_clients.keep)(sharding.replicate(table, two))
  compute, inputs = everything(map_clients, stored)
  compiled = compute.lower(data, *sharding.replicate(inputs, two)).compile()
  got_table, *got = compiled(data, *sharding.replicate(inputs, two))
  # The states of a run have an axis of seeds.
  gathered = sharding.to_host(jax.tree.map(lambda leaf: leaf[None], got_table))
  for name, leaf in want_table.items():
    np.testing.assert_array_equal(gathered[name][0], leaf)
  real = np.asarray(ids) < 12
  for some, others in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    some, others = np.asarray(some), np.asarray(others)
    if some.shape[:1] == real.shape:
      some, others = some[real], others[real]
    np.testing.assert_allclose(some, others, rtol=1e-5)
  rows = got_table["a"].height
  assert {shard.data.shape for shard in got_table["a"].block.addressable_shards} == {
    (1, rows, 17)
  } and 6 <= rows < 12
  text = compiled.as_text()
  assert "all-gather" not in text and "all-to-all" not in text
  # What goes to the other process is a few numbers of each of the 9 slots.
  across = [
    line
    for line in text.splitlines()
    if re.search(r"all-reduce(-start)?\(.*replica_groups=" + _ALL_DEVICES, line)
  ]
  sizes = [
    np.prod([int(axis) for axis in shape.split(",") if axis])
    for line in across
    for shape in re.findall(r"\[([\d,]*)\]", line.split(" all-reduce")[0])
  ]
  assert sizes and 9 <= max(sizes) < 9 * 17
