"""IFCA against the oracle, and its starts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.rounds import clustered
from tests import problems
from tests.algorithms import bridge, grouped
from tests.reference import clustered as oracle
from tests.reference.diversified import average_weights, sgd

K = 3


def choices(models, clients):
  return np.array(
    [oracle.ifca_choice(models, *client, l2=problems.L2) for client in clients]
  )


@pytest.mark.parametrize(
  "averaging, weights",
  [
    pytest.param("model", "examples", marks=pytest.mark.fast),
    ("model", "uniform"),
    ("gradient", "examples"),
  ],
)
def test_rounds_are_the_oracles(problem, averaging, weights):
  run = grouped.programs("ifca", averaging=averaging, client_weights=weights)
  state = grouped.begin(run, problem.data)
  models = grouped.models_of(state)
  empty, seen = 0, set()
  for r in grouped.rounds(run, problem, state):
    expected = oracle.ifca_round(
      models,
      problem.clients,
      r.ids,
      r.batches,
      grouped.LR,
      problems.L2,
      averaging,
      weights,
    )
    grouped.assert_round(r, models, expected, K)
    np.testing.assert_allclose(
      r.aux.server["train_loss"],
      average_weights(problem.clients, r.ids)
      @ np.asarray(r.aux.client["loss"])[: len(r.ids)],
      rtol=1e-5,
    )
    empty += len(set(expected.groups)) < K
    seen |= set(expected.groups)
    models = expected.models
  assert empty, "no group was ever empty"
  assert len(seen) > 1
  assert r.state.member[10] == -1


PRESENT = [0, 1, 2, 4, 5, 6, 8, 9, 11]


@functools.cache
def draws():
  """What ``reject`` may draw; of each the least share of a group."""
  problem = grouped.problem()
  first = grouped.begin(
    grouped.programs("ifca", averaging="model", client_weights="examples"), problem.data
  )
  later = jax.jit(
    jax.vmap(
      lambda t: clustered.independent_models(
        problem.model, jax.random.fold_in(grouped.START, t), K
      )
    )
  )(jnp.arange(50, dtype=jnp.int32))
  starts = [grouped.models_of(first)] + [
    grouped.models_of(
      first._replace(models=jax.tree.map(lambda leaf, t=t: leaf[t], later))
    )
    for t in range(50)
  ]
  clients = [problem.clients[i] for i in PRESENT]
  return starts, np.array(
    [np.bincount(choices(models, clients), minlength=K).min() for models in starts]
  ) / (len(clients))


@pytest.mark.parametrize("share", [0.23, 1.0])
def test_reject_takes_the_first_draw_that_serves_all_or_the_best(share):
  run = grouped.programs("ifca", group_init=f"reject:{share}")
  state = grouped.begin(run, grouped.problem().data, present=PRESENT)
  starts, least = draws()
  good = np.flatnonzero(least >= share)
  expected = good[0] if len(good) else np.argmax(least)
  assert expected > 0, "the first models were good already"
  assert len(good) == 0 or expected < np.argmax(least)
  np.testing.assert_allclose(grouped.models_of(state), starts[expected], rtol=1e-6)


def test_plus_plus_trains_on_clients_that_are_served_badly(problem):
  run = grouped.programs("ifca", group_init="kmeans++")
  params = problems.some_params(problem.model, size=2.0)  # losses up to 10
  start = bridge.to_oracle(params)
  for key in grouped.KEYS:
    state = grouped.begin(run, problem.data, params, key, PRESENT)
    models = []
    for k, model in enumerate(grouped.models_of(state)):
      choose, work = jax.random.split(jax.random.fold_in(key, k))
      weight = np.min(
        [bridge.losses(problem, w, range(12)) for w in models] or [np.ones(12)], axis=0
      )
      weight = weight * np.isin(np.arange(12), PRESENT)
      client = int(
        jax.random.categorical(choose, jnp.log(jnp.array(weight, jnp.float32)))
      )
      rows = bridge.client_batches(problem, client, work, run.hparams)
      expected = sgd(start, problem.clients[client], rows, grouped.LR, problems.L2)
      bridge.assert_step_close(start, bridge.to_library(model), expected)
      models.append(model)
    assert len({w.tobytes() for w in models}) == K


def test_clients_deploy_the_model_they_choose():
  run = grouped.programs("ifca", averaging="model", client_weights="examples")
  problem = grouped.problem()
  state = grouped.begin(run, problem.data)
  expected = choices(grouped.models_of(state), problem.clients)
  assert len(set(expected)) > 1
  grouped.assert_deploys(run, state, dict(enumerate(expected)))
