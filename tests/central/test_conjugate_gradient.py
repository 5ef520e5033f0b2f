"""Conjugate directions against the oracle, and on a quadratic."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_alg.central.conjugate_gradient import BETA_RULES, conjugate_gradient
from tests.reference import conjugate as oracle


def tree(vector):
  """A vector [5] as parameters."""
  vector = jnp.asarray(vector, jnp.float32)
  return {"a": vector[:4].reshape(2, 2), "b": vector[4:]}


def flat(params):
  return np.concatenate([np.ravel(params["a"]), params["b"]])


@functools.cache
def compile_rule(rule):
  transform = conjugate_gradient(rule)
  return transform.init, jax.jit(transform.update)


@pytest.mark.parametrize("rule", BETA_RULES)
def test_directions_are_the_oracles(rule):
  """A chain of gradients, some of which make the last direction climb."""
  rng = np.random.default_rng(2)
  init, update = compile_rule(rule)
  state = init(tree(np.zeros(5)))
  g_prev = d_prev = None
  restarts = []
  for number in range(16):
    g = rng.normal(size=5).astype(np.float32)
    g *= np.float32(rng.choice([0.3, 1.0, 3.0]))
    direction, state = update(tree(g), state)
    g = g.astype(np.float64)
    expected = oracle.direction(rule, g, g_prev, d_prev)
    np.testing.assert_allclose(
      flat(direction), expected.d, rtol=0, atol=1e-5 * np.abs(expected.d).max()
    )
    np.testing.assert_allclose(
      state.beta, 0.0 if expected.restarted else expected.beta, rtol=1e-4
    )
    assert int(state.rounds) == number + 1
    np.testing.assert_array_equal(flat(state.direction), flat(direction))
    np.testing.assert_array_equal(flat(state.gradient), g)
    g_prev, d_prev = g, flat(direction).astype(np.float64)
    restarts.append(expected.restarted)
  assert any(restarts) and not all(restarts[1:])


@pytest.mark.parametrize("rule", BETA_RULES)
def test_a_zero_denominator_gives_no_beta(rule):
  """After a gradient of zero, whatever comes."""
  init, update = compile_rule(rule)
  for second in (0.0, 2.0):
    _, state = update(tree(np.zeros(5)), init(tree(np.zeros(5))))
    direction, state = update(tree(np.full(5, second)), state)
    assert state.beta == 0
    np.testing.assert_array_equal(flat(direction), np.full(5, -second))


@pytest.mark.parametrize("rule", BETA_RULES)
def test_exact_steps_end_a_quadratic_in_its_dimension(rule):
  """Without noise and local training (errata C-16) q steps are enough."""
  rng = np.random.default_rng(3)
  root = rng.normal(size=(5, 5))
  hessian, target = root @ root.T + 3 * np.eye(5), rng.normal(size=5)
  init, update = compile_rule(rule)
  w, state = np.zeros(5), init(tree(np.zeros(5)))
  errors = []
  for step in range(5):
    g = hessian @ (w - target)
    direction, state = update(tree(g), state)
    d = flat(direction).astype(np.float64)
    assert (state.beta > 0) == (step > 0)
    w = w - (g @ d) / (d @ hessian @ d) * d
    errors.append(np.abs(w - target).max())
  # The directions are float32.
  assert errors[-1] < 1e-5 and errors[-2] > 1e-3


def test_it_composes_with_optax_line_search():
  """optax's searches take an update that descends, as this one's."""
  transform = optax.chain(
    conjugate_gradient("pr+"),
    optax.scale_by_backtracking_linesearch(max_backtracking_steps=20),
  )
  scales = tree([1.0, 0.5, 4.0, 0.2, 2.0])

  def value(params):
    return sum(
      jax.tree.leaves(
        jax.tree.map(lambda h, w: 0.5 * (h * (w - 1.0) ** 2).sum(), scales, params)
      ),
      jnp.zeros(()),
    )

  @jax.jit
  def step(params, state):
    # optax mixes weak types and its own dtypes.
    with jax.numpy_dtype_promotion("standard"):
      loss, grad = jax.value_and_grad(value)(params)
      updates, state = transform.update(
        grad, state, params, value=loss, grad=grad, value_fn=value
      )
      return optax.apply_updates(params, updates), state, loss

  params = tree(np.zeros(5))
  state, values = transform.init(params), []
  for _ in range(21):
    params, state, loss = step(params, state)
    values.append(float(loss))
  assert (np.diff(values) <= 0).all()
  assert values[-1] < 1e-2 * values[0]
