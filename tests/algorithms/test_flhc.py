"""FL+HC against the oracle and SciPy's clusters, and who comes late."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial import distance

from fedjax_alg.algorithms import flhc
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from fedjax_alg.rounds import clustered
from tests import problems
from tests.algorithms import bridge, grouped
from tests.reference import clustered as oracle

K, AFTER = 4, 2
COHORTS = [*grouped.COHORTS, [0, 3, 6, 10]]


@functools.cache
def by_threshold():
  """``flhc`` whose threshold is an argument: the programs of a threshold.

  L1, complete linkage; the one compilation serves all thresholds.
  """
  model, map_clients = grouped.problem().model, clients.ClientMap()

  def build(threshold):
    hparams = dataclasses.replace(
        flhc.FLHCHParams(max_groups=K, cluster_after=AFTER, **grouped.WORK),
        distance_threshold=threshold)
    return clustered.compose_clustered(
        model, sgd_update(model, hparams, hparams.client_lr),
        flhc.once_rule(model, hparams, map_clients), map_clients=map_clients)

  round_ = problems.quick_jit(lambda threshold, state, cohort, key: build(
      threshold).round(state, cohort, key))
  rest = grouped.jitted(build(0.0), None)
  return lambda threshold: rest._replace(
      round=lambda *inputs: round_(jnp.float32(threshold), *inputs))


def clustering(problem, w, key, threshold, there=None, **settings):
  """The oracle's clusters of the clients that are there, in a round."""
  there = grouped.EVERYONE if there is None else there
  batches = grouped.batches(problem, there, grouped.rule_key(key, 1))
  return oracle.flhc_cluster(
      w, [problem.clients[i] for i in there],
      [batches[i] for i in there], grouped.LR, threshold, problems.L2,
      **settings)


def assert_rounds_are_the_oracles(run, labels_of, number, weights):
  """AFTER rounds of FedAvg, the clustering, groups on their own."""
  problem = grouped.problem()
  params = problems.some_params(problem.model)
  models, labels = [bridge.to_oracle(params)] * number, np.zeros(12, int)
  for n, r in enumerate(grouped.rounds(
      run, problem, grouped.begin(run, problem.data, params), COHORTS)):
    if n == AFTER:
      models = [models[0]] * number
      labels = labels_of(models[0], r.key)
      np.testing.assert_array_equal(r.state.member, labels)
    assert bool(r.state.memory.done) == (n >= AFTER)
    found = oracle.group_round(
        models, labels[r.ids], problem.clients, r.ids, r.batches, grouped.LR,
        problems.L2, weights=weights)
    before, after = models, found.models
    if n < AFTER:  # one model; the others do not count yet
      before, after = before[:1], after[:1]
    grouped.assert_round(r, before, found, number, models=after)
    models = found.models
  assert len(set(labels)) > 1


def test_rounds_are_the_oracles_with_a_threshold():
  """A height that leaves two groups of four allowed."""
  problem = grouped.problem()
  threshold = between_merges(problem, 2)

  def labels_of(w, key):
    found = clustering(problem, w, key, threshold)
    assert set(found.labels) == {0, 1}
    return found.labels

  assert_rounds_are_the_oracles(
      by_threshold()(threshold), labels_of, K, "examples")


def between_merges(problem, groups):
  """A threshold that leaves so many groups after AFTER rounds."""
  run = by_threshold()(0.0)
  state = grouped.play(
      run, problem.data, grouped.begin(run, problem.data),
      COHORTS[:AFTER]).states[-1]
  distances = clustering(
      problem, bridge.to_oracle(bridge.model_of(state)), grouped.KEYS[AFTER],
      0.0).distances
  heights = hierarchy.linkage(
      distance.squareform(distances), "complete")[:, 2]
  return heights[-groups:][:2].mean()


def test_rounds_are_the_oracles_with_a_number():
  """Ward's linkage of L2 distances; exactly so many groups."""
  problem = grouped.problem()
  settings = dict(metric="l2", linkage="ward")

  def labels_of(w, key):
    distances = clustering(problem, w, key, 0.0, **settings).distances
    return oracle.cut_at_count(distances, "ward", 3)

  run = grouped.programs("flhc", max_groups=3, cluster_after=AFTER,
                         client_weights="uniform", **settings)
  assert_rounds_are_the_oracles(run, labels_of, 3, "uniform")


def test_no_more_groups_than_allowed():
  """The threshold would leave seven, max_groups leaves four."""
  problem = grouped.problem()
  threshold = between_merges(problem, 7)
  run = by_threshold()(threshold)
  state = grouped.play(
      run, problem.data, grouped.begin(run, problem.data),
      COHORTS[:AFTER + 1]).states
  w = bridge.to_oracle(bridge.model_of(state[AFTER]))
  found = clustering(problem, w, grouped.KEYS[AFTER], threshold)
  assert len(set(found.labels)) == 7
  np.testing.assert_array_equal(
      state[-1].member, oracle.cut_at_count(found.distances, "complete", K))
  # Nobody was there in that round: the next one clusters.
  late = run.algorithm.idle(state[AFTER], ())
  problems.assert_equal(
      grouped.play(run, problem.data, late, COHORTS[AFTER:AFTER + 1],
                   grouped.KEYS[AFTER:]).states[-1],
      state[-1]._replace(round=late.round + 1))


def deployed(run, state, shard, key):
  """The number of the model that a newcomer deploys."""
  return grouped.same(bridge.to_oracle(run.deploy(
      state, jnp.int32(grouped.NOBODY), shard, key)),
                      grouped.models_of(state))


def test_who_comes_after_the_clustering_joins_the_nearest_update():
  problem = grouped.problem()
  there = [i for i in range(12) if i not in (4, 7, 9)]
  threshold = between_merges(problem, 3)
  run = by_threshold()(threshold)
  state = grouped.begin(run, problem.data)

  def cohort(ids):
    joins = jnp.array([0 if i in there else 99 for i in range(12)])
    late = problem.data._replace(joins=joins)
    padded = jnp.array([*ids, *[12] * (12 - len(ids))], jnp.int32)
    return layout.take_cohort(late, padded, 0)

  for ids, key in zip(([0, 1, 5], [2, 3, 6], [0, 2, 8]), grouped.KEYS):
    w = bridge.to_oracle(bridge.model_of(state))
    state, _ = run.round(state, cohort(ids), key)
  found = clustering(problem, w, key, 0.0, there)
  labels = oracle.cut_at_distance(found.distances, "complete", threshold)
  assert 1 < len(set(labels)) <= K
  expected = np.full(12, -1)
  expected[there] = labels
  np.testing.assert_array_equal(state.member, expected)
  centres = [np.mean([oracle.vector(u) for u, label in zip(
      found.updates, labels) if label == g], 0) for g in range(max(labels) + 1)]
  np.testing.assert_allclose(
      grouped.rows(state.memory.directions)[:len(centres)], centres, atol=1e-5)

  key = grouped.KEYS[4]
  after, aux = run.round(
      state, grouped.cohort_of(problem.data, [4, 7, 9]), key)
  batches = grouped.batches(problem, [4, 7, 9], grouped.rule_key(key))
  for i in (4, 7, 9):
    update, = oracle.pretrain(
        w, problem.clients, [i], batches, grouped.LR, problems.L2)
    gaps = [np.abs(oracle.vector(update) - c).sum() for c in centres]
    assert after.member[i] == np.argmin(gaps)
  assert aux.server["members"].sum() == 12
  # Known by now, it is not asked again.
  again, _ = run.round(
      after, grouped.cohort_of(problem.data, [4]), jax.random.key(99))
  np.testing.assert_array_equal(again.member, after.member)
  # A newcomer deploys the model of the group that it would join.
  work = LocalWork(**{name: grouped.WORK[name] for name in (
      "local_steps", "batch_size")})
  for i in (2, 4, 9):
    rows = {i: bridge.client_batches(problem, i, key, work)}
    update, = oracle.pretrain(
        w, problem.clients, [i], rows, grouped.LR, problems.L2)
    gaps = [np.abs(oracle.vector(update) - c).sum() for c in centres]
    assert deployed(run, after, layout.shard_of(problem.data, i), key) == (
        np.argmin(gaps))
  # Who has no data, and so no update, joins no empty group either.
  nothing = layout.shard_of(problem.data, 0)._replace(size=jnp.int32(0))
  assert deployed(run, after, nothing, key) < len(centres) < K
