"""A fixed map of the examples before the first layer of a model.

The model of a run is then x -> model(phi(x)). Its parameters are those of the
model that reads phi(x), so every method trains them, closed form fits them, and
``init`` goes on from them. The map itself has no parameters: all clients draw it
from one seed (``feature_seed``), and nothing of it is sent.

- ``fourier``: phi(x) = sqrt(2/D) cos(x Omega + b), Omega [d, D] normal with the
  variance 2 gamma, b uniform on [0, 2 pi] (Rahimi, Recht, NIPS 2007). Products
  phi(x) phi(z)' are on average the kernel exp(-gamma |x - z|^2).
- ``relu``: phi(x) = sqrt(2/D) max(x Omega, 0), Omega standard normal; on average
  the arc-cosine kernel of degree 1 (Cho, Saul, NIPS 2009).
- ``buckets``: every number x_j becomes one bit for each threshold, x_j > t. The
  bits are shuffled and cut into groups of g. A group has one output for each of
  its 2^g patterns, which is 1 for the pattern of x and else 0 (SAFLe).
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
from fedjax_alg.models import roles
from fedjax_alg.typing import DTypes, Shapes

#: The maps.
FEATURE_MAPS = ("none", "fourier", "relu", "buckets")


@dataclasses.dataclass(frozen=True)
class FeatureMap:
  """phi of examples of one shape."""

  width: int  #: D, the length of phi(x)
  apply: Callable[[Array], Array]  #: x [B, ...] -> phi(x) [B, D], in the dtype of x
  flops: float  #: multiplications and additions for one example


def draw(
  name: str,
  input_shape: Shapes,
  input_dtype: DTypes,
  *,
  num_features: int,
  rbf_gamma: float | None,
  thresholds: tuple[float, ...],
  group_size: int,
  seed: int,
) -> FeatureMap | None:
  """Draws a map for examples of a shape.

  Args:
    name: one of ``FEATURE_MAPS``.
    input_shape: shape of one example.
    input_dtype: dtype of the examples.
    num_features: D of ``fourier`` and ``relu``; 0: no map.
    rbf_gamma: gamma of ``fourier``; None: 1 / d for d numbers of an example.
    thresholds: t of ``buckets``.
    group_size: g of ``buckets``.
    seed: the same seed draws the same map for every client.

  Returns:
    The map; None where the model reads the examples themselves.

  Raises:
    OptionError: the examples are several arrays, or no real numbers.
  """
  if name == "none" or (name != "buckets" and not num_features):
    return None
  dtype: Any = input_dtype
  if isinstance(input_shape, Mapping) or not np.issubdtype(
    np.dtype(dtype), np.floating
  ):
    raise OptionError(
      f"`feature_map`={name}: reads one array of real numbers, the examples are not one"
    )
  d, rng = math.prod(input_shape), np.random.default_rng(seed)
  if name == "buckets":
    memory.refuse(
      f"`bit_thresholds`: the order of {len(thresholds):,} bits of {d:,} numbers",
      8.0 * d * len(thresholds),
    )
    return _buckets(rng.permutation(d * len(thresholds)), thresholds, group_size)
  variance = 1.0
  if name == "fourier":
    variance = 2.0 * (1.0 / d if rbf_gamma is None else rbf_gamma)
  # It is drawn, and scaled.
  memory.refuse(
    f"`num_features`={num_features}: Omega [{d}, {num_features}]",
    2 * 8.0 * d * num_features,
  )
  omega = np.sqrt(variance) * rng.standard_normal((d, num_features))
  offset = rng.uniform(0.0, 2.0 * np.pi, num_features) if name == "fourier" else None
  return random_features(omega, offset)


def random_features(
  omega: Float[np.ndarray, "d D"], offset: Float[np.ndarray, " D"] | None
) -> FeatureMap:
  """The map of given random numbers.

  Args:
    omega: Omega [d, D].
    offset: b [D] of ``fourier``; None: the map is ``relu``.
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
  """The map ``buckets`` of bits in this order; the last group may be smaller."""
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
