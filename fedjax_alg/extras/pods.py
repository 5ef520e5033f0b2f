"""The client map of several processes, as on a pod; each holds its clients' rows.

The mesh has the axes ``processes`` and ``clients``. A slot is computed by a
device of the process that holds its rows, so the shares of the work are those
of the draw and not equal. Every device therefore loops over its own slots, and
their number is data: a slot of another process costs nothing. Results are
written to their slots and added over the devices; all but one of the terms are
zero, so the sum is exact.

Rows that every process holds (without ``Shard.blocks``: test examples, the
server's rows) are dealt to all devices by size.

A table of clients (``split.Split``) is read and written where its client is
computed, so nothing of it is sent.
"""

from collections.abc import Callable
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
import numpy as np

from fedjax_alg import split, trees
from fedjax_alg.base import Array, Fn, Shard
from fedjax_alg.data import store
from fedjax_alg.data.host_rows import HostRows
from fedjax_alg.data.store import Coded
from fedjax_alg.engine.clients import Update
from fedjax_alg.engine.dealing import AXIS, PROCESSES, balance
from fedjax_alg.typing import PyTree

_REPLICATED, _IN_BLOCKS = PartitionSpec(), PartitionSpec(PROCESSES)
_OF_DEVICES = PartitionSpec((PROCESSES, AXIS))

#: Lanes of a device with ``map_clients``=vmap, in its even share of the slots.
#: More slots than lanes take a second pass.
_LANES = 1.25

#: Leaves of together at most so many bytes are added in one message.
_MESSAGE = 2**20


def _add_up(tree: PyTree, axes: tuple[str, ...] = (PROCESSES, AXIS)) -> Any:
  """Adds the trees of devices up; small leaves travel together.

  Args:
    tree: pytree of arrays, one of every device.
    axes: the axes of the mesh whose devices are added; all by default.

  Returns:
    The sums.
  """
  leaves: list[Any]
  leaves, structure = jax.tree.flatten(tree)
  bools = [leaf.dtype == jnp.bool_ for leaf in leaves]
  leaves = [
    leaf.astype(jnp.int32) if is_bool else leaf for leaf, is_bool in zip(leaves, bools)
  ]
  together: dict[Any, list[int]] = {}
  for i, leaf in enumerate(leaves):
    if leaf.size * leaf.dtype.itemsize <= _MESSAGE // 16:
      together.setdefault(leaf.dtype, []).append(i)
    else:
      leaves[i] = jax.lax.psum(leaf, axes)
  for some in together.values():
    line = jax.lax.psum(jnp.concatenate([leaves[i].ravel() for i in some]), axes)
    first = 0
    for i in some:
      size = leaves[i].size
      leaves[i] = line[first : first + size].reshape(leaves[i].shape)
      first += size
  return jax.tree.unflatten(
    structure,
    [
      leaf.astype(jnp.bool_) if is_bool else leaf
      for leaf, is_bool in zip(leaves, bools)
    ],
  )


def _specs(tree: PyTree) -> PyTree:
  """Returns the sharding of each leaf: whole, or in one block per process."""
  return split.tree_map(
    lambda leaf: leaf.with_block(_IN_BLOCKS), lambda leaf: _REPLICATED, tree
  )


def _own_blocks(tree: PyTree) -> Any:
  """The block of this process, as the code of one client sees it."""
  process = jax.lax.axis_index(PROCESSES)
  return split.tree_map(
    lambda leaf: split.Split(leaf.block[0], leaf.cuts, process), lambda leaf: leaf, tree
  )


def _own_rows(rows: Any) -> Any:
  """The rows of this process; on the host they have no values in either form."""
  return rows.block if isinstance(rows, HostRows) else rows[0]


def _all_blocks(tree: PyTree) -> PyTree:
  """The inverse of ``_own_blocks``."""
  return split.tree_map(
    lambda leaf: split.Split(leaf.block[None], leaf.cuts), lambda leaf: leaf, tree
  )


def keep(mesh: Mesh, cuts: tuple[int, ...], table: PyTree) -> Any:
  """See ``base.MapClients.keep``."""

  def block(leaf):
    blocks = split.Split(None, cuts)

    def on_device(leaf):
      start = jnp.asarray(blocks.starts, jnp.int32)
      return jax.lax.dynamic_slice_in_dim(
        leaf, start[jax.lax.axis_index(PROCESSES)], blocks.height
      )[None]

    return blocks.with_block(
      jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=_REPLICATED,
        out_specs=_IN_BLOCKS,
        check_vma=False,
      )(leaf)
    )

  return split.tree_map(lambda leaf: leaf, block, table)


def _row_specs(shards: Shard) -> Any:
  """The shardings of x and y."""
  rows = _REPLICATED if shards.blocks is None else _IN_BLOCKS
  return store.map_arrays(
    lambda array: (
      Coded(rows, jax.tree.map(lambda _: _REPLICATED, array.values))
      if isinstance(array, Coded)
      else rows
    ),
    (shards.x, shards.y),
  )


def _on_devices(
  mesh: Mesh,
  work: Fn,
  shards: Shard,
  width: int,
  *operands: object,
  out_specs: object = _REPLICATED,
) -> Any:
  """Calls ``work`` on every device, with its slots, as whole results.

  Args:
    mesh: devices with the axes ``processes`` and ``clients``.
    work: (rows, slots, groups, *operands) -> results of the device's own
      slots. ``rows`` is the shard of all slots, [S], with offsets in the rows
      of this process; ``slots`` [S'] int32 holds the device's own slots,
      largest first, then S; they are taken in groups of ``width``, of which
      the first ``groups`` hold all.
    shards: offset and size [S].
    width: slots of a group.
    *operands: pytrees that every device gets whole, but for the rows of other
      processes in a ``split.Split``.
    out_specs: of the results, which are whole by default.

  Returns:
    The results of the devices, which ``work`` has added up.
  """
  processes, cores = mesh.devices.shape
  number = shards.size.shape[0]
  blocks = shards.blocks is not None
  examples, targets = _row_specs(shards)

  def on_device(x, y, offset, size, operands):
    owner = None
    if blocks:
      x, y = (store.map_rows(tree, _own_rows) for tree in (x, y))
      height = store.arrays(y)[0].shape[0]
      owner = offset // height
      offset = offset - owner * height
    device = balance(size, processes * cores, owner=owner, processes=processes)
    is_local = device == jax.lax.axis_index((PROCESSES, AXIS))
    first = jnp.argsort(jnp.where(is_local, -size, 1), stable=True)
    count = is_local.sum(dtype=jnp.int32)
    place = jnp.arange(number, dtype=jnp.int32)
    slots = jnp.where(place < count, first, number).astype(jnp.int32)
    slots = jnp.pad(slots, (0, -number % width), constant_values=number)
    return _all_blocks(
      work(Shard(x, y, offset, size), slots, -(-count // width), *_own_blocks(operands))
    )

  return jax.shard_map(
    on_device,
    mesh=mesh,
    in_specs=(examples, targets, _REPLICATED, _REPLICATED, _specs(operands)),
    out_specs=out_specs,
    check_vma=False,
  )(shards.x, shards.y, shards.offset, shards.size, operands)


def _in_groups(
  fn: Fn, width: int, rows: Shard, slots: Array, shared: PyTree, args: PyTree
) -> Callable[[Array], Any]:
  """Makes the function (group) -> (its slots, results).

  The slots are [width], or [] if the width is 1.
  """

  def run_slot(offset, size, args):
    return fn(shared, Shard(rows.x, rows.y, offset, size), *args)

  def group(i):
    group_slots = jax.lax.dynamic_slice_in_dim(slots, i * width, width)
    if width == 1:
      group_slots = group_slots[0]
    real = group_slots < rows.size.shape[0]
    slot = jnp.where(real, group_slots, 0)
    operands = (
      rows.offset[slot],
      jnp.where(real, rows.size[slot], 0),
      trees.index(args, slot),
    )
    return group_slots, (run_slot if width == 1 else jax.vmap(run_slot))(*operands)

  return group


def _empty(shape: tuple[int, ...], results: PyTree) -> PyTree:
  return jax.tree.map(lambda leaf: jnp.zeros(shape + leaf.shape, leaf.dtype), results)


def compute_update(mode: str, mesh: Mesh, update: Update) -> tuple[Any, Any, Any]:
  """See ``base.MapClients.update``.

  Args:
    mode: ``sequential`` or ``vmap``.
    mesh: devices with the axes ``processes`` and ``clients``.
    update: what is computed.

  Returns:
    The table, the sum, and ``stacked``.
  """
  fn, write, table, weights, shared, shards, (places, _, _, args) = update
  number, width = shards.size.shape[0], 1
  if mode != "sequential":
    width = min(number, math.ceil(_LANES * number / mesh.devices.size))

  def work(rows, slots, groups, table, places, weights, shared, args):

    def with_rows(shared, shard, place, *args):
      return fn(shared, shard, trees.rows(table, place), *args)

    group = _in_groups(with_rows, width, rows, slots, shared, (places, *args))

    def add(i, carry):
      total, out = carry
      group_slots, (written, summed, stacked) = group(i)
      real = group_slots < number
      weight = trees.index(weights, jnp.where(real, group_slots, 0))
      if width > 1:
        weight = jax.tree.map(
          lambda leaf: jnp.where(
            real.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, 0.0
          ),
          weight,
        )
        total = trees.add(total, jax.tree.map(trees.slot_sum, weight, summed))
      else:
        total = jax.tree.map(trees.add_weighted, weight, total, summed)
      return total, trees.set_rows(out, group_slots, (written, stacked))

    results = jax.eval_shape(group, jnp.int32(0))[1]
    written, summed, stacked = (
      results
      if width == 1
      else jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), results
      )
    )
    zero = jax.tree.map(
      lambda weight, part: _empty(weight.shape[1:], part), weights, summed
    )
    # All rows are written at the end: processes take turns of their own.
    total, (written, stacked) = jax.lax.fori_loop(
      jnp.int32(0), groups, add, (zero, _empty((number,), (written, stacked)))
    )
    if split.within(table):
      if mesh.devices.shape[1] > 1:
        written = _add_up(written, (AXIS,))
      total, stacked = _add_up((total, stacked))
    else:
      total, (written, stacked) = _add_up((total, (written, stacked)))
    if jax.tree.leaves(table):
      table = write(table, places, written)
    return table, total, stacked

  result: tuple[Any, Any, Any] = _on_devices(
    mesh,
    work,
    shards,
    width,
    table,
    places,
    weights,
    shared,
    args,
    out_specs=(_specs(table), _REPLICATED, _REPLICATED),
  )
  return result


def total(
  mesh: Mesh,
  fn: Fn,
  zero: Callable[[], PyTree],
  shared: PyTree,
  shards: Shard,
  args: PyTree,
  psum: Callable[[Any, Any], object],
) -> Any:
  """See ``base.MapClients.total``."""

  def work(rows, slots, groups, shared, args):
    def add(i, carry):
      slot = slots[i]
      shard = Shard(rows.x, rows.y, rows.offset[slot], rows.size[slot])
      return fn(carry, shared, shard, *trees.index(args, slot))

    local_total = jax.lax.fori_loop(jnp.int32(0), groups, add, zero())
    return _sum(local_total, psum)

  return _on_devices(mesh, work, shards, 1, shared, args)


def _sum(local_total: PyTree, psum: Callable[[Any, Any], object]) -> Any:
  """The sum of what the devices have added up."""
  if psum is jax.lax.psum:
    return _add_up(local_total)
  return psum(local_total, (PROCESSES, AXIS))


def order_of_total(
  mesh: Mesh, size: np.ndarray, owner: np.ndarray | None
) -> np.ndarray:
  """See ``engine.clients.ClientMap.order_of_total``."""
  owners = None if owner is None else jnp.asarray(owner, jnp.int32)
  device = np.asarray(
    balance(
      jnp.asarray(size), mesh.devices.size, owner=owners, processes=len(mesh.devices)
    )
  )
  largest_first = np.argsort(-size, kind="stable").astype(np.int32)
  orders = [largest_first[device[largest_first] == d] for d in range(mesh.devices.size)]
  result = np.full((len(orders), max(map(len, orders))), len(size), np.int32)
  for row, order in zip(result, orders):
    row[: len(order)] = order
  return result


def add_to(
  mesh: Mesh, before: PyTree, fn: Fn, shared: PyTree, shards: Shard, args: PyTree
) -> Any:
  """See ``engine.clients.ClientMap.add_to``."""

  def on_device(before, x, y, offset, size, shared, args):
    if shards.blocks is not None:
      x, y = (store.map_rows(tree, _own_rows) for tree in (x, y))
      offset %= store.arrays(y)[0].shape[0]

    def add(i, carry):
      shard = Shard(x, y, offset[i], size[i])
      return fn(carry, shared, shard, *trees.index(args, i))

    before = jax.tree.map(lambda leaf: jax.lax.squeeze(leaf, (0,)), before)
    # Those without examples come last, and add nothing.
    count = (size > 0).sum(dtype=jnp.int32)
    sums = jax.lax.fori_loop(jnp.int32(0), count, add, before)
    return jax.tree.map(lambda leaf: jax.lax.expand_dims(leaf, (0,)), sums)

  return jax.shard_map(
    on_device,
    mesh=mesh,
    in_specs=(
      _OF_DEVICES,
      *_row_specs(shards),
      _OF_DEVICES,
      _OF_DEVICES,
      _REPLICATED,
      _OF_DEVICES,
    ),
    out_specs=_OF_DEVICES,
    check_vma=False,
  )(before, shards.x, shards.y, shards.offset, shards.size, shared, args)


def sum_devices(mesh: Mesh, sums: PyTree, psum: Callable[[Any, Any], object]) -> Any:
  """See ``engine.clients.ClientMap.sum_devices``."""

  def on_device(sums):
    return _sum(jax.tree.map(lambda leaf: jax.lax.squeeze(leaf, (0,)), sums), psum)

  return jax.shard_map(
    on_device, mesh=mesh, in_specs=_OF_DEVICES, out_specs=_REPLICATED, check_vma=False
  )(sums)
