"""PACFL against the oracle: subspaces, groups, rounds and newcomers."""

import functools

import jax
import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.spatial import distance

import fedjax_alg as fa
from fedjax_alg import grouping, models, registry
from fedjax_alg.base import FedSpec, num_params
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from tests import problems, shared_programs
from tests.algorithms import bridge, grouped
from tests.reference import clustered as rounds_oracle
from tests.reference import pacfl as oracle

P, KEY = 2, jax.random.key(4)


@functools.cache
def subspaces(subspace="all"):
  """The oracle's subspaces of the clients of ``grouped.problem``."""
  return [
    oracle.client_vectors(x, y, P, subspace) for x, y in grouped.problem().clients
  ]


def labels_of(linkage, angle, subspace, present=grouped.EVERYONE, count=3):
  """The oracle's groups of the clients that are there."""
  chosen = [subspaces(subspace)[i] for i in present]
  return rounds_oracle.cut_at_count(oracle.proximity(chosen, angle), linkage, count)


#: Every linkage and every angle; those that meet here alone are compared with the
#: oracle in tests/grouping.
CHOICES = [
  dict(linkage="average", angle="sum", subspace="all"),
  dict(linkage="complete", angle="smallest", subspace="all"),
  dict(linkage="single", angle="entry", subspace="classes"),
]


def run_of(**choice):
  return grouped.programs("pacfl", max_groups=3, num_vectors=P, **choice)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: "-".join(c.values()))
def test_groups_and_newcomers_are_the_oracles(problem, choice):
  """Clients 4, 7 and 9 come late; by all that is said of them."""
  present = [i for i in range(12) if i not in (4, 7, 9)]
  labels = labels_of(present=present, **choice)
  assert len(set(labels)) == 3
  run = run_of(**choice)
  state = grouped.begin(run, problem.data, present=present)
  expected = np.full(12, -1)
  expected[present] = labels
  np.testing.assert_array_equal(state.member, expected)

  late = {
    i: oracle.nearest_group(
      subspaces(choice["subspace"])[i],
      [subspaces(choice["subspace"])[j] for j in present],
      labels,
      choice["linkage"],
      choice["angle"],
    )
    for i in (4, 7, 9)
  }
  after, aux = run.round(state, grouped.cohort_of(problem.data, [4, 7, 9]), KEY)
  expected[[4, 7, 9]] = [late[i] for i in (4, 7, 9)]
  np.testing.assert_array_equal(after.member, expected)
  # Who joins in a round, and who came before it, are each asked once.
  sent = sum(map(len, subspaces(choice["subspace"])))
  size = num_params(jax.eval_shape(problem.model.init, KEY))
  assert aux.cost.up == size + sent * problems.FEATURES // 3
  assert aux.cost.down == size and aux.cost.exchanges == 2
  again, aux = run.round(after, grouped.cohort_of(problem.data, [0, 4, 7]), KEY)
  assert aux.cost.up == size and aux.cost.exchanges == 1
  np.testing.assert_array_equal(again.member, expected)
  # The models have moved from a common start by now, so that they can be told.
  for i in (4, 7, 9):
    moved = run.round(again, grouped.cohort_of(problem.data, present), KEY)[0]
    assert grouped.assign_newcomer(run, moved, i) == late[i]


def test_rounds_are_fedavg_in_the_oracles_groups(problem):
  run = run_of(**CHOICES[0])
  labels = labels_of(**CHOICES[0])
  params = problems.some_params(problem.model)
  expected_models = [bridge.to_oracle(params)] * 3
  for r in grouped.rounds(run, problem, grouped.begin(run, problem.data, params)):
    expected = rounds_oracle.group_round(
      expected_models,
      labels[r.ids],
      problem.clients,
      r.ids,
      r.batches,
      grouped.LR,
      problems.L2,
      weights="examples",
    )
    grouped.assert_round(r, expected_models, expected, 3)
    expected_models = expected.models
  grouped.assert_deploys(run, r.state, dict(enumerate(labels)))


def test_a_threshold_in_degrees_decides_the_number(problem):
  distances = oracle.proximity(subspaces(), "sum")
  heights = hierarchy.linkage(distance.squareform(distances), "average")[:, 2]
  threshold = float(heights[-4:-2].mean())
  run = grouped.programs(
    "pacfl", max_groups=8, num_vectors=P, angle="sum", cut=f"distance:{threshold!r}"
  )
  labels = rounds_oracle.cut_at_distance(distances, "average", threshold)
  assert 2 < len(set(labels)) < 8
  state = grouped.begin(run, problem.data)
  np.testing.assert_array_equal(state.member, labels)


def test_one_group_sends_no_subspace(problem):
  run = grouped.programs("pacfl", max_groups=1)
  state = grouped.begin(run, problem.data)
  assert not state.memory.vectors.size
  after, aux = run.round(state, grouped.cohort_of(problem.data, [0, 1]), KEY)
  assert aux.cost.exchanges == 1 and int(aux.cost.up) == int(aux.cost.down)


def planes(num_clients=12, kinds=3, rows=30):
  """Clients [(x, y)] whose data are each of one of three planes, and whose is which."""
  rng = np.random.default_rng(0)
  bases = [np.linalg.qr(rng.normal(size=(20, 2)))[0] for _ in range(kinds)]
  kind = np.arange(num_clients) % kinds
  x = [rng.normal(size=(rows, 2)) @ bases[k].T for k in kind]
  x = np.concatenate(x) + 0.02 * rng.normal(size=(num_clients * rows, 20))
  y = rng.integers(2, size=len(x))
  return list(zip(np.split(np.float32(x), num_clients), np.split(y, num_clients))), kind


@functools.cache
def grouper(num_clients, **settings):
  """(data of so many clients) -> the groups that the set-up finds."""
  model = models.Softmax().build((20,), 2)
  algorithm = registry.build(
    "pacfl", model, map_clients=clients.ClientMap(), num_vectors=2, **settings
  )

  def groups(data):
    spec = FedSpec(num_clients, 5, 2, (20,))
    state = algorithm.init(model.init(KEY), spec, KEY)
    return algorithm.setup(state, layout.everyone(data), KEY).member

  return problems.quick_jit(groups)


@pytest.mark.parametrize("angle", grouping.ANGLES)
def test_clients_of_a_plane_are_a_group(angle):
  """Each angle takes a plane's own basis for close."""
  clients_, kind = planes()
  groups = np.asarray(
    grouper(12, max_groups=3, angle=angle)(problems.client_data(clients_))
  )
  assert len({*zip(kind.tolist(), groups.tolist())}) == 3
  assert set(groups) == {0, 1, 2}


def test_newcomers_of_a_plane_join_its_group():
  """In a run."""
  clients_, kind = planes()
  x, y = map(np.concatenate, zip(*clients_))
  ids = np.repeat(np.arange(12), 30)
  data = fa.from_arrays(x, y, ids, x_test=x, y_test=y, test_client_ids=ids)
  result = shared_programs.outcome(
    "pacfl",
    fa.federate(data, partition="natural", newcomers_at=((1, 3),)),
    deploys=False,
    rounds=3,
    cohort_size=9,
    max_groups=3,
    num_vectors=2,
    angle="entry",
  )
  (groups,) = result.membership
  assert len({*zip(kind.tolist(), groups.tolist())}) == 3
  assert set(groups) == {0, 1, 2}


def test_who_has_no_numbers_or_no_classes_is_refused(problem):
  rng = np.random.default_rng(0)
  x, ids = rng.integers(0, 9, (24, 5)), np.repeat(np.arange(4), 6)
  words = fa.from_arrays(
    x, x[:, 0] % 2, ids, x_test=x, y_test=x[:, 0] % 2, test_client_ids=ids
  )
  with pytest.raises(fa.OptionError, match="^algorithm=pacfl: .* token ids"):
    fa.run(
      "pacfl",
      fa.federate(words, partition="natural"),
      model="lstm",
      rounds=1,
      cohort_size=2,
    )
  numbers = fa.from_arrays(
    rng.normal(size=(24, 5)), rng.normal(size=24), ids, task="regression"
  )
  with pytest.raises(fa.OptionError, match="^subspace=classes: .* no class"):
    fa.run(
      "pacfl",
      fa.federate(numbers, partition="natural:test_share=0.3"),
      subspace="classes",
      cohort_size=2,
      rounds=1,
    )


@pytest.mark.parametrize("number", [2, 3, 5])
def test_the_silhouette_finds_how_many_planes(number):
  clients_, kind = planes(15, number)
  find_groups = grouper(15, max_groups=6, cut="silhouette")
  groups = np.asarray(find_groups(problems.client_data(clients_)))
  assert len({*zip(kind.tolist(), groups.tolist())}) == number == len(set(groups))


def test_equal_planes_are_one_group():
  """Angles of equal subspaces are rounding errors, which must not part them."""
  clients_, _ = planes(15, 1)
  find_groups = grouper(15, max_groups=6, cut="silhouette")
  groups = find_groups(problems.client_data(clients_[:1] * 15))
  np.testing.assert_array_equal(groups, 0)
