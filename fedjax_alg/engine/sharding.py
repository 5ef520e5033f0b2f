"""Devices: the mesh with the axis ``clients``, and placing data on it."""

import os
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np
import scipy.linalg  # noqa: F401  (loads the LAPACK that JAX calls)
import threadpoolctl

from fedjax_alg.data import layout
from fedjax_alg.engine.clients import AXIS
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
  # takes 300 ms instead of 50 ms.
  threadpoolctl.threadpool_limits(limits=1, user_api="blas")


def start(host_devices: int = 0) -> None:
  """Turns CPU cores into devices and keeps compiled programs on disk.

  ``run``, ``steps`` and ``sweep`` call this function. If your code uses JAX
  before it calls one of them, call ``start`` first: once JAX has started, its
  devices cannot be changed, and ``start`` leaves them unchanged.

  Compiled programs are kept in ~/.cache/fedjax_alg/jax, so a repeated run
  starts without compiling. The environment variable JAX_COMPILATION_CACHE_DIR
  selects another folder, which many processes may share; docs/cluster.md.

  Args:
    host_devices: number of CPU cores to use; 0 means all that this process
      may use.
  """
  if "JAX_COMPILATION_CACHE_DIR" not in os.environ and (
      getattr(jax.config, "jax_compilation_cache_dir") is None):
    jax.config.update("jax_compilation_cache_dir", _COMPILATION_CACHE)
  least = "jax_persistent_cache_min_compile_time_secs"
  if least.upper() not in os.environ and getattr(jax.config, least) == 1.0:
    jax.config.update(least, 0.1)  # 1.0 is JAX's default
  try:
    use_host_cores(host_devices or None)
  except RuntimeError:
    pass


def clients_mesh(devices: list[jax.Device] | None = None) -> Mesh | None:
  """Makes a mesh with the axis ``clients`` over the devices.

  Args:
    devices: the devices; None means all.

  Returns:
    The mesh; None for a single device.
  """
  devices = devices or jax.devices()
  if len(devices) == 1:
    return None
  return jax.make_mesh(
      (len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def replicated(mesh: Mesh | None) -> Any:
  """Makes the sharding of a value that every device holds.

  The programs of a run use it as ``out_shardings``, so that the state has the
  placement that the next call expects.

  Args:
    mesh: the devices, or None.

  Returns:
    The sharding; None without a mesh.
  """
  return None if mesh is None else NamedSharding(mesh, PartitionSpec())


def described(mesh: Mesh | None) -> bool:
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
  return (jax.default_backend() if mesh is None
          else mesh.devices.flat[0].platform)


def take_rows(array: jax.Array, order: np.ndarray, mesh: Mesh | None) -> Any:
  """Computes ``array[order]`` on every device of the mesh.

  Args:
    array: an array placed by ``replicate``.
    order: [n] int, indices of rows.
    mesh: the devices; None means the default device.

  Returns:
    The rows, placed as by ``replicate``.
  """
  if jax.default_backend() == "cpu":
    # Computed on the host, so that the devices share one copy.
    return replicate(np.asarray(array)[order], mesh)
  gather = jax.jit(lambda array, order: array[order],
                   out_shardings=replicated(mesh))
  return gather(array, replicate(order, mesh))


def _aligned(array: np.ndarray) -> np.ndarray:
  """Returns the array, or a copy at an address that XLA need not copy from."""
  if array.flags.c_contiguous and array.ctypes.data % layout.ALIGNMENT == 0:
    return array
  out = layout.aligned_zeros(array.shape, array.dtype)
  out[...] = array
  return out


def replicate(tree: Any, mesh: Mesh | None) -> Any:
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
  if described(mesh):
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(
        np.shape(a), a.dtype, sharding=replicated(mesh)), tree)
  tree = jax.tree.map(
      lambda a: _aligned(a) if isinstance(a, np.ndarray) else a, tree)
  return jax.device_put(tree, replicated(mesh) or jax.devices()[0])
