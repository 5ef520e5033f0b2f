"""Ditto against the oracle."""

import jax
import numpy as np
import pytest

from fedjax_alg.algorithms import ditto
from tests import problems
from tests.algorithms import bridge
from tests.reference import heterogeneity

#: Clients that come again, clients that never come, one without examples.
COHORTS = [[0, 1, 4, 5, 8, 11], [1, 2, 6, 9, 11], [0, 4, 7, 8, 10]]
EMPTY, NOBODY, NEVER = 9, bridge.NOBODY, 3
KEY = jax.random.key(9)
WORK = dict(local_steps=4, batch_size=6, client_lr=0.2, personal_lr=0.1, lam=0.7)


def personal_batches(problem, i, key, work):
  return bridge.client_batches(
    problem, i, jax.random.fold_in(key, ditto._PERSONAL), work.personal_work
  )


def oracle_round(problem, w, personal, h, ids, batches, own_batches):
  return heterogeneity.ditto_round(
    w,
    personal,
    problem.clients,
    ids,
    batches,
    own_batches,
    h.client_lr,
    h.personal_lr,
    h.lam,
    h.server_lr,
    problems.L2,
    h.client_weights,
  )


def simulate_round(problem, w, personal, h, r):
  """The batches of the personal steps, and the round."""
  own_batches = {
    i: personal_batches(problem, i, jax.random.fold_in(r.key, i), h) for i in r.ids
  }
  return own_batches, oracle_round(
    problem, w, personal, h, r.ids, r.batches, own_batches
  )


@pytest.mark.parametrize(
  "settings",
  [
    dict(personal_steps=3, server_lr=0.8, **WORK),
    dict(
      local_epochs=1,
      batch_size=20,
      personal_start="initial",
      lam=2.0,
      client_weights="uniform",
    ),
  ],
)
def test_rounds_and_what_is_deployed_are_the_oracles(problem, settings):
  problem = bridge.without_examples(problem, EMPTY)
  h, rounds = bridge.rounds(problem, "ditto", COHORTS, slots=8, **settings)
  start = w = bridge.start(problem)
  at_first = h.personal_start == "initial"
  personal = {i: w for i in range(12)} if at_first else {}
  for r in rounds:
    own_batches, result = simulate_round(problem, w, personal, h, r)
    bridge.assert_step_close(w, bridge.model_of(r.state), result.model, 2e-4)
    for i in r.ids:
      bridge.assert_step_close(
        w, problems.row(r.state.memory.models, i), result.personal[i], 3e-4
      )
    w, personal = result.model, result.personal
    assert bridge.counts(r.aux) == [
      52,
      52,
      1,
      bridge.read(r.batches) + bridge.read(own_batches),
    ]
  state = rounds[-1].state
  personal_models = state.memory.models
  met = sorted({i for ids in COHORTS for i in ids} - {EMPTY})
  assert np.flatnonzero(state.memory.met).tolist() == met
  problems.assert_equal(
    problems.row(personal_models, EMPTY), problems.some_params(problem.model)
  )

  deploy = bridge.deployer(problem, "ditto", **settings)
  for i, client_id in ((4, 4), (NEVER, NEVER), (NEVER, NOBODY), (0, NOBODY)):
    v, copy = deploy(state, client_id, KEY, holder=i)
    reference = oracle_round(
      problem,
      w,
      {i: start} if at_first else {},
      h,
      [i],
      {i: bridge.client_batches(problem, i, KEY, h)},
      {i: personal_batches(problem, i, KEY, h)},
    )
    bridge.assert_step_close(w, copy, reference.trained[0], 3e-4)
    if client_id in met:
      problems.assert_equal(v, problems.row(personal_models, client_id))
    else:
      bridge.assert_step_close(w, v, reference.personal[i], 3e-4)
  for client in (EMPTY, NOBODY):
    for result in deploy(state, client, KEY):
      problems.assert_equal(result, bridge.model_of(state))


def test_a_newcomer_starts_at_the_model_it_receives(problem):
  """It is unmet until it comes; nothing of it is kept before."""
  h, rounds = bridge.with_newcomers(problem, "ditto", **WORK)
  personal = {}
  for r in rounds:
    w = bridge.to_oracle(bridge.model_of(r.before))
    personal = simulate_round(problem, w, personal, h, r)[1].personal
    memory = r.state.memory
    assert np.flatnonzero(memory.met).tolist() == sorted(personal)
    for i in r.ids:
      bridge.assert_step_close(w, problems.row(memory.models, i), personal[i], 5e-4)
  assert max(personal) > 4
