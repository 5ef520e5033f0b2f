"""Silhouettes against scikit-learn, and the numbers they find."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import distance as scipys
import sklearn.metrics

from fedjax_alg import grouping


def square(points, metric="euclidean"):
  """Distances of all pairs of rows, float32."""
  return scipys.squareform(scipys.pdist(points, metric)).astype("f")


silhouette = jax.jit(grouping.silhouette, static_argnums=2)


@pytest.mark.parametrize("metric", ["euclidean", "cityblock", "cosine"])
def test_silhouette_is_scikit_learns(metric):
  rng = np.random.default_rng(0)
  d = square(rng.normal(size=(40, 6)), metric)
  for groups in (rng.integers(0, 2, 40), rng.integers(0, 5, 40), np.arange(40) // 39):
    np.fill_diagonal(d, 0)
    expected = sklearn.metrics.silhouette_score(d, groups, metric="precomputed")
    # Groups without members, and their numbers, change nothing.
    for shift in (0, 2):
      np.fill_diagonal(d, shift)
      mine = silhouette(d, np.int32(groups + shift), 8)
      np.testing.assert_allclose(mine, expected, atol=1e-5)


def test_rows_to_ignore_are_not_there():
  rng = np.random.default_rng(0)
  d, groups = square(rng.normal(size=(20, 3))), rng.integers(0, 3, 20)
  expected = silhouette(d[:15, :15], np.int32(groups[:15]), 3)
  d[15:], d[:, 15:], groups[15:] = np.nan, np.nan, -1
  np.testing.assert_allclose(silhouette(d, np.int32(groups), 3), expected, rtol=1e-6)


def test_one_group_equal_rows_and_rows_alone_have_none():
  rows = np.arange(6, dtype=np.int32)
  for d, groups in (
    (square(np.eye(6)), 0 * rows),
    (np.zeros((6, 6), np.float32), rows % 2),
    (square(np.eye(6)), rows),
  ):
    assert float(silhouette(d, groups, 6)) == 0


def blobs(number, seed):
  """Points of so many well separated blobs, and whose is which."""
  rng = np.random.default_rng(seed)
  centres = 10 * np.eye(8)[:number]
  kinds = np.arange(40) % number
  return (centres[kinds] + rng.normal(size=(40, 8))).astype("f"), kinds


@functools.partial(jax.jit, static_argnums=2)
def cluster(d, mask, linkage):
  """By the silhouette, and as many groups as are allowed."""
  return [
    grouping.cluster(
      d,
      mask,
      linkage,
      count=count,
      max_groups=8,
      threshold=jnp.float32(0.0),
      rounding=0.0,
    )
    for count in ("silhouette", "fixed")
  ]


@pytest.mark.program
@pytest.mark.parametrize("linkage", grouping.LINKAGES)
def test_blobs_are_counted(linkage):
  """Whatever their number, and with clients that are not there."""
  for number in range(2, 9):
    points, kinds = blobs(number, number)
    mask = np.arange(40) < 33
    groups, most = map(np.asarray, cluster(square(points), mask, linkage))
    assert (groups[33:] == -1).all()
    assert sklearn.metrics.adjusted_rand_score(kinds[:33], groups[:33]) == 1
    if number < 8:
      assert len(set(most[:33].tolist())) == 8


def test_the_fewest_groups_win_ties():
  """Two pairs that are equal: more than two groups only part equal rows."""
  groups = jax.jit(
    lambda d: grouping.choose_number(d, lambda k: jnp.arange(4) % k, 4, 0.0)
  )(square(np.array([[0.0], [1.0], [0.0], [1.0]])))
  assert groups.tolist() == [0, 1, 0, 1]


@functools.partial(jax.jit, static_argnums=2)
def cluster_equal(d, mask, most):
  return grouping.cluster(
    d,
    mask,
    "average",
    count="silhouette",
    max_groups=most,
    threshold=-jnp.inf,
    rounding=1e-6,
  )


@pytest.mark.parametrize("most", (1, 4))
def test_rows_that_only_differ_by_rounding_are_one_group(most):
  """Of equal rows no number of groups has a silhouette; ignored rows stay out."""
  noise = np.abs(np.random.default_rng(0).normal(0, 1e-8, (12, 12)))
  for d in (0 * noise, 0 * noise + 1, noise + noise.T):
    groups = cluster_equal(np.float32(d), np.arange(12) > 0, most)
    assert groups.tolist() == [-1, *[0] * 11]


@functools.partial(jax.jit, static_argnums=1)
def distance_and_rounding(pair, metric):
  both = jnp.ones(2, bool)
  return (
    grouping.distances(pair, both, metric)[0, 1],
    grouping.rounding(pair, both, metric),
  )


@pytest.mark.parametrize("metric", grouping.METRICS)
def test_rounding_is_relative_to_the_rows(metric):
  """A last bit is below it at any length, another direction above it."""
  row = np.random.default_rng(0).normal(size=50).astype("f")
  for length in map(np.float32, (1e-6, 1.0, 1e6)):
    for second, is_rounding in (
      (np.nextafter(length * row, np.float32(np.inf)), True),
      (length * row[::-1], False),
    ):
      distance, rounding = distance_and_rounding(
        np.stack([length * row, second]), metric
      )
      assert (distance <= rounding) == is_rounding


@jax.jit
def group_models(points, mask):
  centres = grouping.farthest_first(points, mask, jnp.zeros(8), 5)
  return centres, grouping.lloyd_by_silhouette(points, mask, centres, 1e-6)


@pytest.mark.parametrize("alone", (False, True), ids=("many", "one_alone"))
@pytest.mark.parametrize("number", range(2, 6))
def test_models_of_a_round_are_counted(number, alone):
  """Five models: as many groups as blobs, at their means; the others stay."""
  points, kinds = blobs(number, seed=number)
  rows = np.arange(40)
  mask = rows < 33
  if alone:  # a single one of the last blob
    mask &= (kinds < number - 1) | (rows == number - 1)
  centres, groups = jax.device_get(group_models(points, mask))
  assignment = groups.assignment[mask]
  assert sklearn.metrics.adjusted_rand_score(kinds[mask], assignment) == 1
  assert (groups.assignment[~mask] == 5).all()
  assert groups.size.sum() == mask.sum() and (groups.size > 0).sum() == number
  for group in range(5):
    members = points[mask][assignment == group]
    expected = members.mean(0) if len(members) else centres[group]
    np.testing.assert_allclose(groups.centres[group], expected, rtol=1e-5, atol=1e-5)
