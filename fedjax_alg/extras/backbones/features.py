"""Features by a pre-trained network or a user's function, computed once and stored.

Images are resized and pass through a network in chunks; texts and a user's function
likewise. Each chunk is a file in ~/.cache/fedjax_alg, named by a hash of its examples,
of the weights and of the options. So a computation that was interrupted goes on, and
another run on the same examples computes nothing.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
from tqdm import tqdm

from fedjax_alg import files, own
from fedjax_alg.base import Params
from fedjax_alg.data import cache, store
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.features import (
  Backbone,
  FeatureWork,
  OwnFeatures,
  are_texts,
  image_shape,
  none,
)
from fedjax_alg.data.npy_rows import ComputedRows
from fedjax_alg.engine import sharding
from fedjax_alg.engine.dealing import AXIS
from fedjax_alg.errors import FAILURES, OptionError, a_type, describe_error, library_of
from fedjax_alg.extras.backbones import networks, wordllama
from fedjax_alg.runs.predict import map_blocks

#: The folder of the files.
CACHE = "~/.cache/fedjax_alg/backbones"

_CHUNK = 2048  #: images of a file
_FEWEST = 256  #: images that are worth one
_BATCH = 32  #: images of a call, on each device
_OWN_BATCH = 64  #: examples of a call of a user's function


#: Makes the function rows [n, ...] -> features [n, D].
_MakeProgram = Callable[[], Callable[[np.ndarray], np.ndarray]]


def _program(
  backbone: Backbone, shape: tuple[int, int, int], label: str
) -> Callable[[np.ndarray], np.ndarray]:
  """The function images [n, H, W, c] -> features [n, D]."""
  sharding.start()
  mesh = sharding.clients_mesh(jax.local_devices())
  devices = 1 if mesh is None else mesh.size
  network = networks.load_network(backbone, shape[:2], label)
  params = sharding.replicate(network.params, mesh)

  def of_images(params: Params, images: Any) -> Any:
    return network.module.apply(params, network.prepare(images.astype(jnp.float32)))

  program, batch = jax.jit(of_images), _BATCH
  if mesh is not None:
    rows = NamedSharding(mesh, PartitionSpec(AXIS))
    program = jax.jit(
      jax.shard_map(
        of_images,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(AXIS)),
        out_specs=PartitionSpec(AXIS),
      )
    )
    batch *= devices

  def of_chunk(chunk: np.ndarray) -> np.ndarray:
    def of_batch(images: Any, mask: Any) -> Any:
      del mask
      return program(params, images if mesh is None else jax.device_put(images, rows))

    features: np.ndarray = map_blocks(of_batch, none(chunk), batch)
    return features

  return of_chunk


class _Job(NamedTuple):
  """What a network or a function is to compute."""

  rows: Any  #: [n, ...], what it reads, an array or rows in files
  key: str  #: all that decides the features besides the rows
  label: str  #: the option, for messages
  make_program: _MakeProgram  #: called if a chunk has to be computed
  batch: int  #: rows of a call, on each device


def _job_of(backbone: Backbone, x: np.ndarray) -> _Job:
  """The features of examples by a network (``compute_features``)."""
  label = f"`features`={backbone}"
  if backbone.reads_texts:
    if not are_texts(x):
      raise DataError(f"{label}: needs texts, the examples are {x.dtype} {x.shape[1:]}")
    return _Job(
      x,
      f"{backbone} {wordllama.sha256_of_files()}",
      label,
      lambda: wordllama.read_token_vectors(label).average,
      _BATCH,
    )
  shape = image_shape(x)
  if shape[2] not in (1, 3):
    raise DataError(f"{label}: needs images with 1 or 3 channels, they have {shape[2]}")
  sha256 = networks.hash_weights(backbone)
  # Not by the path of the weights: a file may be moved.
  words = f"{dataclasses.replace(backbone, weights='')} {sha256} {shape}"
  return _Job(
    x.reshape(len(x), *shape),
    f"{words} {x.dtype} {jax.__version__}",
    label,
    functools.partial(_program, backbone, shape, label),
    _BATCH,
  )


def compute_features(backbone: Backbone, x: Any) -> Any:
  """Computes the features of examples, or reads them if they were computed before.

  Args:
    backbone: the network, the size and the layer.
    x: [n, H, W, 1 or 3], [n, H, W] or flat pixels of square images, uint8 or float in
      [0, 1], also in files; or [n] texts.

  Returns:
    [n, D] float32, in a file if x is; D is 1,280 for the "head" of EfficientNet-Lite0.

  Raises:
    DataError: they are no images, or no texts.
    OptionError: the weights cannot be read or are others, or the network has no such
      layer.
  """
  return _compute(_job_of(backbone, x))


def estimate_work(backbone: Backbone, x: np.ndarray) -> FeatureWork:
  """Estimates what the features of examples take that are not stored yet.

  Args:
    backbone: the network, the size and the layer.
    x: the examples of ``compute_features``.

  Returns:
    The work, from a few examples.

  Raises:
    DataError, OptionError: see ``compute_features``.
  """
  return _estimate(_job_of(backbone, x))


def _job_of_function(features: OwnFeatures, x: np.ndarray) -> _Job:
  """The features of examples by a user's function (``compute_own_features``)."""
  label = f"`features`={features}"
  function, source = own.load(features.function, "features")
  if not callable(function):
    raise OptionError(
      f"{label}: is {a_type(function)}; must be a function examples -> [n, D]"
    )
  return _Job(
    x,
    f"{source.sha256} {features.function.rpartition(':')[2]} {x.shape[1:]} {x.dtype}",
    label,
    lambda: functools.partial(_call_own, function, label),
    _OWN_BATCH,
  )


def compute_own_features(features: OwnFeatures, x: Any) -> Any:
  """Computes the features of a user's function, or reads them if they are stored.

  Args:
    features: the function by its name.
    x: [n, ...] examples; images are uint8, or float in [0, 1]. Or [n] texts.

  Returns:
    [n, D] float32.

  Raises:
    DataError: the function fails, or does not return n rows of finite numbers, each
      of its example alone.
    OptionError: it cannot be loaded, or is no function.
  """
  return _compute(_job_of_function(features, x))


def estimate_own_work(features: OwnFeatures, x: np.ndarray) -> FeatureWork:
  """Estimates what the features by a function take that are not stored yet.

  Args:
    features: the function by its name.
    x: the examples of ``compute_own_features``.

  Returns:
    The work, from a few examples.

  Raises:
    DataError, OptionError: see ``compute_own_features``.
  """
  return _estimate(_job_of_function(features, x))


def _call_own(
  function: Callable[[Any], Any], label: str, chunk: np.ndarray
) -> np.ndarray:
  """The features of a chunk by a user's function, which is called in batches."""
  examples = chunk.tolist() if are_texts(chunk) else none(chunk)
  batches = [
    _check_rows(function, label, examples[start : start + _OWN_BATCH])
    for start in range(0, len(chunk), _OWN_BATCH)
  ]
  widths = sorted({batch.shape[1] for batch in batches})
  if len(widths) > 1:
    raise DataError(f"{label}: returns {widths} features, must be as many for all")
  first = _check_rows(function, label, examples[:1])[0]
  if first.shape != batches[0][0].shape or not np.allclose(
    first, batches[0][0], rtol=1e-2, atol=1e-2 * np.abs(batches[0]).max()
  ):
    raise DataError(
      f"{label}: returns other features for an example alone than among others (a "
      "network of torch needs eval())"
    )
  return np.concatenate(batches)


def _check_rows(
  function: Callable[[Any], Any], label: str, examples: Any
) -> np.ndarray:
  """Calls a user's function, and checks what it returns."""
  try:
    values = function(examples)
    if library_of(values) == "torch":
      values = values.detach().cpu().numpy()
  except FAILURES as error:  # whatever the user's code raises
    raise DataError(f"{label}: failed, {describe_error(error)}") from error
  try:
    array = own.real_array(values)
  except ValueError as error:
    raise DataError(f"{label}: returns {error}") from error
  if array.ndim != 2 or len(array) != len(examples) or not array.shape[1]:
    raise DataError(
      f"{label}: returns an array of shape {array.shape} for {len(examples)} examples, "
      f"must be ({len(examples)}, D)"
    )
  return array.astype(np.float32)


def _chunks(job: _Job) -> Iterator[tuple[int, np.ndarray, str, pathlib.Path]]:
  """Yields the first row of each chunk, its rows, their hash, and their file."""
  folder = files.expand_path(CACHE)
  for start in range(0, len(job.rows), _CHUNK):
    chunk = job.rows[start : start + _CHUNK]
    is_text = are_texts(job.rows)
    content = json.dumps(chunk.tolist()).encode() if is_text else chunk.tobytes()
    digest = hashlib.sha256(job.key.encode() + content).hexdigest()
    yield start, chunk, digest, folder / f"{digest[:32]}.npz"


def _compute(job: _Job) -> Any:
  """The features of all chunks; those of rows in files are in a file, too."""
  if store.is_in_files(job.rows) and len(job.rows):
    return ComputedRows.of_parts(_compute_chunks(job), len(job.rows))
  return np.concatenate(list(_compute_chunks(job)))


def _compute_chunks(job: _Job) -> Iterator[np.ndarray]:
  """Computes features chunk by chunk; each is read if it was computed before."""
  with contextlib.suppress(OSError):  # then nothing is stored
    files.expand_path(CACHE).mkdir(parents=True, exist_ok=True)
  work = _Work(job.make_program, job.label, len(job.rows))
  with work:
    for start, chunk, digest, path in _chunks(job):
      build = functools.partial(work.compute, start, chunk)
      if len(job.rows) < _FEWEST:
        arrays = build()
      else:
        arrays = cache.read_or_build(path, digest, build)
      yield arrays["x"]


def _estimate(job: _Job) -> FeatureWork:
  """Times a few rows, and counts those without a file."""
  count = len(job.rows)
  missing = sum(
    len(chunk)
    for _, chunk, _, path in _chunks(job)
    if count < _FEWEST or not path.is_file()
  )
  if not missing:
    return FeatureWork(count, 0, 0.0, 0)
  program = job.make_program()
  few = job.rows[: job.batch * jax.local_device_count()]
  features = program(few)  # compiles
  began = time.perf_counter()
  program(few)
  seconds = (time.perf_counter() - began) * missing / len(few)
  return FeatureWork(count, missing, seconds, features.shape[1])


def count_feature_flops(backbone: Backbone, shape: tuple[int, ...]) -> float:
  """The operations of an image's features (``Backbone.flops``)."""
  of_images = image_shape(np.empty((0, *shape), np.uint8))
  return networks.count_operations(backbone, of_images, f"`features`={backbone}")


class _Work(contextlib.ExitStack):
  """Computes chunks; the program and the progress bar are made for the first one."""

  def __init__(self, make_program: _MakeProgram, label: str, total: int):
    super().__init__()
    self._make_program, self._label, self._total = make_program, label, total
    self._program: Any = None
    self._bar: Any = None

  def compute(self, start: int, chunk: np.ndarray) -> cache.Arrays:
    """The features of the examples from ``start`` on."""
    if self._program is None:
      self._program = self._make_program()
      self._bar = self.enter_context(
        tqdm(
          total=self._total,
          initial=start,
          desc=self._label.replace("`", ""),
          unit=" examples",
          disable=self._total < _CHUNK,
          file=sys.stderr,
          leave=False,
        )
      )
    features = self._program(chunk)
    self._bar.update(start + len(chunk) - self._bar.n)
    return {"x": features}
