"""Variance-reduced local training (FSVRG; diversified, (20)-(24))."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_alg import trees
from fedjax_alg.base import Array, Key, Model, Params, Shard
from fedjax_alg.client import minibatches, objective
from fedjax_alg.models.roles import ClientLeaves


def feature_scaling(
  shard: Shard, feature_share: Float[Array, " D"]
) -> Float[Array, " D"]:
  """The diagonal of Lambda_i (diversified, (21)).

  Args:
    shard: the client's training data.
    feature_share: [D] float32, n_hat^j / n over all clients.

  Returns:
    [D] float32, (n_hat^j / n) (n_i / n_i^j). Where n_i^j = 0 the formula
    divides by zero, and the entry is 1 (errata D-09).
  """
  counts = objective.feature_counts(shard)
  chex.assert_equal_shape((feature_share, counts))
  ratio = feature_share * shard.size.astype(jnp.float32) / jnp.maximum(counts, 1.0)
  return jnp.where(counts > 0, ratio, jnp.ones_like(ratio))


def normalised_rate(
  learning_rate: Float[Array, ""] | float, shard: Shard
) -> Float[Array, ""]:
  """alpha_l / n_i, the learning rate of client i in FSVRG (23), [] float32."""
  return learning_rate / jnp.maximum(shard.size, 1).astype(jnp.float32)


def svrg(
  model: Model,
  start: Params,
  reference: Params,
  anchor: Params,
  shard: Shard,
  work: minibatches.LocalWork,
  learning_rate: Float[Array, ""] | float,
  key: Key,
  scaling: Float[Array, " D"] | None = None,
  precondition: Callable[[Params], Params] = lambda direction: direction,
) -> tuple[Params, ClientLeaves]:
  """K_local steps w <- w - alpha (Lambda_i [g_i(w) - g_i(w_ref)] + g).

  Both stochastic gradients of a step are on the same mini-batch; otherwise no
  variance would be reduced, though the papers do not say so. g_i includes the
  gradient of the regularizer, so Lambda_i multiplies it too, as printed (errata
  D-09).

  Args:
    model: the model.
    start: w_{i,0}, where training starts.
    reference: w_ref, where the anchor gradient was measured; ``start`` unless
      the server moved the model in between.
    anchor: g, the anchor gradient.
    shard: the client's training data.
    work: number of steps and batch size.
    learning_rate: alpha, learning rate of every step.
    key: consumed.
    scaling: [D], the diagonal of Lambda_i, or None for the identity.
    precondition: applied to the direction of every step (Mime's base
      optimizer).

  Returns:
    w_{i,K}, the trained parameters, ``start`` for an empty shard; and the leaves
    that have moved with the steps (``minibatches.fold_steps``).
  """

  def step(gradient: minibatches.Gradient, params: Params) -> Params:
    (_, slope), (_, reference_slope) = gradient(params, reference)
    drift = trees.subtract(slope, reference_slope)
    if scaling is not None and model.scale_features is not None:
      drift = model.scale_features(drift, scaling)
    direction = precondition(trees.add(drift, anchor))
    return jax.tree.map(lambda p, d: p - learning_rate * d, params, direction)

  return minibatches.fold_steps(model, shard, work, key, step, start)
