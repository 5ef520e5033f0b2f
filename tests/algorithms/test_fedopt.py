"""FedAvgM, FedAdagrad, FedYogi and FedAdam against the oracle."""

import jax
import numpy as np
import pytest

from fedjax_alg import registry
from tests import problems
from tests.algorithms import bridge
from tests.reference import baselines
from tests.reference import diversified as oracle
from tests.reference import optimisers

COHORTS = [[0, 1, 4, 5, 8, 11], [1, 2, 3, 6, 9], [0, 4, 7, 8, 10, 11]]
KEYS = [jax.random.key(seed) for seed in (3, 4, 5)]
WORK = dict(local_steps=3, batch_size=6, client_lr=0.2)


@pytest.mark.parametrize("name, settings", [
    ("fedavgm", dict(server_momentum=0.7, server_lr=0.8)),
    ("fedadagrad", dict(server_lr=0.1, client_weights="uniform")),
    ("fedyogi", dict(server_lr=0.05, tau=0.01, beta1=0.6)),
    ("fedadam", dict(server_lr=0.05, tau=0.01, beta2=0.9)),
])
def test_rounds_are_the_oracles(problem, name, settings):
  work = registry.get(name).hparams(**settings, **WORK)
  states, _, cohorts = bridge.history(
      problem, name, COHORTS, KEYS, problems.some_params(problem.model),
      **settings, **WORK)
  w, deltas = bridge.to_oracle(problems.some_params(problem.model)), []
  for state, cohort, ids, key in zip(
      states[1:], cohorts, COHORTS, KEYS, strict=True):
    trained = oracle.fedavg_round(
        w, problem.clients, bridge.batches(problem, cohort, key, work),
        work.client_lr, l2=problems.L2, cohort=ids).trained
    shares = baselines.average_weights(
        problem.clients, ids, work.client_weights)
    mean = baselines.server_step(w, trained, shares, 1.0)
    deltas.append(oracle.to_vector(oracle.add(mean, w, -1.0)))
    if name == "fedavgm":
      move = optimisers.fedavgm(deltas, work.server_lr, work.server_momentum)
    else:
      move = optimisers.fedopt(
          name.removeprefix("fed"), deltas, work.server_lr, work.beta1,
          getattr(work, "beta2", None), work.tau)
    expected = oracle.add(w, oracle.to_model(move[-1], w))
    # Where Delta is about tau, rounding in it shows in the move.
    bridge.assert_step_close(w, bridge.model_of(state), expected, 1e-3)
    w = expected
  assert np.isfinite(oracle.to_vector(w)).all()


def test_without_momentum_fedavgm_is_fedavg(problem):
  start = problems.some_params(problem.model)
  one, other = (bridge.play(
      problem, name, COHORTS[0], KEYS[0], start, **more, **WORK)[0]
                for name, more in (("fedavgm", dict(server_momentum=0.0)),
                                   ("fedavg", {})))
  problems.assert_close(one, other)
