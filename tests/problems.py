"""Small federated problems for the tests, made with NumPy."""

from collections.abc import Iterator
import contextlib
import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import models
from fedjax_alg.base import ClientData, FedSpec, Model, Shard
from fedjax_alg.data import layout, process_rows
from fedjax_alg.engine import sharding

#: Heavy-tailed; 64 fills one block of a full pass exactly, 90 takes two.
SIZES = (3, 90, 7, 12, 45, 5, 20, 9, 64, 4, 15, 30)
VALIDATION = 70
FEATURES, CLASSES = 12, 4
L2 = 0.01


class Problem(NamedTuple):
  """A federated data set with a model for it."""

  model: Model
  data: ClientData
  clients: list[tuple[np.ndarray, np.ndarray]]  #: (x, y) of each client
  spec: FedSpec  #: its cohort is 8 of the 12, or all of a small problem
  validation: Any = None  #: (x, y) the server holds


def client_data(clients, validation=None) -> ClientData:
  """Lays the clients' arrays out back to back, then the server's (x, y)."""
  validation_pairs = [] if validation is None else [validation]
  x = np.concatenate([x for x, _ in [*clients, *validation_pairs]])
  y = np.concatenate([y for _, y in [*clients, *validation_pairs]])
  size = np.array([len(y) for _, y in clients])
  rows = np.arange(len(y))
  return jax.tree.map(
    jax.device_put,  # jnp.asarray compiles a program for each shape
    layout.client_data(
      x,
      y,
      rows[: size.sum()],
      np.cumsum(size) - size,
      size,
      rows[size.sum() :] if validation_pairs else None,
    ),
  )


def make_clients(sizes=SIZES, seed=0):
  """Three kinds of clients whose models differ, on sparse features.

  Feature 8 is held by every other client, 9 by every third one, 10 by client
  1 alone in few examples, 11 by nobody.
  """
  rng = np.random.default_rng(seed)
  shared = rng.normal(size=(FEATURES, CLASSES))
  kinds = 2.5 * rng.normal(size=(3, FEATURES, CLASSES))
  clients = []
  for i, size in enumerate(sizes):
    x = rng.normal(size=(size, FEATURES))
    x *= rng.random((size, FEATURES)) < 0.7
    x[:, 8] *= i % 2 == 0
    x[:, 9] *= i % 3 == 0
    x[:, 10] *= (i == 1) & (rng.random(size) < 0.2)
    x[:, 11] = 0
    x = x.astype(np.float32)
    y = np.argmax(x @ (shared + kinds[i % 3]), axis=1).astype(np.int32)
    clients.append((x, y))
  return clients


def softmax_problem() -> Problem:
  """12 clients, 12 features, 4 classes, softmax regression with L2.

  The server holds VALIDATION examples of a thirteenth client.
  """
  *clients, server = make_clients((*SIZES, VALIDATION))
  model = models.make_model("softmax", (FEATURES,), CLASSES, l2=L2)
  return Problem(
    model,
    client_data(clients, server),
    clients,
    FedSpec(len(clients), 8, CLASSES, (FEATURES,), sum(SIZES)),
    server,
  )


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
  model = models.make_model("mlp", (6, 6), 3, l2=1e-3, hidden=(8,))
  return Problem(
    model, client_data(clients), clients, FedSpec(len(clients), 5, 3, (6, 6))
  )


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
  """Compiles with fewer optimisations, in two thirds of the time.

  For programs compared up to rounding; what must hold for the programs of a
  run is tested on those.
  """
  jax.config.update("jax_disable_most_optimizations", True)
  try:
    yield
  finally:
    jax.config.update("jax_disable_most_optimizations", False)


def quick_options() -> dict[str, Any]:
  """``compiler_options`` that compile in a third of the time.

  XLA's older way to fuse loops, and LLVM without optimisations; where the
  former is gone, nothing.
  """
  return _options(False, 0)


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


def quick_jit(fn: Any, **options: Any) -> Any:
  """``jax.jit`` with ``quick_options``."""
  return jax.jit(fn, compiler_options=quick_options(), **options)


def optimised_jit(fn: Any, **options: Any) -> Any:
  """``quick_jit`` with LLVM's optimisations, for equality of bits."""
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


def row(tree: Any, i: int) -> Any:
  """Row ``i`` of every leaf, in NumPy: JAX would compile it for each shape."""
  return jax.tree.map(lambda leaf: np.asarray(leaf)[i], tree)


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
