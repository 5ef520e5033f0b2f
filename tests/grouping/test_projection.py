"""The projection through the Gram matrix against a plain SVD."""

from hypothesis import given
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from fedjax_alg import grouping
from tests.reference import diversified as oracle

project = jax.jit(grouping.project, static_argnums=2)
place = jax.jit(grouping.project_further, static_argnames="centre")
lift = jax.jit(grouping.lift)


def draw(seed, rank=30):
  """9 rows of 30 numbers, of which 7 count; well separated components."""
  rng = np.random.default_rng(seed)
  mask = np.arange(9) % 4 != 3
  basis = np.linalg.qr(rng.normal(size=(30, 7)))[0]
  left_basis = np.linalg.qr(rng.normal(size=(7, 7)))[0]
  size = np.where(np.arange(7) < rank, 3.0 * 0.5 ** np.arange(7), 0.0)
  rows = np.full((9, 30), np.nan, np.float32)
  rows[mask] = (left_basis * size) @ basis.T + rng.normal(size=30)
  return rows, mask


@given(st.integers(0, 10**6))
def test_points_are_those_of_the_svd(seed):
  rows, mask = draw(seed)
  mine = project(rows, mask, 3)
  theirs = oracle.project(list(rows[mask].astype(np.float64)), 4)
  np.testing.assert_allclose(mine.mean, theirs.mean, atol=1e-5)
  # The sign is a convention; an entry may tie with its opposite.
  sign = np.sign((np.asarray(mine.points)[mask] * theirs.points).sum(0))
  np.testing.assert_allclose(
    np.asarray(mine.points)[mask], theirs.points * sign, atol=2e-5
  )
  points = np.asarray(mine.points)
  assert (points[np.abs(points).argmax(0), np.arange(3)] > 0).all()
  basis = np.asarray(mine.centred).T @ np.asarray(mine.dual)
  np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-4)
  np.testing.assert_allclose(basis, theirs.basis * sign, atol=1e-4)
  assert not np.asarray(mine.centred)[~mask].any()
  np.testing.assert_allclose(points[~mask], 0, atol=1e-6)


@pytest.mark.parametrize("centre", [True, False])
def test_place_and_lift(centre):
  rows, mask = draw(1)
  others = np.random.default_rng(2).normal(size=(4, 30)).astype(np.float32)
  mine = project(rows, mask, 3)
  theirs = oracle.project(list(rows[mask].astype(np.float64)), 4)
  sign = np.sign((np.asarray(mine.points)[mask] * theirs.points).sum(0))
  actual = place(mine, others, centre=centre)
  np.testing.assert_allclose(
    actual, [oracle.project_centre(theirs, v, centre) * sign for v in others], atol=1e-4
  )
  np.testing.assert_allclose(
    lift(mine, actual),
    [oracle.lift(theirs, z * sign) for z in np.asarray(actual)],
    atol=1e-4,
  )
  # A row that made the projection is placed on its own point.
  np.testing.assert_allclose(
    place(mine, rows[mask], centre=True), np.asarray(mine.points)[mask], atol=1e-5
  )


@pytest.mark.parametrize(
  "rows, dimensions, rank",
  [
    (draw(4, rank=2)[0], 5, 2),
    (np.ones((4, 5), np.float32), 2, 0),
    (np.array([[0.0, 1.0], [2.0, 1.0]], np.float32), 4, 1),
    (draw(5)[0], 0, 0),
  ],
)
def test_components_beyond_the_rank_are_zero(rows, dimensions, rank):
  """Equal rows have none; with none asked for, points lift to the mean."""
  mask = np.isfinite(rows).all(1)
  mine = project(rows, mask, dimensions)
  assert mine.points.shape == mine.dual.shape == (len(rows), dimensions)
  assert np.asarray(mine.points)[:, :rank].any(0).all()
  assert not np.asarray(mine.points)[:, rank:].any()
  assert not np.asarray(mine.dual)[:, rank:].any()
  lifted = np.asarray(lift(mine, mine.points))[mask]
  expected = rows[mask] if dimensions else rows[mask].mean(0)[None]
  np.testing.assert_allclose(
    lifted, np.broadcast_to(expected, lifted.shape), rtol=1e-5, atol=1e-5
  )
