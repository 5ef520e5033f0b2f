"""How the code of one client is mapped over a cohort.

An algorithm calls ``map_clients(fn, shared, shards, *args)`` and never knows
which of these runs it:

- ``sequential``: one client after the other, exactly the work there is. Best
  on a CPU, where a client's loop has as many steps as the client needs.
- ``vmap``: all at once; a loop runs to the longest client. For accelerators.
- ``chunks``: chunks of n by vmap, one chunk after the other, clients of
  similar size together.

With a mesh of axis ``clients`` each device takes a share of the slots with
about the same number of examples. On a CPU the devices are its cores
(``sharding.use_host_cores``).
"""

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec
import jax.numpy as jnp

from fedjax_alg.base import Array, MapClients, Shard

AXIS = "clients"
MODES = ("sequential", "vmap", "chunks")


def _deal(size: Array, slots: int, devices: int) -> Array:
  """Which slot stands where so that every device gets like work.

  Slots are sorted by size, largest first, and dealt to and fro.

  Args:
    size: [S] int32.
    slots: S' >= S, a multiple of devices.
    devices: number of devices.

  Returns:
    [S'] int32 slot numbers; numbers >= S are padding. Device d takes entries
    d * S'/devices and on, largest first.
  """
  padded = jnp.concatenate(
      [size, jnp.full((slots - size.shape[0],), -1, size.dtype)])
  largest_first = jnp.argsort(-padded, stable=True).astype(jnp.int32)
  hands = largest_first.reshape(-1, devices)
  backwards = jnp.arange(hands.shape[0]) % 2 == 1
  hands = jnp.where(backwards[:, None], hands[:, ::-1], hands)
  return hands.T.reshape(-1)


def make_map_clients(
    mode: str = "sequential", *, chunk: int = 0, mesh: Mesh | None = None
) -> MapClients:
  """Builds a client map.

  Args:
    mode: one of ``MODES``.
    chunk: clients per chunk and device with mode "chunks".
    mesh: devices with one axis ``clients``, or None for one device.

  Returns:
    The client map; its result does not depend on the choice but for rounding.

  Raises:
    ValueError: unknown mode, or chunks without a size.
  """
  if mode not in MODES:
    raise ValueError(f"client map {mode!r}: must be one of {', '.join(MODES)}")
  if mode == "chunks" and chunk < 1:
    raise ValueError(f"client chunk {chunk}: must be at least 1")
  devices = mesh.devices.size if mesh is not None else 1

  def local_map(
      fn: Callable[..., Any], shared: Any, shards: Shard, args: Any) -> Any:
    def one(offset, size, args):
      return fn(shared, Shard(shards.x, shards.y, offset, size), *args)

    operands = (shards.offset, shards.size, args)
    if mode == "vmap":
      return jax.vmap(one)(*operands)
    if mode == "sequential":
      return jax.lax.map(lambda slot: one(*slot), operands)
    grouped = jax.tree.map(
        lambda leaf: leaf.reshape((-1, chunk) + leaf.shape[1:]), operands)
    out = jax.lax.map(lambda group: jax.vmap(one)(*group), grouped)
    return jax.tree.map(
        lambda leaf: leaf.reshape((-1,) + leaf.shape[2:]), out)

  def map_clients(
      fn: Callable[..., Any], shared: Any, shards: Shard, *args: Any) -> Any:
    slots = shards.size.shape[0]
    multiple = devices * (chunk if mode == "chunks" else 1)
    if devices == 1 and mode != "chunks":
      return local_map(fn, shared, shards, args)
    padded = math.ceil(slots / multiple) * multiple
    order = _deal(shards.size, padded, devices)
    real = jnp.minimum(order, slots - 1)
    # A padding slot repeats the last client with no data.
    size = jnp.where(order < slots, shards.size[real], 0)
    dealt = Shard(shards.x, shards.y, shards.offset[real], size)
    args = jax.tree.map(lambda leaf: leaf[real], args)
    if devices == 1:
      out = local_map(fn, shared, dealt, args)
    else:
      spec: Any = PartitionSpec(AXIS)
      whole: Any = PartitionSpec()
      out = jax.shard_map(
          functools.partial(local_map, fn), mesh=mesh,
          in_specs=(whole, Shard(whole, whole, spec, spec), spec),
          out_specs=spec, check_vma=False)(shared, dealt, args)
    back = jnp.argsort(order)[:slots]
    return jax.tree.map(lambda leaf: leaf[back], out)

  return map_clients
