"""Variance-reduced local training (FSVRG; diversified, (20)-(24))."""

from collections.abc import Callable
import dataclasses

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Key, Model, Params, Shard
from fedjax_alg.client import minibatches, objective
from fedjax_alg.hparams import hyper

#: The ways to read A_r (diversified, (59)), see ``central.feature_statistics``.
AGGREGATE_SCALING = ("all", "paper", "none", "holders")


@dataclasses.dataclass(frozen=True)
class FSVRGHParams(minibatches.LocalWork):
  """Hyper-parameters of the FSVRG family."""

  local_steps: int = hyper(
      20, "K, mini-batch steps per round; 0: count by `local_epochs`",
      minimum=0, source="(24); K is not stated in the paper")
  client_lr: float = hyper(
      12.0, "alpha_l; the learning rate of client i is alpha_l / n_i",
      above=0.0,
      source="(23); 12 for MNIST, .08 for CIFAR-10")
  local_scaling: bool = hyper(
      True, "scale the local correction by Lambda_i, which lengthens the "
      "steps of rare features",
      source="(20)-(21)")
  aggregate_scaling: str = hyper(
      "all", "A_r: all = C/omega (original FSVRG), paper = |S|/omega as "
      "printed in the diversified paper, holders = 1/omega as printed in the "
      "conjugate paper, none = 1", choices=AGGREGATE_SCALING,
      source="diversified (59); conjugate (21)-(22)")


def feature_scaling(shard: Shard, feature_share: Array) -> Array:
  """The diagonal of Lambda_i (diversified, (21)).

  Args:
    shard: the client's training data.
    feature_share: [D] float32, n_hat^j / n over all clients.

  Returns:
    [D] float32, (n_hat^j / n) (n_i / n_i^j); 1 where n_i^j = 0 (errata D-09:
    the formula divides by zero there).
  """
  counts = objective.feature_counts(shard)
  ratio = feature_share * shard.size.astype(jnp.float32) / jnp.maximum(
      counts, 1.0)
  return jnp.where(counts > 0, ratio, jnp.ones_like(ratio))


def normalised_rate(learning_rate: float, shard: Shard) -> Array:
  """alpha_l / n_i, the step of FSVRG's client i ((23)), [] float32."""
  return learning_rate / jnp.maximum(shard.size, 1).astype(jnp.float32)


def svrg(
    model: Model,
    start: Params,
    reference: Params,
    anchor: Params,
    shard: Shard,
    work: minibatches.LocalWork,
    rate: float | Array,
    key: Key,
    scaling: Array | None = None,
    precondition: Callable[[Params], Params] = lambda direction: direction,
) -> Params:
  """K_local steps w <- w - rate (Lambda_i [g_i(w) - g_i(w_ref)] + g).

  Both stochastic gradients of a step read the same mini-batch (otherwise no
  variance would be reduced; the papers do not say so). g_i includes the
  gradient of the regulariser, so Lambda_i multiplies it too, as printed.

  Args:
    model: the model.
    start: w_{i,0}, where training starts.
    reference: w_ref, where the anchor gradient was measured; ``start`` unless
      the server moved the model in between.
    anchor: g, the anchor gradient.
    shard: the client's training data.
    work: number of steps and batch size.
    rate: length of a step.
    key: consumed.
    scaling: [D], the diagonal of Lambda_i, or None for the identity.
    precondition: applied to the direction of every step (Mime's base
      optimiser).

  Returns:
    w_{i,K}, the trained parameters; ``start`` for an empty shard.
  """

  def step(gradient: minibatches.Gradient, params: Params) -> Params:
    (_, here), (_, there) = gradient(params, reference)
    drift = trees.subtract(here, there)
    if scaling is not None and model.scale_features is not None:
      drift = model.scale_features(drift, scaling)
    direction = precondition(trees.add(drift, anchor))
    return jax.tree.map(lambda p, d: p - rate * d, params, direction)

  return minibatches.fold_steps(model, shard, work, key, step, start)
