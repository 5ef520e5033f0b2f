"""Vision transformers as timm and Hugging Face have them, of any width and depth.

References: Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021; Oquab et
al., "DINOv2: Learning Robust Visual Features without Supervision", TMLR 2024, which
scales what attention and MLP add by a vector. Width, depth, side of a patch and
whether there is such a scale are read off the weights; heads have 64 channels.
"""

import math
import re
from typing import Any

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Array, Params
from fedjax_alg.errors import OptionError, check_one_of
from fedjax_alg.extras.backbones.torch_files import Arrays
from fedjax_alg.extras.backbones.weights import (
  match_tensors,
  refuse_config,
  refuse_faults,
  refuse_left,
  remove_prefix,
)

_HEAD = 64  #: channels of a head of attention
#: Names in files of Hugging Face -> those of timm, in this order.
_RENAMES = tuple(
  (re.compile(pattern), replacement)
  for pattern, replacement in (
    (r"^embeddings\.cls_token", "cls_token"),
    (r"^embeddings\.position_embeddings", "pos_embed"),
    (r"^embeddings\.mask_token", "mask_token"),
    (r"^embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"^(?:encoder\.)?layers?\.(\d+)\.", r"blocks.\1."),
    (r"\.attention\.(?:output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.attention\.(?:attention\.)?(query|key|value)\.", r".attn.\1."),
    (r"\.attention\.(?=[qkv]_proj\.)", ".attn."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.layer_scale(\d)\.lambda1", r".ls\1.gamma"),
    (r"^layernorm\.", "norm."),
  )
)
#: The three parts of attention's first layer, by their names in Hugging Face.
_PARTS = (("query", "key", "value"), ("q_proj", "k_proj", "v_proj"))
#: How the names of tensors begin that no layer here reads: heads, and the token of
#: patches that are hidden in training.
_HEADS = ("head.", "classifier.", "pooler.", "mask_token")
#: Our modules -> their names in timm, in a block and outside.
_NAMES = {"patches": "patch_embed.proj", "norm": "norm"}
_LEAVES = {"params/cls": "cls_token", "params/position": "pos_embed"}
_OF_BLOCK = {
  "norm1": "norm1",
  "qkv": "attn.qkv",
  "out": "attn.proj",
  "norm2": "norm2",
  "mlp1": "mlp.fc1",
  "mlp2": "mlp.fc2",
}


class _Scale(nn.Module):
  """A factor of each channel."""

  @nn.compact
  def __call__(self, x: Array) -> Array:
    gamma = self.param("gamma", nn.initializers.ones_init(), x.shape[-1:])
    return x * gamma.reshape(1, 1, -1)


class _Block(nn.Module):
  """Attention, then an MLP, each added to its input."""

  mlp_width: int
  has_scale: bool
  epsilon: float

  @nn.compact
  def __call__(self, x: Array) -> Array:
    count, tokens, width = x.shape

    def add(x: Array, change: Array, number: int) -> Array:
      return x + (_Scale(name=f"scale{number}")(change) if self.has_scale else change)

    qkv = nn.Dense(3 * width, name="qkv")(
      nn.LayerNorm(epsilon=self.epsilon, name="norm1")(x)
    )
    qkv = qkv.reshape(count, tokens, 3, width // _HEAD, _HEAD)
    query, key, value = (qkv[:, :, part] for part in range(3))
    products = jnp.einsum("nqhc,nkhc->nhqk", query, key) / math.sqrt(_HEAD)
    out = jnp.einsum("nhqk,nkhc->nqhc", nn.softmax(products), value)
    x = add(x, nn.Dense(width, name="out")(out.reshape(x.shape)), 1)
    out = nn.Dense(self.mlp_width, name="mlp1")(
      nn.LayerNorm(epsilon=self.epsilon, name="norm2")(x)
    )
    return add(x, nn.Dense(width, name="mlp2")(nn.gelu(out, approximate=False)), 2)


class VisionTransformer(nn.Module):
  """The features of images, of one layer.

  Attributes:
    width: channels of a token, 64 for each head.
    depth: number of blocks.
    mlp_width: channels inside the MLP of a block.
    patch: side of a patch in pixels.
    has_scale: whether what a block adds is scaled, as in DINOv2.
    epsilon: added to variances before their root is taken.
    layer: "stem", "block0", ..., or "head".

  Examples:
    >>> network = VisionTransformer(128, 2, 512, patch=14)
    >>> x, key = jnp.zeros((2, 28, 42, 3)), jax.random.key(0)
    >>> jax.eval_shape(network.init_with_output, key, x)[0].shape
    (2, 128)
  """

  width: int
  depth: int
  mlp_width: int
  patch: int
  has_scale: bool = False
  epsilon: float = 1e-6
  layer: str = "head"

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Computes the features.

    Args:
      x: [n, H, W, 3] float32, scaled as the weights were trained; H and W are
        multiples of ``patch``, and give as many patches as there are positions.

    Returns:
      [n, width] float32, the class token: after a block, or after the last one and its
      normalization ("head"). "stem" has the means of the embedded patches, because the
      class token has not read them yet.
    """
    sides = (self.patch, self.patch)
    x = nn.Conv(self.width, sides, sides, "VALID", name="patches")(x)
    x = x.reshape(len(x), -1, self.width)
    cls = self.param("cls", nn.initializers.zeros_init(), (1, 1, self.width))
    x = jnp.concatenate([jnp.broadcast_to(cls, (len(x), 1, self.width)), x], axis=1)
    position = self.param(
      "position", nn.initializers.normal(0.02), (1, x.shape[1], self.width)
    )
    x = x + position
    if self.layer == "stem":
      return x[:, 1:].mean(1)
    for number in range(self.depth):
      x = _Block(self.mlp_width, self.has_scale, self.epsilon, name=f"block{number}")(x)
      if self.layer == f"block{number}":
        return x[:, 0]
    result: Array = nn.LayerNorm(epsilon=self.epsilon, name="norm")(x[:, 0])
    return result


def _as_timm(tensors: Arrays) -> Arrays:
  """The tensors under the names of timm; those of Hugging Face get them."""
  renamed = {}
  for name, tensor in tensors.items():
    for pattern, replacement in _RENAMES:
      name = pattern.sub(replacement, name)
    renamed[name] = tensor
  for query, *others in _PARTS:
    ends = (f".attn.{query}.weight", f".attn.{query}.bias")
    for name in [name for name in renamed if name.endswith(ends)]:
      names = [name, *(name.replace(f".{query}.", f".{part}.") for part in others)]
      if all(part in renamed for part in names):
        joined = np.concatenate([renamed.pop(part) for part in names])
        renamed[name.replace(f".{query}.", ".qkv.")] = joined
  return renamed


def cubic_matrix(old: int, new: int) -> np.ndarray:
  """Resizes a line as torch's bicubic interpolation without antialiasing does.

  Args:
    old: number of values.
    new: number of values of the result.

  Returns:
    float64 [new, old], with the cubic of a = -0.75; positions outside of the line
    have its end's value.
  """
  matrix = np.zeros((new, old))
  centers = (np.arange(new) + 0.5) * old / new - 0.5
  for shift in range(-1, 3):
    place = np.floor(centers).astype(int) + shift
    distance = np.abs(centers - place)
    near = 1.25 * distance**3 - 2.25 * distance**2 + 1
    far = -0.75 * (distance**3 - 5 * distance**2 + 8 * distance - 4)
    np.add.at(
      matrix,
      (np.arange(new), np.clip(place, 0, old - 1)),
      np.where(distance <= 1, near, far),
    )
  return matrix


def _resize_positions(
  positions: np.ndarray, grid: tuple[int, int], is_smooth: bool, label: str
) -> np.ndarray:
  """The positions of a grid of patches of another shape.

  Args:
    positions: [1, 1 + G G, width], of the class token and of a square grid.
    grid: rows and columns of the new grid.
    is_smooth: whether the interpolation has antialiasing, as in timm; if not, it is
      the one of Hugging Face.
    label: how messages name the weights.

  Returns:
    [1, 1 + rows * columns, width].

  Raises:
    OptionError: they are no square.
  """
  count, width = positions.shape[1] - 1, positions.shape[2]
  side = math.isqrt(max(count, 0))
  if side * side != count or not side:
    raise OptionError(f"{label}: has {count} positions, must be a square of patches")
  if grid == (side, side):
    return positions
  square = positions[0, 1:].reshape(side, side, width)
  if is_smooth:
    resized = np.asarray(jax.image.resize(square, (*grid, width), "cubic"))
  else:
    rows, columns = (cubic_matrix(side, length) for length in grid)
    resized = np.einsum("ia,jb,abc->ijc", rows, columns, square)
  resized = resized.reshape(1, -1, width).astype(np.float32)
  return np.concatenate([positions[:, :1], resized], axis=1)


def _read_shape(tensors: Arrays, label: str) -> dict[str, Any]:
  """Width, depth, width of the MLP and side of a patch, off the weights.

  Raises:
    OptionError: they are of no transformer of images, or its heads have another size.
  """
  try:
    (width, _, patch, _), mlp_width = (
      tensors["patch_embed.proj.weight"].shape,
      tensors["blocks.0.mlp.fc1.weight"].shape[0],
    )
    tensors["cls_token"], tensors["pos_embed"].shape[2]
  except (KeyError, ValueError, IndexError):
    raise OptionError(
      f"{label}: no weights of a vision transformer, as timm or Hugging Face have them"
    ) from None
  if width % _HEAD:
    raise OptionError(
      f"{label}: has {width} channels (allowed: multiples of {_HEAD}, a head has "
      f"{_HEAD})"
    )
  depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
  return {"width": width, "depth": depth, "mlp_width": mlp_width, "patch": patch}


def load_vision_transformer(
  tensors: Arrays,
  options: dict[str, Any],
  layer: str,
  shape: tuple[int, int],
  label: str,
) -> tuple[VisionTransformer, Params]:
  """Makes a transformer of weights.

  Args:
    tensors: the weights, under the names of timm (also those of DINO, DINOv2 and DeiT)
      or of Hugging Face.
    options: config.json of a folder of Hugging Face; else empty.
    layer: "stem", "block0", ..., or "head".
    shape: height and width of the images. Positions of another grid of patches are
      interpolated, as the library does that has such names.
    label: the option, for messages.

  Returns:
    The network, and the parameters of all its layers for such images.

  Raises:
    OptionError: weights are missing, or those of another network; there is no such
      layer; or the images are no multiple of a patch.
  """
  tensors = remove_prefix(tensors, "embeddings.cls_token", "cls_token")
  is_smooth = "cls_token" in tensors
  tensors = _as_timm(tensors)
  sizes = _read_shape(tensors, label)
  heads = sizes["width"] // _HEAD
  refuse_config(options, {"hidden_act": "gelu", "num_attention_heads": heads}, label)
  layers = ("stem", *(f"block{i}" for i in range(sizes["depth"])), "head")
  check_one_of(f"{label}: layer={layer}", layer, layers)
  patch = sizes["patch"]
  if any(side % patch or side < patch for side in shape):
    raise OptionError(
      f"{label}: images of {shape[0]} x {shape[1]} pixels, their sides must be "
      f"multiples of the patches' {patch} (give another size)"
    )
  network = VisionTransformer(
    **sizes,
    has_scale="blocks.0.ls1.gamma" in tensors,
    epsilon=float(options.get("layer_norm_eps", 1e-6)),
    layer=layer,
  )
  grid = (shape[0] // patch, shape[1] // patch)
  tensors["pos_embed"] = _resize_positions(
    np.asarray(tensors["pos_embed"], np.float32), grid, is_smooth, label
  )
  names = _NAMES | _LEAVES
  for number in range(sizes["depth"]):
    ours, theirs = f"block{number}", f"blocks.{number}."
    names |= {f"{ours}/{name}": theirs + of for name, of in _OF_BLOCK.items()}
    if network.has_scale:
      names |= {f"{ours}/scale{i}": f"{theirs}ls{i}" for i in (1, 2)}
  shapes = jax.eval_shape(
    network.clone(layer="head").init, jax.random.key(0), jnp.zeros((1, *shape, 3))
  )
  leaves = traverse_util.flatten_dict(shapes, sep="/")
  weights = match_tensors(
    tensors, {leaf: of.shape for leaf, of in leaves.items()}, names
  )
  refuse_faults(weights, label, "these are no weights of a vision transformer")
  refuse_left(weights, _HEADS, label)
  return network, weights.params
