"""The oracle's estimates along the library's own directions."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from fedjax_alg.client import zeroth_order
from tests import problems
from tests.algorithms import bridge
from tests.reference import analytic
from tests.reference import diversified as oracle


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _draw(key, number, size, kind):
  return zeroth_order.draw_directions(
    key, jnp.arange(number, dtype=jnp.int32), size, kind
  )


def moves(problem, key, number, kind):
  """The directions of one estimate, models of the oracle."""
  vector, unravel = jax.flatten_util.ravel_pytree(problems.some_params(problem.model))
  return np.array(
    [bridge.to_oracle(unravel(v)) for v in _draw(key, number, vector.size, kind)]
  )


def changes(w, x, y, moves_, smoothing, scheme="forward"):
  """dF_k of one mini-batch [K], the loss without L2."""
  return analytic.differences(
    lambda v: oracle.loss(v, x, y, 0.0), w, smoothing * moves_, scheme
  )


def on_sphere(w, x, y, moves_, smoothing):
  """FedZO's estimate of a mini-batch's gradient, with the term of L2."""
  return problems.L2 * w + analytic.sphere_estimator(
    lambda v: oracle.loss(v, x, y, 0.0), w, moves_, smoothing
  )


def check_flops(problem, aux, h, ids, passes):
  """So many forward passes for each example that is read."""
  read = np.array([h.examples_read(jnp.int32(problems.SIZES[i])) for i in ids])
  np.testing.assert_allclose(
    aux.work.flops, passes * problem.model.flops * read, rtol=1e-6
  )
  return read
