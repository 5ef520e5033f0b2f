"""Agglomerative clustering against SciPy's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.spatial import distance

from fedjax_alg import grouping
from tests.problems import optimised_jit

ROWS, GROUPS = 14, 4


@functools.cache
def compile_linkage(linkage):
  """Both modes are one program: the threshold is data."""
  return optimised_jit(
    functools.partial(grouping.agglomerate, linkage=linkage, num_groups=GROUPS)
  )


def draw(seed):
  """Euclidean distances of points of which some do not count (NaN)."""
  rng = np.random.default_rng(seed)
  mask = rng.random(ROWS) < 0.75
  mask[rng.choice(ROWS, GROUPS + 1, replace=False)] = True
  points = rng.normal(size=(ROWS, 2)) * [3, 1]
  square = distance.squareform(distance.pdist(points)).astype(np.float32)
  square[~mask] = square[:, ~mask] = np.nan
  return square, mask


def tree(square, mask, linkage):
  """SciPy's linkage of the rows that count."""
  exact = square[np.ix_(mask, mask)].astype(np.float64)
  return hierarchy.linkage(distance.squareform(exact), linkage)


def by_first_member(labels):
  """Renumbers 0, 1, ... in order of appearance."""
  seen = {}
  return [seen.setdefault(label, len(seen)) for label in labels]


def check(actual, mask, labels):
  """Same partition, numbered by first member."""
  expected = np.full(ROWS, GROUPS)
  expected[mask] = by_first_member(labels)
  np.testing.assert_array_equal(actual.assignment, expected)
  assert actual.number == len(set(labels))


@pytest.mark.parametrize("linkage", grouping.LINKAGES)
@pytest.mark.parametrize("seed", range(6))
def test_a_number_of_groups_and_a_threshold(linkage, seed):
  """Also where it alone would leave more groups than the cap, and one."""
  square, mask = draw(seed)
  merges = tree(square, mask, linkage)
  heights = merges[:, 2]
  between = (heights[1:] + heights[:-1]) / 2
  for threshold in [-np.inf, 0.0, between[2], *between[-3:], 2 * heights[-1]]:
    actual = compile_linkage(linkage)(square, mask, threshold=np.float32(threshold))
    labels = hierarchy.fcluster(merges, threshold, "distance")
    assert actual.num_by_threshold == len(set(labels))
    if actual.num_by_threshold > GROUPS:
      labels = hierarchy.fcluster(merges, GROUPS, "maxclust")
      np.testing.assert_allclose(
        [actual.height, actual.next_height],
        [heights[-GROUPS], heights[-GROUPS + 1]],
        rtol=1e-5,
      )
    check(actual, mask, labels)


@pytest.mark.parametrize("linkage", grouping.LINKAGES)
def test_a_merge_at_the_threshold_is_made(linkage):
  """Heights 1 and 2 exactly."""
  points = np.array([0, 1, 10, 12, 40, 80, 160], np.float32)
  square = np.zeros((ROWS, ROWS), np.float32)
  square[:7, :7] = abs(points[:, None] - points[None])
  mask = np.arange(ROWS) < 7
  agglomerate = compile_linkage(linkage)
  below = np.nextafter(np.float32(2), np.float32(0))
  assert agglomerate(square, mask, threshold=np.float32(2)).num_by_threshold == 5
  assert agglomerate(square, mask, threshold=below).num_by_threshold == 6


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_negative_cosines(linkage):
  """As clustered FL's split has them; both linkages follow a shift."""
  rng = np.random.default_rng(3)
  rows = rng.normal(size=(ROWS, 5))
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  square = -(rows @ rows.T).astype(np.float32)
  mask = np.ones(ROWS, bool)
  actual = compile_linkage(linkage)(square, mask, threshold=-np.inf)
  shifted = square + 2
  np.fill_diagonal(shifted, 0)
  merges = tree(shifted, mask, linkage)
  check(actual, mask, hierarchy.fcluster(merges, GROUPS, "maxclust"))
  np.testing.assert_allclose(
    [actual.height, actual.next_height],
    merges[[-GROUPS, -GROUPS + 1], 2] - 2,
    atol=1e-6,
  )
  assert actual.height < 0


def test_fewer_rows_than_groups():
  square, _ = draw(0)
  agglomerate = compile_linkage("complete")
  mask = np.isin(np.arange(ROWS), [3, 8])
  square = np.where(np.isnan(square), np.float32(1), square)
  actual = agglomerate(square, mask, threshold=-np.inf)
  expected = np.full(ROWS, GROUPS)
  expected[[3, 8]] = 0, 1
  np.testing.assert_array_equal(actual.assignment, expected)
  assert (actual.number, actual.num_by_threshold, actual.height) == (2, 2, -np.inf)
  nobody = agglomerate(square, np.zeros(ROWS, bool), threshold=np.inf)
  assert (nobody.number, nobody.next_height) == (0, np.inf)
  assert (np.asarray(nobody.assignment) == GROUPS).all()


@pytest.mark.program
def test_what_is_not_a_number_is_merged_last_but_is():
  """A client whose update is NaN still has a group, within the cap."""
  square, mask = draw(1)
  square = np.where(np.isnan(square), np.float32(1), square)
  square[2] = square[:, 2] = np.nan
  square[5] = square[:, 5] = np.inf
  for linkage in grouping.LINKAGES:
    actual = compile_linkage(linkage)(square, np.ones(ROWS, bool), threshold=-np.inf)
    assignment = np.asarray(actual.assignment)
    assert actual.number == GROUPS
    assert (assignment == assignment[2]).sum() == 1
    assert (assignment == assignment[5]).sum() == 1
    single_group = compile_linkage(linkage)(
      square, np.ones(ROWS, bool), threshold=np.inf
    )
    assert single_group.number == 1 and not single_group.assignment.any()


def test_ties_go_to_the_lowest_rows():
  square = 1 - np.eye(ROWS, dtype=np.float32)
  mask = np.arange(ROWS) % 2 == 1
  actual = compile_linkage("single")(square, mask, threshold=-np.inf)
  assert actual.assignment[mask].tolist() == [0, 0, 0, 0, 1, 2, 3]


@pytest.mark.program
def test_runs_side_by_side():
  """vmap: each stops where it would alone."""
  squares, masks = zip(*map(draw, range(4)))
  thresholds = np.array([-np.inf, 0.5, 2, 50], np.float32)
  together = optimised_jit(
    jax.vmap(
      lambda square, mask, threshold: grouping.agglomerate(
        square, mask, "average", num_groups=GROUPS, threshold=threshold
      )
    )
  )(np.stack(squares), np.stack(masks), thresholds)
  for i, threshold in enumerate(thresholds):
    reference = compile_linkage("average")(squares[i], masks[i], threshold=threshold)
    for mine, expected in zip(together, reference, strict=True):
      np.testing.assert_array_equal(mine[i], expected)


def test_what_is_asked_is_checked():
  square, mask = map(jnp.asarray, draw(0))
  with pytest.raises(ValueError, match="'median': one of single, complete"):
    grouping.agglomerate(square, mask, "median", num_groups=2)
  with pytest.raises(ValueError, match="num_groups 0: at least 1"):
    grouping.agglomerate(square, mask, "single", num_groups=0)
