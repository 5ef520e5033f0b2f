"""Models that are a sequence of layers, described once.

The description (a tuple of ``Dense``, ``Conv``, ``AvgPool``, ``MaxPool`` and
``Flatten``) is played as a flax module, ``Stack``, and taken apart for
layer-wise least squares by ``layer_views``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import functools
import math
import re
from typing import Union

from flax import linen as nn
import jax.numpy as jnp

from fedjax_alg.base import Array, Layer, Params
from fedjax_alg.errors import OptionError

#: Words for ``parse_layers``: those of ``models.CNN``.
DEFAULT_LAYERS = ("conv3-16", "max2", "conv3-32", "max2", "dense64")


@dataclasses.dataclass(frozen=True)
class Dense:
  """A dense layer with ReLU; the first flattens what it reads."""

  width: int

  def __str__(self) -> str:
    return f"dense{self.width}"


@dataclasses.dataclass(frozen=True)
class Conv:
  """A square convolution with ReLU, stride 1, that keeps the image's size.

  Zero padding: (kernel - 1) // 2 rows and columns before, kernel // 2 after.
  """

  kernel: int
  channels: int

  def __str__(self) -> str:
    return f"conv{self.kernel}-{self.channels}"


@dataclasses.dataclass(frozen=True)
class AvgPool:
  """Means of size x size squares side by side, whole ones only."""

  size: int

  def __str__(self) -> str:
    return f"avg{self.size}"


@dataclasses.dataclass(frozen=True)
class MaxPool:
  """Maxima of size x size squares side by side, whole ones only."""

  size: int

  def __str__(self) -> str:
    return f"max{self.size}"


@dataclasses.dataclass(frozen=True)
class Flatten:
  """Makes each example a vector: row, column, channel."""

  def __str__(self) -> str:
    return "flatten"


StackLayer = Union[Dense, Conv, AvgPool, MaxPool, Flatten]

_WORDS: dict[str, type] = {"conv": Conv, "avg": AvgPool, "max": MaxPool,
                           "dense": Dense, "flatten": Flatten}


def parse_layers(words: Iterable[str]) -> tuple[StackLayer, ...]:
  """The layers that words such as conv5-64, avg2, dense1024 name.

  Args:
    words: convK-C (kernel, channels), avgS, maxS, denseW or flatten each.

  Raises:
    ValueError: an unknown word, a size below 1, or a convolution or pool after
      a layer that makes vectors.
  """
  layers: list[StackLayer] = []
  vectors = None  # the first word that makes them
  for word in words:
    match = re.fullmatch("([a-z]+)([0-9]+(?:-[0-9]+)*)?", word)
    kind = _WORDS.get(match[1]) if match else None
    sizes = [int(size) for size in re.findall("[0-9]+", word)]
    if kind is None or len(sizes) != len(dataclasses.fields(kind)):
      raise OptionError(f"`layers`={word}: unknown, must be convK-C, avgS, "
                       "maxS, denseW or flatten")
    if min(sizes, default=1) < 1:
      raise OptionError(f"`layers`={word}: sizes must be at least 1")
    if issubclass(kind, (Dense, Flatten)):
      vectors = vectors or word
    elif vectors:
      raise OptionError(f"`layers`={word}: needs images, but comes after "
                       f"{vectors}, which makes vectors")
    layers.append(kind(*sizes))
  return tuple(layers)


def _reads(layer: StackLayer, shape: tuple[int, ...]) -> tuple[int, ...]:
  """What ``layer`` takes an example of this shape for: (H, W, c) or (d,)."""
  if isinstance(layer, (Dense, Flatten)):
    return (math.prod(shape),)
  if len(shape) not in (2, 3):
    raise OptionError(f"`layers`={layer}: needs images, what it reads is of "
                     f"shape {shape}")
  return shape if len(shape) == 3 else (*shape, 1)


def _with_inputs(
    layers: Sequence[StackLayer], input_shape: Sequence[int]
) -> Iterator[tuple[StackLayer, tuple[int, ...]]]:
  """Each layer and the shape of what it reads: (H, W, c) or (d,).

  Raises:
    ValueError: a convolution or pool of something that is no image, or a pool
      that leaves nothing.
  """
  shape = tuple(input_shape)
  for layer in layers:
    shape = _reads(layer, shape)
    yield layer, shape
    if isinstance(layer, Dense):
      shape = (layer.width,)
    elif isinstance(layer, Conv):
      shape = (*shape[:2], layer.channels)
    elif isinstance(layer, (AvgPool, MaxPool)):
      if layer.size > min(shape[:2]):
        raise OptionError(f"`layers`={layer}: leaves nothing of its "
                         f"{shape[0]}x{shape[1]} input")
      shape = (shape[0] // layer.size, shape[1] // layer.size, shape[2])


def check_layers(
    layers: Sequence[StackLayer], input_shape: Sequence[int]) -> None:
  """Whether examples of ``input_shape`` can be read.

  Raises:
    ValueError: a convolution or pool of something that is no image, a kernel
      larger than its image, or a pool that leaves nothing.
  """
  for layer, shape in _with_inputs(layers, input_shape):
    if isinstance(layer, Conv) and layer.kernel > min(shape[:2]):
      raise OptionError(
          f"`layers`={layer}: kernel {layer.kernel} is larger than its "
          f"{shape[0]}x{shape[1]} input")


def _average(x: Array, size: int) -> Array:
  """Means of squares. The gradient of nn.avg_pool takes 3 times as long."""
  batch, height, width, channels = x.shape
  rows, columns = height // size, width // size
  squares = x[:, :rows * size, :columns * size].reshape(
      batch, rows, size, columns, size, channels)
  return squares.mean((2, 4))


def _play(layers: Sequence[StackLayer], x: Array) -> Array:
  """All of ``layers``, in a flax module that makes their parameters."""
  for layer in layers:
    x = x.reshape(x.shape[0], *_reads(layer, x.shape[1:]))
    if isinstance(layer, Dense):
      x = nn.relu(nn.Dense(layer.width)(x))
    elif isinstance(layer, Conv):
      x = nn.relu(nn.Conv(layer.channels, (layer.kernel, layer.kernel))(x))
    elif isinstance(layer, AvgPool):
      x = _average(x, layer.size)
    elif isinstance(layer, MaxPool):
      square = (layer.size, layer.size)
      x = nn.max_pool(x, square, strides=square)
  return x


class Stack(nn.Module):
  """Layers one after the other, then a dense one with a unit for each class.

  Images [B, H, W] get an axis of one channel. Parameters are named Dense_0,
  Dense_1, ... and Conv_0, ... in order.
  """

  num_classes: int
  layers: tuple[StackLayer, ...]

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """[B, ...] -> logits [B, L]."""
    x = _play(self.layers, x)
    return nn.Dense(self.num_classes)(x.reshape(x.shape[0], -1))


class _Front(nn.Module):
  """The first layers of a ``Stack``, played with the whole one's parameters."""

  layers: tuple[StackLayer, ...]

  @nn.compact
  def __call__(self, x: Array) -> Array:
    return _play(self.layers, x)


def layer_views(
    layers: Sequence[StackLayer],
    num_classes: int,
    input_shape: Sequence[int],
) -> tuple[Layer, ...]:
  """The layers with weights of ``Stack(num_classes, layers)``, in order.

  Where (W, b) = get(params), unfold(inputs(params, x)) @ W + b is what the
  model computes there before the activation. A view works on float32 or
  float64, parameters and examples alike.

  Args:
    layers: as the stack's.
    num_classes: L.
    input_shape: shape of one example.

  Raises:
    ValueError: a convolution or pool of something that is no image, or a pool
      that leaves nothing.
  """
  everything = (*layers, Dense(num_classes))
  views: list[Layer] = []
  for i, (layer, shape) in enumerate(_with_inputs(everything, input_shape)):
    if not isinstance(layer, (Dense, Conv)):
      continue
    before = sum(type(other) is type(layer) for other in everything[:i])
    name = f"{type(layer).__name__}_{before}"  # flax's classes: same names
    front = _Front(tuple(everything[:i]))
    if isinstance(layer, Conv):
      kernel = (layer.kernel, layer.kernel, shape[2], layer.channels)
      views.append(_view(
          name, shape, shape[:2], kernel, front,
          functools.partial(_patches, kernel=layer.kernel)))
    else:
      views.append(_view(
          name, shape, (1, 1), (shape[0], layer.width), front, one_row))
  return tuple(views)


def _view(name: str, shape: tuple[int, ...], grid: tuple[int, ...],
          kernel: tuple[int, ...], front: nn.Module,
          unfold: Callable[[Array], Array]) -> Layer:
  """The view of the flax layer ``name`` with a kernel of this shape."""

  def inputs(params: Params, x: Array) -> Array:
    return jnp.asarray(front.apply(params, x)).reshape(x.shape[0], *shape)

  def get(params: Params) -> tuple[Array, Array]:
    own = params["params"][name]
    return own["kernel"].reshape(-1, kernel[-1]), own["bias"]

  def put(params: Params, weights: Array, bias: Array) -> Params:
    own = {"kernel": weights.reshape(kernel), "bias": bias}
    return {"params": {**params["params"], name: own}}

  return Layer(name, shape, (grid[0], grid[1]), math.prod(kernel[:-1]),
               kernel[-1], inputs, unfold, get, put)


def one_row(x: Array) -> Array:
  """What a dense layer reads, [B, d] -> [B, 1, d]."""
  return x[:, None]


def _patches(x: Array, kernel: int) -> Array:
  """[B, H, W, c] -> [B, H * W, kernel * kernel * c], zero padding.

  Shifted slices, not lax.conv_general_dilated_patches, which convolves with an
  identity and is slow on a CPU.
  """
  batch, height, width, channels = x.shape
  around = ((kernel - 1) // 2, kernel // 2)
  padded = jnp.pad(x, ((0, 0), around, around, (0, 0)))
  shifted = [padded[:, i:i + height, j:j + width]
             for i in range(kernel) for j in range(kernel)]
  return jnp.concatenate(shifted, axis=3).reshape(
      batch, height * width, kernel * kernel * channels)
