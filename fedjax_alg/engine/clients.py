"""How the code of one client is mapped over a cohort.

An algorithm calls ``map_clients(fn, shared, shards, *args)``, or its ``reduce``
where the sum over the clients is enough (``update`` if they keep something
besides), whichever of these modes runs it:

- ``sequential``: one client after the other. Best on a CPU, because the loop
  of a client then has only as many steps as this client needs.
- ``vmap``: all clients at once; every loop runs as long as that of the largest
  client. For accelerators.
- ``chunks``: chunks of n clients, one chunk after the other, with ``vmap``
  inside a chunk. Clients of similar size are in the same chunk.
- ``lanes``: n clients at once, and who has finished makes room for the next
  (``engine.lanes``). For accelerators, where clients differ in size.

With a mesh with the axis ``clients``, every device takes a share of the slots
with about the same number of examples. On a CPU the devices are its cores
(``sharding.use_host_cores``). If the mesh also has the axis ``processes``, a
slot is computed in the process that holds its rows (``engine.owned``).
"""

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, MapClients, Shard
from fedjax_alg.engine import lanes as in_lanes
from fedjax_alg.engine import owned
from fedjax_alg.errors import OptionError

AXIS = owned.AXIS
MODES = ("sequential", "vmap", "chunks", "lanes")

#: A place in no table.
NOWHERE = jnp.iinfo(jnp.int32).max


def default_mode(platform: str) -> str:
  """The mode that suits the devices, for ``map_clients``=auto.

  Args:
    platform: from ``sharding.platform``.
  """
  return "sequential" if platform == "cpu" else "lanes"


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
    mode: str = "sequential", *, chunk: int = 0, lanes: int = 0,
    mesh: Mesh | None = None, cuts: tuple[int, ...] | None = None
) -> MapClients:
  """Builds a client map.

  Args:
    mode: one of ``MODES``.
    chunk: clients per chunk and device with mode "chunks".
    lanes: lanes on each device with mode "lanes"; 0: by the number of slots of
      the device (``lanes.default_lanes``).
    mesh: devices with the axis ``clients``, perhaps after an axis
      ``processes``; or None for a single device.
    cuts: which clients' tables each process holds, see ``owned.make_map``.

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
    return owned.make_map(mode, chunk, mesh, cuts)
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
    if mode == "lanes":
      return in_lanes.play(fn, shared, shards, args, lanes=lanes)
    one = for_one(fn, shared, shards)
    operands = (shards.offset, shards.size, args)
    if mode == "vmap":
      return jax.vmap(one)(*operands)
    if mode == "sequential":
      return jax.lax.map(lambda slot: one(*slot), operands)
    return in_line(jax.lax.map(
        lambda group: jax.vmap(one)(*group), in_chunks(operands)))

  def local_update(
      fn: Callable[..., Any], write: Callable[..., Any],
      gather: Callable[[Any], Any], table: Any, places: Array, weights: Any,
      shared: Any, shards: Shard, args: Any) -> tuple[Any, Any, Any]:
    """``gather`` joins what all devices hold, along the axis of the slots."""

    def one(offset, size, rows, args):
      return fn(shared, Shard(shards.x, shards.y, offset, size), rows, *args)

    def play(table, place, offset, size, args):
      """One client, or several at once."""
      rows = trees.rows(table, place)
      if mode == "sequential":
        return one(offset, size, rows, args)
      return jax.vmap(one)(offset, size, rows, args)

    def put(table, place, written):
      if not jax.tree.leaves(table):
        return table
      if mode == "sequential":
        place, written = jax.tree.map(lambda leaf: leaf[None], (place, written))
      return write(table, *gather((place, written)))

    if mode == "lanes":
      def in_lane(shared, shard, rows, *args):
        written, summed, stacked = fn(shared, shard, rows, *args)
        return summed, (written, stacked)

      summed, (written, stacked) = in_lanes.play(
          in_lane, shared, shards, (trees.rows(table, places), *args), weights,
          lanes)
      return put(table, places, written), summed, stacked
    slots = (places, shards.offset, shards.size, args)
    if mode == "vmap":
      written, summed, stacked = play(table, *slots)
      return (put(table, places, written),
              jax.tree.map(trees.weighted_sum, weights, summed), stacked)

    def add(carry, slot):
      table, last, total = carry
      weight, slot = slot
      # Written now, before anything of this step reads the table: a reading
      # that no data puts before the writing would make XLA copy the table.
      table = put(table, *last)
      written, summed, stacked = play(table, *slot)
      if mode == "chunks":
        total = trees.add(
            total, jax.tree.map(trees.weighted_sum, weight, summed))
      else:
        total = jax.tree.map(trees.add_weighted, weight, total, summed)
      return (table, (slot[0], written), total), stacked

    steps = (weights, slots)
    if mode == "chunks":
      steps = in_chunks(steps)
    written, summed, _ = jax.eval_shape(
        lambda table, slot: play(table, *slot), table,
        trees.index(steps[1], 0))
    if mode == "chunks":
      summed = jax.eval_shape(lambda tree: trees.index(tree, 0), summed)
    zeros = functools.partial(
        jax.tree.map, lambda leaf: jnp.zeros(leaf.shape, leaf.dtype))
    total = jax.tree.map(
        lambda weight, part: jax.tree.map(lambda leaf: jnp.zeros(
            weight.shape[1:] + leaf.shape, leaf.dtype), part), weights, summed)
    nothing = jnp.full_like(steps[1][0][0], NOWHERE), zeros(written)
    (table, last, total), stacked = jax.lax.scan(
        add, (table, nothing, total), steps)
    return put(table, *last), total, (
        in_line(stacked) if mode == "chunks" else stacked)

  def deal(shards: Shard, multiple: int) -> tuple[Array, Shard]:
    """(order, shards), balanced so that each device's slots are contiguous."""
    slots = shards.size.shape[0]
    padded = math.ceil(slots / multiple) * multiple
    order = _deal(shards.size, padded, devices)
    if mesh is not None:  # else XLA shares the loop out: a collective a slot
      order = jax.lax.with_sharding_constraint(
          order, NamedSharding(mesh, PartitionSpec()))
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

  def update(
      fn: Callable[..., Any], write: Callable[..., Any], table: Any,
      places: Array, weights: Any, shared: Any, shards: Shard, *args: Any
  ) -> tuple[Any, Any, Any]:
    slots = shards.size.shape[0]
    alone = functools.partial(local_update, fn, write, lambda tree: tree)
    if devices == 1 and mode != "chunks":
      return alone(table, places, weights, shared, shards, args)
    order, dealt = deal(shards, multiple)
    weights, places, args = rows_of(order, slots, (weights, places, args))

    def if_real(leaf, otherwise):
      real = (order < slots).reshape((-1,) + (1,) * (leaf.ndim - 1))
      return jnp.where(real, leaf, otherwise)

    weights = jax.tree.map(lambda leaf: if_real(leaf, 0.0), weights)
    places = if_real(places, NOWHERE)
    back = jnp.argsort(order)[:slots]
    if devices == 1:
      table, total, stacked = alone(
          table, places, weights, shared, dealt, args)
      return table, total, in_order(stacked, back)

    gather = functools.partial(
        jax.lax.all_gather, axis_name=AXIS, tiled=True)

    def on_device(table, places, weights, shared, dealt, args, back):
      table, total, stacked = local_update(
          fn, write, gather, table, places, weights, shared, dealt, args)
      return table, jax.lax.psum(total, AXIS), in_order(gather(stacked), back)

    return jax.shard_map(
        on_device, mesh=mesh,
        in_specs=(whole, spec, spec, whole, over_slots, spec, whole),
        out_specs=whole, check_vma=False)(
            table, places, weights, shared, dealt, args, back)

  def total(
      fn: Callable[..., Any], zero: Callable[[], Any], shared: Any,
      shards: Shard, *args: Any,
      psum: Callable[[Any, str], Any] = jax.lax.psum
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
      return psum(over_own(shared, dealt, args), AXIS)

    return jax.shard_map(
        on_device, mesh=mesh, in_specs=(whole, over_slots, spec),
        out_specs=whole, check_vma=False)(shared, dealt, args)

  return owned.ClientMap(map_clients, update, total)
