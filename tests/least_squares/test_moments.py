"""What clients send: sums over their rows, however they are read."""

import functools

import jax
from jax.extend import core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.base import Shard
from fedjax_alg.data import layout
from fedjax_alg.least_squares import moments
from fedjax_alg.models.layers import Conv, Dense, MaxPool, StackModule
from tests import problems
from tests.reference import analytic as oracle

CLASSES, ROWS = 3, 150
STACK = (Conv(3, 4), MaxPool(2), Conv(2, 5), Dense(6))
VIEWS = models.layer_views(STACK, CLASSES, (6, 4))
FLOAT64 = jnp.dtype("float64")


@functools.cache
def examples():
  """x [ROWS, 6, 4], y and what every layer of ``STACK`` reads, NumPy."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(ROWS, 6, 4)) + 0.3
  y = rng.integers(CLASSES, size=ROWS).astype(np.int32)
  shapes = jax.eval_shape(StackModule(CLASSES, STACK).init, jax.random.key(0), x)
  params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), shapes)
  layers = [
    {"kind": "conv", "kernel": 3},
    {"kind": "max", "size": 2},
    {"kind": "conv", "kernel": 2},
    {"kind": "flatten"},
    {"kind": "dense"},
    {"kind": "dense"},
  ]
  weights, inputs = [], []
  for view in VIEWS:
    layer_input = oracle.forward(layers, weights, x[..., None])
    inputs.append(layer_input.reshape(ROWS, *view.input_shape))
    weights.append(view.get(params))
  return x, y, params, inputs


@functools.cache
def program(l, rows, product="float64"):
  """(x, y, params, moments, offset, size) -> moments, sums in float64."""

  def add(x, y, params, total, offset, size):
    return moments.add_shard(
      total, VIEWS[l], params, Shard(x, y, offset, size), jnp.dtype(product), rows
    )

  return problems.quick_jit(add)


def pad(x, y):
  """With rows behind, as ``layout`` leaves them."""
  return (
    np.concatenate([x, np.zeros((layout.PADDING_ROWS, *x.shape[1:]), x.dtype)]),
    np.concatenate([y, np.zeros(layout.PADDING_ROWS, y.dtype)]),
  )


def sum_moments(l, shards, rows=7, product="float64", x=None, dtype="float64"):
  """The moments of these (offset, size) one after the other, NumPy."""
  inputs, y, params, _ = examples()
  with jax.enable_x64(True):
    inputs, y = pad(inputs if x is None else x, y)
    inputs, params = jax.tree.map(
      lambda leaf: jnp.asarray(leaf, dtype), (inputs, params)
    )
    total = moments.zero_moments(VIEWS[l], CLASSES, FLOAT64)
    for offset, size in shards:
      total = program(l, rows, product)(
        inputs, y, params, total, jnp.int32(offset), jnp.int32(size)
      )
    assert {leaf.dtype for leaf in jax.tree.leaves(total)} == {FLOAT64}
    return jax.tree.map(np.asarray, total)


def oracle_moments(l, first=0, number=ROWS):
  """Row by row."""
  _, y, _, inputs = examples()
  kernel = {0: 3, 1: 2}.get(l)
  part = slice(first, first + number)
  statistics = oracle.statistics(inputs[l][part], y[part], CLASSES, kernel)
  return moments.Moments(*map(np.asarray, statistics))


def assert_moments(actual, expected, rtol=1e-11):
  for name, mine, theirs in zip(actual._fields[:4], actual, expected):
    scale = np.abs(theirs).max()
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=rtol * scale, err_msg=name)


@pytest.mark.parametrize("l, rows", [(0, None), (1, 64), (2, 7), (3, 1)])
def test_moments_are_the_sums_by_hand(l, rows):
  assert_moments(sum_moments(l, [(0, ROWS)], rows), oracle_moments(l))
  assert_moments(sum_moments(l, [(5, 40)], rows), oracle_moments(l, 5, 40))


def test_counts_are_whole_and_nobody_adds_nothing():
  before = sum_moments(0, [(0, 20)])
  problems.assert_equal(sum_moments(0, [(0, 20), (9, 0)]), before)
  np.testing.assert_array_equal(
    before.counts, np.bincount(examples()[1][:20], minlength=CLASSES)
  )


@pytest.mark.parametrize("l", [0, 2])
def test_rows_of_others_are_never_read(l):
  """NaN in them, in a block that this client does not fill."""
  x = np.full_like(examples()[0], np.nan)
  x[30:50] = examples()[0][30:50]
  problems.assert_equal(sum_moments(l, [(30, 20)], x=x), sum_moments(l, [(30, 20)]))


def test_products_in_single_precision_are_added_in_double():
  exact = oracle_moments(1)
  single = sum_moments(1, [(0, ROWS)], product="float32")
  assert_moments(single, exact, 1e-6)
  assert np.abs(single.gram - exact.gram).max() > 1e-10
  np.testing.assert_array_equal(single.counts, exact.counts)


def test_examples_in_single_precision_lose_nothing_more():
  """Products of float32 numbers are exact in float64."""
  x = examples()[0].astype(np.float32)
  rows = oracle.im2col(x[..., None], 3).reshape(-1, 9)
  actual = sum_moments(0, [(0, ROWS)], x=x, dtype="float32")
  np.testing.assert_allclose(actual.gram, rows.T @ rows, rtol=1e-13)
  np.testing.assert_allclose(actual.total, rows.sum(0), rtol=1e-13)


def largest_result(jaxpr):
  """Entries of the largest array that any equation makes."""
  largest = 0
  for equation in jaxpr.eqns:
    for variable in equation.outvars:
      largest = max(largest, variable.aval.size)
    for part in jex_core.jaxprs_in_params(equation.params):
      largest = max(largest, largest_result(part))
  return largest


@pytest.mark.parametrize("shape, l", [((6, 4), 0), ((32, 32), 1), ((32, 32), 2)])
def test_memory_does_not_grow_with_the_client(shape, l):
  """Nothing is larger than a block, the Gram matrix or the class sums."""
  stack = StackModule(CLASSES, STACK)
  view = models.layer_views(STACK, CLASSES, shape)[l]
  million = jax.ShapeDtypeStruct((10**6, *shape), jnp.float32)
  params = jax.eval_shape(stack.init, jax.random.key(0), million)
  with jax.enable_x64(True):
    number = jax.ShapeDtypeStruct((), jnp.int32)
    traced = jax.make_jaxpr(
      lambda shard, params: moments.add_shard(
        moments.zero_moments(view, CLASSES, FLOAT64), view, params, shard, FLOAT64
      )
    )(Shard(million, jax.ShapeDtypeStruct((10**6,), jnp.int32), number, number), params)
  block = moments.block_rows(view)
  front = 4 * (shape[0] + 2) * (shape[1] + 2)  # of the first convolution
  bound = max(
    block * view.positions * view.fan_in,
    block * front,
    view.fan_in**2,
    CLASSES * np.prod(view.input_shape),
  )
  largest = largest_result(traced.jaxpr)
  assert view.positions * view.fan_in <= largest <= bound
  assert bound < 10**6 * np.prod(shape) / 100


@pytest.mark.parametrize(
  "positions, fan_in, rows",
  [
    (1, 784, 128),
    (1024, 75, 54),
    (256, 576, 28),
    (1, 8192, 512),
    (1, 2**22, 1),
    (1, 2**24, 1),
    (64, 1728, 37),
  ],
)
def test_blocks_are_as_large_as_the_memory_allows(positions, fan_in, rows):
  """Entries of a block are at most 2^22, 32 MB in float64."""
  view = VIEWS[0]._replace(grid=(positions, 1), fan_in=fan_in)
  assert moments.block_rows(view) == rows
  assert moments.block_rows(view) <= layout.PADDING_ROWS


@pytest.mark.usefixtures("unchecked_shapes")
def test_sums_of_another_layer_are_refused():
  wrong_sums = moments.zero_moments(VIEWS[0], CLASSES, jnp.float32)
  with pytest.raises(AssertionError, match="assert_shape"):
    moments.add_shard(
      wrong_sums._replace(total=wrong_sums.total[:1]), VIEWS[0], {}, None, jnp.float32
    )
