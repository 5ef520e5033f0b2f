"""SCAFFOLD against the oracle, and what always holds."""

import jax
import numpy as np
import pytest

from tests import problems
from tests.algorithms import bridge
from tests.reference import baselines, optimisers
from tests.reference import diversified as oracle

WORK = dict(local_steps=5, batch_size=6, client_lr=0.2)


def check_round(problem, r, h, w, c, table):
  """A round of the clients there is the oracle's, which is returned."""
  reference = baselines.scaffold_round(
    w,
    c,
    table,
    problem.clients[: r.num_joined],
    r.ids,
    r.batches,
    h.client_lr,
    h.server_lr,
    problems.L2,
    h.option,
  )
  bridge.assert_step_close(w, bridge.model_of(r.state), reference.model, 2e-4)
  bridge.assert_vectors_close(bridge.to_oracle(r.state.memory.server), reference.c)
  for i, expected in reference.table.items():
    bridge.assert_vectors_close(bridge.entry(r.state.memory.clients, i), expected, 2e-5)
  return reference


@pytest.mark.parametrize(
  "settings",
  [
    dict(option="I", **WORK),
    dict(option="II", server_lr=0.7, **WORK),
    pytest.param(
      dict(
        option="II",
        local_steps=0,
        local_epochs=2,
        batch_size=10,
        client_lr=0.1,
        server_lr=1.3,
      ),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_rounds_are_the_oracles(problem, settings):
  h, rounds = bridge.rounds(problem, "scaffold", **settings)
  w = bridge.start(problem)
  c, table = np.zeros_like(w), baselines.zero_table(w, problem.clients)
  for r in rounds:
    reference = check_round(problem, r, h, w, c, table)
    w, c, table = reference.model, reference.c, reference.table
    assert r.aux.client["loss"].shape == (len(r.ids),)
    # Option I reads all of a client's examples once more.
    extra = bridge.examples(problem, r.ids) if h.option == "I" else 0
    assert bridge.counts(r.aux) == [104, 104, 1, bridge.read(r.batches) + extra]
  assert np.abs(table[4]).max() > 0.01


@pytest.mark.parametrize("option", ["I", "II"])
def test_with_momentum_c_i_is_the_mean_gradient_all_the_same(problem, option):
  """Momentum acts on the corrected gradient, and never gets into c_i."""
  h, rounds = bridge.rounds(
    problem,
    "scaffold",
    bridge.COHORTS[:1] * 3,
    option=option,
    client_optimizer="momentum:0.8",
    **WORK,
  )
  last = rounds[-1]
  w, c = (
    bridge.to_oracle(tree)
    for tree in (bridge.model_of(last.before), last.before.memory.server)
  )
  moves = []
  for i in last.ids:
    shift = c - bridge.entry(last.before.memory.clients, i)
    assert np.abs(shift).max() > 0.01
    trained, mean = optimisers.local_training(
      w,
      problem.clients[i],
      last.batches[i],
      lambda k: h.client_lr,
      problems.L2,
      shift=shift,
      kind="momentum",
      momentum=0.8,
    )
    moves.append(trained)
    if option == "I":
      mean = oracle.gradient(w, *problem.clients[i], l2=problems.L2)
    bridge.assert_vectors_close(bridge.entry(last.state.memory.clients, i), mean, 3e-5)
  bridge.assert_step_close(w, bridge.model_of(last.state), np.mean(moves, axis=0), 2e-4)


def test_c_is_the_mean_of_all_c_i(problem):
  """Weighted, and with slots that nobody fills; who never comes has zeros."""
  _, rounds = bridge.rounds(
    problem, "scaffold", slots=8, server_lr=0.5, client_weights="examples", **WORK
  )
  for r in rounds:
    mean = jax.tree.map(lambda leaf: leaf.mean(0), r.state.memory.clients)
    problems.assert_close(r.state.memory.server, mean, rtol=0, atol=1e-6)
  never = set(range(12)) - {i for r in rounds for i in r.ids}
  for i in range(12):
    row = bridge.entry(rounds[-1].state.memory.clients, i)
    assert row.any() == (i not in never)


@pytest.mark.parametrize("option", [pytest.param("I", marks=pytest.mark.slow), "II"])
def test_with_newcomers_n_is_who_is_there(problem, option):
  """Against the oracle, whose clients are those there and c their mean."""
  h, rounds = bridge.with_newcomers(problem, "scaffold", option=option, **WORK)
  w = bridge.start(problem)
  table = baselines.zero_table(w, problem.clients)
  for r in rounds:
    c = np.mean([table[i] for i in range(r.num_joined)], axis=0)
    reference = check_round(problem, r, h, w, c, table)
    w, table = reference.model, reference.table
  assert np.abs(reference.c).max() > 0.01
