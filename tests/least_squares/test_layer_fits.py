"""How layers are fitted: options, what is drawn, what is personal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.least_squares import layer_fits
from fedjax_alg.least_squares.layer_fits import LayerFits, Plan
from tests import problems

#: A convolution, a hidden dense layer, the output.
WORDS, SHAPE, CLASSES = ("conv3-5", "avg2", "dense6"), (8, 6), 4


def plan_of(personal_ridge=(), **options):
  layers = models.make_model("stack", SHAPE, CLASSES, layers=WORDS).layers
  return Plan(layers, LayerFits(**options), (1.0,) * 3,
              lambda ridge, clients: ridge, personal_ridge)


def test_a_number_for_each_layer():
  assert layer_fits.per_layer("ridge", "0.5", 2, True) == (0.5, 0.5)
  assert layer_fits.per_layer("ridge", "1e-2, 0", 2, True) == (0.01, 0.0)


@pytest.mark.parametrize("code, columns", [
    ("position", [5, CLASSES, CLASSES]), ("class", [CLASSES] * 3),
    ("random_filters", [5, 6, CLASSES])])
def test_right_hand_sides(code, columns):
  """A code that all positions share has a column for each class."""
  plan = plan_of(code=code)
  assert [plan.columns(l, CLASSES) for l in range(3)] == columns
  drawn = code == "random_filters"
  assert [plan.has_random_filters(l) for l in range(3)] == [drawn, drawn, False]
  fit = layer_fits.empty_fit(plan, 0, 2, CLASSES, jnp.float32)
  rows = plan.layers[0].fan_in + (not drawn)  # a column of ones
  assert fit.basis.shape == (2, rows, columns[0]) and fit.scale.shape == (2, 5)


def test_only_convolutions_are_high_passed():
  plan = plan_of(code_high_passed=3)
  assert [plan.is_high_passed(l) for l in range(3)] == [True, False, False]
  assert not plan_of(code_high_passed=3, code="class").is_high_passed(0)
  assert not plan_of().is_high_passed(0)


def test_what_stays_the_groups():
  pulls = (1.0, float("inf"), 2.0)
  plan = plan_of(pulls)
  assert [plan.keeps_group_layer(l) for l in range(3)] == [False, True, False]
  drawn = plan_of(pulls, code="random_filters")
  assert [drawn.keeps_group_layer(l) for l in range(3)] == [True, True, False]
  assert plan.num_rounds == 6 and plan_of().num_rounds == 3


def test_codes_are_the_same_everywhere_and_differ_by_layer():
  seed = jax.random.key_data(jax.random.key(3))
  plan = plan_of()
  counts = jnp.array([5.0, 1.0, 0.0, 2.0])
  first, again, other = (
      layer_fits.code_of(plan, seed, l, counts, jnp.float32)
      for l in (0, 0, 1))
  problems.assert_equal(first, again)
  assert first.shape == (CLASSES, plan.layers[0].positions, 5)
  assert other.shape == (CLASSES, 1, 6)
  centred = layer_fits.code_of(
      plan_of(code_centred=True), seed, 1, counts, jnp.float32)
  code = np.asarray(other[:, 0])
  np.testing.assert_allclose(
      centred[:, 0], code - np.asarray(counts) @ code / 8, atol=1e-6)
  last = layer_fits.code_of(plan, seed, 2, counts, jnp.float32)
  np.testing.assert_array_equal(last[:, 0], np.eye(CLASSES))


@pytest.mark.program
def test_weights_keep_their_dtype():
  plan = plan_of()
  params = models.make_model(
      "stack", SHAPE, CLASSES, layers=WORDS).init(jax.random.key(0))
  layer = plan.layers[1]
  kernel, bias = layer.get(params)
  put = layer_fits.put_weights(
      layer, params, np.ones(kernel.shape), np.full(bias.shape, 2.0))
  kernel, bias = layer.get(put)
  assert kernel.dtype == bias.dtype == jnp.float32
  assert (kernel == 1).all() and (bias == 2).all()
  problems.assert_equal(plan.layers[0].get(put), plan.layers[0].get(params))
