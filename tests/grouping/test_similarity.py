"""Cosines, EDC and MADC against scikit-learn, a plain SVD and loops."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics import pairwise

from fedjax_alg import grouping
from fedjax_alg.grouping import similarity
from tests.problems import optimised_jit
from tests.reference import clustered as oracle

ROWS, SIZE, DIRECTIONS, ZERO = 9, 37, 3, 4
MASK = np.isin(np.arange(ROWS), [0, 1, 3, 4, 5, 7, 8])


@pytest.fixture(scope="module", name="similarities")
def fixture_similarities():
  """(rows, mask) -> every result by name; compiled once."""

  def everything(rows, mask):
    gram = grouping.gram(rows, mask)
    cosine = grouping.cosine(gram)
    points = grouping.edc_points(gram, mask, DIRECTIONS)
    return {
      "gram": gram,
      "cosines": cosine,
      "points": points,
      "edc": grouping.edc(points),
      "madc": grouping.madc(cosine, mask),
    } | {metric: grouping.distances(rows, mask, metric) for metric in grouping.METRICS}

  fn = optimised_jit(everything)
  with pytest.MonkeyPatch.context() as patch:
    # So that blocks of rows, and chunks with a remainder, are in the trace.
    patch.setattr(similarity, "_MANY_ROWS", ROWS)
    patch.setattr(similarity, "_COORDINATES", 16)
    fn(*draw())
  return lambda rows, mask: {
    name: np.asarray(value) for name, value in fn(rows, mask).items()
  }


def draw(seed=0):
  """Updates of three kinds, unlike lengths, one zero; two do not count."""
  rng = np.random.default_rng(seed)
  kind = 3.0 * rng.normal(size=(3, SIZE))
  rows = rng.normal(size=(ROWS, SIZE)) + kind[np.arange(ROWS) % 3] + 0.5
  rows *= 10.0 ** rng.uniform(-2, 1, size=(ROWS, 1))
  rows[ZERO] = 0
  rows[~MASK] = np.nan
  return rows.astype(np.float32), MASK


@pytest.mark.program
@pytest.mark.parametrize("seed", range(3))
def test_all_are_those_of_scikit_learn(similarities, seed):
  rows, mask = draw(seed)
  mine = similarities(rows, mask)
  exact = rows[mask].astype(np.float64)
  cosine = pairwise.cosine_similarity(exact)
  # FedGroup's own way: decompose dW' [P, n], cosines with its directions.
  svd = TruncatedSVD(DIRECTIONS, algorithm="arpack", random_state=0)
  points = pairwise.cosine_similarity(exact, svd.fit_transform(exact.T).T)
  sign = np.sign((mine["points"][mask] * points).sum(0))
  angle = 1 - cosine
  np.fill_diagonal(angle, 0)
  np.testing.assert_allclose(mine["points"][mask], points * sign, rtol=1e-5, atol=1e-5)
  # The sign convention of ``project`` is on the eigenvector.
  vector = mine["points"][mask] * np.linalg.norm(exact, axis=1, keepdims=True)
  assert (vector[abs(vector).argmax(0), np.arange(DIRECTIONS)] > 0).all()
  for name, expected in {
    "gram": exact @ exact.T,
    "cosines": cosine,
    "madc": oracle.madc(exact),
    "edc": pairwise.euclidean_distances(points) / DIRECTIONS,
    "l1": pairwise.manhattan_distances(exact),
    "l2": np.linalg.norm(exact[:, None] - exact[None], axis=-1),
    "cosine": angle,
  }.items():
    np.testing.assert_allclose(
      mine[name][np.ix_(mask, mask)],
      expected,
      rtol=1e-5,
      # Of the sums, in units of their largest term.
      atol=1e-5 * min(1, abs(expected).max()) if name != "gram" else 1e-3,
      err_msg=name,
    )


@pytest.mark.program
def test_rows_that_do_not_count_change_nothing(similarities):
  rows, mask = draw()
  mine = similarities(rows, mask)
  changed = similarities(np.where(mask[:, None], rows, np.float32(7)), mask)
  for name, value in mine.items():
    np.testing.assert_array_equal(value, changed[name], err_msg=name)
    assert np.isfinite(value).all(), name
    if name != "edc":
      assert not value[~mask].any(), name
      assert name == "points" or not value[:, ~mask].any(), name


def test_a_zero_row_is_like_nothing(similarities):
  mine = similarities(*draw())
  assert not mine["cosines"][ZERO].any()
  assert not mine["points"][ZERO].any()
  assert (mine["cosine"][ZERO, MASK & (np.arange(ROWS) != ZERO)] == 1).all()
  nothing = similarities(np.zeros((ROWS, SIZE), np.float32), MASK)
  assert not any(nothing[name].any() for name in nothing if name != "cosine")


def test_results_are_symmetric_and_equal_rows_coincide(similarities):
  rows, mask = draw()
  rows[[0, 5]] = rows[1]
  mine = similarities(rows, mask)
  for name, value in mine.items():
    if name != "points":
      np.testing.assert_array_equal(value, value.T, err_msg=name)
  assert abs(mine["cosines"]).max() <= 1
  for name in ("madc", "l1", "l2"):
    assert (mine[name][0, [1, 5]] < 1e-6).all(), name


def test_madc_needs_three_rows():
  cosine = np.array([[1, 0.5, 0.1], [0.5, 1, 0.3], [0.1, 0.3, 1]], np.float32)
  madc = optimised_jit(grouping.madc)
  assert not madc(cosine, np.array([True, True, False])).any()
  np.testing.assert_allclose(
    madc(cosine, np.ones(3, bool)),
    [[0, 0.2, 0.2], [0.2, 0, 0.4], [0.2, 0.4, 0]],
    atol=1e-6,
  )


@pytest.mark.program
def test_directions_beyond_the_rank_are_zero():
  rows = np.outer([1, -2, 3], [1, 2, 2]).astype(np.float32)
  gram = rows @ rows.T
  points = optimised_jit(lambda gram, mask: grouping.edc_points(gram, mask, 5))(
    gram, np.ones(3, bool)
  )
  np.testing.assert_allclose(points, np.outer([1, -1, 1], [1, 0, 0, 0, 0]), atol=1e-6)


def test_an_unknown_metric_is_named():
  with pytest.raises(ValueError, match="'l3': one of l1, l2, cosine"):
    grouping.distances(jnp.ones((2, 2)), jnp.ones(2, bool), "l3")
