"""Rounds beside those of public code, restated in tests.reference.public_code.

``docs/evidence.csv`` names the repository and the commit of each, and says where the
two differ. Initial parameters and mini-batches are the same.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.spatial import distance

import fedjax_alg as fa
from fedjax_alg import models
from fedjax_alg.algorithms import scaffnew
from fedjax_alg.algorithms.feddrift import EagerDrift
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.models import residual
from tests import problems
from tests.algorithms import bridge, grouped, zeroth_order
from tests.algorithms import test_analytic_family as family
from tests.algorithms import test_feddrift as drift
from tests.algorithms.test_fedem import components_of
from tests.algorithms.test_per_fedavg import by_step
from tests.client import federations
from tests.client.test_moving import Normed
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
  """Their alpha is divided by the client's share of examples; ours is the paper's."""
  batches = {i: [np.arange(3)] * 4 for i in range(12)}
  w = bridge.start(problem)
  table = {i: np.zeros_like(w) for i in range(12)}
  args = problem.clients, [0, 1, 4], batches, 0.2, 0.3, L2
  ours = heterogeneity.dyn_round(w, np.zeros_like(w), table, *args).model
  expected, _ = theirs.feddyn_round(w, table, *args)
  assert np.abs(ours - expected).max() > 0.01 * np.abs(ours - w).max()


def test_fedprox_is_that_of_its_authors(problem):
  _, rounds = bridge.rounds(problem, "fedprox", mu=0.4, **WORK)
  w = bridge.start(problem)
  for r in rounds:
    new = theirs.fedprox_round(w, problem.clients, r.ids, r.batches, 0.2, 0.4, L2)
    assert_same(w, r, new)
    w = new


@pytest.mark.parametrize(
  "momentum, mu, tau_eff", [(0.6, 0.0, "normaliser"), (0.0, 0.5, "steps")]
)
def test_fednova_is_that_of_its_authors(problem, momentum, mu, tau_eff):
  """With a momentum or a proximal term; with both they add up two formulas."""
  settings = dict(local_epochs=1, batch_size=6, client_lr=0.1, tau_eff=tau_eff)
  settings |= dict(client_weights="examples", mu=mu, client_momentum=momentum)
  _, rounds = bridge.rounds(problem, "fednova", **settings)
  w = bridge.start(problem)
  for r in rounds:
    new = theirs.fednova_round(
      w, problem.clients, r.ids, r.batches, 0.1, momentum, mu, L2
    )
    assert_same(w, r, new)
    w = new


def test_ifca_is_that_of_its_authors(without_decay):
  settings = dict(local_steps=5, batch_size=0, client_lr=0.2)
  settings |= dict(client_weights="uniform", num_groups=3)
  start = bridge.to_library(bridge.start(without_decay))
  states, _ = bridge.history(
    without_decay, "ifca", EVERYONE, bridge.KEYS[:3], start, **settings
  )
  local = [bridge.entry(states[0].models, k) for k in range(3)]
  for state in states[1:]:
    before = local
    local, choices = theirs.ifca_round(local, without_decay.clients, 5, 0.2)
    np.testing.assert_array_equal(state.member, choices)
    for k in set(choices):
      bridge.assert_step_close(before[k], bridge.model_of(state, k), local[k], 1e-3)
  assert len(set(choices)) > 1


def test_fesem_is_that_of_its_authors(without_decay):
  """With whole models in their k-means, and not the last kernels alone.

  Its centroids are a round older than the centers, which changes no group here. They
  begin as random points there, and as the centers of round 1 here.
  """
  settings = dict(local_steps=60, batch_size=0, client_lr=0.5, first_group="random")
  settings |= dict(client_weights="examples", num_groups=2)
  start = bridge.to_library(bridge.start(without_decay))
  states, _ = bridge.history(
    without_decay, "fesem", EVERYONE, bridge.KEYS[:3], start, **settings
  )
  centers = [bridge.entry(states[0].models, k) for k in range(2)]
  groups = np.asarray(states[1].member)
  means, kernels, seen = None, None, []
  for state in states[1:]:
    np.testing.assert_array_equal(state.member, groups)
    before = centers
    centers, trained = theirs.fesem_centers(
      centers, groups, without_decay.clients, 60, 0.5
    )
    for k in range(2):
      bridge.assert_step_close(before[k], bridge.model_of(state, k), centers[k], 1e-3)
    means = means or [np.ravel(w) for w in centers]
    kernels = kernels or [np.ravel(w[:-1]) for w in centers]
    points = [trained[i] for i in range(12)]
    groups, means = theirs.fesem_groups(points, means)
    by_kernel, kernels = theirs.fesem_groups([w[:-1] for w in points], kernels)
    seen.append(by_kernel.tolist() == groups.tolist())
  assert (groups != states[1].member).any() and not all(seen)


def test_fsvrg_of_equal_clients_is_that_of_public_code(even, without_decay):
  equal = even._replace(model=without_decay.model)
  settings = dict(WORK, client_lr=2.0, local_scaling=False, aggregate_scaling="none")
  _, rounds = bridge.rounds(equal, "fsvrg", **settings)
  w = bridge.start(equal)
  for r in rounds:
    new = theirs.fsvrg_round(w, equal.clients, r.ids, r.batches, 2.0)
    assert_same(w, r, new)
    w = new


def test_scaffold_is_that_of_public_code(problem):
  settings = dict(WORK, option="II", server_lr=0.8, client_weights="uniform")
  _, rounds = bridge.rounds(problem, "scaffold", **settings)
  w = bridge.start(problem)
  c, variates = np.zeros_like(w), {i: np.zeros_like(w) for i in range(12)}
  for r in rounds:
    new, c, variates = theirs.scaffold_round(
      w, c, variates, problem.clients, r.ids, r.batches, 0.2, 0.8, L2
    )
    assert_same(w, r, new)
    w = new


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


def test_fedadam_is_that_of_flower_but_for_its_start(problem):
  """Its v lacks beta2^t tau^2, and its rate is longer by a factor in early rounds."""
  settings = dict(server_lr=0.05, tau=0.1, beta1=0.8, beta2=0.9)
  _, rounds = bridge.rounds(problem, "fedadam", **settings, **WORK)
  w = bridge.start(problem)
  m, v = np.zeros_like(w), np.zeros_like(w)
  for t, r in enumerate(rounds, 1):
    delta = theirs.mean_update(
      w, problem.clients, r.ids, r.batches, 0.2, L2, "examples"
    )
    new, m, v = theirs.flower_adam_step(w, m, v, delta, 0.05, 0.8, 0.9, 0.1, t)
    factor = np.sqrt(1 - 0.9 ** (t + 1)) / (1 - 0.8 ** (t + 1))
    start = (np.sqrt(v) + 0.1) / (np.sqrt(v + 0.9**t * 0.1**2) + 0.1)
    assert start.min() < 0.7
    assert_same(w, r, w + (new - w) / factor * start)
    w = bridge.to_oracle(bridge.model_of(r.state))


def test_fedadagrad_is_that_of_flower_but_for_its_start(problem):
  """Its v lacks the tau^2 with which Algorithm 2 begins."""
  settings = dict(server_lr=0.05, tau=0.1)
  _, rounds = bridge.rounds(problem, "fedadagrad", **settings, **WORK)
  w = bridge.start(problem)
  v = np.zeros_like(w)
  for r in rounds:
    delta = theirs.mean_update(
      w, problem.clients, r.ids, r.batches, 0.2, L2, "examples"
    )
    new, v = theirs.flower_adagrad_step(w, v, delta, 0.05, 0.1)
    start = (np.sqrt(v) + 0.1) / (np.sqrt(v + 0.1**2) + 0.1)
    assert start.min() < 0.7
    assert_same(w, r, w + (new - w) * start)
    w = bridge.to_oracle(bridge.model_of(r.state))


def test_fedexp_is_that_of_its_authors(problem):
  """With epsilon |S| times theirs; they average no models after the first round."""
  settings = dict(local_steps=20, batch_size=6, client_lr=0.2)
  settings |= dict(client_weights="examples", epsilon=4 * 1e-3)
  _, rounds = bridge.rounds(problem, "fedexp", [[0, 1, 4, 5]] * 3, **settings)
  algorithm = bridge.build(problem, "fedexp", **settings)
  w, rates = bridge.start(problem), []
  for r in rounds:
    new, rate = theirs.fedexp_round(w, problem.clients, r.ids, r.batches, 0.2, 1e-3, L2)
    assert_same(w, r, new)
    evaluated = problems.row(algorithm.global_params(r.state), 0)
    bridge.assert_step_close(w, evaluated, (w + new) / 2, 1e-3)
    rates.append(rate)
    w = new
  assert rates[0] == 1 and rates[-1] > 1.2


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


def test_fedadmm_has_the_duals_of_its_authors(problem):
  """And what is sent, by a client that has not trained before."""
  settings = dict(WORK, rho=0.5, server_lr=0.8)
  _, rounds = bridge.rounds(problem, "fedadmm", **settings)
  duals = {i: np.zeros_like(bridge.start(problem)) for i in range(12)}
  for number, r in enumerate(rounds):
    theta, sent = bridge.to_oracle(bridge.model_of(r.before)), []
    for i in r.ids:
      duals[i], change = theirs.fedadmm_client(
        theta, duals[i], problem.clients[i], r.batches[i], 0.2, 0.5, L2
      )
      sent.append(change)
      bridge.assert_vectors_close(bridge.entry(r.state.memory.y, i), duals[i])
    new = theta + 0.8 * len(sent) / 12 * np.mean(sent, axis=0)  # eta is 0.8 |S| / C
    if number:
      mine = bridge.to_oracle(bridge.model_of(r.state))
      assert np.abs(mine - new).max() > 0.01 * np.abs(new - theta).max()
    else:
      assert_same(theta, r, new)


@pytest.mark.parametrize("name", ["mime", "mime_lite"])
def test_mime_is_that_of_fedjax(problem, name):
  """Its momentum is a sum and ours a mean, so its rate is 1 - beta of ours."""
  settings = dict(WORK, base="momentum:0.7", client_weights="examples", server_lr=0.8)
  _, rounds = bridge.rounds(problem, name, **settings)
  w = bridge.start(problem)
  trace = np.zeros_like(w)
  for r in rounds:
    new, trace = theirs.mime_round(
      w,
      trace,
      problem.clients,
      r.ids,
      r.batches,
      0.2 * (1 - 0.7),
      0.7,
      0.8,
      L2,
      lite=name == "mime_lite",
    )
    assert_same(w, r, new)
    w = new


def test_ditto_is_that_of_its_authors(problem):
  settings = dict(
    local_steps=4,
    batch_size=0,
    client_lr=0.2,
    personal_lr=0.2,
    lam=0.7,
    personal_start="initial",
    client_weights="uniform",
  )
  _, rounds = bridge.rounds(problem, "ditto", **settings)
  w = bridge.start(problem)
  personal = {i: w for i in range(12)}
  for r in rounds:
    new, personal = theirs.ditto_round(
      w, personal, problem.clients, r.ids, 4, 0.2, 0.7, L2
    )
    assert_same(w, r, new)
    for i in r.ids:
      mine = problems.row(r.state.memory.models, i)
      bridge.assert_step_close(w, mine, personal[i], 1e-3)
    w = new


def test_per_fedavg_is_that_of_public_code(problem):
  settings = dict(WORK, adapt_lr=0.3, hessian="fo", client_weights="examples")
  h, rounds = bridge.rounds(problem, "per_fedavg", **settings)
  w = bridge.start(problem)
  for r in rounds:
    batches = by_step(problem, r.ids, r.key, h, 2)
    new = theirs.per_fedavg_round(w, problem.clients, r.ids, batches, 0.3, 0.2, L2)
    assert_same(w, r, new)
    w = new


@pytest.mark.parametrize("moves_first", [False, True])
def test_apfl_mixes_before_the_copy_moves_and_its_authors_after(problem, moves_first):
  settings = dict(WORK, personal_weight=0.3, personal_start="initial")
  _, rounds = bridge.rounds(problem, "apfl", **settings)
  w = bridge.start(problem)
  personal, gaps = {i: w for i in range(12)}, []
  for r in rounds:
    new, personal = theirs.apfl_round(
      w, personal, problem.clients, r.ids, r.batches, 0.2, 0.3, L2, moves_first
    )
    assert_same(w, r, new)
    for i in r.ids:
      mine = bridge.entry(r.state.memory.models, i)
      gaps.append(np.abs(mine - personal[i]).max() / np.abs(personal[i] - w).max())
    w = new
  assert max(gaps) > 0.01 if moves_first else max(gaps) < 1e-3


def test_cfl_is_that_of_its_authors(problem):
  settings = dict(
    local_steps=5,
    batch_size=0,
    client_lr=0.2,
    client_weights="uniform",
    thresholds="fixed:10,0.01",
    split_after=1,
    max_groups=8,
  )
  algorithm = bridge.build(problem, "cfl", **settings)
  states, _ = bridge.history(
    problem,
    "cfl",
    EVERYONE,
    bridge.KEYS[:3],
    bridge.to_library(bridge.start(problem)),
    **settings,
  )
  clients = problem.clients
  local, groups = [bridge.start(problem)] * 12, [list(range(12))]
  for number, state in enumerate(states[1:], 1):
    before = local
    local, groups = theirs.cfl_round(
      local, groups, clients, 5, 0.2, L2, 10, 0.01, number > 1
    )
    member = np.asarray(algorithm.membership(state))
    assert {tuple(np.flatnonzero(member == g)) for g in set(member)} == {
      tuple(group) for group in groups
    }
    for i in range(12):
      bridge.assert_step_close(
        before[i], bridge.model_of(state, member[i]), local[i], 1e-3
      )
  assert len(groups) == 4


def test_pfedme_is_that_of_its_authors(problem):
  """Their 0.001 theta is the gradient of an l2 of 0.001; it is that of L2 here."""
  settings = dict(inner_steps=3, lam=3.0, client_lr=0.2, personal_lr=0.15)
  settings |= dict(server_lr=1.5, client_weights="examples")
  settings |= dict(local_steps=3, batch_size=7)
  h, rounds = bridge.rounds(problem, "pfedme", **settings)
  w = bridge.start(problem)
  for r in rounds:
    batches = {}
    for i in r.ids:
      rows_key, _ = jax.random.split(jax.random.fold_in(r.key, i))
      batches[i] = bridge.client_batches(problem, i, rows_key, h)
    new = theirs.pfedme_round(
      w, problem.clients, r.ids, batches, 3, 0.2, 0.15, 3.0, L2, 1.5
    )
    assert_same(w, r, new)
    w = new


def test_flhc_is_that_of_public_code(problem):
  """Its round of the clustering is the first one in groups here."""
  settings = dict(local_steps=5, batch_size=0, client_lr=0.2, client_weights="examples")
  settings |= dict(max_groups=3, cluster_after=1, cut="count")
  settings |= dict(metric="l2", linkage="complete")
  algorithm = bridge.build(problem, "flhc", **settings)
  start = bridge.to_library(bridge.start(problem))
  states, _ = bridge.history(
    problem, "flhc", EVERYONE, bridge.KEYS[:3], start, **settings
  )
  local, groups = [bridge.start(problem)] * 12, [list(range(12))]
  for number, state in enumerate(states[1:], 1):
    before = local
    local, groups = theirs.flhc_round(
      local, problem.clients, 5, 0.2, L2, 3 if number == 2 else 0, groups
    )
    member = np.asarray(algorithm.membership(state))
    if number > 1:
      assert {tuple(np.flatnonzero(member == g)) for g in set(member)} == {
        tuple(group) for group in groups
      }
    for i in range(12):
      mine = bridge.model_of(state, member[i])
      bridge.assert_step_close(before[i], mine, local[i], 1e-3)
  assert len(groups) == 3


def test_scaffnew_is_proxskip_of_public_code(problem):
  """With the lengths of the rounds that the library draws."""
  settings = dict(batch_size=0, client_lr=0.3, communication=0.4)
  _, rounds = bridge.rounds(problem, "scaffnew", [*EVERYONE, EVERYONE[0]], **settings)
  lengths = [
    int(
      scaffnew.draw_steps(
        jax.random.fold_in(jax.random.fold_in(r.key, 0), scaffnew._COIN), 0.4
      )
    )
    for r in rounds
  ]
  w = bridge.start(problem)
  means = theirs.proxskip_rounds(w, problem.clients, lengths, 0.3, 0.4, L2)
  for r, mean in zip(rounds, means, strict=True):
    assert_same(w, r, mean)
    w = mean
  assert len(set(lengths)) > 1


def test_fedmuon_is_that_of_public_code(problem):
  """With server_lr = |S| / N, and Newton-Schulz iterations in the place of an SVD."""
  cohorts = [[0, 1, 4, 5, 8, 11], [1, 2, 3, 6, 9, 10], [0, 4, 7, 8, 10, 11]]
  settings = dict(WORK, client_lr=0.05, gradient_share=0.3, newton_schulz=3)
  _, rounds = bridge.rounds(problem, "fedmuon", cohorts, server_lr=0.5, **settings)
  w = bridge.start(problem)
  c, variates = np.zeros_like(w), {i: np.zeros_like(w) for i in range(12)}
  momenta = dict(variates)
  for r in rounds:
    new, c, variates, momenta = theirs.fedmuon_round(
      w, c, variates, momenta, problem.clients, r.ids, r.batches, 0.05, 0.3, 3, L2
    )
    assert_same(w, r, new, 2e-3)
    w = new


def test_the_estimates_of_baffle_are_those_of_its_authors(without_decay):
  """Each client draws directions; those of the library are given to both."""
  settings = dict(
    directions=4,
    smoothing=0.2,
    batch_size=7,
    server="sgd",
    server_lr=0.3,
    protocol="per_client:clip=0.1",
    scheme="forward",
    steps_per_round=2,
    ema=0.0,
  )
  h, rounds = bridge.rounds(without_decay, "baffle", **settings)
  w, buffer = bridge.start(without_decay), 0.0
  for r in rounds:
    rows_key, draws = jax.random.split(r.key)
    batches = bridge.by_client(without_decay, r.ids, rows_key, h.work())
    new = w
    for step in range(2):
      total = 0.0
      for i in r.ids:
        x, y = (array[batches[i][step]] for array in without_decay.clients[i])
        key = jax.random.fold_in(jax.random.fold_in(draws, step), i)
        moves = zeroth_order.moves(without_decay, key, 4, "gaussian")
        estimate = theirs.stein_gradient(new, x, y, moves, 0.2, most=0.1)
        total = total + estimate / len(r.ids)
      buffer = h.server.momentum * buffer + total  # PyTorch's SGD
      new = new - 0.3 * buffer
    bridge.assert_step_close(w, r.state.params, new, 2e-3)
    w = new


def test_the_estimates_of_fedzo_are_those_of_its_authors(without_decay):
  settings = dict(directions=4, smoothing=0.2, client_lr=0.05, local_steps=3)
  settings |= dict(batch_size=7, client_weights="uniform")
  h, rounds = bridge.rounds(without_decay, "fedzo", **settings)
  w = bridge.start(without_decay)
  for r in rounds:
    changes = []
    for i in r.ids:
      rows_key, draws = jax.random.split(jax.random.fold_in(r.key, i))
      local = w
      for step, rows in enumerate(bridge.client_batches(without_decay, i, rows_key, h)):
        x, y = (array[rows] for array in without_decay.clients[i])
        moves = zeroth_order.moves(
          without_decay, jax.random.fold_in(draws, step), 4, "sphere"
        )
        local = local - 0.05 * theirs.sphere_gradient(local, x, y, moves, 0.2)
      changes.append(local - w)
    new = w + sum(changes) / len(changes)
    assert_same(w, r, new, 2e-3)
    w = new


def test_fedem_of_all_clients_is_that_of_its_authors(problem):
  settings = dict(local_steps=4, batch_size=0, client_lr=0.3)
  _, rounds = bridge.rounds(problem, "fedem", EVERYONE, **settings)
  components = components_of(rounds[0].before)
  weights = [np.full(3, 1 / 3)] * 12
  for r in rounds:
    before = components
    components, weights = theirs.fedem_round(
      components, weights, problem.clients, 4, 0.3, L2
    )
    models_ = problems.row(r.state.models, 0)
    for m in range(3):
      mine = problems.row(models_, m)
      bridge.assert_step_close(before[m], mine, components[m], 1e-3)
    np.testing.assert_allclose(r.state.memory.weights, weights, atol=1e-5)
  assert np.max(weights) > 0.45


def test_fedsoft_of_all_clients_is_that_of_its_authors(problem):
  """From the clients' first models here, the means of the centers by importance."""
  settings = dict(local_steps=4, batch_size=0, client_lr=0.2, lam=0.7, sigma=0.001)
  _, rounds = bridge.rounds(problem, "fedsoft", EVERYONE, num_groups=3, **settings)
  centers = [bridge.entry(rounds[0].before.models, s) for s in range(3)]
  _, _, u = theirs.fedsoft_round(
    centers, [centers[0]] * 12, problem.clients, 0, 0.2, 0.7, 0.001, L2
  )
  local = [sum(p * c for p, c in zip(row / row.sum(), centers)) for row in u]
  for r in rounds:
    before, starts = centers, local
    centers, local, u = theirs.fedsoft_round(
      centers, local, problem.clients, 4, 0.2, 0.7, 0.001, L2
    )
    for s in range(3):
      bridge.assert_step_close(before[s], bridge.model_of(r.state, s), centers[s], 1e-3)
    for i in range(12):
      mine = problems.row(r.state.clients.models, i)
      bridge.assert_step_close(starts[i], mine, local[i], 1e-3)
  assert ((u > 0.001) & (u < 1)).any()


def test_groups_of_pacfl_are_those_of_its_authors():
  """With complete linkage; the vectors have the signs of the library."""
  clients, same = grouped.problem().clients, 0
  vectors = [theirs.pacfl_vectors(x, y, 2) for x, y in clients]
  for threshold in (25.0, 35.0, 45.0, 55.0, 65.0):
    groups = theirs.pacfl_groups(vectors, threshold, "maximum")
    if not 2 <= len(groups) <= 8:
      continue
    run = grouped.programs(
      "pacfl",
      max_groups=8,
      num_vectors=2,
      angle="entry",
      subspace="classes",
      linkage="complete",
      cut=f"distance:{threshold!r}",
    )
    member = np.asarray(grouped.begin(run, grouped.problem().data).member)
    assert {tuple(np.flatnonzero(member == g)) for g in set(member)} == {
      tuple(sorted(group)) for group in groups
    }
    same += 1
  assert same > 1


def test_steps_of_feddrift_eager_are_those_of_its_authors():
  """Models are opened and joined alike, and are copies of the same models."""
  steps = drift.data_of_steps()
  settings = dict(variant=EagerDrift(0.2, "error"), max_groups=8)
  run = grouped.programs("feddrift", **drift.SETTINGS | settings)
  before = problems.quick_jit(drift.rule_of(**settings).before)
  state = run.begin(
    problems.some_params(grouped.problem().model),
    drift.cohort_of(steps.at(0)),
    drift.KEY,
  )
  server, number = theirs.EagerDriftServer(drift.C, 0.2), 0
  for step in range(drift.T):
    cohort, old = drift.cohort_of(steps.at(step)), grouped.models_of(state)
    accuracy = [
      [1 - drift.error(w, steps.rows(step, c)) for c in range(drift.C)] for w in old
    ]
    now = before(state, cohort, drift.KEY)
    if step:
      groups, opened = server.cluster(accuracy)
      np.testing.assert_array_equal(now.member, groups)
      for model, source in opened.items():
        mine = grouped.models_of(now)[model]
        bridge.assert_vectors_close(mine, old[source], 1e-6)
      number += len(opened)
    else:
      server.begin(accuracy[0])
    for round_ in range(drift.ROUNDS):
      key = jax.random.fold_in(drift.KEY, 10 * step + round_)
      state, _ = run.round(state, cohort, key)
  assert number > 1


def test_the_average_of_pacfls_authors_does_not_see_sizes():
  """It is SciPy's "weighted"; "average", as in the library, is another number."""
  rng, differ = np.random.default_rng(0), 0
  for _ in range(20):
    vectors = [np.linalg.qr(rng.normal(size=(6, 2)))[0] for _ in range(9)]
    angles = np.array(
      [
        [0.0 if a is b else np.degrees(np.arccos(a.T @ b)).min() for b in vectors]
        for a in vectors
      ]
    )
    flat = distance.squareform(angles)
    trees = {name: hierarchy.linkage(flat, name) for name in ("weighted", "average")}
    threshold = trees["weighted"][-4:-2, 2].mean()
    groups = theirs.pacfl_groups(vectors, threshold, "average")
    parts = {
      name: hierarchy.fcluster(tree, threshold, "distance")
      for name, tree in trees.items()
    }

    def same(labels, groups=groups):
      cut = {tuple(np.flatnonzero(labels == g)) for g in set(labels)}
      return cut == {tuple(sorted(group)) for group in groups}

    assert same(parts["weighted"])
    differ += not same(parts["average"])
  assert differ


# Layers of clients, with full batches.

NAMES = {"Dense_0": ("V", "a"), "Dense_1": ("W", "b")}


def as_tensors(params):
  """The parameters of a perceptron by the names of public code."""
  return {
    name: np.asarray(params["params"][layer][leaf], np.float64)
    for layer, names in NAMES.items()
    for name, leaf in zip(names, ("kernel", "bias"))
  }


def play_layers(name, **options):
  """A run of a perceptron: its first tensors, its result, and the clients."""
  fed, clients = federations.federation()
  model = models.MLP((5,)).build((4,), federations.CLASSES)
  first = as_tensors(jax.jit(model.init)(run_keys(0).model))
  result = federations.play(name, fed, fa.run, model="mlp:5", l2=0.0, **options)
  return first, result, clients


def assert_tensors(result, nets):
  for i, net in enumerate(nets):
    mine = as_tensors(result.client_params(i))
    for name, value in net.items():
      np.testing.assert_allclose(mine[name], value, atol=3e-6, err_msg=name)


@pytest.mark.parametrize("name, head", [("fedrep", 2), ("fedper", 0)])
def test_layers_of_clients_are_those_of_fedreps_authors(name, head):
  first, result, clients = play_layers(name)
  nets = theirs.fedrep_rounds(
    first, ["V", "a"], clients, federations.ROUNDS, 0.3, 2 + head, head
  )
  assert_tensors(result, nets)
  assert np.abs(nets[0]["W"] - nets[1]["W"]).max() > 0.01


def test_lg_fedavg_is_that_of_its_authors():
  first, result, clients = play_layers("lg_fedavg", client_weights="uniform")
  nets = theirs.lg_fedavg_rounds(first, ["W", "b"], clients, federations.ROUNDS, 0.3, 2)
  assert_tensors(result, nets)


def test_the_body_of_fedbabu_is_that_of_its_authors():
  """Before any client fits its head, which is the first one there."""
  first, result, clients = play_layers("fedbabu", client_weights="uniform")
  net = theirs.fedbabu_rounds(first, ["V", "a"], clients, federations.ROUNDS, 0.3, 2)
  assert_tensors(result, [{name: net[name] for name in ("V", "a")}])
  assert np.abs(net["V"] - first["V"]).max() > 0.01


def test_the_layers_of_fedbn_are_those_of_its_authors():
  """And the means; their running variance is n / (n - 1) of ours in each step."""
  fed, clients = federations.federation(shift=0.5)
  first = jax.jit(Normed().init, static_argnums=2)(
    run_keys(0).model, np.zeros((1, 4), np.float32), False
  )
  names = {"V": "first/kernel", "W": "last/kernel"}
  names |= {"bn.scale": "bn/scale", "bn.bias": "bn/bias"}

  def read(params):
    layers = params["params"]
    tensors = {
      name: np.asarray(layers[place.split("/")[0]][place.split("/")[1]], np.float64)
      for name, place in names.items()
    }
    moving = params["batch_stats"]["bn"]
    return tensors, tuple(np.asarray(moving[n], np.float64) for n in ("mean", "var"))

  result = federations.play(
    "fedbn", fed, fa.run, model=Normed(), l2=0.0, client_weights="uniform"
  )
  net, moving = read(first)
  nets, stats = theirs.fedbn_rounds(
    net, moving, clients, federations.ROUNDS, 0.3, 2, momentum=0.2
  )
  for i, (x, _) in enumerate(clients):
    mine, (mean, variance) = read(result.client_params(i))
    for name, value in nets[i].items():
      np.testing.assert_allclose(mine[name], value, atol=5e-6, err_msg=name)
    np.testing.assert_allclose(mean, stats[i][0], atol=5e-6)
    # The first variance of 1 has the weight 0.8^6 after three rounds of two steps.
    rest = 0.8 ** (2 * federations.ROUNDS) * moving[1]
    np.testing.assert_allclose(
      (variance - rest) * len(x) / (len(x) - 1), stats[i][1] - rest, rtol=1e-4
    )


# Closed form: one round, of clients that hold few examples.


def test_afl_is_that_of_its_authors():
  parts = family.dealt(family.SIZES)
  kernel, _ = family.fitted("afl", parts, client_ridge=2.0)
  expected = theirs.afl_weights(family.holders(parts), family.CLASSES, 2.0)
  np.testing.assert_allclose(kernel, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["fed3r", "fedncm", "fedcof"])
def test_a_head_in_closed_form_is_that_of_public_code(name):
  parts = family.dealt(family.SIZES)
  clients, classes = family.holders(parts), family.CLASSES
  settings, weights = {
    "fed3r": (dict(ridge="0.5"), theirs.fed3r_weights(clients, classes, 0.5)),
    "fedncm": ({}, (theirs.fedncm_weights(clients, classes).T, np.zeros(classes))),
    "fedcof": (
      dict(shrinkage=0.1),
      (theirs.fedcof_weights(clients, classes, 0.1).T, np.zeros(classes)),
    ),
  }[name]
  for mine, expected in zip(family.fitted(name, parts, **settings), weights):
    np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)


def test_blocks_of_deepafl_are_those_of_its_authors():
  run = family.program("deepafl", family.BLOCKS, ridge="0.5", block_ridge=0.3)
  params = run(family.dealt(family.SIZES), rounds=5)[1].models["params"]
  blocks = [
    lambda x, t=t: np.asarray(residual.hidden(t, jnp.asarray(x, jnp.float32), 7))
    for t in range(2)
  ]
  layers = theirs.deepafl_layers(
    family.holders(family.dealt(family.SIZES)), family.CLASSES, blocks, 0.5, 0.3
  )
  for mine, expected in (
    (params["Delta_0"][0], layers[1]),
    (params["Delta_1"][0], layers[3]),
    (params["head"]["kernel"][0], layers[4]),
  ):
    np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=2e-5)
