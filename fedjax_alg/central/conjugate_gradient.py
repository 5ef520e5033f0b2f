"""Conjugate directions of anchor gradients (conjugate, (24)-(25))."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Float
import optax

from fedjax_alg import trees
from fedjax_alg.base import Array, Params
from fedjax_alg.errors import check_one_of

BETA_RULES = ("fr", "pr+", "hs", "dy")


class ConjugateGradientState(NamedTuple):
  """State from which the next direction is computed."""

  rounds: Array  #: [] int32, number of directions so far, for inspection only
  gradient: Params  #: g(w^{r-1})
  direction: Params  #: d_{r-1}
  beta: Array  #: [] float32, beta_r of the last direction; 0 after a restart


def _beta(rule: str, g: Params, old: ConjugateGradientState) -> Float[Array, ""]:
  """beta_r, which is 0 where its denominator is 0."""
  square = trees.squared_norm(g)
  change = trees.subtract(g, old.gradient)
  if rule in ("fr", "pr+"):
    below = trees.squared_norm(old.gradient)
  else:
    below = trees.dot(old.direction, change)
  above = trees.dot(g, change) if rule in ("pr+", "hs") else square
  beta = jnp.where(below == 0, 0.0, above / jnp.where(below == 0, 1.0, below))
  return jnp.maximum(beta, 0.0) if rule == "pr+" else beta


def conjugate_gradient(beta: str = "fr") -> optax.GradientTransformation:
  r"""Turns gradients into conjugate descent directions.

  beta_r = g_r.g_r / g_{r-1}.g_{r-1}                     fr, (24)
           max(0, g_r.(g_r - g_{r-1}) / g_{r-1}.g_{r-1})  pr+
           g_r.(g_r - g_{r-1}) / d_{r-1}.(g_r - g_{r-1})  hs
           g_r.g_r / d_{r-1}.(g_r - g_{r-1})              dy
  d_r = -g_r + beta_r d_{r-1}                             (25)

  The first direction is -g. A direction that does not descend, g.d >= 0, is
  replaced by -g. The sign of the result is that of a step, so chain the
  transformation with ``optax.scale(eta)`` or a line search.

  Args:
    beta: one of ``BETA_RULES``: Fletcher-Reeves ("fr", the paper's rule),
      Polak-Ribiere plus ("pr+"), Hestenes-Stiefel ("hs") or Dai-Yuan ("dy").

  Raises:
    ValueError: the rule is unknown.

  Deviations: Algorithm 1 uses d_0 but never sets it; -g(w^0) is taken, as in
  the paper's text (errata C-10). With a new cohort in every round, beta is
  often above 1 and d can climb; the paper has no restart (errata C-13, C-18).
  """
  check_one_of(f"beta rule {beta!r}", beta, BETA_RULES)

  def init(params: Params) -> ConjugateGradientState:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return ConjugateGradientState(jnp.zeros((), jnp.int32), zeros, zeros, jnp.zeros(()))

  def update(gradient, state, params=None):
    chex.assert_trees_all_equal_shapes(gradient, state.gradient)
    # For the first direction this is 0, as the gradient before it is zero.
    factor = _beta(beta, gradient, state)
    steepest = trees.scale(-1.0, gradient)
    direction = trees.add_scaled(steepest, factor, state.direction)
    descends = trees.dot(gradient, direction) < 0
    direction = trees.where(descends, direction, steepest)
    return direction, ConjugateGradientState(
      state.rounds + 1, gradient, direction, jnp.where(descends, factor, 0.0)
    )

  return optax.GradientTransformation(init, update)
