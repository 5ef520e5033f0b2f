"""The server optimizers of Algorithm 2 (Reddi et al. 2021), step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.central.adaptivity import RULES, fedopt
from tests.reference import optimisers

RNG = np.random.default_rng(0)
#: Mean updates of four rounds; yogi's v grows and shrinks.
DELTAS = [
  size * RNG.normal(size=5).astype(np.float32) for size in (1.0, 0.1, 2.0, 0.01)
]


@pytest.mark.parametrize("rule", RULES)
def test_moves_are_those_of_algorithm_2(rule):
  transform = fedopt(rule, 0.3, 0.8, 0.95, 0.02)
  state = transform.init(jnp.zeros(5))
  expected = optimisers.fedopt(rule, DELTAS, 0.3, 0.8, 0.95, 0.02)
  for delta, move in zip(DELTAS, expected, strict=True):
    actual, state = jax.jit(transform.update)(-delta, state)
    np.testing.assert_allclose(actual, move, rtol=1e-5)


@pytest.mark.parametrize(
  "rule, second", [("adagrad", 4.0001), ("yogi", 0.0401), ("adam", 0.040099)]
)
def test_the_first_step_by_hand(rule, second):
  """Delta = 2, tau = 0.01: v_{-1} = 1e-4, m_0 = 0.2, no bias correction."""
  transform = fedopt(rule, 1.0, 0.9, 0.99, 0.01)
  move, state = transform.update(jnp.array([-2.0]), transform.init(jnp.zeros(1)))
  np.testing.assert_allclose(state.v, [second], rtol=1e-5)
  np.testing.assert_allclose(move, [0.2 / (second**0.5 + 0.01)], rtol=1e-5)
