"""Features of images by a pre-trained network, computed once and stored.

The images are resized and pass through the network in chunks. Each chunk is a file in
~/.cache/fedjax_alg, named by a hash of its images, of the weights and of the options:
so a computation that was interrupted goes on, and another run on the same images
computes nothing.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import functools
import hashlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
from tqdm import tqdm

from fedjax_alg import files
from fedjax_alg.base import Params
from fedjax_alg.data import cache
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.features import Backbone, image_shape, none
from fedjax_alg.engine import sharding
from fedjax_alg.engine.dealing import AXIS
from fedjax_alg.extras.backbones import networks
from fedjax_alg.runs.predict import map_blocks

#: The folder of the files.
CACHE = "~/.cache/fedjax_alg/backbones"

_CHUNK = 2048  #: images of a file
_FEWEST = 256  #: images that are worth one
_BATCH = 32  #: images of a call, on each device


#: Makes the function rows [n, ...] -> features [n, D], and n.
_MakeProgram = Callable[[], tuple[Callable[..., Any], int]]


def _program(
  backbone: Backbone, shape: tuple[int, int, int], label: str
) -> tuple[Callable[..., Any], int]:
  """The function images [n, H, W, c] -> features [n, D], and n."""
  sharding.start()
  mesh = sharding.clients_mesh(jax.local_devices())
  devices = 1 if mesh is None else mesh.size
  network = networks.load_network(backbone, shape[:2], label)
  params = sharding.replicate(network.params, mesh)

  def of_images(params: Params, images: Any) -> Any:
    return network.module.apply(params, network.prepare(images.astype(jnp.float32)))

  if mesh is None:
    return functools.partial(jax.jit(of_images), params), _BATCH
  rows = NamedSharding(mesh, PartitionSpec(AXIS))
  program = jax.jit(
    jax.shard_map(
      of_images,
      mesh=mesh,
      in_specs=(PartitionSpec(), PartitionSpec(AXIS)),
      out_specs=PartitionSpec(AXIS),
    )
  )
  return lambda images: program(params, jax.device_put(images, rows)), _BATCH * devices


def compute_features(backbone: Backbone, x: np.ndarray) -> np.ndarray:
  """Computes the features of images, or reads them if they were computed before.

  Args:
    backbone: the network, the size and the layer.
    x: [n, H, W, 1 or 3], [n, H, W] or flat pixels of square images, uint8 or float in
      [0, 1].

  Returns:
    [n, D] float32; D is 1,280 for the "head" of EfficientNet-Lite0.

  Raises:
    DataError: they are no images.
    OptionError: the weights cannot be read or are others, or the network has no such
      layer.
  """
  label = f"`features`={backbone}"
  shape = image_shape(x)
  if shape[2] not in (1, 3):
    raise DataError(f"{label}: needs images with 1 or 3 channels, they have {shape[2]}")
  sha256 = networks.hash_weights(backbone)
  # Not by the path of the weights: a file may be moved.
  words = f"{dataclasses.replace(backbone, weights='')} {sha256} {shape}"
  return _in_chunks(
    x.reshape(len(x), *shape),
    f"{words} {x.dtype} {jax.__version__}",
    label,
    functools.partial(_program, backbone, shape, label),
  )


def _in_chunks(
  rows: np.ndarray, key: str, label: str, make_program: _MakeProgram
) -> np.ndarray:
  """Computes features chunk by chunk; each is read if it was computed before.

  Args:
    rows: [n, ...], what the program reads.
    key: all that decides the features besides the rows.
    label: the option, for messages.
    make_program: called if a chunk has to be computed.
  """
  folder = files.expand_path(CACHE)
  with contextlib.suppress(OSError):  # then nothing is stored
    folder.mkdir(parents=True, exist_ok=True)
  chunks, work = [], _Work(make_program, label, len(rows))
  with work:
    for start in range(0, len(rows), _CHUNK):
      chunk = rows[start : start + _CHUNK]
      digest = hashlib.sha256(key.encode() + chunk.tobytes()).hexdigest()
      build = functools.partial(work.compute, start, chunk)
      if len(rows) < _FEWEST:
        arrays = build()
      else:
        arrays = cache.read_or_build(folder / f"{digest[:32]}.npz", digest, build)
      chunks.append(arrays["x"])
  return np.concatenate(chunks)


def count_flops(backbone: Backbone, shape: tuple[int, ...]) -> float:
  """The operations of an image's features (``Backbone.flops``)."""
  of_images = image_shape(np.empty((0, *shape), np.uint8))
  return networks.count_flops(backbone, of_images, f"`features`={backbone}")


class _Work(contextlib.ExitStack):
  """Computes chunks; the program and the progress bar are made for the first one."""

  def __init__(self, make_program: _MakeProgram, label: str, total: int):
    super().__init__()
    self._make_program, self._label, self._total = make_program, label, total
    self._program: Any = None
    self._bar: Any = None
    self._rows = 0

  def compute(self, start: int, chunk: np.ndarray) -> cache.Arrays:
    """The features of the images from ``start`` on."""
    if self._program is None:
      self._program, self._rows = self._make_program()
      self._bar = self.enter_context(
        tqdm(
          total=self._total,
          initial=start,
          desc=self._label.replace("`", ""),
          unit=" images",
          disable=self._total < _CHUNK,
          file=sys.stderr,
          leave=False,
        )
      )
    program = lambda images, mask: self._program(images)
    features = map_blocks(program, none(chunk), self._rows)
    self._bar.update(start + len(chunk) - self._bar.n)
    return {"x": features}
