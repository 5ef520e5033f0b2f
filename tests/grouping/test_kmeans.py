"""k-means against scikit-learn, the oracle and the law of k-means++."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.cluster import KMeans

from fedjax_alg import grouping
from tests.problems import quick_jit, row
from tests.reference import diversified as oracle

POINTS, DIMENSIONS, GROUPS = 24, 2, 4
_lloyd = jax.jit(grouping.lloyd, static_argnums=3)


def lloyd(*args):
  """Groups in NumPy: JAX compiles an index for each number of points."""
  return jax.device_get(_lloyd(*args))


def draw(seed):
  """Points, which of them count, and centres; float32."""
  rng = np.random.default_rng(seed)
  points = rng.normal(size=(POINTS, DIMENSIONS)).astype(np.float32)
  mask = rng.random(POINTS) < 0.8
  mask[:GROUPS] = True
  points[~mask] = np.nan if seed % 2 else 50.0
  centres = points[:GROUPS] + np.float32(0.1)
  return points, mask, centres


@pytest.mark.program
@settings(max_examples=12)
@given(st.integers(0, 10**6))
def test_lloyd_is_that_of_scikit_learn(seed):
  points, mask, centres = draw(seed)
  # scikit-learn moves an empty group elsewhere, ours stays.
  for steps in range(1, 8):
    assignment, _ = oracle.kmeans(points[mask], centres, steps)
    assume(len(set(assignment)) == GROUPS)
  groups = lloyd(points, mask, centres)
  reference = KMeans(
    GROUPS,
    init=centres.astype(np.float64),
    n_init=1,
    max_iter=50,
    tol=0,
    algorithm="lloyd",
  ).fit(points[mask].astype(np.float64))
  np.testing.assert_array_equal(groups.assignment[mask], reference.labels_)
  assert (groups.assignment[~mask] == GROUPS).all()
  np.testing.assert_allclose(groups.centres, reference.cluster_centers_, atol=1e-5)
  np.testing.assert_array_equal(
    groups.size, np.bincount(reference.labels_, minlength=GROUPS)
  )


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 50]))
def test_lloyd_is_that_of_the_oracle(seed, steps):
  """With an empty group (the last centre is far away), and stopped early."""
  points, mask, centres = draw(seed)
  centres[-1] = 1e3
  groups = lloyd(points, mask, centres, steps)
  assignment, means = oracle.kmeans(points[mask], centres, steps)
  np.testing.assert_array_equal(groups.assignment[mask], assignment)
  np.testing.assert_allclose(groups.centres, means, rtol=1e-5, atol=1e-5)
  assert groups.size[-1] == 0
  np.testing.assert_array_equal(groups.centres[-1], centres[-1])


def test_ties_go_to_the_lowest_group():
  points = jnp.array([[0.0], [2.0], [1.0]])
  groups = lloyd(points, jnp.ones(3, bool), jnp.array([[2.0], [0.0], [0.0]]))
  # 1 is as far from 0 as from 2; 0 is nearest to two equal centres.
  assert groups.assignment.tolist() == [1, 0, 0]
  assert groups.size.tolist() == [2, 1, 0]
  np.testing.assert_array_equal(groups.centres, [[1.5], [0.0], [0.0]])


def test_equal_centres_part_one_by_one():
  """All points join the first copy, whose mean then leaves the others."""
  points = jnp.array([[0.0], [1.0], [9.0]])
  first = lloyd(points, jnp.ones(3, bool), jnp.zeros((2, 1)), 1)
  assert first.assignment.tolist() == [0, 0, 0]
  result = lloyd(points, jnp.ones(3, bool), jnp.zeros((2, 1)))
  assert result.assignment.tolist() == [1, 1, 0]


def test_nobody_counts():
  groups = lloyd(jnp.full((3, 2), jnp.nan), jnp.zeros(3, bool), jnp.ones((2, 2)))
  assert groups.assignment.tolist() == [2, 2, 2]
  assert groups.size.tolist() == [0, 0]
  np.testing.assert_array_equal(groups.centres, np.ones((2, 2)))


def test_no_dimensions_means_one_group():
  groups = lloyd(jnp.zeros((3, 0)), jnp.array([True, True, False]), jnp.zeros((1, 0)))
  assert groups.assignment.tolist() == [0, 0, 1]
  assert groups.size.tolist() == [2]


@given(st.integers(0, 10**6))
def test_farthest_first_is_that_of_the_oracle(seed):
  points, mask, centres = draw(seed)
  points[~mask] = 50.0
  result = farthest_first(points, mask, centres[0], GROUPS)
  expected = oracle.farthest_first(points[mask], centres[0], GROUPS)
  np.testing.assert_allclose(result, expected, rtol=1e-6)


farthest_first = jax.jit(grouping.farthest_first, static_argnums=3)


def test_farthest_first_takes_the_lowest_slot_of_equals():
  points = jnp.array([[1.0, 0.0], [0.0, 2.0], [2.0, 0.0], [9.0, 9.0]])
  mask = jnp.array([True, True, True, False])
  centres = farthest_first(points, mask, jnp.zeros(2), 3)
  np.testing.assert_array_equal(centres, [[0, 2], [2, 0], [1, 0]])


DRAWS = 4000
pairs_drawn = quick_jit(
  lambda points, mask: jax.vmap(
    lambda key: grouping.plus_plus(points[:, None], mask, key, 2)[:, 0]
  )(jax.random.split(jax.random.key(1), DRAWS))
)


@pytest.mark.program
def test_plus_plus_draws_by_squared_distance():
  """Every ordered pair as often as the law says; one does not count."""
  points = np.array([0.0, 1.0, 3.0, np.nan, 4.0], np.float32)
  mask = ~np.isnan(points)
  centres = np.asarray(pairs_drawn(points, mask))
  members = points[mask].astype(np.float64)
  squares = (members[:, None] - members[None]) ** 2
  law = squares / squares.sum(1, keepdims=True) / len(members)
  seen = (members == centres[..., None]).astype(int)  # [DRAWS, 2, 4]
  assert (seen.sum(-1) == 1).all()
  seen = np.einsum("ni,nj->ij", seen[:, 0], seen[:, 1])
  assert not np.diagonal(seen).any()
  off_diagonal = law > 0
  assert stats.chisquare(seen[off_diagonal], DRAWS * law[off_diagonal]).pvalue > 1e-3


def test_plus_plus_draws_no_center_twice():
  """The distance is that to the closest center, not to the last one."""
  points, mask = jnp.array([[0.0], [1.0], [100.0]]), jnp.ones(3, bool)
  centers = jax.vmap(lambda key: grouping.plus_plus(points, mask, key, 3)[:, 0])(
    jax.random.split(jax.random.key(0), 50)
  )
  np.testing.assert_array_equal(np.sort(centers), np.tile([0, 1, 100], (50, 1)))


def test_plus_plus_of_equal_points():
  """All distances are 0: any point that counts; NaN is never chosen."""
  points = np.array([np.nan, 2.0, 2.0, np.nan, 2.0], np.float32)
  assert (np.asarray(pairs_drawn(points, ~np.isnan(points))) == 2).all()


kmeans = quick_jit(
  lambda points, mask, key: grouping.kmeans(points, mask, key, 5, restarts=6)
)


def inertia(points, mask, groups):
  """Squared distances to the own centre, summed."""
  centres = np.asarray(groups.centres)[np.asarray(groups.assignment)[mask]]
  return ((points[mask] - centres) ** 2).sum()


@pytest.mark.program
def test_kmeans_keeps_its_best_start():
  rng = np.random.default_rng(0)
  points = rng.random((40, 2)).astype(np.float32)
  mask = np.arange(40) % 7 != 3
  points[~mask] = np.nan
  run_start = quick_jit(
    jax.vmap(
      lambda key: grouping.lloyd(
        jnp.asarray(points),
        jnp.asarray(mask),
        grouping.plus_plus(jnp.asarray(points), jnp.asarray(mask), key, 5),
        20,
      )
    )
  )
  for seed in range(3):
    key = jax.random.key(seed)
    starts = jax.device_get(run_start(jax.random.split(key, 6)))
    spread = [inertia(points, mask, row(starts, i)) for i in range(6)]
    assert max(spread) > 1.05 * min(spread)
    best = kmeans(points, mask, key)
    np.testing.assert_array_equal(best.assignment, starts.assignment[np.argmin(spread)])
    assert (np.asarray(best.assignment)[~mask] == 5).all()
