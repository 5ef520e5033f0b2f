"""Rows of clients that stay on the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.data import host_rows
from fedjax_alg.data.host_rows import HostRows
from fedjax_alg.errors import RowsOnHostError


class Reader:
  """Rows 0, 1, ..., which counts how often they are read."""

  shape, dtype = (1000, 2), np.float32

  def __init__(self):
    self.read = []

  def __getitem__(self, rows):
    self.read.append((rows.start, rows.stop))
    numbers = np.arange(rows.start, rows.stop, dtype=np.float32)
    return np.stack([numbers, -numbers], 1)


def test_shards_are_read_in_their_order_and_neighbors_at_once():
  source = Reader()
  rows = np.full((9, 2), 7, np.float32)
  HostRows(source).read_into(rows, np.array([10, 13, 500, 2]), np.array([3, 2, 0, 1]))
  np.testing.assert_array_equal(rows[:, 0], [10, 11, 12, 13, 14, 2, 7, 7, 7])
  # A million clients would take a million reads otherwise.
  assert source.read == [(10, 15), (2, 3)]


def test_many_rows_are_read_in_pieces(monkeypatch):
  monkeypatch.setattr(host_rows, "_CHUNK_BYTES", 8 * 4)
  source = Reader()
  rows = np.zeros((10, 2), np.float32)
  HostRows(source).read_into(rows, np.array([5]), np.array([10]))
  assert max(last - first for first, last in source.read) == 4
  np.testing.assert_array_equal(rows[:, 0], np.arange(5, 15))


def test_a_program_has_none_of_the_values():
  rows = HostRows(np.ones((3, 2), np.float32))
  assert jax.tree.leaves(rows) == []
  with pytest.raises(RowsOnHostError, match="data_on"):
    jax.jit(lambda rows: jnp.asarray(rows) + 1)(rows)
