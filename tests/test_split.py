"""Tables whose rows are shared out over processes, against whole arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import split, trees

CUTS = [(0, 3, 7), (0, 7), (0, 5, 5, 7)]
RNG = np.random.default_rng(0)
rows = jax.jit(trees.rows)
add_rows, set_rows = jax.jit(trees.add_rows), jax.jit(trees.set_rows)
where_rows = jax.jit(trees.where_rows)
WHOLE = RNG.normal(size=(7, 2)).astype(np.float32)


def shared_out(cuts):
  """The table in blocks, in which others' rows are NaN."""
  table = split.Split(None, cuts)
  block = np.full((len(cuts) - 1, table.height, 2), np.nan, np.float32)
  for process, (first, last) in enumerate(zip(cuts, cuts[1:])):
    block[process, table.owned(process)] = WHOLE[first:last]
  return table.with_block(jnp.asarray(block))


def rows_of(table):
  """What the processes own, one after the other."""
  return np.concatenate([block[table.owned(process)] for process, block in
                         enumerate(np.asarray(table.block))])


@pytest.mark.parametrize("cuts", CUTS)
def test_it_is_read_and_written_as_a_whole_array(cuts):
  table, ids = shared_out(cuts), np.array([6, 0, 7, 3, 2], np.int32)
  assert table.shape == (7, 2) and table.ndim == 2
  assert table.dtype == jnp.float32 and trees.num_rows({"w": table}) == 7
  np.testing.assert_array_equal(rows_of(table), WHOLE)
  real = ids < 7
  np.testing.assert_array_equal(
      np.asarray(rows(table, ids))[real], WHOLE[ids[real]])
  new = RNG.normal(size=(5, 2)).astype(np.float32)
  for change in (add_rows, set_rows):
    np.testing.assert_array_equal(
        rows_of(change(table, ids, new)),
        change(WHOLE, ids, new))
  chosen, other = np.arange(7) % 3 == 1, -WHOLE
  np.testing.assert_array_equal(
      rows_of(where_rows(chosen, other, table)),
      np.where(chosen[:, None], other, WHOLE))


@pytest.mark.parametrize("cuts", CUTS)
def test_a_process_reads_and_writes_its_own_rows(cuts):
  """All of them together write what one would."""
  table, ids = shared_out(cuts), np.array([4, 7, 0, 2, 6, 1], np.int32)
  new = RNG.normal(size=(6, 2)).astype(np.float32)
  blocks = []
  for process, (first, last) in enumerate(zip(cuts, cuts[1:])):
    own = split.Split(jnp.asarray(np.asarray(table.block)[process]), cuts,
                      jnp.int32(process))
    assert own.shape == (7, 2)
    mine = (first <= ids) & (ids < last)
    np.testing.assert_array_equal(
        np.asarray(rows(own, ids))[mine], WHOLE[ids[mine]])
    blocks.append(set_rows({"w": own}, ids, {"w": new})["w"].block)
  np.testing.assert_array_equal(
      rows_of(table.with_block(np.stack(blocks))), set_rows(WHOLE, ids, new))


def test_it_is_a_leaf_of_its_own_and_a_tree_with_one():
  table = shared_out((0, 3, 7))
  tree = {"a": table, "b": jnp.zeros(3)}
  assert split.within(tree) and not split.within({"b": tree["b"]})
  assert split.leaves(tree)[0] is table and len(jax.tree.leaves(tree)) == 2
  again = jax.tree.map(lambda leaf: leaf + 1, tree)["a"]
  assert again.cuts == table.cuts
  np.testing.assert_array_equal(rows_of(again), WHOLE + 1)
  # Of 2 blocks of 4 rows of 2 floats a process holds one.
  assert split.nbytes(tree) == 4 * (4 * 2 + 3)
