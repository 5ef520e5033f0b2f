"""Arithmetic on parameter pytrees, with and without a leading slot axis."""

from collections.abc import Callable
import functools
import math
from typing import Any

import chex
import jax
import jax.numpy as jnp

from fedjax_alg.base import Array, Key, Params

# Tables of clients, also those whose rows are shared out over processes.
from fedjax_alg.split import add_rows, num_rows, rows, set_rows, where_rows  # noqa: F401

HIGHEST = jax.lax.Precision.HIGHEST


def add(a: Params, b: Params) -> Params:
  """Computes a + b."""
  return jax.tree.map(jnp.add, a, b)


def subtract(a: Params, b: Params) -> Params:
  """Computes a - b."""
  return jax.tree.map(jnp.subtract, a, b)


def scale(factor: object, tree: Params) -> Params:
  """Computes factor * tree for a scalar ``factor``."""
  return jax.tree.map(lambda leaf: factor * leaf, tree)


def add_scaled(a: Params, factor: object, b: Params) -> Params:
  """Computes a + factor * b for a scalar ``factor``.

  Examples:
    >>> add_scaled({"w": 1.0}, 0.5, {"w": 4.0})
    {'w': 3.0}
  """
  return jax.tree.map(lambda x, y: x + factor * y, a, b)


def dot(a: Params, b: Params) -> Array:
  """Computes the inner product over all entries, [] float32."""
  pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  return sum((jnp.vdot(x, y, precision=HIGHEST) for x, y in pairs), jnp.zeros(()))


@jax.custom_jvp
def root(x: Array) -> Array:
  """The square root, whose derivative at 0 is 0 and not infinite.

  A second moment or a norm that is 0 stays there if nothing moves it, and
  infinite times 0 is NaN.
  """
  return jnp.sqrt(x)


@root.defjvp
def _root_jvp(primals, tangents):
  (x,), (dx,) = primals, tangents
  y = jnp.sqrt(x)
  half = jnp.where(
    x > 0, 0.5 / jnp.where(x > 0, y, jnp.ones_like(y)), jnp.zeros_like(y)
  )
  return y, half * dx


@jax.custom_jvp
def zero_nan_tangent(x: Array) -> Array:
  """``x``; where it is 0, a derivative that is NaN is taken for 0.

  For the steps of an optimizer with a square root of its own (optax): an entry
  whose gradient has always been 0 does not move.
  """
  return x


@zero_nan_tangent.defjvp
def _zero_nan_tangent_jvp(primals, tangents):
  (x,), (dx,) = primals, tangents
  return x, jnp.where((x == 0) & jnp.isnan(dx), jnp.zeros_like(dx), dx)


def subtract_one(tree: Params, base: Params) -> Params:
  """The difference of each slot [S, ...] and ``base`` [...]."""
  return jax.tree.map(lambda all, base: all - base[None], tree, base)


def squared_norm(tree: Params) -> Array:
  """Computes the sum of the squares of all entries, [] float32."""
  return dot(tree, tree)


def where(condition: Array, a: Params, b: Params) -> Params:
  """Selects ``a`` if ``condition`` ([] bool) is true, otherwise ``b``."""
  return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def normal(key: Key, template: Params) -> Params:
  """Independent normal numbers of variance 1 in the shape of a tree."""
  leaves, treedef = jax.tree.flatten(template)
  return jax.tree.unflatten(
    treedef,
    [
      jax.random.normal(part, leaf.shape, leaf.dtype)
      for part, leaf in zip(jax.random.split(key, len(leaves)), leaves)
    ],
  )


def index(tree: Params, i: Any) -> Params:
  """Takes entry i of the leading axis of every leaf."""
  return jax.tree.map(lambda leaf: leaf[i], tree)


def repeat(tree: Params, times: int) -> Params:
  """Adds a leading axis with ``times`` copies to every leaf."""
  return jax.tree.map(
    lambda leaf: jnp.broadcast_to(leaf[None], (times,) + leaf.shape), tree
  )


def copies(tree: Params) -> Array:
  """Whether all models of a tree [K, ...] are equal, [] bool."""
  same = [(leaf == leaf[:1]).all() for leaf in jax.tree.leaves(tree)]
  return jnp.stack(same).all()


def drop_weak_types(tree: object) -> Any:
  """Removes the weak types of all leaves.

  Optax initializes some counters with a weak type. The first update makes it
  strong, so a program that takes the state would compile twice.
  """
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), tree)


def members(groups: Array, k: int) -> Array:
  """Makes the membership matrix of K groups.

  Args:
    groups: [S] int32; entries outside [0, K) belong to no group.
    k: K.

  Returns:
    [K, S] bool, whether a slot belongs to a group.
  """
  return groups[None] == jnp.arange(k, dtype=groups.dtype)[:, None]


def _per_slot(vector: Array, leaf: Array) -> Array:
  return vector.reshape(vector.shape + (1,) * (leaf.ndim - vector.ndim))


def _check_slots(weight: Array, tree: Params) -> None:
  """Checks the slot axes, because a leaf [1, ...] would broadcast silently."""
  chex.assert_rank(weight, 1, custom_message="weight must be [S]")
  chex.assert_tree_shape_prefix(tree, weight.shape)


def slot_sum(weight: Array, tree: Params) -> Params:
  """Computes the sum over slots s of weight[s] * leaf[s], or K sums at once.

  Args:
    weight: [S] or [S, K] float32. A slot whose weights are 0 is ignored, even
      if it holds NaN.
    tree: leaves [S, ...].

  Returns:
    Leaves [...] or [K, ...].

  Examples:
    >>> weights = jnp.array([[1.0, 0.0], [0.5, 2.0]])
    >>> slot_sum(weights, jnp.array([8.0, 4.0])).tolist()
    [10.0, 8.0]
  """
  used = weight > 0
  if weight.ndim > 1:
    used = used.any(1)
  _check_slots(used, tree)

  def weighted_sum(leaf):
    masked = jnp.where(_per_slot(used, leaf), leaf, jnp.zeros_like(leaf))
    return jnp.tensordot(weight, masked, axes=(0, 0), precision=HIGHEST)

  return jax.tree.map(weighted_sum, tree)


def add_weighted(weight: Array, total: Params, tree: Params) -> Params:
  """Adds one slot to the sums of ``slot_sum``.

  Args:
    weight: [] or [K]. A slot of weight 0 is ignored, even if it is not finite.
    total: leaves [...] or [K, ...].
    tree: leaves [...], of the slot.

  Returns:
    The sums with the slot.
  """
  if weight.ndim:
    return jax.vmap(add_weighted, (0, 0, None))(weight, total, tree)
  return where(weight > 0, add_scaled(total, weight, tree), total)


def slot_mean(weight: Array, tree: Params) -> Params:
  """Computes the weighted mean over slots; 0 if all weights are 0.

  Args:
    weight: [S] float32, see ``slot_sum``.
    tree: leaves [S, ...].

  Returns:
    Leaves [...].

  Examples:
    >>> leaf = jnp.array([[1.0, 0.0], [4.0, 6.0], [jnp.nan, 1.0]])
    >>> slot_mean(jnp.array([2.0, 1.0, 0.0]), {"w": leaf})["w"].tolist()
    [2.0, 2.0]
  """
  _check_slots(weight, tree)
  return slot_sum(weight / jnp.maximum(weight.sum(), 1e-30), tree)


def group_mean(
  weight: Array, groups: Array, k: int, tree: Params, *, all_slots: bool = False
) -> Params:
  """Computes ``slot_mean`` for each of K groups; 0 for an empty group.

  Args:
    weight: [S] float32, see ``slot_sum``.
    groups: [S] int32; entries outside [0, K) belong to no group.
    k: K.
    tree: leaves [S, ...].
    all_slots: whether to divide by the weight of all slots instead of the
      weight of the group.

  Returns:
    Leaves [K, ...].

  Examples:
    >>> weight, groups = jnp.array([1.0, 3.0, 1.0]), jnp.array([0, 0, 1])
    >>> group_mean(weight, groups, 3, jnp.array([8.0, 4.0, 7.0])).tolist()
    [5.0, 7.0, 0.0]
  """
  _check_slots(weight, tree)
  share = group_shares(weight, groups, k, all_slots=all_slots)

  def weighted_mean(leaf):
    masked = jnp.where(_per_slot(weight > 0, leaf), leaf, jnp.zeros_like(leaf))
    return jnp.tensordot(share, masked, axes=1, precision=HIGHEST)

  return jax.tree.map(weighted_mean, tree)


def group_shares(
  weight: Array, groups: Array, k: int, *, all_slots: bool = False
) -> Array:
  """The factors of ``group_mean``, [K, S]; for its arguments see there."""
  chex.assert_shape(groups, weight.shape, custom_message="groups: one of each slot")
  member = jnp.where(members(groups, k), weight[None], 0.0)
  total = weight.sum() if all_slots else member.sum(1, keepdims=True)
  return member / jnp.maximum(total, 1e-30)


def slot_norm(tree: Params) -> Array:
  """Computes the Euclidean norm of all entries of each slot, [S] float32."""
  squares: Any = sum(
    (leaf * leaf).reshape(leaf.shape[0], -1).sum(1) for leaf in jax.tree.leaves(tree)
  )
  return root(squares)


def scale_slots(factors: Array, tree: Params) -> Params:
  """Computes factors[s] * tree[s] for ``factors`` [S]."""
  return jax.vmap(scale)(factors, tree)


def finite_slots(tree: Params) -> Array:
  """Marks the slots with only finite entries, [S] bool."""
  finite = [
    jnp.isfinite(leaf).reshape(leaf.shape[0], -1).all(1)
    for leaf in jax.tree.leaves(tree)
  ]
  return functools.reduce(jnp.logical_and, finite)


def where_slots(mask: Array, a: Params, b: Params) -> Params:
  """Selects a[s] if mask[s] is true, otherwise b[s].

  Args:
    mask: [S] bool.
    a: leaves [S, ...].
    b: leaves [S, ...].

  Returns:
    Leaves [S, ...].
  """
  return jax.tree.map(lambda x, y: jnp.where(_per_slot(mask, x), x, y), a, b)


def to_matrix(tree: Params) -> tuple[Array, Callable[[Array], Params]]:
  """Flattens a stacked tree to a matrix.

  Args:
    tree: leaves [S, ...].

  Returns:
    The matrix [S, P], and a function that converts a matrix [R, P] back to a
    tree with leaves [R, ...].
  """
  leaves, treedef = jax.tree.flatten(tree)
  shapes = [leaf.shape[1:] for leaf in leaves]
  matrix = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)

  def from_matrix(matrix: Array) -> Params:
    parts, start = [], 0
    for shape in shapes:
      size = math.prod(shape)
      part = matrix[:, start : start + size]
      parts.append(part.reshape((matrix.shape[0],) + shape))
      start += size
    return jax.tree.unflatten(treedef, parts)

  return matrix, from_matrix
