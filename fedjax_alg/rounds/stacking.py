"""Whether a round keeps a vector of every participant, or only their sum.

Of S vectors of P floats a mean needs the running sum alone
(``MapClients.reduce``): P floats, not S P. What needs each vector keeps them
all whatever their size: other aggregators than the mean, groups that are found
by the vectors, and what a client or the server stores for each client.

Where a mean is enough, vectors that fit ``STACKED_BYTES`` are still kept: they
cost little, the mean distance of the trained models from their mean is measured
on them, and the bits of small runs do not depend on this module. The rule reads
shapes alone, so a run does not change its mind.
"""

import jax.numpy as jnp

from fedjax_alg.base import Array, BYTES_PER_FLOAT, num_params, Params
from fedjax_alg import trees

#: Up to this size the vectors of all participants are kept.
STACKED_BYTES = 64 * 2**20


def fits(slots: int, vector: Params) -> bool:
  """Whether ``slots`` vectors like this one are kept for a mean.

  Args:
    slots: S.
    vector: what one participant sends, arrays or their shapes.
  """
  return BYTES_PER_FLOAT * slots * num_params(vector) <= STACKED_BYTES


def shares(weights: Array) -> Array:
  """The factors [S] of a weighted mean; 0 if all weights are 0."""
  return weights / jnp.maximum(weights.sum(), 1e-30)


def spread(
    weights: Array, squares: Array, mean: Params, move: Params) -> Array:
  """Root mean squared distance of vectors from ``move``, by their sums.

  sum_s p_s ||u_s - m||^2 = sum_s p_s ||u_s||^2 - 2 <mean, m> + ||m||^2

  The terms are rounded before they cancel: a spread below 1e-3 of the length of
  the vectors is inexact, and reported as 0 where rounding makes it negative.

  Args:
    weights: [S] float32, p_s but for a factor.
    squares: [S] float32, ||u_s||^2.
    mean: sum_s p_s u_s, leaves [...].
    move: m, leaves [...].

  Returns:
    [] float32.
  """
  squared = trees.slot_mean(weights, squares) - 2.0 * trees.dot(
      mean, move) + trees.squared_norm(move)
  return jnp.sqrt(jnp.maximum(squared, 0.0))
