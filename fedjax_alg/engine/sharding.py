"""Devices: the mesh with the axis ``clients``, and placing data on it.

In a run of several processes (``engine.processes``) the mesh spans the devices
of all of them and has the axes ``processes`` and ``clients``. What is placed by
``replicate`` is then on all devices of all processes, which must all call it
with the same values; ``place_blocks`` places rows that only this process holds,
``place_states`` states whose tables are shared out (``split.Split``).
"""

from collections.abc import Iterator
import itertools
import math
import os
from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np
import threadpoolctl

from fedjax_alg import memory, split
from fedjax_alg.data import layout
from fedjax_alg.engine.dealing import AXIS, PROCESSES
from fedjax_alg.errors import OptionError
from fedjax_alg.part import of_type
from fedjax_alg.typing import PyTree

#: The most cores that become devices.
MOST_DEVICES = 128
_COMPILATION_CACHE = os.path.expanduser("~/.cache/fedjax_alg/jax")


def available_cores() -> int:
  """The number of CPU cores that this process may use."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def use_host_cores(cores: int | None = None) -> None:
  """Makes each CPU core a JAX device, so that clients train in parallel.

  Call this before JAX is first used.

  Args:
    cores: number of cores; by default all that this process may use.

  Raises:
    RuntimeError: JAX has already started.
  """
  jax.config.update("jax_num_cpu_devices", cores or available_cores())
  # Every device calls LAPACK (for instance for an eigendecomposition) on one
  # core. Additional BLAS threads would compete for the cores: a round then
  # takes 300 ms instead of 50 ms. SciPy's LAPACK, which JAX loads when a program
  # first needs it, reads the variable. Processes that this one starts inherit it.
  os.environ["OPENBLAS_NUM_THREADS"] = "1"
  threadpoolctl.threadpool_limits(limits=1, user_api="blas")


def start(host_devices: int = 0) -> None:
  """Turns CPU cores into devices and stores compiled programs on disk.

  ``run``, ``steps`` and ``sweep`` call this function. If your code uses JAX
  before it calls one of them, call ``start`` first: once JAX has started, its
  devices cannot be changed, and ``start`` leaves them unchanged.

  Compiled programs are stored in ~/.cache/fedjax_alg/jax, so a repeated run starts
  without compiling. You can select another folder, which many processes may share,
  with the environment variable JAX_COMPILATION_CACHE_DIR; see docs/cluster.md.

  Args:
    host_devices: number of CPU cores to use, at most 128; 0 means as many as an
      earlier call or JAX_NUM_CPU_DEVICES says, else all that this process may use.

  Raises:
    OptionError: ``host_devices`` is no such number.
  """
  host_devices = of_type("host_devices", host_devices, int)
  if not 0 <= host_devices <= MOST_DEVICES:
    raise OptionError(
      f"`host_devices`={host_devices}: must be at least 0 and at most {MOST_DEVICES}"
    )
  if "JAX_COMPILATION_CACHE_DIR" not in os.environ and (
    getattr(jax.config, "jax_compilation_cache_dir") is None
  ):
    jax.config.update("jax_compilation_cache_dir", _COMPILATION_CACHE)
  least = "jax_persistent_cache_min_compile_time_secs"
  if least.upper() not in os.environ and getattr(jax.config, least) == 1.0:
    jax.config.update(least, 0.1)  # 1.0 is JAX's default
  earlier_number = getattr(jax.config, "jax_num_cpu_devices")  # -1 by default
  try:
    use_host_cores(host_devices or max(earlier_number, 0) or None)
  except RuntimeError:
    pass


def clients_mesh(devices: list[jax.Device] | None = None) -> Mesh | None:
  """Makes a mesh with the axis ``clients`` over the devices.

  Args:
    devices: the devices; None means all.

  Returns:
    The mesh; None for a single device. Of several processes it has the axes
    ``processes`` and ``clients``.

  Raises:
    OptionError: processes with different numbers of devices.
  """
  if devices is None and jax.process_count() > 1:
    return _mesh_of_processes()
  devices = devices or jax.devices()
  if len(devices) == 1:
    return None
  return jax.make_mesh(
    (len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices
  )


def _mesh_of_processes() -> Mesh:
  processes, local = jax.process_count(), jax.local_device_count()
  if jax.device_count() != processes * local:
    raise OptionError(
      f"`host_devices`: process {jax.process_index()} has {local} devices, "
      f"all {processes} processes have {jax.device_count()} together (give "
      "all the same number)"
    )
  devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
  return process_mesh(devices, processes)


def process_mesh(devices: list[jax.Device], processes: int) -> Mesh:
  """Makes the mesh of several processes.

  Args:
    devices: the devices of the first process, then those of the next, ...
    processes: number of processes.

  Returns:
    The mesh with the axes ``processes`` and ``clients``.
  """
  return Mesh(
    np.array(devices).reshape(processes, -1),
    (PROCESSES, AXIS),
    axis_types=(AxisType.Auto, AxisType.Auto),
  )


def spans_processes(mesh: Mesh | None) -> bool:
  """Whether devices of the mesh belong to other processes."""
  return mesh is not None and mesh.is_multi_process


def replicated(mesh: Mesh | None) -> NamedSharding | None:
  """Makes the sharding of a value that every device holds.

  The programs of a run use it as ``out_shardings``, so that the state has the
  placement that the next call expects.

  Args:
    mesh: the devices, or None.

  Returns:
    The sharding; None without a mesh.
  """
  return None if mesh is None else NamedSharding(mesh, PartitionSpec())


def is_described(mesh: Mesh | None) -> bool:
  """Whether the mesh is that of a machine that is described, but not there.

  Programs can be compiled for a described machine
  (``jax.experimental.topologies``), but no array can lie on it.

  Args:
    mesh: the devices, or None.
  """
  if mesh is None:
    return False
  device = mesh.devices.flat[0]
  try:
    return device not in jax.devices(device.platform)
  except RuntimeError:  # JAX knows no such devices here
    return True


def platform(mesh: Mesh | None) -> str:
  """The kind of the devices, such as "cpu", "gpu" or "tpu".

  Args:
    mesh: the devices; None means the default device.
  """
  return jax.default_backend() if mesh is None else mesh.devices.flat[0].platform


def memory_limit() -> memory.Limit:
  """The most memory that a device can have; on a CPU that of the host."""
  stats = jax.local_devices()[0].memory_stats()
  if stats and "bytes_limit" in stats:
    return memory.Limit(int(stats["bytes_limit"]), "the device has")
  return memory.host()


def free_memory() -> memory.Limit:
  """The memory of a device that is free at this moment; on a CPU that of the host."""
  limit = memory_limit()
  stats = jax.local_devices()[0].memory_stats()
  if stats and "bytes_limit" in stats:
    used = int(stats.get("bytes_in_use", 0))
    return limit._replace(nbytes=max(limit.nbytes - used, 0))
  return memory.free()


def _align(array: np.ndarray) -> np.ndarray:
  """Returns the array, or a copy at an address that XLA need not copy from."""
  if array.flags.c_contiguous and array.ctypes.data % layout.ALIGNMENT == 0:
    return array
  out = layout.aligned_zeros(array.shape, array.dtype)
  out[...] = array
  return out


def replicate(tree: PyTree, mesh: Mesh | None) -> Any:
  """Puts NumPy arrays on every device of the mesh.

  On a CPU all devices share one copy in memory.

  Args:
    tree: pytree of NumPy or JAX arrays; NumPy arrays must not be written to
      afterwards.
    mesh: the devices; None means the default device.

  Returns:
    The tree of JAX arrays; of their shapes, dtypes and shardings alone on a
    machine that is only described.
  """
  if is_described(mesh):
    return jax.tree.map(
      lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype, sharding=replicated(mesh)),
      tree,
    )
  tree = jax.tree.map(lambda a: _align(a) if isinstance(a, np.ndarray) else a, tree)
  if mesh is not None and spans_processes(mesh):
    return multihost_utils.host_local_array_to_global_array(tree, mesh, PartitionSpec())
  where = replicated(mesh) or jax.devices()[0]
  return jax.tree.map(lambda a: a if _in_blocks(a) else jax.device_put(a, where), tree)


def replicate_traced(tree: PyTree, mesh: Mesh | None) -> Any:
  """Has a program put its results on every device of several processes.

  Args:
    tree: pytree of arrays in a program. A ``split.Split`` stays shared out.
    mesh: the devices.
  """
  if not spans_processes(mesh):
    return tree
  whole = replicated(mesh)
  return split.tree_map(
    lambda leaf: leaf,
    lambda leaf: jax.lax.with_sharding_constraint(leaf, whole),
    tree,
  )


def divide(tree: PyTree, mesh: Mesh) -> Any:
  """Shares NumPy arrays out over the devices of a mesh with one axis.

  Each array is cut along its longest axis that the number of devices divides;
  an array without such an axis is on every device.

  Args:
    tree: pytree of NumPy arrays.
    mesh: the devices, which may be of a machine that is only described.

  Returns:
    The tree of JAX arrays, or of their shapes (see ``replicate``).
  """
  (axis,) = mesh.axis_names

  def place(array):
    sizes = [size if size % mesh.size == 0 else 0 for size in array.shape]
    spec: list[str | None] = [None] * array.ndim
    if any(sizes):
      spec[int(np.argmax(sizes))] = axis
    where = NamedSharding(mesh, PartitionSpec(*spec))
    if is_described(mesh):
      return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=where)
    return jax.device_put(array, where)

  return jax.tree.map(place, tree)


def _in_blocks(array: object) -> bool:
  """Whether an array was placed by ``place_blocks``."""
  return (
    isinstance(array, jax.Array)
    and isinstance(array.sharding, NamedSharding)
    and (array.sharding.spec[:1] == (PROCESSES,))
  )


def place_blocks(blocks: np.ndarray, mesh: Mesh) -> jax.Array:
  """Places the rows of each process on its devices.

  On a CPU the devices of a process share one copy in memory.

  Args:
    blocks: [M, ...] the rows of this process; [Q, M, ...] those of all, if the
      mesh is of one process.
    mesh: devices with the axis ``processes``.

  Returns:
    [Q, M, ...], block q on the devices of process q.
  """
  rows = PartitionSpec(PROCESSES)
  if not spans_processes(mesh):
    result: jax.Array = jax.device_put(blocks, NamedSharding(mesh, rows))
    return result
  result = multihost_utils.host_local_array_to_global_array(
    _align(blocks)[None], mesh, rows
  )
  return result


def of_states(states: PyTree, mesh: Any, otherwise: jax.sharding.Sharding) -> PyTree:
  """Finds where the states of a run lie.

  Args:
    states: leaves [N, ...].
    mesh: the devices; None means the default device.
    otherwise: the sharding of what is not shared out over processes.

  Returns:
    A tree with the sharding of every leaf.
  """
  return split.tree_map(
    lambda leaf: leaf.with_block(NamedSharding(mesh, PartitionSpec(None, PROCESSES))),
    lambda leaf: otherwise,
    states,
  )


def place_states(states: PyTree, where: PyTree) -> PyTree:
  """Places states that were read from a file.

  Args:
    states: leaves [N, ...] on the host; of a ``split.Split`` [N, C, ...], of
      which the rows of this process's blocks are read.
    where: the sharding of every leaf, from ``of_states``.
  """

  def blocks(leaf, where):
    processes = len(leaf.starts)

    def block_at(index):
      start = leaf.starts[index[1].indices(processes)[0]]
      return leaf.block[:, None, start : start + leaf.height]

    return leaf.with_block(
      jax.make_array_from_callback(
        (leaf.block.shape[0], processes, leaf.height, *leaf.block.shape[2:]),
        where.block,
        block_at,
      )
    )

  def everywhere(leaf, where):
    return jax.make_array_from_callback(leaf.shape, where, lambda index: leaf[index])

  return split.tree_map(blocks, everywhere, states, where)


def blocks_here(table: split.Split) -> list[int]:
  """The numbers of the blocks that this process holds: its own, or all."""
  if jax.process_count() > 1:
    return [jax.process_index()]
  return list(range(len(table.cuts) - 1))


def rows_of_process(table: split.Split, number: int) -> np.ndarray:
  """The rows that a process owns in a table of placed states.

  Args:
    table: block [N, Q, T, ...].
    number: one of ``blocks_here``.

  Returns:
    [N, clients of the process, ...] on the host.
  """
  block = next(
    shard.data
    for shard in table.block.addressable_shards
    if shard.index[1].indices(len(table.cuts) - 1)[0] == number
  )
  return np.asarray(block)[:, 0, table.owned_rows(number)]


#: Bytes of a table that are sent at once.
_MESSAGE_BYTES = 2**26


def all_rows(table: split.Split) -> Iterator[np.ndarray]:
  """The rows of all clients in a table of placed states, a few at a time.

  All processes must take all of them.

  Args:
    table: block [N, Q, T, ...].

  Yields:
    [n, ...] on the host: the rows of the first seed in the order of the
    clients, then those of the next.
  """
  seeds, _, _, *row = table.block.shape
  size = table.dtype.itemsize * math.prod(row)
  most = min(table.height, max(1, _MESSAGE_BYTES // max(1, size)))
  local_rows = {number: rows_of_process(table, number) for number in blocks_here(table)}
  for seed, number in itertools.product(range(seeds), range(len(table.cuts) - 1)):
    clients = table.cuts[number + 1] - table.cuts[number]
    for first in range(0, clients, most):
      rows = np.zeros((most, *row), table.dtype)
      if number in local_rows:
        some = local_rows[number][seed, first : first + most]
        rows[: len(some)] = some
      # As bytes: the sum with the zeros of the others keeps every bit.
      message = multihost_utils.broadcast_one_to_all(
        rows.reshape(-1).view(np.uint8), is_source=number in local_rows
      )
      yield message.view(table.dtype).reshape(rows.shape)[: clients - first]


def to_host(states: PyTree) -> PyTree:
  """States with whole tables, on the host. All processes must call this.

  Args:
    states: placed states.

  Returns:
    NumPy arrays [N, ...]; of a ``split.Split`` the array that it stands for.
  """
  return split.tree_map(
    lambda leaf: np.concatenate(list(all_rows(leaf))).reshape(leaf.of_states),
    np.asarray,
    states,
  )
