"""(62)-(64) against the oracle, optax and a formula by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_alg import central
from tests.reference import diversified as oracle

RNG = np.random.default_rng(0)
GRADIENTS = [
  {
    "kernel": RNG.normal(size=(3, 2)).astype(np.float32),
    "bias": np.array([1e-5, 3.0], np.float32),
  }
  for _ in range(4)
]


def displacements(rule, steps=4, **settings):
  """What each of the steps adds, and the last state."""
  transformation = central.adaptive(rule=rule, **settings)
  update_ = jax.jit(transformation.update)
  state = jax.jit(transformation.init)(GRADIENTS[0])
  updates = []
  for gradient in GRADIENTS[:steps]:
    update, state = update_(gradient, state)
    updates.append(update)
  return updates, state


@pytest.mark.parametrize("rule", ["corrected", "printed"])
@pytest.mark.parametrize("beta1, eps", [(0.0, 1e-8), (0.9, 1e-3)])
def test_steps_are_the_oracles(rule, beta1, eps):
  updates, state = displacements(
    rule, learning_rate=0.05, beta1=beta1, beta2=0.99, eps=eps
  )
  assert state.rounds == 4 and state.rounds.dtype == jnp.int32
  for name in ("kernel", "bias"):
    moments = oracle.zero_moments(GRADIENTS[0][name])
    for r, (gradient, update) in enumerate(zip(GRADIENTS, updates), 1):
      move, moments = oracle.accelerate(
        0.0, gradient[name].astype(np.float64), moments, r, 0.05, beta1, 0.99, eps, rule
      )
      np.testing.assert_allclose(update[name], move, rtol=1e-5)
    np.testing.assert_allclose(state.m[name], moments[0], rtol=1e-5)
    np.testing.assert_allclose(state.v[name], moments[1], rtol=1e-5)


def test_without_first_moment_corrected_is_adam():
  """But for eps, which is inside the root here: negligible at 1e-14."""
  mine, _ = displacements("corrected", learning_rate=0.1, beta1=0.0, eps=1e-14)
  adam = optax.adam(0.1, b1=0.0, b2=0.999, eps=1e-9)
  state, adam_update = jax.jit(adam.init)(GRADIENTS[0]), jax.jit(adam.update)
  for gradient, update in zip(GRADIENTS, mine):
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
      theirs, state = adam_update(gradient, state)
    np.testing.assert_allclose(update["kernel"], theirs["kernel"], rtol=1e-4)
