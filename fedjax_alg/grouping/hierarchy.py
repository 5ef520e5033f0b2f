"""Agglomerative clustering of a distance matrix, in JAX."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float
import numpy as np

from fedjax_alg.base import Array
from fedjax_alg.grouping import checks

LINKAGES = ("single", "complete", "average", "ward")
# Larger distances and NaN are replaced by this value, so that such rows are
# merged last and the squares in Ward's method stay finite.
_LARGEST = 1e17
_FAR = np.float32(np.inf)


class Hierarchy(NamedTuple):
  """The result of agglomerative clustering."""

  #: [n] int32, group of each row; groups are numbered in the order of their
  #: first members; ``num_groups`` for masked rows
  assignment: Array
  number: Array  #: [] int32, number of groups
  #: [] int32, number of groups that the threshold alone gives; without a
  #: threshold, the number of rows that are not masked
  num_by_threshold: Array
  #: [] float32, linkage distance of the last merge; -inf without a merge
  height: Array
  #: [] float32, least linkage distance of two remaining groups; inf if only
  #: one group remains
  next_height: Array


class _Rows(NamedTuple):
  """State of every row while clusters are merged."""

  label: Array  #: [n] int32, the first member of each row's cluster
  number: Array  #: [] int32, clusters
  num_by_threshold: Array  #: [] int32, clusters that the threshold alone would leave
  size: Array  #: [n] float32, members; 0 for rows that are no cluster any more
  last: Array  #: [] float32, height of the last merge
  bound: Array  #: [n] float32, lower bound of the row's least distance
  nearest: Array  #: [n] int32, the row at this distance
  stale: Array  #: [n] bool, whether the bound may be too low


class _Merging(NamedTuple):
  """Rules for merging clusters, and for when to stop."""

  linkage: str
  num_groups: int
  threshold: Array  #: [] float32

  def least(self, rows: _Rows) -> tuple[Array, Array]:
    """The least bound as a height, and whether it may be too low."""
    i = jnp.argmin(rows.bound)
    bound = rows.bound[i]
    if self.linkage == "ward":  # whose distances are squared
      bound = jnp.sqrt(jnp.maximum(bound, 0.0))
    return bound, rows.stale[i]


def _union(linkage, d_ik, d_jk, d_ij, n_i, n_j, n_k):
  """Distances [n] of the union of i and j to every k (Lance-Williams)."""
  if linkage == "single":
    return jnp.minimum(d_ik, d_jk)
  if linkage == "complete":
    return jnp.maximum(d_ik, d_jk)
  if linkage == "average":
    share = n_i / (n_i + n_j)
    return share * d_ik + (1 - share) * d_jk
  total = n_i + n_j + n_k
  return (n_i + n_k) / total * d_ik + (n_j + n_k) / total * d_jk - n_k / total * d_ij


def _continues(merging: _Merging, carry: tuple[Array, _Rows]) -> Array:
  _, rows = carry
  height, stale = merging.least(rows)
  return (rows.number > 1) & (
    stale | (rows.number > merging.num_groups) | (height <= merging.threshold)
  )


def _renew_minimum(
  rows: _Rows, row: Array, partner: Array, d_row: Array, d_partner: Array
) -> tuple[Array, Array, _Rows]:
  """Takes the minimum of one row again."""
  return (
    row,
    d_row,
    rows._replace(
      bound=rows.bound.at[row].set(d_row.min()),
      nearest=rows.nearest.at[row].set(partner),
      stale=rows.stale.at[row].set(False),
    ),
  )


def _merge(
  merging: _Merging,
  rows: _Rows,
  row: Array,
  partner: Array,
  d_row: Array,
  d_partner: Array,
) -> tuple[Array, Array, _Rows]:
  """Merges two clusters; the union keeps the number i of its first member."""
  height, _ = merging.least(rows)
  label, number, num_by_threshold, size, _, bound, nearest, stale = rows
  rank = jnp.arange(len(label), dtype=jnp.int32)
  i, j = jnp.minimum(row, partner), jnp.maximum(row, partner)
  d_i = jnp.where(row == i, d_row, d_partner)
  d_j = jnp.where(row == i, d_partner, d_row)
  union = _union(merging.linkage, d_i, d_j, d_i[j], size[i], size[j], size)
  # Masked rows, clusters that were merged before, and i and j.
  union = jnp.where((rank == i) | (rank == j) | jnp.isinf(d_i), _FAR, union)
  # Rounding may bring the union closer than both its parts. Rows are compared
  # by number: XLA may compute a distance twice, with another last bit.
  closer = union < bound
  within = (height <= merging.threshold) & (number == num_by_threshold)
  return (
    i,
    union,
    _Rows(
      jnp.where(label == j, i, label),
      number - 1,
      jnp.where(within, number - 1, num_by_threshold),
      size.at[i].add(size[j]).at[j].set(0.0),
      height,
      jnp.where(closer, union, bound).at[i].set(union.min()).at[j].set(_FAR),
      jnp.where(closer, i, nearest).at[i].set(jnp.argmin(union).astype(jnp.int32)),
      (stale | (nearest == i) | (nearest == j)).at[i].set(False).at[j].set(False),
    ),
  )


def _step(merging: _Merging, carry: tuple[Array, _Rows]) -> tuple[Array, _Rows]:
  """Takes the minimum of one row again, or merges two clusters.

  A merge only makes distances grow, so the least distance of a row before it is
  a lower bound after it. It is taken again only where the bound is the least of
  all rows, which keeps the work at O(n) a merge.
  """
  d, rows = carry
  rank = jnp.arange(len(d), dtype=jnp.int32)

  def distances(k):
    return jnp.where((rank == k) | (rows.size == 0), _FAR, d[k])

  row = jnp.argmin(rows.bound).astype(jnp.int32)
  d_row = distances(row)
  partner = jnp.argmin(d_row).astype(jnp.int32)
  # A conditional is never computed twice. XLA would read d again where it
  # writes, and then copy all of it.
  place, new, rows = jax.lax.cond(
    merging.least(rows)[1],
    _renew_minimum,
    functools.partial(_merge, merging),
    rows,
    row,
    partner,
    d_row,
    distances(partner),
  )
  d = jax.lax.dynamic_update_index_in_dim(d, new, place, 0)
  return jax.lax.dynamic_update_index_in_dim(d, new, place, 1), rows


def agglomerate(
  distance: Float[Array, "n n"],
  mask: Bool[Array, " n"],
  linkage: str,
  *,
  num_groups: int,
  threshold: Float[Array, ""] | float = -jnp.inf,
) -> Hierarchy:
  """Merges clusters until few clusters, or only distant ones, remain.

  At the start every row is a cluster. The two closest clusters are merged
  while more than ``num_groups`` clusters remain or the distance of these two
  is at most ``threshold``. Without a threshold the result has exactly
  ``num_groups`` groups, or one group per row if there are fewer rows. With a
  threshold the result has the groups of
  ``scipy.cluster.hierarchy.fcluster(criterion="distance")``; if these are more
  than ``num_groups``, they are merged further. Ties are resolved in favor of
  the lowest row and then the lowest partner.

  The function needs O(n^2) memory and, but for unlucky ties, O(n^2) time.

  Args:
    distance: [n, n] float32, symmetric; the diagonal is not read. Distances
      may be negative except for ``ward``, which expects Euclidean distances,
      as in SciPy. NaN counts as the largest distance.
    mask: [n] bool, false for rows to ignore.
    linkage: one of ``LINKAGES``.
    num_groups: maximum number of groups, at least 1, static.
    threshold: [] float32, the distance up to which clusters are merged in any
      case.

  Returns:
    The groups.

  Raises:
    ValueError: unknown linkage, or ``num_groups`` below 1.
  """
  if linkage not in LINKAGES:
    raise ValueError(f"linkage {linkage!r}: one of {', '.join(LINKAGES)}")
  if num_groups < 1:
    raise ValueError(f"num_groups {num_groups}: at least 1")
  checks.check_masked_square(distance, mask, "distance")
  n = len(mask)
  rank = jnp.arange(n, dtype=jnp.int32)
  is_pair = mask[:, None] & mask[None, :] & (rank[:, None] != rank[None, :])
  distance = jnp.clip(jnp.nan_to_num(distance, nan=_LARGEST), -_LARGEST, _LARGEST)
  start = jnp.where(
    is_pair, distance * distance if linkage == "ward" else distance, _FAR
  )
  num_rows = mask.sum(dtype=jnp.int32)
  merging = _Merging(linkage, num_groups, jnp.asarray(threshold, jnp.float32))
  _, rows = jax.lax.while_loop(
    functools.partial(_continues, merging),
    functools.partial(_step, merging),
    (
      start,
      _Rows(
        rank,
        num_rows,
        num_rows,
        mask.astype(jnp.float32),
        jnp.float32(-_FAR),
        start.min(0),
        jnp.argmin(start, 0).astype(jnp.int32),
        jnp.zeros(n, bool),
      ),
    ),
  )
  next_height, _ = merging.least(rows)
  first = (rows.label == rank) & mask
  order = jnp.cumsum(first, dtype=jnp.int32) - 1
  assignment = jnp.where(mask, order[rows.label], jnp.int32(num_groups))
  return Hierarchy(
    assignment, rows.number, rows.num_by_threshold, rows.last, next_height
  )
