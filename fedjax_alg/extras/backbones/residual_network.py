"""ResNet-18 and ResNet-50 as torchvision has them, with the names of their weights.

Reference: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition",
CVPR 2016. In bottlenecks, the convolution of 3 x 3 has the stride, as in torchvision,
timm and Hugging Face. Normalizations read their running statistics.
"""

from collections.abc import Sequence
import re
from typing import Any, NamedTuple

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp

from fedjax_alg.base import Array, Params
from fedjax_alg.extras.backbones.torch_files import Arrays
from fedjax_alg.extras.backbones.weights import (
  match_tensors,
  refuse_config,
  refuse_faults,
  refuse_left,
  remove_prefix,
)


class Stages(NamedTuple):
  """The blocks of a residual network."""

  blocks: tuple[int, ...]  #: of each stage
  is_bottleneck: bool  #: three convolutions in a block, not two


STAGES = {
  "resnet18": Stages((2, 2, 2, 2), False),
  "resnet50": Stages((3, 4, 6, 3), True),
}
_STEM = 64  #: channels of the first layer, and of the first stage
_EXPANSION = 4  #: factor of the channels that a bottleneck returns
#: Names in files of Hugging Face -> those of torchvision, in this order.
_RENAMES = (
  (r"^embedder\.embedder\.convolution\.", "conv1."),
  (r"^embedder\.embedder\.normalization\.", "bn1."),
  (r"\.shortcut\.convolution\.", ".downsample.0."),
  (r"\.shortcut\.normalization\.", ".downsample.1."),
)
_STAGE = re.compile(r"^encoder\.stages\.(\d+)\.layers\.(\d+)\.")
_LAYER = re.compile(r"\.layer\.(\d+)\.(convolution|normalization)\.")
#: Names of tensors that no layer here reads: heads.
_HEADS = ("fc.", "classifier.", "head.")
#: Options of Hugging Face that the shapes of tensors do not tell -> their values here.
_OPTIONS = {
  "hidden_act": "relu",
  "downsample_in_bottleneck": False,
  "downsample_in_first_stage": False,
}


class _Normalized(nn.Module):
  """A convolution, then a normalization by running statistics."""

  width: int
  size: int
  stride: int = 1

  @nn.compact
  def __call__(self, x: Array) -> Array:
    pad = self.size // 2
    x = nn.Conv(
      self.width,
      (self.size, self.size),
      self.stride,
      ((pad, pad), (pad, pad)),
      use_bias=False,
      name="conv",
    )(x)
    norm = nn.BatchNorm(use_running_average=True, epsilon=1e-5, name="norm")
    result: Array = norm(x)
    return result


class _Block(nn.Module):
  """Two or three convolutions, added to their input."""

  width: int
  stride: int
  is_bottleneck: bool

  @nn.compact
  def __call__(self, x: Array) -> Array:
    width, stride = self.width, self.stride
    # (channels, size of the kernel, stride)
    layers: Sequence[tuple[int, int, int]] = ((width, 3, stride), (width, 3, 1))
    if self.is_bottleneck:
      layers = ((width, 1, 1), (width, 3, stride), (width * _EXPANSION, 1, 1))
    out = x
    for number, layer in enumerate(layers):
      out = _Normalized(*layer, name=f"layer{number}")(out)
      out = nn.relu(out) if number < len(layers) - 1 else out
    if stride > 1 or x.shape[-1] != out.shape[-1]:
      x = _Normalized(out.shape[-1], 1, stride, name="shortcut")(x)
    return nn.relu(x + out)


class ResidualNetwork(nn.Module):
  """The features of images, of one layer.

  Attributes:
    stages: the blocks, one of ``STAGES``.
    layer: one of ``list_layers``.

  Examples:
    >>> x = jnp.zeros((2, 64, 64, 3))
    >>> network, key = ResidualNetwork(STAGES["resnet50"]), jax.random.key(0)
    >>> jax.eval_shape(network.init_with_output, key, x)[0].shape
    (2, 2048)
  """

  stages: Stages
  layer: str = "head"

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Computes the features.

    Args:
      x: [n, H, W, 3] float32, images of any size, scaled by ImageNet's mean and
        deviation.

    Returns:
      [n, D] float32, the means over all pixels of what the layer returns; "head" is
      the last block.
    """
    x = nn.relu(_Normalized(_STEM, 7, 2, name="stem")(x))
    x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
    number = 0
    for stage, count in enumerate(self.stages.blocks):
      for i in range(count):
        if self.layer in ("stem", f"block{number - 1}"):
          return x.mean((1, 2))
        stride = 2 if stage and not i else 1
        x = _Block(
          _STEM * 2**stage, stride, self.stages.is_bottleneck, name=f"block{number}"
        )(x)
        number += 1
    return x.mean((1, 2))


def list_layers(name: str) -> tuple[str, ...]:
  """Lists what can be read of a network of ``STAGES``, first to last."""
  count = sum(STAGES[name].blocks)
  return ("stem", *(f"block{number}" for number in range(count)), "head")


def name_modules(stages: Stages) -> dict[str, str]:
  """Returns the names that torchvision and timm give to our modules.

  Examples:
    >>> name_modules(STAGES["resnet18"])["block2/shortcut/norm"]
    'layer2.0.downsample.1'
  """
  names = {"stem/conv": "conv1", "stem/norm": "bn1"}
  number = 0
  for stage, count in enumerate(stages.blocks):
    for i in range(count):
      ours, theirs = f"block{number}", f"layer{stage + 1}.{i}"
      for layer in range(3 if stages.is_bottleneck else 2):
        names[f"{ours}/layer{layer}/conv"] = f"{theirs}.conv{layer + 1}"
        names[f"{ours}/layer{layer}/norm"] = f"{theirs}.bn{layer + 1}"
      if not i and (stage or stages.is_bottleneck):
        names[f"{ours}/shortcut/conv"] = f"{theirs}.downsample.0"
        names[f"{ours}/shortcut/norm"] = f"{theirs}.downsample.1"
      number += 1
  return names


def _as_torchvision(name: str) -> str:
  """The name of torchvision for a name of Hugging Face; others stay."""
  name = _STAGE.sub(lambda of: f"layer{int(of[1]) + 1}.{of[2]}.", name)
  kinds = {"convolution": "conv", "normalization": "bn"}
  name = _LAYER.sub(lambda of: f".{kinds[of[2]]}{int(of[1]) + 1}.", name)
  for pattern, replacement in _RENAMES:
    name = re.sub(pattern, replacement, name)
  return name


def load_residual_network(
  name: str,
  tensors: Arrays,
  options: dict[str, Any],
  layer: str,
  shape: tuple[int, int],
  label: str,
) -> tuple[ResidualNetwork, Params]:
  """Makes a network of weights.

  Args:
    name: one of ``STAGES``.
    tensors: the weights, under the names of torchvision, timm or Hugging Face.
    options: config.json of a folder of Hugging Face; else empty.
    layer: one of ``list_layers``.
    shape: not read, since it takes images of any size.
    label: the option, for messages.

  Returns:
    The network, and the parameters of all its layers.

  Raises:
    OptionError: weights are missing, or those of another network.
  """
  del shape
  refuse_config(options, _OPTIONS, label)
  tensors = remove_prefix(
    tensors, "layer1.0.conv1.weight", "embedder.embedder.convolution.weight"
  )
  tensors = {_as_torchvision(theirs): tensor for theirs, tensor in tensors.items()}
  stages = STAGES[name]
  shapes = jax.eval_shape(
    ResidualNetwork(stages).init, jax.random.key(0), jnp.zeros((1, 64, 64, 3))
  )
  leaves = traverse_util.flatten_dict(shapes, sep="/")
  weights = match_tensors(
    tensors,
    {leaf: of.shape for leaf, of in leaves.items()},
    name_modules(stages),
    statistics={
      leaf: leaf.removeprefix("batch_stats/")
      for leaf in leaves
      if leaf.startswith("batch_stats/")
    },
  )
  refuse_faults(weights, label, f"these are no weights of {name}")
  refuse_left(weights, _HEADS, label)
  return ResidualNetwork(stages, layer), weights.params
