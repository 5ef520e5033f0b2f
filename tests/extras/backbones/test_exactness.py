"""What closed form promises holds on the features of a network.

One round of AFL is the ridge regression of all rows, however they are dealt, and a
client that is forgotten has never been there. Without the weights' package, the same
holds on random features of the same width.
"""

import functools
import importlib.util

import jax
import numpy as np
import pytest
from sklearn import datasets, linear_model

import fedjax_alg as fa
from fedjax_alg.data.features import Backbone
from fedjax_alg.extras.backbones import networks

#: All ridge of the clients together.
RIDGE = 3.0
REAL = pytest.param(
  "network",
  marks=[
    pytest.mark.slow,
    pytest.mark.skipif(
      importlib.util.find_spec(networks.PACKAGE) is None,
      reason="the weights are missing",
    ),
  ],
)
SOURCES = ["random", REAL]


@functools.cache
def rows(source):
  """Features [1200, 112] float32 and labels of the digits."""
  images, y = datasets.load_digits(return_X_y=True)
  images, y = images[:1200].reshape(-1, 8, 8).astype(np.float32) / 16, y[:1200]
  if source == "random":
    omega = np.random.default_rng(0).normal(size=(64, 112))
    return np.tanh(images.reshape(-1, 64) @ omega).astype(np.float32), y
  return Backbone(size=32, layer="block10").compute(images), y


def owners(clients, y):
  """Whose each row is: with 100 clients one or two classes, with 1,000 any."""
  if clients == 100:
    owner = np.empty(len(y), int)
    owner[np.argsort(y, kind="stable")] = np.arange(len(y)) * clients // len(y)
    return owner
  return np.random.default_rng(1).permutation(np.arange(len(y)) % clients)


@functools.cache
def fit(source, clients, **settings):
  """AFL of so many clients."""
  x, y = rows(source)
  owner = owners(clients, y)
  data = fa.from_arrays(
    x, y, owner, x_test=x[:9], y_test=y[:9], test_client_ids=owner[:9]
  )
  federation = fa.federate(data, partition="natural")
  assert federation.num_clients == clients
  return fa.run("afl", federation, evaluate=("global",), store_sums=True, **settings)


def kernel(result):
  return result.global_params()["params"]["kernel"][0]


def by_scikit_learn(x, y, alpha):
  """W [L, D] of ridge regression of all rows in one place."""
  ridge = linear_model.Ridge(alpha, fit_intercept=False, solver="cholesky")
  return ridge.fit(x.astype(float), np.eye(10)[y]).coef_


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
  "clients",
  [*(pytest.param(number, marks=pytest.mark.slow) for number in (1, 100)), 1000],
)
def test_any_clients_have_the_ridge_of_all_rows(source, clients):
  """With their ridges kept, and with the server's correction, which leaves none."""
  kept = fit(source, clients, client_ridge=RIDGE / clients, remove_ridge=False)
  corrected = fit(source, clients, client_ridge=1.0)
  for result, alpha in ((kept, RIDGE), (corrected, 1e-12)):
    x, y = rows(source)
    expected = by_scikit_learn(x, y, alpha)
    np.testing.assert_allclose(
      kernel(result), expected, rtol=0, atol=1e-6 * max(1, np.abs(expected).max())
    )


def solution(result):
  """W [D, L] of the sums that a result has stored, in float64."""
  (total,) = [
    jax.tree.map(
      lambda bits: np.ascontiguousarray(bits).view(np.float64)[..., 0], step.total
    )
    for step in jax.device_get(result._state().states.sums)
  ]
  return np.linalg.solve(
    total.gram[0] + RIDGE * np.eye(len(total.gram[0])), total.classes[0].T
  )


@pytest.mark.program
@pytest.mark.parametrize("source", SOURCES)
def test_a_forgotten_client_has_never_been_there(source):
  x, y = rows(source)
  leaving = [7, 42, 43]
  result = fa.forget(fit(source, 100, client_ridge=0.5, remove_ridge=False), leaving)
  stays = ~np.isin(owners(100, y), leaving)
  left = x[stays].astype(float)
  expected = np.linalg.solve(
    left.T @ left + RIDGE * np.eye(x.shape[1]), left.T @ np.eye(10)[y[stays]]
  )
  np.testing.assert_allclose(solution(result), expected, rtol=0, atol=1e-9)
  np.testing.assert_allclose(
    kernel(result),
    by_scikit_learn(x[stays], y[stays], 97 * 0.5),
    rtol=0,
    atol=1e-6,
  )
