"""FedEM against NumPy: rounds, mixtures, and what it becomes with one component."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import problems
from tests.algorithms import bridge
from tests.reference import diversified as oracle
from tests.reference import mixtures

#: Clients that come again, clients that never come.
COHORTS = [[0, 1, 4, 5], [1, 2, 6, 9], [0, 4, 7, 8]]
NEVER, K = 3, 3
WORK = dict(local_steps=4, batch_size=6, client_lr=0.3)


def components_of(state):
  models = problems.row(state.models, 0)
  return [
    bridge.to_oracle(problems.row(models, m))
    for m in range(len(jax.tree.leaves(models)[0]))
  ]


@pytest.mark.program
@pytest.mark.parametrize(
  "settings",
  [
    pytest.param(WORK, marks=pytest.mark.fast),
    dict(local_epochs=1, batch_size=20, client_weights="uniform"),
  ],
)
def test_rounds_and_what_is_deployed_are_those_of_numpy(problem, settings):
  h, rounds = bridge.rounds(problem, "fedem", COHORTS, **settings)
  components, weights = components_of(rounds[0].before), {}
  assert np.ptp([np.abs(w).sum() for w in components]) > 0
  for r in rounds:
    for i in r.ids:
      weights.setdefault(i, np.full(K, 1 / K))
    before = components
    components = mixtures.fedem_round(
      components,
      weights,
      problem.clients,
      r.ids,
      r.batches,
      h.client_lr,
      problems.L2,
      h.client_weights,
    )
    models = problems.row(r.state.models, 0)
    for m in range(K):
      bridge.assert_step_close(
        before[m], problems.row(models, m), components[m], rtol=3e-4
      )
    for i in r.ids:
      np.testing.assert_allclose(r.state.memory.weights[i], weights[i], atol=2e-6)
    size, read = 52, bridge.read(r.batches)
    assert bridge.counts(r.aux) == [K * size, K * size, 1, K * read]
  assert max(pi.max() for pi in weights.values()) > 0.45  # no longer equal

  algorithm = bridge.build(problem, "fedem", **settings)
  deploy = bridge.deployer(problem, "fedem", **settings)
  mixed = algorithm.client_model(problem.model)
  member = np.asarray(algorithm.membership(r.state))
  for client in (4, NEVER, bridge.NOBODY):
    params = deploy(r.state, client, holder=0)[0]
    x, y = problem.clients[0]
    pi = weights.get(client)
    if pi is None:
      pi = mixtures.responsibilities(components, np.full(K, 1 / K), x, y).mean(0)
    np.testing.assert_allclose(params["weights"], pi, atol=2e-6)
    np.testing.assert_allclose(
      mixed.apply(params, x),
      mixtures.mixed_log_probabilities(components, pi, x),
      rtol=1e-4,
      atol=1e-4,
    )
  for i in range(12):
    assert member[i] == (np.argmax(weights[i]) if i in weights else -1)


def test_without_examples_the_weights_stay_equal(problem):
  deploy = bridge.deployer(problem, "fedem", **WORK)
  _, rounds = bridge.rounds(problem, "fedem", COHORTS[:1], **WORK)
  params = deploy(rounds[0].state, NEVER, holder=bridge.NOBODY)[0]
  np.testing.assert_array_equal(params["weights"], np.full(K, np.float32(1 / K)))


def test_one_component_is_fedavg(problem):
  """Up to rounding, with the state of an optimizer; its mixture is the model."""
  settings = dict(WORK, client_optimizer="adam")
  _, one = bridge.rounds(problem, "fedem", COHORTS, num_components=1, **settings)
  _, rounds = bridge.rounds(problem, "fedavg", COHORTS, **settings)
  for a, b in zip(one, rounds):
    problems.assert_close(
      problems.row(a.state.models, (0, 0)), bridge.model_of(b.state)
    )
    problems.assert_close(a.aux.client["loss"], b.aux.client["loss"])
    problems.assert_equal(a.aux.cost, b.aux.cost)
    problems.assert_equal(a.aux.work, b.aux.work)


def test_sure_responsibilities_are_ifcas_groups(problem):
  """Where pi is one-hot a client trains one component alone, as IFCA does.

  The others are not moved by it but count in the means with what it received.
  """
  algorithm = bridge.build(problem, "fedem", **WORK)
  ids = [0, 1, 4, 5]
  state = bridge.init(problem, algorithm)
  group = np.arange(12) % K
  sure = np.eye(K, dtype=np.float32)[group]
  table = state.memory._replace(weights=jnp.asarray(sure), met=jnp.ones(12, bool))
  before = state._replace(memory=table)
  _, after, _ = bridge.one_round(problem, algorithm, ids, state=before)
  cohort = bridge.cohort_of(problem, ids)
  hparams = bridge.rounds(problem, "fedem", COHORTS[:1], **WORK)[0]
  batches = bridge.batches(problem, cohort, bridge.KEYS[0], hparams)
  share = oracle.average_weights(problem.clients, ids)
  for m, w in enumerate(components_of(before)):
    expected = sum(
      p
      * (
        oracle.sgd(w, problem.clients[i], batches[i], WORK["client_lr"], problems.L2)
        if group[i] == m
        else oracle.local_steps(
          w,
          problem.clients[i],
          batches[i],
          WORK["client_lr"],
          0.0,
          lambda g, v, *_: problems.L2 * v,
        )
      )
      for p, i in zip(share, ids)
    )
    bridge.assert_step_close(w, problems.row(after.models, (0, m)), expected, rtol=3e-4)
  np.testing.assert_allclose(after.memory.weights[jnp.array(ids)], sure[ids], atol=1e-6)
