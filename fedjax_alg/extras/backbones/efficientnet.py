"""EfficientNet-Lite0, a convolutional network for small machines, with its weights.

Reference: Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional
Neural Networks", ICML 2019, in the lite form of its authors' repository: without
squeeze and excitation, with ReLU6. Batch statistics are part of kernels and biases.
"""

import itertools
from typing import Any, NamedTuple

from flax import linen as nn
from flax import traverse_util
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Array, Params
from fedjax_alg.errors import OptionError
from fedjax_alg.extras.backbones.torch_files import Arrays

#: Added to variances before their root is taken.
_EPSILON = 1e-3


class Blocks(NamedTuple):
  """Blocks one after the other; the first one changes size and width."""

  blocks: int
  size: int  #: of the depthwise kernel
  stride: int
  expansion: int  #: factor of the channels inside a block
  width: int  #: channels of what a block returns


STAGES = (
  Blocks(1, 3, 1, 1, 16),
  Blocks(2, 3, 2, 6, 24),
  Blocks(2, 5, 2, 6, 40),
  Blocks(3, 3, 2, 6, 80),
  Blocks(3, 5, 1, 6, 112),
  Blocks(4, 5, 2, 6, 192),
  Blocks(1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280  #: channels of the first and the last layer
#: What can be read, from the first layer to the last.
LAYERS = (
  "stem",
  *(f"block{number}" for number in range(sum(stage.blocks for stage in STAGES))),
  "head",
)


class _Depthwise(nn.Module):
  """A convolution of each channel by itself, with padding SAME.

  It is a sum of shifted images: XLA's grouped convolutions take 8 to 60 times as long
  on a CPU.
  """

  size: int
  stride: int

  @nn.compact
  def __call__(self, x: Array) -> Array:
    size, stride, channels = self.size, self.stride, x.shape[-1]
    kernel = self.param(
      "kernel", nn.initializers.lecun_normal(), (size, size, 1, channels)
    )
    bias = self.param("bias", nn.initializers.zeros_init(), (channels,))
    rows, columns = (-(-length // stride) for length in x.shape[1:3])
    missing = [
      max(0, (out - 1) * stride + size - length)
      for out, length in zip((rows, columns), x.shape[1:3])
    ]
    around = [(pad // 2, pad - pad // 2) for pad in missing]
    x = jnp.pad(x, ((0, 0), *around, (0, 0)))
    total = bias.reshape(1, 1, 1, -1)
    for i, j in itertools.product(range(size), range(size)):
      window = (
        slice(None),
        slice(i, i + (rows - 1) * stride + 1, stride),
        slice(j, j + (columns - 1) * stride + 1, stride),
      )
      total = total + x[window] * kernel[i : i + 1, j : j + 1]
    return total


class _Block(nn.Module):
  """An inverted bottleneck: expand, filter each channel, project."""

  stage: Blocks
  is_first: bool  #: of its stage

  @nn.compact
  def __call__(self, x: Array) -> Array:
    stage, out = self.stage, x
    if stage.expansion > 1:
      width = x.shape[-1] * stage.expansion
      out = nn.relu6(nn.Dense(width, name="expand")(out))
    stride = stage.stride if self.is_first else 1
    out = nn.relu6(_Depthwise(stage.size, stride, name="depthwise")(out))
    out = nn.Dense(stage.width, name="project")(out)
    return out if self.is_first else x + out


class EfficientNetLite0(nn.Module):
  """The features of images, of one layer.

  Attributes:
    layer: one of ``LAYERS``.

  Examples:
    >>> import jax
    >>> x = jnp.zeros((2, 64, 64, 3))
    >>> network, key = EfficientNetLite0(), jax.random.key(0)
    >>> jax.eval_shape(network.init_with_output, key, x)[0].shape
    (2, 1280)
  """

  layer: str = "head"

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Computes the features.

    Args:
      x: [n, H, W, 3] float32, images of any size, scaled as ``scale_images`` does.

    Returns:
      [n, D] float32, the means over all pixels of what the layer returns.
    """
    last = LAYERS.index(self.layer)
    x = nn.relu6(nn.Conv(STEM, (3, 3), 2, "SAME", name="stem")(x))
    blocks = ((stage, i == 0) for stage in STAGES for i in range(stage.blocks))
    for number, (stage, is_first) in enumerate(itertools.islice(blocks, last)):
      x = _Block(stage, is_first, name=f"block{number}")(x)
    if self.layer == "head":
      x = nn.relu6(nn.Dense(HEAD, name="head")(x))
    return x.mean((1, 2))


def count_flops(height: int, width: int, layer: str) -> float:
  """Counts the multiplications and additions of the network's convolutions.

  Args:
    height: of an image.
    width: of an image.
    layer: the last layer that is computed, one of ``LAYERS``.

  Returns:
    The operations for one image, two for each product.

  Examples:
    >>> round(count_flops(224, 224, "head") / 1e6)
    768
  """
  last = LAYERS.index(layer)
  rows, columns, channels = -(-height // 2), -(-width // 2), STEM
  products = rows * columns * 9 * 3 * STEM
  blocks = ((stage, i == 0) for stage in STAGES for i in range(stage.blocks))
  for stage, is_first in itertools.islice(blocks, last):
    inside = channels * stage.expansion
    if stage.expansion > 1:
      products += rows * columns * channels * inside
    if is_first:
      rows, columns = -(-rows // stage.stride), -(-columns // stage.stride)
    products += rows * columns * inside * (stage.size**2 + stage.width)
    channels = stage.width
  if layer == "head":
    products += rows * columns * channels * HEAD
  return 2.0 * products


def scale_images(images: Array) -> Array:
  """Scales images as the network was trained: (255 x - 127) / 128.

  Args:
    images: [n, H, W, 1 or 3] float32 in [0, 1]; gray ones get three equal channels.

  Returns:
    [n, H, W, 3] float32.
  """
  scaled = (255.0 * images - 127.0) / 128.0
  return jnp.broadcast_to(scaled, (*scaled.shape[:-1], 3))


#: Our name of a convolution -> the names of torch of its kernel and normalization.
_NAMES = {
  "stem": ("_conv_stem", "_bn0"),
  "head": ("_conv_head", "_bn1"),
  "expand": ("_expand_conv", "_bn0"),
  "depthwise": ("_depthwise_conv", "_bn1"),
  "project": ("_project_conv", "_bn2"),
}


#: Layers that are products at each pixel.
_OF_PIXELS = ("expand", "project", "head")


def convert_tensors(tensors: Arrays, label: str) -> Params:
  """The network's parameters, from its port to torch.

  The port is that of the package efficientnet_lite_pytorch. A convolution W and its
  normalization become one convolution, with s = gamma / sqrt(variance + 0.001):
    kernel = s W,    bias = beta - s mean.

  Args:
    tensors: the state_dict.
    label: how messages name it.

  Returns:
    The parameters of ``EfficientNetLite0``, of all its layers.

  Raises:
    OptionError: one is missing, or has another shape.
  """
  flat: dict[tuple[str, ...], Any] = {}

  def fold(path: tuple[str, ...], prefix: str) -> None:
    kernel, norm = (prefix + name for name in _NAMES[path[-1]])
    weights = tensors[f"{kernel}.weight"]
    gamma, beta, mean, variance = (
      tensors[f"{norm}.{part}"].astype(np.float64)
      for part in ("weight", "bias", "running_mean", "running_var")
    )
    scale = gamma / np.sqrt(variance + _EPSILON)
    # [out, in, k, k] -> [k, k, in, out], without the axes of a single pixel
    folded = weights.transpose(2, 3, 1, 0) * scale
    if path[-1] in _OF_PIXELS:
      folded = folded[0, 0]
    flat["params", *path, "kernel"] = folded.astype(np.float32)
    flat["params", *path, "bias"] = (beta - scale * mean).astype(np.float32)

  try:
    fold(("stem",), "")
    stages = (stage for stage in STAGES for _ in range(stage.blocks))
    for number, stage in enumerate(stages):
      for name in ("expand", "depthwise", "project")[stage.expansion == 1 :]:
        fold((f"block{number}", name), f"_blocks.{number}.")
    fold(("head",), "")
  except (KeyError, ValueError) as error:
    raise OptionError(f"{label}: no weights of EfficientNet-Lite0 ({error})") from None
  result: Params = traverse_util.unflatten_dict(flat)
  return result
