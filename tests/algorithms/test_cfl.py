"""CFL against the oracle: when, how and whom it parts."""

import functools

import jax
import numpy as np

from fedjax_alg.algorithms import cfl
from fedjax_alg.base import num_params
from fedjax_alg.client.minibatches import LocalWork
from tests import problems
from tests.algorithms import bridge, grouped
from tests.reference import clustered as oracle
from tests.reference.diversified import average_weights, weighted_sum

K, AFTER = 4, 1
WORK = LocalWork(local_steps=5, batch_size=6)
#: Client 10 comes after two partings, client 3 after the first.
COHORTS = [
  [0, 1, 2, 4, 5, 7, 8],
  [1, 2, 4, 6, 9, 11],
  [0, 3, 4, 7, 8, 11],
  [2, 3, 5, 8, 10],
  [0, 1, 6, 10],
]


@functools.cache
def by_criterion():
  """``cfl`` of complete linkage and any halves, by its criterion."""
  return grouped.by_arguments(
    cfl.CFLHParams(max_groups=K, gamma_max=0.0, **grouped.WORK),
    cfl.bipartition_rule,
    **{"thresholds.eps1": 1e3, "thresholds.eps2": 0.0},
    split_after=AFTER,
  )


@functools.cache
def relative():
  """``cfl`` with relative thresholds, by its criterion."""
  return grouped.by_arguments(
    cfl.CFLHParams(max_groups=K, thresholds=cfl.RelativeThresholds(), **grouped.WORK),
    cfl.bipartition_rule,
    **{"thresholds.eps1_share": 2.0, "thresholds.eps2_share": 0.0},
    split_after=0,
  )


class Oracle:
  """The oracle's server, and the tree that late members walk down.

  It knows of a client only once that has trained: others have no say in a
  parting.
  """

  def __init__(self, problem, w, weights="examples", **settings):
    self.problem, self.weights = problem, weights
    self.settings = settings
    self.state = oracle.CflState([w], {}, {})
    self.tree = []  # (parent, model, mean of who stayed, of who left)

  def walk(self, i, key):
    """The group of a client that has none, ``key`` its own."""
    group = 0
    for child, (parent, w, *means) in enumerate(self.tree, 1):
      if parent == group:
        rows = bridge.client_batches(
          self.problem, i, jax.random.fold_in(key, child), WORK
        )
        (update,) = oracle.pretrain(
          w, self.problem.clients, [i], {i: rows}, grouped.LR, problems.L2
        )
        group = (group, child)[oracle.assign_by_cosine(update, means)]
    return group

  def mean(self, members, updates):
    shares = average_weights(self.problem.clients, members, self.weights)
    return weighted_sum(shares, [updates[i] for i in members])

  def play(self, ids, key, splitting=True):
    self.state.membership.update(
      {
        i: self.walk(i, jax.random.fold_in(grouped.rule_key(key), i))
        for i in ids
        if i not in self.state.membership
      }
    )
    before = self.state.models
    result = oracle.cfl_round(
      self.state,
      self.problem.clients,
      ids,
      grouped.batches(self.problem, ids, key),
      grouped.LR,
      l2=problems.L2,
      weights=self.weights,
      splitting=splitting,
      **self.settings,
    )
    for group, split in result.splits.items():
      self.tree.append(
        (
          group,
          before[group],
          *(
            self.mean(half, result.state.updates) for half in (split.kept, split.moved)
          ),
        )
      )
    self.state = result.state
    return result


def assert_rounds_are_the_oracles(run, reference, cohorts, most, after=0):
  """Rounds from the oracle's model on; returns the states."""
  problem = reference.problem
  start = grouped.begin(run, problem.data, bridge.to_library(reference.state.models[0]))
  rounds = grouped.rounds(run, problem, start, cohorts)
  for number, r in enumerate(rounds):
    before = reference.state.models
    expected = reference.play(r.ids, r.key, number >= after and len(before) < most)
    new = reference.state
    before = before + [
      before[parent] for parent, *_ in reference.tree[len(before) - 1 :]
    ]
    assert int(r.state.memory.number) == len(new.models)
    # The distance is to the model of the group that it is in now.
    grouped.assert_round(
      r, before, expected, most, [new.membership[i] for i in r.ids], new.models
    )
    np.testing.assert_array_equal(
      run.algorithm.membership(r.state), [new.membership.get(i, -1) for i in range(12)]
    )
  return [start, *(r.state for r in rounds)]


def start():
  return bridge.to_oracle(problems.some_params(grouped.problem().model))


def test_rounds_are_the_oracles_when_some_come(problem):
  """Groups part on the last updates of all that ever came."""
  reference = Oracle(problem, start(), eps1=1e3, eps2=0.0)
  states = assert_rounds_are_the_oracles(by_criterion()(), reference, COHORTS, K, AFTER)
  numbers = [int(state.memory.number) for state in states]
  assert numbers == [1, 1, 2, 4, 4, 4]
  member = np.asarray(states[2].member)
  assert member[3] == member[10] == -1
  assert {reference.state.membership[i] for i in (3, 10)} == {0, 1}
  # Newcomers walk down the same tree.
  state, groups = states[-1], set()
  for i in range(12):
    group = grouped.assign_newcomer(by_criterion()(), state, i)
    assert group == reference.walk(i, jax.random.key(i))
    groups.add(group)
  assert len(groups) > 2


def test_rounds_are_the_oracles_when_all_come(problem):
  """Single linkage, uniform weights, halves too alike to be parted at once."""
  settings = dict(linkage="single", gamma_max=0.55)
  run = grouped.programs(
    "cfl",
    max_groups=3,
    split_after=0,
    client_weights="uniform",
    thresholds="fixed:0.5,0.8",
    **settings,
  )
  reference = Oracle(problem, start(), "uniform", eps1=0.5, eps2=0.8, **settings)
  states = assert_rounds_are_the_oracles(run, reference, [grouped.EVERYONE] * 5, 3)
  assert [int(s.memory.number) for s in states] == [1, 1, 2, 3, 3, 3]


def test_a_group_is_parted_when_both_norms_say_so(problem):
  reference = Oracle(problem, start(), eps1=1e3, eps2=0.0)
  first = reference.play(grouped.EVERYONE, grouped.KEYS[0], False)
  mean, largest = first.norms[0]
  state = grouped.begin(by_criterion()(), problem.data, bridge.to_library(start()))
  cohort = grouped.cohort_of(problem.data, grouped.EVERYONE)

  def number(eps1, eps2, after):
    norms = {"thresholds.eps1": eps1, "thresholds.eps2": eps2}
    run = by_criterion()(split_after=after, **norms)
    new, _ = run.round(state, cohort, grouped.KEYS[0])
    return int(new.memory.number)

  close = 1e-4
  assert number(mean * (1 + close), largest * (1 - close), 0) == 2
  assert number(mean * (1 - close), largest * (1 - close), 0) == 1
  assert number(mean * (1 + close), largest * (1 + close), 0) == 1
  assert number(mean * (1 + close), largest * (1 - close), 1) == 1
  # Two members are too few.
  cohort = grouped.cohort_of(problem.data, [1, 2])
  assert number(1e3, 0.0, 0) == 1
  cohort = grouped.cohort_of(problem.data, [1, 2, 4])
  assert number(1e3, 0.0, 0) == 2


def test_relative_thresholds_are_multiples_of_the_largest_mean_update(problem):
  """So the same numbers serve another rate, for which fixed ones fail.

  Of one group of all clients the mean update in the first round is R itself.
  """
  run = relative()
  reference = Oracle(problem, start(), eps1=1e3, eps2=0.0)
  norms = [
    reference.play(grouped.EVERYONE, key, False).norms[0] for key in grouped.KEYS[:3]
  ]
  cohort = grouped.cohort_of(problem.data, grouped.EVERYONE)

  def play(share1, share2, rounds, after):
    shares = {"thresholds.eps1_share": share1, "thresholds.eps2_share": share2}
    programs = run(split_after=after, **shares)
    state = grouped.begin(programs, problem.data, bridge.to_library(start()))
    for key in grouped.KEYS[:rounds]:
      state, _ = programs.round(state, cohort, key)
    return state.memory

  close, (mean, largest) = 1e-4, norms[0]
  spread = largest / mean
  assert int(play(1 + close, spread * (1 - close), 1, 0).number) == 2
  assert int(play(1 - close, spread * (1 - close), 1, 0).number) == 1
  assert int(play(1 + close, spread * (1 + close), 1, 0).number) == 1
  # Later rounds are compared with the largest so far, not with their own.
  r = max(mean for mean, _ in norms)
  assert norms[2][0] < 0.9 * r
  share = norms[2][0] / r
  np.testing.assert_allclose(play(share, 0.0, 3, 9).largest, r, rtol=1e-5)
  assert int(play(share * (1 + close), 0.0, 3, 2).number) == 2
  assert int(play(share * (1 - close), 0.0, 3, 2).number) == 1


def test_the_mean_update_of_all_clients_is_in_the_ledger(problem):
  """With relative thresholds: a product and a sum for each client and coordinate."""
  state = grouped.begin(relative()(), problem.data)
  cohort = grouped.cohort_of(problem.data, [0, 1])
  _, aux = relative()(split_after=9).round(state, cohort, grouped.KEYS[0])
  fixed = grouped.begin(by_criterion()(), problem.data)
  _, plain = by_criterion()(split_after=9).round(fixed, cohort, grouped.KEYS[0])
  size = num_params(state.models) // K
  assert aux.cost.central_flops - plain.cost.central_flops == 2 * 12 * size


def test_there_are_never_more_groups_than_allowed(problem):
  """Three groups are to be parted, there is room for one more."""
  cohort = grouped.cohort_of(problem.data, grouped.EVERYONE)
  reference = Oracle(problem, start(), eps1=1e3, eps2=0.0)
  state = grouped.begin(by_criterion()(), problem.data, bridge.to_library(start()))
  for key, eps2 in zip(grouped.KEYS, (0.0, 0.9, 0.0)):
    before = dict(reference.state.membership)
    reference.settings["eps2"] = eps2
    result = reference.play(grouped.EVERYONE, key)
    run = by_criterion()(split_after=0, **{"thresholds.eps2": eps2})
    state, _ = run.round(state, cohort, key)
  assert list(result.splits) == [0, 1, 2]
  expected = before | {i: 3 for i in result.splits[0].moved}
  np.testing.assert_array_equal(state.member, [expected[i] for i in grouped.EVERYONE])
  for key in grouped.KEYS[3:5]:
    state, aux = by_criterion()(split_after=0).round(state, cohort, key)
    assert int(state.memory.number) == K
    assert np.asarray(aux.server["members"]).sum() == 12
  np.testing.assert_array_equal(state.member, [expected[i] for i in grouped.EVERYONE])


def test_clients_deploy_the_model_of_their_group(problem):
  run = by_criterion()()
  state = grouped.play(
    run, problem.data, grouped.begin(run, problem.data), COHORTS, grouped.KEYS
  )[0][-1]
  member = np.asarray(state.member)
  assert (member >= 0).all() and len(set(member)) > 2
  grouped.assert_deploys(run, state, dict(enumerate(member)))
