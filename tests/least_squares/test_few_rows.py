"""Personal dense layers by rows: the sizes, and the layer by sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.base import Shard
from fedjax_alg.data import layout
from fedjax_alg.least_squares import codes, few_rows, moments, solve
from tests import problems

CLASSES, INPUTS = 3, 24
MODEL = models.Stack(("dense5",)).build((INPUTS,), CLASSES)
RNG = np.random.default_rng(2)
X = RNG.normal(size=(40 + layout.PADDING_ROWS, INPUTS)).astype(np.float32)
Y = RNG.integers(CLASSES, size=len(X)).astype(np.int32)
PARAMS = jax.tree.map(
  lambda leaf: RNG.normal(size=leaf.shape).astype(np.float32),
  jax.jit(MODEL.init)(jax.random.key(0)),
)


def code_and_fit(l, bias):
  """A code of layer l, and a fit of the group."""
  layer = MODEL.layers[l]
  code = (
    codes.identity(CLASSES, jnp.float32)
    if l
    else codes.draw_code(jax.random.key(1), layer, CLASSES, "class", jnp.float32)
  )
  d = layer.fan_in + (bias == "ones")
  return code, solve.Fit(
    jnp.asarray(RNG.normal(size=(d, CLASSES)), jnp.float32),
    jnp.asarray(RNG.uniform(1, 2, layer.width), jnp.float32),
  )


@pytest.mark.parametrize("bias", solve.BIASES)
@pytest.mark.parametrize("l", [0, 1])
def test_the_layer_is_the_one_of_the_sums(l, bias, monkeypatch):
  """Other clients' rows lie before and after."""
  monkeypatch.setattr(few_rows, "_FEWEST", 4)
  layer, ridge = MODEL.layers[l], 0.7
  code, meta = code_and_fit(l, bias)

  def by_sums(shard):
    sums = moments.add_shard(
      moments.zero_moments(layer, CLASSES, jnp.float32),
      layer,
      PARAMS,
      shard,
      jnp.float32,
    )
    equations = solve.problem(sums, layer, code, bias)
    basis = solve.solve(equations.gram, equations.cross, jnp.float32(ridge), meta.basis)
    return solve.fitted_weights(
      meta._replace(basis=basis), equations, sums, layer, bias
    )

  both = problems.quick_jit(
    lambda shard: (
      few_rows.fit_by_rows(layer, PARAMS, shard, code, meta, ridge, bias, 12),
      by_sums(shard),
    )
  )
  for number in (1, 8, 11):
    actual, expected = both(Shard(X, Y, jnp.int32(9), jnp.int32(number)))
    for mine, theirs in zip(actual, expected, strict=True):
      assert mine.dtype == jnp.float32
      np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("bias", ["none", "ones"])
def test_without_examples_it_is_the_layer_of_the_group(bias, monkeypatch):
  monkeypatch.setattr(few_rows, "_FEWEST", 4)
  code, meta = code_and_fit(0, bias)
  kernel, offset = problems.quick_jit(
    lambda: few_rows.fit_by_rows(
      MODEL.layers[0],
      PARAMS,
      Shard(X, Y, jnp.int32(9), jnp.int32(0)),
      code,
      meta,
      0.7,
      bias,
      8,
    )
  )()
  w = np.concatenate([kernel, offset[None]])[: len(meta.basis)]
  np.testing.assert_allclose(
    w, (meta.basis @ code[:, 0]) / meta.scale[None], rtol=1e-5, atol=1e-6
  )


def test_sizes_double_up_to_half_of_the_inputs():
  stack = models.Stack(("conv3-64", "dense3000", "dense40")).build((8, 8, 64), 10)
  conv, wide, next_, last = stack.layers
  assert few_rows.row_limits(wide, 5.0) == (256, 512, 1024, 2048)
  assert few_rows.row_limits(next_, 5.0) == (256, 512, 1024)
  for layer, ridge in ((conv, 5.0), (last, 5.0), (wide, 0.0), (wide, float("inf"))):
    assert few_rows.row_limits(layer, ridge) == ()
