"""Self-tests of the oracle: identities and examples worked by hand."""

import numpy as np
import pytest

from . import diversified as oracle

FEATURES, CLASSES = 6, 3


def make_model(rng, size=.3):
  return {"kernel": size * rng.normal(size=(FEATURES, CLASSES)),
          "bias": size * rng.normal(size=CLASSES)}


def make_clients(rng, sizes):
  """Sparse features; feature 5 is held by client 0 only."""
  clients = []
  for i, n in enumerate(sizes):
    x = rng.normal(size=(n, FEATURES)) * (rng.random((n, FEATURES)) < .7)
    x[:, 5] = 1.5 if i == 0 else 0.
    clients.append((x, rng.integers(CLASSES, size=n)))
  return clients


def make_batches(rng, clients, steps=4, size=3):
  return [[rng.integers(len(y), size=size) for _ in range(steps)]
          for _, y in clients]


def assert_models_close(a, b, atol=1e-12):
  np.testing.assert_allclose(a["kernel"], b["kernel"], rtol=0, atol=atol)
  np.testing.assert_allclose(a["bias"], b["bias"], rtol=0, atol=atol)


@pytest.fixture(name="problem")
def fixture_problem():
  rng = np.random.default_rng(7)
  clients = make_clients(rng, [5, 9, 4, 7, 12, 6, 8])
  return rng, clients, make_batches(rng, clients), make_model(rng)


@pytest.mark.parametrize("l2", [0., .1])
def test_gradient_is_that_of_the_loss(problem, l2):
  _, clients, _, w = problem
  x, y = clients[1]
  exact = oracle.to_vector(oracle.gradient(w, x, y, l2))
  vector = oracle.to_vector(w)
  numeric = np.zeros_like(vector)
  for p in range(vector.size):
    shift = np.zeros_like(vector)
    shift[p] = 1e-5
    up = oracle.loss(oracle.to_model(vector + shift, w), x, y, l2)
    down = oracle.loss(oracle.to_model(vector - shift, w), x, y, l2)
    numeric[p] = (up - down) / 2e-5
  np.testing.assert_allclose(exact, numeric, atol=1e-8)


def test_loss_at_zero_is_log_classes(problem):
  _, clients, _, w = problem
  value = oracle.loss(oracle.zeros_like(w), *clients[0], .1)
  np.testing.assert_allclose(value, np.log(CLASSES))


def test_loss_includes_the_bias_in_the_penalty(problem):
  _, clients, _, w = problem
  x, y = clients[0]
  penalty = oracle.loss(w, x, y, 2.) - oracle.loss(w, x, y, 0.)
  np.testing.assert_allclose(
      penalty, np.sum(oracle.to_vector(w) ** 2), rtol=1e-12)


def test_fedprox_without_mu_is_fedavg(problem):
  _, clients, batches, w = problem
  a = oracle.fedavg_round(w, clients, batches, .1, .7, l2=.01, cohort=[0, 2, 5])
  b = oracle.fedprox_round(
      w, clients, batches, .1, .7, mu=0., l2=.01, cohort=[0, 2, 5])
  assert_models_close(a.model, b.model)
  np.testing.assert_allclose(a.weights, np.array([5, 4, 6]) / 15)


def test_fedprox_stays_closer(problem):
  _, clients, batches, w = problem
  free = oracle.fedprox_round(w, clients, batches, .1)
  held = oracle.fedprox_round(w, clients, batches, .1, mu=5.)
  for a, b in zip(free.trained, held.trained):
    far = np.linalg.norm(oracle.to_vector(oracle.add(a, w, -1.)))
    near = np.linalg.norm(oracle.to_vector(oracle.add(b, w, -1.)))
    assert near < far


def test_fedavg_of_one_full_step_is_gradient_descent(problem):
  _, clients, _, w = problem
  batches = [[np.arange(len(y))] for _, y in clients]
  result = oracle.fedavg_round(w, clients, batches, .1, l2=.01)
  g = oracle.anchor_gradient(w, clients, range(len(clients)), .01)
  assert_models_close(result.model, oracle.add(w, g, -.1))


def test_feature_scaling_by_hand():
  # n = 6, n^j = (3, 4, 2); client: n_i = 2, n_i^j = (2, 1, 0).
  x_i = np.array([[1., 0., 0.], [2., 3., 0.]])
  scaling = oracle.feature_scaling(x_i, np.array([3, 4, 2]), 6)
  np.testing.assert_allclose(scaling, [3 * 2 / (6 * 2), 4 * 2 / (6 * 1), 1.])


def test_aggregate_scaling_by_hand():
  y = np.array([0])
  clients = [(np.array([[1., 0., 0.]]), y), (np.array([[1., 2., 0.]]), y),
             (np.array([[1., 0., 0.]]), y), (np.array([[1., 0., 0.]]), y)]
  by_mode = {mode: oracle.aggregate_scaling(clients, [0, 2], mode)
             for mode in ("all", "paper", "none")}
  np.testing.assert_allclose(by_mode["all"]["kernel"], [1., 4., 1.])
  np.testing.assert_allclose(by_mode["paper"]["kernel"], [.5, 2., 1.])
  np.testing.assert_allclose(by_mode["none"]["kernel"], [1., 1., 1.])
  assert [by_mode[m]["bias"] for m in ("all", "paper", "none")] == [1., .5, 1.]


def test_scalings_of_a_ones_column_are_those_of_the_bias(problem):
  _, clients, _, _ = problem
  wide = [(np.hstack([x, np.ones((len(y), 1))]), y) for x, y in clients]
  counts, n_all = oracle.total_counts(wide)
  for x, _ in wide:
    assert oracle.feature_scaling(x, counts, n_all)[-1] == 1.
  for mode in ("all", "paper", "none"):
    a = oracle.aggregate_scaling(wide, [1, 3], mode)
    assert a["kernel"][-1] == a["bias"]


def test_local_training_alone_with_full_batches_is_gradient_descent(problem):
  # One machine: the anchor is its own gradient and the correction cancels.
  _, clients, _, w = problem
  x, y = clients[3]
  rows = np.arange(len(y))
  anchor = oracle.gradient(w, x, y, .01)
  result = oracle.local_training(w, anchor, x, y, [rows] * 3, 2., .01)
  v = oracle.as_model(w)
  for _ in range(3):
    v = oracle.add(v, oracle.gradient(v, x, y, .01), -2. / len(y))
  assert_models_close(result, v)


def test_local_training_starts_along_the_anchor(problem):
  rng, clients, batches, w = problem
  anchor = make_model(rng)
  x, y = clients[2]
  scaling = np.linspace(1., 5., FEATURES)
  result = oracle.local_training(
      w, anchor, x, y, batches[2][:1], 3., .01, scaling)
  assert_models_close(result, oracle.add(w, anchor, -3. / len(y)))


def test_local_training_scales_only_the_bracket(problem):
  rng, clients, _, w = problem
  x, y = clients[2]
  rows = [np.array([0, 1]), np.array([1, 3])]
  anchor, lambda_i = make_model(rng), np.linspace(1., 5., FEATURES)
  result = oracle.local_training(w, anchor, x, y, rows, 3., .01, lambda_i)
  rate = 3. / len(y)
  v = oracle.add(w, anchor, -rate)
  now = oracle.gradient(v, x[rows[1]], y[rows[1]], .01)
  then = oracle.gradient(w, x[rows[1]], y[rows[1]], .01)
  assert_models_close(result, {
      "kernel": v["kernel"] - rate * anchor["kernel"]
                - rate * lambda_i[:, None] * (now["kernel"] - then["kernel"]),
      "bias": v["bias"] - rate * anchor["bias"]
              - rate * (now["bias"] - then["bias"])})


def test_eps_stands_inside_the_root():
  w = {"kernel": np.zeros((1, 1)), "bias": np.zeros(1)}
  g = {"kernel": np.full((1, 1), .3), "bias": np.full(1, .3)}
  model, _ = oracle.accelerate(
      w, g, oracle.zero_moments(w), 1, alpha_g=1., beta2=0., eps=.16)
  np.testing.assert_allclose(model["bias"], -.3 / .5)


def test_ma_with_one_model_is_fsvrg_on_equal_clients():
  rng = np.random.default_rng(3)
  clients = make_clients(rng, [6] * 5)
  batches = make_batches(rng, clients)
  w = make_model(rng)
  for aggregate in ("all", "paper", "none"):
    a = oracle.ma_round(
        [w], [oracle.zero_moments(w)], 1, clients, [0, 1, 4], batches, 2., .01,
        aggregate=aggregate, acceleration=False)
    b = oracle.fsvrg_round(
        w, clients, batches, 2., .01, [0, 1, 4], aggregate=aggregate)
    assert_models_close(a.models[0], b.model)


@pytest.mark.parametrize("method", ["ma", "ga"])
@pytest.mark.parametrize("aggregate", ["all", "paper"])
def test_warmup_is_a_grouped_round_with_one_model(problem, method, aggregate):
  rng, clients, batches, w = problem
  moments = oracle.Moments(
      make_model(rng), {k: v ** 2 for k, v in make_model(rng).items()})
  cohort = [0, 1, 3, 6]
  options = dict(aggregate=aggregate, beta1=.5)
  a = oracle.warmup_round(
      method, w, moments, 3, clients, cohort, batches, 2., .01, **options)
  grouped = oracle.ma_round if method == "ma" else oracle.ga_round
  b = grouped([w], [moments], 3, clients, cohort, batches, 2., .01, **options)
  assert_models_close(a.models[0], b.models[0])
  assert_models_close(a.w_star[0], b.w_star[0])
  assert_models_close(a.moments[0].v, b.moments[0].v)


def test_corrected_rule_without_beta1_is_the_first_step_of_adam(problem):
  rng, _, _, w = problem
  g = make_model(rng)
  model, _ = oracle.accelerate(w, g, oracle.zero_moments(w), 1, eps=1e-18)
  expected = {k: w[k] - .02 * np.sign(g[k]) for k in w}
  assert_models_close(model, expected, atol=1e-9)


def test_corrected_rule_without_beta1_is_adam(problem):
  rng, _, _, w = problem
  model, moments = oracle.as_model(w), oracle.zero_moments(w)
  adam, second = oracle.to_vector(w), 0.
  for r in range(1, 6):
    g = make_model(rng)
    flat = oracle.to_vector(g)
    model, moments = oracle.accelerate(
        model, g, moments, r, beta2=.9, eps=1e-20)
    second = .9 * second + .1 * flat ** 2
    adam = adam - .02 * flat / np.sqrt(second / (1. - .9 ** r))
  np.testing.assert_allclose(oracle.to_vector(model), adam, atol=1e-9)


@pytest.mark.parametrize("beta1", [0., .8])
def test_ratio_of_printed_to_corrected(problem, beta1):
  rng, _, _, w = problem
  g = make_model(rng)
  moments = oracle.Moments(g, {k: v ** 2 for k, v in g.items()})
  steps = {}
  for rule in ("printed", "corrected"):
    model, _ = oracle.accelerate(
        w, g, moments, 4, beta1=beta1, central_rule=rule)
    steps[rule] = oracle.to_vector(oracle.add(model, w, -1.))
  ratio = (1. - beta1) / np.sqrt(1. - .999)
  np.testing.assert_allclose(steps["printed"], ratio * steps["corrected"])


def test_corrected_rule_is_the_printed_factor_on_moments_that_are_sums():
  # Defossez et al.: m and v are sums; the printed factor belongs to them. With
  # averages, alpha_g (1 - b1) sqrt((1 - b2^r) / (1 - b2)) m_sum / sqrt(v_sum)
  # is the corrected rule.
  beta1, beta2, sum_m, sum_v = .8, .9, 0., 0.
  w = {"kernel": np.zeros((1, 1)), "bias": np.zeros(1)}
  moments = oracle.zero_moments(w)
  for r, value in enumerate([.5, -1., 2.], start=1):
    g = {"kernel": np.full((1, 1), value), "bias": np.full(1, value)}
    start = w
    w, moments = oracle.accelerate(
        w, g, moments, r, 1., beta1, beta2, eps=0.)
    sum_m = beta1 * sum_m + value
    sum_v = beta2 * sum_v + value ** 2
    expected = ((1. - beta1) * np.sqrt((1. - beta2 ** r) / (1. - beta2))
                * sum_m / np.sqrt(sum_v))
    np.testing.assert_allclose(start["bias"] - w["bias"], expected)


def test_kmeans_by_hand():
  points = np.array([[0.], [1.], [4.], [10.]])
  # First assignment 0 0 0 1 (4 ties between -2 and 10: lowest), centres 5/3 and
  # 10; second assignment the same.
  assignments, centres = oracle.kmeans(points, [[-2.], [10.]])
  np.testing.assert_array_equal(assignments, [0, 0, 0, 1])
  np.testing.assert_allclose(centres, [[5. / 3.], [10.]])
  # Start 0 and 1: 0 | 1 4 10, centres 0, 5; then 0 1 | 4 10, centres .5, 7;
  # then 4 is 3.5 from .5 and 3 from 7: stable.
  assignments, centres = oracle.kmeans(points, [[0.], [1.]])
  np.testing.assert_array_equal(assignments, [0, 0, 1, 1])
  np.testing.assert_allclose(centres, [[.5], [7.]])


def test_kmeans_keeps_the_centre_of_an_empty_group():
  points = np.array([[0.], [1.]])
  assignments, centres = oracle.kmeans(points, [[.5], [.5], [99.]])
  np.testing.assert_array_equal(assignments, [0, 0])
  np.testing.assert_allclose(centres, [[.5], [.5], [99.]])


def test_kmeans_stops_after_max_steps():
  points = np.array([[0.], [1.], [4.], [10.]])
  assignments, centres = oracle.kmeans(points, [[0.], [1.]], max_steps=1)
  np.testing.assert_array_equal(assignments, [0, 1, 1, 1])
  np.testing.assert_allclose(centres, [[0.], [5.]])


def test_farthest_first_by_hand():
  points = np.array([[3., 0.], [-3., 0.], [0., 1.], [0., 3.]])
  # From the origin three points are 3 away: slot 0. Slot 1 is 6 from it, slot 3
  # is sqrt(18) from both. The origin itself is no centre.
  centres = oracle.farthest_first(points, [0., 0.], 4)
  np.testing.assert_allclose(
      centres, [[3., 0.], [-3., 0.], [0., 3.], [0., 1.]])


def test_projection_matches_the_gram_matrix(problem):
  rng = problem[0]
  vectors = list(rng.normal(size=(6, 20)))
  projection = oracle.project(vectors, 4)
  centred = np.stack(vectors) - np.mean(vectors, axis=0)
  values, eigenvectors = np.linalg.eigh(centred @ centred.T)
  points = eigenvectors[:, ::-1][:, :3] * np.sqrt(values[::-1][:3])
  np.testing.assert_allclose(np.abs(projection.points), np.abs(points))
  np.testing.assert_allclose(
      projection.basis.T @ projection.basis, np.eye(3), atol=1e-12)
  assert np.all(np.max(projection.points, axis=0)
                >= -np.min(projection.points, axis=0))


def test_projection_guards_the_rank(problem):
  rng = problem[0]
  direction = rng.normal(size=20)
  vectors = [t * direction + 1. for t in (0., 1., 3.)]
  projection = oracle.project(vectors, 5)
  np.testing.assert_array_equal(projection.points[:, 1:], np.zeros((3, 3)))
  for s in range(3):
    np.testing.assert_allclose(
        oracle.lift(projection, projection.points[s]), vectors[s])
  same = oracle.project([np.ones(20)] * 4, 3)
  np.testing.assert_array_equal(same.points, np.zeros((4, 2)))


def round_arguments(problem, num_groups):
  rng, clients, batches, _ = problem
  models = [make_model(rng, 1.) for _ in range(num_groups)]
  moments = [oracle.zero_moments(w) for w in models]
  return models, moments, 1, clients, [0, 1, 3, 4, 6], batches, 4., .01


@pytest.mark.parametrize("num_groups", [5, 7])
def test_full_rank_ma_gives_the_mean_of_each_group(problem, num_groups):
  # K - 1 >= S - 1 directions: the projection loses nothing.
  result = oracle.ma_round(*round_arguments(problem, num_groups))
  for k in np.unique(result.assignments):
    members = [w for w, c in zip(result.trained, result.assignments) if c == k]
    assert_models_close(result.w_star[k], oracle.uniform_mean(members))


def test_full_rank_ga_subtracts_the_mean_gradient_of_each_group(problem):
  arguments = round_arguments(problem, 5)
  result = oracle.ga_round(*arguments, acceleration=False)
  a = result.scaling["kernel"][:, None]
  assert np.max(a) == 7.  # Feature 5, held by one client of seven.
  for k in np.unique(result.assignments):
    mean = oracle.uniform_mean([
        g for g, c in zip(result.trained_gradients, result.assignments)
        if c == k])
    w = arguments[0][k]
    assert_models_close(result.models[k], {
        "kernel": w["kernel"] - a * a * mean["kernel"],
        "bias": w["bias"] - mean["bias"]})


def test_printed_step_climbs(problem):
  arguments = round_arguments(problem, 3)
  down = oracle.ga_round(*arguments)
  up = oracle.ga_round(*arguments, step=1.)
  for w, a, b in zip(arguments[0], down.w_star, up.w_star):
    assert_models_close(
        oracle.add(a, w, -1.), oracle.add(w, b, -1.))


@pytest.mark.parametrize("grouped", [oracle.ma_round, oracle.ga_round])
def test_empty_group_makes_no_grouping_step(problem, grouped):
  # Copies without a split: all ties go to group 0. One assignment only: its
  # centre then moves to the mean, and a later one may fill the other groups.
  models, moments, *rest = round_arguments(problem, 3)
  result = grouped([models[0]] * 3, moments, *rest, max_steps=1)
  np.testing.assert_array_equal(result.preferences, 0)
  np.testing.assert_array_equal(result.assignments, 0)
  for k in (1, 2):
    assert_models_close(result.w_star[k], models[0], atol=0.)
    assert_models_close(result.w_r[k], models[0], atol=0.)
    assert np.max(np.abs(oracle.to_vector(
        oracle.add(result.models[k], models[0], -1.)))) > .01


@pytest.mark.parametrize("grouped", [oracle.ma_round, oracle.ga_round])
def test_split_separates_copies(problem, grouped):
  models, moments, *rest = round_arguments(problem, 3)
  result = grouped([models[0]] * 3, moments, *rest, split=True)
  np.testing.assert_array_equal(result.preferences, 0)
  assert set(result.assignments) == {0, 1, 2}
  points = result.projection.points
  for centre in result.start_centres:
    assert np.min(np.linalg.norm(points - centre, axis=1)) == 0.
  start = models[0] if grouped is oracle.ma_round else result.anchors[0]
  origin = oracle.project_centre(result.projection, oracle.to_vector(start))
  np.testing.assert_array_equal(
      result.start_centres[0],
      points[np.argmax(np.linalg.norm(points - origin, axis=1))])


def test_centring_shifts_every_start_by_the_projected_mean(problem):
  arguments = round_arguments(problem, 3)
  a = oracle.ma_round(*arguments)
  b = oracle.ma_round(*arguments, centre=False)
  shift = a.projection.basis.T @ a.projection.mean
  np.testing.assert_allclose(
      b.start_centres - a.start_centres, np.tile(shift, (3, 1)), atol=1e-12)


def test_preferences_and_anchors(problem):
  arguments = round_arguments(problem, 3)
  models, _, _, clients, cohort, batches, alpha_l, l2 = arguments
  result = oracle.ma_round(*arguments)
  sizes = np.array([len(clients[i][1]) for i in cohort])
  for slot, i in enumerate(cohort):
    values = [oracle.loss(w, *clients[i], l2) for w in models]
    assert result.preferences[slot] == np.argmin(values)
    k = result.preferences[slot]
    assert_models_close(result.trained[slot], oracle.local_training(
        models[k], result.anchors[k], *clients[i], batches[i], alpha_l, l2,
        result.feature_scaling[slot]))
  pooled = (np.concatenate([clients[i][0] for i in cohort]),
            np.concatenate([clients[i][1] for i in cohort]))
  assert len(pooled[1]) == np.sum(sizes)
  for w, anchor in zip(models, result.anchors):
    assert_models_close(anchor, oracle.gradient(w, *pooled, l2))


@pytest.mark.parametrize("grouped", [oracle.ma_round, oracle.ga_round])
def test_inputs_are_not_changed(problem, grouped):
  arguments = round_arguments(problem, 3)
  before = [oracle.to_vector(w).copy() for w in arguments[0]]
  grouped(*arguments, beta1=.5)
  for w, vector in zip(arguments[0], before):
    np.testing.assert_array_equal(oracle.to_vector(w), vector)
  for moments in arguments[1]:
    assert np.all(oracle.to_vector(moments.v) == 0.)


def test_cohort_must_increase(problem):
  _, clients, batches, w = problem
  with pytest.raises(ValueError, match="increase"):
    oracle.fsvrg_round(w, clients, batches, 1., cohort=[2, 1])


def test_rounds_decrease_the_objective(problem):
  # Three warm-up rounds, the split, three more: every model improves.
  rng, clients, batches, _ = problem
  for method, grouped in (("ma", oracle.ma_round), ("ga", oracle.ga_round)):
    w = make_model(rng, 1.)
    cohort = list(range(len(clients)))
    options = dict(aggregate="none")
    moments = oracle.zero_moments(w)

    def objective(model):
      weights = oracle.cohort_weights(clients, range(len(clients)))
      return sum(p * oracle.loss(model, *c, .01)
                 for p, c in zip(weights, clients))

    start = objective(w)
    for r in (1, 2, 3):
      result = oracle.warmup_round(
          method, w, moments, r, clients, cohort, batches, .3, .01, **options)
      w, moments = result.models[0], result.moments[0]
    models, all_moments = [w] * 3, [moments] * 3
    for r in (4, 5, 6):
      result = grouped(
          models, all_moments, r, clients, cohort, batches, .3, .01,
          split=r == 4, **options)
      models, all_moments = result.models, result.moments
    assert max(objective(model) for model in models) < start
