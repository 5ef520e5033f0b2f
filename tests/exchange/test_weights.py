"""Weights of the participants in a mean: by examples, equal, by losses."""

import jax
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.algorithms.fedavg import FedAvgHParams
from fedjax_alg.exchange import stacking, weights
from fedjax_alg.exchange.weights import (
  AgnosticWeights,
  ExampleWeights,
  UniformWeights,
)
from fedjax_alg.runs import methods
from tests import problems
from tests.algorithms import bridge
from tests.each import each
from tests.reference import fairness

IDS = [1, 4, 5, 8, 11]
SETTINGS = dict(local_epochs=1, batch_size=10, client_lr=0.2)


def test_weights_of_participants_and_padding(problem):
  cohort = bridge.cohort_of(problem, [1, 12, 5])
  sizes = [problems.SIZES[1], 0, problems.SIZES[5]]
  np.testing.assert_array_equal(ExampleWeights().build()(cohort), sizes)
  np.testing.assert_array_equal(UniformWeights().build()(cohort), [1, 0, 1])


@each("value", ["equal", "qffl", "qffl:-1", "qffl:inf", "qffl:nan", "agnostic:x", ""])
def test_no_other_weights(value, problem):
  bridge.assert_refused(
    problem,
    "fedavg",
    f"client_weights={value}: .*(one of|must be)",
    client_weights=value,
  )


def test_numbers_of_weights_are_inputs_of_the_program():
  """Without it a sweep over q would compile for each of them."""
  method = methods.with_keywords(
    methods.method_of("fedavg"), {"client_weights": "qffl:2", "client_lr": 0.3}
  )
  other = method.with_values({"client_weights.q": 5.0})
  assert "client_weights.q" in method.traced_names
  assert other.structure() == method.structure()
  assert str(other.hparams.client_weights) == "qffl:5"


def test_a_text_in_the_callers_hyper_parameters_is_read():
  """Else the round would weigh by a text."""
  hparams = FedAvgHParams(client_weights="agnostic:0.2")
  assert methods.method_of("fedavg", hparams).hparams == FedAvgHParams(
    client_weights=AgnosticWeights(0.2)
  )


@pytest.mark.program
def test_the_projection_is_the_nearest_point_of_the_simplex():
  rng = np.random.default_rng(0)
  project = jax.jit(weights.on_simplex)
  for size in (1e-3, 1.0, 30.0):
    vector = rng.normal(0.2, size, 7).astype(np.float32)
    np.testing.assert_allclose(
      project(vector), fairness.simplex(vector.astype(float)), atol=1e-5
    )
  inside = np.array([0.5, 0.25, 0.25], np.float32)
  np.testing.assert_array_equal(project(inside), inside)


def play(problem, weights, rounds=1):
  """The oracle's start, the last state, the reports, each round's batches."""
  keys = list(jax.random.split(jax.random.key(3), rounds))
  with problems.quick_compilation():
    states, log = bridge.history(
      problem,
      "fedavg",
      [IDS] * rounds,
      keys,
      problems.some_params(problem.model),
      client_weights=weights,
      **SETTINGS,
    )
  hparams = registry.get("fedavg").hparams(**SETTINGS)
  return (
    bridge.start(problem),
    states[-1],
    log,
    [bridge.by_client(problem, IDS, key, hparams) for key in keys],
  )


@pytest.mark.program
@pytest.mark.parametrize("q, stacked", [(0, True), (2.0, True), (0.5, False)])
def test_q_ffl_is_the_oracles(problem, monkeypatch, q, stacked):
  """Whether the updates are kept, or only their sum and lengths; 0: FedAvg."""
  if not stacked:
    monkeypatch.setattr(stacking, "STACKED_BYTES", 0)
  w, state, log, (batches,) = play(problem, f"qffl:{q}")
  bridge.assert_step_close(
    w,
    bridge.model_of(state),
    fairness.q_fedavg_round(w, problem.clients, IDS, batches, 0.2, q, problems.L2),
  )
  # A loss of each goes up, for a forward pass over all its data.
  assert (log[0].cost.down, log[0].cost.up) == (w.size, w.size + 1)


@pytest.mark.program
def test_agnostic_weights_are_the_oracles(problem):
  w, state, _, by_round = play(problem, "agnostic:2", rounds=3)
  lam = np.full(len(problem.clients), 1 / len(problem.clients))
  for batches in by_round:
    w, lam = fairness.agnostic_round(
      w, lam, problem.clients, IDS, batches, 0.2, 2.0, problems.L2
    )
  assert (lam == 0).any() and lam.max() > 0.2  # the projection did something
  np.testing.assert_allclose(state.aggregates["weights"][0], lam, atol=1e-5)
  bridge.assert_step_close(bridge.start(problem), bridge.model_of(state), w, rtol=3e-4)


def test_agnostic_weights_of_few_participants_stay_with_them(problem):
  """A projection over all took the weights of those that were not drawn."""
  rule, cohort = AgnosticWeights(0.5).build(), bridge.cohort_of(problem, [1, 4, 12])
  losses, first = np.float32([3.0, 0.5, 9.0]), rule.keeps(12)
  used, new = rule.weigh(first, cohort, losses)
  np.testing.assert_allclose(used, [0.5, 0.5, 0], atol=1e-6)
  np.testing.assert_allclose(new, first.at[1].set(1 / 6).at[4].set(0), atol=1e-7)
  without = np.zeros(12, np.float32)  # the two have no weight
  without[0] = 1.0
  used, new = rule.weigh(without, cohort, losses)
  assert used.tolist() == [1, 1, 0]
  np.testing.assert_array_equal(new, without)


@pytest.mark.parametrize(
  "settings, pattern",
  [
    (dict(client_update="nova"), "client_update=nova reads the weights itself"),
    (dict(grouping="model:2", client_update="svrg"), "those of one global model"),
  ],
)
def test_where_weights_by_losses_are_refused(problem, settings, pattern):
  bridge.assert_refused(
    problem,
    "composed",
    f"client_weights=qffl: .*{pattern}",
    client_weights="qffl:1",
    **settings,
  )
