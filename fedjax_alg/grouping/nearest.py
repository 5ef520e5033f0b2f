"""The group that one client's vector is closest to."""

import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array


def nearest_centre(vector: Array, centres: Array) -> Array:
  """The centre [K, P] at the least L2 distance of ``vector`` [P], [] int32."""
  gap = centres - vector[None]
  return jnp.argmin((gap * gap).sum(1)).astype(jnp.int32)


def closest_direction(
    update: Array, directions: Array, populated: Array) -> Array:
  """The direction [K, P] of least (1 - cos) / 2 to ``update`` [P], [] int32.

  FedGroup (9). A zero vector has cosine 0 with everything; groups that are not
  ``populated`` ([K] bool) are left out.
  """
  inner = jnp.matmul(directions, update, precision=trees.HIGHEST)
  norms = jnp.linalg.norm(directions, axis=1) * jnp.linalg.norm(update)
  cosine = jnp.where(norms > 0, inner / jnp.where(norms > 0, norms, 1.0), 0.0)
  distance = jnp.where(populated, (1.0 - cosine) / 2.0, jnp.inf)
  return jnp.argmin(distance).astype(jnp.int32)
