"""How the code of one client is mapped over a cohort.

An algorithm calls ``map_clients(fn, shared, shards, *args)``, or its ``reduce``
where the sum over the clients is enough, whichever of these modes runs it:

- ``sequential``: one client after the other. Best on a CPU, because the loop
  of a client then has only as many steps as this client needs.
- ``vmap``: all clients at once; every loop runs as long as that of the largest
  client. For accelerators.
- ``chunks``: chunks of n clients, one chunk after the other, with ``vmap``
  inside a chunk. Clients of similar size are in the same chunk.

With a mesh with the axis ``clients``, every device takes a share of the slots
with about the same number of examples. On a CPU the devices are its cores
(``sharding.use_host_cores``). If the mesh also has the axis ``processes``, a
slot is computed in the process that holds its rows (``engine.owned``).
"""

from collections.abc import Callable
import math
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, MapClients, Shard
from fedjax_alg.engine import owned
from fedjax_alg.errors import OptionError

AXIS = owned.AXIS
MODES = ("sequential", "vmap", "chunks")


def _deal(size: Array, slots: int, devices: int) -> Array:
  """Distributes the slots over the devices with about equal work.

  The slots are assigned in order of decreasing size, each to the device with
  the least work among those that are not full.

  Args:
    size: [S] int32, examples of each slot.
    slots: S' >= S, a multiple of ``devices``.
    devices: number of devices.

  Returns:
    [S'] int32 slot numbers; numbers >= S are padding. Device d takes the
    S'/devices entries from d * S'/devices on, largest first.
  """
  room = slots // devices
  padded = jnp.concatenate(
      [size, jnp.zeros((slots - size.shape[0],), size.dtype)])
  largest_first = jnp.argsort(-padded, stable=True).astype(jnp.int32)

  def deal(k, carry):
    load, held, order = carry
    device = jnp.argmin(jnp.where(
        held < room, load, jnp.iinfo(jnp.int32).max)).astype(jnp.int32)
    slot = largest_first[k]
    return (load.at[device].add(padded[slot]), held.at[device].add(1),
            order.at[device * room + held[device]].set(slot))

  nothing = jnp.zeros(devices, jnp.int32)
  return jax.lax.fori_loop(
      0, slots, deal, (nothing, nothing, jnp.zeros(slots, jnp.int32)))[2]


def make_map_clients(
    mode: str = "sequential", *, chunk: int = 0, mesh: Mesh | None = None
) -> MapClients:
  """Builds a client map.

  Args:
    mode: one of ``MODES``.
    chunk: clients per chunk and device with mode "chunks".
    mesh: devices with the axis ``clients``, perhaps after an axis
      ``processes``; or None for a single device.

  Returns:
    The client map. Its results do not depend on these arguments, except for
    rounding.

  Raises:
    OptionError: unknown mode, or mode "chunks" without a size.
  """
  if mode not in MODES:
    raise OptionError(
        f"`map_clients`={mode}: must be one of {', '.join(MODES)}")
  if mode == "chunks" and chunk < 1:
    raise OptionError(f"`client_chunk`={chunk}: must be at least 1")
  if mesh is not None and owned.PROCESSES in mesh.axis_names:
    return owned.make_map(mode, chunk, mesh)
  devices = mesh.devices.size if mesh is not None else 1

  def for_one(
      fn: Callable[..., Any], shared: Any, shards: Shard
  ) -> Callable[..., Any]:
    return lambda offset, size, args: fn(
        shared, Shard(shards.x, shards.y, offset, size), *args)

  def in_chunks(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: leaf.reshape((-1, chunk) + leaf.shape[1:]), tree)

  def in_line(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: leaf.reshape((-1,) + leaf.shape[2:]), tree)

  def local_map(
      fn: Callable[..., Any], shared: Any, shards: Shard, args: Any) -> Any:
    one = for_one(fn, shared, shards)
    operands = (shards.offset, shards.size, args)
    if mode == "vmap":
      return jax.vmap(one)(*operands)
    if mode == "sequential":
      return jax.lax.map(lambda slot: one(*slot), operands)
    return in_line(jax.lax.map(
        lambda group: jax.vmap(one)(*group), in_chunks(operands)))

  def local_reduce(
      fn: Callable[..., Any], shared: Any, shards: Shard, weights: Array,
      args: Any) -> tuple[Any, Any]:
    one = for_one(fn, shared, shards)
    operands = (shards.offset, shards.size, args)
    sums = trees.slot_sum if weights.ndim == 1 else trees.slot_sums
    if mode == "vmap":
      summed, stacked = jax.vmap(one)(*operands)
      return sums(weights, summed), stacked

    def add_weighted(total, weight, summed):
      return trees.where(
          weight > 0, trees.add_scaled(total, weight, summed), total)

    def add(total, slot):
      weight, operands = slot
      if mode == "chunks":
        summed, stacked = jax.vmap(one)(*operands)
        return trees.add(total, sums(weight, summed)), stacked
      summed, stacked = one(*operands)
      if weight.ndim:  # one weight for each of K sums
        return jax.vmap(add_weighted, (0, 0, None))(
            total, weight, summed), stacked
      return add_weighted(total, weight, summed), stacked

    zero = jax.tree.map(
        lambda leaf: jnp.zeros(weights.shape[1:] + leaf.shape, leaf.dtype),
        jax.eval_shape(one, *trees.index(operands, 0))[0])
    slots = (weights, operands)
    if mode == "sequential":
      return jax.lax.scan(add, zero, slots)
    total, stacked = jax.lax.scan(add, zero, in_chunks(slots))
    return total, in_line(stacked)

  def deal(shards: Shard, multiple: int) -> tuple[Array, Shard]:
    """(order, shards), balanced so that each device's slots are contiguous."""
    slots = shards.size.shape[0]
    padded = math.ceil(slots / multiple) * multiple
    order = _deal(shards.size, padded, devices)
    real = jnp.minimum(order, slots - 1)
    # A padding slot repeats the last client with no data.
    size = jnp.where(order < slots, shards.size[real], 0)
    return order, Shard(shards.x, shards.y, shards.offset[real], size)

  def rows_of(order: Array, slots: int, args: Any) -> Any:
    real = jnp.minimum(order, slots - 1)
    return jax.tree.map(lambda leaf: leaf[real], args)

  spec: Any = PartitionSpec(AXIS)
  whole: Any = PartitionSpec()
  over_slots = Shard(whole, whole, spec, spec)

  multiple = devices * (chunk if mode == "chunks" else 1)

  def in_order(out: Any, back: Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[back], out)

  def map_clients(
      fn: Callable[..., Any], shared: Any, shards: Shard, *args: Any) -> Any:
    slots = shards.size.shape[0]
    if devices == 1 and mode != "chunks":
      return local_map(fn, shared, shards, args)
    order, dealt = deal(shards, multiple)
    args = rows_of(order, slots, args)
    back = jnp.argsort(order)[:slots]
    if devices == 1:
      return in_order(local_map(fn, shared, dealt, args), back)

    def on_device(shared, dealt, args, back):
      # Gathered here, so that later computations are not split over the mesh.
      out = local_map(fn, shared, dealt, args)
      return in_order(jax.lax.all_gather(out, AXIS, tiled=True), back)

    return jax.shard_map(
        on_device, mesh=mesh, in_specs=(whole, over_slots, spec, whole),
        out_specs=whole, check_vma=False)(shared, dealt, args, back)

  def reduce(
      fn: Callable[..., Any], weights: Array, shared: Any, shards: Shard,
      *args: Any) -> tuple[Any, Any]:
    slots = shards.size.shape[0]
    if devices == 1 and mode != "chunks":
      return local_reduce(fn, shared, shards, weights, args)
    order, dealt = deal(shards, multiple)
    weights, args = rows_of(order, slots, (weights, args))
    real = (order < slots).reshape((-1,) + (1,) * (weights.ndim - 1))
    weights = jnp.where(real, weights, 0.0)
    back = jnp.argsort(order)[:slots]
    if devices == 1:
      total, stacked = local_reduce(fn, shared, dealt, weights, args)
      return total, in_order(stacked, back)

    def on_device(shared, dealt, weights, args, back):
      total, stacked = local_reduce(fn, shared, dealt, weights, args)
      return jax.lax.psum(total, AXIS), in_order(
          jax.lax.all_gather(stacked, AXIS, tiled=True), back)

    return jax.shard_map(
        on_device, mesh=mesh, in_specs=(whole, over_slots, spec, spec, whole),
        out_specs=whole, check_vma=False)(shared, dealt, weights, args, back)

  def total(
      fn: Callable[..., Any], zero: Callable[[], Any], shared: Any,
      shards: Shard, *args: Any
  ) -> Any:

    def over_own(shared, shards, args):
      def add(carry, slot):
        offset, size, args = slot
        shard = Shard(shards.x, shards.y, offset, size)
        return fn(carry, shared, shard, *args), None

      return jax.lax.scan(add, zero(), (shards.offset, shards.size, args))[0]

    if devices == 1:
      return over_own(shared, shards, args)
    order, dealt = deal(shards, devices)
    args = rows_of(order, shards.size.shape[0], args)

    def on_device(shared, dealt, args):
      return jax.lax.psum(over_own(shared, dealt, args), AXIS)

    return jax.shard_map(
        on_device, mesh=mesh, in_specs=(whole, over_slots, spec),
        out_specs=whole, check_vma=False)(shared, dealt, args)

  return owned.ClientMap(map_clients, reduce, total)
