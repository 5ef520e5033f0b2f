"""FSVRG against the oracle."""

import numpy as np
import pytest

from tests import problems
from tests.algorithms import bridge
from tests.reference import diversified as oracle

WORK = dict(local_steps=5, batch_size=6, client_lr=1.0)


@pytest.mark.parametrize(
  "settings",
  [
    WORK,
    dict(WORK, local_scaling=False, aggregate_scaling="paper"),
    dict(
      local_steps=0,
      local_epochs=2,
      batch_size=4,
      client_lr=0.5,
      aggregate_scaling="none",
    ),
    pytest.param(
      dict(local_steps=3, batch_size=0, client_lr=1.0), marks=pytest.mark.slow
    ),
  ],
)
def test_one_round_is_the_oracles(problem, settings):
  h, (r,) = bridge.rounds(problem, "fsvrg", bridge.COHORTS[:1], **settings)
  w = bridge.start(problem)
  expected = oracle.fsvrg_round(
    w,
    problem.clients,
    r.batches,
    h.client_lr,
    problems.L2,
    r.ids,
    h.aggregate_scaling,
    h.local_scaling,
  )
  bridge.assert_step_close(w, bridge.model_of(r.state), expected)
  np.testing.assert_allclose(
    r.aux.client["loss"], bridge.losses(problem, w, r.ids), rtol=1e-5
  )


def test_a_model_without_features_is_not_scaled(image_problem):
  """Lambda and A are the identity for a perceptron."""
  problems.assert_equal(
    *(
      bridge.one_round(
        image_problem,
        bridge.build(image_problem, "fsvrg", client_lr=1.0, **options),
        [0, 3],
      )[1].models
      for options in ({}, dict(local_scaling=False, aggregate_scaling="none"))
    )
  )
