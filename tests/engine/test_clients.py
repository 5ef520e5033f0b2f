"""How clients are mapped and dealt to devices."""

import functools
import pathlib
import re

from hypothesis import example, given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import trees
from fedjax_alg.base import Shard
from fedjax_alg.client import minibatches
from fedjax_alg.data import layout
from fedjax_alg.engine import clients, dealing, sharding
from tests import problems
from tests.algorithms import bridge

#: Clients and devices; every pair compiles.
HANDS = [(1, 4), (7, 1), (13, 8), (24, 3), (40, 4)]


@functools.partial(jax.jit, static_argnums=(1, 2))
def deal(sizes, devices, hand):
  return dealing.by_device(sizes, dealing.balance(sizes, devices, hand))


@pytest.mark.program
@given(
  st.sampled_from(HANDS).flatmap(
    lambda hand: st.tuples(
      st.lists(st.integers(0, 1000), min_size=hand[0], max_size=hand[0]),
      st.just(hand[1]),
    )
  )
)
@example(([5], 4))
@example(([1000] + [1] * 39, 4))
def test_devices_get_like_work(dealt):
  """Totals differ by at most the largest client; every slot once."""
  sizes, devices = dealt
  slots = -(-len(sizes) // devices) * devices
  padded = np.array(sizes + [0] * (slots - len(sizes)), np.int32)
  order = np.asarray(deal(padded, devices, slots // devices))
  np.testing.assert_array_equal(np.sort(order), np.arange(slots))
  hands = padded[order].reshape(devices, -1)
  totals = hands.sum(1)
  assert totals.max() - totals.min() <= max(sizes)
  assert (np.diff(hands, axis=1) <= 0).all()  # largest first


def test_cards_are_dealt_to_and_fro():
  order = np.asarray(deal(np.arange(1, 9, dtype=np.int32), 4, 2))
  assert (order.reshape(4, 2) + 1).tolist() == [[8, 1], [7, 2], [6, 3], [5, 4]]


def test_maps_of_the_same_sizes_deal_by_the_same_code(monkeypatch):
  """Four maps of a round would trace and lower the loop over the slots each."""
  calls, balance = [], dealing.balance

  def counting(size, *args):
    calls.append(size.shape)
    return balance(size, *args)

  monkeypatch.setattr(clients, "balance", counting)
  slots = 11  # no other test deals so many

  def two_maps(shards):
    map_clients = clients.ClientMap(mesh=sharding.clients_mesh(jax.devices()[:4]))
    numbers = shards.size
    for _ in range(2):
      numbers = map_clients(lambda _, shard, n: shard.size + n, (), shards, numbers)
    return numbers

  size = jnp.arange(slots, dtype=jnp.int32)
  shards = Shard(
    jnp.zeros((64, 1)), jnp.zeros(64, jnp.int32), jnp.zeros_like(size), size
  )
  lowered = jax.jit(two_maps).lower(shards)
  assert calls == [(12,)]
  assert lowered.as_text().count("func.func private @_deal_sizes") == 1


CASES = [
  ("sequential", 0, False),
  ("vmap", 0, False),
  ("python", 0, False),
  ("sequential", 0, True),
  ("vmap", 0, True),
  ("lanes", 0, False),
  ("lanes", 1, True),
]


def accumulate(total, shared, shard, pair, number):
  size = shard.size.astype(jnp.float32)
  return (total[0] + shared * size * pair[1], total[1] + number * shard.size)


def summand(shared, shard, pair, number):
  message = jnp.where((shard.size > 0) & (number != 9), shared * pair, jnp.nan)
  return {"pair": message, "size": shard.size.astype(jnp.float32)}, number


def update_row(shared, shard, rows, number):
  del shard
  return shared * rows, (rows.sum(), rows[0]), number


@pytest.mark.parametrize("mode, lanes, several", CASES)
def test_every_map_is_numpys(problem, mesh, mode, lanes, several):
  """A map, a total, weighted sums and rows of a table, as one program.

  A slot of weight 0 sends NaN; sums may be several, with weights of their own.
  """
  map_clients = clients.ClientMap(mode, lanes, mesh if several else None)
  cohort = bridge.cohort_of(problem, [3, 12, 1, 0, 9, 5, 11])
  ids, size = np.asarray(cohort.ids), np.asarray(cohort.shards.size)
  pairs = np.arange(14.0, dtype=np.float32).reshape(7, 2)
  weights = np.float32([0.5, 0.0, 2.0, 1.0, 0.0, 4.0, 0.25])
  others = np.float32([0.0, 0.0, 2.0, 3.0, 4.0, 5.0, 6.0])
  # As two sums as well, of the slots before the fourth and of the others.
  early = (np.arange(7) < 3)[:, None]
  halves = np.where(np.append(early, ~early, 1), weights[:, None], 0.0)
  # Two rows for each of twelve clients; those of a thirteenth do not exist.
  table = np.arange(24.0, dtype=np.float32) ** 2
  places = 2 * ids[:, None] + np.arange(2)
  inputs = (
    cohort.shards,
    *map(jnp.asarray, (pairs, ids, weights, halves, others, table, places)),
  )
  if several:
    inputs = sharding.replicate(inputs, mesh)

  def one_client(shared, shard, pair, number):
    assert isinstance(shard, Shard) and shard.x.shape == problem.data.x.shape
    return {
      "sum": shared * pair.sum() + shard.x[shard.offset, 0],
      "id": number,
      "size": shard.size,
    }

  @jax.jit
  def everything(shards, pairs, ids, weights, halves, others, table, places):
    two, args = jnp.float32(2), (shards, pairs, ids)
    return (
      map_clients(one_client, two, *args),
      map_clients.total(
        accumulate, lambda: (jnp.zeros(()), jnp.zeros((), jnp.int32)), two, *args
      ),
      [
        map_clients.reduce(summand, weighting, two, *args)
        for weighting in (weights, halves)
      ],
      map_clients.update(
        update_row, trees.add_rows, table, places, (weights, others), two, shards, ids
      ),
    )

  outputs = everything(*inputs)
  out, total, ((sums, numbers), (parts, _)), (new, (both, first), ids_again) = (
    jax.device_get(outputs)
  )
  for ids_of_output in (out["id"], numbers, ids_again):
    np.testing.assert_array_equal(ids_of_output, ids)
  np.testing.assert_array_equal(out["size"], size)
  x = np.asarray(problem.data.x)[:, 0][np.asarray(cohort.shards.offset)]
  np.testing.assert_allclose(out["sum"], 2 * pairs.sum(1) + x, rtol=1e-6)
  assert total == (2 * (size * pairs[:, 1]).sum(), (size * ids).sum())
  np.testing.assert_allclose(sums["pair"], 2 * weights @ pairs)
  np.testing.assert_allclose(sums["size"], weights @ size)
  np.testing.assert_allclose(parts["pair"], 2 * halves.T @ pairs)
  np.testing.assert_allclose(parts["size"], halves.T @ size)
  expected, present = table.reshape(12, 2).copy(), np.delete(ids, 1)
  rows_before = expected[present]
  expected[present] *= 3
  np.testing.assert_array_equal(new, expected.reshape(-1))
  np.testing.assert_allclose(both, np.delete(weights, 1) @ rows_before.sum(1))
  np.testing.assert_allclose(first, np.delete(others, 1) @ rows_before[:, 0])
  problems.assert_equal(everything(*inputs), outputs)


def three_shards():
  return Shard(
    np.zeros((9, 1), np.float32),
    np.zeros(9, np.int32),
    np.array([0, 4, 6], np.int32),
    np.array([4, 2, 3], np.int32),
  )


@pytest.mark.program
def test_a_client_alone_draws_rows_for_few_steps(problem):
  """Rows for 64 steps take a client of one step as long as all else."""
  work = minibatches.LocalWork(batch_size=3)
  shards = layout.everyone(problem.data).shards

  def text(mode):
    def train(_, shard, key):
      step = lambda gradient, count: count + gradient(params)[0][0]
      return minibatches.fold_steps(
        problem.model, shard, work, key, step, jnp.zeros(())
      )[0]

    params = problem.model.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), shards.size.shape[0])
    map_clients = clients.ClientMap(mode)
    return str(jax.make_jaxpr(lambda: map_clients(train, (), shards, keys))())

  few, many = f"i32[{minibatches.FEW_STEPS},3]", f"{minibatches.CHUNK_STEPS},3]"
  assert few in text("sequential") and many not in text("sequential")
  assert many in text("vmap")


def test_padding_of_the_map_is_the_last_client_without_data(mesh):
  """Seen by counting the sizes that client code is given."""
  seen = []

  def one_client(_, shard):
    jax.debug.callback(lambda size: seen.append(int(size)), shard.size)
    return shard.size

  out = jax.jit(lambda shards: clients.ClientMap(mesh=mesh)(one_client, (), shards))(
    sharding.replicate(three_shards(), mesh)
  )
  jax.effects_barrier()
  assert out.tolist() == [4, 2, 3]
  assert sorted(seen) == [0] * (mesh.size - 3) + [2, 3, 4]


def test_a_round_on_a_mesh_gathers_once(problem, mesh):
  """Dealing, a loop over the slots, is not shared out over the devices."""
  map_clients = clients.ClientMap(mesh=mesh)
  cohort = bridge.cohort_of(problem, range(8))
  inputs = sharding.replicate((cohort.shards, jnp.float32(2)), mesh)
  text = (
    jax.jit(
      lambda shards, shared: map_clients(
        lambda shared, shard: shared * shard.size.astype(jnp.float32), shared, shards
      )
    )
    .lower(*inputs)
    .compile()
    .as_text()
  )
  collectives = re.findall(
    r" (all-reduce|all-gather|all-to-all|collective-\w+|reduce-scatter)"
    r"(?:-start)?\(",
    text,
  )
  assert collectives == ["all-gather"]


def test_what_cannot_be_mapped_is_named():
  with pytest.raises(ValueError, match="^map_clients=pmap: must be one of seq"):
    clients.ClientMap("pmap")


def test_a_client_that_fails_is_named_in_python():
  """Its code computes with numbers, so Python may branch on them."""

  def one_client(_, shard, number):
    if shard.size == 2:
      raise ZeroDivisionError("no steps")
    return number

  with pytest.raises(ZeroDivisionError) as error:
    clients.ClientMap("python")(one_client, (), three_shards(), np.arange(3))
  assert error.value.__notes__ == ["in slot 1 of the cohort, a client of 2 examples"]


#: operations of an example, participants, batch, and milliseconds a round on an
#: H200 of vmap, lanes, sequential (docs/speed.md)
TIMED = [
  (15_680, 20, 10, (27, 50, None)),
  (15_680, 100, 10, (66, 118, None)),
  (50_816, 20, 10, (7.1, 13.8, None)),
  (50_816, 100, 10, (22, 35, None)),
  (203_264, 20, 10, (8.6, 13.5, None)),
  (203_264, 100, 10, (48, 35, None)),
  (813_056, 20, 10, (15.8, 15.7, None)),
  (813_056, 100, 10, (126, 46, None)),
  (2_234_112, 20, 10, (63, 50, 38)),
  (2_234_112, 100, 10, (805, 157, 212)),
  (2_234_112, 20, 50, (None, 30, 26)),
  (2_234_112, 20, 200, (None, 43, 43)),
  (1_110_845_440, 10, 50, (984, 776, 281)),
]


def test_a_gpu_takes_a_mode_that_is_hardly_slower_than_the_best():
  """The page says where it is not the fastest, and by how much at most."""
  slower = []
  for flops, slots, batch_size, times in TIMED:
    by_mode = dict(zip(("vmap", "lanes", "sequential"), times, strict=True))
    mode = clients.default_mode("gpu", flops, slots, batch_size)
    best = min(filter(None, times))
    assert by_mode[mode] < 4 / 3 * best, (flops, slots)
    if by_mode[mode] > best:
      slower.append((slots, batch_size, by_mode[mode], best))
  assert slower == [(20, 10, 50, 38), (20, 50, 30, 26)]
  text = (pathlib.Path(__file__).parents[2] / "docs/speed.md").read_text("utf-8")
  table = text.partition("| model, clients a round |")[2]
  bold = re.findall(r"\*\*([\d.]+)\*\*", table)[: len(TIMED)]
  assert list(map(float, bold)) == [
    dict(zip(("vmap", "lanes", "sequential"), times))[
      clients.default_mode("gpu", *sizes)
    ]
    for *sizes, times in TIMED
  ]
  assert "`sequential` is faster (38 against 50 ms, 26 against 30)" in text


def test_the_mode_of_other_devices():
  large = dict(flops=1e12, slots=100, batch_size=50)
  assert clients.default_mode("cpu", **large) == "sequential"
  assert clients.default_mode("tpu", **large) == "lanes"
  assert clients.default_mode("gpu", flops=0) == "lanes"  # not known
