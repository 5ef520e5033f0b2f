"""Projection on principal components, computed from the Gram matrix.

The P-dimensional decomposition is never formed. Let W [P, S] hold the centered
vectors. W'W = V diag(lambda) V' gives U = W V diag(lambda)^{-1/2}, so every
product with U can be computed with W (diversified, (29)-(38), (48)-(51);
errata D-12).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedjax_alg.base import Array
from fedjax_alg.grouping import checks
from fedjax_alg.trees import HIGHEST

# An eigenvalue of a float32 Gram matrix that is smaller than this share of the
# largest one is a rounding error; its direction is dropped.
RELATIVE_TOLERANCE = 1e-6


class Projection(NamedTuple):
  """The first d principal components of the rows of a matrix."""

  mean: Array  #: [P], mean of the rows that are not masked
  centred: Array  #: [S, P], centered rows; 0 for masked rows
  dual: Array  #: [S, d], V diag(lambda)^{-1/2}; U = centred' dual
  points: Array  #: [S, d], the projected rows, V diag(lambda)^{1/2}


def leading_eigenpairs(
  gram: Float[Array, "S S"], number: int
) -> tuple[Float[Array, " r"], Float[Array, "S r"]]:
  """Computes the largest eigenvalues of a Gram matrix and their eigenvectors.

  The sign of an eigenvector is chosen so that its entry of largest magnitude
  (the first one for ties) is positive.

  Args:
    gram: [S, S].
    number: number of eigenvalues; at most S are returned.

  Returns:
    The eigenvalues [min(number, S)], largest first, with rounding errors set
    to 0, and the eigenvectors [S, min(number, S)].
  """
  values, vectors = jnp.linalg.eigh(gram)
  count = min(number, gram.shape[0])
  values = values[::-1][:count]
  vectors = vectors[:, ::-1][:, :count]
  largest = jnp.argmax(jnp.abs(vectors), axis=0)
  vectors *= jnp.sign(jnp.take_along_axis(vectors, largest[None], axis=0))
  top = values[0] if count else jnp.zeros(())
  real = values > RELATIVE_TOLERANCE * jnp.maximum(top, 0.0)
  return jnp.where(real, values, jnp.zeros_like(values)), vectors


def project(
  rows: Float[Array, "S P"], mask: Bool[Array, " S"], dimensions: int
) -> Projection:
  """Centres the rows and projects them on their first principal components.

  Args:
    rows: [S, P] float32.
    mask: [S] bool, false for rows to ignore.
    dimensions: d; components beyond the rank are zero.

  Returns:
    The projection.
  """
  checks.check_masked_rows(rows, mask, "rows")
  rows = jnp.where(mask[:, None], rows, jnp.zeros_like(rows))
  number = jnp.maximum(mask.sum(), 1).astype(jnp.float32)
  mean = rows.sum(0) / number
  centred = jnp.where(mask[:, None], rows - mean[None], jnp.zeros_like(rows))
  gram = jnp.matmul(centred, centred.T, precision=HIGHEST)
  values, vectors = leading_eigenpairs(gram, dimensions)
  rank = values.shape[0]
  real = values > 0
  safe = jnp.where(real, values, jnp.ones_like(values))
  root = jnp.sqrt(safe)[None]
  dual = jnp.where(real[None], vectors / root, jnp.zeros_like(vectors))
  points = jnp.where(real[None], vectors * root, jnp.zeros_like(vectors))
  pad = ((0, 0), (0, dimensions - rank))
  return Projection(mean, centred, jnp.pad(dual, pad), jnp.pad(points, pad))


def project_further(
  projection: Projection, vectors: Float[Array, "R P"], *, centre: bool
) -> Float[Array, "R d"]:
  """Projects further vectors: U'(v - mean).

  Args:
    projection: the result of ``project``.
    vectors: [R, P].
    centre: whether to subtract the mean of the rows of the projection; (39)
      and (53) as printed do not (errata D-11).

  Returns:
    [R, d].
  """
  checks.check_vectors(vectors, projection.mean.shape[0], "vectors")
  if centre:
    vectors = vectors - projection.mean[None]
  inner = jnp.matmul(vectors, projection.centred.T, precision=HIGHEST)
  return jnp.matmul(inner, projection.dual, precision=HIGHEST)


def lift(projection: Projection, points: Float[Array, "R d"]) -> Float[Array, "R P"]:
  """Maps points back: U z + mean (diversified, (43) and the bracket of (57)).

  Args:
    projection: the result of ``project``.
    points: [R, d].

  Returns:
    [R, P].
  """
  inner = jnp.matmul(points, projection.dual.T, precision=HIGHEST)
  back = jnp.matmul(inner, projection.centred, precision=HIGHEST)
  return back + projection.mean[None]
