"""FeSEM against the oracle, its store of local models, and newcomers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.client.minibatches import LocalWork
from tests import problems
from tests.algorithms import bridge, grouped
from tests.reference import clustered as oracle
from tests.reference.diversified import sgd

K, PRE = 3, 4
TRAINED = f"trained:{PRE}"


def first_centre(problem, i, start, centres, key):
  """Where a client goes that never trained, by its own training."""
  rows = grouped.batches(problem, [i], grouped.rule_key(key), PRE)[i]
  return oracle.nearest_centre(
    sgd(start, problem.clients[i], rows, grouped.LR, problems.L2), centres
  )


@pytest.mark.parametrize(
  "first, weights",
  [(TRAINED, "examples"), ("initial", "uniform"), ("random", "examples")],
)
def test_rounds_are_the_oracles(problem, first, weights):
  run = grouped.programs("fesem", first_group=first, client_weights=weights)
  params = grouped.zeros()
  state = grouped.begin(run, problem.data, params, key=jax.random.key(6))
  start, local = bridge.to_oracle(params), {}
  centres = grouped.models_of(state)
  first_groups, returning = set(), set()
  for r in grouped.rounds(run, problem, state):
    new = [i for i in r.ids if i not in local]
    groups = dict(zip(r.ids, np.asarray(r.aux.client["group"]).tolist()))
    where = {
      TRAINED: lambda i: first_centre(problem, i, start, centres, r.key),
      "initial": lambda i: oracle.nearest_centre(start, centres),
      "random": groups.get,
    }[first]
    expected, local = oracle.fesem_round(
      centres,
      local,
      problem.clients,
      r.ids,
      r.batches,
      grouped.LR,
      problems.L2,
      weights,
      {i: where(i) for i in new},
    )
    grouped.assert_round(r, centres, expected, K)
    first_groups |= {groups[i] for i in new}
    returning |= set(r.ids) - set(new)
    centres = expected.models
    trained = np.asarray(r.state.memory.trained)
    assert np.flatnonzero(trained).tolist() == sorted(local)
    table = np.asarray(r.state.memory.last)
    np.testing.assert_allclose(
      grouped.rows(table[sorted(local)]), [local[i] for i in sorted(local)], atol=2e-4
    )
    assert not table[~trained].any()
  assert returning
  # A common model has one nearest centre; trained or drawn they differ.
  assert (len(first_groups) > 1) == (first != "initial")


def test_newcomers_join_the_centre_nearest_to_their_own_training(problem):
  run = grouped.programs("fesem", first_group=TRAINED, client_weights="examples")
  state = grouped.begin(run, problem.data, grouped.zeros())
  w0 = bridge.to_oracle(grouped.zeros())
  work = LocalWork(local_steps=PRE, batch_size=grouped.WORK["batch_size"])
  trained = {
    i: sgd(
      w0,
      problem.clients[i],
      bridge.client_batches(problem, i, jax.random.key(i), work),
      grouped.LR,
      problems.L2,
    )
    for i in (0, 1, 2, 8)
  }
  centres = [trained[1], trained[2], trained[8]]
  state = state._replace(models=grouped.stack_models(centres))
  for i, w in trained.items():
    assert grouped.assign_newcomer(run, state, i) == oracle.nearest_centre(w, centres)


def test_newcomers_deploy_no_centre_of_nobody(problem):
  """Such a centre is a random model, and the nearest to one that hardly trained."""
  run = grouped.programs("fesem", first_group=TRAINED, client_weights="examples")
  state = grouped.begin(run, problem.data, grouped.zeros())
  w0 = bridge.to_oracle(grouped.zeros())
  state = state._replace(models=grouped.stack_models([w0, w0 + 3.0, w0 + 2.0]))
  assert grouped.assign_newcomer(run, state, 0) == 0
  for groups, joins in (([1, 1], 1), ([1, 2], 2), ([0, 1], 0)):
    member = state.member.at[jnp.arange(2)].set(jnp.array(groups, jnp.int32))
    later = state._replace(member=member)
    assert grouped.assign_newcomer(run, later, 5) == joins


def test_clients_deploy_the_centre_nearest_to_their_last_model(problem):
  run = grouped.programs("fesem", first_group=TRAINED, client_weights="examples")
  state = grouped.play(run, problem.data, grouped.begin(run, problem.data))[0][-1]
  centres = grouped.models_of(state)
  last = grouped.rows(state.memory.last)
  # Nearest now, not when it last came: the centres have moved since.
  grouped.assert_deploys(
    run,
    state,
    {
      i: oracle.nearest_centre(last[i], centres)
      for i in np.flatnonzero(np.asarray(state.memory.trained)).tolist()
    },
  )
