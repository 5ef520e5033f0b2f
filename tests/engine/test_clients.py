"""How clients are mapped and dealt to devices."""

import re

from hypothesis import example, given, strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import trees
from fedjax_alg.base import Shard
from fedjax_alg.data import layout
from fedjax_alg.engine import clients, owned, sharding
from tests import problems


#: Clients and devices; every pair compiles.
HANDS = [(1, 4), (7, 1), (13, 8), (24, 3), (40, 4)]
_balance = jax.jit(owned.balance, static_argnums=(1, 2))


@pytest.mark.program
@given(st.sampled_from(HANDS).flatmap(lambda hand: st.tuples(
    st.lists(st.integers(0, 1000), min_size=hand[0], max_size=hand[0]),
    st.just(hand[1]))))
@example(([5], 4))
@example(([1000] + [1] * 39, 4))
def test_devices_get_like_work(dealt):
  """Totals differ by at most the largest client; every slot once."""
  sizes, devices = dealt
  slots = -(-len(sizes) // devices) * devices
  padded = np.array(sizes + [0] * (slots - len(sizes)), np.int32)
  order = np.asarray(owned.by_device(
      padded, _balance(padded, devices, slots // devices)))
  np.testing.assert_array_equal(np.sort(order), np.arange(slots))
  hands = padded[order].reshape(devices, -1)
  totals = hands.sum(1)
  assert totals.max() - totals.min() <= max(sizes)
  assert (np.diff(hands, axis=1) <= 0).all()  # largest first


def test_cards_are_dealt_to_and_fro():
  size = jnp.arange(1, 9, dtype=jnp.int32)
  order = np.asarray(owned.by_device(size, owned.balance(size, 4, 2)))
  assert (order.reshape(4, 2) + 1).tolist() == [[8, 1], [7, 2], [6, 3], [5, 4]]


CASES = [("sequential", 0, False), ("vmap", 0, False), ("python", 0, False),
         ("sequential", 0, True), ("vmap", 0, True), ("lanes", 0, False),
         ("lanes", 1, True)]


@pytest.mark.parametrize("mode, lanes, several", CASES)
def test_every_map_gives_the_slots_results_in_order_and_their_total(
    problem, mesh, mode, lanes, several):
  map_clients = clients.ClientMap(
      mode, lanes, mesh if several else None)
  cohort = layout.take_cohort(
      problem.data, jnp.array([3, 12, 1, 0, 9, 5, 12], jnp.int32))
  extra = jnp.arange(14.0).reshape(7, 2)
  inputs = (cohort.shards, extra, cohort.ids)
  if several:
    inputs = sharding.replicate(inputs, mesh)

  def one_client(shared, shard, pair, number):
    assert isinstance(shard, Shard) and shard.x.shape == problem.data.x.shape
    first = shard.x[shard.offset, 0]
    return {"sum": shared * pair.sum() + first, "id": number,
            "size": shard.size}

  def add(total, shared, shard, pair, number):
    size = shard.size.astype(jnp.float32)
    return (total[0] + shared * size * pair[1],
            total[1] + number * shard.size)

  @jax.jit
  def both(*inputs):
    shards, extra, ids = inputs
    two = jnp.float32(2)
    return map_clients(one_client, two, shards, extra, ids), map_clients.total(
        add, lambda: (jnp.zeros(()), jnp.zeros((), jnp.int32)), two, *inputs)

  out, total = both(*inputs)
  ids, size, extra = (
      np.asarray(a) for a in (cohort.ids, cohort.shards.size, extra))
  np.testing.assert_array_equal(out["id"], ids)
  np.testing.assert_array_equal(out["size"], size)
  first = np.asarray(problem.data.x[:, 0])[np.asarray(cohort.shards.offset)]
  np.testing.assert_allclose(out["sum"], 2 * extra.sum(1) + first, rtol=1e-6)
  assert float(total[0]) == 2 * (size * extra[:, 1]).sum()
  assert int(total[1]) == (size * ids).sum()


@pytest.mark.parametrize("mode, lanes, several", CASES)
def test_every_map_reduces_to_the_weighted_sum(
    problem, mesh, mode, lanes, several):
  """And stacks the rest in order; a slot of weight 0 sends NaN."""
  map_clients = clients.ClientMap(
      mode, lanes, mesh if several else None)
  cohort = layout.take_cohort(
      problem.data, jnp.array([3, 12, 1, 0, 9, 5, 11], jnp.int32))
  weights = jnp.array([0.5, 0.0, 2.0, 1.0, 0.0, 4.0, 0.25])
  inputs = (weights, cohort.shards, jnp.arange(14.0).reshape(7, 2), cohort.ids)
  if several:
    inputs = sharding.replicate(inputs, mesh)

  def one_client(shared, shard, pair, number):
    held = shard.size > 0
    sent = jnp.where(held & (number != 9), shared * pair, jnp.nan)
    return {"pair": sent, "size": shard.size.astype(jnp.float32)}, number

  # As two sums as well, of the slots before the fourth and of the others.
  early = (jnp.arange(7) < 3)[:, None]

  @jax.jit
  def reduce(weights, *rest):
    by_half = jnp.where(
        jnp.concatenate([early, ~early], 1), weights[:, None], 0.0)
    return [map_clients.reduce(one_client, each, jnp.float32(2), *rest)
            for each in (weights, by_half)]

  (total, numbers), (parts, _) = found = reduce(*inputs)
  np.testing.assert_array_equal(numbers, cohort.ids)
  np.testing.assert_allclose(
      total["pair"], 2 * np.asarray(weights) @ np.arange(14.0).reshape(7, 2))
  np.testing.assert_allclose(
      total["size"], np.asarray(weights) @ np.asarray(cohort.shards.size))
  assert jax.tree.map(jnp.shape, total) == {"pair": (2,), "size": ()}
  problems.assert_equal(reduce(*inputs), found)
  assert jax.tree.map(jnp.shape, parts) == {"pair": (2, 2), "size": (2,)}
  problems.assert_close(
      *jax.tree.map(np.asarray, (
          jax.tree.map(lambda leaf: np.asarray(leaf).sum(0), parts), total)))
  of_3, of_1 = np.asarray(problem.data.size)[[3, 1]]
  np.testing.assert_allclose(parts["size"][0], 0.5 * of_3 + 2.0 * of_1)


@pytest.mark.program
def test_padding_of_the_map_is_the_last_client_without_data(mesh):
  """Seen by counting the sizes that client code is given."""
  seen = []

  def one_client(_, shard):
    jax.debug.callback(lambda size: seen.append(int(size)), shard.size)
    return shard.size

  shards = Shard(
      jnp.zeros((9, 1)), jnp.zeros(9, jnp.int32),
      jnp.array([0, 4, 6], jnp.int32), jnp.array([4, 2, 3], jnp.int32))
  out = clients.ClientMap(mesh=mesh)(
      one_client, (), sharding.replicate(shards, mesh))
  jax.effects_barrier()
  assert out.tolist() == [4, 2, 3]
  assert sorted(seen) == [0] * (mesh.size - 3) + [2, 3, 4]


def test_a_round_on_a_mesh_gathers_once(problem, mesh):
  """Dealing, a loop over the slots, is not shared out over the devices."""
  map_clients = clients.ClientMap(mesh=mesh)
  cohort = layout.take_cohort(problem.data, jnp.arange(8, dtype=jnp.int32))
  inputs = sharding.replicate((cohort.shards, jnp.float32(2)), mesh)
  text = jax.jit(lambda shards, shared: map_clients(
      lambda shared, shard: shared * shard.size.astype(jnp.float32), shared,
      shards)).lower(*inputs).compile().as_text()
  found = re.findall(
      r" (all-reduce|all-gather|all-to-all|collective-\w+|reduce-scatter)"
      r"(?:-start)?\(", text)
  assert found == ["all-gather"]


def test_what_cannot_be_mapped_is_named():
  with pytest.raises(ValueError, match="^map_clients=pmap: must be one of seq"):
    clients.ClientMap("pmap")


@pytest.mark.parametrize("mode, lanes, several", CASES)
def test_every_map_updates_the_clients_rows(
    problem, mesh, mode, lanes, several):
  """And reduces, by weights of their own for each part."""
  map_clients = clients.ClientMap(
      mode, lanes, mesh if several else None)
  cohort = layout.take_cohort(
      problem.data, jnp.array([3, 12, 1, 0, 9, 5, 11], jnp.int32))
  # Two rows for each of twelve clients; those of a thirteenth do not exist.
  places = 2 * cohort.ids[:, None] + jnp.arange(2, dtype=jnp.int32)[None]
  table = jnp.arange(24.0) ** 2
  weights = (jnp.array([0.5, 0.0, 2.0, 1.0, 0.0, 4.0, 0.25]),
             jnp.array([0.0, 0.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
  inputs = (table, places, weights, cohort.shards, cohort.ids)
  if several:
    inputs = sharding.replicate(inputs, mesh)

  def one_client(shared, shard, rows, number):
    del shard
    return shared * rows, (rows.sum(), rows[0]), number

  update = jax.jit(lambda table, places, weights, *rest: map_clients.update(
      one_client, trees.add_rows, table, places, weights, jnp.float32(2),
      *rest))
  new, (both, first), numbers = update(*inputs)
  np.testing.assert_array_equal(numbers, cohort.ids)
  before, there = np.asarray(table), np.array([3, 1, 0, 9, 5, 11])
  expected = before.reshape(12, 2).copy()
  expected[there] *= 3
  np.testing.assert_array_equal(new, expected.reshape(-1))
  weights = [np.delete(np.asarray(w), 1) for w in weights]
  pairs = before.reshape(12, 2)[there]
  np.testing.assert_allclose(both, weights[0] @ pairs.sum(1))
  np.testing.assert_allclose(first, weights[1] @ pairs[:, 0])
  problems.assert_equal(update(*inputs), (new, (both, first), numbers))


def test_a_client_that_fails_is_named_in_python():
  """Its code computes with numbers, so Python may branch on them."""
  shards = Shard(
      jnp.zeros((9, 1)), jnp.zeros(9, jnp.int32),
      jnp.array([0, 4, 6], jnp.int32), jnp.array([4, 2, 3], jnp.int32))

  def one_client(_, shard, number):
    if shard.size == 2:
      raise ZeroDivisionError("no steps")
    return number

  with pytest.raises(ZeroDivisionError) as error:
    clients.ClientMap("python")(one_client, (), shards, jnp.arange(3))
  assert error.value.__notes__ == [
      "in slot 1 of the cohort, a client of 2 examples"]
