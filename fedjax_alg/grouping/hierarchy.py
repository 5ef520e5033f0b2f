"""Agglomerative clustering of a distance matrix in JAX."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg.base import Array
from fedjax_alg.grouping import checks

LINKAGES = ("single", "complete", "average", "ward")
# Distances beyond this, and NaN, count as this: such rows are merged last but
# can be merged, and Ward's squares stay finite.
_LARGEST = 1e17


class Hierarchy(NamedTuple):
  """Where the merging of clusters stopped."""

  #: [n] int32 group of each row, numbered by first member; ``num_groups`` on
  #: rows that do not count
  assignment: Array
  number: Array  #: [] int32, groups there are
  #: [] int32, groups the threshold alone would have left; without a
  #: threshold, the rows that count
  wanted: Array
  height: Array  #: [] float32, linkage distance of the last merge; -inf: none
  #: [] float32, least linkage distance of two groups left; inf: one is left
  next_height: Array


def _merged(linkage, d_ik, d_jk, d_ij, n_i, n_j, n_k):
  """Lance-Williams: distances [n] of the union of i and j to every k."""
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
  """Merges the two closest clusters until few enough, or too far, are left.

  Every row starts as a cluster. Two are merged while more than ``num_groups``
  are left, or while the closest are at most ``threshold`` apart: without a
  threshold exactly ``num_groups`` come out (all rows that count, if they are
  fewer); with one, the groups of
  ``scipy.cluster.hierarchy.fcluster(criterion="distance")``, merged further
  where these are more than ``num_groups``. Ties go to the lowest row, then to
  the lowest partner.

  O(n^2) memory, O(n) passes over the matrix.

  Args:
    distance: [n, n] float32, symmetric; the diagonal is not read. May be
      negative but for ``ward``, which expects Euclidean distances, as SciPy.
      NaN counts as the largest distance.
    mask: [n] bool, rows that count.
    linkage: one of ``LINKAGES``.
    num_groups: at least 1, static.
    threshold: [] float32, largest height of a merge that needs no cap.

  Raises:
    ValueError: no such linkage, or less than one group.
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
    """(height, i, j) of the next merge, i < j."""
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
    # Masked rows, clusters already merged, and the two themselves.
    gone = (rank == i) | (rank == j) | jnp.isinf(d[i])
    row = jnp.where(gone, far, row)
    # Cluster i, named by its first member, takes in j.
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
