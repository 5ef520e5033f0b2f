"""Tables of clients of which every process holds the rows of its own clients.

In a run of several processes a table [C, ...] (what clients keep between
rounds) is a tree whose leaves are ``Split``: blocks of rows, one in each
process. ``rows``, ``add_rows``, ``set_rows`` and ``where_rows`` take the client
ids that they take of whole arrays, so code that uses them (``trees`` has them,
too) does not know of it.
"""

from collections.abc import Callable, Iterable
import dataclasses
import math
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.errors import RowsOnHostError
from fedjax_alg.typing import Array, PyTree, Tree

_KEY = jax.tree_util.GetAttrKey("")


@jax.tree_util.register_pytree_with_keys_class
class Split:
  """An array [C, ...] whose rows are shared out over processes.

  Process q owns the clients cuts[q] <= client < cuts[q + 1]. Its block has T
  rows, the largest number of clients of a process: those of the clients from
  ``starts[q]`` on, its own among them. What a block has of others' clients is
  of no meaning.
  """

  def __init__(self, block: Any, cuts: Iterable[int], process: Array | None = None):
    """Makes the array of its blocks.

    Args:
      block: [Q, T, ...]; in the code of one client the block of the process
        that computes it, [T, ...].
      cuts: Q + 1 numbers, the first client of each process, and C.
      process: [] int32, the process, in the code of one client; else None.
    """
    self.block, self.cuts, self.process = block, tuple(cuts), process

  def tree_flatten_with_keys(self):
    """The leaf, whose path is that of the table, and what is static."""
    return ((_KEY, self.block), (_KEY, self.process)), self.cuts

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

  def owned_rows(self, process: int) -> slice:
    """The rows of a process's block that it owns."""
    start = self.starts[process]
    return slice(self.cuts[process] - start, self.cuts[process + 1] - start)

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of the array that it stands for."""
    return self.cuts[-1], *self.block.shape[2 - (self.process is not None) :]

  @property
  def of_states(self) -> tuple[int, ...]:
    """[N, C, ...], the shape that blocks [N, Q, T, ...] of states stand for."""
    return self.block.shape[0], self.cuts[-1], *self.block.shape[3:]

  @property
  def dtype(self) -> np.dtype:
    """The dtype of the array that it stands for."""
    dtype: np.dtype = self.block.dtype
    return dtype

  @property
  def ndim(self) -> int:
    """The number of axes of the array that it stands for."""
    return len(self.shape)

  def _place(self, ids: Array) -> tuple[tuple[Array, ...], Array, Array]:
    """The block of rows, their places in it, and which of them it owns."""
    cuts = jnp.asarray(self.cuts, jnp.int32)
    owner = self.process
    if owner is None:
      owner = jnp.searchsorted(cuts[1:-1], ids, side="right")
    is_owned = (cuts[owner] <= ids) & (ids < cuts[owner + 1])
    place = ids - jnp.asarray(self.starts, jnp.int32)[owner]
    return (owner,) if self.process is None else (), place, is_owned

  def rows(self, ids: Array) -> Array:
    """See ``rows``; in the code of one client, others' are arbitrary."""
    block, place, _ = self._place(ids)
    taken: Array = self.block.at[*block, place].get(mode="clip")
    return taken

  def writable(self, ids: Array) -> Any:
    """``block.at`` of rows; others' are out of range, as in ``rows``."""
    block, place, is_owned = self._place(ids)
    return self.block.at[*block, jnp.where(is_owned, place, self.height)]

  @property
  def clients(self) -> np.ndarray:
    """[Q, T], the client of each row of the blocks."""
    return np.add.outer(self.starts, np.arange(self.height))

  def with_block(self, block: Array) -> "Split":
    """The same rows of the same clients with other values."""
    return Split(block, self.cuts, self.process)


@jax.tree_util.register_pytree_with_keys_class
class HeldRows:
  """An array [C, ...] of which the devices hold the rows of some clients.

  The others are on the host (``runs.host_tables``). A row that is not held is
  arbitrary where it is read, and is not written.
  """

  def __init__(self, block: Any, ids: Any, clients: int):
    """Makes the array of its rows.

    Args:
      block: [T, ...], the rows.
      ids: [T] int32, their clients in increasing order; C for a row of nobody.
      clients: C.
    """
    self.block, self.ids, self.clients = block, ids, clients

  def tree_flatten_with_keys(self):
    """The leaves, of which the first has the path of the table, and what is static."""
    return ((_KEY, self.block), (_KEY, self.ids)), self.clients

  @classmethod
  def tree_unflatten(cls, clients, children):
    """The inverse of ``tree_flatten_with_keys``."""
    return cls(children[0], children[1], clients)

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of the array that it stands for."""
    return self.clients, *self.block.shape[1:]

  @property
  def dtype(self) -> np.dtype:
    """The dtype of the array that it stands for."""
    dtype: np.dtype = self.block.dtype
    return dtype

  def rows(self, ids: Array) -> Array:
    """See ``rows``."""
    taken: Array = self.block.at[jnp.searchsorted(self.ids, ids)].get(mode="clip")
    return taken

  def writable(self, ids: Array) -> Any:
    """``block.at`` of rows; those that are not held are out of range."""
    place = jnp.searchsorted(self.ids, ids)
    is_held = self.ids.at[place].get(mode="clip") == ids
    is_held &= ids < self.clients
    return self.block.at[jnp.where(is_held, place, self.block.shape[0])]

  def with_block(self, block: Array) -> "HeldRows":
    """The same rows of the same clients with other values."""
    return HeldRows(block, self.ids, self.clients)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Absent:
  """An array [C, ...] of which the devices hold no row, and no values in a program."""

  number: int  #: of the table among those of a state
  shape: tuple[int, ...]
  dtype: np.dtype

  def rows(self, ids: Array) -> Array:
    """Refuses to read rows.

    Raises:
      RowsOnHostError: always.
    """
    raise RowsOnHostError("`data_on`: a program reads states of clients on the host")

  writable = rows


def is_held(leaf: object) -> TypeGuard[HeldRows]:
  """Whether a part of a tree is a ``HeldRows``."""
  return isinstance(leaf, HeldRows)


def is_absent(leaf: object) -> TypeGuard[Absent]:
  """Whether a part of a tree is an ``Absent``."""
  return isinstance(leaf, Absent)


def _map_tables(
  of_parts: Callable[..., object],
  plain: Callable[..., object],
  tree: Tree,
  *trees: PyTree,
) -> Tree:
  """``tree_map`` with the first function for ``HeldRows`` and ``Absent``, too."""

  def is_table(leaf):
    return isinstance(leaf, (Split, HeldRows, Absent))

  mapped: Tree = jax.tree.map(
    lambda leaf, *others: (of_parts if is_table(leaf) else plain)(leaf, *others),
    tree,
    *trees,
    is_leaf=is_table,
  )
  return mapped


def is_split(leaf: object) -> TypeGuard[Split]:
  """Whether a part of a tree is a ``Split``."""
  return isinstance(leaf, Split)


def leaves(tree: PyTree) -> list[Any]:
  """The leaves of a tree, a ``Split`` being one."""
  return jax.tree.leaves(tree, is_leaf=is_split)


def within(tree: PyTree) -> bool:
  """Whether something of the tree is shared out over processes."""
  return any(map(is_split, leaves(tree)))


def nbytes(tree: PyTree) -> int:
  """The bytes of a tree that one process holds.

  Args:
    tree: arrays, or shapes and dtypes.
  """
  return sum(
    math.prod(leaf.block.shape) // (len(leaf.cuts) - 1) * leaf.dtype.itemsize
    if is_split(leaf)
    else leaf.size * leaf.dtype.itemsize
    for leaf in leaves(tree)
  )


def tree_map(
  split: Callable[..., object],
  plain: Callable[..., object],
  tree: Tree,
  *trees: PyTree,
) -> Tree:
  """``jax.tree.map`` with a function for every ``Split``, one for arrays."""
  mapped: Tree = jax.tree.map(
    lambda leaf, *others: (split if is_split(leaf) else plain)(leaf, *others),
    tree,
    *trees,
    is_leaf=is_split,
  )
  return mapped


def rows(table: Tree, ids: Array) -> Tree:
  """Takes rows ``ids`` [S] of a table [C, ...].

  An id out of range gives an arbitrary row.
  """
  return _map_tables(
    lambda leaf: leaf.rows(ids), lambda leaf: leaf.at[ids].get(mode="clip"), table
  )


def add_rows(table: Tree, ids: Array, changes: PyTree) -> Tree:
  """Adds ``changes`` [S, ...] to rows ``ids``; ignores ids out of range."""
  return _map_tables(
    lambda leaf, new: leaf.with_block(leaf.writable(ids).add(new, mode="drop")),
    lambda leaf, new: leaf.at[ids].add(new, mode="drop"),
    table,
    changes,
  )


def set_rows(table: Tree, ids: Array, values: PyTree) -> Tree:
  """Sets rows ``ids`` to ``values`` [S, ...]; ignores ids out of range."""
  return _map_tables(
    lambda leaf, new: leaf.with_block(leaf.writable(ids).set(new, mode="drop")),
    lambda leaf, new: leaf.at[ids].set(new, mode="drop"),
    table,
    values,
  )


def where_rows(mask: Array, values: PyTree, table: Tree) -> Tree:
  """``values`` [C, ...] in the rows where ``mask`` [C] is true, else the table's.

  Not in the code of one client.
  """

  def select(mask, new, old):
    mask = mask.reshape(mask.shape + (1,) * (old.ndim - mask.ndim))
    return jnp.where(mask, new, old)

  return tree_map(
    lambda leaf, new: leaf.with_block(
      select(mask[leaf.clients], new[leaf.clients], leaf.block)
    ),
    lambda leaf, new: select(mask, new, leaf),
    table,
    values,
  )


def num_rows(table: PyTree) -> int:
  """The number of rows of a table [C, ...]."""
  shapes = list[tuple[int, ...]]()
  shape = lambda leaf: shapes.append(leaf.shape)
  _map_tables(shape, shape, table)
  return shapes[0][0]
