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

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import (
  BYTES_PER_FLOAT,
  Array,
  MapClients,
  Params,
  Shard,
  num_params,
)
from fedjax_alg.typing import PyTree

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


def square(update: Params) -> Array:
  """||u||^2 of one participant, [] float32.

  Written as a sum, which XLA fuses with the making of the update; as the inner
  product of ``trees.squared_norm`` it takes a fifth of a large round.
  """
  return sum((jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(update)), jnp.zeros(()))


def mean(
  map_clients: MapClients,
  fn: Callable[..., Any],
  vector: Params,
  weights: Array,
  shared: Any,
  shards: Shard,
  *args: PyTree,
) -> tuple[Any, Any]:
  """The weighted mean over slots of a part of what ``fn`` returns.

  Args:
    map_clients: how one client's code is mapped over the participants.
    fn: code for one client (``MapClients``); returns (averaged, stacked).
    vector: a tree of the size of what is averaged.
    weights: [S] float32, 0 for padding slots.
    shared: see ``MapClients``.
    shards: see ``MapClients``.
    *args: see ``MapClients``.

  Returns:
    The mean, leaves [...], and the rest, leaves [S, ...].
  """
  if fits(weights.shape[0], vector):
    averaged, stacked = map_clients(fn, shared, shards, *args)
    return trees.slot_mean(weights, averaged), stacked
  return map_clients.reduce(fn, shares(weights), shared, shards, *args)


def group_spread(
  weights: Array,
  squares: Array,
  moves: Params,
  means: Params,
  divisors: Array,
  of_group: Array,
) -> Array:
  """Root mean squared distance of vectors from their group's, by sums.

  For vectors u_s of K groups with the weights p_s, whose sum is 1,

    sum_s p_s ||u_s - m_k(s)||^2
      = sum_s p_s ||u_s||^2 + sum_k (P_k ||m_k||^2 - 2 <sum_k p_s u_s, m_k>)

  The terms are rounded before they cancel: a spread below 1e-3 of the length of
  the vectors is inexact, and reported as 0 where rounding makes it negative.

  Args:
    weights: [S] float32, p_s but for a factor; 0 for padding slots.
    squares: [S] float32, ||u_s||^2.
    moves: m_k, leaves [K, ...].
    means: the sums of weights[s] u_s over group k, divided by ``divisors``,
      leaves [K, ...].
    divisors: [K] float32.
    of_group: [K] float32, sum of the weights of each group.

  Returns:
    [] float32.
  """
  total = jnp.maximum(weights.sum(), 1e-30)
  square_norms = jax.vmap(trees.squared_norm)(moves)
  common = jax.vmap(trees.dot)(means, moves)
  squared = (
    trees.slot_mean(weights, squares)
    + (of_group * square_norms - 2.0 * divisors * common).sum() / total
  )
  return jnp.sqrt(jnp.maximum(squared, 0.0))
