"""Lloyd's k-means in JAX, for few points with few dimensions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_alg import trees
from fedjax_alg.base import Array, Key
from fedjax_alg.grouping import checks
from fedjax_alg.grouping.silhouette import choose_number


class Groups(NamedTuple):
  """The result of a grouping."""

  assignment: Array  #: [S] int32, group of each point; K for masked points
  centres: Array  #: [K, d]
  size: Array  #: [K] int32, number of points in each group


def _squared_distances(
  points: Float[Array, "S d"], centres: Float[Array, "K d"]
) -> Float[Array, "S K"]:
  """[S, K], computed from differences, so equal points have distance 0."""
  gap = points[:, None, :] - centres[None, :, :]
  return (gap * gap).sum(-1)


def _assign(
  points: Float[Array, "S d"], mask: Bool[Array, " S"], centres: Float[Array, "K d"]
) -> Int[Array, " S"]:
  """Nearest center, (40) and (54); the lowest for ties, K if masked."""
  nearest = jnp.argmin(_squared_distances(points, centres), axis=1)
  return jnp.where(mask, nearest, centres.shape[0]).astype(jnp.int32)


def lloyd(
  points: Float[Array, "S d"],
  mask: Bool[Array, " S"],
  centres: Float[Array, "K d"],
  max_steps: int = 50,
) -> Groups:
  """Alternates assignments and means until no assignment changes.

  The center of an empty group does not change ((41) and (55) divide by zero in
  this case, errata D-13). The stopping criterion of the paper, a spread of at
  most 1e-4 within the groups ((42), (56)), is never met (errata D-14).

  Args:
    points: [S, d].
    mask: [S] bool, false for points to ignore.
    centres: [K, d], the initial centers.
    max_steps: maximum number of assignments.

  Returns:
    The last assignment with the means of its groups.
  """
  checks.check_masked_rows(points, mask)
  checks.check_vectors(centres, points.shape[1], "centres")
  groups = centres.shape[0]

  def body(carry):
    step, _, assignment, centres, _ = carry
    member = trees.members(assignment, groups)
    size = member.sum(1, dtype=jnp.int32)
    masked = jnp.where(mask[:, None], points, jnp.zeros_like(points))
    total = jnp.matmul(
      member.astype(points.dtype), masked, precision=jax.lax.Precision.HIGHEST
    )
    mean = total / jnp.maximum(size, 1).astype(points.dtype)[:, None]
    centres = jnp.where(size[:, None] > 0, mean, centres)
    new = _assign(points, mask, centres)
    changed = jnp.any(new != assignment) & (step + 1 < max_steps)
    # The returned assignment is the one from which the centers were computed.
    return step + 1, changed, jnp.where(changed, new, assignment), centres, size

  first = _assign(points, mask, centres)
  start = (jnp.int32(0), jnp.bool_(True), first, centres, jnp.zeros(groups, jnp.int32))
  _, _, assignment, centres, size = jax.lax.while_loop(
    lambda carry: carry[1], body, start
  )
  return Groups(assignment, centres, size)


def lloyd_by_silhouette(
  points: Float[Array, "S d"],
  mask: Bool[Array, " S"],
  centres: Float[Array, "K d"],
  rounding: Float[Array, ""] | float,
) -> Groups:
  """Runs ``lloyd`` with the first 2 to K centers and keeps the best number.

  The best number of groups has the largest mean silhouette of the Euclidean
  distances (``grouping.silhouette``); the fewest groups win ties. All points are one
  group if no number has a positive silhouette (``choose_number``).

  Args:
    points: [S, d].
    mask: [S] bool, false for points to ignore.
    centres: [K, d], the initial centers; the first are used first.
    rounding: [] float32, the distance up to which points only differ by rounding.

  Returns:
    The assignment with the means of its groups. Groups behind the best number
    are empty, and their centers do not change.
  """
  k = centres.shape[0]

  def group(number: int) -> Array:
    assignment = lloyd(points, mask, centres[:number]).assignment
    return jnp.where(mask, assignment, k)

  distance = jnp.sqrt(_squared_distances(points, points))
  assignment = choose_number(distance, group, k, rounding)
  member = trees.members(assignment, k)
  size = member.sum(1, dtype=jnp.int32)
  total = jnp.matmul(
    member.astype(points.dtype),
    jnp.where(mask[:, None], points, jnp.zeros_like(points)),
    precision=jax.lax.Precision.HIGHEST,
  )
  mean = total / jnp.maximum(size, 1).astype(points.dtype)[:, None]
  return Groups(assignment, jnp.where(size[:, None] > 0, mean, centres), size)


def farthest_first(
  points: Float[Array, "S d"],
  mask: Bool[Array, " S"],
  origin: Float[Array, " d"],
  k: int,
) -> Float[Array, "{k} d"]:
  """Chooses K initial centers, each farthest from those chosen before.

  The first center is the point farthest from ``origin``. The function is used
  to form groups when the K models are still equal (errata D-08: with equal
  centers every client would join the first group).

  Args:
    points: [S, d].
    mask: [S] bool, points that may be chosen.
    origin: [d], the place of the equal models; it is not a center.
    k: K.

  Returns:
    [K, d]; the lowest slot is chosen for ties. If there are fewer than K
    different points, some are chosen repeatedly, and the groups of the
    repetitions stay empty.
  """
  checks.check_masked_rows(points, mask)
  checks.check_vectors(origin[None], points.shape[1], "origin")

  def gap(centre: Array) -> Array:
    return jnp.where(mask, ((points - centre[None]) ** 2).sum(-1), -jnp.inf)

  centres = [points[jnp.argmax(gap(origin))]]
  closest = gap(centres[0])
  for _ in range(k - 1):
    centres.append(points[jnp.argmax(closest)])
    closest = jnp.minimum(closest, gap(centres[-1]))
  return jnp.stack(centres)


def plus_plus(
  points: Float[Array, "S d"], mask: Bool[Array, " S"], key: Key, k: int
) -> Float[Array, "{k} d"]:
  """Chooses K initial centers with k-means++.

  Each center is a random point, drawn with a probability proportional to the
  squared distance to the closest center so far.

  Args:
    points: [S, d].
    mask: [S] bool, points that may be chosen.
    key: consumed.
    k: K.

  Returns:
    [K, d]. If all points lie on centers, a random point is chosen again.
  """
  checks.check_masked_rows(points, mask)
  points = jnp.where(mask[:, None], points, jnp.zeros_like(points))
  equal = mask.astype(points.dtype)

  def draw(closest, step):
    i, key = step
    weight = jnp.where(mask, closest, jnp.zeros_like(closest))
    weight = jnp.where(jnp.any(weight > 0), weight, equal)
    centre = points[jax.random.categorical(key, jnp.log(weight))]
    gap = ((points - centre[None]) ** 2).sum(-1)
    # ``closest`` holds equal weights, not distances, for the first center.
    closest = jnp.where(i == 0, gap, jnp.minimum(closest, gap))
    return closest, centre

  steps = jnp.arange(k), jax.random.split(key, k)
  result: Array = jax.lax.scan(draw, equal, steps)[1]
  return result


def kmeans(
  points: Float[Array, "S d"],
  mask: Bool[Array, " S"],
  key: Key,
  k: int,
  restarts: int = 10,
  max_steps: int = 20,
) -> Groups:
  """Runs k-means++ and ``lloyd`` several times and keeps the best result.

  Args:
    points: [S, d].
    mask: [S] bool, false for points to ignore.
    key: consumed.
    k: K.
    restarts: number of starts.
    max_steps: maximum number of assignments of each start.

  Returns:
    The groups with the least inertia, which is the sum of the squared
    distances of the points to the centers of their groups; the first of equal
    results.
  """

  def run(key: Key) -> tuple[Array, Groups]:
    groups = lloyd(points, mask, plus_plus(points, mask, key, k), max_steps)
    nearest = groups.centres.at[groups.assignment].get(mode="clip")
    gap = ((points - nearest) ** 2).sum(-1)
    return jnp.where(mask, gap, jnp.zeros_like(gap)).sum(), groups

  # Sequential, so that a start does not take the steps of the longest start.
  inertia, groups = jax.lax.map(run, jax.random.split(key, restarts))
  best = jnp.argmin(inertia)
  result: Groups = jax.tree.map(lambda leaf: leaf[best], groups)
  return result
