"""AFL against the paper's own formulas, and least squares of all the data."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import linear_model

import fedjax_alg as fa
from fedjax_alg import models, registry
from fedjax_alg.base import FedSpec
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from fedjax_alg.least_squares import solve
from fedjax_alg.least_squares.closed_form import ABSENT
from tests import problems, shared_programs
from tests.algorithms import bridge
from tests.reference import analytic as oracle

FEATURES, CLASSES, SLOTS = 9, 4, 12
#: Most hold fewer examples than there are features.
SIZES = (3, 40, 7, 12, 1, 5, 20, 9, 64, 4, 15, 30)
MODEL = models.Softmax().build((FEATURES,), CLASSES)
GAMMA = 2.0


def examples():
  rng = np.random.default_rng(2)
  x = rng.normal(size=(sum(SIZES), FEATURES)) + 0.3
  y = np.argmax(x @ rng.normal(size=(FEATURES, CLASSES)), 1)
  return x.astype(np.float32), y.astype(np.int32)


def dealt(sizes):
  """The examples back to back to clients of these sizes, [(x, y)]."""
  ends = np.cumsum(sizes)
  assert ends[-1] == sum(SIZES)
  x, y = examples()
  return list(zip(np.split(x, ends[:-1]), np.split(y, ends[:-1])))


@functools.cache
def program(remove_ridge):
  """(data) -> (W [d, L], cost) after the one round.

  The biases are 0, of classes that nobody holds ``ABSENT``.
  """
  algorithm = registry.build(
    "afl",
    MODEL,
    map_clients=clients.ClientMap(),
    client_ridge=GAMMA,
    remove_ridge=remove_ridge,
  )
  spec = FedSpec(SLOTS, SLOTS, CLASSES, (FEATURES,))

  @problems.quick_jit
  def run(data, params):
    everyone = layout.everyone(data)
    state = algorithm.init(params, spec, jax.random.key(0))
    state = algorithm.setup(state, everyone, jax.random.key(0))
    return algorithm.round(state, everyone, jax.random.key(0))

  def weights(sizes, empty=()):
    params = {
      "params": {"kernel": jnp.ones((CLASSES, FEATURES)), "bias": jnp.ones(CLASSES)}
    }
    data = problems.client_data(dealt(sizes))
    data = data._replace(size=data.size.at[np.array(empty, int)].set(0))
    state, aux = run(data, params)
    *kernel, bias = bridge.to_oracle(bridge.model_of(state))
    classes = np.concatenate(
      [y for i, (_, y) in enumerate(dealt(sizes)) if i not in empty]
    )
    expected = np.where(np.isin(np.arange(CLASSES), classes), 0, ABSENT)
    np.testing.assert_array_equal(bias, expected.astype(np.float32))
    return kernel, aux.cost

  return weights


#: As many clients, two and one; the others hold nothing.
PARTITIONS = (SIZES, SIZES[::-1], (200, 10) + (0,) * 10, (0,) * 5 + (210,) + (0,) * 6)


@pytest.mark.parametrize("aggregate", [oracle.afl_pairwise, oracle.afl_direct])
@pytest.mark.parametrize("sizes", PARTITIONS[:3:2])
def test_a_round_is_the_paper(sizes, aggregate):
  """Every client with data adds its ridge, who holds nothing adds none."""
  parts = [oracle.afl_client(x, y, CLASSES, GAMMA) for x, y in dealt(sizes) if len(y)]
  weights, _ = program(False)(sizes)
  np.testing.assert_allclose(weights, aggregate(parts).w, rtol=1e-5, atol=1e-6)


def test_one_example_of_all_clients_is_enough():
  sizes = (1, 209) + (0,) * 10
  weights, _ = program(False)(sizes, empty=[1])
  (x, y), *_ = dealt(sizes)
  expected = oracle.afl_direct([oracle.afl_client(x, y, CLASSES, GAMMA)]).w
  np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)


def test_with_the_ridge_removed_it_is_least_squares_of_all_the_data():
  x, y = examples()
  pooled = np.linalg.lstsq(x.astype(np.float64), np.eye(CLASSES)[y], rcond=None)[0]
  first, _ = program(True)(SIZES)
  for sizes in PARTITIONS:
    weights, _ = program(True)(sizes)
    np.testing.assert_allclose(weights, pooled, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights, first, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["afl", "afl_dual"])
def test_pixels_that_never_change_leave_the_solution_of_least_norm(name):
  """The embedded digits with the defaults ended in NaN: their sums have no inverse."""
  fed = fa.federate("digits", partition="dirichlet", num_clients=10)
  result = fa.run(name, fed, evaluate="global")
  total = int(fed.data.train.size.sum())
  x, y = fed.data.train.x[:total].reshape(total, -1), fed.data.train.y[:total]
  assert (x == 0).all(0).any()
  expected = np.linalg.lstsq(x.astype(float), np.eye(10)[y], rcond=None)[0]
  kernel = result.global_params()["params"]["kernel"][0]
  np.testing.assert_allclose(kernel.T, expected, rtol=1e-4, atol=1e-5)
  assert result.metrics["global"]["accuracy"][0, -1] > 0.9


def test_what_is_sent():
  _, cost = program(True)(SIZES)
  d = FEATURES
  assert [int(count) for count in cost[:3]] == [
    d * CLASSES,
    d * (d + 1) // 2 + d * CLASSES + d + CLASSES,
    1,
  ]


def test_models_of_more_than_one_layer():
  entry = registry.get("afl")
  deep = models.MLP((5,)).build((FEATURES,), CLASSES)
  for refused in (
    lambda: entry.rounds(entry.hparams(), 2),
    lambda: registry.build("afl", deep, map_clients=clients.ClientMap()),
  ):
    with pytest.raises(ValueError, match="algorithm=afl: .*has 2 .*model="):
      refused()
  assert entry.rounds(entry.hparams(), 1) == 1


@functools.cache
def off_centre():
  """Real numbers whose inputs and targets are far from zero, of 6 clients."""
  rng = np.random.default_rng(4)
  x = rng.normal(size=(90, 5)) + np.arange(5)
  y = x @ rng.normal(size=(5, 2)) + [7.0, -3.0] + rng.normal(size=(90, 2))
  return fa.federate(
    fa.from_arrays(
      x.astype(np.float32), y.astype(np.float32), np.arange(90) % 6, task="regression"
    )
  )


def by_scikit_learn(alpha, bias):
  """(kernel [L, d], intercept [L]) of ridge regression of the pooled data."""
  fed = off_centre()
  x, y = (
    np.concatenate(part).astype(float)
    for part in zip(*map(fed.client, range(fed.num_clients)))
  )
  if bias == "ones":
    x = np.c_[x, np.ones(len(x))]
  model = linear_model.Ridge(
    alpha, fit_intercept=bias == "centred", solver="cholesky"
  ).fit(x, y)
  if bias == "ones":
    return model.coef_[:, :-1], model.coef_[:, -1]
  return model.coef_, np.broadcast_to(model.intercept_, 2)


KEPT = dict(client_ridge=GAMMA, remove_ridge=False)


# Of "ones" the ridge has the bias, too; more of fedacnnl in test_fedacnnl.py.
@pytest.mark.parametrize(
  "name, settings, alpha, bias",
  [
    *(
      pytest.param(
        "afl", KEPT, 6 * GAMMA, bias, marks=[pytest.mark.slow] * (bias == "centred")
      )
      for bias in solve.BIASES
    ),
    # The server removes the clients' ridge.
    ("afl", {}, 1e-9, "centred"),
    pytest.param("afl", {}, 1e-9, "ones", marks=pytest.mark.slow),
    ("fedacnnl", dict(ridge="12"), 12.0, "centred"),
  ],
)
def test_it_is_scikit_learns_ridge_of_all_the_data(name, settings, alpha, bias):
  """docs/tasks.md says so; only `centred` has its intercept."""
  result = shared_programs.outcome(
    name, off_centre(), deploys=False, evaluate="global", bias=bias, **settings
  )
  params = result.global_params()["params"]
  kernel, intercept = by_scikit_learn(alpha, bias)
  np.testing.assert_allclose(params["kernel"][0], kernel, rtol=0, atol=2e-6)
  np.testing.assert_allclose(params["bias"][0], intercept, rtol=0, atol=5e-6)
  # X'X, X'Y and the sums of X and Y are enough for every bias.
  assert result.aux.cost.down[0, 0] == 5 * 2 + 2 * (bias != "none")
  # Sums of both targets, and the number of rows.
  assert result.aux.cost.up[0, 0] == 15 + 5 * 2 + 5 + 2 + 1
