"""Subspaces of clients' data, and the angles between them.

A subspace is an array [r, D] of r unit vectors, which need not be orthogonal.
Rows of zeros stand for vectors that a client does not have.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_alg.base import Array
from fedjax_alg.grouping.projection import leading_eigenpairs
from fedjax_alg.trees import HIGHEST

#: What stands for the distance of two subspaces (``kind`` of ``angles``).
ANGLES = ("smallest", "sum", "entry")
# Vectors beside those asked for, which make the iteration converge sooner; most
# iterations, and the change after which it ends.
_BESIDE, _MOST_STEPS, _CONVERGED = 8, 300, 1e-5
# Degrees that rounding in float32 makes of an angle of 0.
_ROUNDING = 0.03


def leading_vectors(
  gram: Float[Array, "D D"], number: int
) -> Float[Array, "{number} D"]:
  """Computes the leading right singular vectors of X from X'X.

  They are found by subspace iteration: for D = 3,072 it takes a hundredth of
  the time of a full decomposition. ``leading_eigenpairs`` decides their signs
  and their number.

  Args:
    gram: X'X [D, D].
    number: p.

  Returns:
    [p, D]; rows beyond the rank are zero.
  """
  d = gram.shape[0]
  width = min(d, 2 * number + _BESIDE)
  times = lambda vectors: jnp.matmul(gram, vectors, precision=HIGHEST)

  def improve(carry):
    step, image, old, _ = carry
    basis = jnp.linalg.qr(image)[0]
    image = times(basis)
    small = jnp.matmul(basis.T, image, precision=HIGHEST)
    values, turn = leading_eigenpairs(0.5 * (small + small.T), width)
    rotate = lambda columns: jnp.matmul(columns, turn, precision=HIGHEST)
    top = jnp.where(values[None] > 0, rotate(basis), 0.0)[:, :number]
    missed = top - old @ (old.T @ top)
    return step + 1, rotate(image), top, jnp.abs(missed).max()

  def goes_on(carry):
    step, *_, change = carry
    return (step < _MOST_STEPS) & (change > _CONVERGED)

  start = jax.random.normal(jax.random.key(0), (d, width), gram.dtype)
  top = jnp.zeros((d, min(number, width)), gram.dtype)
  _, _, top, _ = jax.lax.while_loop(
    goes_on, improve, (jnp.int32(0), times(start), top, jnp.float32(jnp.inf))
  )
  largest = jnp.argmax(jnp.abs(top), axis=0)
  top *= jnp.sign(jnp.take_along_axis(top, largest[None], axis=0))
  return jnp.pad(top.T, ((0, number - top.shape[1]), (0, 0)))


def orthonormal(vectors: Float[Array, "r D"]) -> Float[Array, "r D"]:
  """Makes an orthonormal basis of the span; rows beyond its rank are zero."""
  gram = jnp.matmul(vectors, vectors.T, precision=HIGHEST)
  values, turn = leading_eigenpairs(gram, len(vectors))
  scale = jnp.where(values > 0, jax.lax.rsqrt(jnp.where(values > 0, values, 1.0)), 0.0)
  return jnp.matmul((turn * scale[None]).T, vectors, precision=HIGHEST)


def _angle(u: Float[Array, "r D"], v: Float[Array, "q D"], kind: str) -> Array:
  """``angle`` of orthonormal bases, or, of ``entry``, of unit vectors."""
  cosines = jnp.matmul(u, v.T, precision=HIGHEST)
  real_u, real_v = (u != 0).any(1), (v != 0).any(1)
  if kind == "entry":
    cosines = jnp.where(real_u[:, None] & real_v[None], cosines, -1.0)
    return jnp.degrees(jnp.arccos(jnp.clip(cosines.max(), -1.0, 1.0)))
  values = jnp.linalg.svd(cosines, compute_uv=False)
  angles = jnp.degrees(jnp.arccos(jnp.clip(values, -1.0, 1.0)))
  if kind == "smallest":
    return angles[0]
  return jnp.where(
    jnp.arange(len(angles)) < jnp.minimum(real_u.sum(), real_v.sum()), angles, 0.0
  ).sum()


def angles(
  rows: Float[Array, "n r D"], others: Float[Array, "m r D"], kind: str
) -> Float[Array, "n m"]:
  """Computes the angles of all pairs of subspaces, in degrees.

  Angles of equal subspaces are rounding errors of float32 (``angle_rounding``).

  Args:
    rows: n subspaces.
    others: m subspaces.
    kind: one of ``ANGLES``: the least principal angle; the sum of all principal
      angles, as many as the smaller subspace has dimensions; or the least angle
      of a vector of the one with a vector of the other.

  Returns:
    [n, m] float32; symmetric but for rounding if the arguments are equal.

  Raises:
    ValueError: an unknown kind.
  """
  if kind not in ANGLES:
    raise ValueError(f"kind {kind!r}: one of {', '.join(ANGLES)}")
  if kind != "entry":
    rows, others = jax.vmap(orthonormal)(rows), jax.vmap(orthonormal)(others)
  result: Array = jax.lax.map(
    lambda u: jax.vmap(lambda v: _angle(u, v, kind))(others), rows
  )
  return result


def angle_rounding(rows: Float[Array, "n r D"], kind: str) -> float:
  """The result of ``angles``, in degrees, up to which it is rounding.

  Args:
    rows: n subspaces.
    kind: one of ``ANGLES``; every angle of a sum is rounded.
  """
  return _ROUNDING * (rows.shape[1] if kind == "sum" else 1)
