"""CFSVRG and CLSFSVRG against the oracle, and their identities."""

import jax
import numpy as np
import pytest

from tests import problems
from tests.algorithms import bridge
from tests.reference import clustered
from tests.reference import conjugate as oracle

WORK = dict(local_steps=5, batch_size=6, client_lr=1.0)


@pytest.mark.parametrize(
  "name, settings",
  [
    ("cfsvrg", dict(beta_rule="fr", server_lr=0.5)),
    (
      "cfsvrg",
      dict(
        beta_rule="hs", server_lr=0.1, local_scaling=False, aggregate_scaling="none"
      ),
    ),
    (
      "clsfsvrg",
      dict(
        beta_rule="pr+",
        line_search_test="armijo",
        gamma=0.5,
        initial_step=4.0,
        aggregate_scaling="holders",
        aggregate_lr=12.0,
      ),
    ),
    (
      "clsfsvrg",
      dict(
        beta_rule="dy",
        line_search_test="printed",
        gamma=0.6,
        max_tries=5,
        aggregate_scaling="paper",
        aggregate_lr=0.5,
      ),
    ),
  ],
)
def test_rounds_are_the_oracles(problem, name, settings):
  """Gradients of different clients meet in beta.

  All rules and tests of a step alone: tests/central.
  """
  h, rounds = bridge.rounds(problem, name, **WORK, **settings)
  w, memory, results = bridge.start(problem), (), []
  options = (
    dict(fixed_eta=h.server_lr)
    if name == "cfsvrg"
    else dict(
      validation=problem.validation,
      start=h.initial_step,
      gamma=h.gamma,
      test=h.line_search_test,
      max_tries=h.max_tries,
    )
  )
  for r in rounds:
    reference = oracle.clsfsvrg_round(
      w,
      memory,
      problem.clients,
      r.ids,
      r.batches,
      h.client_lr,
      problems.L2,
      rule=h.beta_rule,
      server_lr=h.aggregate_lr,
      aggregate=h.aggregate_scaling,
      scale_features=h.local_scaling,
      **options,
    )
    bridge.assert_step_close(w, bridge.model_of(r.state), reference.model, 2e-4)
    expected = {
      "beta": (0.0 if reference.restarted else reference.beta, 1e-3),
      "discrepancy": (
        clustered.discrepancy(reference.trained, [0] * len(r.ids), [reference.model]),
        1e-4,
      ),
    }
    if reference.search is not None:
      expected |= {
        "eta": (reference.search.eta, 1e-5),
        "line_search_tries": (reference.search.tries, 0),
        "validation_loss_before": (reference.search.before, 1e-5),
        "validation_loss_after": (reference.search.after, 1e-5),
      }
    assert set(r.aux.server) == {"train_loss", *expected}
    for column, (value, rtol) in expected.items():
      np.testing.assert_allclose(r.aux.server[column], value, rtol=rtol)
    np.testing.assert_allclose(
      r.aux.client["loss"], bridge.losses(problem, w, r.ids), rtol=1e-4
    )
    w, memory = reference.model, reference.memory
    results.append(reference)
  assert any(result.beta for result in results)
  if name == "clsfsvrg":
    assert len({result.search.tries for result in results}) > 1
    assert any(result.search.eta > 0 for result in results)


def test_validation_data_are_asked_for(problem):
  algorithm = bridge.build(problem, "clsfsvrg", **WORK)
  state = bridge.init(problem, algorithm)
  cohort = bridge.cohort_of(problem, [0, 1, 2])._replace(validation=None)
  with pytest.raises(ValueError) as error:
    jax.eval_shape(algorithm.round, state, cohort, bridge.KEYS[0])
  assert str(error.value) == (
    "the server step needs validation clients (validation_clients)"
  )
