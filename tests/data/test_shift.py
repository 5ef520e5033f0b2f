"""Shift: which rows clients hold after each event."""

import numpy as np
import pytest

from fedjax_alg.data.errors import DataError
from fedjax_alg.data.partition import client_rows, label_histogram
from fedjax_alg.data.shift import SHIFTS, Choice, SwapAll
from fedjax_alg.part import of_type
from tests.data.reading import arrays, rows
from tests.data.test_hold_out import split

L = 4
C = 14
RNG = np.random.default_rng(5)
PARTITION = split(RNG.integers(1, 12, C), RNG.integers(0, 6, C))
Y_TRAIN = RNG.integers(L, size=2 * PARTITION.train_size.sum() + 1)
Y_TEST = RNG.integers(L, size=2 * PARTITION.test_size.sum() + 1)


def after(kind, event, seed=0, partition=PARTITION):
  text = f"{kind}:share=0.5" if kind.startswith("swap") else kind
  return of_type("shift", text, Choice).apply(partition, Y_TRAIN, Y_TEST, event, seed)


def rows_by_client(partition, which):
  """The rows of each client, sorted."""
  return [tuple(sorted(rows(partition, which, i))) for i in range(C)]


def differing_clients(before, now, which):
  return {
    i
    for i, (a, b) in enumerate(
      zip(rows_by_client(before, which), rows_by_client(now, which))
    )
    if a != b
  }


@pytest.mark.parametrize("kind", ["swap_all", "swap_part"])
def test_no_row_is_lost_or_doubled(kind):
  for event in range(4):
    now = after(kind, event)
    for which in ("train", "test"):
      order, offset, size = arrays(now, which)
      old = getattr(PARTITION, f"{which}_order")
      assert offset.dtype == size.dtype == np.int32
      assert order.shape == old.shape and order.dtype == old.dtype
      assert sorted(order.tolist()) == sorted(old.tolist())
      assert sorted(client_rows(offset, size)) == list(range(len(order)))


def test_swap_all_exchanges_all_data_of_pairs():
  now = after("swap_all", 1)
  np.testing.assert_array_equal(now.train_order, PARTITION.train_order)
  before = list(
    zip(rows_by_client(PARTITION, "train"), rows_by_client(PARTITION, "test"))
  )
  source = [
    before.index(pair)
    for pair in zip(rows_by_client(now, "train"), rows_by_client(now, "test"))
  ]
  swapped = [i for i in range(C) if source[i] != i]
  assert len(swapped) == 6  # half of 14, in pairs
  assert all(source[source[i]] == i for i in range(C))
  # Another event, other pairs.
  assert differing_clients(after("swap_all", 1), after("swap_all", 2), "train") != (
    set(swapped)
  )


def test_swap_part_exchanges_one_class_each():
  now = after("swap_part", 1)
  paired = differing_clients(PARTITION, now, "train")
  assert 0 < len(paired) <= 6
  assert differing_clients(PARTITION, now, "test") <= paired
  old, new = (label_histogram(p, Y_TRAIN, L) for p in (PARTITION, now))
  exchanged = {}
  for i in paired:
    lost = set(rows_by_client(PARTITION, "train")[i]) - set(
      rows_by_client(now, "train")[i]
    )
    (label,) = {int(Y_TRAIN[row]) for row in lost} or {None}
    exchanged[i] = label, lost
    if label is not None:  # all its rows of the class went, of both kinds
      assert len(lost) == old[i, label]
      remaining = {
        row for row in rows_by_client(PARTITION, "test")[i] if Y_TEST[row] == label
      } & set(rows_by_client(now, "test")[i])
      assert not remaining
  for i in paired:
    got = set(rows_by_client(now, "train")[i]) - set(
      rows_by_client(PARTITION, "train")[i]
    )
    assert any(got == lost for j, (_, lost) in exchanged.items() if j != i)
  np.testing.assert_array_equal(new.sum(0), old.sum(0))


def test_increment_shows_more_of_the_same_rows():
  for event, part in enumerate((0.25, 0.5, 0.75, 1.0, 1.0, 1.0)):
    now = after("increment", event)
    np.testing.assert_array_equal(
      now.train_size, np.maximum(np.floor(PARTITION.train_size * part), 1)
    )
    for i in range(C):
      visible = rows(now, "train", i)
      assert visible == rows(PARTITION, "train", i)[: len(visible)]
    np.testing.assert_array_equal(now.test_size, PARTITION.test_size)
  empty = PARTITION._replace(train_size=np.zeros(C, np.int32))
  assert after("increment", 1, partition=empty).train_size.max() == 0


@pytest.mark.parametrize("kind", SHIFTS)
def test_a_function_of_the_split_the_seed_and_the_number(kind):
  before = [np.copy(array) for array in PARTITION[:6]]
  for event in (0, 3):
    first, repeated, other_seed = (after(kind, event, seed=s) for s in (0, 0, 1))
    for a, b in zip(first[:6], repeated[:6]):
      np.testing.assert_array_equal(a, b)
    if kind.startswith("swap") and event:
      assert rows_by_client(first, "train") != rows_by_client(other_seed, "train")
    elif kind != "increment":
      assert rows_by_client(first, "train") == rows_by_client(PARTITION, "train")
  for array, original in zip(PARTITION[:6], before):
    np.testing.assert_array_equal(array, original)


def test_pairs():
  assert SwapAll(share=0.3).num_pairs(20) == 3 and SwapAll(share=1.0).num_pairs(5) == 2
  with pytest.raises(DataError, match="shift=swap_all:share=0.1: .* no pair of 19"):
    SwapAll(share=0.1).check(19)
  with pytest.raises(DataError, match="no pair of 1 clients"):
    SwapAll(share=1.0).check(1)


def test_only_a_shift_with_changes_has_a_period():
  """Else a run without a shift would move its rows, or one with it would not."""
  periods = {kind: of_type("shift", kind, Choice).period for kind in SHIFTS}
  assert periods == {"none": None, "swap_all": 50, "swap_part": 50, "increment": 50}
