"""Gradients from losses: formulas and memory.

Local steps that have them in the place of gradients are tested where they are
FedZO's (tests/algorithms/test_fedzo.py).
"""

import functools
import math

import jax
from jax.extend import core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.client import zeroth_order
from fedjax_alg.data import layout
from fedjax_alg.errors import with_names
from tests import problems
from tests.reference import analytic

pytestmark = pytest.mark.program

SIZE = 6
KEY = jax.random.key(11)
RNG = np.random.default_rng(0)
SLOPE = RNG.normal(size=SIZE).astype(np.float32)
CURVE = RNG.normal(size=(SIZE, SIZE)).astype(np.float32)
CURVE = CURVE @ CURVE.T / SIZE
#: Two leaves, so that "all parameters together" is tested.
START = {"a": jnp.array([[0.3, -0.2], [0.5, 0.1]]), "b": jnp.array([1.0, -0.4])}

draw = problems.quick_jit(zeroth_order.draw_directions, static_argnums=(2, 3))
estimate = problems.quick_jit(
  zeroth_order.estimate_gradient,
  static_argnames=("loss", "directions", "smoothing", "kind", "scheme"),
)


def flat(params):
  return jnp.concatenate([params["a"].reshape(-1), params["b"]])


def linear(params):
  return 0.7 + jnp.dot(flat(params), jnp.asarray(SLOPE))


def quadratic(params):
  w = flat(params)
  return linear(params) + 0.5 * jnp.dot(w, jnp.dot(jnp.asarray(CURVE), w))


def test_directions_of_the_sphere_and_normal_ones():
  numbers = jnp.arange(3000, dtype=jnp.int32)
  unit = np.asarray(draw(KEY, numbers, SIZE, "sphere"))
  np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1.0, rtol=1e-5)
  normal = np.asarray(draw(KEY, numbers, SIZE, "gaussian"))
  for vectors, second in ((unit, 1 / SIZE), (normal, 1.0)):
    assert np.abs(vectors.mean(0)).max() < 4.5 * math.sqrt(second / 3000)
    moments = vectors.T @ vectors / 3000
    assert np.abs(moments - second * np.eye(SIZE)).max() < 0.12 * second


def test_a_direction_depends_on_its_own_number_alone():
  together = draw(KEY, jnp.arange(7, dtype=jnp.int32), SIZE, "sphere")
  for k in range(7):
    single = draw(KEY, jnp.array([k], jnp.int32), SIZE, "sphere")
    problems.assert_close(single[0], together[k], rtol=1e-6)
  assert len(np.unique(np.asarray(together))) == together.size


@pytest.mark.parametrize(
  "directions, kind, scheme",
  [
    (1, "sphere", "central"),
    (20, "sphere", "forward"),
    (23, "sphere", "forward"),
    (3, "gaussian", "forward"),
    (20, "gaussian", "central"),
  ],
)
def test_an_estimate_is_the_formula_of_its_draws(directions, kind, scheme):
  smoothing = 0.2
  vectors = np.asarray(
    draw(KEY, jnp.arange(directions, dtype=jnp.int32), SIZE, kind), np.float64
  )
  loss, gradient = estimate(
    quadratic,
    START,
    KEY,
    directions=directions,
    smoothing=smoothing,
    kind=kind,
    scheme=scheme,
  )
  w = np.asarray(flat(START), np.float64)

  def f(w):
    return 0.7 + SLOPE @ w + 0.5 * w @ CURVE @ w

  moves = smoothing * vectors
  expected = smoothing * analytic.gaussian_estimator(
    analytic.differences(f, w, moves, scheme), vectors, smoothing
  )
  if kind == "sphere":
    expected = SIZE * expected
  np.testing.assert_allclose(flat(gradient), expected, rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(
    loss,
    f(w)
    if scheme == "forward"
    else np.mean([(f(w + v) + f(w - v)) / 2 for v in moves]),
    rtol=1e-5,
  )


def equations(jaxpr):
  """Those of a jaxpr and of those inside it."""
  for eqn in jaxpr.eqns:
    yield eqn
    for sub in jex_core.jaxprs_in_params(eqn.params):
      yield from equations(sub)


def test_directions_are_never_held_all_at_once():
  size = 500
  w = jnp.zeros(size)
  for directions in (10, 1000, 997):
    jaxpr = jax.make_jaxpr(
      functools.partial(
        zeroth_order.estimate_gradient,
        lambda w: (w * w).sum(),
        directions=directions,
        smoothing=0.1,
      )
    )(w, KEY)
    largest = max(
      math.prod(v.aval.shape) for eqn in equations(jaxpr.jaxpr) for v in eqn.outvars
    )
    assert size <= largest <= zeroth_order.CHUNK * size


def test_chunks_are_whole():
  for directions in range(1, 200):
    chunk = zeroth_order.chunk_size(directions)
    assert directions % chunk == 0 and 1 <= chunk <= zeroth_order.CHUNK
  assert zeroth_order.chunk_size(100) == 10
  assert zeroth_order.chunk_size(27) == 9


def test_losses_are_of_exact_products(problem):
  """Shortened factors would drown the differences on an accelerator."""
  w = problems.some_params(problem.model)
  shard = layout.shard_of(problem.data, 4)
  estimates = zeroth_order.differentiate(directions=5, smoothing=0.1)
  highest = jax.lax.Precision.HIGHEST
  for fn, args in (
    (estimates.full, (shard,)),
    (estimates.batch, (shard.x[:5], shard.y[:5], jnp.ones(5, bool))),
  ):
    jaxpr = jax.make_jaxpr(lambda at, *args, fn=fn: fn(problem.model, at, *args))(
      (w, KEY), *args
    )
    precisions = [
      eqn.params["precision"]
      for eqn in equations(jaxpr.jaxpr)
      if eqn.primitive.name == "dot_general"
    ]
    assert len(precisions) >= 3  # at w, along the directions, their sum
    assert set(precisions) == {(highest, highest)}


@pytest.mark.parametrize(
  "kind, smoothing, size, least",
  [
    ("sphere", 1e-3, 109184, None),
    ("sphere", 1e-3, 200000, "1.1e-03"),
    ("sphere", 1e-6, 7850, "2.1e-04"),
    ("gaussian", 1e-4, 10**7, None),
    ("gaussian", 1e-6, 10, "2.4e-06"),
  ],
)
def test_a_smoothing_that_float32_cannot_see(kind, smoothing, size, least):
  message = with_names(zeroth_order.caution_resolution(kind, smoothing, size))
  if least is None:
    assert not message
    return
  assert message.startswith(f"smoothing={smoothing:g}: ")
  assert message.endswith(f"raise smoothing to {least} or more")
  assert "\n" not in message
  assert not zeroth_order.caution_resolution(kind, 1.05 * float(least), size)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
  "base, vectors",
  [(jnp.zeros(1), jnp.ones((2, SIZE))), (jnp.zeros(()), jnp.ones((2, 1)))],
)
def test_directions_that_would_broadcast_are_refused(base, vectors):
  with pytest.raises(AssertionError, match="assert_shape"):
    zeroth_order.differences(
      linear, START, base, vectors, smoothing=0.1, scheme="forward"
    )
