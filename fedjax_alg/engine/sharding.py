"""Devices: the mesh of axis ``clients``, and placing data on it once."""

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
  """Cores this process may run on."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def use_host_cores(cores: int | None = None) -> None:
  """Makes each CPU core a JAX device, so that clients train in parallel.

  Call it before JAX is first used; afterwards it changes nothing that JAX
  would accept.

  Args:
    cores: how many; all that this process may run on by default.

  Raises:
    RuntimeError: JAX has already started.
  """
  jax.config.update("jax_num_cpu_devices", cores or available_cores())
  # Every device calls LAPACK (an eigendecomposition, say) on its own core;
  # BLAS threads of their own would fight: 300 ms a round instead of 50.
  threadpoolctl.threadpool_limits(limits=1, user_api="blas")


def start(host_devices: int = 0) -> None:
  """Turns CPU cores into devices and keeps compiled programs on disk.

  ``run``, ``steps`` and ``sweep`` call it. Call it yourself, first of all,
  where your own code uses JAX before them: a JAX that has started keeps the
  devices it has, and this then changes none of them.

  Compiled programs are kept in ~/.cache/fedjax_alg/jax, so a run given again
  starts at once; $JAX_COMPILATION_CACHE_DIR names another folder.

  Args:
    host_devices: CPU cores to use; 0: all that this process may run on.
  """
  if "JAX_COMPILATION_CACHE_DIR" not in os.environ and (
      getattr(jax.config, "jax_compilation_cache_dir") is None):
    jax.config.update("jax_compilation_cache_dir", _COMPILATION_CACHE)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
  try:
    use_host_cores(host_devices or None)
  except RuntimeError:
    pass


def clients_mesh(devices: list[jax.Device] | None = None) -> Mesh | None:
  """A mesh of axis ``clients`` over the devices, None where there is one."""
  devices = devices or jax.devices()
  if len(devices) == 1:
    return None
  return jax.make_mesh(
      (len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def replicated(mesh: Mesh | None) -> Any:
  """The sharding of a value that every device holds; None without a mesh.

  Given as ``out_shardings`` to the programs of a run it keeps the state where
  the next call wants it, whatever the compiler would choose.
  """
  return None if mesh is None else NamedSharding(mesh, PartitionSpec())


def take_rows(array: jax.Array, order: np.ndarray, mesh: Mesh | None) -> Any:
  """``array[order]`` on every device of the mesh, placed as by ``replicate``.

  Args:
    array: as ``replicate`` left it.
    order: [n] int.
    mesh: None leaves it on the default device.
  """
  if jax.default_backend() == "cpu":
    # On the host, so that the devices share one copy again.
    return replicate(np.asarray(array)[order], mesh)
  gather = jax.jit(lambda array, order: array[order],
                   out_shardings=replicated(mesh))
  return gather(array, replicate(order, mesh))


def _aligned(array: np.ndarray) -> np.ndarray:
  """The array itself, or a copy at an address XLA can use without copying."""
  if array.flags.c_contiguous and array.ctypes.data % layout.ALIGNMENT == 0:
    return array
  out = layout.aligned_zeros(array.shape, array.dtype)
  out[...] = array
  return out


def replicate(tree: Any, mesh: Mesh | None) -> Any:
  """Puts NumPy arrays on every device of the mesh.

  On a CPU all devices share the one copy in memory.

  Args:
    tree: pytree of NumPy or JAX arrays; NumPy arrays must not be written to
      afterwards.
    mesh: None leaves them on the default device.
  """
  tree = jax.tree.map(
      lambda a: _aligned(a) if isinstance(a, np.ndarray) else a, tree)
  return jax.device_put(tree, replicated(mesh) or jax.devices()[0])
