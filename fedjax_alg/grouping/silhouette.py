"""The number of groups by the silhouette of a grouping.

Reference: Rousseeuw, "Silhouettes: a graphical aid to the interpretation and
validation of cluster analysis", 1987. The silhouette of a row is (b - a) /
max(a, b), where a is its mean distance to the others of its group, and b the
mean distance to the rows of the nearest other group; 0 for a row alone in its
group.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_alg import trees
from fedjax_alg.base import Array
from fedjax_alg.grouping import checks
from fedjax_alg.grouping.hierarchy import agglomerate

#: How the number of groups is decided.
COUNTS = ("fixed", "silhouette")


def silhouette(
  distance: Float[Array, "n n"], assignment: Int[Array, " n"], num_groups: int
) -> Float[Array, ""]:
  """Computes the mean silhouette of the rows that are in a group.

  Args:
    distance: [n, n], symmetric; the diagonal is not read.
    assignment: [n] int32, the group of each row; other values than 0 to
      ``num_groups`` - 1 are of rows to ignore.
    num_groups: largest number of groups; some may be empty.

  Returns:
    [] float32 in [-1, 1]; 0 if there are fewer than two groups.
  """
  member = trees.members(assignment, num_groups)
  size = member.sum(1).astype(jnp.float32)
  real_pair = member.any(0)[None] & ~jnp.eye(len(distance), dtype=bool)
  masked = jnp.where(real_pair, distance, 0.0)
  total = jnp.matmul(masked, member.T.astype(jnp.float32), precision=trees.HIGHEST)
  in_group = member.T
  group_size = jnp.where(in_group, size[None], 0.0).sum(1)
  within = jnp.where(in_group, total, 0.0).sum(1) / jnp.maximum(group_size - 1.0, 1.0)
  is_other = ~in_group & (size > 0)[None]
  nearest = jnp.where(is_other, total / jnp.maximum(size, 1.0)[None], jnp.inf).min(1)
  real = (group_size > 1) & jnp.isfinite(nearest)
  nearest = jnp.where(real, nearest, 0.0)
  longer = jnp.maximum(within, nearest)
  scores = jnp.where(real & (longer > 0), (nearest - within) / longer, 0.0)
  result: Array = scores.sum() / jnp.maximum(size.sum(), 1.0)
  return result


def counting_flops(count: str, rows: int, max_groups: int) -> float:
  """Counts the arithmetic of the silhouettes of ``choose_number``.

  Args:
    count: one of ``COUNTS``; fixed costs nothing.
    rows: n.
    max_groups: largest number that is tried.
  """
  if count == "fixed":
    return 0.0
  return 2.0 * rows * rows * max_groups * (max_groups - 1)


def choose_number(
  distance: Float[Array, "n n"],
  group: Callable[[int], Int[Array, " n"]],
  max_groups: int,
  rounding: Float[Array, ""] | float,
) -> Int[Array, " n"]:
  """Groups rows into the number of groups with the largest mean silhouette.

  The fewest groups win ties. The silhouette of one group is 0, so all rows are one
  group if no other number has a positive silhouette, as where all rows are equal.
  Rows of one kind that differ, however little, have a positive one.

  Args:
    distance: see ``silhouette``.
    group: number of groups -> groups [n], as in ``silhouette``.
    max_groups: largest number that is tried.
    rounding: [] float32, the distance up to which rows only differ by rounding;
      the silhouettes read it as 0.

  Returns:
    [n] int32, the groups.
  """
  numbers = range(min(2, max_groups), max_groups + 1)
  groups = jnp.stack([group(number) for number in numbers])
  distance = jnp.where(distance <= rounding, 0.0, distance)
  scores = jax.vmap(lambda row: silhouette(distance, row, max_groups))(groups)
  best = jnp.argmax(scores)
  in_group = (groups[0] >= 0) & (groups[0] < max_groups)
  return jnp.where((scores[best] > 0) | ~in_group, groups[best], 0)


def cluster(
  distance: Float[Array, "n n"],
  mask: Bool[Array, " n"],
  linkage: str,
  *,
  count: str,
  max_groups: int,
  threshold: Float[Array, ""] | float,
  rounding: Float[Array, ""] | float,
) -> Int[Array, " n"]:
  """Clusters rows, into a number of groups that is fixed or found.

  Args:
    distance: see ``agglomerate``.
    mask: [n] bool, false for rows to ignore.
    linkage: see ``agglomerate``.
    count: one of ``COUNTS``. With fixed ``agglomerate`` decides by
      ``max_groups`` and the threshold, which is not read with silhouette.
    max_groups: largest number of groups.
    threshold: see ``agglomerate``.
    rounding: see ``choose_number``; not read with fixed.

  Returns:
    [n] int32, the groups; -1 for rows to ignore.
  """
  checks.check_masked_square(distance, mask, "distance")
  if count == "fixed":
    groups = agglomerate(
      distance, mask, linkage, num_groups=max_groups, threshold=threshold
    ).assignment
    return jnp.where(mask, groups, -1)

  def group(number: int) -> Array:
    groups = agglomerate(distance, mask, linkage, num_groups=number).assignment
    return jnp.where(mask, groups, -1)

  return choose_number(distance, group, max_groups, rounding)
