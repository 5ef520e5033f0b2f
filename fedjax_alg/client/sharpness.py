"""Gradients away from the client's model, where the loss is larger (SAM)."""

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Params
from fedjax_alg.client.minibatches import Gradient
from fedjax_alg.client.sgd import Measure, at_params
from fedjax_alg.hparams import is_zero
from fedjax_alg.typing import Numeric

#: Keeps the direction of a vector of zeros finite.
_TINY = 1e-12


def move(params: Params, direction: Params, rho: Numeric) -> Params:
  """Moves parameters by a step of length ``rho`` along a direction.

  Along zeros they stay where they are.
  """
  squares = jax.tree.leaves(jax.tree.map(lambda leaf: (leaf * leaf).sum(), direction))
  norm = trees.root(sum(squares, jnp.zeros(())))
  return trees.add_scaled(params, rho / (norm + _TINY), direction)


def along_gradient(rho: Numeric) -> Measure:
  """Measures gradients a step of length ``rho`` up the gradient (FedSAM).

  The loss is that at the client's model. With ``rho`` 0 it is ``at_params``.
  """
  if is_zero(rho):
    return at_params

  def measure(gradient: Gradient, params: Params) -> tuple[Array, Params]:
    ((loss, ascent),) = gradient(params)
    ((_, result),) = gradient(move(params, ascent, rho))
    return loss, result

  return measure


def along(direction: Params, rho: Numeric) -> Measure:
  """Measures gradients a step of length ``rho`` along a fixed direction."""
  if is_zero(rho):
    return at_params

  def measure(gradient: Gradient, params: Params) -> tuple[Array, Params]:
    (result,) = gradient(move(params, direction, rho))
    return result

  return measure
