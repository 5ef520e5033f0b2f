"""A fixed map of the examples before the first layer of a model.

The model of a run is then x -> model(phi(x)). Its parameters are those of the
model that reads phi(x), so every method trains them, closed form fits them, and
``init`` goes on from them. The map itself has no parameters: all clients draw it
from one seed, and nothing of it is sent.
"""

from collections.abc import Callable, Mapping
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float
import numpy as np

from fedjax_alg import memory, trees
from fedjax_alg.base import Array, Layer, Model, Params
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import hyper
from fedjax_alg.models import roles
from fedjax_alg.part import Part
from fedjax_alg.typing import DTypes, Shapes


@dataclasses.dataclass(frozen=True)
class FeatureMap:
  """phi of examples of one shape."""

  width: int  #: D, the length of phi(x)
  apply: Callable[[Array], Array]  #: x [B, ...] -> phi(x) [B, D], in the dtype of x
  flops: float  #: multiplications and additions for one example


class NoFeatureMap(Part):
  """The model reads the examples themselves."""

  WORD, EXAMPLE = "none", "none"

  def draw(self, input_shape: Shapes, input_dtype: DTypes) -> None:
    """Draws no map."""


class _Drawn(Part):
  """A map that is drawn from a seed."""

  _: dataclasses.KW_ONLY
  seed: int = hyper(
    0, "seed of the map, the same for all clients and all seeds of a run", minimum=0
  )

  def draw(self, input_shape: Shapes, input_dtype: DTypes) -> FeatureMap:
    """Draws the map for examples of a shape.

    Args:
      input_shape: shape of one example.
      input_dtype: dtype of the examples.

    Returns:
      The map; the same seed draws the same one for every client.

    Raises:
      OptionError: the examples are several arrays, or no real numbers; or what is
        drawn does not fit into memory.
    """
    dtype: Any = input_dtype
    if isinstance(input_shape, Mapping) or not np.issubdtype(
      np.dtype(dtype), np.floating
    ):
      raise OptionError(
        f"`feature_map`={self}: reads one array of real numbers, the examples are not "
        "one"
      )
    return self._of(math.prod(input_shape), np.random.default_rng(self.seed))

  def _of(self, d: int, rng: np.random.Generator) -> FeatureMap:
    """Draws the map of examples of d numbers."""
    raise NotImplementedError


class _RandomFeatures(_Drawn):
  """A random projection of the examples, followed by a function of each output."""

  num_features: int = hyper(1000, "D, the number of random features", minimum=1)

  def _omega(self, d: int, rng: np.random.Generator, variance: float) -> np.ndarray:
    """Draws Omega [d, D], normal with this variance."""
    # It is drawn, and scaled.
    memory.refuse(
      f"`feature_map`={self}: Omega [{d}, {self.num_features}]",
      2 * 8.0 * d * self.num_features,
    )
    omega = np.sqrt(variance) * rng.standard_normal((d, self.num_features))
    return np.asarray(omega)


class FourierFeatures(_RandomFeatures):
  """Random Fourier features of the kernel exp(-gamma |x - z|^2).

  phi(x) = sqrt(2/D) cos(x Omega + b), Omega [d, D] normal with the variance 2 gamma,
  b uniform on [0, 2 pi]. Products phi(x) phi(z)' are on average the kernel (Rahimi,
  Recht, NIPS 2007).
  """

  WORD, EXAMPLE = "fourier", "fourier:1000,gamma=0.1,seed=3"

  _: dataclasses.KW_ONLY
  gamma: float | None = hyper(
    None,
    "gamma of the kernel; none: 1 / d for examples of d numbers, as scikit-learn's "
    "rbf_kernel has it",
    above=0.0,
  )

  def _of(self, d: int, rng: np.random.Generator) -> FeatureMap:
    gamma = 1.0 / d if self.gamma is None else self.gamma
    omega = self._omega(d, rng, 2.0 * gamma)
    return random_features(omega, rng.uniform(0.0, 2.0 * np.pi, self.num_features))


class ReLUFeatures(_RandomFeatures):
  """Random ReLU features, on average the arc-cosine kernel of degree 1.

  phi(x) = sqrt(2/D) max(x Omega, 0), Omega standard normal (Cho, Saul, NIPS 2009).
  """

  WORD, EXAMPLE = "relu", "relu:1000,seed=3"

  def _of(self, d: int, rng: np.random.Generator) -> FeatureMap:
    return random_features(self._omega(d, rng, 1.0), None)


class BucketFeatures(_Drawn):
  """A one-hot vector for each group of thresholded inputs.

  Every number x_j becomes one bit for each threshold t, x_j > t. The bits are shuffled
  and cut into groups of g. A group has one output for each of its 2^g patterns, which
  is 1 for the pattern of x and else 0 (SAFLe: Bacellar et al., CVPR 2026).
  """

  WORD, EXAMPLE = "buckets", "buckets:0.25,0.5,0.75,group_size=3"

  thresholds: tuple[float, ...] = hyper(
    (0.25, 0.5, 0.75),
    "t of the bits x_j > t into which every input is cut",
    distinct=True,
  )
  _: dataclasses.KW_ONLY
  group_size: int = hyper(
    3,
    "g, bits of a group, which has one output for each of its 2^g patterns",
    minimum=1,
    maximum=12,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.thresholds:
      raise OptionError("buckets: thresholds is empty, must be one number at least")

  def _of(self, d: int, rng: np.random.Generator) -> FeatureMap:
    bits = d * len(self.thresholds)
    memory.refuse(
      f"`feature_map`={self}: the order of {len(self.thresholds):,} bits of {d:,} "
      "numbers",
      8.0 * bits,
    )
    return _buckets(rng.permutation(bits), self.thresholds, self.group_size)


#: The fixed maps before a model.
FEATURE_MAPS = NoFeatureMap | FourierFeatures | ReLUFeatures | BucketFeatures


def random_features(
  omega: Float[np.ndarray, "d D"], offset: Float[np.ndarray, " D"] | None
) -> FeatureMap:
  """The map of given random numbers.

  Args:
    omega: Omega [d, D].
    offset: b [D] of Fourier features; None: they are ReLU features.
  """
  d, width = omega.shape
  scale = math.sqrt(2.0 / width)

  def apply(x: Array) -> Array:
    z = jnp.matmul(
      x.reshape(x.shape[0], d), jnp.asarray(omega, x.dtype), precision=trees.HIGHEST
    )
    if offset is None:
      return jnp.maximum(z, jnp.zeros_like(z)) * jnp.asarray(scale, x.dtype)
    return jnp.cos(z + jnp.asarray(offset[None], x.dtype)) * jnp.asarray(scale, x.dtype)

  return FeatureMap(width, apply, 2.0 * d * width)


def features_of_layer(model: Model, params: Params, layer: str = "") -> FeatureMap:
  """Makes a map of what a layer of a trained model reads: frozen deep features.

  Args:
    model: a model whose layers are known (``Model.layers``).
    params: its parameters, which the map has as constants.
    layer: name of the layer; "": the last one, so that all before it is the map.

  Returns:
    The map.

  Raises:
    OptionError: the model's layers are not known, or none has this name.

  Examples:
    >>> from fedjax_alg import models
    >>> body = models.MLP((6,)).build((4,), 3)
    >>> phi = features_of_layer(body, body.init(jax.random.key(0)))
    >>> head = on_features(models.Softmax().build((phi.width,), 3), phi)
    >>> phi.width, head.layers[0].fan_in
    (6, 6)
  """
  layers = {view.name: view for view in model.layers or ()}
  name = layer or next(reversed(layers), "")
  if name not in layers:
    listed = ", ".join(layers) or "none are known of this model"
    raise OptionError(f"`layer`={name}: no layer of the model (it has {listed})")
  view, constants = layers[name], jax.tree.map(np.asarray, params)

  def apply(x: Array) -> Array:
    inputs: Array = view.inputs(constants, x)
    return inputs.reshape(x.shape[0], -1)

  return FeatureMap(math.prod(view.input_shape), apply, model.flops)


def _buckets(
  order: np.ndarray, thresholds: tuple[float, ...], group_size: int
) -> FeatureMap:
  """The map of bits in this order; the last group may be smaller."""
  # JAX keeps the dtype that it gives an array of 64 bits at first, and closed form is
  # traced with and without float64.
  order = order.astype(np.int32)
  whole, rest = divmod(order.size, group_size)
  cut = whole * group_size

  def patterns(bits: Array, size: int) -> Array:
    """[B, G * size] -> [B, G * 2^size]; the first bit of a group is the highest."""
    weights = 2 ** np.arange(size - 1, -1, -1, dtype=np.int32)
    codes = (bits.reshape(bits.shape[0], -1, size) * weights[None, None]).sum(-1)
    return jax.nn.one_hot(codes, 2**size).reshape(bits.shape[0], -1)

  def apply(x: Array) -> Array:
    numbers = x.reshape(x.shape[0], -1, 1)
    levels = jnp.asarray(np.asarray(thresholds), x.dtype)
    bits = (numbers > levels[None, None]).astype(jnp.int32)
    bits = bits.reshape(x.shape[0], -1)[:, order]
    parts = [patterns(bits[:, :cut], group_size)] if whole else []
    parts += [patterns(bits[:, cut:], rest)] if rest else []
    return jnp.concatenate(parts, axis=1).astype(x.dtype)

  width = whole * 2**group_size + (2**rest if rest else 0)
  return FeatureMap(width, apply, float(order.size))


def on_features(model: Model, feature_map: FeatureMap) -> Model:
  """The model of the examples, of one that reads phi(x).

  Args:
    model: the model of vectors [B, D].
    feature_map: phi.
  """
  phi = feature_map.apply

  def change(full_model: Model) -> Model:
    apply, train_apply, observe = (
      full_model.apply,
      full_model.train_apply,
      full_model.observe,
    )
    return full_model._replace(
      apply=lambda params, x: apply(params, phi(x)),
      train_apply=train_apply
      and (lambda params, x, key: train_apply(params, phi(x), key)),
      observe=observe and (lambda params, x, *rest: observe(params, phi(x), *rest)),
    )

  def reads_features(layer: Layer) -> Layer:
    inputs = layer.inputs
    return layer._replace(inputs=lambda params, x: inputs(params, phi(x)))

  layers = model.layers and tuple(map(reads_features, model.layers))
  result: Model = roles.map_passes(model, change)
  return result._replace(
    layers=layers,
    scale_features=None,
    flops=model.flops + feature_map.flops,
    input_shape=(),  # that of the vectors is not an example's
  )
