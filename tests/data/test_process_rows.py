"""Which training rows a process holds."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data.allocate import MOST_ROWS, offsets
from fedjax_alg.data.process_rows import Process, cut, set_process


@given(
  st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any),
  st.integers(1, 6),
  st.randoms(use_true_random=False),
)
def test_processes_have_all_rows_and_cut_no_client(sizes, processes, random):
  size = np.array(sizes)
  order = np.arange(len(size))
  random.shuffle(order)  # clients need not lie in the order of their ids
  offset = np.zeros(len(size), int)
  offset[order] = np.cumsum(size[order]) - size[order]
  places, seen = set(), np.zeros(size.sum(), int)
  for process in range(processes):
    rows = cut(Process(process, processes), offset, size, 7)
    places.add(rows.places)
    seen[rows.own] += 1
    assert rows.own.stop - rows.own.start + 7 <= rows.places
    inside = (offset >= rows.own.start) & (offset < rows.own.stop)
    assert (offset + size)[inside & (size > 0)].max(initial=0) <= rows.own.stop
  assert len(places) == 1 and (seen == 1).all()
  # No process has more than its share by more than the largest client.
  assert places.pop() - 7 <= size.sum() / processes + size.max()
  block, row = np.divmod(rows.place_in_blocks(offset), rows.places)
  np.testing.assert_array_equal(rows.cuts[block] + row, offset)
  clients = rows.clients(offset)
  if (np.sort(block) == block).all():
    assert np.repeat(np.arange(processes), np.diff(clients)).tolist() == (
      block.tolist()
    )
  else:
    assert clients is None


@pytest.fixture(name="halves")
def fixture_halves():
  """The federation of each of two processes, and the whole one."""
  federations = []
  for process in (Process(0, 2), Process(1, 2), Process()):
    set_process(process)
    federations.append(
      fa.federate(
        "digits", partition="classes", num_clients=12, validation_clients=2, seed=3
      )
    )
  return federations


def test_a_process_lays_out_its_own_rows(halves):
  *parts, undivided = halves
  assert undivided.rows is None
  for part in parts:
    assert part.hashes == undivided.hashes
    assert part.data.train.x.shape[0] == part.rows.places
    np.testing.assert_array_equal(part.data.train.size, undivided.data.train.size)
  for client in range(undivided.num_clients):
    x, y = undivided.client(client)
    examples = []
    for part in parts:
      try:
        examples.append(part.client(client))
      except fa.DataError as error:
        assert f"client={client}: its rows are in another" in str(error)
    assert len(examples) == 1
    np.testing.assert_array_equal(examples[0][0], x)
    np.testing.assert_array_equal(examples[0][1], y)


def test_a_federation_of_other_processes_is_refused(halves):
  with pytest.raises(fa.OptionError, match="made for 2 processes"):
    fa.run("fedavg", halves[0], rounds=1, cohort_size=2, evaluate="global")


def test_more_rows_than_offsets_count_are_refused():
  """They would wrap, and a client read the rows of another one."""
  many = np.array([2**30, 2**30])
  with pytest.raises(fa.DataError, match="dataset"):
    offsets(many)
  with pytest.raises(fa.DataError, match="dataset.*processes"):
    cut(Process(0, 2), np.array([0, 2**30]), many, 1)
  last = offsets(np.array([2**30, MOST_ROWS - 2**30, 0]))
  np.testing.assert_array_equal(last, [0, 2**30, MOST_ROWS])
