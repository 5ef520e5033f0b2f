"""Back-tracking against the oracle; what it never does; f_v."""

import functools
from typing import NamedTuple

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.central.line_search import TESTS, WIDTH, backtracking
from fedjax_alg.central.validation import validation_loss
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge
from tests.reference import conjugate as oracle
from tests.reference import diversified


@pytest.fixture(scope="module", autouse=True)
def fixture_quick_compilation():
  """Many small programs, each run once."""
  with problems.quick_compilation():
    yield


CURVATURE = np.array([1.0, 0.5, 6.0, 0.2, 2.0], np.float32)


class Value(NamedTuple):
  """slope sum(w) + curved/2 sum(c (w-1)^2); ``beyond`` past ``limit``."""

  curved: float = 1.0
  slope: float = 0.0
  #: of the largest entry of |w|
  limit: float = np.inf
  beyond: float = np.nan

  def __call__(self, w, np=np):  # pylint: disable=redefined-outer-name
    value = 0.5 * self.curved * np.sum(
      CURVATURE * (w - 1.0) ** 2
    ) + self.slope * np.sum(w)
    return np.where(np.max(np.abs(w)) > self.limit, self.beyond, value)


QUADRATIC = Value()


def with_wall(limit, beyond):
  return Value(limit=limit, beyond=beyond)


@functools.partial(jax.jit, static_argnames=("test", "max_tries"))
def search(value, w, d, g, gamma=0.8, initial_step=1.0, **settings):
  """The library's (update, state); numbers are arguments of the program."""
  transform = backtracking(gamma, initial_step=initial_step, **settings)
  w, d, g = ({"w": vector} for vector in (w, d, g))
  return transform.update(
    d, transform.init(w), w, grad=g, value_fn=lambda p: value(p["w"], jnp)
  )


def compare(value, w, d, g, **settings):
  """Runs both searches; returns the oracle's."""
  w, d, g = (np.asarray(a, np.float32) for a in (w, d, g))
  settings = (
    dict(gamma=0.8, initial_step=1.0, max_tries=40, test="half_gradient") | settings
  )
  numbers = {name: np.float32(settings[name]) for name in ("gamma", "initial_step")}
  update, state = search(Value(*map(np.float32, value)), w, d, g, **settings | numbers)
  wide = [a.astype(np.float64) for a in (w, d, g)]
  expected = oracle.line_search(
    lambda v: float(value(v)),
    *wide,
    start=settings["initial_step"],
    gamma=settings["gamma"],
    test=settings["test"],
    max_tries=settings["max_tries"],
  )
  np.testing.assert_allclose(state.step, expected.eta, rtol=1e-5)
  assert int(state.tries) == expected.tries
  np.testing.assert_allclose(state.value, expected.before, rtol=1e-5)
  np.testing.assert_allclose(state.new_value, expected.after, rtol=1e-4)
  np.testing.assert_allclose(update["w"], expected.eta * wide[1], rtol=1e-5, atol=0)
  return expected


W = np.array([0.5, -1.0, 2.0, 0.1, 3.0])
G = CURVATURE * (W - 1.0)
#: Neither a multiple of -g nor far from it.
D = -G * np.array([1.0, 0.7, 1.3, 2.0, 0.9])


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("gamma", [0.5, 0.83])
@pytest.mark.parametrize("initial_step", [0.07, 1.0, 30.0])
def test_searches_are_the_oracles(test, gamma, initial_step):
  # Later float32 sees no decrease, which the printed test takes.
  max_tries = 12 if test == "printed" else 40
  compare(
    QUADRATIC,
    W,
    D,
    G,
    test=test,
    gamma=gamma,
    initial_step=initial_step,
    max_tries=max_tries,
  )


def test_the_cases_above_differ():
  """Some searches take the first step, some go past the first block."""
  tries = {
    test: compare(QUADRATIC, W, D, G, test=test, gamma=0.83, initial_step=30.0).tries
    for test in TESTS
  }
  assert tries["printed"] == 1
  assert WIDTH < tries["decrease"] < tries["half_gradient"]


@pytest.mark.parametrize("test", TESTS)
def test_where_no_step_passes_the_model_stays(test):
  """Uphill; for the printed test a slope so steep that every step is good."""
  value, d = QUADRATIC, G
  if test == "printed":
    value, d = Value(curved=0.0, slope=100.0), -np.ones(5)
  expected = compare(value, W, d, G, test=test, max_tries=6)
  assert expected.eta == 0 and expected.tries == 6


@pytest.mark.parametrize("first, tries", [(1.9997, 1), (1.9999, 2)])
def test_armijo_asks_for_a_little_more_than_a_decrease(first, tries):
  """On (1 - eta)^2 / 2 it takes eta up to 2 - 2e-4."""
  w = np.array([2.0, 1, 1, 1, 1])
  result = compare(QUADRATIC, w, 1 - w, w - 1, test="armijo", initial_step=first)
  assert result.tries == tries


@pytest.mark.parametrize("max_tries", [1, 2, 6, 7, 9])
def test_no_more_than_max_tries(max_tries):
  """Step 7 passes; a block of WIDTH steps may begin and not be used up."""
  assert WIDTH == 4, "the numbers here are made for it"
  result = compare(
    QUADRATIC,
    W,
    D,
    G,
    gamma=0.5,
    test="decrease",
    initial_step=20.0,
    max_tries=max_tries,
  )
  assert (result.eta > 0) == (max_tries >= 7)
  assert result.tries == min(max_tries, 7)


@pytest.mark.parametrize("beyond", [np.nan, np.inf])
@pytest.mark.parametrize("test", [t for t in TESTS if t != "printed"])
def test_a_value_that_is_not_finite_is_not_taken(beyond, test):
  result = compare(
    with_wall(4.0, beyond), W, D, G, test=test, gamma=0.7, initial_step=10.0
  )
  assert result.eta > 0 and np.isfinite(result.after)
  free = compare(QUADRATIC, W, D, G, test=test, gamma=0.7, initial_step=10.0)
  assert result.tries >= free.tries


def test_nan_passes_no_test_and_infinity_only_the_printed_one():
  for test in TESTS:
    result = compare(with_wall(0.0, np.nan), W, D, G, test=test, max_tries=5)
    assert result.eta == 0
  assert compare(with_wall(3.5, np.inf), W, D, G, test="printed").eta == 1
  assert compare(with_wall(3.5, np.nan), W, D, G, test="printed").eta < 1


def test_a_direction_with_an_infinity_moves_nothing():
  update, state = search(
    Value(*map(np.float32, QUADRATIC)),
    np.float32(W),
    np.float32([np.inf, 0, 0, 0, 0]),
    np.float32(G),
    max_tries=5,
  )
  assert state.step == 0 and int(state.tries) == 5
  np.testing.assert_array_equal(update["w"], np.zeros(5))


def test_searches_of_several_models_do_not_mix():
  """Vectorised, as over K models: each ends where it ends alone."""
  transform = backtracking(0.5, "decrease", 20.0)

  @jax.jit
  @jax.vmap
  def update(w, d, g):
    return transform.update(
      d, transform.init(w), w, grad=g, value_fn=lambda p: QUADRATIC(p, jnp)
    )

  factors = [1.0, 0.01, -1.0]
  w = np.float32([W] * 3)
  g = np.float32([G] * 3)
  d = np.float32([factor * D for factor in factors])
  _, states = update(w, d, g)
  for k, factor in enumerate(factors):
    single = compare(
      QUADRATIC, W, factor * D, G, gamma=0.5, test="decrease", initial_step=20.0
    )
    assert int(states.tries[k]) == single.tries
    np.testing.assert_allclose(states.step[k], single.eta, rtol=1e-5)
  assert len(set(np.asarray(states.tries).tolist())) == 3


@functools.cache
def one_search(test):
  """(w, d, g, curvature) -> the search's state, compiled once."""
  transform = backtracking(0.6, test, 3.0, 11)

  @jax.jit
  def update(w, d, curvature):
    def value(v):
      return (curvature * (v - 1.0) ** 2).sum() + jnp.abs(v[0])

    return transform.update(
      d, transform.init(w), w, grad=jax.grad(value)(w), value_fn=value
    )

  return update


_VECTOR = st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3)


@pytest.mark.parametrize("test", ["decrease", "half_gradient", "armijo"])
@hypothesis.given(
  w=_VECTOR,
  scale=st.lists(st.floats(2**-6, 64, width=32), min_size=3, max_size=3),
  curvature=_VECTOR,
)
def test_the_value_never_increases(test, w, scale, curvature):
  """Along any direction that descends, on functions convex or not."""
  w, curvature = np.float32(w), np.float32(curvature)
  gradient = 2 * curvature * (w - 1) + np.sign(w) * np.float32([1, 0, 0])
  update, state = one_search(test)(w, -np.float32(scale) * gradient, curvature)
  assert state.new_value <= state.value
  assert 1 <= state.tries <= 11
  if state.step == 0:
    assert state.new_value == state.value and not np.any(update)


@pytest.mark.program
@pytest.mark.parametrize("mode", ["sequential", "lanes", "four devices"])
def test_validation_loss_is_the_mean_and_the_regulariser(problem, mesh, mode):
  """The shard begins where the clients end; 1 to 70 rows, 16 pieces."""
  map_clients = clients.ClientMap(
    "sequential" if mode == "four devices" else mode,
    mesh=mesh if mode == "four devices" else None,
  )
  validation = bridge.everyone(problem.data).validation
  models = [problems.some_params(problem.model, seed) for seed in range(3)]
  stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *models)

  @jax.jit
  def losses(shard, stacked):
    return jax.vmap(validation_loss(problem.model, shard, map_clients))(stacked)

  x, y = problem.validation
  for size in (len(y), 5, 1):
    actual = losses(validation._replace(size=jnp.int32(size)), stacked)
    expected = [
      diversified.loss(bridge.to_oracle(w), x[:size], y[:size], problems.L2)
      for w in models
    ]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
