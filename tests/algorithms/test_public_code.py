"""Rounds beside those of public code, restated in tests.reference.public_code.

``docs/evidence.csv`` names the repository and the commit of each, and says where the
two differ. Initial parameters and mini-batches are the same.
"""

import numpy as np
import pytest

from fedjax_alg import models
from tests import problems
from tests.algorithms import bridge
from tests.reference import heterogeneity
from tests.reference import public_code as theirs

WORK = dict(local_steps=4, batch_size=6, client_lr=0.2)
L2 = problems.L2
EVERYONE = [list(range(12))] * 3


@pytest.fixture(scope="module", name="even")
def fixture_even():
  """Twelve clients of 20 examples."""
  return problems.of_sizes([20] * 12)


@pytest.fixture(scope="module", name="without_decay")
def fixture_without_decay(problem):
  """Unlike clients without a penalty of the weights."""
  model = models.Softmax().build((problems.FEATURES,), problems.CLASSES, l2=0.0)
  return problem._replace(model=model)


def assert_same(w, r, new, rtol=1e-3):
  bridge.assert_step_close(w, bridge.model_of(r.state), new, rtol)


def test_feddyn_of_equal_clients_is_that_of_its_authors(even):
  _, rounds = bridge.rounds(even, "feddyn", alpha=0.3, **WORK)
  w = bridge.start(even)
  drifts = {i: np.zeros_like(w) for i in range(12)}
  for r in rounds:
    new, drifts = theirs.feddyn_round(
      w, drifts, even.clients, r.ids, r.batches, 0.2, 0.3, L2
    )
    assert_same(w, r, new)
    w = new


def test_feddyn_of_unlike_clients_is_not(problem):
  """Their alpha is divided by the client's share of the examples; ours is the paper's."""
  batches = {i: [np.arange(3)] * 4 for i in range(12)}
  w = bridge.start(problem)
  table = {i: np.zeros_like(w) for i in range(12)}
  args = problem.clients, [0, 1, 4], batches, 0.2, 0.3, L2
  ours = heterogeneity.dyn_round(w, np.zeros_like(w), table, *args).model
  other, _ = theirs.feddyn_round(w, table, *args)
  assert np.abs(ours - other).max() > 0.01 * np.abs(ours - w).max()


def test_fedadam_is_that_of_public_code(problem):
  settings = dict(server_lr=0.05, tau=0.01, beta1=0.8, beta2=0.9)
  _, rounds = bridge.rounds(
    problem, "fedadam", client_weights="uniform", **settings, **WORK
  )
  w = bridge.start(problem)
  m, v = np.zeros_like(w), np.full_like(w, 0.01**2)
  for r in rounds:
    delta = theirs.mean_update(w, problem.clients, r.ids, r.batches, 0.2, L2)
    new, m, v = theirs.fedadam_step(w, m, v, delta, 0.05, 0.8, 0.9, 0.01)
    assert_same(w, r, new)
    w = new


def test_fedyogi_has_the_moments_of_its_authors_and_not_their_rate(problem):
  """Their rate in round t is ours times sqrt(1 - beta2^t) / (1 - beta1^t)."""
  settings = dict(server_lr=0.05, tau=0.01, beta1=0.6, beta2=0.9)
  _, rounds = bridge.rounds(
    problem, "fedyogi", client_weights="uniform", **settings, **WORK
  )
  w = bridge.start(problem)
  m, v = np.zeros_like(w), np.full_like(w, 0.01**2)
  for t, r in enumerate(rounds, 1):
    delta = theirs.mean_update(w, problem.clients, r.ids, r.batches, 0.2, L2)
    new, m, v = theirs.yogi_step(w, m, v, -delta, 0.05, 0.6, 0.9, 0.01, t)
    factor = np.sqrt(1 - 0.9**t) / (1 - 0.6**t)
    assert factor < 0.95
    assert_same(w, r, w + (new - w) / factor)
    w = bridge.to_oracle(bridge.model_of(r.state))


def test_fedavgm_is_that_of_flower(problem):
  _, rounds = bridge.rounds(
    problem, "fedavgm", server_momentum=0.7, server_lr=0.8, **WORK
  )
  w, vector = bridge.start(problem), None
  for number, r in enumerate(rounds, 1):
    aggregate = w + theirs.mean_update(
      w, problem.clients, r.ids, r.batches, 0.2, L2, "examples"
    )
    new, vector = theirs.fedavgm_step(w, vector, aggregate, 0.8, 0.7, number)
    assert_same(w, r, new)
    w = new


def test_fedacg_is_that_of_its_authors(problem):
  """With mu twice their weight, since their penalty is not halved."""
  settings = dict(WORK, server_momentum=0.8, mu=0.1)
  _, rounds = bridge.rounds(problem, "fedacg", **settings)
  algorithm = bridge.build(problem, "fedacg", **settings)
  w = bridge.start(problem)
  m = np.zeros_like(w)
  for r in rounds:
    new, m = theirs.fedacg_round(
      w, m, problem.clients, r.ids, r.batches, 0.2, 0.8, 0.05, L2
    )
    mine = problems.row(algorithm.global_params(r.state), 0)
    bridge.assert_step_close(w, mine, new, 1e-3)
    w = new


def test_fedcm_is_that_of_public_code(problem):
  """Their decay is not weighed by alpha: 0.3 of ours here."""
  settings = dict(WORK, gradient_weight=0.3, server_lr=0.9)
  _, rounds = bridge.rounds(problem, "fedcm", **settings)
  w = bridge.start(problem)
  averaged = np.zeros_like(w)
  for r in rounds:
    new, averaged = theirs.fedcm_round(
      w, averaged, problem.clients, r.ids, r.batches, 0.2, 0.3, 0.9, 4, 0.3 * L2
    )
    # The library's momentum is of the server's step without server_lr, as theirs is.
    assert_same(w, r, new)
    w = new


def test_fedsam_is_that_of_public_code(without_decay):
  settings = dict(WORK, rho=0.3, client_weights="uniform")
  _, rounds = bridge.rounds(without_decay, "fedsam", **settings)
  w = bridge.start(without_decay)
  for r in rounds:
    new = theirs.fedsam_round(w, without_decay.clients, r.ids, r.batches, 0.2, 0.3)
    assert_same(w, r, new)
    w = new


def test_fedlesam_of_all_clients_has_its_authors_direction(without_decay):
  """Their radius is shorter: a sum of norms divides it. Two rounds have one radius."""
  w, clients = bridge.start(without_decay), without_decay.clients
  settings = dict(WORK, client_weights="uniform")
  _, (r, _) = bridge.rounds(
    without_decay, "fedlesam", EVERYONE[:2], rho=0.3, **settings
  )
  first, last = theirs.fedlesam_round(w, None, clients, r.ids, r.batches, 0.2, 0.3)
  lengths = [np.linalg.norm(part) for part in (last, last[:-1], last[-1])]
  radius = 0.3 * lengths[0] / (lengths[1] + lengths[2])
  assert radius < 0.29
  _, rounds = bridge.rounds(
    without_decay, "fedlesam", EVERYONE[:2], rho=radius, **settings
  )
  assert_same(w, rounds[0], first)
  second, _ = theirs.fedlesam_round(
    first, last, clients, rounds[1].ids, rounds[1].batches, 0.2, 0.3
  )
  assert_same(first, rounds[1], second)
