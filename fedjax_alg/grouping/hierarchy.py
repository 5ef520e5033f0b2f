"""Agglomerative clustering of a distance matrix, in JAX."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg.base import Array
from fedjax_alg.grouping import checks

LINKAGES = ("single", "complete", "average", "ward")
# Larger distances and NaN are replaced by this value, so that such rows are
# merged last and the squares in Ward's method stay finite.
_LARGEST = 1e17


class Hierarchy(NamedTuple):
  """The result of agglomerative clustering."""

  #: [n] int32, group of each row; groups are numbered in the order of their
  #: first members; ``num_groups`` for masked rows
  assignment: Array
  number: Array  #: [] int32, number of groups
  #: [] int32, number of groups that the threshold alone gives; without a
  #: threshold, the number of rows that are not masked
  wanted: Array
  #: [] float32, linkage distance of the last merge; -inf without a merge
  height: Array
  #: [] float32, least linkage distance of two remaining groups; inf if only
  #: one group remains
  next_height: Array


def _merged(linkage, d_ik, d_jk, d_ij, n_i, n_j, n_k):
  """Distances [n] of the union of i and j to every k (Lance-Williams)."""
  if linkage == "single":
    return jnp.minimum(d_ik, d_jk)
  if linkage == "complete":
    return jnp.maximum(d_ik, d_jk)
  if linkage == "average":
    share = n_i / (n_i + n_j)
    return share * d_ik + (1 - share) * d_jk
  total = n_i + n_j + n_k
  return ((n_i + n_k) / total * d_ik + (n_j + n_k) / total * d_jk
          - n_k / total * d_ij)


def agglomerate(
    distance: Array, mask: Array, linkage: str, *, num_groups: int,
    threshold: Array | float = -jnp.inf,
) -> Hierarchy:
  """Merges clusters until few clusters, or only distant ones, remain.

  At the start every row is a cluster. The two closest clusters are merged
  while more than ``num_groups`` clusters remain or the distance of these two
  is at most ``threshold``. Without a threshold the result has exactly
  ``num_groups`` groups, or one group per row if there are fewer rows. With a
  threshold the result has the groups of
  ``scipy.cluster.hierarchy.fcluster(criterion="distance")``; if these are more
  than ``num_groups``, they are merged further. Ties are resolved in favour of
  the lowest row and then the lowest partner.

  The function needs O(n^2) memory and O(n) passes over the matrix.

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
  checks.masked_square(distance, mask, "distance")
  n = len(mask)
  ward = linkage == "ward"
  rank = jnp.arange(n, dtype=jnp.int32)
  far = jnp.float32(jnp.inf)
  apart = mask[:, None] & mask[None, :] & (rank[:, None] != rank[None, :])
  distance = jnp.clip(
      jnp.nan_to_num(distance, nan=_LARGEST), -_LARGEST, _LARGEST)
  start = jnp.where(apart, distance * distance if ward else distance, far)
  threshold = jnp.asarray(threshold, jnp.float32)
  counted = mask.sum(dtype=jnp.int32)

  def closest(d):
    """Finds (height, i, j) of the next merge, with i < j."""
    nearest = d.min(0)
    i = jnp.argmin(nearest)
    j = jnp.argmin(d[i])
    height = jnp.sqrt(jnp.maximum(nearest[i], 0.0)) if ward else nearest[i]
    return height, jnp.minimum(i, j), jnp.maximum(i, j)

  def more(carry):
    number, (height, _, _) = carry[2], carry[-1]
    return (number > 1) & ((number > num_groups) | (height <= threshold))

  def merge(carry):
    d, label, number, wanted, size, _, (height, i, j) = carry
    row = _merged(linkage, d[i], d[j], d[i, j], size[i], size[j], size)
    # Masked rows, clusters that were merged before, and i and j.
    gone = (rank == i) | (rank == j) | jnp.isinf(d[i])
    row = jnp.where(gone, far, row)
    # The union keeps the number i of its first member.
    d = d.at[i].set(row).at[:, i].set(row).at[j].set(far).at[:, j].set(far)
    size = size.at[i].add(size[j])
    label = jnp.where(label == j, i.astype(label.dtype), label)
    within = (height <= threshold) & (number == wanted)
    number = number - 1
    wanted = jnp.where(within, number, wanted)
    return d, label, number, wanted, size, height, closest(d)

  _, label, number, wanted, _, height, (next_height, _, _) = (
      jax.lax.while_loop(more, merge, (
          start, rank, counted, counted, jnp.ones(n, jnp.float32), -far,
          closest(start))))
  first = (label == rank) & mask
  order = jnp.cumsum(first, dtype=jnp.int32) - 1
  assignment = jnp.where(mask, order[label], jnp.int32(num_groups))
  return Hierarchy(assignment, number, wanted, height, next_height)
