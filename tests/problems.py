"""Small federated problems for the tests, made with NumPy.

Those of the contract are ``fedjax_alg.testing.bench``'s.
"""

from collections.abc import Iterator
import contextlib
import functools
import resource
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import models
from fedjax_alg.base import ClientData, FedSpec, Model, Shard
from fedjax_alg.data import layout, process_rows
from fedjax_alg.engine import sharding
from fedjax_alg.testing.bench import CLASSES as CLASSES
from fedjax_alg.testing.bench import FEATURES as FEATURES
from fedjax_alg.testing.bench import L2 as L2
from fedjax_alg.testing.bench import SIZES as SIZES
from fedjax_alg.testing.bench import VALIDATION as VALIDATION
from fedjax_alg.testing.bench import SmallProblem as Problem
from fedjax_alg.testing.bench import lay_out_clients as client_data
from fedjax_alg.testing.bench import make_clients, softmax_problem
from fedjax_alg.testing.bench import quick_jit as quick_jit
from fedjax_alg.testing.bench import row as row


def of_sizes(sizes, num_validation=0) -> Problem:
  """``softmax_problem`` with clients of other sizes, four in a cohort."""
  arrays = make_clients([*sizes, *[num_validation] * bool(num_validation)])
  server = arrays.pop() if num_validation else None
  return softmax_problem()._replace(
    clients=arrays,
    data=client_data(arrays, server),
    validation=server,
    spec=FedSpec(len(arrays), 4, CLASSES, (FEATURES,), sum(sizes)),
  )


def image_problem() -> Problem:
  """5 clients of 6 x 6 images in 3 classes, a small perceptron."""
  rng = np.random.default_rng(1)
  clients = []
  for size in (6, 17, 9, 70, 4):
    y = rng.integers(3, size=size).astype(np.int32)
    x = rng.normal(size=(size, 6, 6)) + y[:, None, None] * np.eye(6)
    clients.append((x.astype(np.float32), y))
  model = models.MLP((8,)).build((6, 6), 3, l2=1e-3)
  return Problem(
    model, client_data(clients), clients, FedSpec(len(clients), 5, 3, (6, 6))
  )


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
  """Compiles with fewer optimizations, in two thirds of the time.

  For programs compared up to rounding; what must hold for the programs of a
  run is tested on those.
  """
  jax.config.update("jax_disable_most_optimizations", True)
  try:
    yield
  finally:
    jax.config.update("jax_disable_most_optimizations", False)


def usual_options(level: int = 3) -> dict[str, Any]:
  """``compiler_options`` of a run, whatever conftest has set for the tests.

  Level 0 of LLVM, which comes after it, leaves a program's HLO as it is.
  """
  return _options(True, level)


@functools.cache
def _options(fusion_emitters: bool, level: int) -> dict[str, Any]:
  options = {
    "xla_cpu_use_fusion_emitters": fusion_emitters,
    "xla_backend_optimization_level": level,
  }
  try:
    jax.jit(lambda x: x + 1, compiler_options=options)(1)
  except Exception:  # pylint: disable=broad-except
    return {}
  return options


def optimised_jit(fn: Any, **options: Any) -> Any:
  """``quick_jit`` with LLVM's optimizations, for equality of bits."""
  return jax.jit(fn, compiler_options=_options(False, 3), **options)


def some_params(model: Model, seed=0, size=0.3):
  """Parameters away from the initial ones (softmax starts at zero)."""
  if isinstance(jnp.zeros(()), jax.core.Tracer):
    with jax.ensure_compile_time_eval():  # numbers in a traced function, too
      return some_params(model, seed, size)
  rng = np.random.default_rng(seed)
  start = jax.jit(model.init)(jax.random.key(seed))
  return jax.tree.map(
    lambda leaf: jax.device_put(
      np.asarray(leaf) + size * rng.normal(size=leaf.shape).astype(leaf.dtype)
    ),
    start,
  )


def assert_equal(a: Any, b: Any) -> None:
  """Two pytrees are the same bit for bit (NaN equals NaN)."""
  chex.assert_trees_all_equal(a, b, strict=True)


def assert_close(a: Any, b: Any, rtol=1e-5, atol=1e-6) -> None:
  """Two pytrees are equal but for rounding."""
  chex.assert_trees_all_close(a, b, rtol=rtol, atol=atol, strict=True)


def differ(a: Any, b: Any) -> bool:
  """Some entry of some leaf differs."""
  return any(
    not np.array_equal(x, y)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  )


def in_blocks(data: ClientData, mesh: Any) -> ClientData:
  """The data as several processes hold it, on a mesh of this one process."""
  processes = mesh.devices.shape[0]
  data = jax.tree.map(np.asarray, data)
  rows = process_rows.cut(
    process_rows.Process(0, processes), data.offset, data.size, layout.PADDING_ROWS
  )

  def blocks(array):
    out = np.zeros((processes, rows.places, *array.shape[1:]), array.dtype)
    for block, (first, last) in enumerate(zip(rows.cuts, rows.cuts[1:])):
      out[block, : last - first] = array[first:last]
    return sharding.place_blocks(out, mesh)

  validation = data.validation
  if validation is not None:
    first, last = validation[0], validation[0] + validation[1]
    padding = layout.PADDING_ROWS
    validation = Shard(
      data.x[first : last + padding],
      data.y[first : last + padding],
      np.zeros((), np.int32),
      validation[1],
    )
  return sharding.replicate(
    data._replace(
      x=blocks(data.x),
      y=blocks(data.y),
      offset=rows.place_in_blocks(data.offset),
      validation=validation,
      blocks=(),
    ),
    mesh,
  )


@contextlib.contextmanager
def small_files(limit):
  """No file of this process grows beyond a limit, as on a full disk."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
