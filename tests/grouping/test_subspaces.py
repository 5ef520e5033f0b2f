"""Singular vectors and angles of subspaces against NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from fedjax_alg import grouping
from tests.reference import pacfl as oracle


@pytest.fixture
def rng():
  return np.random.default_rng(0)


def data(rng, n, d, rank=None):
  """Rows of falling variance, not centred; of a lower rank where one is given."""
  rows = rng.normal(size=(n, rank or d)) * 0.8 ** np.arange(rank or d)
  return (rows @ rng.normal(size=(rank or d, d)) + 0.5 * (rank is None)).astype("f")


_leading_vectors = jax.jit(grouping.leading_vectors, static_argnums=1)
_angles = jax.jit(grouping.angles, static_argnums=2)


def vectors_of(x, p):
  return np.asarray(_leading_vectors(x.T @ x, p))


def angles(rows, others, kind):
  return np.asarray(_angles(np.float32(rows), np.float32(others), kind))


@pytest.mark.parametrize("shape, p", [((40, 50), 3), ((30, 6), 5), ((200, 90), 1)])
def test_leading_vectors_are_those_of_the_data(rng, shape, p):
  x = data(rng, *shape)
  np.testing.assert_allclose(vectors_of(x, p), oracle.leading_vectors(x, p), atol=2e-4)


@pytest.mark.program
def test_vectors_beyond_the_rank_are_zero(rng):
  x = data(rng, 20, 12, rank=2)
  mine = vectors_of(x, 4)
  np.testing.assert_allclose(mine[:2], oracle.leading_vectors(x, 4), atol=2e-4)
  assert not mine[2:].any() and not vectors_of(0 * x, 3).any()
  assert vectors_of(x[:, :2], 3).shape == (3, 2)


@pytest.mark.program
def test_a_wide_gram_matrix_takes_few_steps(rng):
  """Half of the first value is the second's, as of images."""
  turn = np.linalg.qr(rng.normal(size=(300, 300)))[0]
  gram = ((turn * 0.5 ** np.arange(300)) @ turn.T).astype("f")
  mine = np.asarray(_leading_vectors(gram, 3))
  np.testing.assert_allclose(np.abs(np.diag(mine @ turn[:, :3])), 1, atol=1e-5)


@pytest.mark.parametrize("kind", grouping.ANGLES)
def test_angles_are_the_oracles(rng, kind):
  """Of 3, of 2 and of 6 vectors of two classes, which are not orthogonal."""
  subspaces = [oracle.leading_vectors(data(rng, 40, 15), 3) for _ in range(4)]
  subspaces.append(oracle.leading_vectors(data(rng, 40, 15, rank=2), 3))
  subspaces += [np.concatenate(subspaces[:2]), np.concatenate(subspaces[3:5])]
  padded = np.stack([np.pad(s, ((0, 6 - len(s)), (0, 0))) for s in subspaces])
  mine = angles(padded, padded, kind)
  off = ~np.eye(len(mine), dtype=bool)
  # One rounding of a cosine of 1 in float32 is 0.02 degrees, and up to three such
  # angles are added up; how many there are depends on the processor.
  np.testing.assert_allclose(
    mine[off],
    oracle.proximity(subspaces, kind)[off],
    atol=0.3 if kind == "sum" else 0.1,
  )
  if kind == "entry":
    assert (mine >= angles(padded, padded, "smallest") - 0.05).all()
  else:
    scipys = np.degrees(scipy.linalg.subspace_angles(subspaces[0].T, subspaces[4].T))
    expected = scipys.min() if kind == "smallest" else scipys.sum()
    np.testing.assert_allclose(mine[0, 4], expected, atol=0.05)


def test_principal_angles_are_of_the_span_alone(rng):
  """A rotated basis has the same principal angles, not the same entries."""
  u, v = (oracle.leading_vectors(data(rng, 40, 15), 3) for _ in range(2))
  turned = np.linalg.qr(rng.normal(size=(3, 3)))[0].astype("f") @ v

  def both(kind):
    return [float(angles(u[None], w[None], kind)[0, 0]) for w in (v, turned)]

  for kind in ("smallest", "sum"):
    np.testing.assert_allclose(*both(kind), atol=0.05)
  assert abs(np.subtract(*both("entry"))) > 1


def test_an_unknown_kind_is_refused():
  with pytest.raises(ValueError, match="kind 'least': one of smallest, sum, entry"):
    grouping.angles(jnp.eye(2)[None], jnp.eye(2)[None], "least")
