"""FedGroup and FedGrouProx against the oracle, step by step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import cluster

import fedjax_alg as fa
from fedjax_alg import trees
from fedjax_alg.algorithms import fedgroup
from fedjax_alg.algorithms.fedgroup import CosineStart, KMeansCenters, RandomStart
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.data import layout
from fedjax_alg.runs import plan, prepare
from tests import problems
from tests.algorithms import bridge, grouped
from tests.reference import clustered as oracle
from tests.reference.diversified import sgd

POOL, PRE = 6, 8
COLD = dict(num_groups=3, centers="kmeans:2", pretrain_steps=PRE)
#: Every setting that changes a formula is at two values at least.
VARIANTS = {
  "default": ("fedgroup", dict(num_groups=2, centers="kmeans:3")),
  "auxiliary": (
    "fedgrouprox",
    dict(mu=0.5, centers="random", cold_start="cosine:auxiliary", eta_g=0.05),
  ),
  "latest": (
    "fedgroup",
    dict(
      centers="kmeans:2,madc",
      cold_start="cosine:latest",
      migration=1.0,
      client_weights="uniform",
    ),
  ),
  "random": ("fedgroup", dict(cold_start="random", eta_g=0.03, inter_group="code")),
}
POOL_KEY, _, PLAN_KEY = jax.random.split(grouped.START, 3)


def programs(variant):
  name, settings = VARIANTS[variant]
  return grouped.programs(name, **COLD | settings)


def pool_batches(problem, ids):
  return grouped.batches(problem, ids, jax.random.split(POOL_KEY)[1], PRE)


def start_oracle(problem, state, params, m):
  """The oracle's state for the pool and the groups that the library found."""
  member = np.asarray(state.member)
  pool = np.flatnonzero(member >= 0).tolist()
  return oracle.fedgroup_start(
    bridge.to_oracle(params),
    problem.clients,
    pool,
    member[pool],
    m,
    pool_batches(problem, pool),
    grouped.LR,
    problems.L2,
  ), pool


@pytest.mark.parametrize("variant", VARIANTS)
def test_cold_start_and_rounds_are_the_oracles(problem, variant):
  run = programs(variant)
  h, m = run.hparams, run.hparams.num_groups
  params = problems.some_params(problem.model)
  state = grouped.begin(run, problem.data, params)
  reference, pool = start_oracle(problem, state, params, m)
  assert len(pool) == (POOL if isinstance(h.centers, KMeansCenters) else m)
  assert set(np.asarray(state.member)[pool].tolist()) == set(range(m))
  w0 = [reference.w0] * m
  grouped.assert_models_close(w0, state, reference.models)
  np.testing.assert_allclose(
    grouped.rows(state.memory.directions), reference.directions, atol=1e-5
  )
  way = getattr(h.cold_start, "direction", "initial")
  planned = np.asarray(state.memory.cold_start_group)
  if h.cold_start == RandomStart():
    cold = set(range(12)) - set(pool)
    assert len({planned[i] for i in cold}) > 1 and planned.min() == 0
    reference.membership.update({i: int(planned[i]) for i in cold})  # drawn once
  for r in grouped.rounds(run, problem, state):
    cold = grouped.batches(
      problem,
      r.ids,
      PLAN_KEY if way == "initial" else grouped.rule_key(r.key),
      PRE,
    )
    expected, new = oracle.fedgroup_round(
      reference,
      problem.clients,
      r.ids,
      r.batches,
      grouped.LR,
      problems.L2,
      getattr(h, "mu", 0.0),
      h.eta_g,
      h.inter_group,
      h.client_weights,
      way,
      cold,
    )
    grouped.assert_round(r, reference.models, expected, m)
    np.testing.assert_allclose(
      grouped.rows(r.state.memory.latest), new.latest, atol=2e-5
    )
    # Who has been in a group stays there.
    then, now = np.asarray(r.before.member), np.asarray(r.state.member)
    np.testing.assert_array_equal(now[then >= 0], then[then >= 0])
    reference, state = new, r.state
  assert state.member[10] == (reference.membership[10] if 10 in pool else -1)
  if isinstance(h.cold_start, CosineStart):
    assert_newcomers_are_the_oracles(run, state, reference)


def assert_newcomers_are_the_oracles(run, state, reference):
  """Clients whose data are those of the clients there are.

  The oracle knows of the groups that have had members, the last ones.
  """
  problem, groups = grouped.problem(), set()
  work = LocalWork(local_steps=PRE, batch_size=6)
  never = len(grouped.models_of(state)) - len(reference.models)
  for i, client in enumerate(problem.clients):
    expected = oracle.assign_cold_client(
      reference,
      client,
      bridge.client_batches(problem, i, jax.random.key(i), work),
      grouped.LR,
      problems.L2,
      run.hparams.cold_start.direction,
    )
    assert grouped.assign_newcomer(run, state, i) == never + expected
    groups.add(expected)
  assert len(groups) > 1


@pytest.mark.parametrize("variant", ["auxiliary", "latest"])
def test_newcomers_join_a_direction_not_a_model(problem, variant):
  """Two groups share a way and one is long: the models would mislead.

  The first group never had a member.
  """
  run = programs(variant)
  state = grouped.begin(run, problem.data, grouped.zeros())
  w0 = bridge.to_oracle(grouped.zeros())
  ways = [
    sgd(w0, problem.clients[i], [np.arange(problems.SIZES[i])] * 5, 0.2, problems.L2)
    for i in (1, 8)
  ]
  # Equal entries for all classes change no prediction.
  models = [4.0 * sum(ways) + ways[0] + 0.6, 4.0 * sum(ways) + ways[1]]
  middle = np.mean(models, axis=0)
  state = state._replace(
    models=grouped.stack_models([middle, *models]),
    memory=state.memory._replace(
      latest=trees.to_matrix(grouped.stack_models([ways[0], *ways]))[0],
      populated=jnp.array([False, True, True]),
    ),
  )
  reference, _ = start_oracle(problem, state, grouped.zeros(), 3)
  assert_newcomers_are_the_oracles(
    run, state, reference._replace(models=models, auxiliary=middle, latest=ways)
  )


@pytest.mark.parametrize("variant", ["default", "latest"])
def test_the_pool_is_clustered_by_the_printed_similarity(problem, variant):
  run = programs(variant)
  params, m = problems.some_params(problem.model), run.hparams.num_groups
  for seed in range(3):
    key = jax.random.key(seed)
    state = grouped.begin(run, problem.data, params, key)
    member = np.asarray(state.member)
    pool = np.flatnonzero(member >= 0).tolist()
    work = jax.random.split(jax.random.split(key, 3)[0])[1]
    updates = oracle.pretrain(
      bridge.to_oracle(params),
      problem.clients,
      pool,
      grouped.batches(problem, pool, work, PRE),
      grouped.LR,
      problems.L2,
    )
    if run.hparams.centers.similarity == "madc":
      np.testing.assert_array_equal(
        oracle.number_labels(member[pool]),
        oracle.cut_at_count(oracle.madc(updates), "complete", m),
      )
      continue
    points = oracle.edc_embedding(updates, m)
    best = cluster.KMeans(m, n_init=20, random_state=0).fit(points).inertia_
    mine = sum(
      ((points[member[pool] == g] - points[member[pool] == g].mean(0)) ** 2).sum()
      for g in set(member[pool])
    )
    assert mine <= best * (1 + 1e-4)


def test_the_pool_is_of_clients_that_are_there(problem):
  present = [0, 1, 3, 4, 7, 9, 11]
  pools = set()
  for seed in range(4):
    state = grouped.begin(
      programs("default"), problem.data, present=present, key=jax.random.key(seed)
    )
    planned, member = (
      np.asarray(a) for a in (state.memory.cold_start_group, state.member)
    )
    pool = np.flatnonzero(member >= 0).tolist()
    assert len(pool) == POOL and set(pool) <= set(present)
    assert np.flatnonzero(planned >= 0).tolist() == present
    pools.add(tuple(pool))
  assert len(pools) > 1
  # Fewer than asked for.
  state = grouped.begin(programs("default"), problem.data, present=[1, 4, 8])
  assert np.flatnonzero(np.asarray(state.member) >= 0).tolist() == [1, 4, 8]
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


# The inter-group step.

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(4, 6)).astype(np.float32)
inter_group_step = jax.jit(fedgroup.inter_group_step, static_argnums=3)


@pytest.mark.parametrize("form", ["printed", "code"])
def test_the_inter_group_step_is_the_oracles(form):
  equal, zero = ROWS.copy(), ROWS.copy()
  equal[2] = equal[0]
  zero[1] = 0.0
  for matrix, members in (
    (ROWS, [1, 1, 1, 1]),
    (equal, [1, 1, 1, 1]),
    (zero, [1, 1, 1, 1]),
    (ROWS, [1, 0, 1, 1]),
    (ROWS, [0, 0, 1, 0]),
  ):
    populated = np.array(members, bool)
    expected = matrix.astype(np.float64)
    # Groups that never had a member have no say, and are told nothing.
    expected[populated] = oracle.inter_group(expected[populated], 0.1, form)
    mine = np.asarray(inter_group_step(matrix, populated, np.float32(0.1), form))
    np.testing.assert_allclose(mine, expected, atol=1e-6)
    np.testing.assert_array_equal(mine[~populated], matrix[~populated])
    assert populated.sum() == 1 or np.abs(mine - matrix).max() > 1e-3
    np.testing.assert_array_equal(
      inter_group_step(matrix, populated, np.float32(0), form),
      matrix,
    )


@pytest.mark.parametrize("variant", ["default", "latest", "random"])
def test_groups_that_stay_empty_stay_finite(problem, variant):
  """Clients that are all alike make one group; the others are never used."""
  run = programs(variant)
  params = problems.some_params(problem.model)
  equal_data = problem.data._replace(
    x=jnp.zeros_like(problem.data.x), y=jnp.zeros_like(problem.data.y)
  )
  state = grouped.begin(run, equal_data, params)
  populated = np.asarray(state.memory.populated)
  if variant != "latest":  # ties: as many groups as are asked for
    assert populated.sum() == 1
  states, log = grouped.play(run, equal_data, state)
  for state, aux, ids in zip(states[1:], log, grouped.COHORTS):
    assert all(
      np.isfinite(leaf).all()
      for leaf in jax.tree.leaves(state)
      if jnp.issubdtype(leaf.dtype, jnp.floating)
    )
    assert all(np.isfinite(leaf).all() for leaf in aux.server.values())
    assert not np.asarray(aux.server["members"])[~populated].any()
    assert aux.server["participants"].sum() == len(ids)
  for g in np.flatnonzero(~populated):
    problems.assert_equal(bridge.model_of(state, g), params)


# Clients whose data change.


def frequencies(y):
  return oracle.label_histogram(y, problems.CLASSES)


def swap_rows(problem, ids, client, offset, size):
  """A cohort in which ``client`` holds other rows."""
  cohort = grouped.cohort_of(problem.data, ids)
  slot = ids.index(client)
  shards = cohort.shards._replace(
    offset=cohort.shards.offset.at[slot].set(offset),
    size=cohort.shards.size.at[slot].set(size),
  )
  return cohort._replace(shards=shards, weight=shards.size.astype(jnp.float32))


def with_data_of(problem, ids, client, holder):
  data = problem.data
  return swap_rows(problem, ids, client, data.offset[holder], data.size[holder])


def test_a_client_is_grouped_anew_when_its_classes_change(problem):
  run = programs("default")
  params = problems.some_params(problem.model)
  state = grouped.begin(run, problem.data, params)
  reference, _ = start_oracle(problem, state, params, run.hparams.num_groups)
  planned = np.asarray(state.memory.cold_start_group)
  num_moved = 0
  for client in range(12):
    for holder in (1, 2, 4, 6, 8):
      shift = oracle.total_variation(
        *(frequencies(problem.clients[i][1]) for i in (client, holder))
      )
      ids = sorted({client, 5, 9})
      key = jax.random.key(50)
      as_other = problem._replace(
        clients=[problem.clients[holder if i == client else i] for i in range(12)]
      )
      rows = grouped.batches(as_other, [client], grouped.rule_key(key), PRE)[client]
      expected = planned.copy()
      if shift > 0.2:
        expected[client] = oracle.assign_cold_client(
          reference, problem.clients[holder], rows, grouped.LR, problems.L2
        )
      cohort = with_data_of(problem, ids, client, holder)
      new, _ = run.round(state, cohort, key)
      member = np.asarray(new.member)
      np.testing.assert_array_equal(member[ids], expected[ids])
      if expected[client] == planned[client]:
        continue
      num_moved += 1
      # From now on these are its classes, and it stays.
      next_state, aux = run.round(new, cohort, jax.random.key(51))
      assert next_state.member[client] == expected[client]
      assert new.memory.cold_start_group[client] == expected[client]
      np.testing.assert_allclose(
        next_state.memory.histogram[client],
        frequencies(problem.clients[holder][1]),
        atol=1e-6,
      )
      assert np.isfinite(aux.server["discrepancy"])
  assert num_moved > 2


def test_a_small_shift_and_migration_1_move_nobody(problem):
  params = None
  run = programs("default")
  state = grouped.begin(run, problem.data, params)
  # One example less of 90.
  new, _ = run.round(
    state,
    swap_rows(problem, [1, 4], 1, problem.data.offset[1], problem.data.size[1] - 1),
    grouped.KEYS[0],
  )
  assert new.member[1] == state.memory.cold_start_group[1]
  problems.assert_equal(new.memory.histogram, state.memory.histogram)

  run = programs("latest")
  state = grouped.begin(run, problem.data, params)
  state, _ = run.round(
    state, grouped.cohort_of(problem.data, grouped.EVERYONE), grouped.KEYS[0]
  )
  then = np.asarray(state.member)
  for client in range(12):
    state, _ = run.round(
      state, with_data_of(problem, [client], client, (client + 1) % 12), grouped.KEYS[1]
    )
  np.testing.assert_array_equal(state.member, then)


def test_clients_deploy_the_model_of_their_group():
  run = programs("default")
  state = grouped.begin(run, grouped.problem().data)
  grouped.assert_deploys(run, state, dict(enumerate(state.memory.cold_start_group)))


def test_pre_training_is_counted_when_clients_first_take_part(problem):
  """Also if nobody was there in round 1."""
  run = programs("default")
  state = grouped.begin(run, problem.data)
  cohort = grouped.cohort_of(problem.data, grouped.COHORTS[0])
  later = run.algorithm.idle(state, cohort)
  (after, first), (_, second) = (
    run.round(start, cohort, grouped.KEYS[0]) for start in (state, later)
  )
  problems.assert_equal(second.cost, first.cost)
  third = run.round(after, cohort, grouped.KEYS[0])[1]
  assert third.cost.central_flops < first.cost.central_flops


def test_of_few_clients_all_are_pretrained_with_a_warning():
  """With the default of 60, and by the program of where all are named.

  So test_composed.py has it.
  """
  fed = fa.federate("digits", num_clients=12)
  options = dict(rounds=2, cohort_size=4, evaluate="assigned", pretrain_steps=2)
  warnings = [
    prepare.cautions(
      plan.from_keywords("fedgroup", fed, **options, **changes).prepare(), set()
    )
    for changes in ({}, dict(centers="kmeans:4"))
  ]
  assert warnings == [
    [
      "`centers`=kmeans: pretrain_scale=20 would pre-train 60 clients for "
      "`num_groups`=3, all 12 are"
    ],
    [],
  ]


@functools.cache
def group_pool(similarity):
  """(updates, mask) -> the groups of a pool, six at most."""
  centers = KMeansCenters(similarity=similarity, group_count="silhouette")
  return problems.quick_jit(
    lambda rows, mask: centers.group(6, rows, mask, jax.random.key(0))
  )


@pytest.mark.parametrize("similarity", fedgroup.SIMILARITIES)
@pytest.mark.parametrize("number", [2, 4])
def test_the_silhouette_finds_how_many_directions(similarity, number):
  """Updates of so many directions; who is no client is in no group."""
  rng = np.random.default_rng(number)
  kinds = np.arange(30) % number
  updates = 3 * np.eye(20)[kinds] + 0.2 * rng.normal(size=(30, 20))
  updates *= rng.uniform(0.5, 5, size=(30, 1))
  mask = np.arange(30) < 27
  updates[27:] = np.nan
  groups = np.asarray(group_pool(similarity)(updates.astype(np.float32), mask))
  assert (groups[27:] == -1).all()
  pairs = {*zip(kinds[:27].tolist(), groups[:27].tolist())}
  assert len(pairs) == number == len(set(groups[:27]))


@pytest.mark.parametrize("similarity", fedgroup.SIMILARITIES)
def test_equal_directions_are_one_group(similarity):
  """Without it rounding decides how many groups equal clients are in."""
  rng = np.random.default_rng(0)
  updates = rng.normal(size=20) * rng.uniform(0.5, 5, size=(30, 1))
  mask = np.arange(30) < 27
  groups = group_pool(similarity)(updates.astype(np.float32), mask)
  np.testing.assert_array_equal(groups, np.where(mask, 0, -1))


@pytest.mark.parametrize("direction", ["initial", "auxiliary", "latest"])
def test_groups_that_were_not_found_take_no_part(problem, direction):
  """Empty groups of five are as if they were not there."""
  run, start = (
    grouped.programs(
      "fedgroup",
      **COLD
      | dict(
        num_groups=5,
        centers="kmeans:2,group_count=silhouette",
        cold_start=f"cosine:{way}",
      ),
    )
    # The other two have one start.
    for way in (direction, "initial" if direction == "initial" else "latest")
  )
  state = grouped.begin(start, problem.data)
  pool = np.asarray(state.member)
  number = pool.max() + 1
  assert 1 < number < 5
  np.testing.assert_array_equal(state.memory.populated, np.arange(5) < number)
  for after in grouped.play(run, problem.data, state)[0][1:]:
    assert np.asarray(after.member).max() < number


def test_a_threshold_for_classes_that_stay_is_refused():
  """Without it nobody is told that no client is ever grouped anew."""
  fed = fa.federate("digits", num_clients=12)
  with pytest.raises(fa.OptionError, match="^migration=0.5: "):
    fa.run("fedgroup", fed, rounds=1, cohort_size=4, migration=0.5)


def test_pre_training_is_billed_once_by_the_examples_that_it_reads(problem):
  """Else clients that join later cost in round 1, too, and whole data cost nothing."""
  steps, joins = 3, np.repeat([0, 1], [7, 5])
  settings = dict(batch_size=0, local_steps=1, pretrain_steps=steps)
  run = grouped.programs("fedgroup", num_groups=2, **settings)
  data = problem.data._replace(joins=jnp.asarray(joins, jnp.int32))
  state = run.begin(
    problems.some_params(problem.model), layout.present(data, 0), grouped.START
  )
  examples = np.array([len(y) for _, y in problem.clients])
  size = problems.CLASSES * (problems.FEATURES + 1)
  for n, key in enumerate(grouped.KEYS[:3]):
    state, aux = run.round(state, layout.present(data, n), key)
    takes_part, is_new = joins <= n, joins == n
    read = examples[takes_part].sum() + steps * examples[is_new].sum()
    assert aux.cost.example_gradients == read
    assert aux.cost.down == size + is_new.sum() * size // takes_part.sum()
