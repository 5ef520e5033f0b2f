"""FedDyn against the oracle, and what always holds."""

import numpy as np
import pytest

from fedjax_alg import registry, trees
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge
from tests.reference import diversified as oracle
from tests.reference import heterogeneity
from tests.reference.baselines import zero_table

#: Clients that come again, clients that never come, one without examples.
COHORTS = [[0, 1, 4, 5, 8, 11], [1, 2, 6, 9, 11], [0, 4, 7, 8, 10]]
EMPTY, NEVER = 11, 3
WORK = dict(local_steps=5, batch_size=6, client_lr=0.1, alpha=0.3)


def check_memory(memory, h, table, alpha):
  """G_k = -alpha D_k, and h = -alpha mean D."""

  def term(drift):
    return oracle.add(oracle.zeros_like(h), bridge.to_oracle(drift), -alpha)

  bridge.assert_vectors_close(term(memory.mean), h)
  for i, expected in table.items():
    bridge.assert_vectors_close(
        term(problems.row(memory.clients, i)), expected)


@pytest.mark.parametrize("settings", [
    WORK, dict(local_epochs=1, batch_size=8, client_lr=0.05, alpha=0.8,
               client_weights="examples")])
def test_rounds_are_the_oracles(problem, settings):
  """Slots without a client, and a client without examples, do not count."""
  h, rounds = bridge.rounds(
      bridge.without_examples(problem, EMPTY), "feddyn", COHORTS, slots=8,
      **settings)
  there, w = problem.clients[:EMPTY], bridge.start(problem)
  linear, table = oracle.zeros_like(w), zero_table(w, there)
  for r in rounds:
    found = heterogeneity.dyn_round(
        w, linear, table, there, r.ids, r.batches, h.client_lr, h.alpha,
        problems.L2, h.client_weights)
    bridge.assert_step_close(w, bridge.model_of(r.state), found.model, 2e-4)
    check_memory(r.state.memory, found.h, found.table, h.alpha)
    w, linear, table = found.model, found.h, found.table
    assert [int(count) for count in r.aux.cost[:4]] == [
        52, 52, 1, bridge.read(r.batches)]
  assert np.abs(oracle.to_vector(table[4])).max() > 0.01
  for i in (NEVER, EMPTY):
    assert not oracle.to_vector(
        bridge.entry(rounds[-1].state.memory.clients, i)).any()


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_with_newcomers_m_is_who_is_there(problem, weights):
  """Against the oracle, whose clients are those there and h their mean."""
  work, rounds = bridge.with_newcomers(
      problem, "feddyn", client_weights=weights, **WORK)
  w = bridge.start(problem)
  table = zero_table(w, problem.clients)
  for r in rounds:
    there = problem.clients[:r.there]
    shares = heterogeneity.average_weights(there, range(r.there), weights)
    h = oracle.weighted_sum(shares, [table[i] for i in range(r.there)])
    found = heterogeneity.dyn_round(
        w, h, table, there, r.ids, r.batches, work.client_lr, work.alpha,
        problems.L2, weights)
    bridge.assert_step_close(w, bridge.model_of(r.state), found.model, 2e-4)
    check_memory(r.state.memory, found.h, found.table, work.alpha)
    w, table = found.model, found.table
  assert np.abs(oracle.to_vector(found.h)).max() > 0.01


def test_without_a_regulariser_the_server_is_nesterovs(problem):
  """alpha -> 0, all clients in every round: FedAvg with momentum 1."""
  everyone = [list(range(12))] * 3
  more = dict(local_steps=2, batch_size=6, client_lr=0.05)
  _, rounds = bridge.rounds(problem, "feddyn", everyone, alpha=1e-7, **more)
  average = registry.build(
      "composed", problem.model, map_clients=clients.ClientMap(),
      client_weights="uniform", **more)
  fresh = average.init(
      problems.some_params(problem.model), problem.spec, bridge.KEYS[0])
  round_ = problems.quick_jit(average.round)
  cohort = bridge.cohort_of(problem, everyone[0])
  for r in rounds:
    trained, _ = round_(
        fresh._replace(models=r.before.models), cohort, r.key)
    update = trees.subtract(trained.models, r.before.models)
    momentum = trees.add(trees.repeat(r.before.memory.mean, 1), update)
    problems.assert_close(
        (trees.repeat(r.state.memory.mean, 1), r.state.models),
        (momentum, trees.add(trees.add(r.before.models, update), momentum)),
        rtol=0, atol=2e-6)
