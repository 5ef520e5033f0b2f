"""Variance-reduced local training (FSVRG; diversified, (20)-(24))."""

import dataclasses

import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Key, Model, Params, Shard
from fedjax_alg.client import minibatches, objective
from fedjax_alg.hparams import hyper

#: Readings of A_r (diversified, (59)); applied by central.feature_statistics.
AGGREGATE_SCALING = ("all", "paper", "none")


@dataclasses.dataclass(frozen=True)
class FSVRGHParams(minibatches.LocalWork):
  """Hyper-parameters of the FSVRG family."""

  local_steps: int = hyper(
      20, "K, mini-batch steps per round; 0: count by --local_epochs",
      minimum=0, source="(24); K is not stated in the paper")
  client_lr: float = hyper(
      12.0, "alpha_l; client i steps by alpha_l / n_i", above=0.0,
      source="(23); 12 for MNIST, .08 for CIFAR-10")
  local_scaling: bool = hyper(
      True, "scale the local correction by Lambda_i (rare features more)",
      source="(20)-(21)")
  aggregate_scaling: str = hyper(
      "all", "A_r: all = C/omega (original FSVRG), paper = |S|/omega as "
      "printed, none = 1", choices=AGGREGATE_SCALING,
      source="(59)")


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


def svrg(
    model: Model,
    start: Params,
    anchor: Params,
    shard: Shard,
    work: minibatches.LocalWork,
    learning_rate: float,
    scaling: Array | None,
    key: Key,
) -> Params:
  """K_local steps w <- w - (alpha_l/n_i) (Lambda_i [g_i(w) - g_i(w_0)] + g).

  Both stochastic gradients of a step read the same mini-batch (without it
  nothing is reduced; not stated in the paper). g_i includes the gradient of
  the regulariser, so Lambda_i multiplies it too, as printed.

  Args:
    model: the model.
    start: w_0, where the anchor gradient was measured.
    anchor: g, the anchor gradient.
    shard: the client's training data.
    work: number of steps and batch size.
    learning_rate: alpha_l; each step uses alpha_l / n_i.
    scaling: [D], the diagonal of Lambda_i, or None for the identity.
    key: consumed.

  Returns:
    w_{i,K}, the trained parameters; ``start`` for an empty shard.
  """
  rate = learning_rate / jnp.maximum(shard.size, 1).astype(jnp.float32)

  def step(gradient: minibatches.Gradient, params: Params) -> Params:
    (_, here), (_, there) = gradient(params, start)
    drift = trees.subtract(here, there)
    if scaling is not None and model.scale_features is not None:
      drift = model.scale_features(drift, scaling)
    return trees.add_scaled(params, -rate, trees.add(drift, anchor))

  return minibatches.fold_steps(model, shard, work, key, step, start)
