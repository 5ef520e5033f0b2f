"""Finds the group that is closest to the vector of one client."""

import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_alg import trees
from fedjax_alg.base import Array
from fedjax_alg.grouping import checks


def nearest_centre(
  vector: Float[Array, " P"], centres: Float[Array, "K P"]
) -> Int[Array, ""]:
  """Finds the center with the least L2 distance to a vector.

  Args:
    vector: [P].
    centres: [K, P].

  Returns:
    [] int32, index of the center.
  """
  checks.check_vectors(centres, vector.size, "centres")
  gap = centres - vector[None]
  return jnp.argmin((gap * gap).sum(1)).astype(jnp.int32)


def closest_direction(
  update: Float[Array, " P"],
  directions: Float[Array, "K P"],
  populated: Bool[Array, " K"],
) -> Int[Array, ""]:
  """Finds the direction with the least (1 - cos) / 2 to an update.

  This is FedGroup (9). The cosine with a zero vector is 0.

  Args:
    update: [P].
    directions: [K, P], one direction for each group.
    populated: [K] bool, false for empty groups, which are left out.

  Returns:
    [] int32, index of the group.
  """
  checks.check_vectors(directions, update.size, "directions")
  checks.check_mask(populated, len(directions))
  inner = jnp.matmul(directions, update, precision=trees.HIGHEST)
  norms = jnp.linalg.norm(directions, axis=1) * jnp.linalg.norm(update)
  cosine = jnp.where(norms > 0, inner / jnp.where(norms > 0, norms, 1.0), 0.0)
  distance = jnp.where(populated, (1.0 - cosine) / 2.0, jnp.inf)
  return jnp.argmin(distance).astype(jnp.int32)
