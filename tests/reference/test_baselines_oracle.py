"""Self-tests of the oracles conjugate.py and baselines.py."""

import numpy as np
import pytest

from . import baselines
from . import conjugate
from . import diversified as oracle
from .test_oracle import assert_models_close, make_batches, make_clients
from .test_oracle import make_model

IDS = [1, 3, 4]
RATE = .1
L2 = .05


@pytest.fixture(name="problem")
def fixture_problem():
  rng = np.random.default_rng(11)
  clients = make_clients(rng, [5, 9, 4, 7, 12])
  return rng, clients, make_batches(rng, clients), make_model(rng)


def all_rows(clients, steps=1):
  return {i: [np.arange(len(y))] * steps for i, (_, y) in enumerate(clients)}


# Conjugate directions and line search.


def test_beta_by_hand():
  g, g_prev = np.array([1., 2.]), np.array([2., 0.])
  d_prev = np.array([-1., 1.])
  # g.g = 5, y = (-1, 2), g.y = 3, g_prev.g_prev = 4, d_prev.y = 3.
  expected = {"fr": 5 / 4, "pr+": 3 / 4, "hs": 1., "dy": 5 / 3}
  for rule, value in expected.items():
    assert conjugate.beta(rule, g, g_prev, d_prev) == pytest.approx(value)
    assert conjugate.beta(rule, g, 0. * g, 0. * d_prev) == 0.
  assert conjugate.beta("pr+", g, 3. * g, d_prev) == 0.


@pytest.mark.parametrize("rule", ["fr", "pr+", "hs", "dy"])
def test_exact_steps_end_a_quadratic_in_its_dimension(rule):
  rng = np.random.default_rng(3)
  root = rng.normal(size=(5, 5))
  hessian, target = root @ root.T + np.eye(5), rng.normal(size=5)
  w, g_prev, d_prev = np.zeros(5), None, None
  for step in range(5):
    g = hessian @ (w - target)
    found = conjugate.direction(rule, g, g_prev, d_prev)
    assert not found.restarted and (found.beta > 0.) == (step > 0)
    w = w - (g @ found.d) / (found.d @ hessian @ found.d) * found.d
    g_prev, d_prev = g, found.d
  np.testing.assert_allclose(w, target, atol=1e-8)


def test_direction_restarts_where_it_would_climb():
  g, d_prev = np.array([1., 0.]), np.array([1., 0.])
  found = conjugate.direction("fr", g, g, d_prev)  # <g, -g + d_prev> = 0.
  assert found.restarted and found.beta == 1.
  np.testing.assert_array_equal(found.d, -g)
  assert not conjugate.direction("fr", g, g, .5 * d_prev).restarted


@pytest.mark.parametrize("test, start, eta, tries", [
    ("half_gradient", 1., .5, 2),  # 1/2 > 1/2 fails, 3/8 > 1/4 holds.
    ("printed", 1., 1., 1),
    ("printed", .5, 0., 4),  # 1/4 >= 3/8 and every shorter step fail.
    ("decrease", 2., 1., 2),
    ("armijo", 1.9997, 1.9997, 1),  # eta (1 - eta / 2) >= 1e-4 eta.
    ("armijo", 1.9999, .99995, 2),
    ("half_gradient", 64., 0., 4),
])
def test_line_search_on_a_parabola(test, start, eta, tries):
  w, d = np.array([1.]), np.array([-1.])
  found = conjugate.line_search(
      lambda v: .5 * float(v @ v), w, d, w, start, .5, test, 4)
  assert (found.eta, found.tries, found.before) == (eta, tries, .5)
  assert found.after == pytest.approx(.5 * (1. - eta) ** 2)


@pytest.mark.parametrize("mode", ["all", "paper", "none"])
def test_round_without_step_is_fsvrg(problem, mode):
  _, clients, batches, w = problem
  result = conjugate.clsfsvrg_round(
      w, None, clients, IDS, batches, RATE, L2, fixed_eta=0., aggregate=mode)
  expected = oracle.fsvrg_round(
      w, clients, batches, RATE, L2, cohort=IDS, aggregate=mode)
  assert_models_close(result.model, expected.model)


def test_printed_scaling_divides_by_the_cohort(problem):
  _, clients, _, _ = problem
  printed = conjugate.aggregate_scaling(clients, IDS, "printed")
  paper = conjugate.aggregate_scaling(clients, IDS, "paper")
  np.testing.assert_allclose(printed["kernel"], paper["kernel"] / len(IDS))
  assert printed["kernel"][5] == 1. and printed["bias"] == 1. / len(clients)


def test_one_client_takes_a_gradient_step_at_w_hat(problem):
  _, clients, _, w = problem
  data = clients[3]
  result = conjugate.clsfsvrg_round(
      w, None, [data], [0], all_rows([data]), RATE, L2, fixed_eta=.3)
  g = oracle.gradient(w, *data, L2)
  w_hat = oracle.add(w, g, -.3)
  assert_models_close(result.w_hat, w_hat)
  rate = RATE / len(data[1])
  assert_models_close(
      result.model, oracle.add(w_hat, oracle.gradient(w_hat, *data, L2), -rate))


def test_rounds_carry_the_direction(problem):
  _, clients, batches, w = problem
  common = dict(l2=L2, validation=clients[0], test="decrease", start=4.)
  first = conjugate.clsfsvrg_round(
      w, None, clients, IDS, batches, RATE, **common)
  assert first.search.after < first.search.before and first.eta > 0.
  assert first.search.after == pytest.approx(
      oracle.loss(first.w_hat, *clients[0], L2))
  second = conjugate.clsfsvrg_round(
      first.model, first.memory, clients, [0, 2], batches, RATE, **common)
  g = oracle.anchor_gradient(first.model, clients, [0, 2], L2)
  factor = (oracle.to_vector(g) @ oracle.to_vector(g)) / (
      first.memory.g @ first.memory.g)
  assert second.beta == pytest.approx(factor)
  assert not second.restarted
  np.testing.assert_allclose(
      second.memory.d, -second.memory.g + factor * first.memory.d)
  assert_models_close(
      second.w_hat, oracle.add(first.model, second.direction, second.eta))


# SCAFFOLD.


def test_scaffold_starts_as_fedavg_and_keeps_the_mean(problem):
  _, clients, batches, w = problem
  c, table = oracle.zeros_like(w), baselines.zero_table(w, clients)
  first = baselines.scaffold_round(
      w, c, table, clients, IDS, batches, RATE, l2=L2)
  trained = oracle.fedavg_round(w, clients, batches, RATE, 1., L2, IDS).trained
  assert_models_close(first.model, oracle.uniform_mean(trained))
  for option in ("I", "II"):
    later = baselines.scaffold_round(
        first.model, first.c, first.table, clients, [4, 0], batches, RATE, .7,
        L2, option)
    assert_models_close(
        later.c, oracle.uniform_mean([later.table[i] for i in range(5)]))
    assert_models_close(later.table[1], first.table[1])


def test_scaffold_options_agree_on_one_full_step(problem):
  rng, clients, _, w = problem
  c = make_model(rng)
  table = [make_model(rng) for _ in clients]
  results = [
      baselines.scaffold_round(
          w, c, table, clients, IDS, all_rows(clients), RATE, 1., L2, option)
      for option in ("I", "II")]
  assert_models_close(results[0].c, results[1].c)
  assert_models_close(results[0].table[3], results[1].table[3])


# Mime.


def test_mime_lite_with_sgd_is_fedavg(problem):
  _, clients, batches, w = problem
  result = baselines.mime_round(
      w, None, clients, IDS, batches, RATE, .6, L2, lite=True,
      weights="examples")
  expected = oracle.fedavg_round(w, clients, batches, RATE, .6, L2, IDS)
  assert_models_close(result.model, expected.model)


def test_mime_with_sgd_is_plain_fsvrg_at_equal_sizes():
  rng = np.random.default_rng(5)
  clients = make_clients(rng, [6, 6, 6])
  batches, w = make_batches(rng, clients), make_model(rng)
  result = baselines.mime_round(
      w, None, clients, [0, 2], batches, RATE, 1., L2)
  expected = oracle.fsvrg_round(
      w, clients, batches, 6 * RATE, L2, [0, 2], "none", False)
  assert_models_close(result.model, expected.model)


@pytest.mark.parametrize("lite", [False, True])
def test_mime_state_enters_the_first_step(problem, lite):
  rng, clients, _, w = problem
  m, root = make_model(rng), make_model(rng)
  v = {name: root[name] ** 2 for name in root}
  result = baselines.mime_round(
      w, (m, v), clients, [3], all_rows(clients), RATE, 1., L2, "adam", lite,
      b1=.8, b2=.9, eps=.01)
  c = oracle.gradient(w, *clients[3], L2)
  assert_models_close(result.c, c)
  for name in ("kernel", "bias"):
    mean = .2 * c[name] + .8 * m[name]
    step = mean / (np.abs(root[name]) + .01)
    np.testing.assert_allclose(result.model[name], w[name] - RATE * step)
    np.testing.assert_allclose(result.state.m[name], mean)
    np.testing.assert_allclose(
        result.state.v[name], .9 * v[name] + .1 * c[name] ** 2)
  momentum = baselines.mime_round(
      w, (m,), clients, [3], all_rows(clients), RATE, 1., L2, "momentum", lite,
      momentum=.8)
  assert_models_close(
      momentum.model, oracle.add(w, momentum.state.m, -RATE))
  assert_models_close(momentum.state.m, result.state.m)
  assert momentum.state.v is None


def test_mime_without_momentum_is_sgd(problem):
  _, clients, batches, w = problem
  results = [
      baselines.mime_round(
          w, None, clients, IDS, batches, RATE, 1., L2, name, momentum=0.)
      for name in ("sgd", "momentum")]
  assert_models_close(results[0].model, results[1].model)


# LoSAC.


def test_losac_keeps_its_estimate(problem):
  rng, clients, batches, w = problem
  partition = {
      i: np.array_split(np.arange(len(y)), 2)
      for i, (_, y) in enumerate(clients)}
  picks = {i: rng.integers(2, size=5) for i in range(len(clients))}
  tables = {"C": baselines.zero_table(w, clients),
            "T": baselines.zero_batch_table(w, partition)}
  for variant, table in tables.items():
    model, G = w, oracle.zeros_like(w)
    for ids in (IDS, [4, 0], [2, 3]):
      result = baselines.losac_round(
          model, G, table, clients, ids, batches, RATE, .8, L2, variant,
          partition, picks)
      model, G, table = result.model, result.G, result.table
      assert_models_close(
          G, baselines.losac_estimate(table, clients, variant, partition))


def test_losac_step_by_hand(problem):
  _, clients, batches, w = problem
  table = baselines.zero_table(w, clients)
  result = baselines.losac_round(
      w, oracle.zeros_like(w), table, clients, [1], batches, RATE, 1., L2)
  x, y = clients[1]
  share = len(y) / sum(len(labels) for _, labels in clients)
  r0 = oracle.batch_gradient(w, x, y, batches[1][0], L2)
  v = oracle.add(w, r0, -RATE)
  r1 = oracle.batch_gradient(v, x, y, batches[1][1], L2)
  # Second step: r1 - q + Gl with q = r0 and Gl = share r0.
  v = oracle.add(v, oracle.add(r1, r0, share - 1.), -RATE)
  short = baselines.losac_round(
      w, oracle.zeros_like(w), table, clients, [1], {1: batches[1][:2]}, RATE,
      1., L2)
  assert_models_close(short.model, v)
  assert_models_close(short.table[1], r1)
  last = oracle.uniform_mean([result.table[1]])
  assert_models_close(result.G, oracle.add(oracle.zeros_like(w), last, share))


def test_losac_of_one_client_with_one_batch_descends(problem):
  _, clients, _, w = problem
  data = clients[1]
  g = oracle.gradient(w, *data, L2)
  step = oracle.add(w, g, -RATE)
  step = oracle.add(step, oracle.gradient(step, *data, L2), -RATE)
  batches = all_rows([data], 2)
  for variant, table in (("C", {0: g}), ("T", {0: [g]})):
    result = baselines.losac_round(
        w, g, table, [data], [0], batches, RATE, 1., L2, variant,
        {0: batches[0][:1]}, {0: [0, 0]})
    assert_models_close(result.model, step)


# Per-FedAvg.


def make_triples(rng, clients, steps=3, size=4):
  return {i: [[rng.integers(len(y), size=size) for _ in range(3)]
              for _ in range(steps)] for i, (_, y) in enumerate(clients)}


@pytest.mark.parametrize("variant", ["fo", "hf", "exact"])
def test_per_fedavg_without_adaptation_is_fedavg(problem, variant):
  rng, clients, _, w = problem
  triples = make_triples(rng, clients)
  result = baselines.per_fedavg_round(
      w, clients, IDS, triples, 0., RATE, .9, L2, variant, weights="examples")
  second = {i: [t[1] for t in steps] for i, steps in triples.items()}
  expected = oracle.fedavg_round(w, clients, second, RATE, .9, L2, IDS)
  assert_models_close(result.model, expected.model)


def test_hessian_vector_is_the_slope_of_the_gradient(problem):
  rng, clients, _, w = problem
  u, (x, y) = make_model(rng), clients[4]
  rows = np.array([0, 3, 3, 7])
  shift = 1e-5
  up = oracle.batch_gradient(oracle.add(w, u, shift), x, y, rows, L2)
  down = oracle.batch_gradient(oracle.add(w, u, -shift), x, y, rows, L2)
  slope = oracle.add(oracle.zeros_like(w), oracle.add(up, down, -1.),
                     .5 / shift)
  assert_models_close(
      baselines.hessian_vector(w, u, x, y, rows, L2), slope, 1e-8)


def test_exact_step_descends_the_adapted_loss(problem):
  _, clients, _, w = problem
  x, y = clients[1]
  alpha, rows = .4, np.arange(len(y))
  result = baselines.per_fedavg_round(
      w, clients, [1], {1: [(rows, rows, rows)]}, alpha, 1., l2=L2,
      variant="exact")
  exact = oracle.to_vector(oracle.add(w, result.model, -1.))
  vector = oracle.to_vector(w)
  numeric = np.zeros_like(vector)
  for p in range(vector.size):
    values = []
    for shift in (1e-5, -1e-5):
      moved = vector.copy()
      moved[p] += shift
      adapted = baselines.adapt(
          oracle.to_model(moved, w), x, y, rows, alpha, L2)
      values.append(oracle.loss(adapted, x, y, L2))
    numeric[p] = (values[0] - values[1]) / 2e-5
  np.testing.assert_allclose(exact, numeric, atol=1e-8)


def test_hf_tends_to_exact_at_second_order(problem):
  rng, clients, _, w = problem
  triples = make_triples(rng, clients)

  def model(variant, delta=1e-3):
    return oracle.to_vector(baselines.per_fedavg_round(
        w, clients, IDS, triples, .3, RATE, 1., L2, variant, delta).model)

  errors = [np.linalg.norm(model("hf", delta) - model("exact"))
            for delta in (1e-1, 1e-2)]
  assert errors[1] < .02 * errors[0]
  assert np.linalg.norm(model("fo") - model("exact")) > 10. * errors[0]
