"""Which device computes which slot: every device has about the same work."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Array

#: Axes of a mesh: the devices of a process, and several processes.
AXIS, PROCESSES = "clients", "processes"


def balance(
  size: Array,
  devices: int,
  room: int | None = None,
  owner: Array | None = None,
  processes: int = 1,
) -> Array:
  """Finds the device of every slot, so that all have about the same work.

  The slots are dealt in order of decreasing size, each to the device with the
  least work among those that may take it.

  Args:
    size: [S] int32, examples of each slot.
    devices: number of devices; those of a process are consecutive.
    room: the most slots of a device; None: any number.
    owner: [S] int32, the process whose devices may take each slot; None: all.
    processes: number of processes.

  Returns:
    [S] int32 in [0, devices).
  """
  if owner is not None and devices == processes:
    return owner
  process = np.arange(devices, dtype=np.int32) // (devices // processes)
  largest_first = jnp.argsort(-size, stable=True).astype(jnp.int32)

  def deal(k, carry):
    load, num_slots, device = carry
    slot = largest_first[k]
    may: Any = True if room is None else num_slots < room
    if owner is not None:
      may &= process == owner[slot]
    target = jnp.argmin(jnp.where(may, load, jnp.iinfo(jnp.int32).max)).astype(
      jnp.int32
    )
    # Slots without examples take turns, too.
    return (
      load.at[target].add(jnp.maximum(size[slot], 1)),
      num_slots.at[target].add(1),
      device.at[slot].set(target),
    )

  nothing = jnp.zeros(devices, jnp.int32)
  result: Array = jax.lax.fori_loop(
    0, size.shape[0], deal, (nothing, nothing, jnp.zeros_like(size))
  )[2]
  return result


def by_device(size: Array, device: Array) -> Array:
  """The slots [S] of the first device, of the second, ..., largest first."""
  largest_first = jnp.argsort(-size, stable=True).astype(jnp.int32)
  return largest_first[jnp.argsort(device[largest_first], stable=True)]
