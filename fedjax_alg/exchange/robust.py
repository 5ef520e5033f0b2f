"""Means that a minority of false vectors does not move far.

Each function combines one vector of each participant, leaves [S, ...], into
one, leaves [...]. Slots of weight 0 are ignored, even if they hold NaN; if all
weights are 0, the result is 0. ``aggregation`` makes aggregators of them, which
``docs/hostile.md`` compares.

In the rules by rank (median, trimmed mean, Krum) participants count alike, in
the others by their weights. A vector with an entry that is not finite has no
weight, is infinitely far from the others, and its NaN have the last rank. A
rule by rank bears as many of them as of other hostile vectors, then its result
is not finite either.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from fedjax_alg import trees
from fedjax_alg.base import Array, Params
from fedjax_alg.hparams import is_zero

#: Distances below it count as this long (nu of Pillutla et al.).
SMALLEST_DISTANCE = 1e-6


def _sorted_slots(
  vectors: Params, weights: Float[Array, " S"]
) -> tuple[Params, Int[Array, ""]]:
  """Every coordinate in ascending order, and n; NaN and absent slots last."""
  present = weights > 0
  absent = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), vectors)
  return jax.tree.map(
    lambda leaf: jnp.sort(leaf, axis=0), trees.where_slots(present, vectors, absent)
  ), present.sum(dtype=jnp.int32)


def median_by_coordinate(vectors: Params, weights: Float[Array, " S"]) -> Params:
  """The median of every coordinate.

  With an even number of participants it is the mean of the two middle values.

  Source: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal
  Statistical Rates", ICML 2018, Definition 1.
  """
  ordered, count = _sorted_slots(vectors, weights)

  def middle(leaf):
    value = 0.5 * leaf[(count - 1) // 2] + 0.5 * leaf[count // 2]
    return jnp.where(count > 0, value, jnp.zeros_like(value))

  return jax.tree.map(middle, ordered)


def tolerated_number(
  share: Float[Array, ""] | float, count: Int[Array, ""]
) -> Int[Array, ""]:
  """f, the number of hostile ones among ``count`` participants, [] int32."""
  # 0.29 x 100 is 28.999999 in float32.
  return jnp.floor(share * count.astype(jnp.float32) + 1e-3).astype(jnp.int32)


def trimmed_mean(
  vectors: Params, weights: Float[Array, " S"], share: Float[Array, ""] | float
) -> Params:
  """The mean of every coordinate without its largest and smallest values.

  Source: Yin et al., ICML 2018, Definition 2. Of n participants the f = floor(n
  share) largest and the f smallest values are left out, but never all.
  """
  ordered, count = _sorted_slots(vectors, weights)
  least = jnp.maximum(jnp.minimum(tolerated_number(share, count), (count - 1) // 2), 0)
  ranks = jnp.arange(weights.shape[0], dtype=jnp.int32)
  inside = (ranks >= least) & (ranks < count - least)
  return trees.slot_mean(inside.astype(jnp.float32), ordered)


def _squared_distances(
  vectors: Params, weights: Float[Array, " S"]
) -> Float[Array, "S S"]:
  """||v_s - v_t||^2, [S, S]; infinite for absent slots and on the diagonal."""

  def to_all(vector):
    gaps = trees.subtract_one(vectors, vector)
    return sum(
      (
        jnp.square(leaf).reshape(leaf.shape[0], -1).sum(1)
        for leaf in jax.tree.leaves(gaps)
      ),
      jnp.zeros(weights.shape),
    )

  # One row after the other: no more than one copy of the vectors is held. The
  # Gram matrix would lose what is common to all of them to rounding.
  distances = jax.lax.map(to_all, vectors)
  present = weights > 0
  valid = (
    present[:, None]
    & present[None]
    & ~jnp.eye(weights.shape[0], dtype=bool)
    & ~jnp.isnan(distances)
  )
  return jnp.where(valid, distances, jnp.inf)


def _krum_order(
  vectors: Params, weights: Float[Array, " S"], share: Float[Array, ""] | float
) -> tuple[Int[Array, " S"], Int[Array, ""]]:
  """The slots by their Krum scores, least first, and n - f.

  The score of a participant is the sum of its n - f - 2 least squared distances
  to others (at least one). Two who are each other's nearest have the same score
  of one distance; then the sum over all others decides.
  """
  present = weights > 0
  count = present.sum(dtype=jnp.int32)
  false = tolerated_number(share, count)
  distances = jnp.sort(_squared_distances(vectors, weights), axis=1)
  ranks = jnp.arange(weights.shape[0], dtype=jnp.int32)

  def of_nearest(number):
    score = jnp.where(ranks[None] < number, distances, 0.0).sum(1)
    # Those who are infinitely far away still come before absent slots.
    score = jnp.minimum(score, jnp.finfo(score.dtype).max)
    return jnp.where(present, score, jnp.inf)

  finite = jnp.isfinite(distances).sum(1, dtype=jnp.int32).max()
  order = jnp.lexsort(
    (of_nearest(finite), of_nearest(jnp.maximum(count - false - 2, 1)))
  )
  return order, count - false


def krum(
  vectors: Params, weights: Float[Array, " S"], share: Float[Array, ""] | float
) -> Params:
  """The vector that is nearest to its n - f - 2 nearest others.

  Source: Blanchard et al., "Machine Learning with Adversaries: Byzantine
  Tolerant Gradient Descent", NeurIPS 2017, section 4; f = floor(n share), and
  n >= 2 f + 3 is assumed.
  """
  order, _ = _krum_order(vectors, weights, share)
  some = (weights > 0).any()
  return jax.tree.map(
    lambda leaf: jnp.where(some, leaf[order[0]], jnp.zeros_like(leaf[0])), vectors
  )


def multi_krum(
  vectors: Params, weights: Float[Array, " S"], share: Float[Array, ""] | float
) -> Params:
  """The mean of the n - f vectors with the least Krum scores.

  Source: Blanchard et al., NeurIPS 2017, section 5, with m = n - f, so that
  nobody is left out if nobody is assumed to be hostile. The scores are not
  computed anew after each choice.
  """
  order, number = _krum_order(vectors, weights, share)
  place = jnp.argsort(order)
  selected = (place < number) & (weights > 0)
  return trees.slot_mean(selected.astype(jnp.float32), vectors)


def _finite(vectors: Params, weights: Float[Array, " S"]) -> Float[Array, " S"]:
  """The weights [S]; 0 for a vector with an entry that is not finite."""
  return jnp.where((weights > 0) & trees.finite_slots(vectors), weights, 0.0)


def geometric_median(
  vectors: Params, weights: Float[Array, " S"], iterations: Int[Array, ""] | int
) -> Params:
  """The point of least weighted sum of distances to the vectors.

  Source: Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated
  Learning", IEEE TSP 2022, Algorithm 2, the smoothed Weiszfeld algorithm:
    z <- sum_s beta_s v_s / sum_s beta_s,  beta_s = p_s / max(nu, ||z - v_s||).
  It starts at the coordinate-wise median instead of the mean, from which
  vectors of any length would take more iterations the longer they are.
  """
  weights = _finite(vectors, weights)

  def step(_, centre):
    distance = trees.slot_norm(trees.subtract_one(vectors, centre))
    beta = jnp.where(
      weights > 0, weights / jnp.maximum(distance, SMALLEST_DISTANCE), 0.0
    )
    return trees.slot_mean(beta, vectors)

  return jax.lax.fori_loop(
    jnp.int32(0), jnp.int32(iterations), step, median_by_coordinate(vectors, weights)
  )


def _clipped_mean(
  vectors: Params, weights: Float[Array, " S"], radius: Float[Array, ""] | float
) -> Params:
  """The weighted mean of vectors clipped to ``radius``; 0: their median."""
  norms = trees.slot_norm(vectors)
  if is_zero(radius):
    radius = median_by_coordinate(norms, weights)
  factors = jnp.minimum(1.0, radius / jnp.maximum(norms, 1e-30))
  clipped = trees.scale_slots(factors, vectors)
  return trees.slot_mean(weights, clipped)


def centred_clipping(
  vectors: Params,
  weights: Float[Array, " S"],
  last: Params,
  radius: Float[Array, ""] | float,
  iterations: Int[Array, ""] | int,
) -> Params:
  """The mean of vectors that are clipped to a ball around a center.

  Source: Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust
  Optimization", ICML 2021, (7):
    v <- v + sum_s p_s (v_s - v) min(1, tau / ||v_s - v||),
  from v = ``last``, the result of the round before. The paper has clients send
  momenta. ``radius`` is tau; 0 stands for the median of the distances, anew in
  every iteration.
  """
  some, weights = (weights > 0).any(), _finite(vectors, weights)
  result = jax.lax.fori_loop(
    jnp.int32(0),
    jnp.int32(iterations),
    lambda _, centre: trees.add(
      centre, _clipped_mean(trees.subtract_one(vectors, centre), weights, radius)
    ),
    last,
  )
  return trees.where(some, result, jax.tree.map(jnp.zeros_like, result))


def norm_bound(
  vectors: Params, weights: Float[Array, " S"], radius: Float[Array, ""] | float
) -> Params:
  """The mean of vectors that are shortened to a length.

  Source: Sun et al., "Can You Really Backdoor Federated Learning?",
  arXiv:1911.07963, section 3, norm thresholding: v_s / max(1, ||v_s|| / M),
  without the noise. ``radius`` is M; 0 stands for the median of the lengths.
  """
  return _clipped_mean(vectors, _finite(vectors, weights), radius)
