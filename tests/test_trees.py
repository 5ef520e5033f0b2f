"""Arithmetic on parameter trees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import trees
from tests import problems

RNG = np.random.default_rng(0)


def tree(*shape):
  return {"b": jnp.asarray(RNG.normal(size=(*shape, 2)), jnp.float32),
          "a": (jnp.asarray(RNG.normal(size=(*shape, 3, 2)), jnp.float32),
                jnp.asarray(RNG.normal(size=shape), jnp.float32))}


def nan_in(stack, *slots):
  """The tree with NaN in some of its slots."""
  def poisoned(leaf):
    leaf = np.array(leaf)
    leaf[list(slots)] = np.nan
    return jnp.asarray(leaf)

  return jax.tree.map(poisoned, stack)


def test_arithmetic_is_leaf_by_leaf():
  a, b = tree(4), tree(4)
  leaves = [(np.asarray(x), np.asarray(y)) for x, y in zip(
      jax.tree.leaves(a), jax.tree.leaves(b))]

  @jax.jit
  def found(a, b):
    return (trees.add(a, b), trees.subtract(a, b), trees.scale(-2.0, a),
            trees.add_scaled(a, 0.5, b), trees.index(a, 2), trees.repeat(a, 3))

  for result, expected in zip(found(a, b), (
      [x + y for x, y in leaves], [x - y for x, y in leaves],
      [-2 * x for x, _ in leaves], [x + 0.5 * y for x, y in leaves],
      [x[2] for x, _ in leaves], [np.stack([x] * 3) for x, _ in leaves]),
                              strict=True):
    assert jax.tree.structure(result) == jax.tree.structure(a)
    for mine, theirs in zip(jax.tree.leaves(result), expected):
      np.testing.assert_allclose(mine, theirs, rtol=1e-6, strict=True)
  np.testing.assert_allclose(
      jax.jit(trees.squared_norm)(a), sum((x ** 2).sum() for x, _ in leaves),
      rtol=1e-6)


def test_slots_are_scaled_and_finite_each_on_its_own():
  stack, factors = tree(4), np.array([2.0, -1.0, 0.0, 0.5], np.float32)
  scaled = jax.jit(trees.scale_slots)(factors, stack)
  for leaf, old in zip(jax.tree.leaves(scaled), jax.tree.leaves(stack)):
    np.testing.assert_array_equal(
        leaf, np.stack([f * row for f, row in zip(factors, np.asarray(old))]))
  first, last = stack["a"]
  stack["a"] = first.at[1, 2, 0].set(jnp.inf), last.at[3].set(jnp.nan)
  np.testing.assert_array_equal(
      jax.jit(trees.finite_slots)(stack), [True, False, True, False])


def test_normal_numbers_are_independent_and_of_variance_one():
  like = {"a": jnp.zeros((60, 50)), "b": jnp.zeros((3000,))}
  drawn = jax.jit(trees.normal)(jax.random.key(0), like)
  a, b = np.asarray(drawn["a"]).ravel(), np.asarray(drawn["b"])
  # Bounds of six standard errors of a mean, a variance and a correlation.
  for part in (a, b):
    assert abs(part.mean()) < 6 / 3000 ** 0.5
    assert abs(part.var() - 1) < 6 * (2 / 3000) ** 0.5
  assert abs((a * b).mean()) < 6 / 3000 ** 0.5


@pytest.mark.program
def test_copies_are_equal_in_every_leaf():
  same = trees.repeat(tree(), 3)
  assert trees.copies(same)
  first, last = same["a"]
  assert not trees.copies(same | {"a": (first, last.at[2].add(1.0))})


def test_slot_sums_are_weighted_and_ignore_slots_of_weight_zero():
  stack, weight = tree(5), jnp.array([2.0, 0.0, 1.0, 3.0, 0.0])
  poisoned = nan_in(stack, 1)
  for total, factor in ((jax.jit(trees.slot_sum)(weight, poisoned), 1),
                        (jax.jit(trees.slot_mean)(weight, poisoned), 6)):
    for mine, leaf in zip(jax.tree.leaves(total), jax.tree.leaves(stack)):
      expected = np.tensordot(np.asarray(weight), leaf, axes=1) / factor
      np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)


def test_the_mean_over_nobody_is_zero():
  mean = jax.jit(trees.slot_mean)(np.zeros(5, np.float32), tree(5))
  assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(mean))


@pytest.mark.parametrize("whole", [False, True])
def test_group_means_ignore_slots_of_weight_zero_and_of_no_group(whole):
  stack, weight = tree(7), jnp.array([2.0, 0.0, 1.0, 3.0, 0.0, 4.0, 0.5])
  groups = jnp.array([0, 0, 2, 0, 3, -1, 4])
  poisoned = nan_in(stack, 1, 4)
  means = jax.jit(lambda *args: trees.group_mean(*args, whole=whole),
                  static_argnums=2)(weight, groups, 4, poisoned)
  for mean, leaf in zip(jax.tree.leaves(means), jax.tree.leaves(stack)):
    leaf, total = np.asarray(leaf), 10.5 if whole else 5.0
    expected = np.zeros((4, *leaf.shape[1:]))
    expected[0] = (2 * leaf[0] + 3 * leaf[3]) / total
    expected[2] = leaf[2] / (total if whole else 1.0)
    np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("slots", [1, 4, 6])
def test_a_weight_or_group_too_few_or_many_is_refused(slots):
  """A leaf [1, ...] or a group [1] would serve for every slot."""
  weight, groups = jnp.ones(5), jnp.zeros(5, jnp.int32)
  for mean in (trees.slot_sum, trees.slot_mean):
    with pytest.raises(AssertionError, match="tree_shape_prefix"):
      mean(weight, tree(slots))
  with pytest.raises(AssertionError, match=r"weight must be \[S\]"):
    trees.slot_mean(weight[:, None], tree(5, 1))
  with pytest.raises(AssertionError, match="tree_shape_prefix"):
    trees.group_mean(weight, groups, 2, tree(slots))
  with pytest.raises(AssertionError, match="groups: one of each slot"):
    trees.group_mean(weight, jnp.zeros(slots, jnp.int32), 2, tree(5))


def squares(stack, slot):
  """The sum of the squares of a slot."""
  return sum((np.asarray(leaf)[slot] ** 2).sum()
             for leaf in jax.tree.leaves(stack))


def test_slot_norms_are_of_each_slot():
  stack = tree(4)
  norms = np.asarray(jax.jit(trees.slot_norm)(nan_in(stack, 2)))
  assert np.isnan(norms[2])
  for s in (0, 1, 3):
    np.testing.assert_allclose(norms[s], np.sqrt(squares(stack, s)), rtol=1e-6)


def test_where_slots_takes_whole_slots():
  a, b = tree(3), tree(3)
  chosen = np.array([True, False, True])
  mixed = jax.jit(trees.where_slots)(chosen, a, b)
  for s in range(3):
    problems.assert_equal(
        problems.row(mixed, s), problems.row(a if chosen[s] else b, s))


def test_a_matrix_becomes_the_tree_again():
  stack = tree(5)

  @jax.jit
  def there_and_back(stack):
    matrix, back = trees.to_matrix(stack)
    return matrix, back(matrix), back(matrix[:2])

  matrix, again, first = jax.device_get(there_and_back(stack))
  assert matrix.shape == (5, 6 + 1 + 2)
  problems.assert_equal(again, stack)
  problems.assert_equal(first, jax.tree.map(
      lambda leaf: np.asarray(leaf)[:2], stack))
  np.testing.assert_allclose(
      (matrix ** 2).sum(1), [squares(stack, s) for s in range(5)], rtol=1e-6)


def test_slots_added_one_by_one_are_the_weighted_sum():
  stack = nan_in(tree(4), 2)

  @jax.jit
  def summed(weights, stack):
    total = jax.tree.map(
        lambda leaf: jnp.zeros(weights.shape[1:] + leaf.shape[1:]), stack)
    for s in range(4):
      total = trees.add_weighted(weights[s], total, trees.index(stack, s))
    return total, trees.slot_sum(weights, stack)

  for weights in (jnp.array([0.5, 2.0, 0.0, 1.0]),
                  jnp.array([[0.5, 0.0], [2.0, 1.0], [0.0, 0.0], [0.0, 3.0]])):
    held = jax.tree.map(np.nan_to_num, stack)
    expected = jax.tree.map(
        lambda leaf, w=weights: np.tensordot(w, leaf, axes=(0, 0)), held)
    for found in summed(weights, stack):
      for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.program
def test_derivatives_at_zero():
  """Those of sqrt are infinite there, and infinite times 0 is NaN."""
  x, dx = jnp.array([0.0, 4.0, 9.0]), jnp.array([0.0, 1.0, 3.0])
  y, dy = jax.jvp(trees.root, (x,), (dx,))
  np.testing.assert_array_equal(y, jnp.sqrt(x))
  np.testing.assert_allclose(dy, [0.0, 0.25, 0.5])
  np.testing.assert_array_equal(jax.grad(lambda x: trees.root(x).sum())(x)[0],
                                0.0)
  step, nan = jnp.array([0.0, 2.0, 0.0]), jnp.float32(jnp.nan)
  same, moved = jax.jvp(
      trees.zero_nan_tangent, (step,), (jnp.array([nan, nan, 5.0]),))
  np.testing.assert_array_equal(same, step)
  np.testing.assert_array_equal(moved, [0.0, nan, 5.0])
