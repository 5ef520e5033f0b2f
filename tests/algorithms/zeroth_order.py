"""A NumPy loop of the estimate along the library's own directions."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp

from fedjax_alg.client import zeroth_order
from tests.algorithms import bridge
from tests.reference import diversified as oracle


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _draw(key, number, size, kind):
  return zeroth_order.draw(
      key, jnp.arange(number, dtype=jnp.int32), size, kind)


def moves(params, key, number, kind):
  """The directions of one estimate, each as a model of the oracle."""
  vector, unravel = jax.flatten_util.ravel_pytree(params)
  return [bridge.to_oracle(unravel(v))
          for v in _draw(key, number, vector.size, kind)]


def changes(w, x, y, moves_, smoothing, scheme="forward"):
  """dF_k of one mini-batch, the loss without L2."""
  result = []
  for v in moves_:
    ahead = oracle.loss(oracle.add(w, v, smoothing), x, y, 0.0)
    if scheme == "forward":
      result.append(ahead - oracle.loss(w, x, y, 0.0))
    else:
      behind = oracle.loss(oracle.add(w, v, -smoothing), x, y, 0.0)
      result.append((ahead - behind) / 2)
  return result


def estimate(w, x, y, moves_, smoothing, kind, scheme="forward", l2=0.0):
  """(c / (n s)) sum_k dF_k v_k + l2 w."""
  total = oracle.zeros_like(w)
  for change, v in zip(changes(w, x, y, moves_, smoothing, scheme), moves_):
    total = oracle.add(total, v, change)
  d = oracle.to_vector(w).size if kind == "sphere" else 1.0
  scaled = oracle.add(
      oracle.zeros_like(w), total, d / (len(moves_) * smoothing))
  return oracle.add(scaled, w, l2)
