"""Passes over one client against autodiff on its rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import models
from fedjax_alg.base import Shard
from fedjax_alg.client import objective
from fedjax_alg.data import layout
from tests import problems
from tests.algorithms import bridge

RNG = np.random.default_rng(3)
N, D, L = 300, 5, 3
X = RNG.normal(size=(N, D)).astype(np.float32) * (RNG.random((N, D)) < 0.7)
Y = RNG.integers(L, size=N).astype(np.int32)
DATA = layout.client_data(X, Y, np.arange(N), np.array([0]), np.array([N]))
MODELS = {
  "softmax": models.Softmax().build((D,), L, l2=0.3),
  "mlp": models.MLP((4,)).build((D,), L),
  "sum": models.Softmax().build((D,), L, l2=0.3)._replace(l2_of_sum=True),
}
#: offset, size: within a block, full blocks, the end, nothing.
PLACES = [(0, 1), (17, 63), (17, 64), (100, 65), (30, 130), (235, 65), (9, 0)]


def shard_at(offset, size):
  return Shard(DATA.x, DATA.y, jnp.int32(offset), jnp.int32(size))


@functools.cache
def plain(name):
  """(params, which of all rows) -> the definition, and its gradient.

  Mean loss over the rows, plus (l2/2) ||w||^2, or that divided by their number.
  """
  model = MODELS[name]

  def definition(params, mask):
    squares = sum((leaf**2).sum() for leaf in jax.tree.leaves(params))
    losses = jnp.where(mask, model.loss(model.apply(params, X), Y), 0.0)
    count = jnp.maximum(mask.astype(jnp.float32).sum(), 1.0)
    penalty = 0.5 * model.l2 * squares
    return (losses.sum() + penalty * (1 if model.l2_of_sum else count)) / count

  return jax.jit(jax.value_and_grad(definition))


def rows_of(offset, size):
  return (offset <= np.arange(N)) & (np.arange(N) < offset + size)


@functools.cache
def passes(name):
  model = MODELS[name]
  return jax.jit(
    lambda params, shard: (
      *objective.full_value_and_grad(model, params, shard),
      objective.full_loss(model, params, shard),
    )
  )


@pytest.mark.parametrize("offset, size", PLACES)
@pytest.mark.parametrize("name", list(MODELS))
def test_a_full_pass_is_autodiff_on_the_rows(name, offset, size):
  params = problems.some_params(MODELS[name])
  loss, grad, only_loss = passes(name)(params, shard_at(offset, size))
  expected, expected_grad = plain(name)(params, rows_of(offset, size))
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  np.testing.assert_allclose(only_loss, expected, rtol=1e-5)
  problems.assert_close(grad, expected_grad)


def test_an_empty_batch_gives_the_regulariser():
  model = MODELS["softmax"]
  params = problems.some_params(model)
  loss, grad = jax.jit(functools.partial(objective.batch_value_and_grad, model))(
    params, X[:4], Y[:4], np.zeros(4, bool)
  )
  problems.assert_close(grad, jax.tree.map(lambda w: 0.3 * w, params))
  np.testing.assert_allclose(
    loss, plain("softmax")(params, rows_of(0, 0))[0], rtol=1e-6
  )


def test_preferred_is_the_model_of_least_loss_and_the_first_of_equals():
  model = MODELS["softmax"]
  worst, best = sorted(
    (problems.some_params(model, seed, 1.0) for seed in range(2)),
    key=lambda params: -float(plain("softmax")(params, rows_of(30, 130))[0]),
  )
  preferred = jax.jit(functools.partial(objective.preferred_model, model))
  for order, expected in (((worst, best, best), 1), ((best, worst, best), 0)):
    stack = jax.tree.map(lambda *leaves: np.stack(leaves), *order)
    actual = preferred(stack, shard_at(30, 130))
    assert (int(actual), actual.dtype) == (expected, jnp.int32)


feature_counts = jax.jit(objective.feature_counts)
label_counts = jax.jit(objective.label_counts, static_argnums=1)


@pytest.mark.parametrize("offset, size", PLACES)
def test_counts_of_features_and_labels(offset, size):
  rows, shard = slice(offset, offset + size), shard_at(offset, size)
  for counts, expected in (
    (feature_counts(shard), (X[rows] != 0).sum(0)),
    (label_counts(shard, L), np.bincount(Y[rows], minlength=L)),
  ):
    assert counts.dtype == jnp.float32
    np.testing.assert_array_equal(counts, expected)


def test_features_of_several_arrays_are_counted_one_after_the_other():
  shard = Shard(
    {"a": DATA.x[:, :2], "b": DATA.x[:, 2:]}, DATA.y, *map(jnp.int32, (17, 63))
  )
  counts = feature_counts(shard)
  np.testing.assert_array_equal(counts, (X[rows_of(17, 63)] != 0).sum(0))


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("shape", [(), (1,), (4, 1)])
def test_a_loss_has_one_number_for_each_row(shape):
  with pytest.raises(AssertionError, match="assert_equal_shape"):
    objective.masked_sum(jnp.ones(shape), jnp.ones(4, bool))


@pytest.mark.program
@pytest.mark.parametrize(
  "name, settings", [("clsfsvrg", {}), ("fedzo", dict(batch_size=0))]
)
def test_l2_of_the_sum_is_that_of_the_mean_divided_by_the_size(name, settings):
  """Where all clients, and the server, have the same number of examples."""
  problem = problems.of_sizes((8,) * 5, 8)
  of_sum, of_mean = (
    bridge.rounds(
      problem._replace(model=problem.model._replace(**l2)),
      name,
      [[0, 1, 2, 4], [0, 3]],
      local_steps=3,
      **settings,
    )[1][-1].state.models
    for l2 in (dict(l2=0.25, l2_of_sum=True), dict(l2=0.25 / 8))
  )
  problems.assert_close(of_sum, of_mean, rtol=1e-5, atol=1e-7)


def test_where_l2_of_the_sum_is_not_known():
  """The server of BAFFLE adds the term, and knows no client's size."""
  with pytest.raises(ValueError, match="^l2_of=sum: .*baffle"):
    fa.run(
      "baffle",
      fa.federate("digits", partition="iid", num_clients=4),
      rounds=1,
      participation=1.0,
      l2=0.1,
      l2_of="sum",
    )
