"""What the clients of a run keep, in the memory of the host.

A state outside of programs has a table [N, C, ...] as an array of NumPy. A program of
rounds gets the rows of the clients of a window (``split.HeldRows``). What it returns
of them is written to the array. No program has the others.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh
import numpy as np

from fedjax_alg import split
from fedjax_alg.engine import sharding
from fedjax_alg.split import Absent, HeldRows
from fedjax_alg.typing import PyTree


class HostTables:
  """The tables in the states of a run."""

  def __init__(self, form: PyTree, mesh: Mesh | None):
    """Takes what is known of them.

    Args:
      form: the shapes of the states in a program, where a table is a ``HeldRows``
        [N, T, ...].
      mesh: the devices.
    """
    self.form, self._mesh = form, mesh

  @property
  def _tables(self) -> list[HeldRows]:
    return list(
      filter(split.is_held, jax.tree.leaves(self.form, is_leaf=split.is_held))
    )

  @property
  def row_nbytes(self) -> int:
    """The memory of the rows of one client, of all seeds."""
    blocks = [table.block for table in self._tables]
    return sum(block.size // block.shape[1] * block.dtype.itemsize for block in blocks)

  def map(
    self, table: Callable[..., Any], plain: Callable[..., Any], *states: Any
  ) -> Any:
    """Maps functions over tables and the other leaves of states.

    Args:
      table: (its ``HeldRows`` in the form, that of each state) -> a tree.
      plain: the same for other leaves.
      *states: outside of programs or in one.
    """
    return jax.tree.map(
      lambda form, *leaves: (table if split.is_held(form) else plain)(form, *leaves),
      self.form,
      *states,
      is_leaf=split.is_held,
    )

  @property
  def shapes(self) -> Any:
    """The shapes of states outside of programs."""

    def shape(table: HeldRows) -> jax.ShapeDtypeStruct:
      rows, _, *rest = table.block.shape
      return jax.ShapeDtypeStruct((rows, table.clients, *rest), table.dtype)

    return self.map(shape, lambda leaf: leaf)

  def make(self, start: Callable[[np.ndarray], PyTree], places: int) -> Any:
    """Makes the states before round 1.

    Args:
      start: (clients [places]) -> states in a program, which hold these.
      places: T.

    Returns:
      The states outside of programs.
    """
    (clients,) = {table.clients for table in self._tables}
    states = None
    for first in range(0, clients, places):
      ids = np.arange(first, min(first + places, clients), dtype=np.int32)
      part = start(_padded(ids, places, clients))
      if states is None:
        states = self.map(
          lambda form, new: np.empty(
            (len(new.block), clients, *new.block.shape[2:]), new.dtype
          ),
          lambda form, leaf: leaf,
          part,
        )
      states = self.write(states, part, ids)
    return states

  def hold(self, states: PyTree, ids: np.ndarray, places: int) -> Any:
    """States for a program.

    Args:
      states: outside of programs.
      ids: [n] int32, clients in increasing order.
      places: T, at least n.

    Returns:
      The states; tables hold the rows of the clients.
    """
    return self.map(
      lambda form, table: self._held(form.clients, table, ids, places),
      lambda form, leaf: leaf,
      states,
    )

  def tables(self, states: PyTree, ids: np.ndarray, places: int) -> list[HeldRows]:
    """The tables of ``hold`` alone, in the order of ``Absent.number``."""
    leaves = jax.tree.leaves(self.hold(states, ids, places), is_leaf=split.is_held)
    return list(filter(split.is_held, leaves))

  def _held(self, clients: int, table: Any, ids: np.ndarray, places: int) -> HeldRows:
    table = np.asarray(table)
    block = np.zeros((len(table), places, *table.shape[2:]), table.dtype)
    block[:, : len(ids)] = table[:, ids]
    owners = np.tile(_padded(ids, places, clients), (len(table), 1))
    block, owners = sharding.replicate((block, owners), self._mesh)
    return HeldRows(block, owners, clients)

  def write(self, states: PyTree, part: PyTree, ids: np.ndarray) -> Any:
    """States outside of programs, with what a program has made of some rows.

    Args:
      states: before the program; the memory of their tables is used.
      part: what the program returns.
      ids: the clients whose rows it has, see ``hold``.
    """

    def write(form: HeldRows, table: Any, new: HeldRows) -> Any:
      if not isinstance(table, np.ndarray) or not table.flags.writeable:
        table = np.array(table)
      table[:, ids] = np.asarray(new.block)[:, : len(ids)]
      return table

    return self.map(write, lambda form, old, new: new, states, part)

  def absent(self, states: PyTree) -> Any:
    """States of which a program has no row of a table.

    Args:
      states: outside of programs.
    """
    numbers = iter(range(len(self._tables)))
    return self.map(
      lambda form, table: Absent(next(numbers), table.shape[1:], form.dtype),
      lambda form, leaf: leaf,
      states,
    )


def _padded(ids: np.ndarray, places: int, clients: int) -> np.ndarray:
  """Clients [places] in increasing order, C behind the last."""
  padding = np.full(places - len(ids), clients, np.int32)
  return np.concatenate([ids.astype(np.int32), padding])


def copy_rows(states: PyTree, rows: Any, views: bool = False) -> Any:
  """Copies rows of states, of which the next round of a run uses the memory.

  Args:
    states: leaves [N, ...].
    rows: an index or a slice.
    views: whether tables on the host are not copied, as no round comes any more.
  """
  return jax.tree.map(
    lambda leaf: (
      leaf[rows].copy() if isinstance(leaf, np.ndarray) and not views else leaf[rows]
    ),
    states,
  )
