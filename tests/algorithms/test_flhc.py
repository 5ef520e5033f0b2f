"""FL+HC against the oracle and SciPy's clusters, and who comes late."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial import distance
from sklearn.metrics import silhouette_score

from fedjax_alg.algorithms import flhc
from fedjax_alg.algorithms.common import DistanceCut
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge, grouped
from tests.reference import clustered as oracle

K, AFTER = 4, 2
COHORTS = [*grouped.COHORTS, [0, 3, 6, 10]]


@functools.cache
def by_threshold():
  """``flhc`` of L1 and complete linkage, by its threshold."""
  return grouped.by_arguments(
    flhc.FLHCHParams(
      max_groups=K, cluster_after=AFTER, cut=DistanceCut(), **grouped.WORK
    ),
    lambda model, hparams: flhc.once_rule(model, hparams, clients.ClientMap()),
    **{"cut.threshold": 1.0},
  )


def clustering(problem, w, key, present=grouped.EVERYONE, **settings):
  """The oracle's updates and distances of the clients that are there."""
  batches = grouped.batches(problem, present, grouped.rule_key(key, 1))
  return oracle.flhc_cluster(
    w,
    [problem.clients[i] for i in present],
    [batches[i] for i in present],
    grouped.LR,
    problems.L2,
    **settings,
  )


def assert_rounds_are_the_oracles(run, labels_of, number, weights):
  """AFTER rounds of FedAvg, the clustering, groups on their own."""
  problem = grouped.problem()
  params = problems.some_params(problem.model)
  models, labels = [bridge.to_oracle(params)] * number, np.zeros(12, int)
  for n, r in enumerate(
    grouped.rounds(run, problem, grouped.begin(run, problem.data, params), COHORTS)
  ):
    if n == AFTER:
      models = [models[0]] * number
      labels = labels_of(models[0], r.key)
      np.testing.assert_array_equal(r.state.member, labels)
    assert bool(r.state.memory.done) == (n >= AFTER)
    expected = oracle.group_round(
      models,
      labels[r.ids],
      problem.clients,
      r.ids,
      r.batches,
      grouped.LR,
      problems.L2,
      weights=weights,
    )
    before, after = models, expected.models
    if n < AFTER:  # one model; the others do not count yet
      before, after = before[:1], after[:1]
    grouped.assert_round(r, before, expected, number, models=after)
    models = expected.models
  assert len(set(labels)) > 1


def test_rounds_are_the_oracles_with_a_threshold(problem):
  """A height that leaves two groups of four allowed."""
  threshold = between_merges(problem, 2)

  def labels_of(w, key):
    labels = oracle.cut_at_distance(
      clustering(problem, w, key)[1], "complete", threshold
    )
    assert set(labels) == {0, 1}
    return labels

  assert_rounds_are_the_oracles(
    by_threshold()(**{"cut.threshold": threshold}), labels_of, K, "examples"
  )


def between_merges(problem, groups):
  """A threshold that leaves so many groups after AFTER rounds."""
  run = by_threshold()()
  state = grouped.play(
    run, problem.data, grouped.begin(run, problem.data), COHORTS[:AFTER]
  )[0][-1]
  _, distances = clustering(
    problem, bridge.to_oracle(bridge.model_of(state)), grouped.KEYS[AFTER]
  )
  heights = hierarchy.linkage(distance.squareform(distances), "complete")[:, 2]
  return heights[-groups:][:2].mean()


def test_rounds_are_the_oracles_with_a_number(problem):
  """Ward's linkage of L2 distances; exactly so many groups."""

  def labels_of(w, key):
    return oracle.cut_at_count(clustering(problem, w, key, metric="l2")[1], "ward", 3)

  run = grouped.programs(
    "flhc",
    max_groups=3,
    cluster_after=AFTER,
    client_weights="uniform",
    metric="l2",
    linkage="ward",
  )
  assert_rounds_are_the_oracles(run, labels_of, 3, "uniform")


def test_no_more_groups_than_allowed(problem):
  """The threshold would leave seven, max_groups leaves four."""
  threshold = between_merges(problem, 7)
  run = by_threshold()(**{"cut.threshold": threshold})
  state = grouped.play(
    run, problem.data, grouped.begin(run, problem.data), COHORTS[: AFTER + 1]
  )[0]
  w = bridge.to_oracle(bridge.model_of(state[AFTER]))
  _, distances = clustering(problem, w, grouped.KEYS[AFTER])
  assert oracle.cut_at_distance(distances, "complete", threshold).max() == 6
  np.testing.assert_array_equal(
    state[-1].member, oracle.cut_at_count(distances, "complete", K)
  )
  # Nobody was there in that round: the next one clusters.
  late = run.algorithm.idle(state[AFTER], ())
  problems.assert_equal(
    grouped.play(
      run, problem.data, late, COHORTS[AFTER : AFTER + 1], grouped.KEYS[AFTER:]
    )[0][-1],
    state[-1]._replace(round=late.round + 1),
  )


def test_the_silhouette_of_the_updates_decides_the_number(problem):
  """Of all numbers up to max_groups that with scikit-learn's largest value."""
  run = grouped.programs(
    "flhc", max_groups=6, cluster_after=0, cut="silhouette", linkage="average"
  )
  params = problems.some_params(problem.model)
  state = grouped.begin(run, problem.data, params)
  _, distances = clustering(problem, bridge.to_oracle(params), grouped.KEYS[0])
  cuts = [oracle.cut_at_count(distances, "average", k) for k in range(2, 7)]
  scores = [silhouette_score(distances, cut, metric="precomputed") for cut in cuts]
  state, aux = run.round(
    state, grouped.cohort_of(problem.data, [0, 1]), grouped.KEYS[0]
  )
  np.testing.assert_array_equal(state.member, cuts[int(np.argmax(scores))])
  fixed_round = grouped.programs(
    "flhc", max_groups=6, cluster_after=0, linkage="average"
  ).algorithm.round

  @problems.quick_jit  # the participants' training is dead code
  def fixed(*inputs):
    state, aux = fixed_round(*inputs)
    return state.member, aux.cost.central_flops

  member, paid = fixed(
    grouped.begin(run, problem.data, params),
    grouped.cohort_of(problem.data, [0, 1]),
    grouped.KEYS[0],
  )
  assert len(set(member.tolist())) == 6
  counted = float(aux.cost.central_flops) - float(paid)
  np.testing.assert_allclose(counted, 2 * 12 * 12 * 6 * 5, rtol=0.05)
  # Clients with the same six rows, which are one batch, only differ by rounding.
  equal = problem.data._replace(
    offset=jnp.zeros_like(problem.data.offset),
    size=jnp.full_like(problem.data.size, run.hparams.batch_size),
  )
  state, _ = run.round(
    grouped.begin(run, equal, params), grouped.cohort_of(equal, [0, 1]), grouped.KEYS[0]
  )
  assert bool(state.memory.done)
  np.testing.assert_array_equal(state.member, 0)


def test_who_comes_after_the_clustering_joins_the_nearest_update(problem):
  present = [i for i in range(12) if i not in (4, 7, 9)]
  threshold = between_merges(problem, 3)
  run = by_threshold()(**{"cut.threshold": threshold})
  state = grouped.begin(run, problem.data)

  def cohort(ids):
    joins = jnp.array([0 if i in present else 99 for i in range(12)])
    late = problem.data._replace(joins=joins)
    padded = jnp.array([*ids, *[12] * (12 - len(ids))], jnp.int32)
    return layout.take_cohort(late, padded, 0)

  for ids, key in zip(([0, 1, 5], [2, 3, 6], [0, 2, 8]), grouped.KEYS):
    w = bridge.to_oracle(bridge.model_of(state))
    state, _ = run.round(state, cohort(ids), key)
  updates, distances = clustering(problem, w, key, present)
  labels = oracle.cut_at_distance(distances, "complete", threshold)
  assert 1 < len(set(labels)) <= K
  expected = np.full(12, -1)
  expected[present] = labels
  np.testing.assert_array_equal(state.member, expected)
  centres = [np.array(updates)[labels == g].mean(0) for g in range(max(labels) + 1)]
  np.testing.assert_allclose(
    grouped.rows(state.memory.directions)[: len(centres)], centres, atol=1e-5
  )

  key = grouped.KEYS[4]
  after, aux = run.round(state, grouped.cohort_of(problem.data, [4, 7, 9]), key)

  def nearest(i, batches):
    """The group that a client joins by its update."""
    (update,) = oracle.pretrain(
      w, problem.clients, [i], batches, grouped.LR, problems.L2
    )
    return np.argmin([np.abs(update - c).sum() for c in centres])

  batches = grouped.batches(problem, [4, 7, 9], grouped.rule_key(key))
  for i in (4, 7, 9):
    assert after.member[i] == nearest(i, batches)
  assert aux.server["members"].sum() == 12
  # Known by now, it is not asked again.
  repeated, _ = run.round(
    after, grouped.cohort_of(problem.data, [4]), jax.random.key(99)
  )
  np.testing.assert_array_equal(repeated.member, after.member)
  # A newcomer deploys the model of the group that it would join.
  work = LocalWork(
    **{name: grouped.WORK[name] for name in ("local_steps", "batch_size")}
  )
  for i in (2, 4, 9):
    rows = {i: bridge.client_batches(problem, i, key, work)}
    assert grouped.assign_newcomer(run, after, i, key) == nearest(i, rows)
  # Who has no data, and so no update, joins no empty group either.
  nothing = layout.shard_of(problem.data, 0)._replace(size=jnp.int32(0))
  w = run.deploy(after, jnp.int32(grouped.NOBODY), nothing, key)
  assert grouped.same(w, grouped.models_of(after)) < len(centres) < K
