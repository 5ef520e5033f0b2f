"""Tables of clients of which every process holds the rows of its own clients.

In a run of several processes a table [C, ...] (what clients keep between
rounds) is a tree whose leaves are ``Split``: blocks of rows, one in each
process. ``trees.rows``, ``trees.set_rows`` and ``trees.add_rows`` take the
client ids they always take, so code that uses them does not know of it.
"""

from collections.abc import Iterable
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: The place of the rows in the path of a leaf.
KEY = jax.tree_util.GetAttrKey("rows of a process")


@jax.tree_util.register_pytree_with_keys_class
class Split:
  """An array [C, ...] whose rows are shared out over processes.

  Process q owns the clients cuts[q] <= client < cuts[q + 1]. Its block has T
  rows, the largest number of clients of a process: those of the clients from
  ``starts[q]`` on, its own among them. What a block has of others' clients is
  of no meaning.
  """

  def __init__(self, block: Any, cuts: Iterable[int], process: Any = None):
    """Makes the array of its blocks.

    Args:
      block: [Q, T, ...]; in the code of one client the block of the process
        that computes it, [T, ...].
      cuts: Q + 1 numbers, the first client of each process, and C.
      process: [] int32, the process, in the code of one client; else None.
    """
    self.block, self.cuts, self.process = block, tuple(cuts), process

  def tree_flatten_with_keys(self):
    """The leaf, and what a program is compiled for."""
    return ((KEY, self.block), (KEY, self.process)), self.cuts

  @classmethod
  def tree_unflatten(cls, cuts, children):
    """The inverse of ``tree_flatten_with_keys``."""
    return cls(children[0], cuts, children[1])

  @property
  def height(self) -> int:
    """T, the rows of a block."""
    return max(last - first for first, last in zip(self.cuts, self.cuts[1:]))

  @property
  def starts(self) -> list[int]:
    """[Q], the first client of each block."""
    return [min(first, self.cuts[-1] - self.height) for first in self.cuts[:-1]]

  def owned(self, process: int) -> slice:
    """The rows of a process's block that it owns."""
    start = self.starts[process]
    return slice(self.cuts[process] - start, self.cuts[process + 1] - start)

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of the array that it stands for."""
    return self.cuts[-1], *self.block.shape[2 - (self.process is not None):]

  @property
  def dtype(self) -> Any:
    """The dtype of the array that it stands for."""
    return self.block.dtype

  @property
  def ndim(self) -> int:
    """The number of axes of the array that it stands for."""
    return len(self.shape)

  @property
  def at(self) -> "_At":
    """``at[ids].get(mode="clip")``, and ``add`` and ``set`` as of an array.

    In the code of one client rows of other processes are not written, and read
    as arbitrary rows.
    """
    return _At(self)

  def where(self, chosen: Any, rows: Any) -> "Split":
    """``rows`` [C, ...] of the clients that are ``chosen`` [C], else its own.

    Not in the code of one client.
    """
    clients = np.add.outer(self.starts, np.arange(self.height))
    taken = chosen[clients].reshape(
        clients.shape + (1,) * (self.block.ndim - 2))
    return self.with_block(jnp.where(taken, rows[clients], self.block))

  def with_block(self, block: Any) -> "Split":
    """The same rows of the same clients with other values."""
    return Split(block, self.cuts, self.process)


class _At:
  """Which rows of a ``Split`` are meant."""

  def __init__(self, table: Split):
    self._table = table

  def __getitem__(self, ids: Any) -> "_Rows":
    return _Rows(self._table, ids)


class _Rows:
  """Some rows of a ``Split``; ``there``: which of them can be read."""

  def __init__(self, table: Split, ids: Any):
    self._table = table
    cuts = jnp.asarray(table.cuts, jnp.int32)
    starts = jnp.asarray(table.starts, jnp.int32)
    owner = table.process
    if owner is None:
      owner = jnp.searchsorted(cuts[1:-1], ids, side="right")
    self._place = ids - starts[owner]
    self.there = (cuts[owner] <= ids) & (ids < cuts[owner + 1])
    self._of = (owner,) if table.process is None else ()

  def get(self, mode: str) -> Any:
    """See ``Split.at``."""
    return self._table.block.at[*self._of, self._place].get(mode=mode)

  def _writable(self) -> Any:
    place = jnp.where(self.there, self._place, self._table.height)
    return self._table.block.at[*self._of, place]

  def add(self, rows: Any, mode: str) -> Split:
    """See ``Split.at``."""
    return self._table.with_block(self._writable().add(rows, mode=mode))

  def set(self, rows: Any, mode: str) -> Split:
    """See ``Split.at``."""
    return self._table.with_block(self._writable().set(rows, mode=mode))


def is_split(leaf: Any) -> bool:
  """Whether a part of a tree is a ``Split``."""
  return isinstance(leaf, Split)


def leaves(tree: Any) -> list[Any]:
  """The leaves of a tree, a ``Split`` being one."""
  return jax.tree.leaves(tree, is_leaf=is_split)


def within(tree: Any) -> bool:
  """Whether something of the tree is shared out over processes."""
  return any(map(is_split, leaves(tree)))


def nbytes(tree: Any) -> int:
  """The bytes of a tree that one process holds.

  Args:
    tree: arrays, or shapes and dtypes.
  """
  return sum(
      math.prod(leaf.block.shape) // (len(leaf.cuts) - 1) * leaf.dtype.itemsize
      if is_split(leaf) else leaf.size * leaf.dtype.itemsize
      for leaf in leaves(tree))
