"""APFL against NumPy."""

import numpy as np
import pytest

from tests import problems
from tests.algorithms import bridge
from tests.reference import heterogeneity

#: Clients that come again, clients that never come. The last row of the table is
#: one of them, so that a newcomer who read it would have another model.
COHORTS = [[0, 1, 4, 11], [1, 2, 6, 9], [0, 4, 7, 11]]
NEVER = 3


@pytest.mark.parametrize(
  "settings",
  [
    dict(
      local_steps=4, batch_size=6, client_lr=0.2, personal_weight=0.3, server_lr=0.8
    ),
    dict(local_epochs=1, batch_size=20, adaptive_weight=True, personal_start="initial"),
  ],
)
def test_rounds_and_what_is_deployed_are_those_of_numpy(problem, settings):
  h, rounds = bridge.rounds(problem, "apfl", COHORTS, **settings)
  w, personal = bridge.start(problem), {}
  start = w
  for r in rounds:
    first = start if h.personal_start == "initial" else w
    for i in r.ids:
      personal.setdefault(i, (first, h.personal_weight))
    before, w = (
      w,
      heterogeneity.apfl_round(
        w,
        personal,
        problem.clients,
        r.ids,
        r.batches,
        h.client_lr,
        h.adaptive_weight,
        h.server_lr,
        problems.L2,
      ),
    )
    bridge.assert_step_close(before, bridge.model_of(r.state), w, 3e-4)
    table = r.state.memory
    for i in r.ids:
      bridge.assert_step_close(
        before, problems.row(table.models, i), personal[i][0], 3e-4
      )
      np.testing.assert_allclose(table.weight[i], personal[i][1], rtol=1e-4)
    assert bridge.counts(r.aux) == [52, 52, 1, 2 * bridge.read(r.batches)]
  weights = {alpha for _, alpha in personal.values()}
  assert (len(weights) > 1) == h.adaptive_weight

  deploy = bridge.deployer(problem, "apfl", **settings)
  for client in (4, NEVER, bridge.NOBODY):
    actual = deploy(r.state, client, holder=0)[0]
    if client not in personal:
      problems.assert_equal(actual, bridge.model_of(r.state))
      continue
    v, alpha = personal[client]
    bridge.assert_step_close(w, actual, alpha * v + (1 - alpha) * w, 3e-4)
