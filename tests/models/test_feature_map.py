"""Fixed maps before a model against their definitions and scikit-learn."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import kernel_approximation, kernel_ridge, linear_model

import fedjax_alg as fa
from fedjax_alg import models
from fedjax_alg.errors import OptionError
from fedjax_alg.models import feature_map
from tests import shared_programs
from tests.each import each
from tests.reference import analytic_family as oracle

FOURIER = fa.FourierFeatures(50, seed=3)
rng = np.random.default_rng(0)
X = rng.normal(size=(40, 6)).astype(np.float32)


def draw(part, shape=(6,), dtype=np.float32):
  return part.draw(shape, dtype)


def test_fourier_features_are_those_of_scikit_learn():
  """Without it a factor or an angle may differ from what the papers' code uses."""
  sampler = kernel_approximation.RBFSampler(
    gamma=0.3, n_components=50, random_state=0
  ).fit(X)
  phi = feature_map.random_features(sampler.random_weights_, sampler.random_offset_)
  np.testing.assert_allclose(phi.apply(X), sampler.transform(X), atol=1e-6)


@pytest.mark.program
@pytest.mark.parametrize(
  "part, kernel",
  [
    (fa.FourierFeatures(gamma=0.3, seed=3), lambda: oracle.rbf_kernel(X, X, 0.3)),
    (fa.ReLUFeatures(seed=3), lambda: oracle.arc_cosine_kernel(X, X)),
  ],
)
def test_products_tend_to_the_kernel(part, kernel):
  """The error falls like 1 / sqrt(D): a wrong variance of Omega would keep it."""
  errors = []
  for width in (1_000, 64_000):
    z = np.asarray(draw(dataclasses.replace(part, num_features=width)).apply(X))
    assert z.shape == (40, width)
    errors.append(np.abs(z @ z.T - kernel()).mean() / np.abs(kernel()).mean())
  assert errors[1] < errors[0] / 5 < 0.05


@pytest.mark.parametrize("group_size, width", [(3, 4 * 8), (4, 3 * 16), (5, 64 + 4)])
def test_buckets_are_one_hot_patterns(group_size, width):
  phi = draw(fa.BucketFeatures((-0.5, 0.5), group_size=group_size, seed=3))
  z = np.asarray(phi.apply(X))
  order = np.random.default_rng(3).permutation(12)
  np.testing.assert_array_equal(z, oracle.buckets(X, (-0.5, 0.5), order, group_size))
  assert z.shape[1] == width == phi.width


def test_the_model_reads_the_features():
  """Its layers, gradients and passes are those of the model of phi(x)."""
  phi = draw(FOURIER, shape=(2, 3))
  inner = models.as_model("mlp:5", (50,), 4)
  model = feature_map.on_features(inner, phi)
  params = inner.init(jax.random.key(1))
  x = jnp.asarray(X.reshape(-1, 2, 3))
  expected = inner.apply(params, phi.apply(x))
  np.testing.assert_array_equal(model.apply(params, x), expected)
  for layer, other in zip(model.layers, inner.layers, strict=True):
    np.testing.assert_array_equal(
      layer.inputs(params, x), other.inputs(params, phi.apply(x))
    )
  assert model.flops == inner.flops + 2 * 6 * 50


@pytest.mark.program
def test_a_head_on_a_trained_body():
  """Closed form fits the last layer alone, on what the layers before it give."""
  fed = fa.federate("digits", num_clients=4, partition="iid")
  body = models.as_model("mlp:20", (8, 8), 10)
  params = body.init(jax.random.key(3))
  phi = feature_map.features_of_layer(body, params)
  model = feature_map.on_features(models.Softmax().build((20,), 10), phi)
  fit = shared_programs.outcome(
    "fed3r",
    fed,
    deploys=False,
    evaluate="global",
    model=model,
    ridge="0.5",
    bias="none",
    normalize=False,
  )
  x, y = (np.concatenate(part) for part in zip(*map(fed.client, range(4))))
  hidden = jax.tree.map(np.asarray, params["params"]["Dense_0"])
  z = np.maximum(x.reshape(len(x), -1) @ hidden["kernel"] + hidden["bias"], 0)
  expected = oracle.ridge(z.astype(float), oracle.one_hot(y, 10), 0.5)
  kernel = fit.global_params()["params"]["kernel"][0].T
  np.testing.assert_allclose(kernel, expected, rtol=0, atol=1e-5)


@pytest.mark.program
def test_a_layer_that_is_not_there():
  body = models.MLP().build((4,), 3)
  with pytest.raises(OptionError, match="layer=x: no layer .*it has Dense_0, Dense_1"):
    feature_map.features_of_layer(body, body.init(jax.random.key(0)), "x")


def test_no_features_are_the_examples():
  assert draw(fa.NoFeatureMap()) is None


@pytest.mark.parametrize(
  "shape, dtype", [({"a": (2,)}, {"a": np.float32}), ((7,), np.int32)]
)
def test_what_it_cannot_read(shape, dtype):
  with pytest.raises(OptionError, match="feature_map=relu: reads one array of real"):
    draw(fa.ReLUFeatures(), shape, dtype)


@functools.cache
def numbers():
  """Five clients with two real targets."""
  targets = (X[:, :2] ** 2 + 1).astype(np.float32)
  return fa.federate(fa.from_arrays(X, targets, np.arange(40) % 5, task="regression"))


def fitted(num_features):
  """(x, phi(x), targets, predictions) of the pooled training data."""
  fed, part = numbers(), fa.FourierFeatures(num_features, gamma=0.3, seed=2)
  x, y = (np.concatenate(part) for part in zip(*map(fed.client, range(5))))
  result = shared_programs.outcome(
    "fedacnnl",
    fed,
    deploys=False,
    evaluate="global",
    ridge="0.5",
    bias="none",
    feature_map=part,
  )
  z = np.asarray(draw(part).apply(x), float)
  kernel = np.asarray(result.global_params()["params"]["kernel"][0], float)
  return x, z, y.astype(float), z @ kernel.T


@pytest.mark.program
def test_closed_form_fits_the_features_and_tends_to_kernel_ridge():
  x, z, y, few = fitted(60)
  ridge = linear_model.Ridge(0.5, fit_intercept=False, solver="cholesky").fit(z, y)
  np.testing.assert_allclose(few, ridge.predict(z), rtol=0, atol=1e-6)
  limit = kernel_ridge.KernelRidge(alpha=0.5, kernel="rbf", gamma=0.3).fit(x, y)
  *_, many = fitted(1_000)
  errors = [np.abs(p - limit.predict(x)).mean() for p in (few, many)]
  assert errors[1] < errors[0] / 2.5


@pytest.mark.program
def test_another_method_goes_on_from_the_fit():
  """The fit is a start like any other: round 0 deploys it, and nothing is drawn."""
  fed = fa.federate("digits", num_clients=4, partition="iid")
  options = dict(feature_map="relu:80", evaluate="global")
  fit = shared_programs.outcome("fedacnnl", fed, deploys=False, ridge="1", **options)
  start = jax.tree.map(lambda leaf: leaf[0], fit.global_params())
  result = shared_programs.outcome(
    "fedavg",
    fed,
    deploys=False,
    rounds=2,
    init=start,
    client_lr=1e-30,
    cohort_size=4,
    **options,
  )
  jax.tree.map(
    np.testing.assert_array_equal, result.global_params(), fit.global_params()
  )


@each(
  "options, message",
  [
    (dict(feature_map="cosine"), "feature_map=cosine"),
    (dict(feature_map="fourier", model="cnn"), "model=cnn: needs images, .*a vector"),
    (dict(rbf_gamma=1.0), "rbf_gamma: .* now a field of feature_map"),
    (dict(feature_map="relu:gamma=1"), "feature_map=relu:gamma=1: 'gamma=1' is not of"),
    (dict(feature_map="fourier:0"), "feature_map=fourier:0: num_features=0"),
    (dict(feature_map="buckets:thresholds="), "feature_map=.*: thresholds is empty"),
    (dict(feature_map="none:seed=1"), "feature_map=none:seed=1"),
  ],
)
def test_refused_in_one_line(options, message):
  with pytest.raises(OptionError, match=message):
    fa.run("fedavg", fa.federate("digits", num_clients=4), rounds=1, **options)
