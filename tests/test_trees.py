"""Arithmetic on parameter trees, and tables shared out over processes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import split, trees
from tests import problems

RNG = np.random.default_rng(0)


def tree(*shape):
  return {
    "b": np.asarray(RNG.normal(size=(*shape, 2)), np.float32),
    "a": (
      np.asarray(RNG.normal(size=(*shape, 3, 2)), np.float32),
      np.asarray(RNG.normal(size=shape), np.float32),
    ),
  }


def nan_in(stack, *slots):
  """The tree with NaN in some of its slots."""

  def poison(leaf):
    leaf = np.array(leaf)
    leaf[list(slots)] = np.nan
    return leaf

  return jax.tree.map(poison, stack)


def in_numpy(fn, *stacks):
  """``fn`` of every leaf."""
  return jax.tree.map(
    lambda *leaves: np.asarray(fn(*map(np.asarray, leaves)), np.float32), *stacks
  )


def test_arithmetic_is_leaf_by_leaf():
  a, b = tree(4), tree(4)

  @jax.jit
  def compute(a, b):
    return (
      trees.add(a, b),
      trees.subtract(a, b),
      trees.scale(-2.0, a),
      trees.add_scaled(a, 0.5, b),
      trees.index(a, 2),
      trees.repeat(a, 3),
    )

  for result, expected in zip(
    compute(a, b),
    (
      lambda x, y: x + y,
      lambda x, y: x - y,
      lambda x, y: -2 * x,
      lambda x, y: x + 0.5 * y,
      lambda x, y: x[2],
      lambda x, y: np.stack([x] * 3),
    ),
    strict=True,
  ):
    problems.assert_close(result, in_numpy(expected, a, b), rtol=1e-6)
  np.testing.assert_allclose(
    jax.jit(trees.squared_norm)(a), squares(a, slice(None)), rtol=1e-6
  )


def test_slots_are_scaled_and_finite_each_on_its_own():
  stack, factors = tree(4), np.array([2.0, -1.0, 0.0, 0.5], np.float32)
  problems.assert_equal(
    jax.jit(trees.scale_slots)(factors, stack),
    in_numpy(lambda old: np.stack([f * row for f, row in zip(factors, old)]), stack),
  )
  first, last = stack["a"]
  first[1, 2, 0], last[3] = np.inf, np.nan
  np.testing.assert_array_equal(
    jax.jit(trees.finite_slots)(stack), [True, False, True, False]
  )


def test_normal_numbers_are_independent_and_of_variance_one():
  template = {"a": np.zeros((60, 50), np.float32), "b": np.zeros(3000, np.float32)}
  noise = jax.jit(trees.normal)(jax.random.key(0), template)
  a, b = np.asarray(noise["a"]).ravel(), np.asarray(noise["b"])
  # Bounds of six standard errors of a mean, a variance and a correlation.
  for part in (a, b):
    assert abs(part.mean()) < 6 / 3000**0.5
    assert abs(part.var() - 1) < 6 * (2 / 3000) ** 0.5
  assert abs((a * b).mean()) < 6 / 3000**0.5


@pytest.mark.program
def test_copies_are_equal_in_every_leaf():
  same, copies = jax.tree.map(lambda leaf: np.stack([leaf] * 3), tree()), trees.copies
  assert jax.jit(copies)(same)
  first, last = same["a"]
  assert not jax.jit(copies)(same | {"a": (first, last + np.float32([0, 0, 1]))})


def test_slot_sums_are_weighted_and_ignore_slots_of_weight_zero():
  """The mean over nobody is zero."""
  stack, weight = tree(5), np.array([2.0, 0.0, 1.0, 3.0, 0.0], np.float32)
  expected = in_numpy(lambda leaf: np.tensordot(weight, leaf, axes=1), stack)
  poisoned = nan_in(stack, 1)
  problems.assert_close(jax.jit(trees.slot_sum)(weight, poisoned), expected)
  mean = jax.jit(trees.slot_mean)
  problems.assert_close(
    mean(weight, poisoned), in_numpy(lambda leaf: leaf / 6, expected)
  )
  problems.assert_equal(
    mean(0 * weight, stack), in_numpy(lambda leaf: 0 * leaf, expected)
  )


@pytest.mark.parametrize("whole_divisor", [False, True])
def test_group_means_ignore_slots_of_weight_zero_and_of_no_group(whole_divisor):
  stack, weight = tree(7), np.float32([2.0, 0.0, 1.0, 3.0, 0.0, 4.0, 0.5])
  groups = np.int32([0, 0, 2, 0, 3, -1, 4])
  means = jax.jit(
    lambda *args: trees.group_mean(*args, all_slots=whole_divisor), static_argnums=2
  )(weight, groups, 4, nan_in(stack, 1, 4))

  def by_hand(leaf):
    expected = np.zeros((4, *leaf.shape[1:]))
    expected[0] = (2 * leaf[0] + 3 * leaf[3]) / (10.5 if whole_divisor else 5.0)
    expected[2] = leaf[2] / (10.5 if whole_divisor else 1.0)
    return expected

  problems.assert_close(means, in_numpy(by_hand, stack))


@pytest.mark.parametrize("slots", [1, 4, 6])
def test_a_weight_or_group_too_few_or_many_is_refused(slots):
  """A leaf [1, ...] or a group [1] would serve for every slot."""
  weight, groups = np.ones(5, np.float32), np.zeros(5, np.int32)
  for mean in (trees.slot_sum, trees.slot_mean):
    with pytest.raises(AssertionError, match="tree_shape_prefix"):
      mean(weight, tree(slots))
  with pytest.raises(AssertionError, match=r"weight must be \[S\]"):
    trees.slot_mean(weight[:, None], tree(5, 1))
  with pytest.raises(AssertionError, match="tree_shape_prefix"):
    trees.group_mean(weight, groups, 2, tree(slots))
  with pytest.raises(AssertionError, match="groups: one of each slot"):
    trees.group_mean(weight, np.zeros(slots, np.int32), 2, tree(5))


def squares(stack, slot):
  """The sum of the squares of a slot."""
  return sum((np.asarray(leaf)[slot] ** 2).sum() for leaf in jax.tree.leaves(stack))


def test_slot_norms_are_of_each_slot():
  stack = tree(4)
  norms = np.asarray(jax.jit(trees.slot_norm)(nan_in(stack, 2)))
  assert np.isnan(norms[2])
  for s in (0, 1, 3):
    np.testing.assert_allclose(norms[s], np.sqrt(squares(stack, s)), rtol=1e-6)


def test_where_slots_takes_whole_slots():
  a, b = tree(3), tree(3)
  mask = np.array([True, False, True])
  mixed = jax.jit(trees.where_slots)(mask, a, b)
  for s in range(3):
    problems.assert_equal(problems.row(mixed, s), problems.row(a if mask[s] else b, s))


def test_a_matrix_becomes_the_tree_again():
  stack = tree(5)

  @jax.jit
  def there_and_back(stack):
    matrix, back = trees.to_matrix(stack)
    return matrix, back(matrix), back(matrix[:2])

  matrix, restored, first = jax.device_get(there_and_back(stack))
  assert matrix.shape == (5, 6 + 1 + 2)
  problems.assert_equal(restored, stack)
  problems.assert_equal(first, jax.tree.map(lambda leaf: np.asarray(leaf)[:2], stack))
  np.testing.assert_allclose(
    (matrix**2).sum(1), [squares(stack, s) for s in range(5)], rtol=1e-6
  )


def test_slots_added_one_by_one_are_the_weighted_sum():
  stack = nan_in(tree(4), 2)

  @jax.jit
  def weighted_sum(weights, stack):
    total = jax.tree.map(
      lambda leaf: jnp.zeros(weights.shape[1:] + leaf.shape[1:]), stack
    )
    for s in range(4):
      total = trees.add_weighted(weights[s], total, trees.index(stack, s))
    return total, trees.slot_sum(weights, stack)

  for weights in (
    np.float32([0.5, 2.0, 0.0, 1.0]),
    np.float32([[0.5, 0.0], [2.0, 1.0], [0.0, 0.0], [0.0, 3.0]]),
  ):
    expected = in_numpy(
      lambda leaf, w=weights: np.tensordot(w, np.nan_to_num(leaf), axes=(0, 0)), stack
    )
    for actual in weighted_sum(weights, stack):
      problems.assert_close(actual, expected, rtol=1e-6)


@pytest.mark.program
def test_derivatives_at_zero():
  """Those of sqrt are infinite there, and infinite times 0 is NaN."""
  x, dx = np.float32([0.0, 4.0, 9.0]), np.float32([0.0, 1.0, 3.0])
  step, nan = np.float32([0.0, 2.0, 0.0]), np.float32(np.nan)

  @jax.jit
  def differentiate(x, dx, step, direction):
    return (
      jax.jvp(trees.root, (x,), (dx,)),
      jax.grad(lambda x: trees.root(x).sum())(x),
      jax.jvp(trees.zero_nan_tangent, (step,), (direction,)),
    )

  (y, dy), slope, (same, tangent) = jax.device_get(
    differentiate(x, dx, step, np.float32([nan, nan, 5.0]))
  )
  np.testing.assert_array_equal(y, np.sqrt(x))
  np.testing.assert_allclose(dy, [0.0, 0.25, 0.5])
  np.testing.assert_array_equal(slope[0], 0.0)
  np.testing.assert_array_equal(same, step)
  np.testing.assert_array_equal(tangent, [0.0, nan, 5.0])


CUTS = [(0, 3, 7), (0, 7), (0, 5, 5, 7)]
rows = jax.jit(trees.rows)
add_rows, set_rows = jax.jit(trees.add_rows), jax.jit(trees.set_rows)
where_rows = jax.jit(trees.where_rows)
VALUES = RNG.normal(size=(7, 2)).astype(np.float32)


def in_blocks_of(cuts):
  """The table in blocks, in which others' rows are NaN."""
  table = split.Split(None, cuts)
  block = np.full((len(cuts) - 1, table.height, 2), np.nan, np.float32)
  for process, (first, last) in enumerate(zip(cuts, cuts[1:])):
    block[process, table.owned_rows(process)] = VALUES[first:last]
  return table.with_block(jnp.asarray(block))


def rows_of(table):
  """What the processes own, one after the other."""
  return np.concatenate(
    [
      block[table.owned_rows(process)]
      for process, block in enumerate(np.asarray(table.block))
    ]
  )


@pytest.mark.parametrize("cuts", CUTS)
def test_it_is_read_and_written_as_a_whole_array(cuts):
  table, ids = in_blocks_of(cuts), np.array([6, 0, 7, 3, 2], np.int32)
  assert table.shape == (7, 2) and table.ndim == 2
  assert table.dtype == jnp.float32 and trees.num_rows({"w": table}) == 7
  np.testing.assert_array_equal(rows_of(table), VALUES)
  real = ids < 7
  np.testing.assert_array_equal(np.asarray(rows(table, ids))[real], VALUES[ids[real]])
  new = RNG.normal(size=(5, 2)).astype(np.float32)
  for change in (add_rows, set_rows):
    np.testing.assert_array_equal(
      rows_of(change(table, ids, new)), change(VALUES, ids, new)
    )
  mask, negated = np.arange(7) % 3 == 1, -VALUES
  np.testing.assert_array_equal(
    rows_of(where_rows(mask, negated, table)), np.where(mask[:, None], negated, VALUES)
  )


@pytest.mark.parametrize("cuts", CUTS)
def test_a_process_reads_and_writes_its_own_rows(cuts):
  """All of them together write what one would."""
  table, ids = in_blocks_of(cuts), np.array([4, 7, 0, 2, 6, 1], np.int32)
  new = RNG.normal(size=(6, 2)).astype(np.float32)
  blocks = []
  for process, (first, last) in enumerate(zip(cuts, cuts[1:])):
    part = split.Split(
      jnp.asarray(np.asarray(table.block)[process]), cuts, jnp.int32(process)
    )
    assert part.shape == (7, 2)
    mine = (first <= ids) & (ids < last)
    np.testing.assert_array_equal(np.asarray(rows(part, ids))[mine], VALUES[ids[mine]])
    blocks.append(set_rows({"w": part}, ids, {"w": new})["w"].block)
  np.testing.assert_array_equal(
    rows_of(table.with_block(np.stack(blocks))), set_rows(VALUES, ids, new)
  )


def test_it_is_a_leaf_of_its_own_and_a_tree_with_one():
  table = in_blocks_of((0, 3, 7))
  tree = {"a": table, "b": jnp.zeros(3)}
  assert split.within(tree) and not split.within({"b": tree["b"]})
  assert split.leaves(tree)[0] is table and len(jax.tree.leaves(tree)) == 2
  mapped = jax.tree.map(lambda leaf: leaf + 1, tree)["a"]
  assert mapped.cuts == table.cuts
  np.testing.assert_array_equal(rows_of(mapped), VALUES + 1)
  # Of 2 blocks of 4 rows of 2 floats a process holds one.
  assert split.nbytes(tree) == 4 * (4 * 2 + 3)
