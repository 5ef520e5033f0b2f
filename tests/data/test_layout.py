"""Clients back to back."""

import hypothesis
from hypothesis import strategies
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.data import layout
from tests.data.reading import rows_of


@hypothesis.given(strategies.integers(0, 10**9))
def test_places_are_few_numbers_with_room_behind_the_rows(rows):
  """Else a block of rows ends in others, or each partition has its own program."""
  least, places = rows + layout.PADDING_ROWS, layout.num_places(rows)
  assert least <= places <= least * 17 / 16
  assert layout.num_places(rows + places - least) == places  # the step is full


def test_client_data_permutes_and_pads():
  x = np.arange(12, dtype=np.float64).reshape(6, 2)
  y = np.array([0, 1, 2, 3, 4, 5])
  data = layout.client_data(
    x, y, np.array([4, 0, 5, 2]), np.array([0, 1]), np.array([1, 3])
  )
  assert data.x.dtype == jnp.float32
  assert data.y.dtype == data.offset.dtype == data.size.dtype == jnp.int32
  assert data.x.shape == (layout.num_places(4), 2)
  assert data.y.shape == (layout.num_places(4),)
  np.testing.assert_array_equal(rows_of(data, 0)[0], x[[4]])
  np.testing.assert_array_equal(rows_of(data, 1)[0], x[[0, 5, 2]])
  np.testing.assert_array_equal(rows_of(data, 1)[1], [0, 5, 2])
  assert not np.asarray(data.x[4:]).any() and not np.asarray(data.y[4:]).any()
  tokens = layout.client_data(
    x.astype(int), y, np.arange(6), np.array([0]), np.array([6])
  )
  assert tokens.x.dtype == jnp.int32


@pytest.mark.parametrize(
  "change, says",
  [
    (dict(y=np.arange(7)), "as many rows in every array"),  # labels slip
    (dict(x={"a": np.zeros((6, 2)), "b": np.zeros(7)}), "as many rows in"),
    (dict(offset=np.array([0])), "one entry for each client"),
    (dict(joins=np.array([0])), "one entry for each client"),
  ],
)
def test_client_data_that_does_not_fit_together_is_refused(change, says):
  good = dict(
    x=np.zeros((6, 2)),
    y=np.arange(6),
    order=np.arange(4),
    offset=np.array([0, 1]),
    size=np.array([1, 3]),
    joins=np.array([0, 2]),
  )
  layout.client_data(**good)
  with pytest.raises(AssertionError, match=says):
    layout.client_data(**good | change)


def test_client_data_of_several_arrays_and_of_other_targets():
  """Each array is laid out as if it were alone, of one part or of two."""
  rng, order = np.random.default_rng(1), np.array([4, 0, 5, 2])
  x = {"pixels": rng.integers(0, 9, (6, 2)), "age": rng.random((6, 1))}
  y = rng.random((6, 3))
  ends = np.array([0, 1]), np.array([1, 3])
  for undivided in (False, True):
    halves = [
      jax.tree.map(lambda a, rows=rows: a[rows], (x, y))
      for rows in (slice(0, 2), slice(2, 6))
    ]
    xs, ys = (x, y) if undivided else tuple(zip(*halves))
    data = layout.client_data(xs, ys, order, *ends)
    for name, dtype in (("pixels", np.int32), ("age", np.float32)):
      assert data.x[name].dtype == dtype
      np.testing.assert_array_equal(data.x[name][:4], x[name][order].astype(dtype))
    np.testing.assert_array_equal(data.y[:4], y[order].astype(np.float32))
    assert layout.num_example_rows(data) == layout.num_places(4)


def test_client_data_reads_several_arrays_as_one():
  x = np.random.default_rng(0).random((10000, 3)).astype(np.float32)
  y = np.arange(10000, dtype=np.int32)
  order = np.random.default_rng(1).permutation(10000)
  split = layout.client_data(
    (x[:7000], x[7000:]), y, order, np.array([0]), np.array([10000])
  )
  np.testing.assert_array_equal(np.asarray(split.x[:10000]), x[order])
  np.testing.assert_array_equal(np.asarray(split.y[:10000]), y[order])
