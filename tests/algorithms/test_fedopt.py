"""FedAvgM, FedAdagrad, FedYogi and FedAdam against the oracle."""

import pytest

from tests import problems
from tests.algorithms import bridge
from tests.reference import diversified as oracle
from tests.reference import optimisers

WORK = dict(local_steps=3, batch_size=6, client_lr=0.2)


@pytest.mark.parametrize(
  "name, settings",
  [
    ("fedavgm", dict(server_momentum=0.7, server_lr=0.8)),
    ("fedadagrad", dict(server_lr=0.1, client_weights="uniform")),
    ("fedyogi", dict(server_lr=0.05, tau=0.01, beta1=0.6)),
    ("fedadam", dict(server_lr=0.05, tau=0.01, beta2=0.9)),
  ],
)
def test_rounds_are_the_oracles(problem, name, settings):
  h, rounds = bridge.rounds(problem, name, **settings, **WORK)
  w, deltas = bridge.start(problem), []
  for r in rounds:
    trained = oracle.fedprox_round(
      w, problem.clients, r.batches, h.client_lr, l2=problems.L2, cohort=r.ids
    ).trained
    deltas.append(
      oracle.server_step(
        w, trained, oracle.average_weights(problem.clients, r.ids, h.client_weights)
      )
      - w
    )
    if name == "fedavgm":
      move = optimisers.fedavgm(deltas, h.server_lr, h.server_momentum)
    else:
      move = optimisers.fedopt(
        name.removeprefix("fed"),
        deltas,
        h.server_lr,
        h.beta1,
        getattr(h, "beta2", 0.0),
        h.tau,
      )[-1]
    # Where Delta is about tau, rounding in it shows in the move.
    bridge.assert_step_close(w, bridge.model_of(r.state), w + move, 1e-3)
    w = w + move
