"""Low-rank adapters beside the dense layers of any model.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022,
section 4.1: a dense layer computes x (W + (alpha / r) A B) with A [d, r] and
B [r, e], where A is drawn and B starts at zero. So the model with adapters starts
as the model without them.

Deviations: A has the variance 1 / d (the authors' code draws it uniformly with
that of He et al.); all dense layers have adapters, those of an attention, too,
whose heads are taken together. Convolutions have them if they are asked for, and
embeddings have none. A kernel [H, W, c, e] is then the matrix [H W c, e], as in the
authors' code (loralib).

How a server aggregates the adapters A_i, B_i of participants with weights p_i
(`lora`):

- fedit: it averages A and B apart (Zhang et al., arXiv:2305.05644), so that the
  product of the means is not the mean of the products.
- ffa: A stays as it was drawn, so that the mean of B is exact (Sun et al., ICLR
  2024, arXiv:2403.12313).
- fedex: it averages both and adds the residual (alpha / r) (sum_i p_i A_i B_i - A B)
  to W (Singhal et al., ACL 2025, arXiv:2410.09432).
- flora: it adds (alpha / r) sum_i p_i A_i B_i, the product of the stacked adapters,
  to W, and every participant of the next round draws new adapters (Wang et al.,
  NeurIPS 2024, arXiv:2409.05976).

The last two move W (``lora.merging``); papers and codes write A and B transposed.
"""

from collections.abc import Callable, Mapping
import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg.base import Array, Key, Model, Params
from fedjax_alg.errors import OptionError
from fedjax_alg.models import adapt, roles

#: Names of A and B beside a kernel.
LORA_A, LORA_B = ADAPTERS = "lora_a", "lora_b"
#: The layer of an attention whose last axis alone is the output.
_OUT = "out"


@dataclasses.dataclass(frozen=True)
class Merging:
  """How a server moves frozen kernels by the adapters of clients."""

  aggregation: str  #: "fedex" or "flora"
  factor: float  #: alpha / r


def _sizes(
  name: str, shape: tuple[int, ...], convolutions: bool
) -> tuple[int, int] | None:
  """(d, e) of a layer's kernel as a matrix; None for a layer without adapters."""
  if len(shape) == 2:
    return shape[0], shape[1]
  if len(shape) == 3:  # heads: [d, heads, size], and [heads, size, e] of the output
    first = 2 if name == _OUT else 1
    return math.prod(shape[:first]), math.prod(shape[first:])
  if len(shape) == 4 and convolutions:
    return math.prod(shape[:3]), shape[3]
  return None


def _map_layers(
  tree: Any,
  change: Callable[[dict[str, Any], tuple[int, int]], Any],
  convolutions: bool,
  name: str = "",
) -> Any:
  """The tree with each layer that has adapters, a mapping with a kernel, changed."""
  if not isinstance(tree, Mapping):
    return tree
  if hasattr(tree.get("kernel"), "shape"):
    sizes = _sizes(name, tree["kernel"].shape, convolutions)
    return change(dict(tree), sizes) if sizes else dict(tree)
  return {
    name: _map_layers(part, change, convolutions, name) for name, part in tree.items()
  }


def _draw(key: Key, number: int, shape: tuple[int, ...], dtype: Any) -> Array:
  """A [d, r] of the layer with this number."""
  draw: Array = jax.random.normal(jax.random.fold_in(key, number), shape, dtype)
  result: Array = draw * shape[0] ** -0.5
  return result


def with_adapters(
  model: Model, rank: int, alpha: float = 0.0, convolutions: bool = False
) -> Model:
  """The model with adapters beside its layers.

  Args:
    model: the model; its parameters are dictionaries, as those of named models and
      of flax.linen.
    rank: r.
    alpha: scale of the adapters' product; 0: as large as the rank.
    convolutions: whether convolutions of images have adapters, too, not only dense
      layers.

  Returns:
    A model whose parameters have ``lora_a`` [d, r] and ``lora_b`` [r, e] beside
    each such kernel. All of them are trained unless roles say otherwise.

  Raises:
    OptionError: there is no such layer, the rank is larger than a layer, or the model
      has running statistics.
  """
  label = f"`lora`: rank={rank}"
  if model.roles is not None:
    raise OptionError(f"{label}: not for a model with running statistics (BatchNorm)")
  shapes = adapt.params_shapes(model.init)
  least: list[int] = []

  def note(layer: dict[str, Any], sizes: tuple[int, int]) -> Any:
    least.append(min(sizes))
    return layer

  _map_layers(shapes, note, convolutions)
  if not least:
    hint = "" if convolutions else " (with convolutions=true they have adapters, too)"
    raise OptionError(f"{label}: the model has no dense layer{hint}")
  if rank > min(least):
    raise OptionError(f"{label}: more than a layer of size {min(least)}")
  factor = (alpha or rank) / rank

  def init(key: Key) -> Params:
    count = itertools.count()

    def add(layer: dict[str, Any], sizes: tuple[int, int]) -> Any:
      dtype = layer["kernel"].dtype
      return layer | {
        LORA_A: _draw(key, next(count), (sizes[0], rank), dtype),
        LORA_B: jnp.zeros((rank, sizes[1]), dtype),
      }

    return _map_layers(model.init(key), add, convolutions)

  def merge(layer: dict[str, Any], sizes: tuple[int, int]) -> Any:
    del sizes
    kernel = layer["kernel"]
    product = factor * (layer.pop(LORA_A) @ layer.pop(LORA_B))
    return layer | {"kernel": kernel + product.reshape(kernel.shape)}

  def apply(params: Params, x: Array) -> Array:
    return model.apply(_map_layers(params, merge, convolutions), x)

  def train_apply(params: Params, x: Array, key: Key) -> Array:
    assert model.train_apply is not None
    return model.train_apply(_map_layers(params, merge, convolutions), x, key)

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
    kinds=dict(model.kinds or {}) | dict.fromkeys(adapters, roles.LORA_TYPE),
    caution=(
      f"{label}: all parameters are trained and sent, those beside the adapters, "
      "too (`roles`=lora freezes them)"
    ),
  )


def aggregated(model: Model, aggregation: str, rank: int, alpha: float) -> Model:
  """The model whose frozen kernels a server moves, if the aggregation says so.

  Args:
    model: a model ``with_adapters``, split by roles.
    aggregation: fedit, ffa, fedex or flora.
    rank: r.
    alpha: see ``with_adapters``.

  Raises:
    OptionError: the adapters are not the clients' to train, or the layers beside
      them are not frozen.
  """
  label = f"`lora`={aggregation}"
  if aggregation == "fedit":
    return model
  if model.roles is None:
    raise OptionError(f"{label}: clients train the layers, too (`roles`=lora freezes)")
  names = dict(
    zip(roles.leaf_paths(model.roles.role), jax.tree.leaves(model.roles.role))
  )
  needed = {LORA_B: "shared", LORA_A: "frozen" if aggregation == "ffa" else "shared"}
  for name in [name for name in names if name.rpartition("/")[2] == LORA_A]:
    layer = name.removesuffix(LORA_A)
    for leaf, role in (needed | {"kernel": "frozen"}).items():
      if names[layer + leaf] != role:
        raise OptionError(
          f"{label}: {layer}{leaf} must be {role}, and is {names[layer + leaf]} "
          f"(`roles`=lora)"
        )
  if aggregation == "ffa":
    return model
  if model.roles.has_personal:
    raise OptionError(f"{label}: clients must not have personal parameters")
  merging = Merging(aggregation, (alpha or rank) / rank)
  result: Model = dataclasses.replace(model.roles, merging=merging).shared_like(model)
  return result


def map_adapted(fn: Callable[..., Any], tree: Any, *trees: Any) -> Any:
  """Maps a function over the layers with adapters; None for all other leaves.

  Args:
    fn: gets the layer of each tree, name -> leaf or None, and returns such a layer.
    tree: parameters, or some of them with None in the place of the others.
    *trees: trees of the same structure.
  """
  if LORA_A in tree:
    return fn(tree, *trees)
  return {
    name: map_adapted(fn, part, *(other[name] for other in trees))
    if isinstance(part, Mapping)
    else None
    for name, part in tree.items()
  }


def keep_leaves(tree: Any, *names: str) -> Any:
  """Leaves with these names in layers with adapters; None for all others."""
  return map_adapted(
    lambda layer: {
      name: leaf if name in names else None for name, leaf in layer.items()
    },
    tree,
  )


def draw_adapters(key: Key, params: Params) -> Params:
  """The parameters with new adapters, as ``with_adapters`` draws them."""
  count = itertools.count()

  def new(layer):
    a, b = layer[LORA_A], layer[LORA_B]
    return dict.fromkeys(layer) | {
      LORA_A: _draw(key, next(count), a.shape, a.dtype),
      LORA_B: jnp.zeros_like(b),
    }

  return put_adapters(params, map_adapted(new, params))


def put_adapters(params: Params, adapters: Params) -> Params:
  """The parameters with other adapters."""
  return jax.tree.map(
    lambda leaf, other: leaf if other is None else other,
    params,
    adapters,
    is_leaf=lambda leaf: leaf is None,
  )


def layer_sizes(tree: Any) -> list[tuple[int, int, int]]:
  """(d, r, e) of each layer with adapters.

  Args:
    tree: the adapters, arrays or shapes.
  """
  sizes: list[tuple[int, int, int]] = []

  def note(layer):
    sizes.append((*layer[LORA_A].shape[-2:], layer[LORA_B].shape[-1]))
    return layer

  map_adapted(note, tree)
  return sizes


def merge(merging: Merging, kernels: Params, adapters: Params, shares: Array) -> Params:
  """The kernels after a round.

  Args:
    merging: the rule.
    kernels: W of each layer, None in the place of all other leaves.
    adapters: those that the participants send, leaves [S, ...].
    shares: [S], p_i, which sum to 1; all 0: nobody has taken part.
  """

  def move(layer, sent):
    factors, kernel = shares[:, None, None], layer["kernel"]
    # Who has no share may have sent anything.
    a, b = (jnp.where(factors > 0, sent[name], 0.0) for name in ADAPTERS)
    a = factors * a
    # The adapters of all slots side by side, [d, S r] and [S r, e].
    stacked = jnp.moveaxis(a, 0, 1).reshape(a.shape[1], -1)
    change = stacked @ b.reshape(-1, b.shape[2])
    if merging.aggregation == "fedex":
      change -= a.sum(0) @ jnp.tensordot(shares, b, 1)
    moved = kernel + merging.factor * change.reshape(kernel.shape)
    return dict.fromkeys(layer) | {"kernel": moved}

  return map_adapted(move, kernels, adapters)
