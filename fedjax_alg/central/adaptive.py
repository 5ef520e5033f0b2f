"""Adaptive central acceleration (diversified, (62)-(64))."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from fedjax_alg.base import Array, Params
from fedjax_alg.errors import check_one_of

RULES = ("corrected", "printed")


class AdaptiveState(NamedTuple):
  """First and second moments of one model's anchor gradient."""

  rounds: Array  #: [] int32, number of accelerated rounds so far
  m: Params  #: m_hat, like the parameters
  v: Params  #: v_hat, like the parameters


def adaptive(
  learning_rate: float = 0.02,
  beta1: float = 0.0,
  beta2: float = 0.999,
  eps: float = 1e-8,
  rule: str = "corrected",
) -> optax.GradientTransformation:
  r"""The server step of MA-FSVRG and GA-FSVRG.

  m_r = beta1 m_{r-1} + (1 - beta1) g(w_r)                              (62)
  v_r = beta2 v_{r-1} + (1 - beta2) g(w_r)^2                            (63)
  corrected: w - alpha_g sqrt(1 - beta2^r) m_r / sqrt(v_r + eps)
  printed:   w - alpha_g (1 - beta1) sqrt((1 - beta2^r) / (1 - beta2))
                 m_r / sqrt(v_r + eps)                                  (64)

  Args:
    learning_rate: alpha_g^0, for one step per round.
    beta1: decay of the first moment, in [0, 1).
    beta2: decay of the second moment, in [0, 1).
    eps: added inside the root, as printed (optax.adam adds it outside).
    rule: "corrected" or "printed".

  Returns:
    An optax transformation; ``optax.apply_updates`` adds its updates to the
    parameters.

  Raises:
    ValueError: the rule is unknown.

  Deviations: (62) has m^r on both sides, and its gradient is at the point that
  is being computed; it is read as above (errata D-22). (64) applies a factor
  that Defossez et al. (2020) made for *sums* of gradients to *averages*, so its
  first step is (1 - beta1) / sqrt(1 - beta2) = 31.6 (1 - beta1) times too long;
  "corrected" is Adam with the second moment's correction only (errata D-23).
  """
  check_one_of(f"central rule {rule!r}", rule, RULES)
  factor = learning_rate
  if rule == "printed":
    factor = learning_rate * (1.0 - beta1) / (1.0 - beta2) ** 0.5

  def init(params: Params) -> AdaptiveState:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return AdaptiveState(jnp.zeros((), jnp.int32), zeros, zeros)

  def update(gradient, state, params=None):
    chex.assert_trees_all_equal_shapes(gradient, state.m)
    rounds = state.rounds + 1
    m = jax.tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, state.m, gradient)
    v = jax.tree.map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, state.v, gradient)
    step = factor * jnp.sqrt(1.0 - beta2 ** rounds.astype(jnp.float32))
    updates = jax.tree.map(lambda m, v: -step * m / jnp.sqrt(v + eps), m, v)
    return updates, AdaptiveState(rounds, m, v)

  return optax.GradientTransformation(init, update)
