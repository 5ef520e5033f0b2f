"""Numbers of the oracles that were worked out by hand, or by definition.

That an oracle does what the library does is tested beside the library; here is
what a misreading that both share would break.
"""

import numpy as np
import pytest

from . import analytic, baselines, clustered, conjugate, heterogeneity
from . import diversified as oracle

FEATURES, CLASSES = 6, 3
RATE, L2 = 0.1, 0.05


def make_model(rng):
  return 0.3 * rng.normal(size=(FEATURES + 1, CLASSES))


@pytest.fixture(name="problem")
def fixture_problem():
  """Clients (x, y) with sparse features, and a model."""
  rng = np.random.default_rng(11)
  clients = [
    (
      rng.normal(size=(n, FEATURES)) * (rng.random((n, FEATURES)) < 0.7),
      rng.integers(CLASSES, size=n),
    )
    for n in (5, 9, 4, 7, 12)
  ]
  return clients, make_model(rng)


def assert_close(a, b, atol=1e-12):
  np.testing.assert_allclose(a, b, rtol=0, atol=atol)


# diversified.py.


def test_feature_scaling():
  """n = 6, n^j = (3, 4, 2); client: n_i = 2, n_i^j = (2, 1, 0)."""
  x_i = np.array([[1.0, 0.0, 0.0], [2.0, 3.0, 0.0]])
  scaling = oracle.feature_scaling(x_i, np.array([3, 4, 2, 6]), 6)
  assert_close(scaling, [3 * 2 / (6 * 2), 4 * 2 / (6 * 1), 1.0, 1.0])


@pytest.mark.parametrize(
  "mode, expected",
  [
    ("all", [1.0, 4.0, 1.0, 1.0]),
    ("paper", [0.5, 2.0, 1.0, 0.5]),
    ("holders", [0.25, 1.0, 1.0, 0.25]),
    ("none", [1.0, 1.0, 1.0, 1.0]),
  ],
)
def test_aggregate_scaling(mode, expected):
  clients = [(np.array([[1.0, j == 1, 0.0]]), [0]) for j in range(4)]
  assert_close(oracle.aggregate_scaling(clients, [0, 2], mode), expected)


def test_only_the_bracket_of_a_local_step_is_scaled(problem):
  """(22): Lambda_i multiplies the difference, not the anchor."""
  (_, (x, y), *_), w = problem
  rows = [np.array([0, 1]), np.array([1, 3])]
  anchor = make_model(np.random.default_rng(1))
  lambda_i = np.array([*range(1, 7), 1.0])
  result = oracle.local_training(w, w, anchor, (x, y), rows, 3.0, L2, lambda_i)
  rate = 3.0 / len(y)
  v = w - rate * anchor
  bracket = lambda_i[:, None] * (
    oracle.gradient(v, x[rows[1]], y[rows[1]], L2)
    - oracle.gradient(w, x[rows[1]], y[rows[1]], L2)
  )
  assert_close(result, v - rate * anchor - rate * bracket)


# conjugate.py.


def test_beta():
  g, g_prev = np.array([1.0, 2.0]), np.array([2.0, 0.0])
  d_prev = np.array([-1.0, 1.0])
  # g.g = 5, y = (-1, 2), g.y = 3, g_prev.g_prev = 4, d_prev.y = 3.
  expected = {"fr": 5 / 4, "pr+": 3 / 4, "hs": 1.0, "dy": 5 / 3}
  for rule, value in expected.items():
    assert conjugate.beta(rule, g, g_prev, d_prev) == pytest.approx(value)
    assert conjugate.beta(rule, g, 0.0 * g, 0.0 * d_prev) == 0.0
  assert conjugate.beta("pr+", g, 3.0 * g, d_prev) == 0.0


@pytest.mark.parametrize(
  "test, start, eta, tries",
  [
    ("half_gradient", 1.0, 0.5, 2),  # 1/2 > 1/2 fails, 3/8 > 1/4 holds.
    ("printed", 1.0, 1.0, 1),
    ("printed", 0.5, 0.0, 4),  # 1/4 >= 3/8 and every shorter step fail.
    ("decrease", 2.0, 1.0, 2),
    ("armijo", 1.9997, 1.9997, 1),  # eta (1 - eta / 2) >= 1e-4 eta.
    ("armijo", 1.9999, 0.99995, 2),
    ("half_gradient", 64.0, 0.0, 4),
  ],
)
def test_line_search_on_a_parabola(test, start, eta, tries):
  w, d = np.array([1.0]), np.array([-1.0])
  search = conjugate.line_search(
    lambda v: 0.5 * float(v @ v), w, d, w, start, 0.5, test, 4
  )
  assert (search.eta, search.tries, search.before) == (eta, tries, 0.5)
  assert search.after == pytest.approx(0.5 * (1.0 - eta) ** 2)


# baselines.py.


def test_two_steps_of_losac(problem):
  clients, w = problem
  (x, y), rows = clients[1], [np.array([0, 4]), np.array([2, 3])]
  result = baselines.losac_round(
    w,
    np.zeros_like(w),
    baselines.zero_table(w, clients),
    clients,
    [1],
    {1: rows},
    RATE,
    1.0,
    L2,
  )
  r0 = oracle.gradient(w, x[rows[0]], y[rows[0]], L2)
  v = w - RATE * r0
  r1 = oracle.gradient(v, x[rows[1]], y[rows[1]], L2)
  # Second step: r1 - q + Gl with q = r0 and Gl = share r0.
  share = 9 / 37
  assert_close(result.model, v - RATE * (r1 + (share - 1.0) * r0))
  assert_close(result.table[1], r1)
  assert_close(result.G, share * r1)


def test_an_exact_step_of_per_fedavg_descends_the_adapted_loss(problem):
  """The gradient of f(w - alpha grad f(w)), by finite differences."""
  clients, w = problem
  (x, y), alpha, rows = clients[1], 0.4, np.arange(9)
  model = baselines.per_fedavg_round(
    w, clients, [1], {1: [(rows, rows, rows)]}, alpha, 1.0, l2=L2, variant="exact"
  )

  def loss_after_step(v):
    return oracle.loss(baselines.adapt(v, x, y, rows, alpha, L2), x, y, L2)

  moves = 1e-5 * np.eye(w.size).reshape(-1, *w.shape)
  slope = [(loss_after_step(w + e) - loss_after_step(w - e)) / 2e-5 for e in moves]
  assert_close((w - model).ravel(), slope, 1e-8)


# heterogeneity.py.


def test_accumulation_is_that_of_fednovas_paper():
  """Section 3: plain, with momentum, and proximal."""
  tau, rho, shrink = 6, 0.8, 0.3
  remaining = np.arange(tau, 0, -1)  # Steps from each gradient to the end.
  np.testing.assert_array_equal(heterogeneity.accumulation(tau), np.ones(tau))
  np.testing.assert_allclose(
    heterogeneity.accumulation(tau, momentum=rho), (1 - rho**remaining) / (1 - rho)
  )
  np.testing.assert_allclose(
    heterogeneity.accumulation(tau, shrink=shrink), (1 - shrink) ** (remaining - 1)
  )


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_feddyn_ends_where_the_whole_objective_is_flat(problem, weights):
  """And the linear terms are the clients' gradients there."""
  clients, w = problem
  everyone = range(len(clients))
  batches = {i: [np.arange(len(clients[i][1]))] * 12 for i in everyone}
  h, table = np.zeros_like(w), baselines.zero_table(w, clients)
  for _ in range(60):
    r = heterogeneity.dyn_round(
      w, h, table, clients, everyone, batches, 0.3, 1.0, 0.3, weights
    )
    w, h, table = r.model, r.h, r.table
  gradients = [oracle.gradient(w, x, y, 0.3) for x, y in clients]
  shares = oracle.average_weights(clients, everyone, weights)
  assert np.linalg.norm(oracle.weighted_sum(shares, gradients)) < 1e-5
  for i, gradient in enumerate(gradients):
    assert np.linalg.norm(gradient) > 1e-2
    assert_close(table[i], gradient, 1e-4)


# clustered.py.


def test_cold_start():
  cold = clustered.fedgroup_cold_start(
    np.ones(3), [[2, 0, 0], [0, 0, 6], [0, 4, 0]], [0, 1, 0], 3
  )
  assert_close(cold.directions, [[1, 2, 0], [0, 0, 6], [0, 0, 0]])
  assert_close(cold.models, [[2, 3, 1], [1, 1, 7], [1, 1, 1]])
  assert_close(cold.auxiliary, [4 / 3, 5 / 3, 3])


def test_inter_group():
  models = np.array([[0.0, 0, 0], [3, 4, 0], [0, 0, 2]])
  printed = clustered.inter_group(models, 1.0)
  assert_close(printed[0], [0.6, 0.8, 1.0])
  root = 29**0.5
  assert_close(printed[1], [3 - 0.6 - 3 / root, 4 - 0.8 - 4 / root, 2 / root])
  code = clustered.inter_group(models, 1.0, "code")
  # Norms 0, 5 and 2: the zero model adds nothing to the others.
  assert_close(code[0], np.array([0.6, 0.8, 1.0]) / (1 + 1 / 5 + 1 / 2))
  assert_close(code[1], np.array([3, 4, 1.0]) / 1.5)
  assert_close(code[2], np.array([0.6, 0.8, 2]) / 1.2)


def test_total_variation():
  p = clustered.label_histogram([0, 0, 2, 2], 3)
  assert clustered.total_variation(p, [1, 1, 2]) == pytest.approx(0.25)
  assert clustered.total_variation([10, 0, 0], [0, 7, 0]) == 1.0
  assert clustered.total_variation([2, 4], [1, 2]) == 0.0


# analytic.py.


def test_high_pass():
  maps = np.zeros((1, 3, 3, 1))
  maps[0, 0, 1] = 1.0
  np.testing.assert_array_equal(
    analytic.high_pass(maps)[0, :, :, 0], [[-1, 3, -1], [0, -1, 0], [0, 0, 0]]
  )  # The edge sees itself above.


def test_encoded_label_vectors():
  clients = [(None, np.array([0, 0, 2, 1])), (None, np.array([1]))]
  code = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]])
  np.testing.assert_allclose(
    analytic.encoded_label_vectors(clients, code, 3), [[1.5, 1.5], [0.0, 2.0]]
  )
