"""Clients back to back on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.data import features
from fedjax_alg.data import layout
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.hold_out import hold_out
from fedjax_alg.data.partition import make_partition
from fedjax_alg.data.sources import load_digits


def numbered(n_train=90, n_test=30, classes=3, clients=None):
  """Row i of the pooled data has the features (i, -i) and label i % L."""
  i = np.arange(n_train + n_test)
  x = np.stack([i, -i], 1).astype(np.float32)
  y = (i % classes).astype(np.int32)
  return Examples(x[:n_train], y[:n_train], x[n_train:], y[n_train:], classes,
                  clients, None, "numbered")


def rows_of(data, client):
  shard = layout.shard_of(data, client)
  rows = slice(int(shard.offset), int(shard.offset) + int(shard.size))
  return np.asarray(shard.x[rows]), np.asarray(shard.y[rows])


def test_client_data_permutes_and_pads():
  x = np.arange(12, dtype=np.float64).reshape(6, 2)
  y = np.array([0, 1, 2, 3, 4, 5])
  data = layout.client_data(
      x, y, np.array([4, 0, 5, 2]), np.array([0, 1]), np.array([1, 3]))
  assert data.x.dtype == jnp.float32
  assert data.y.dtype == data.offset.dtype == data.size.dtype == jnp.int32
  assert data.x.shape == (4 + layout.PADDING_ROWS, 2)
  assert data.y.shape == (4 + layout.PADDING_ROWS,)
  np.testing.assert_array_equal(rows_of(data, 0)[0], x[[4]])
  np.testing.assert_array_equal(rows_of(data, 1)[0], x[[0, 5, 2]])
  np.testing.assert_array_equal(rows_of(data, 1)[1], [0, 5, 2])
  assert not np.asarray(data.x[4:]).any() and not np.asarray(data.y[4:]).any()


@pytest.mark.parametrize("change, says", [
    (dict(y=np.arange(7)), "y: one label for each row"),  # labels slip
    (dict(y=np.zeros((6, 1), int)), "y: one label for each row"),
    (dict(y=np.zeros(6)), "y: labels are whole numbers"),
    (dict(offset=np.array([0])), "one entry for each client"),
    (dict(joins=np.array([0])), "one entry for each client"),
])
def test_client_data_that_does_not_fit_together_is_refused(change, says):
  good = dict(
      x=np.zeros((6, 2)), y=np.arange(6), order=np.arange(4),
      offset=np.array([0, 1]), size=np.array([1, 3]), joins=np.array([0, 2]))
  layout.client_data(**good)
  with pytest.raises(AssertionError, match=says):
    layout.client_data(**good | change)


def test_client_data_reads_several_arrays_as_one():
  x = np.random.default_rng(0).random((10000, 3)).astype(np.float32)
  y = np.arange(10000, dtype=np.int32)
  order = np.random.default_rng(1).permutation(10000)
  split = layout.client_data(
      (x[:7000], x[7000:]), y, order, np.array([0]), np.array([10000]))
  np.testing.assert_array_equal(np.asarray(split.x[:10000]), x[order])
  np.testing.assert_array_equal(np.asarray(split.y[:10000]), y[order])


def test_client_data_puts_the_servers_rows_behind_the_clients():
  x = np.arange(12, dtype=np.float32).reshape(6, 2)
  y = np.array([0, 1, 2, 3, 4, 5])
  data = layout.client_data(
      x, y, np.array([4, 0]), np.array([0, 1]), np.array([1, 1]),
      np.array([5, 2, 3]))
  assert data.validation.dtype == jnp.int32
  np.testing.assert_array_equal(data.validation, [2, 3])
  assert data.x.shape == (5 + layout.PADDING_ROWS, 2)
  np.testing.assert_array_equal(data.x[:5], x[[4, 0, 5, 2, 3]])
  np.testing.assert_array_equal(data.y[:5], [4, 0, 5, 2, 3])
  assert not np.asarray(data.x[5:]).any() and not np.asarray(data.y[5:]).any()
  np.testing.assert_array_equal(data.size, [1, 1])


def test_client_data_keeps_tokens():
  tokens = np.ones((4, 5), np.int32)
  data = layout.client_data(
      tokens, np.zeros(4, int), np.arange(4), np.array([0]), np.array([4]))
  assert data.x.dtype == jnp.int32


def test_cohort_and_padding_slots():
  data = layout.client_data(
      np.ones((6, 1)), np.zeros(6, int), np.arange(6), np.array([0, 2, 5]),
      np.array([2, 3, 1]))
  take = jax.jit(layout.take_cohort)
  cohort = take(data, jnp.array([2, 3, 1], jnp.int32))
  np.testing.assert_array_equal(cohort.ids, [2, 3, 1])
  np.testing.assert_array_equal(cohort.shards.offset, [5, 0, 2])
  np.testing.assert_array_equal(cohort.shards.size, [1, 0, 3])
  np.testing.assert_array_equal(cohort.weight, [1.0, 0.0, 3.0])
  assert cohort.weight.dtype == jnp.float32
  assert cohort.ids.dtype == cohort.shards.size.dtype == jnp.int32
  everyone = layout.everyone(data)
  np.testing.assert_array_equal(everyone.ids, [0, 1, 2])
  np.testing.assert_array_equal(everyone.shards.size, data.size)
  assert cohort.validation is everyone.validation is None
  shard = jax.jit(layout.shard_of)(data, jnp.int32(1))
  assert (int(shard.offset), int(shard.size)) == (2, 3)


def test_the_cohort_sees_the_servers_rows():
  data = layout.client_data(
      np.ones((6, 1)), np.arange(6), np.arange(3), np.array([0, 2]),
      np.array([2, 1]), np.array([5, 3]))
  for cohort in (jax.jit(layout.take_cohort)(data, jnp.array([1, 2])),
                 layout.everyone(data)):
    held = cohort.validation
    assert held.offset.shape == held.size.shape == ()
    assert held.offset.dtype == held.size.dtype == jnp.int32
    assert (int(held.offset), int(held.size)) == (3, 2)
    np.testing.assert_array_equal(held.y[3:5], [5, 3])
  assert layout.everyone(data).validation.x is data.x  # no copy


@pytest.mark.parametrize("kind", ["iid", "classes", "powerlaw", "natural"])
def test_build_gives_each_client_its_rows(kind):
  examples = numbered(clients=np.repeat(np.arange(3), 30))
  partition = make_partition(kind, examples, 3, 0)
  data = layout.build(examples, partition, features.make_features("none"))
  for split in ("train", "test"):
    order, offset, size = (
        getattr(partition, f"{split}_{part}")
        for part in ("order", "offset", "size"))
    for client in range(3):
      rows = order[offset[client]:offset[client] + size[client]]
      if split == "test" and not partition.pooled:
        rows = rows + 90  # numbering of the pooled data
      x, y = rows_of(getattr(data, split), client)
      np.testing.assert_array_equal(x, np.stack([rows, -rows], 1))
      np.testing.assert_array_equal(y, rows % 3)
  for client in range(3):
    _, y = rows_of(data.train, client)
    np.testing.assert_array_equal(
        data.label_histogram[client], np.bincount(y, minlength=3))
  tested = set(np.asarray(data.global_x[:, 0]).astype(int).tolist())
  if kind == "powerlaw":  # trains on official test rows
    assert tested == set(partition.test_order.tolist())
    assert not tested & set(partition.train_order.tolist())
  else:
    assert tested == set(range(90, 120))
  np.testing.assert_array_equal(
      np.asarray(data.global_y), np.asarray(data.global_x[:, 0]) % 3)


def test_build_without_an_official_test_set():
  examples = numbered(n_test=0, clients=np.repeat(np.arange(3), 30))
  natural = make_partition("natural", examples, None, 0)
  data = layout.build(examples, natural, features.make_features("none"))
  assert data.global_x.shape == (9, 2)
  iid = make_partition("iid", examples, 3, 0)
  with pytest.raises(DataError, match="has no test examples"):
    layout.build(examples, iid, features.make_features("none"))


def test_hash_is_of_the_data_not_of_the_split():
  digits = load_digits()
  flat = features.make_features("flatten")
  first, second = (
      layout.build(digits, make_partition("iid", digits, 9, seed), flat)
      for seed in (0, 1))
  assert first.hash == second.hash and len(first.hash) == 64
  moved = digits._replace(y_train=digits.y_train[::-1])
  partition = make_partition("iid", moved, 9, 0)
  assert layout.build(moved, partition, flat).hash != first.hash
  scaled = layout.build(
      digits, make_partition("iid", digits, 9, 0), features.standardize)
  assert scaled.hash != first.hash
  assert scaled.train.x.shape[1:] == (8, 8, 1)


KINDS = ["iid", "classes", "dirichlet", "powerlaw", "natural", "named"]


def held_out_build(kind, count=2, clients=6, seed=1):
  """``named``: natural, and the test rows name their clients too."""
  owner = np.arange(180) % clients
  examples = numbered(180, 60, clients=owner)
  if kind == "named":
    kind = "natural"
    examples = examples._replace(client_test=np.arange(60) % (clients + 1))
  before = make_partition(kind, examples, clients, seed)
  after = hold_out(before, count, seed)
  none = features.make_features("none")
  return (before, after, layout.build(examples, before, none),
          layout.build(examples, after, none))


@pytest.mark.parametrize("kind", KINDS)
def test_build_gives_the_server_the_rows_of_clients_held_out(kind):
  before, after, all_data, data = held_out_build(kind)
  held = after.held_out.clients.tolist()
  stay = [client for client in range(6) if client not in held]
  assert len(held) == 2
  for split in ("train", "test"):
    for new, old in enumerate(stay):
      for ours, theirs in zip(rows_of(getattr(data, split), new),
                              rows_of(getattr(all_data, split), old)):
        np.testing.assert_array_equal(ours, theirs)
  first, total = np.asarray(data.train.validation).tolist()
  assert first == int(data.train.size.sum())  # right behind the last client
  assert total == int(before.train_size[held].sum())
  end = first + total
  want = [rows_of(all_data.train, client) for client in held]
  for ours, parts in zip((data.train.x, data.train.y), zip(*want)):
    np.testing.assert_array_equal(ours[first:end], np.concatenate(parts))
    assert ours.shape[0] == end + layout.PADDING_ROWS
    assert not np.asarray(ours[end:]).any()
  np.testing.assert_array_equal(
      data.label_histogram, all_data.label_histogram[stay])
  assert data.hash == all_data.hash


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_tested_that_a_client_held_out_owned(kind):
  before, after, all_data, data = held_out_build(kind)

  def numbers(x):
    return set(np.asarray(x[:, 0]).astype(int).tolist())

  def tests(built, clients):
    return set().union(*(numbers(rows_of(built.test, c)[0]) for c in clients))

  held = after.held_out.clients.tolist()
  theirs = tests(all_data, held)
  first, total = np.asarray(data.train.validation).tolist()
  validation = numbers(data.train.x[first:first + total])
  tested = numbers(data.global_x)
  assert theirs and len(tested) == len(data.global_y)
  assert not theirs & tests(data, range(4))
  assert not validation & (tested | theirs)
  official = set(range(180, 240))
  if kind == "powerlaw":  # trains on official test rows
    assert tested == tests(data, range(4)) and data.whole_is_local
  elif kind == "named":  # those of a client that never trained stay, as before
    assert tested == official - theirs and not data.whole_is_local
  else:
    assert tested == official
    assert not data.whole_is_local
    assert all_data.whole_is_local == (kind != "natural")
  np.testing.assert_array_equal(
      np.asarray(data.global_y), np.asarray(data.global_x[:, 0]) % 3)


def test_official_test_rows_that_only_the_server_holds_are_not_tested():
  examples = numbered(90, 30)
  # Pooled; client 0 trains on training rows only, client 1 on test rows.
  order = np.array([0, 1, 2, 100, 101])
  partition = make_partition("powerlaw", examples, 3, 0)._replace(
      train_order=order, train_offset=np.array([0, 3], np.int32),
      train_size=np.array([3, 2], np.int32), test_order=np.array([3, 102]),
      test_offset=np.array([0, 1], np.int32),
      test_size=np.array([1, 1], np.int32))
  left = next(p for p in (hold_out(partition, 1, s) for s in range(50))
              if p.held_out.clients[0] == 1)
  data = layout.build(examples, left, features.make_features("none"))
  np.testing.assert_array_equal(data.global_x[:, 0], [3])


def test_build_without_tests_among_those_who_stay():
  clients = np.array([0] * 10 + [1])
  examples = numbered(11, 0, clients=clients)
  natural = make_partition("natural", examples, None, 0)
  left = next(p for p in (hold_out(natural, 1, s) for s in range(50))
              if p.held_out.clients[0] == 0)
  with pytest.raises(DataError, match="validation_clients=1 leaves"):
    layout.build(examples, left, features.make_features("none"))


def test_as_many_held_out_rows_as_official_ones_are_not_the_same_rows():
  examples = numbered(90, 9, clients=np.repeat(np.arange(3), 30))
  data = layout.build(examples, make_partition("natural", examples, None, 0),
                      features.make_features("none"))
  assert int(data.test.size.sum()) == len(data.global_y) == 9
  assert not data.whole_is_local
