"""FeSEM against the oracle, its store of local models, and newcomers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.data import layout
from tests import problems
from tests.algorithms import bridge, grouped
from tests.reference import clustered as oracle
from tests.reference import diversified

K, PRE = 3, 4
SETTINGS = dict(pretrain_steps=PRE)


def first_centre(problem, i, start, centres, key):
  """Where a client goes that never trained, by its own training."""
  rows = grouped.batches(problem, [i], grouped.rule_key(key), PRE)[i]
  return oracle.nearest_centre(oracle.local_sgd(
      start, *problem.clients[i], rows, grouped.LR, problems.L2), centres)


@pytest.mark.parametrize("first, weights", [
    ("trained", "examples"), ("initial", "uniform"), ("random", "examples")])
def test_rounds_are_the_oracles(first, weights):
  problem = grouped.problem()
  run = grouped.programs("fesem", first_group=first, client_weights=weights,
                         **SETTINGS)
  params = grouped.zeros()
  played = grouped.play(run, problem.data, grouped.begin(
      run, problem.data, params, key=jax.random.key(6)))
  start, local = bridge.to_oracle(params), {}
  centres = grouped.models_of(played.states[0])
  chosen, again = set(), set()
  for state, aux, ids, key in zip(
      played.states[1:], played.log, grouped.COHORTS, grouped.KEYS):
    new = [i for i in ids if i not in local]
    groups = dict(zip(ids, np.asarray(aux.client["group"]).tolist()))
    where = {
        "trained": lambda i: first_centre(problem, i, start, centres, key),
        "initial": lambda i: oracle.nearest_centre(start, centres),
        "random": groups.get}[first]
    found = oracle.fesem_round(
        centres, local, problem.clients, ids,
        grouped.batches(problem, ids, key), grouped.LR, problems.L2, weights,
        {i: where(i) for i in new})
    grouped.assert_models_close(centres, state, found.models)
    grouped.assert_logged(aux, state, ids, found.groups, K)
    np.testing.assert_allclose(
        aux.server["discrepancy"],
        oracle.discrepancy(found.trained, found.groups, found.models),
        rtol=1e-3)
    chosen |= {groups[i] for i in new}
    again |= set(ids) - set(new)
    centres, local = found.models, found.local
    trained = np.asarray(state.memory.trained)
    assert np.flatnonzero(trained).tolist() == sorted(local)
    table = np.asarray(state.memory.last)
    np.testing.assert_allclose(
        grouped.rows(table[sorted(local)]),
        grouped.vectors([local[i] for i in sorted(local)]), atol=2e-4)
    assert not table[~trained].any()
  assert again
  # A common model has one nearest centre; trained or drawn they differ.
  assert (len(chosen) > 1) == (first != "initial")


def test_one_centre_is_fedavg():
  grouped.assert_is_fedavg("fesem", num_groups=1, group_init="shared")


def test_equal_centres_never_part():
  """All join the first; the others stay as they are, and are empty."""
  shared = grouped.programs("fesem", group_init="shared", **SETTINGS)
  run = grouped.programs("fesem", first_group="trained",
                         client_weights="examples", **SETTINGS)
  problem = grouped.problem()
  params = problems.some_params(problem.model)
  state = grouped.begin(shared, problem.data, params)
  state, aux = run.round(
      state, grouped.cohort_of(problem.data, [1, 4]), grouped.KEYS[0])
  assert np.asarray(aux.server["members"]).tolist() == [2, 0, 0]
  for k in (1, 2):
    problems.assert_equal(
        jax.tree.map(lambda leaf, k=k: leaf[k], state.models), params)
  assert problems.differ(bridge.model_of(state), params)


def test_newcomers_join_their_kind():
  """Centres trained on one kind each, the third far away."""
  problem = grouped.kinds_problem()
  run = grouped.programs("fesem", first_group="trained",
                         client_weights="examples", **SETTINGS)
  state = grouped.begin(run, problem.data, grouped.zeros())
  w0 = bridge.to_oracle(grouped.zeros())
  centres = [diversified.add(w0, {"kernel": np.ones((12, 4)),
                                  "bias": np.ones(4)}, 10.0)]
  for kind in (0, 1):
    x, y = map(np.concatenate, zip(*problem.clients[kind::2]))
    everything = [np.arange(len(y))] * 5
    centres.append(oracle.local_sgd(w0, x, y, everything, 0.2, problems.L2))
  state = state._replace(models=grouped.stacked(centres))
  models = grouped.models_of(state)
  for kind, w in enumerate(grouped.deploy_newcomers(run, state)):
    assert grouped.same(w, models) == 1 + kind


def test_clients_deploy_the_centre_nearest_to_their_last_model():
  problem = grouped.problem()
  run = grouped.programs("fesem", first_group="trained",
                         client_weights="examples", **SETTINGS)
  state = grouped.play(
      run, problem.data, grouped.begin(run, problem.data)).states[-1]
  centres = grouped.models_of(state)
  last = grouped.rows(state.memory.last)
  # Nearest now, not when it last came: the centres have moved since.
  expected = {i: int(np.argmin(np.linalg.norm(
      grouped.vectors(centres) - last[i], axis=1))) for i in range(12)}
  for i in np.flatnonzero(np.asarray(state.memory.trained)).tolist():
    w = run.deploy(state, jnp.int32(i), layout.shard_of(problem.data, i),
                   jax.random.key(0))
    assert grouped.same(bridge.to_oracle(w), centres) == expected[i]
