"""The server optimizers of FedAdagrad, FedYogi and FedAdam.

Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from fedjax_alg.base import Params
from fedjax_alg.errors import check_one_of

RULES = ("adagrad", "yogi", "adam")


class FedOptState(NamedTuple):
  """The moments of the participants' mean update Delta_t."""

  m: Params  #: m_t, like the parameters
  v: Params  #: v_t, like the parameters


def fedopt(
  rule: str,
  learning_rate: float = 0.01,
  beta1: float = 0.9,
  beta2: float = 0.99,
  tau: float = 1e-3,
) -> optax.GradientTransformation:
  r"""The server step of Algorithm 2.

  With the gradient g = -Delta_t, m_{-1} = 0 and v_{-1} = tau^2:
    m_t = beta1 m_{t-1} + (1 - beta1) Delta_t
    adagrad: v_t = v_{t-1} + Delta_t^2
    yogi:    v_t = v_{t-1} - (1 - beta2) Delta_t^2 sign(v_{t-1} - Delta_t^2)
    adam:    v_t = beta2 v_{t-1} + (1 - beta2) Delta_t^2
    x_{t+1} = x_t + learning_rate m_t / (sqrt(v_t) + tau)

  The transformations of optax differ: its adam and yogi correct the bias of
  both moments, its yogi also starts m away from 0, and its adagrad adds tau
  inside the root.

  Args:
    rule: one of ``RULES``.
    learning_rate: eta.
    beta1: decay of the first moment, in [0, 1).
    beta2: decay of the second moment, in [0, 1); adagrad does not read it.
    tau: degree of adaptivity.

  Returns:
    An optax transformation; ``optax.apply_updates`` adds its updates to the
    parameters.

  Raises:
    ValueError: the rule is unknown.
  """
  check_one_of(f"FedOpt rule {rule!r}", rule, RULES)

  def init(params: Params) -> FedOptState:
    return FedOptState(
      jax.tree.map(jnp.zeros_like, params),
      jax.tree.map(lambda leaf: jnp.full_like(leaf, tau * tau), params),
    )

  def second_moment(v, g):
    square = g * g
    if rule == "adagrad":
      return v + square
    if rule == "yogi":
      return v - (1.0 - beta2) * square * jnp.sign(v - square)
    return beta2 * v + (1.0 - beta2) * square

  def update(gradient, state, params=None):
    chex.assert_trees_all_equal_shapes(gradient, state.m)
    m = jax.tree.map(lambda m, g: beta1 * m - (1.0 - beta1) * g, state.m, gradient)
    v = jax.tree.map(second_moment, state.v, gradient)
    updates = jax.tree.map(lambda m, v: learning_rate * m / (jnp.sqrt(v) + tau), m, v)
    return updates, FedOptState(m, v)

  return optax.GradientTransformation(init, update)
