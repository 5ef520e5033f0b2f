"""Low-rank adapters beside the dense layers of any model.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022,
section 4.1: a dense layer computes x (W + (alpha / r) A B) with A [d, r] and
B [r, e], where A is drawn and B starts at zero. So the model with adapters starts
as the model without them.

Deviations: A has the variance 1 / d (the authors' code draws it uniformly with
that of He et al.); all dense layers have adapters, those of an attention, too,
whose heads are taken together. Convolutions and embeddings have none.
"""

from collections.abc import Callable, Mapping
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg.base import Array, Key, Model, Params
from fedjax_alg.errors import OptionError
from fedjax_alg.models import adapt, roles

#: Names of A and B beside a kernel.
LORA_A, LORA_B = "lora_a", "lora_b"
#: The type by which `roles`=lora finds adapters, that of flax.nnx.
KIND = "LoRAParam"
#: The layer of an attention whose last axis alone is the output.
_OUT = "out"


def _sizes(name: str, shape: tuple[int, ...]) -> tuple[int, int] | None:
  """(d, e) of a layer's kernel as a matrix; None for what is not dense."""
  if len(shape) == 2:
    return shape[0], shape[1]
  if len(shape) == 3:  # heads: [d, heads, size], and [heads, size, e] of the output
    first = 2 if name == _OUT else 1
    return math.prod(shape[:first]), math.prod(shape[first:])
  return None


def _map_layers(
  tree: Any,
  change: Callable[[dict[str, Any], tuple[int, int]], Any],
  name: str = "",
) -> Any:
  """The tree with each dense layer, a mapping with a kernel, changed."""
  if not isinstance(tree, Mapping):
    return tree
  if hasattr(tree.get("kernel"), "shape"):
    sizes = _sizes(name, tree["kernel"].shape)
    return change(dict(tree), sizes) if sizes else dict(tree)
  return {name: _map_layers(part, change, name) for name, part in tree.items()}


def with_adapters(model: Model, rank: int, alpha: float = 0.0) -> Model:
  """The model with adapters beside its dense layers.

  Args:
    model: the model; its parameters are dictionaries, as those of named models and
      of flax.linen.
    rank: r.
    alpha: scale of the adapters' product; 0: as large as the rank.

  Returns:
    A model whose parameters have ``lora_a`` [d, r] and ``lora_b`` [r, e] beside
    each dense kernel. All of them are trained unless roles say otherwise.

  Raises:
    OptionError: no layer is dense, the rank is larger than a layer, or the model
      has running statistics.
  """
  label = f"`lora_rank`={rank}"
  if model.roles is not None:
    raise OptionError(f"{label}: not for a model with running statistics (BatchNorm)")
  shapes = adapt.params_shapes(model.init)
  least: list[int] = []

  def note(layer: dict[str, Any], sizes: tuple[int, int]) -> Any:
    least.append(min(sizes))
    return layer

  _map_layers(shapes, note)
  if not least:
    raise OptionError(f"{label}: the model has no dense layer")
  if rank > min(least):
    raise OptionError(f"{label}: more than a layer of size {min(least)}")
  factor = (alpha or rank) / rank

  def init(key: Key) -> Params:
    count = itertools.count()

    def add(layer: dict[str, Any], sizes: tuple[int, int]) -> Any:
      dtype, number = layer["kernel"].dtype, next(count)
      draw = jax.random.normal(jax.random.fold_in(key, number), (sizes[0], rank), dtype)
      return layer | {
        LORA_A: draw * sizes[0] ** -0.5,
        LORA_B: jnp.zeros((rank, sizes[1]), dtype),
      }

    return _map_layers(model.init(key), add)

  def merge(layer: dict[str, Any], sizes: tuple[int, int]) -> Any:
    del sizes
    kernel = layer["kernel"]
    product = factor * (layer.pop(LORA_A) @ layer.pop(LORA_B))
    return layer | {"kernel": kernel + product.reshape(kernel.shape)}

  def apply(params: Params, x: Array) -> Array:
    return model.apply(_map_layers(params, merge), x)

  def train_apply(params: Params, x: Array, key: Key) -> Array:
    assert model.train_apply is not None
    return model.train_apply(_map_layers(params, merge), x, key)

  adapters = [
    name
    for name in roles.leaf_paths(adapt.params_shapes(init))
    if name.rpartition("/")[2] in (LORA_A, LORA_B)
  ]
  return model._replace(
    init=init,
    apply=apply,
    train_apply=model.train_apply and train_apply,
    scale_features=None,
    linear=False,
    layers=None,
    kinds=dict(model.kinds or {}) | dict.fromkeys(adapters, KIND),
    caution=(
      f"{label}: all parameters are trained and sent, those beside the adapters, "
      "too (`roles`=lora freezes them)"
    ),
  )
