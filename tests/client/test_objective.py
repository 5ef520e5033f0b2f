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

RNG = np.random.default_rng(3)
N, D, L = 300, 5, 3
X = RNG.normal(size=(N, D)).astype(np.float32) * (RNG.random((N, D)) < 0.7)
Y = RNG.integers(L, size=N).astype(np.int32)
DATA = layout.client_data(X, Y, np.arange(N), np.array([0]), np.array([N]))
MODELS = {
    "softmax": models.make_model("softmax", (D,), L, l2=0.3),
    "mlp": models.make_model("mlp", (D,), L, hidden=(4,)),
    "sum": models.make_model("softmax", (D,), L, l2=0.3)._replace(
        l2_of_sum=True),
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

  def definition(params, chosen):
    squares = sum((leaf ** 2).sum() for leaf in jax.tree.leaves(params))
    losses = jnp.where(chosen, model.loss(model.apply(params, X), Y), 0.0)
    count = jnp.maximum(chosen.astype(jnp.float32).sum(), 1.0)
    penalty = 0.5 * model.l2 * squares
    return (losses.sum() + penalty * (1 if model.l2_of_sum else count)) / count

  return jax.jit(jax.value_and_grad(definition))


def rows_of(offset, size):
  return (offset <= np.arange(N)) & (np.arange(N) < offset + size)


@functools.cache
def passes(name):
  model = MODELS[name]
  return jax.jit(lambda params, shard: (
      *objective.full_value_and_grad(model, params, shard),
      objective.full_loss(model, params, shard)))


@pytest.mark.parametrize("offset, size", PLACES)
@pytest.mark.parametrize("name", list(MODELS))
def test_a_full_pass_is_autodiff_on_the_rows(name, offset, size):
  params = problems.some_params(MODELS[name])
  loss, grad, only_loss = passes(name)(params, shard_at(offset, size))
  expected, expected_grad = plain(name)(params, rows_of(offset, size))
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  np.testing.assert_allclose(only_loss, expected, rtol=1e-5)
  problems.assert_close(grad, expected_grad)


def test_batches_of_an_epoch_average_to_a_full_pass():
  model = MODELS["softmax"]
  params = problems.some_params(model)
  batch = jax.jit(functools.partial(objective.batch_value_and_grad, model))
  total, parts = jnp.zeros(()), []
  for start in range(0, 50, 20):  # the last has 10 of 20 rows
    mask = jnp.arange(20) + start < 50
    loss, grad = batch(params, X[start:start + 20], Y[start:start + 20], mask)
    weight = float(mask.sum()) / 50
    total += weight * loss
    parts.append(jax.tree.map(lambda g, weight=weight: weight * g, grad))
  loss, grad, _ = passes("softmax")(params, shard_at(0, 50))
  np.testing.assert_allclose(total, loss, rtol=1e-5)
  problems.assert_close(
      jax.tree.map(lambda *leaves: sum(leaves), *parts), grad)


def test_an_empty_batch_gives_the_regulariser():
  model = MODELS["softmax"]
  params = problems.some_params(model)
  loss, grad = jax.jit(functools.partial(
      objective.batch_value_and_grad, model))(
          params, X[:4], Y[:4], np.zeros(4, bool))
  problems.assert_close(grad, jax.tree.map(lambda w: 0.3 * w, params))
  np.testing.assert_allclose(
      loss, plain("softmax")(params, rows_of(0, 0))[0], rtol=1e-6)


def test_several_models_in_one_pass():
  model = MODELS["softmax"]
  stack = jax.tree.map(lambda *leaves: np.stack(leaves), *(
      problems.some_params(model, seed) for seed in range(3)))
  shard = shard_at(30, 130)
  losses, grads = jax.jit(jax.vmap(
      lambda params: objective.full_value_and_grad(model, params, shard)))(
          stack)
  for k in range(3):
    loss, grad, _ = passes("softmax")(
        jax.tree.map(lambda leaf: leaf[k], stack), shard)
    np.testing.assert_allclose(losses[k], loss, rtol=1e-6)
    problems.assert_close(
        jax.tree.map(lambda leaf: np.asarray(leaf)[k], grads),
        jax.tree.map(np.asarray, grad))


def test_preferred_is_the_model_of_least_loss_and_the_first_of_equals():
  model = MODELS["softmax"]
  worst, best = sorted(
      (problems.some_params(model, seed, 1.0) for seed in range(2)),
      key=lambda params: -float(plain("softmax")(
          params, rows_of(30, 130))[0]))
  preferred = jax.jit(functools.partial(objective.preferred_model, model))
  for order, expected in (((worst, best, best), 1), ((best, worst, best), 0)):
    stack = jax.tree.map(lambda *leaves: np.stack(leaves), *order)
    chosen = preferred(stack, shard_at(30, 130))
    assert (int(chosen), chosen.dtype) == (expected, jnp.int32)


feature_counts = jax.jit(objective.feature_counts)
label_counts = jax.jit(objective.label_counts, static_argnums=1)


@pytest.mark.parametrize("offset, size", PLACES)
def test_feature_counts(offset, size):
  counts = feature_counts(shard_at(offset, size))
  assert counts.dtype == jnp.float32
  np.testing.assert_array_equal(
      counts, (X[offset:offset + size] != 0).sum(0))


def test_feature_counts_of_images_are_by_pixel(image_problem):
  shard = layout.shard_of(image_problem.data, 3)
  x, _ = image_problem.clients[3]
  np.testing.assert_array_equal(
      objective.feature_counts(shard), (x != 0).reshape(70, 36).sum(0))


@pytest.mark.parametrize("offset, size", PLACES)
def test_label_counts(offset, size):
  counts = label_counts(shard_at(offset, size), L)
  assert counts.dtype == jnp.float32
  np.testing.assert_array_equal(
      counts, np.bincount(Y[offset:offset + size], minlength=L))


@pytest.mark.parametrize("shape", [(), (1,), (4, 1)])
def test_a_loss_has_one_number_for_each_row(shape):
  with pytest.raises(AssertionError, match="assert_equal_shape"):
    objective.masked_sum(jnp.ones(shape), jnp.ones(4, bool))


@pytest.mark.program
@pytest.mark.parametrize("name, more", [
    ("clsfsvrg", {}), ("fedzo", dict(batch_size=0))])
def test_l2_of_the_sum_is_that_of_the_mean_divided_by_the_size(name, more):
  """Where all clients have the same number of examples."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(80, D)).astype(np.float32)
  y = np.argmax(x[:, :L], axis=1)
  fed = fa.federate(
      fa.from_arrays(x[:64], y[:64], x_test=x[64:], y_test=y[64:],
                     client_ids=np.arange(64) // 8),
      partition="natural", validation_clients=1)
  size, = set(fed.data.train.size.tolist())
  of_sum, of_mean = (
      fa.run(name, fed, model="softmax", rounds=2, cohort_size=4, **settings,
             **more).client_params(0)
      for settings in (dict(l2=0.25, l2_of="sum"), dict(l2=0.25 / size)))
  problems.assert_close(of_sum, of_mean, rtol=1e-5, atol=1e-7)


def test_where_l2_of_the_sum_is_not_known():
  """The server of BAFFLE adds the term, and knows no client's size."""
  with pytest.raises(ValueError, match="^l2_of=sum: .*baffle"):
    fa.run("baffle", fa.federate("digits", partition="iid", num_clients=4),
           rounds=1, participation=1.0, l2=0.1, l2_of="sum")
