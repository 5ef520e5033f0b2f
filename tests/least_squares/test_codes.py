"""Label codes."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import models
from fedjax_alg.least_squares import codes
from fedjax_alg.models.layers import Conv
from tests import problems
from tests.reference import analytic as oracle

KEY = jax.random.key(5)
CONV = models.layer_views((Conv(3, 7),), 3, (5, 4))[0]


def test_codes_are_of_the_key_in_every_dtype():
  def draw(dtype):
    return problems.quick_jit(
      lambda key: codes.draw_code(key, CONV, 3, "class", jnp.dtype(dtype))
    )

  single = draw("float32")
  mine, other_code = single(KEY), single(jax.random.key(6))
  with jax.enable_x64(True):
    double = draw("float64")(KEY)
  assert (mine.dtype, double.dtype) == (jnp.float32, jnp.float64)
  np.testing.assert_array_equal(double, np.asarray(mine, np.float64))
  assert (np.asarray(mine) != other_code).all()


def test_codes_are_standard_normal_and_all_different():
  layer = CONV._replace(width=400)
  code = np.asarray(codes.draw_code(KEY, layer, 3, "position", jnp.dtype("float32")))
  assert abs(code.mean()) < 0.03 and abs(code.std() - 1) < 0.03
  assert len(np.unique(code)) > 0.99 * code.size
  flat = code.reshape(60, 400)  # no class and position like another
  assert np.abs(np.corrcoef(flat) - np.eye(60)).max() < 0.3


def test_the_high_pass():
  """Against the oracle; symmetric, and nothing is left of a constant."""
  rng = np.random.default_rng(1)
  a, b = rng.normal(size=(2, 3, 5, 4, 2)).astype(np.float32)
  high_passed = problems.quick_jit(codes.high_passed)
  filtered = np.asarray(high_passed(a))
  np.testing.assert_allclose(filtered, oracle.high_pass(a), rtol=0, atol=1e-5)
  other_filtered = np.asarray(high_passed(b))
  np.testing.assert_allclose(
    (filtered * b).sum(), (a * other_filtered).sum(), rtol=1e-4
  )
  np.testing.assert_allclose(filtered.sum((1, 2)), np.zeros((3, 2)), atol=1e-4)
  constant = high_passed(np.full((3, 5, 4, 2), 2.5, np.float32))
  np.testing.assert_array_equal(constant, np.zeros((3, 5, 4, 2)))
