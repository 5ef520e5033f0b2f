"""Clients held out: their rows are the server's, the others keep theirs."""

from hypothesis import assume, given
from hypothesis import strategies as st
import numpy as np
import pytest

from fedjax_alg.data import allocate
from fedjax_alg.data.hold_out import check_hold_out, hold_out, leave_out, put_back
from fedjax_alg.data.partition import Partition, partition_hash
from tests.data.reading import arrays, refuses, rows


def split(train_size, test_size, seed=0):
  """Clients of these sizes; twice as many rows exist as are used."""
  rng = np.random.default_rng(seed)
  fields = []
  for size in (train_size, test_size):
    size = np.array(size, np.int32)
    order = rng.permutation(2 * size.sum() + 1)[: size.sum()].astype(np.int64)
    fields += [order, allocate.offsets(size), size]
  return Partition(*fields, pooled=False, name="made", flags={"seed": seed})


@st.composite
def splits(draw):
  sizes = draw(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=2, max_size=12)
  )
  assume(sum(train > 0 for train, _ in sizes) > 1)
  return split(*zip(*sizes), seed=draw(st.integers(0, 2**31)))


@given(splits(), st.data())
def test_every_row_goes_to_one_place(partition, draw):
  total = partition.num_clients
  count = draw.draw(st.integers(1, (partition.train_size > 0).sum() - 1))
  before = [np.copy(array) for array in partition[:6]]
  remaining = hold_out(partition, count, draw.draw(st.integers(0, 2**31)))
  held_out = remaining.held_out
  for array, original in zip(partition[:6], before):
    np.testing.assert_array_equal(array, original)
  restored = put_back(remaining)
  assert partition_hash(restored) == partition_hash(partition)
  assert restored.flags == partition.flags and restored.held_out is None
  assert remaining.num_clients == total - count and len(held_out.clients) == count
  assert (np.diff(held_out.clients) > 0).all()  # ascending, none twice
  stay = np.setdiff1d(np.arange(total), held_out.clients)
  assert len(stay) == total - count
  for which in ("train", "test"):
    order, offset, size = arrays(remaining, which)
    assert order.dtype == np.int64
    assert offset.dtype == size.dtype == np.int32
    np.testing.assert_array_equal(offset, allocate.offsets(size))
    assert size.sum() == len(order)
    for new, old in enumerate(stay):
      assert rows(remaining, which, new) == rows(partition, which, old)
    held_order = getattr(held_out, f"{which}_order")
    assert held_order.dtype == np.int64
    assert held_order.tolist() == sum(
      (rows(partition, which, client) for client in held_out.clients), []
    )
    assert sorted([*order, *held_order]) == sorted(getattr(partition, f"{which}_order"))
    assert not set(order.tolist()) & set(held_order.tolist())
  np.testing.assert_array_equal(
    held_out.train_size, partition.train_size[held_out.clients]
  )
  assert held_out.train_size.all()  # the server gets rows of each
  assert remaining.flags["validation_clients"] == count


@given(splits(), st.integers(0, 2**31))
def test_a_smaller_count_holds_out_fewer_of_the_same(partition, seed):
  sets = [
    set(hold_out(partition, n, seed).held_out.clients.tolist())
    for n in range(1, (partition.train_size > 0).sum())
  ]
  for smaller, larger in zip(sets, sets[1:]):
    assert smaller < larger


def test_the_seed_decides():
  partition = split([3] * 40, [1] * 40)
  partitions = [hold_out(partition, 5, seed) for seed in range(60)]
  repeated = hold_out(partition, 5, 0)
  assert (
    partition_hash(partitions[0])
    == partition_hash(repeated)
    != (partition_hash(partitions[1]))
  )
  every = np.stack([p.held_out.clients for p in partitions])
  assert len(set(every.ravel().tolist())) == 40  # any client can be drawn
  assert np.bincount(every.ravel()).max() < 25
  for seed, clients in enumerate(every):  # not the draws of the partition itself
    assert set(clients) != set(np.random.default_rng(seed).permutation(40)[:5])


def test_nobody_held_out_changes_nothing():
  partition = split([3, 4], [1, 0])
  assert hold_out(partition, 0, 7) is partition
  # As it was before clients could be held out.
  assert partition_hash(partition).startswith("de76680ab75d0cb4")


def test_the_hash_sees_who_was_held_out():
  partition = split([3, 3, 3], [0, 0, 0])
  remaining = hold_out(partition, 1, 0)
  forgotten = remaining._replace(held_out=None)
  reordered = remaining._replace(
    held_out=remaining.held_out._replace(
      train_order=remaining.held_out.train_order[::-1]
    )
  )
  hashes = {partition_hash(p) for p in (partition, remaining, forgotten, reordered)}
  assert len(hashes) == 4


@pytest.mark.parametrize(
  "count, says",
  [
    (3, "validation_clients=3: leaves none of the 3 clients to train (at most 2)"),
    (9, "validation_clients=9: leaves none of the 3"),
  ],
)
def test_bad_counts_are_named_in_one_line(count, says):
  refuses(lambda: hold_out(split([3, 3, 3], [1, 1, 1]), count, 0), says)
  refuses(lambda: check_hold_out(count, 3), says)


def test_not_twice():
  remaining = hold_out(split([3, 3, 3], [1, 1, 1]), 1, 0)
  assert hold_out(remaining, 0, 0) is remaining
  with pytest.raises(ValueError, match="already"):
    hold_out(remaining, 1, 0)


@given(splits(), st.data())
def test_who_leaves_changes_nothing_of_the_others(partition, draw):
  """Places, rows and validation clients stay, else before and after are unpaired."""
  train = np.flatnonzero(partition.train_size > 0)
  count = draw.draw(st.integers(0, len(train) - 1))
  before = hold_out(partition, count, draw.draw(st.integers(0, 2**31)))
  out = set(draw.draw(st.sets(st.integers(0, partition.num_clients - 1), min_size=1)))
  held_out = set() if count == 0 else set(before.held_out.clients.tolist())
  if not set(train.tolist()) - held_out - out or (count and not held_out - out):
    refuses(
      lambda: leave_out(before, sorted(out), ["x"]), "without=x: leaves no client"
    )
    return
  after = leave_out(before, sorted(out), ["x"])
  assert after.num_clients == before.num_clients
  for place, client in enumerate(before.places.tolist()):
    for which in ("train", "test"):
      expected = [] if client in out else rows(before, which, place)
      assert rows(after, which, place) == expected
  if count:
    np.testing.assert_array_equal(after.held_out.clients, before.held_out.clients)
    starts = allocate.offsets(before.held_out.train_size)
    expected = [
      before.held_out.train_order[start : start + size]
      for client, start, size in zip(
        before.held_out.clients.tolist(), starts, before.held_out.train_size
      )
      if client not in out
    ]
    np.testing.assert_array_equal(after.held_out.train_order, np.concatenate(expected))
  assert partition_hash(put_back(after)) == partition_hash(partition)
  assert put_back(after).flags == partition.flags
