"""Models that are a sequence of layers.

A model is described by a tuple of ``Dense``, ``Conv``, ``ValidConv``,
``AvgPool``, ``MaxPool`` and ``Flatten``. The flax module ``StackModule`` computes it,
and ``layer_views`` gives access to the single layers, for layer-wise least
squares.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import functools
import math
import re
from typing import ClassVar

from flax import linen as nn
import jax.numpy as jnp

from fedjax_alg.base import Array, Layer, Params
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import MAX_COUNT
from fedjax_alg.models import convolution

#: The hidden layers of ``models.CNN`` as words for ``parse_layers``.
DEFAULT_LAYERS = ("conv3-16", "max2", "conv3-32", "max2", "dense64")


class _Word:
  """A layer as the word that ``parse_layers`` reads: conv3-16."""

  word: ClassVar[str]

  def __str__(self) -> str:
    return self.word + "-".join(map(str, vars(self).values()))


@dataclasses.dataclass(frozen=True)
class Dense(_Word):
  """A dense layer with ReLU; its input is flattened."""

  word = "dense"
  width: int


@dataclasses.dataclass(frozen=True)
class Conv(_Word):
  """A square convolution with ReLU and stride 1 that keeps the image size.

  It pads with (kernel - 1) // 2 zero rows and columns before the image and
  kernel // 2 after it.
  """

  word = "conv"
  kernel: int
  channels: int


class ValidConv(Conv):
  """A ``Conv`` without padding: the image loses kernel - 1 rows and columns.

  Least squares does not fit it.
  """

  word = "valid"


@dataclasses.dataclass(frozen=True)
class AvgPool(_Word):
  """Means of adjacent size x size squares; incomplete squares are dropped."""

  word = "avg"
  size: int


@dataclasses.dataclass(frozen=True)
class MaxPool(_Word):
  """Maxima of adjacent size x size squares; incomplete squares are dropped."""

  word = "max"
  size: int


@dataclasses.dataclass(frozen=True)
class Flatten(_Word):
  """Flattens each example to a vector, in the order row, column, channel."""

  word = "flatten"


StackLayer = Dense | Conv | AvgPool | MaxPool | Flatten

_WORDS: dict[str, type] = {
  kind.word: kind for kind in (Conv, ValidConv, AvgPool, MaxPool, Dense, Flatten)
}


def parse_layers(words: Iterable[str]) -> tuple[StackLayer, ...]:
  """Parses words such as conv5-64, avg2, dense1024.

  Args:
    words: each is convK-C (kernel, channels), validK-C (without padding),
      avgS, maxS, denseW or flatten.

  Returns:
    The layers.

  Raises:
    OptionError: an unknown word, a size below 1, or a convolution or pool
      after a layer that makes vectors.
  """
  layers: list[StackLayer] = []
  vectors = None  # the first word whose layer makes vectors
  for word in words:
    match = re.fullmatch("([a-z]+)([0-9]+(?:-[0-9]+)*)?", word)
    kind = _WORDS.get(match[1]) if match else None
    # Python refuses very long numbers; the first 20 digits decide as well.
    sizes = [int(size[:20]) for size in re.findall("[0-9]+", word)]
    if kind is None or len(sizes) != len(dataclasses.fields(kind)):
      raise OptionError(
        f"`layers`={word}: unknown, must be convK-C, "
        "validK-C, avgS, maxS, denseW or flatten"
      )
    if not 1 <= min(sizes, default=1) <= max(sizes, default=1) <= MAX_COUNT:
      raise OptionError(
        f"`layers`={word}: sizes must be at least 1 and at most {MAX_COUNT:,}"
      )
    if issubclass(kind, (Dense, Flatten)):
      vectors = vectors or word
    elif vectors:
      raise OptionError(
        f"`layers`={word}: needs images, but comes after {vectors}, which makes vectors"
      )
    layers.append(kind(*sizes))
  return tuple(layers)


def of_pixels(shape: Sequence[int]) -> str:
  """Returns a hint for messages where examples may be flat pixels of images."""
  side = math.isqrt(math.prod(shape))
  if len(shape) != 1 or side**2 != shape[0] or side < 2:
    return ""
  return f"; `features`=images makes {side}x{side} of flat pixels"


def _reads(layer: StackLayer, shape: tuple[int, ...]) -> tuple[int, ...]:
  """The shape (H, W, c) or (d,) to which a layer reshapes its input."""
  if isinstance(layer, (Dense, Flatten)):
    return (math.prod(shape),)
  if len(shape) not in (2, 3):
    raise OptionError(
      f"`layers`={layer}: needs images, what it reads is of "
      f"shape {shape}{of_pixels(shape)}"
    )
  return shape if len(shape) == 3 else (*shape, 1)


def _with_inputs(
  layers: Sequence[StackLayer], input_shape: Sequence[int]
) -> Iterator[tuple[StackLayer, tuple[int, ...]]]:
  """Yields each layer with the shape of its input, (H, W, c) or (d,).

  Raises:
    OptionError: the input of a convolution or pool is not an image, or a pool
      is larger than its input.
  """
  shape = tuple(input_shape)
  for layer in layers:
    shape = _reads(layer, shape)
    yield layer, shape
    if isinstance(layer, Dense):
      shape = (layer.width,)
    elif isinstance(layer, Conv):
      lost = layer.kernel - 1 if isinstance(layer, ValidConv) else 0
      shape = (shape[0] - lost, shape[1] - lost, layer.channels)
    elif isinstance(layer, (AvgPool, MaxPool)):
      if layer.size > min(shape[:2]):
        raise OptionError(
          f"`layers`={layer}: leaves nothing of its {shape[0]}x{shape[1]} input"
        )
      shape = (shape[0] // layer.size, shape[1] // layer.size, shape[2])


def check_layers(layers: Sequence[StackLayer], input_shape: Sequence[int]) -> None:
  """Checks that the layers can read examples of a shape.

  Args:
    layers: the layers.
    input_shape: shape of one example.

  Raises:
    OptionError: the input of a convolution or pool is not an image, or a
      kernel or pool is larger than its input.
  """
  for layer, shape in _with_inputs(layers, input_shape):
    if isinstance(layer, Conv) and layer.kernel > min(shape[:2]):
      raise OptionError(
        f"`layers`={layer}: kernel {layer.kernel} is larger than its "
        f"{shape[0]}x{shape[1]} input"
      )


class _Convolution(nn.Module):
  """A ``Conv`` and the maxima that follow it.

  It makes the parameters of flax's ``Conv``, which would leave ReLU and maxima
  to others.
  """

  layer: Conv
  size: int  #: of the squares of which maxima are taken, 1: there are none

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Computes [B, H, W, c] -> [B, H' // size, W' // size, d]."""
    kernel = self.param(
      "kernel",
      nn.linear.default_kernel_init,
      (self.layer.kernel, self.layer.kernel, x.shape[3], self.layer.channels),
      jnp.float32,
    )
    bias = self.param(
      "bias", nn.initializers.zeros_init(), (self.layer.channels,), jnp.float32
    )
    padding = "VALID" if isinstance(self.layer, ValidConv) else "SAME"
    return convolution.convolve_and_pool(
      *nn.dtypes.promote_dtype(x, kernel, bias), padding, self.size
    )


def _play(layers: Sequence[StackLayer], x: Array) -> Array:
  """Applies the layers inside a flax module, which makes their parameters."""
  convolutions = 0
  for before, layer, after in zip((None, *layers), layers, (*layers[1:], None)):
    x = x.reshape(x.shape[0], *_reads(layer, x.shape[1:]))
    if isinstance(layer, Dense):
      x = nn.relu(nn.Dense(layer.width)(x))
    elif isinstance(layer, Conv):
      size = after.size if isinstance(after, MaxPool) else 1
      x = _Convolution(layer, size, name=f"Conv_{convolutions}")(x)
      convolutions += 1
    elif isinstance(layer, AvgPool):
      x = convolution.squares(x, layer.size).mean((2, 4))
    elif isinstance(layer, MaxPool) and not isinstance(before, Conv):
      x = convolution.pool_squares(x, layer.size)
  return x


class StackModule(nn.Module):
  """A sequence of layers and then a dense layer with one unit per class.

  Images [B, H, W] get an axis of one channel. The parameters are named
  Dense_0, Dense_1, ... and Conv_0, ... in the order of the layers.
  """

  num_classes: int
  layers: tuple[StackLayer, ...]

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Computes [B, ...] -> logits [B, L]."""
    x = _play(self.layers, x)
    return nn.Dense(self.num_classes)(x.reshape(x.shape[0], -1))


class _Front(nn.Module):
  """The first layers of a ``StackModule``, applied with its parameters."""

  layers: tuple[StackLayer, ...]

  @nn.compact
  def __call__(self, x: Array) -> Array:
    return _play(self.layers, x)


def layer_views(
  layers: Sequence[StackLayer],
  num_classes: int,
  input_shape: Sequence[int],
) -> tuple[Layer, ...]:
  """Lists the layers with weights of ``StackModule(num_classes, layers)``.

  With (W, b) = get(params), the output of a layer before the activation is
  unfold(inputs(params, x)) @ W + b. Parameters and examples may both be
  float32 or both float64.

  Args:
    layers: hidden layers of the stack.
    num_classes: L.
    input_shape: shape of one example.

  Returns:
    The layers, in order.

  Raises:
    OptionError: the input of a convolution or pool is not an image, or a pool
      is larger than its input.
  """
  everything = (*layers, Dense(num_classes))
  views: list[Layer] = []
  for i, (layer, shape) in enumerate(_with_inputs(everything, input_shape)):
    if not isinstance(layer, (Dense, Conv)):
      continue
    before = sum(type(earlier) is type(layer) for earlier in everything[:i])
    name = f"{type(layer).__name__}_{before}"  # the name that flax gives it
    front = _Front(tuple(everything[:i]))
    if isinstance(layer, Conv):
      kernel = (layer.kernel, layer.kernel, shape[2], layer.channels)
      views.append(
        _view(
          name,
          shape,
          shape[:2],
          kernel,
          front,
          functools.partial(_rows, kernel=layer.kernel),
        )
      )
    else:
      views.append(_view(name, shape, (1, 1), (shape[0], layer.width), front, one_row))
  return tuple(views)


def _view(
  name: str,
  shape: tuple[int, ...],
  grid: tuple[int, ...],
  kernel: tuple[int, ...],
  front: nn.Module,
  unfold: Callable[[Array], Array],
) -> Layer:
  """Makes the view of the flax layer ``name`` with this kernel shape."""

  def inputs(params: Params, x: Array) -> Array:
    return jnp.asarray(front.apply(params, x)).reshape(x.shape[0], *shape)

  def get(params: Params) -> tuple[Array, Array]:
    inner = params["params"][name]
    return inner["kernel"].reshape(-1, kernel[-1]), inner["bias"]

  def put(params: Params, weights: Array, bias: Array) -> Params:
    inner = {"kernel": weights.reshape(kernel), "bias": bias}
    return {"params": {**params["params"], name: inner}}

  return Layer(
    name,
    shape,
    (grid[0], grid[1]),
    math.prod(kernel[:-1]),
    kernel[-1],
    inputs,
    unfold,
    get,
    put,
    kernel[0] if len(kernel) == 4 else 0,
  )


def one_row(x: Array) -> Array:
  """Unfolds the input of a dense layer, [B, d] -> [B, 1, d]."""
  return x[:, None]


def _rows(x: Array, kernel: int) -> Array:
  """Unfolds [B, H, W, c] -> [B, H * W, kernel * kernel * c], zero padding."""
  batch, height, width, channels = x.shape
  return convolution.patches(x, kernel, "SAME").reshape(
    batch, height * width, kernel * kernel * channels
  )
