"""How layers are fitted: options, what is drawn, what is personal."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import models
from fedjax_alg.least_squares import codes, layer_fits
from fedjax_alg.least_squares.layer_fits import FitPlan, LayerFits
from tests import problems

#: A convolution, a hidden dense layer, the output.
WORDS, SHAPE, CLASSES = ("conv3-5", "avg2", "dense6"), (8, 6), 4


def plan_of(**options):
  layers = models.Stack(WORDS).build(SHAPE, CLASSES).layers
  return FitPlan(
    layers, LayerFits(**options), (1.0,) * 3, lambda ridge, clients: ridge, ()
  )


def test_a_number_for_each_layer():
  assert layer_fits.per_layer("ridge", "0.5", 2, True) == (0.5, 0.5)
  assert layer_fits.per_layer("ridge", "1e-2, 0", 2, True) == (0.01, 0.0)


def test_only_convolutions_are_high_passed():
  plan = plan_of(code=codes.PositionCode(3))
  assert [plan.is_high_passed(l) for l in range(3)] == [True, False, False]
  assert not plan_of(code=codes.ClassCode()).is_high_passed(0)
  assert not plan_of().is_high_passed(0)


def test_codes_are_the_same_everywhere_and_differ_by_layer():
  seed = jax.random.key_data(jax.random.key(3))
  plan = plan_of()
  counts = jnp.array([5.0, 1.0, 0.0, 2.0])
  first, repeated, next_code = (
    layer_fits.code_of(plan, seed, l, counts, jnp.float32) for l in (0, 0, 1)
  )
  problems.assert_equal(first, repeated)
  assert first.shape == (CLASSES, plan.layers[0].positions, 5)
  assert next_code.shape == (CLASSES, 1, 6)
  plan_centred = plan_of(code=codes.PositionCode(centred=True))
  centred = layer_fits.code_of(plan_centred, seed, 1, counts, jnp.float32)
  code = np.asarray(next_code[:, 0])
  np.testing.assert_allclose(
    centred[:, 0], code - np.asarray(counts) @ code / 8, atol=1e-6
  )
  last = layer_fits.code_of(plan, seed, 2, counts, jnp.float32)
  np.testing.assert_array_equal(last[:, 0], np.eye(CLASSES))
