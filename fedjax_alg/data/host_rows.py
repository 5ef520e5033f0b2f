"""Rows of clients that stay on the host.

An array of such rows has a shape and a dtype, but no values inside of a program. Some
of its rows are read when a program is to have them.
"""

from collections.abc import Iterator
import math
from typing import Any

import jax
import numpy as np

from fedjax_alg.errors import RowsOnHostError

#: Bytes of rows that are read at once.
_CHUNK_BYTES = 2**24


@jax.tree_util.register_static
class HostRows:
  """The rows of an array on the host, a constant of a program without values.

  The source is anything with ``shape``, ``dtype`` and rows, ``source[begin:end]``. It
  can be replaced by another of the same shape and dtype while nothing is read.
  """

  def __init__(self, source: Any, blocks: int = 0):
    """Takes the rows of an array.

    Args:
      source: [M, ...] the rows.
      blocks: Q, if the array is one of Q blocks, each in another process; the shape
        is [Q, M, ...] then. 0: it is whole.
    """
    self.source = source
    self.row_shape: tuple[int, ...] = tuple(source.shape[1:])
    self.shape: tuple[int, ...] = (
      (blocks, *source.shape) if blocks else tuple(source.shape)
    )
    self.dtype = np.dtype(source.dtype)

  @property
  def ndim(self) -> int:
    """The number of axes."""
    return len(self.shape)

  @property
  def row_nbytes(self) -> int:
    """The memory of a row."""
    nbytes: int = math.prod(self.row_shape) * self.dtype.itemsize
    return nbytes

  @property
  def nbytes(self) -> int:
    """The memory that all rows would take."""
    nbytes: int = math.prod(self.shape) * self.dtype.itemsize
    return nbytes

  @property
  def block(self) -> "HostRows":
    """The block of this process, as the code of one client sees it."""
    return HostRows(self.source)

  def __len__(self) -> int:
    return self.shape[0]

  def reshape(self, *shape: int) -> "HostRows":
    """The same rows in another shape, if the source can have it."""
    return HostRows(self.source.reshape(*shape))

  def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
    """Reads rows that follow each other, ``rows[begin:end]``, or those of numbers [n].

    Only some sources have the latter.
    """
    result: np.ndarray = self.source[rows]
    return result

  def __jax_array__(self) -> Any:
    raise RowsOnHostError("`data_on`: a program reads rows that are on the host")

  def read_into(self, rows: np.ndarray, offset: np.ndarray, size: np.ndarray) -> None:
    """Copies the rows of some shards, one shard after the other.

    Args:
      rows: [n, ...] the array to write to; n is at least the sum of ``size``.
      offset: [s] int, the first row of each shard.
      size: [s] int, the number of its rows.
    """
    most = max(1, _CHUNK_BYTES // max(1, self.row_nbytes))
    done = 0
    for begin, end in _ranges(offset, size):
      for first in range(begin, end, most):
        last = min(first + most, end)
        rows[done : done + last - first] = self.source[first:last]
        done += last - first


def _ranges(offset: np.ndarray, size: np.ndarray) -> Iterator[tuple[int, int]]:
  """The rows of shards as ranges; shards that follow each other are one range."""
  offset, size = np.asarray(offset, np.int64), np.asarray(size, np.int64)
  offset, size = offset[size > 0], size[size > 0]
  if not len(size):
    return
  is_first = np.concatenate([[True], offset[1:] != (offset + size)[:-1]])
  begins = offset[is_first]
  ends = (offset + size)[np.concatenate([is_first[1:], [True]])]
  yield from zip(begins.tolist(), ends.tolist())
