"""Models in fewer bytes, against a NumPy server and a count by hand."""

import jax
import numpy as np
import pytest

from fedjax_alg import trees
from fedjax_alg.algorithms import diversified
from fedjax_alg.central.steps import average
from fedjax_alg.engine import clients
from fedjax_alg.exchange import exchange_of
from fedjax_alg.exchange.compression import Compression
from fedjax_alg.rounds.two_halves import compose
from tests import problems
from tests.algorithms import bridge
from tests.exchange.test_compression import flat, moves_by, probe

KEY = jax.random.key(2)
#: Seven messages are fewer bytes than the model, eight are more: 7 comes back
#: after seven, 4 after eight.
COHORTS = (
  [1, 4],
  [4, 12],
  [4, 12],
  [7, 1],
  [4, 1],
  [4, 7],
  *([2, 3],) * 6,
  [7, 12],
  [4, 12],
)
#: Of 52 entries topk:0.1 sends 6: 24 bytes, and places of 6 bits each.
MESSAGE, FULL_MODEL = 29, 208


def play(problem, grouping=None):
  algorithm = compose(
    problem.model,
    probe(),
    average(0.5),
    map_clients=clients.ClientMap(),
    grouping=grouping,
    exchange=exchange_of(Compression(compress_down="topk:0.1")),
  )
  state, round_ = (
    bridge.init(problem, algorithm, KEY),
    problems.quick_jit(algorithm.round),
  )
  for ids in COHORTS:
    before = state
    state, aux = round_(state, bridge.cohort_of(problem, ids), KEY)
    yield ids, before, state, aux


def test_rounds_are_the_loop(problem):
  """The server keeps what it has not sent; clients hold what it has."""
  error, versions, version = np.zeros(52), {}, 0
  for number, (ids, before, after, aux) in enumerate(play(problem)):
    ids = [i for i in ids if i < 12]
    bytes_down = 0
    for i in ids:
      bytes_down += (
        min(FULL_MODEL, MESSAGE * (version - versions[i]))
        if (i in versions)
        else FULL_MODEL
      )
      versions[i] = version
    version += 1
    assert aux.cost.bytes_down == -(-bytes_down // len(ids))
    assert aux.cost.down == -(-int(aux.cost.bytes_down) // 4)
    assert (aux.cost.up, aux.cost.bytes_up) == (52, None)
    weights = np.array([problems.SIZES[i] for i in ids])
    u = (
      error
      + 0.5
      * weights
      @ np.stack([moves_by(float(i), float(number)) for i in ids])
      / weights.sum()
    )
    largest = np.argsort(-np.abs(u))[:6]
    change, error = np.zeros(52), u
    change[largest], error[largest] = u[largest], 0
    np.testing.assert_allclose(
      flat(problems.row(after.models, 0)) - flat(problems.row(before.models, 0)),
      change,
      atol=2e-6,
    )
    np.testing.assert_allclose(
      flat(problems.row(after.memory.extra.memory.error, 0)), error, atol=1e-5
    )


@pytest.mark.program
def test_copies_stay_equal_and_models_have_an_error_each(problem):
  options = diversified.KModelsHParams(num_models=2, threshold=2)
  history = list(play(problem, grouping=diversified.by_model(options)))
  for number, (_, _, after, aux) in enumerate(history):
    assert bool(trees.copies(after.models)) == (number < 2)
    assert bool(trees.copies(after.memory.extra.memory.error)) == (number < 2)
    if number in (1, 2):  # client 4 alone, which was there before
      assert aux.cost.bytes_down == MESSAGE * (1 if number < 2 else 2)
  assert after.own_memory == ()
