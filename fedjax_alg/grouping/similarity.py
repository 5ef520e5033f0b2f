"""Similarity of clients' updates: cosines, EDC and MADC (FedGroup, (5)-(8)).

Everything is computed from the Gram matrix of the n updates. No decomposition
of P-dimensional vectors and no array of n^3 entries is needed. Masked rows are
ignored, even if they hold NaN, and their entries in a result are 0.
"""

from collections.abc import Callable
from typing import TypeVar

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedjax_alg.base import Array
from fedjax_alg.grouping import checks
from fedjax_alg.grouping.projection import leading_eigenpairs
from fedjax_alg.trees import HIGHEST

METRICS = ("l1", "l2", "cosine")
#: What rounding in float32 makes of 0: a share of the vectors' length, or, of
#: cosines and what is computed from them, a number.
ROUNDING = 1e-6
# A Gram matrix of many rows is computed in blocks. Blocks below the diagonal
# are left out, so 5/8 of the work remains. Only a part of the coordinates is
# read at a time, so that the rows are not copied as a whole.
_BLOCKS, _MANY_ROWS, _COORDINATES = 4, 256, 4096
# Number of coordinates in one pass over the n^2 sums of ``_gaps``. With a
# smaller number the sums would be read and written too often.
_UNROLL = 16

_Sums = TypeVar("_Sums")


def _pairs(mask: Bool[Array, " n"]) -> Bool[Array, "n n"]:
  """[n, n] bool, whether neither row is masked."""
  return mask[:, None] & mask[None, :]


def _only(mask: Bool[Array, " n"], square: Float[Array, "n n"]) -> Float[Array, "n n"]:
  return jnp.where(_pairs(mask), square, jnp.zeros_like(square))


def _inverse_root(squares: Float[Array, " n"]) -> Float[Array, " n"]:
  """1 / sqrt of every positive entry, and 0 for the others."""
  real = squares > 0
  return jnp.where(real, jax.lax.rsqrt(jnp.where(real, squares, 1.0)), 0.0)


def _by_columns(
  rows: Array, width: int, add: Callable[[Array, _Sums], _Sums], sums: _Sums
) -> _Sums:
  """Folds ``add(columns [n, width], sums)`` over all columns of rows [n, P]."""
  num_blocks = rows.shape[1] // width

  def step(i, sums):
    columns = jax.lax.dynamic_slice_in_dim(rows, i * width, width, axis=1)
    # Without the barrier XLA fuses the strided reads into the computation.
    return add(jax.lax.optimization_barrier(columns), sums)

  if num_blocks:
    sums = jax.lax.fori_loop(0, num_blocks, step, sums)
  return add(rows[:, num_blocks * width :], sums)


def _gaps(
  rows: Float[Array, "n P"], entry: Callable[[Array], Array]
) -> Float[Array, "n n"]:
  """[n, n], sums of ``entry`` over the differences of the rows [n, P].

  The coordinates are added one after the other to the n^2 sums, because this
  vectorizes well; a sum along a row would add one number at a time.
  """
  n = len(rows)

  def add(columns, sums):
    part = jnp.zeros_like(sums)
    for column in columns.T:
      part = part + entry(column[:, None] - column[None, :])
    return sums + part

  return _by_columns(rows, _UNROLL, add, jnp.zeros((n, n), rows.dtype))


def gram(rows: Float[Array, "n P"], mask: Bool[Array, " n"]) -> Float[Array, "n n"]:
  """Computes the inner products of all pairs of rows.

  Args:
    rows: [n, P] float32.
    mask: [n] bool, false for rows to ignore.

  Returns:
    [n, n] float32, exactly symmetric.
  """
  checks.check_masked_rows(rows, mask, "rows")
  n = len(rows)
  blocks = _BLOCKS if n >= _MANY_ROWS else 1
  edges = [n * b // blocks for b in range(blocks + 1)]
  spans = list(zip(edges, edges[1:]))

  def add(columns, parts):
    return [
      part
      + jnp.einsum("ip,jp->ij", columns[begin:end], columns[begin:], precision=HIGHEST)
      for part, (begin, end) in zip(parts, spans, strict=True)
    ]

  parts = _by_columns(
    rows,
    _COORDINATES,
    add,
    [jnp.zeros((end - begin, n - begin), rows.dtype) for begin, end in spans],
  )
  upper = jnp.triu(
    jnp.concatenate(
      [
        jnp.pad(part, ((0, 0), (begin, 0)))
        for part, (begin, _) in zip(parts, spans, strict=True)
      ]
    )
  )
  # NaN in a masked row only affects the row and column that are masked here.
  return _only(mask, upper + jnp.triu(upper, 1).T)


def cosine(gram_: Float[Array, "n n"]) -> Float[Array, "n n"]:
  """Computes the cosines of all pairs of rows, (5) and (6).

  Args:
    gram_: [n, n], the result of ``gram``.

  Returns:
    [n, n] in [-1, 1], exactly symmetric; 0 for pairs with a zero row, also on
    the diagonal.
  """
  chex.assert_shape(gram_, (len(gram_),) * 2)
  inverse = _inverse_root(jnp.diagonal(gram_))
  return jnp.clip(gram_ * (inverse[:, None] * inverse[None, :]), -1.0, 1.0)


def edc_points(
  gram_: Float[Array, "n n"], mask: Bool[Array, " n"], m: int
) -> Float[Array, "n {m}"]:
  """Computes the cosines of the rows with m main directions, (8).

  This is K(dW, V^T), where V are the left singular vectors of dW^T, not
  centered. With G = Q diag(l) Q' the cosine of row i with v_j is sqrt(l_j) Q_ij
  / sqrt(G_ii) (errata F-06). It is computed as (G Q)_ij / sqrt(l_j G_ii), which
  is equal and has the same accuracy for short and long rows.
  ``leading_eigenpairs`` decides the sign of a direction.

  Args:
    gram_: [n, n], the result of ``gram``.
    mask: [n] bool, false for rows to ignore.
    m: number of directions; directions beyond the rank are zero.

  Returns:
    [n, m]; 0 for a zero row and for a masked row.
  """
  checks.check_masked_square(gram_, mask, "gram_")
  gram_ = _only(mask, gram_)
  values, vectors = leading_eigenpairs(gram_, m)
  points = (
    jnp.matmul(gram_, vectors, precision=HIGHEST)
    * _inverse_root(values)[None]
    * _inverse_root(jnp.diagonal(gram_))[:, None]
  )
  return jnp.pad(points, ((0, 0), (0, m - points.shape[1])))


def edc(points: Float[Array, "n m"]) -> Float[Array, "n n"]:
  """Computes the EDC of all pairs of rows, (8): 1/m ||E_i - E_j||.

  Args:
    points: E [n, m], the result of ``edc_points``.

  Returns:
    [n, n]; masked rows are treated as zero points.
  """
  return jnp.sqrt(_gaps(points, jnp.square)) / max(points.shape[1], 1)


def madc(cosine_: Float[Array, "n n"], mask: Bool[Array, " n"]) -> Float[Array, "n n"]:
  """Computes the MADC of all pairs of rows, (7).

  This is the mean of |S(i, z) - S(j, z)| over all rows z that are not masked
  and differ from i and j.

  Args:
    cosine_: S [n, n], the result of ``cosine``.
    mask: [n] bool, false for rows to ignore.

  Returns:
    [n, n]; 0 for masked rows, and 0 everywhere if at most two rows are not
    masked (errata F-10).
  """
  checks.check_masked_square(cosine_, mask, "cosine_")
  cosine_ = _only(mask, cosine_)
  diagonal = jnp.diagonal(cosine_)
  # The terms z = i and z = j, which are subtracted from the sum over all z.
  ends = jnp.abs(diagonal[:, None] - cosine_) + jnp.abs(diagonal[None, :] - cosine_)
  others = mask.sum() - 2
  total = jnp.maximum(_gaps(cosine_, jnp.abs) - ends, 0.0)
  mean = total / jnp.maximum(others, 1).astype(total.dtype)
  off_diagonal = ~jnp.eye(len(mask), dtype=bool)
  return jnp.where(_pairs(mask) & off_diagonal & (others > 0), mean, 0.0)


def distances(
  rows: Float[Array, "n P"], mask: Bool[Array, " n"], metric: str
) -> Float[Array, "n n"]:
  """Computes the distances of all pairs of rows.

  ``l1`` and ``l2`` are computed from differences, in O(n^2 P) operations. (A
  computation from the Gram matrix would lose all digits for close rows that
  are far from zero.) ``cosine`` is 1 - cosine; it is 1 for a zero row.

  Args:
    rows: [n, P] float32.
    mask: [n] bool, false for rows to ignore.
    metric: one of ``METRICS``.

  Returns:
    [n, n] float32, symmetric; 0 on the diagonal and for masked rows.

  Raises:
    ValueError: an unknown metric.
  """
  if metric not in METRICS:
    raise ValueError(f"metric {metric!r}: one of {', '.join(METRICS)}")
  checks.check_masked_rows(rows, mask, "rows")
  rows = jnp.where(mask[:, None], rows, jnp.zeros_like(rows))
  if metric == "l1":
    result = _gaps(rows, jnp.abs)
  elif metric == "l2":
    result = jnp.sqrt(_gaps(rows, jnp.square))
  else:
    result = 1.0 - cosine(gram(rows, mask))
  off_diagonal = ~jnp.eye(len(mask), dtype=bool)
  return jnp.where(_pairs(mask) & off_diagonal, result, 0.0)


def rounding(
  rows: Float[Array, "n P"], mask: Bool[Array, " n"], metric: str
) -> Float[Array, ""]:
  """The distance up to which rows only differ by rounding.

  Args:
    rows: [n, P] float32.
    mask: [n] bool, false for rows to ignore.
    metric: one of ``METRICS``.

  Returns:
    [] float32; ``ROUNDING`` for ``cosine``, and for the others times the length of
    the longest row in that norm.
  """
  length: Array = jnp.ones(())
  if metric != "cosine":
    lengths = jnp.linalg.norm(rows, ord=1 if metric == "l1" else 2, axis=1)
    length = lengths.max(initial=0.0, where=mask)
  return ROUNDING * length
