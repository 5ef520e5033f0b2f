"""The oracle's estimates along the library's own directions."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from fedjax_alg.client import zeroth_order
from tests.algorithms import bridge
from tests.reference import analytic
from tests.reference import diversified as oracle


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _draw(key, number, size, kind):
  return zeroth_order.draw(
      key, jnp.arange(number, dtype=jnp.int32), size, kind)


def moves(params, key, number, kind):
  """The directions of one estimate, vectors of the oracle [K, P]."""
  vector, unravel = jax.flatten_util.ravel_pytree(params)
  return np.array([oracle.to_vector(bridge.to_oracle(unravel(v)))
                   for v in _draw(key, number, vector.size, kind)])


def changes(w, x, y, moves_, smoothing, scheme="forward"):
  """dF_k of one mini-batch [K], the loss without L2."""
  return analytic.differences(
      analytic.batch_loss(w, x, y), oracle.to_vector(w), smoothing * moves_,
      scheme)


def estimate(w, x, y, moves_, smoothing, kind, scheme="forward", l2=0.0):
  """The estimate of a mini-batch's gradient, and l2 w; a model."""
  vector = oracle.to_vector(w)
  if kind == "sphere":
    found = analytic.sphere_estimator(
        analytic.batch_loss(w, x, y), vector, moves_, smoothing)
  else:
    found = analytic.gaussian_estimator(
        changes(w, x, y, moves_, smoothing, scheme), smoothing * moves_,
        smoothing)
  return oracle.to_model(found + l2 * vector, w)
