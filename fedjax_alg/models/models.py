"""The named models, which are parts: ``mlp:128,64`` is ``MLP((128, 64))``.

Softmax regression, perceptron, CNN, stack, residual blocks, LSTM, ResNet-18 and a
transformer. Their last layer has L outputs without an activation: logits of L
classes or labels, or L numbers of regression.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import ClassVar

from flax import linen as nn
import jax.numpy as jnp

from fedjax_alg import tasks
from fedjax_alg.base import Model
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import field_like, hyper
from fedjax_alg.models import layers as layers_lib
from fedjax_alg.models import linen_modules, lstm, residual, resnet, transformer
from fedjax_alg.part import Part, parts_of
from fedjax_alg.typing import Shapes

#: Compile time grows with every layer.
MAX_LAYERS = 100


class Architecture(Part):
  """A named model, which is made for the examples and classes of a run."""

  #: whether it reads ids of words or characters
  OF_TOKENS: ClassVar[bool] = False
  #: the fewest pixels each way of the images that it reads; 0: it reads others, too
  MIN_PIXELS: ClassVar[int] = 0
  #: whether all of its layers are dense layers and convolutions
  LAYERED: ClassVar[bool] = False

  def build(
    self,
    input_shape: Shapes,
    num_classes: int,
    *,
    l2: float = 0.0,
    tokens: int = 10_002,
    task: str | tasks.Task | None = None,
  ) -> Model:
    """Makes the model.

    Args:
      input_shape: shape of one example.
      num_classes: L, the number of outputs (of each token).
      l2: coefficient of (l2/2) ||w||^2.
      tokens: number of ids; examples of a model of tokens hold ids in [0, tokens).
      task: what is predicted, see ``tasks.resolve_task``; None: one class for each
        example.

    Returns:
      The model; it reads int32 ids if ``OF_TOKENS``, else float32.

    Raises:
      OptionError: examples of several arrays; a model of images for examples that
        are none; layers that do not fit the examples; or a model of tokens for
        examples that are not sequences, or for one class.

    Examples:
      >>> MLP((6,)).build((4,), 3).input_shape
      (4,)
    """
    if isinstance(input_shape, Mapping):
      raise OptionError(
        f"`model`={self.WORD}: reads one array, the examples have "
        f"{', '.join(input_shape)} (give a model of your own)"
      )
    self.check_images(input_shape)
    task = tasks.resolve_task(task)
    if self.OF_TOKENS and (
      len(input_shape) != 1 or num_classes < 2 and (task is None or task.has_classes)
    ):
      raise OptionError(
        f"`model`={self.WORD}: needs sequences of words or characters in at least 2 "
        f"classes, the examples are of shape {input_shape} in {num_classes}"
      )
    return linen_modules.from_flax(
      self._module(num_classes, tokens, task or tasks.CLASSIFICATION),
      input_shape,
      l2=l2,
      task=task,
      input_dtype=jnp.int32 if self.OF_TOKENS else jnp.float32,
    )

  def check_images(self, input_shape: Sequence[int]) -> None:
    """Checks that a model of images can read examples of a shape.

    Raises:
      OptionError: it cannot.
    """
    least = self.MIN_PIXELS
    if least and (len(input_shape) not in (2, 3) or min(input_shape[:2]) < least):
      size = "x".join(map(str, input_shape)) or "scalar"
      raise OptionError(
        f"`model`={self}: needs images of at least {least}x{least} pixels, the "
        f"examples are {size} ({math.prod(input_shape)} numbers)"
        f"{layers_lib.of_pixels(input_shape)}"
      )

  @property
  def needs_images(self) -> bool:
    """Whether it reads images alone."""
    return self.MIN_PIXELS > 0

  @property
  def num_layers(self) -> int:
    """The number of dense layers and convolutions with padding, if ``LAYERED``."""
    return 1

  @property
  def num_convolutions(self) -> int:
    """The number of convolutions with padding, if ``LAYERED``."""
    return 0

  def _module(self, num_classes: int, tokens: int, task: tasks.Task) -> nn.Module:
    """Makes the flax module."""
    raise NotImplementedError


class Softmax(Architecture):
  """Softmax regression, one dense layer."""

  WORD = EXAMPLE = "softmax"
  LAYERED = True

  def _module(self, num_classes: int, tokens: int, task: tasks.Task) -> nn.Module:
    return linen_modules.SoftmaxModule(num_classes)


class _Layers(Architecture):
  """A sequence of layers, and a dense layer with the outputs."""

  LAYERED = True

  @property
  def hidden_layers(self) -> tuple[layers_lib.StackLayer, ...]:
    """All layers but the last."""
    raise NotImplementedError

  @property
  def num_layers(self) -> int:
    dense = sum(isinstance(layer, layers_lib.Dense) for layer in self.hidden_layers)
    return 1 + dense + self.num_convolutions

  @property
  def num_convolutions(self) -> int:
    return sum(type(layer) is layers_lib.Conv for layer in self.hidden_layers)

  def _module(self, num_classes: int, tokens: int, task: tasks.Task) -> nn.Module:
    return layers_lib.StackModule(num_classes, self.hidden_layers)


class MLP(_Layers):
  """A perceptron: dense layers with ReLU between them."""

  WORD, EXAMPLE = "mlp", "mlp:128,64"

  hidden: tuple[int, ...] = hyper((128,), "widths of the hidden layers")

  def __post_init__(self) -> None:
    super().__post_init__()
    _check_widths(self, "hidden", self.hidden)

  @property
  def hidden_layers(self) -> tuple[layers_lib.StackLayer, ...]:
    """All layers but the last."""
    return tuple(map(layers_lib.Dense, self.hidden))


class CNN(_Layers):
  """Two 3x3 convolutions, each with 2x2 maxima, and a dense layer of 64 units."""

  WORD = EXAMPLE = "cnn"
  MIN_PIXELS = 4

  @property
  def hidden_layers(self) -> tuple[layers_lib.StackLayer, ...]:
    """All layers but the last."""
    return layers_lib.parse_layers(layers_lib.DEFAULT_LAYERS)


class Stack(_Layers):
  """Your own sequence of layers with ReLU.

  Raises:
    OptionError: an unknown word, a size below 1, or a convolution or pool after a
      layer that makes vectors.
  """

  WORD, EXAMPLE = "stack", "stack:conv5-32,max2,dense128"

  layers: tuple[str, ...] = hyper(
    tuple(layers_lib.DEFAULT_LAYERS),
    "hidden layers in order: convK-C = convolution with C channels, K x K pixels and "
    "zero padding; validK-C = the same without padding; avgS or maxS = average or "
    "maximum over S x S pixels; denseW = dense layer of W units; flatten",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    _check_number(self, "layers", self.layers)
    try:
      _ = self.hidden_layers
    except OptionError as error:
      raise OptionError(f"{self.WORD}: {_of_layers(error)}") from None

  @property
  def hidden_layers(self) -> tuple[layers_lib.StackLayer, ...]:
    """All layers but the last."""
    return layers_lib.parse_layers(self.layers)

  @property
  def needs_images(self) -> bool:
    """Whether it reads images alone."""
    return any(word.startswith(("conv", "valid", "avg", "max")) for word in self.layers)

  def check_images(self, input_shape: Sequence[int]) -> None:
    """Checks that the layers can read examples of a shape.

    Raises:
      OptionError: they cannot.
    """
    try:
      layers_lib.check_layers(self.hidden_layers, input_shape)
    except OptionError as error:
      raise OptionError(f"`model`={self}: {_of_layers(error)}") from None


class Residual(Architecture):
  """Residual blocks with fixed random weights inside, and a head."""

  WORD, EXAMPLE = "residual", "residual:blocks=3,features=512"
  LAYERED = True

  _: dataclasses.KW_ONLY
  blocks: int = hyper(2, "number of blocks", minimum=1, maximum=MAX_LAYERS)
  features: int = hyper(256, "F, fixed random units of each block", minimum=1)

  @property
  def num_layers(self) -> int:
    """The number of fitted layers: a block has one, and the head."""
    return 1 + self.blocks

  def _module(self, num_classes: int, tokens: int, task: tasks.Task) -> nn.Module:
    return residual.ResidualModule(num_classes, self.blocks, self.features)


class LSTM(Architecture):
  """LSTM layers over words or characters."""

  WORD, EXAMPLE = "lstm", "lstm:256,256,embedding=learned"
  OF_TOKENS = True

  widths: tuple[int, ...] | None = hyper(
    None,
    "widths of the LSTM layers; default 100,100 for two classes, else 256,256",
  )
  _: dataclasses.KW_ONLY
  embedding: str | None = hyper(
    None,
    "how words or characters become vectors, one of "
    + ", ".join(lstm.EMBEDDINGS)
    + ": frozen = constant random vectors, learned = trained vectors; default learned "
    "for characters, else frozen",
    choices=lstm.EMBEDDINGS,
  )
  embedding_size: int | None = hyper(
    None,
    "length of these vectors; default 300, but 8 for learned vectors in more than "
    "two classes",
    minimum=1,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.widths is None:
      return
    _check_widths(self, "widths", self.widths)
    if not self.widths:
      raise OptionError(f"{self.WORD}: widths=: empty, must have one layer at least")

  def _module(self, num_classes: int, tokens: int, task: tasks.Task) -> nn.Module:
    return lstm.make_lstm(
      num_classes,
      tokens,
      self.embedding or lstm.EMBEDDINGS[0],
      self.embedding_size,
      self.widths,
      task.has_classes,
      task.of_tokens,
    )


class ResNet18(Architecture):
  """ResNet-18 for small images."""

  WORD, EXAMPLE = "resnet18", "resnet18:batch,width=32"
  MIN_PIXELS = 8

  norm: str = hyper(
    "group",
    "the normalization layers, one of "
    + ", ".join(resnet.NORMS)
    + ": GroupNorm of two groups or BatchNorm",
    choices=resnet.NORMS,
  )
  _: dataclasses.KW_ONLY
  width: int = hyper(
    64,
    "channels of the first of four stages; each has twice as many as the previous one",
    minimum=2,
  )
  remat: bool = hyper(
    False,
    "whether gradients compute the activations within a block again instead of "
    "keeping them: less memory for about a third more computation",
  )

  def _module(self, num_classes: int, tokens: int, task: tasks.Task) -> nn.Module:
    return resnet.ResNetModule(num_classes, self.norm, self.width, self.remat)


class Transformer(Architecture):
  """A causal transformer over words or characters.

  Raises:
    OptionError: the heads do not divide ``d_model``.
  """

  WORD, EXAMPLE = "transformer", "transformer:d_model=64,blocks=4,heads=8"
  OF_TOKENS = True

  _: dataclasses.KW_ONLY
  d_model: int = hyper(
    128, "length of the vectors between the blocks, a multiple of heads", minimum=1
  )
  blocks: int = hyper(
    2,
    "number of blocks of attention and perceptron",
    minimum=1,
    maximum=MAX_LAYERS,
  )
  heads: int = hyper(4, "number of heads of each attention", minimum=1)
  remat: bool = field_like(ResNet18, "remat")

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.d_model % self.heads:
      raise OptionError(
        f"{self.WORD}: heads={self.heads}: must divide d_model={self.d_model}"
      )

  def _module(self, num_classes: int, tokens: int, task: tasks.Task) -> nn.Module:
    return transformer.TransformerModule(
      num_classes,
      tokens,
      self.d_model,
      self.blocks,
      self.heads,
      task.of_tokens,
      self.remat,
    )


def _of_layers(error: OptionError) -> str:
  """A message of ``layers``, in which they are a field."""
  return error.text.replace("`layers`", "layers")


def _check_number(part: Part, name: str, entries: Sequence[object]) -> None:
  """Refuses more layers than a program can have."""
  if len(entries) > MAX_LAYERS:
    raise OptionError(
      f"{part.WORD}: {name} has {len(entries)} layers, must be at most {MAX_LAYERS}"
    )


def _check_widths(part: Part, name: str, widths: Sequence[int]) -> None:
  """Refuses layers without units, and too many layers."""
  _check_number(part, name, widths)
  for width in widths:
    if width < 1:
      raise OptionError(f"{part.WORD}: {name}={width}: must be at least 1")


#: The named models.
NAMED_MODELS = Softmax | MLP | CNN | Stack | Residual | LSTM | ResNet18 | Transformer
_KINDS = [kind for kind in parts_of(NAMED_MODELS) if issubclass(kind, Architecture)]
#: Words of models whose layers are dense layers and convolutions.
LAYERED = tuple(kind.WORD for kind in _KINDS if kind.LAYERED)
#: Words of models that read ids of words or characters.
OF_TOKENS = tuple(kind.WORD for kind in _KINDS if kind.OF_TOKENS)
