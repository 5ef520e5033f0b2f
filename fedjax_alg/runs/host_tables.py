"""What the clients of a run keep, in a file of rows.

A state outside of programs has a ``RowTable`` [N, C, ...]. A program of rounds gets the
rows of the clients that take part (``split.HeldRows``). What it returns of them is
written to the file. No program has the others. The file is beside the checkpoints of
the run, which share its rows. That of a run without a folder has no name.
"""

from collections.abc import Callable, Sequence
import functools
import pathlib
from typing import Any

import jax
from jax import lax
from jax.sharding import Mesh
import numpy as np

from fedjax_alg import memory, split
from fedjax_alg.base import Array
from fedjax_alg.engine import checkpoint, row_file, sharding
from fedjax_alg.engine.row_file import RowFile, RowForm, RowTable, RowVersion
from fedjax_alg.split import Absent, HeldRows
from fedjax_alg.typing import PyTree


class HostTables:
  """The tables in the states of a run.

  Attributes:
    form: the shapes of the states in a program, where a table is a ``HeldRows``
      [N, T, ...].
    folders: of the checkpoints of each setting; none: the tables are in no folder.
  """

  folders: Sequence[pathlib.Path] = ()

  def __init__(self, form: PyTree, mesh: Mesh | None, in_memory: bool = False):
    """Takes what is known of them.

    Args:
      form: the attribute.
      mesh: the devices.
      in_memory: whether tables without a folder are in memory, not on the disk.
    """
    self.form, self._mesh, self._in_memory = form, mesh, in_memory

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

    Raises:
      OptionError: they do not fit into memory, where they are without a folder.
    """
    (clients,) = {table.clients for table in self._tables}
    if self._in_memory and not self.folders:
      memory.refuse(
        "`data_on`=host: what clients keep between rounds",
        clients * self.row_nbytes,
        "allowed: `out_dir`, whose checkpoints have it in a file; `data_on`=disk",
      )
    states = None
    for first in range(0, clients, places):
      ids = np.arange(first, min(first + places, clients), dtype=np.int32)
      part = start(_padded(ids, places, clients))
      if states is None:
        states = self._new(part, clients)
      states = self.write(states, part, ids)
    return states

  def _new(self, states: PyTree, clients: int) -> Any:
    """States in which all clients have the first row of some in a program."""
    blocks = [np.asarray(table.block) for table in self._held_in(states)]
    settings = max(1, len(self.folders))
    seeds = len(blocks[0]) // settings
    form = RowForm(tuple(((seeds, *block.shape[2:]), block.dtype) for block in blocks))
    versions = []
    for setting in range(settings):
      path = self.folders[setting] / checkpoint.ROWS if self.folders else None
      if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
      file = RowFile.new(path, form.nbytes, self._in_memory)
      of_setting = slice(setting * seeds, (setting + 1) * seeds)
      first = form.join([block[None, of_setting, 0] for block in blocks])[0]
      versions.append(RowVersion.new(file, form, first, clients))
    places = [(rows, seed) for rows in versions for seed in range(seeds)]
    numbers = iter(range(len(blocks)))
    return self.map(
      lambda form, table: RowTable(places, next(numbers)),
      lambda form, leaf: leaf,
      states,
    )

  def _held_in(self, states: PyTree) -> list[HeldRows]:
    """The tables of states in a program."""
    leaves = jax.tree.leaves(states, is_leaf=split.is_held)
    return list(filter(split.is_held, leaves))

  def hold(self, states: PyTree, ids: np.ndarray, places: int) -> Any:
    """States for a program.

    Args:
      states: outside of programs.
      ids: [n] int32, clients in increasing order.
      places: T, at least n.

    Returns:
      The states; tables hold the rows of the clients.
    """
    tables = iter(self.tables(states, ids, places))
    return self.map(lambda form, table: next(tables), lambda form, leaf: leaf, states)

  def tables(self, states: PyTree, ids: np.ndarray, places: int) -> list[HeldRows]:
    """The tables of ``hold`` alone, in the order of ``Absent.number``."""
    tables = row_file.tables_of(states)
    clients = tables[0].shape[1]
    owners = np.tile(_padded(ids, places, clients), (len(tables[0]), 1))
    blocks = row_file.read_blocks(tables, ids, places)
    # The memory of all of it is donated, so two must not share their clients.
    pairs = [sharding.replicate((block, owners), self._mesh) for block in blocks]
    return [HeldRows(block, owners, clients) for block, owners in pairs]

  def write(self, states: PyTree, part: PyTree, ids: np.ndarray) -> Any:
    """States outside of programs, with what a program has made of some rows.

    Args:
      states: before the program; the versions of their tables are written to.
      part: what the program returns.
      ids: the clients whose rows it has, see ``hold``.
    """
    blocks = [table.block for table in self._held_in(part)]
    row_file.write_blocks(row_file.tables_of(states), blocks, ids)
    return self.map(
      lambda form, old, new: old, lambda form, old, new: new, states, part
    )

  def of_checkpoint(self, states: PyTree) -> Any:
    """The states of a checkpoint outside of programs.

    Args:
      states: tables are ``RowTable``, or arrays [N, C, ...] of a run that had them on
        the devices.
    """
    return states if row_file.tables_of(states) else self.replace(None, states)

  def replace(self, states: PyTree, arrays: PyTree) -> Any:
    """States with other values in all rows.

    Args:
      states: to which is written; None: new ones are made.
      arrays: tables are arrays [N, C, ...].
    """
    part = self.map(
      lambda form, leaf: HeldRows(np.asarray(leaf), None, form.clients),
      lambda form, leaf: leaf,
      arrays,
    )
    (clients,) = {table.clients for table in self._tables}
    if states is None:
      states = self._new(part, clients)
    return self.write(states, part, np.arange(clients, dtype=np.int32))


def absent(states: PyTree) -> Any:
  """States of which a program has no row of a table.

  Args:
    states: outside of programs.
  """
  return jax.tree.map(
    lambda leaf: (
      Absent(leaf.number, leaf.shape[1:], leaf.dtype)
      if row_file.is_row_table(leaf)
      else leaf
    ),
    states,
  )


def _padded(ids: np.ndarray, places: int, clients: int) -> np.ndarray:
  """Clients [places] in increasing order, C behind the last."""
  padding = np.full(places - len(ids), clients, np.int32)
  return np.concatenate([ids.astype(np.int32), padding])


def copy_rows(states: PyTree, rows: slice, views: bool = False) -> Any:
  """Copies rows of states, of which the next round of a run uses the memory.

  Args:
    states: leaves [N, ...].
    rows: those of a setting.
    views: whether no round comes any more, so that tables stay as they are.
  """
  leaves, structure = jax.tree.flatten(states)
  arrays = [leaf for leaf in leaves if not row_file.is_row_table(leaf)]
  slices = iter(_slice_rows(arrays, rows.start, rows.stop - rows.start))
  states = jax.tree.unflatten(
    structure,
    [leaf[rows] if row_file.is_row_table(leaf) else next(slices) for leaf in leaves],
  )
  return row_file.freeze(states) if views else row_file.copy_versions(states)


@functools.partial(jax.jit, static_argnames="number")
def _slice_rows(arrays: list[Array], start: int, number: int) -> list[Array]:
  """Slices arrays by one program; ``array[rows]`` would compile for each of them."""
  return [lax.dynamic_slice_in_dim(array, start, number) for array in arrays]
