"""How alike clients' updates are: cosines, EDC and MADC (FedGroup, (5)-(8)).

All of it goes through the Gram matrix of the n updates: no decomposition of
P-dimensional vectors and no array of n^3 entries. Rows that do not count
(NaN in them included) change nothing and are 0 in what takes a mask.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_alg.base import Array
from fedjax_alg.grouping import checks
from fedjax_alg.grouping.projection import leading_eigenpairs
from fedjax_alg.trees import HIGHEST

METRICS = ("l1", "l2", "cosine")
# A Gram matrix of many rows is made in blocks of rows, those below the diagonal
# left out (5/8 of the work remains), from so many coordinates at a time that
# no second copy of the rows is needed.
_BLOCKS, _MANY_ROWS, _COORDINATES = 4, 256, 4096
# Coordinates per pass over the n^2 sums of ``_gaps``: fewer read and write the
# sums too often.
_UNROLL = 16


def _pairs(mask: Array) -> Array:
  """[n, n] bool, both rows count."""
  return mask[:, None] & mask[None, :]


def _only(mask: Array, square: Array) -> Array:
  return jnp.where(_pairs(mask), square, jnp.zeros_like(square))


def _inverse_root(squares: Array) -> Array:
  """1 / sqrt of what is above 0, else 0."""
  real = squares > 0
  return jnp.where(real, jax.lax.rsqrt(jnp.where(real, squares, 1.0)), 0.0)


def _by_columns(rows, width, add, sums):
  """``add(columns [n, width], sums)`` over all columns of the rows [n, P]."""
  whole = rows.shape[1] // width

  def step(i, sums):
    columns = jax.lax.dynamic_slice_in_dim(rows, i * width, width, axis=1)
    # Else the strided reads are fused into whatever is done with them.
    return add(jax.lax.optimization_barrier(columns), sums)

  if whole:
    sums = jax.lax.fori_loop(0, whole, step, sums)
  return add(rows[:, whole * width:], sums)


def _gaps(rows: Array, entry: Callable[[Array], Array]) -> Array:
  """[n, n], sums of ``entry`` of the differences of the rows [n, P].

  Coordinate after coordinate into the n^2 sums: each pass is plain vector
  arithmetic, where a sum along a row would be one number at a time.
  """
  n = len(rows)

  def add(columns, sums):
    part = jnp.zeros_like(sums)
    for column in columns.T:
      part = part + entry(column[:, None] - column[None, :])
    return sums + part

  return _by_columns(rows, _UNROLL, add, jnp.zeros((n, n), rows.dtype))


def gram(rows: Array, mask: Array) -> Array:
  """Inner products of all pairs of rows.

  Args:
    rows: [n, P] float32.
    mask: [n] bool, rows that count.

  Returns:
    [n, n] float32, symmetric bit for bit.
  """
  checks.masked_rows(rows, mask, "rows")
  n = len(rows)
  blocks = _BLOCKS if n >= _MANY_ROWS else 1
  edges = [n * b // blocks for b in range(blocks + 1)]
  spans = list(zip(edges, edges[1:]))

  def add(columns, parts):
    return [part + jnp.einsum("ip,jp->ij", columns[begin:end], columns[begin:],
                              precision=HIGHEST)
            for part, (begin, end) in zip(parts, spans, strict=True)]

  parts = _by_columns(
      rows, _COORDINATES, add,
      [jnp.zeros((end - begin, n - begin), rows.dtype)
       for begin, end in spans])
  upper = jnp.triu(jnp.concatenate([
      jnp.pad(part, ((0, 0), (begin, 0)))
      for part, (begin, _) in zip(parts, spans, strict=True)]))
  # A masked row's NaN is in its own row and column only.
  return _only(mask, upper + jnp.triu(upper, 1).T)


def cosine(gram_: Array) -> Array:
  """(5), (6): cosines of all pairs of rows.

  Args:
    gram_: [n, n], from ``gram``.

  Returns:
    [n, n] in [-1, 1], as symmetric as ``gram_``; 0 where a row is zero, on
    its diagonal too.
  """
  inverse = _inverse_root(jnp.diagonal(gram_))
  return jnp.clip(gram_ * (inverse[:, None] * inverse[None, :]), -1.0, 1.0)


def edc_points(gram_: Array, mask: Array, m: int) -> Array:
  """K(dW, V^T) of (8): the cosines of the rows with their m main directions.

  V are the left singular vectors of dW^T, not centred. With G = Q diag(l) Q'
  the cosine of row i with v_j is sqrt(l_j) Q_ij / sqrt(G_ii) (errata F-06),
  taken as (G Q)_ij / sqrt(l_j G_ii), which is the same and as exact on short
  rows as on long ones. The sign of a direction is that of
  ``leading_eigenpairs``.

  Args:
    gram_: [n, n], from ``gram``.
    mask: [n] bool, rows that count.
    m: number of directions; those beyond the rank are zero.

  Returns:
    [n, m]; a zero row, or one that does not count, is 0.
  """
  checks.masked_square(gram_, mask, "gram_")
  gram_ = _only(mask, gram_)
  values, vectors = leading_eigenpairs(gram_, m)
  points = (jnp.matmul(gram_, vectors, precision=HIGHEST)
            * _inverse_root(values)[None]
            * _inverse_root(jnp.diagonal(gram_))[:, None])
  return jnp.pad(points, ((0, 0), (0, m - points.shape[1])))


def edc(points: Array) -> Array:
  """(8): 1/m ||E_i - E_j||.

  Args:
    points: [n, m], from ``edc_points``.

  Returns:
    [n, n]; rows that do not count are taken as the zero points they are.
  """
  return jnp.sqrt(_gaps(points, jnp.square)) / max(points.shape[1], 1)


def madc(cosine_: Array, mask: Array) -> Array:
  """(7): mean over z other than i, j of |S(i, z) - S(j, z)|.

  z and n are of the rows that count.

  Args:
    cosine_: [n, n], from ``cosine``.
    mask: [n] bool, rows that count.

  Returns:
    [n, n]; 0 where a row does not count, and all 0 unless more than two count
    (errata F-10).
  """
  checks.masked_square(cosine_, mask, "cosine_")
  cosine_ = _only(mask, cosine_)
  own = jnp.diagonal(cosine_)
  # z = i and z = j, to be taken out of the sum over all z.
  ends = (jnp.abs(own[:, None] - cosine_) + jnp.abs(own[None, :] - cosine_))
  others = mask.sum() - 2
  total = jnp.maximum(_gaps(cosine_, jnp.abs) - ends, 0.0)
  mean = total / jnp.maximum(others, 1).astype(total.dtype)
  apart = ~jnp.eye(len(mask), dtype=bool)
  return jnp.where(_pairs(mask) & apart & (others > 0), mean, 0.0)


def distances(rows: Array, mask: Array, metric: str) -> Array:
  """Distances of all pairs of rows.

  ``l1`` and ``l2`` are sums over differences, O(n^2 P) without cancellation
  (through the Gram matrix, close rows far from zero would lose all digits);
  ``cosine`` is 1 - cosine, 1 to a zero row.

  Args:
    rows: [n, P] float32.
    mask: [n] bool, rows that count.
    metric: one of ``METRICS``.

  Returns:
    [n, n] float32, symmetric; 0 on the diagonal and where a row does not
    count.

  Raises:
    ValueError: no such metric.
  """
  if metric not in METRICS:
    raise ValueError(f"metric {metric!r}: one of {', '.join(METRICS)}")
  checks.masked_rows(rows, mask, "rows")
  rows = jnp.where(mask[:, None], rows, jnp.zeros_like(rows))
  if metric == "l1":
    result = _gaps(rows, jnp.abs)
  elif metric == "l2":
    result = jnp.sqrt(_gaps(rows, jnp.square))
  else:
    result = 1.0 - cosine(gram(rows, mask))
  apart = ~jnp.eye(len(mask), dtype=bool)
  return jnp.where(_pairs(mask) & apart, result, 0.0)
