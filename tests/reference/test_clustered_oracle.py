"""Self-tests of the oracle clustered.py: identities and examples by hand."""

import itertools

import numpy as np
import pytest
from sklearn import cluster
from sklearn import metrics

from . import clustered
from . import diversified as oracle
from .test_oracle import assert_models_close, make_batches, make_clients
from .test_oracle import make_model

IDS = [1, 3, 4]
RATE = .1
L2 = .05


@pytest.fixture(name="problem")
def fixture_problem():
  rng = np.random.default_rng(5)
  clients = make_clients(rng, [5, 9, 4, 7, 12, 6])
  return rng, clients, make_batches(rng, clients), make_model(rng)


def small(*values):
  """A model of three parameters."""
  return {"kernel": np.array([values[:2]], float),
          "bias": np.array([values[2]], float)}


def numbers(w):
  return oracle.to_vector(w).tolist()


def fedavg(problem, uniform=False, **settings):
  _, clients, batches, w = problem
  result = oracle.fedprox_round(
      w, clients, batches, RATE, l2=L2, cohort=IDS, **settings)
  if uniform:
    return oracle.uniform_mean(result.trained)
  return result.model


# Local training.


def test_local_sgd_by_hand():
  w = {"kernel": np.zeros((1, 2)), "bias": np.zeros(2)}
  x, y = np.array([[2.]]), np.array([0])
  # p = (1/2, 1/2), so the gradient is (-1, 1) for the kernel, half for bias.
  v = clustered.local_sgd(w, x, y, [[0]], .5)
  assert_models_close(
      v, {"kernel": np.array([[.5, -.5]]), "bias": np.array([.25, -.25])})
  assert_models_close(w, {"kernel": np.zeros((1, 2)), "bias": np.zeros(2)})
  # With mu = 1 / lr the second step forgets the first.
  again = clustered.local_sgd(w, x, y, [[0], [0]], .5, mu=2.)
  g = oracle.gradient(v, x, y, 0.)
  assert_models_close(again, oracle.add(w, g, -.5))


def test_discrepancy_by_hand():
  models = [small(0, 0, 0), small(1, 0, 0)]
  trained = [small(3, 4, 0), small(1, 0, 2), small(0, 0, 1)]
  assert clustered.discrepancy(trained, [0, 1, 0], models) == (5 + 2 + 1) / 3


# Similarities.


def test_cosine_by_hand():
  assert clustered.cosine([1., 0.], [1., 1.]) == pytest.approx(.5 ** .5)
  assert clustered.cosine(small(1, 2, 2), small(-2, -4, -4)) == pytest.approx(
      -1.)
  assert clustered.cosine([0., 0.], [1., 1.]) == 0.


@pytest.mark.parametrize("m", [1, 3, 8])
def test_edc_is_the_gram_form(m):
  rng = np.random.default_rng(2)
  rows = rng.normal(size=(6, 20))
  rows[4] = 0.
  embedding = clustered.edc_embedding(rows, m)
  assert embedding.shape == (6, m)
  gram = rows @ rows.T
  values, vectors = np.linalg.eigh(gram)
  values, vectors = values[::-1], vectors[:, ::-1]
  for j in range(min(m, 5)):  # The rank is 5.
    expected = np.sqrt(values[j]) * vectors[:, j]
    lengths = np.sqrt(np.diag(gram))
    expected = np.divide(
        expected, lengths, out=np.zeros(6), where=lengths > 0.)
    sign = np.sign(expected @ embedding[:, j])
    np.testing.assert_allclose(embedding[:, j], sign * expected, atol=1e-12)
  assert not np.any(embedding[:, 5:]) and not np.any(embedding[4])


def test_edc_distances_by_hand():
  # Orthogonal directions of unlike length: V is the axes, E the identity.
  embedding = clustered.edc_embedding([[3., 0., 0.], [0., 2., 0.]], 2)
  np.testing.assert_allclose(np.abs(embedding), np.eye(2), atol=1e-15)
  np.testing.assert_allclose(
      clustered.edc_distances(embedding), [[0, 2 ** .5 / 2], [2 ** .5 / 2, 0]])


def test_madc_by_hand():
  root = .5 ** .5
  result = clustered.madc([[2., 0.], [0., 1.], [1., 1.], [-1., 0.]])
  # Rows of the cosines: (1, 0, root, -1), (0, 1, root, 0), (root, root, 1,
  # -root); MADC(0, 1) leaves out columns 0 and 1.
  assert result[0, 1] == pytest.approx((0 + 1) / 2)
  assert result[0, 2] == pytest.approx((root + (1 - root)) / 2)
  np.testing.assert_array_equal(result, result.T)
  np.testing.assert_array_equal(np.diag(result), 0.)
  with pytest.raises(ValueError, match="3 updates"):
    clustered.madc([[1.], [2.]])


@pytest.mark.parametrize("linkage", ["complete", "single", "average"])
def test_cuts_are_those_of_scikit_learn(linkage):
  rng = np.random.default_rng(8)
  distances = clustered.update_distances(rng.normal(size=(12, 4)), "cosine")
  settings = {"metric": "precomputed", "linkage": linkage}
  expected = cluster.AgglomerativeClustering(n_clusters=4, **settings)
  np.testing.assert_array_equal(
      clustered.cut_at_count(distances, linkage, 4),
      clustered.number_labels(expected.fit(distances).labels_))
  threshold = .5 if linkage == "single" else .8
  expected = cluster.AgglomerativeClustering(
      n_clusters=None, distance_threshold=threshold, **settings)
  labels = clustered.cut_at_distance(distances, linkage, threshold)
  np.testing.assert_array_equal(
      labels, clustered.number_labels(expected.fit(distances).labels_))
  assert 1 < len(set(labels)) < 12


def test_labels_are_numbered_by_first_member():
  assert clustered.number_labels([7, 2, 7, 0]).tolist() == [0, 1, 0, 2]
  assert clustered.cut_at_count([[0.]], "complete", 2).tolist() == [0]


# FedGroup.


def test_cold_start_by_hand():
  cold = clustered.fedgroup_cold_start(
      small(1, 1, 1), [small(2, 0, 0), small(0, 0, 6), small(0, 4, 0)],
      [0, 1, 0], 3)
  assert [numbers(u) for u in cold.directions] == [
      [1, 2, 0], [0, 0, 6], [0, 0, 0]]
  assert [numbers(w) for w in cold.models] == [[2, 3, 1], [1, 1, 7], [1, 1, 1]]
  np.testing.assert_allclose(numbers(cold.auxiliary), [4 / 3, 5 / 3, 3])


def test_assignment_by_hand():
  directions = [small(-1, 0, 0), small(1, 1, 0), small(9, 0, 9)]
  assert clustered.assign_by_cosine(small(1, 1, .5), directions) == 1
  assert clustered.assign_by_cosine(small(1, 0, 2), directions) == 2
  assert clustered.assign_by_cosine(small(0, 0, 0), directions) == 0


def test_readings_of_the_newcomer_rule(problem):
  _, clients, batches, w0 = problem
  far = make_model(np.random.default_rng(9), 2.)
  from_w0, from_far = (
      clustered.pretrain(w, clients, [2], batches, RATE, L2)[0]
      for w in (w0, far))
  back = lambda u: oracle.add(oracle.zeros_like(u), u, -1.)
  # Each reading is right by one list only, and each list names another group.
  state = clustered.FedGroupState(
      w0, [oracle.add(far, u) for u in (back(from_far), from_far,
                                        back(from_far))],
      [from_w0, back(from_w0), back(from_w0)],
      [back(from_far), back(from_far), from_far], far, {})
  found = [
      clustered.assign_cold_client(
          state, clients[2], batches[2], RATE, L2, reading)
      for reading in ("frozen", "auxiliary", "printed")]
  assert found == [0, 1, 2]
  with pytest.raises(ValueError, match="reading"):
    clustered.assign_cold_client(state, clients[2], [], RATE, reading="last")


def test_inter_group_by_hand():
  models = [small(0, 0, 0), small(3, 4, 0), small(0, 0, 2)]
  printed = clustered.inter_group(models, 1.)
  np.testing.assert_allclose(numbers(printed[0]), [.6, .8, 1.])
  root = 29 ** .5
  np.testing.assert_allclose(
      numbers(printed[1]), [3 - .6 - 3 / root, 4 - .8 - 4 / root, 2 / root])
  code = clustered.inter_group(models, 1., "code")
  # Norms 0, 5 and 2: the zero model adds nothing to the others.
  np.testing.assert_allclose(
      numbers(code[0]), np.array([.6, .8, 1.]) / (1 + 1 / 5 + 1 / 2))
  np.testing.assert_allclose(numbers(code[1]), np.array([3, 4, 1.]) / 1.5)
  np.testing.assert_allclose(numbers(code[2]), np.array([.6, .8, 2]) / 1.2)


@pytest.mark.parametrize("form", ["printed", "code"])
def test_inter_group_identities(form):
  rng = np.random.default_rng(4)
  models = [make_model(rng) for _ in range(3)]
  for mine, theirs in zip(clustered.inter_group(models, 0., form), models):
    assert_models_close(mine, theirs, 0.)
  equal = clustered.inter_group(models[:1] * 3, .7, form)
  assert_models_close(equal[2], models[0])
  moved = clustered.inter_group(models, .1, form)
  if form == "printed":  # The steps of a pair are opposite.
    assert_models_close(
        oracle.uniform_mean(moved), oracle.uniform_mean(models))
  else:  # The limit is a mean of the others.
    limit = clustered.inter_group(models[:2], 1e12, form)
    assert_models_close(limit[0], models[1], 1e-9)


@pytest.mark.parametrize("mu", [0., .5])
@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_one_group_without_pretraining_is_fedavg(problem, mu, weights):
  _, clients, batches, w = problem
  nothing = [[] for _ in clients]
  state = clustered.fedgroup_start(w, clients, [0, 1], [0, 0], 1, nothing, RATE)
  result = clustered.fedgroup_round(
      state, clients, IDS, batches, RATE, L2, mu, eta_g=.3, weights=weights,
      cold_batches=nothing)
  expected = fedavg(problem, weights == "uniform", mu=mu)
  assert_models_close(result.state.models[0], expected)
  assert_models_close(result.state.auxiliary, expected)
  assert result.state.membership == {0: 0, 1: 0, 3: 0, 4: 0}
  assert state.membership == {0: 0, 1: 0}


def test_two_rounds_of_fedgroup(problem):
  _, clients, batches, w = problem
  start = clustered.fedgroup_start(
      w, clients, [0, 1, 2], [0, 1, 0], 3, batches, RATE, L2)
  assert_models_close(
      start.models[1],
      clustered.local_sgd(w, *clients[1], batches[1], RATE, L2))
  first = clustered.fedgroup_round(
      start, clients, [2, 0], batches, RATE, L2, eta_g=.2, form="code")
  # Group 0 alone trained, as FedAvg of clients 0 and 2; all groups mix.
  expected = oracle.fedavg_round(
      start.models[0], clients, batches, RATE, l2=L2, cohort=[0, 2])
  assert_models_close(first.intra[0], expected.model)
  assert_models_close(first.intra[1], start.models[1])
  assert not np.allclose(numbers(first.state.models[1]), numbers(w))
  assert_models_close(
      oracle.add(start.models[0], first.state.latest[0]),
      first.state.models[0])
  assert first.state.latest[1] is start.latest[1]
  # Group 2 has no members and counts all the same.
  assert_models_close(
      first.state.auxiliary, oracle.uniform_mean(first.state.models))
  gaps = [[np.linalg.norm(clustered.vector(oracle.add(v, c, -1.)))
           for v in first.trained]
          for c in (first.state.models[0], start.models[0])]
  assert first.discrepancy == pytest.approx(np.mean(gaps[0]))
  assert first.received_discrepancy == pytest.approx(np.mean(gaps[1]))
  second = clustered.fedgroup_round(
      first.state, clients, [3, 1], batches, RATE, L2, cold_batches=batches)
  update = clustered.pretrain(w, clients, [3], batches, RATE, L2)[0]
  group = clustered.assign_by_cosine(update, start.directions)
  assert second.state.membership == {0: 0, 1: 1, 2: 0, 3: group}
  assert second.groups.tolist() == [group, 1]
  assert_models_close(second.trained[0], clustered.local_sgd(
      first.state.models[group], *clients[3], batches[3], RATE, L2))
  for w0, w1 in zip(start.directions, second.state.directions):
    assert_models_close(w0, w1, 0.)


# IFCA.


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_ifca_with_one_model_is_fedavg(problem, weights):
  _, clients, batches, w = problem
  result = clustered.ifca_round(
      [w], clients, IDS, batches, RATE, L2, weights=weights)
  assert_models_close(
      result.models[0], fedavg(problem, weights == "uniform"))


def test_ifca_chooses_by_the_regularised_loss():
  x, y = np.ones((1, 1)), np.zeros(1, int)
  sharp = {"kernel": np.array([[5., -5.]]), "bias": np.zeros(2)}
  flat = {"kernel": np.zeros((1, 2)), "bias": np.zeros(2)}
  assert clustered.ifca_choice([flat, sharp], x, y) == 1
  assert clustered.ifca_choice([flat, sharp], x, y, 1.) == 0
  assert clustered.ifca_choice([flat, flat], x, y) == 0


def test_ifca_gradient_step_shrinks_with_the_share(problem):
  _, clients, _, w = problem
  models = [w, make_model(np.random.default_rng(1), 1.), small_far(w)]
  full = [[np.arange(len(y))] for _, y in clients]
  ids = list(range(6))
  steps = clustered.ifca_round(
      models, clients, ids, None, RATE, L2, average="gradients")
  means = clustered.ifca_round(models, clients, ids, full, RATE, L2)
  np.testing.assert_array_equal(steps.groups, means.groups)
  counts = np.bincount(steps.groups, minlength=3)
  assert counts[0] and counts[1] and not counts[2]
  for j, count in enumerate(counts):
    change = oracle.add(means.models[j], models[j], -1.)
    assert_models_close(
        steps.models[j], oracle.add(models[j], change, count / 6))


def small_far(w):
  """A model with a large loss for every client: penalty alone decides."""
  return oracle.add(w, {"kernel": np.full_like(w["kernel"], 50.),
                        "bias": np.full_like(w["bias"], 50.)})


# FeSEM.


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_fesem_with_one_centre_is_fedavg(problem, weights):
  _, clients, batches, w = problem
  result = clustered.fesem_round(
      [w], [w] * 6, clients, IDS, batches, RATE, L2, weights)
  assert_models_close(
      result.models[0], fedavg(problem, weights == "uniform"))


def test_fesem_round(problem):
  _, clients, batches, w = problem
  shift = {"kernel": np.zeros((6, 3)), "bias": np.array([1., 0., 0.])}
  centres = [w, oracle.add(w, shift), oracle.add(w, shift, 9.)]
  local = {1: oracle.add(w, shift, .6), 3: oracle.add(w, shift, .4)}
  result = clustered.fesem_round(
      centres, local, clients, IDS, batches, RATE, L2, first={4: 1})
  assert result.groups.tolist() == [1, 0, 1]
  ends = {i: clustered.local_sgd(
      centres[j], *clients[i], batches[i], RATE, L2)
      for i, j in zip(IDS, result.groups)}
  assert_models_close(result.models[0], ends[3])
  assert_models_close(
      result.models[1], oracle.uniform_mean([ends[1], ends[4]]))
  assert_models_close(result.models[2], centres[2], 0.)
  assert sorted(result.local) == IDS and sorted(local) == [1, 3]
  for i in IDS:
    assert_models_close(result.local[i], ends[i], 0.)
  # The E-step of the next round sees the new local models.
  again = clustered.fesem_round(
      result.models, result.local, clients, [4], batches, RATE, L2)
  assert again.groups.tolist() == [1]


# CFL.


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_cfl_without_splits_is_fedavg(problem, weights):
  _, clients, batches, w = problem
  result = clustered.cfl_round(
      clustered.cfl_start(w, clients), clients, IDS, batches, RATE, np.inf,
      np.inf, L2, weights=weights, missing="zero")
  assert not result.splits and result.mean_norms
  assert_models_close(
      result.state.models[0], fedavg(problem, weights == "uniform"))


def test_single_linkage_minimises_the_cross_similarity():
  rng = np.random.default_rng(6)
  updates = rng.normal(size=(7, 5))
  best = min(
      clustered.cross_similarity(updates, (0,) + rest)
      for rest in itertools.product((0, 1), repeat=6) if any(rest))
  labels = clustered.bipartition(updates, "single")
  assert labels[0] == 0
  assert clustered.cross_similarity(updates, labels) == pytest.approx(best)


def opposite_clients():
  """Two labels of the same features: clients 0, 3 against 1, 2, 4."""
  x = np.array([[1., 2.], [2., 1.]])
  labels = [0, 1, 1, 0, 1]
  clients = [(x * (1. + .1 * i), np.full(2, y)) for i, y in enumerate(labels)]
  w = {"kernel": np.zeros((2, 2)), "bias": np.zeros(2)}
  return clients, [[[0, 1]]] * 5, w


@pytest.mark.parametrize("linkage", ["complete", "single"])
def test_cfl_splits_opposite_clients(linkage):
  clients, batches, w = opposite_clients()
  start = clustered.cfl_start(w, clients)
  ids = [4, 2, 0, 1, 3]
  result = clustered.cfl_round(
      start, clients, ids, batches, RATE, .2, .2, linkage=linkage,
      gamma_max=.9)
  split = result.splits[0]
  assert (split.kept, split.moved) == ([0, 3], [1, 2, 4])
  assert -1. <= split.cross < -.99
  assert result.state.membership == {0: 0, 1: 1, 2: 1, 3: 0, 4: 1}
  ends = {i: clustered.local_sgd(w, *clients[i], batches[i], RATE)
          for i in ids}
  assert_models_close(
      result.state.models[0], oracle.uniform_mean([ends[0], ends[3]]))
  assert_models_close(
      result.state.models[1], oracle.uniform_mean([ends[i] for i in (1, 2, 4)]))
  norms = {i: np.linalg.norm(clustered.vector(v)) for i, v in ends.items()}
  # The updates are nearly parallel: signed norms give the mean's.
  assert result.max_norms[0] == pytest.approx(norms[4])
  signed = sum(norms[i] * (1 if i in (0, 3) else -1) for i in ids) / 5
  assert result.mean_norms[0] == pytest.approx(abs(signed), rel=1e-2)
  # Clusters go on by themselves; one of two members is too small to split.
  later = clustered.cfl_round(
      result.state, clients, ids, batches, RATE, np.inf, 0., linkage=linkage)
  assert sorted(later.splits) == [1]
  assert later.splits[1].kept[0] == 1
  assert len(later.state.models) == 3
  assert later.groups.tolist() == [1, 1, 0, 1, 0]


@pytest.mark.parametrize("settings", [
    {"eps1": .01}, {"eps2": 9.}, {"gamma_max": 1.}, {"splitting": False},
    {"min_size": 6}])
def test_every_condition_of_a_split_is_needed(settings):
  clients, batches, w = opposite_clients()
  settings = {"eps1": .2, "eps2": .2, "gamma_max": .9} | settings
  result = clustered.cfl_round(
      clustered.cfl_start(w, clients), clients, range(5), batches, RATE,
      **settings)
  assert not result.splits and len(result.state.models) == 1


def test_cfl_uses_last_updates_of_absent_members():
  clients, batches, w = opposite_clients()
  state = clustered.cfl_start(w, clients)
  first = clustered.cfl_round(
      state, clients, [0, 1, 2], batches, RATE, np.inf, 0.)
  assert not first.splits and not first.mean_norms
  second = clustered.cfl_round(
      first.state, clients, [3, 4], batches, RATE, np.inf, 0.)
  assert second.splits[0].kept == [0, 3]
  # Client 3 alone moves cluster 0.
  assert_models_close(second.state.models[0], second.trained[0])
  assert_models_close(
      second.state.updates[1], first.state.updates[1], 0.)
  third = clustered.cfl_round(
      second.state, clients, [0], batches, RATE, 0., 0.)
  assert_models_close(third.state.models[1], second.state.models[1], 0.)


# FL+HC.


def test_update_distances_by_hand():
  updates = [[3., 0.], [0., 4.], [6., 0.]]
  for metric, expected in (
      ("l1", [7, 3, 10]), ("l2", [5, 3, 52 ** .5]), ("cosine", [1, 0, 1])):
    found = clustered.update_distances(updates, metric)
    np.testing.assert_allclose(found[np.triu_indices(3, 1)], expected)
    np.testing.assert_array_equal(found, found.T)


def test_flhc_clusters_updates():
  clients, batches, _ = opposite_clients()
  w = {"kernel": np.full((2, 2), 3.), "bias": np.full(2, 3.)}
  for metric, linkage in (("l1", "complete"), ("l2", "ward"),
                          ("cosine", "average")):
    found = clustered.flhc_cluster(
        w, clients, batches, RATE, .5, metric=metric, linkage=linkage)
    assert found.labels.tolist() == [0, 1, 1, 0, 1]
  with pytest.raises(ValueError, match="ward"):
    clustered.flhc_cluster(w, clients, batches, RATE, 1., linkage="ward")


def test_flhc_with_infinite_threshold_is_fedavg(problem):
  _, clients, batches, w = problem
  labels = clustered.flhc_cluster(
      w, clients, batches, RATE, np.inf, L2).labels
  assert not labels.any()
  result = clustered.group_round(
      [w], labels[IDS], clients, IDS, batches, RATE, L2)
  assert_models_close(result.models[0], fedavg(problem))


def test_flhc_ward_is_that_of_scikit_learn(problem):
  _, clients, batches, w = problem
  found = clustered.flhc_cluster(
      w, clients, batches, RATE, .3, L2, metric="l2", linkage="ward")
  expected = cluster.AgglomerativeClustering(
      n_clusters=None, distance_threshold=.3, linkage="ward").fit(
          [clustered.vector(u) for u in found.updates])
  np.testing.assert_array_equal(
      found.labels, clustered.number_labels(expected.labels_))
  assert 1 < len(set(found.labels)) < 6


# Data shift and scores.


def test_total_variation_by_hand():
  p = clustered.label_histogram([0, 0, 2, 2], 3)
  assert p.tolist() == [.5, 0., .5]
  assert clustered.total_variation(p, [1, 1, 2]) == pytest.approx(.25)
  assert clustered.total_variation([10, 0, 0], [0, 7, 0]) == 1.
  assert clustered.total_variation([2, 4], [1, 2]) == 0.
  assert clustered.label_histogram([], 2).tolist() == [0., 0.]


def test_purity_by_hand():
  found, truth = [0, 0, 0, 5, 5], [2, 2, 1, 1, 1]
  assert clustered.purity(found, truth) == pytest.approx(4 / 5)
  assert clustered.purity([0, 1, 2], [4, 4, 4]) == 1.
  assert clustered.purity([4, 4, 4, 4], [0, 0, 1, 2]) == .5


@pytest.mark.parametrize("found, truth, expected", [
    ([0, 0, 1, 1], [1, 1, 0, 0], 1.),
    ([0, 0, 1, 1], [0, 1, 0, 1], -.5),
    ([0, 0, 0, 0], [3, 3, 3, 3], 1.),
    ([0, 1, 2], [2, 1, 0], 1.),
    ([0, 0, 0], [0, 1, 2], 0.),
    # Pairs: 2 common, 4 found, 4 true, 10 in all; (2 - 1.6) / (4 - 1.6).
    ([0, 0, 0, 1, 1], [0, 0, 1, 1, 1], 1 / 6),
])
def test_adjusted_rand_by_hand(found, truth, expected):
  assert clustered.adjusted_rand(found, truth) == pytest.approx(expected)


def test_adjusted_rand_is_that_of_scikit_learn():
  rng = np.random.default_rng(3)
  for groups in (2, 5):
    found, truth = rng.integers(groups, size=(2, 30))
    assert clustered.adjusted_rand(found, truth) == pytest.approx(
        metrics.adjusted_rand_score(truth, found))
