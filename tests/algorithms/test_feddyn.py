"""FedDyn against the oracle, and what always holds."""

import numpy as np
import pytest

from fedjax_alg import trees
from tests import problems
from tests.algorithms import bridge
from tests.reference import heterogeneity
from tests.reference.baselines import zero_table
from tests.reference.diversified import average_weights, weighted_sum

#: Clients that come again, clients that never come, one without examples.
COHORTS = [[0, 1, 4, 5, 8, 11], [1, 2, 6, 9, 11], [0, 4, 7, 8, 10]]
EMPTY, NEVER = 11, 3
WORK = dict(local_steps=5, batch_size=6, client_lr=0.1, alpha=0.3)


def check_round(problem, r, h, w, linear, table):
  """A round of the clients there is the oracle's, which is returned.

  G_k = -alpha D_k, and h = -alpha mean D.
  """
  reference = heterogeneity.dyn_round(
    w,
    linear,
    table,
    problem.clients[: r.num_joined],
    r.ids,
    r.batches,
    h.client_lr,
    h.alpha,
    problems.L2,
    h.client_weights,
  )
  bridge.assert_step_close(w, bridge.model_of(r.state), reference.model, 2e-4)
  memory = r.state.memory
  bridge.assert_vectors_close(-h.alpha * bridge.to_oracle(memory.mean), reference.h)
  for i, expected in reference.table.items():
    bridge.assert_vectors_close(-h.alpha * bridge.entry(memory.clients, i), expected)
  return reference


@pytest.mark.parametrize(
  "settings",
  [
    WORK,
    dict(
      local_epochs=1, batch_size=8, client_lr=0.05, alpha=0.8, client_weights="examples"
    ),
  ],
)
def test_rounds_are_the_oracles(problem, settings):
  """Slots without a client, and a client without examples, do not count."""
  h, rounds = bridge.rounds(
    bridge.without_examples(problem, EMPTY), "feddyn", COHORTS, slots=8, **settings
  )
  w = bridge.start(problem)
  linear, table = np.zeros_like(w), zero_table(w, problem.clients[:EMPTY])
  for r in rounds:
    reference = check_round(problem, r._replace(num_joined=EMPTY), h, w, linear, table)
    w, linear, table = reference.model, reference.h, reference.table
    assert bridge.counts(r.aux) == [52, 52, 1, bridge.read(r.batches)]
  assert np.abs(table[4]).max() > 0.01
  for i in (NEVER, EMPTY):
    assert not bridge.entry(rounds[-1].state.memory.clients, i).any()


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_with_newcomers_m_is_who_is_there(problem, weights):
  """Against the oracle, whose clients are those there and h their mean."""
  h, rounds = bridge.with_newcomers(problem, "feddyn", client_weights=weights, **WORK)
  w = bridge.start(problem)
  table = zero_table(w, problem.clients)
  for r in rounds:
    present = range(r.num_joined)
    linear = weighted_sum(
      average_weights(problem.clients, present, weights), [table[i] for i in present]
    )
    reference = check_round(problem, r, h, w, linear, table)
    w, table = reference.model, reference.table
  assert np.abs(reference.h).max() > 0.01


def test_without_a_regulariser_the_server_is_nesterovs(problem):
  """alpha -> 0, all clients in every round: FedAvg with momentum 1."""
  everyone = [list(range(12))] * 3
  options = dict(local_steps=2, batch_size=6, client_lr=0.05)
  _, rounds = bridge.rounds(problem, "feddyn", everyone, alpha=1e-7, **options)
  average = bridge.build(problem, "composed", client_weights="uniform", **options)
  fresh = bridge.init(problem, average)
  round_ = problems.quick_jit(average.round)
  cohort = bridge.cohort_of(problem, everyone[0])
  for r in rounds:
    trained, _ = round_(fresh._replace(models=r.before.models), cohort, r.key)
    update = trees.subtract(trained.models, r.before.models)
    momentum = trees.add(trees.repeat(r.before.memory.mean, 1), update)
    problems.assert_close(
      (trees.repeat(r.state.memory.mean, 1), r.state.models),
      (momentum, trees.add(trees.add(r.before.models, update), momentum)),
      rtol=0,
      atol=2e-6,
    )
