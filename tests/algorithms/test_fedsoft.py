"""FedSoft against NumPy: importance weights, rounds, and what it becomes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import problems
from tests.algorithms import bridge
from tests.reference import clustered as groups_oracle
from tests.reference import mixtures

#: Clients that come again, clients that never come.
COHORTS = [[0, 1, 4, 5], [1, 2, 6, 9], [0, 4, 7, 8], [1, 2, 4, 10]]
NEVER, K = 3, 3
WORK = dict(local_steps=4, batch_size=6, client_lr=0.3, lam=0.7, sigma=0.05)


def importance(problem, centers, client, sigma):
  """u of a client, by the oracle."""
  x, y = problem.clients[client]
  return mixtures.importance(centers, x, y, sigma)


def centers_of(state):
  return [bridge.entry(state.models, s) for s in range(K)]


@pytest.mark.program
@pytest.mark.parametrize(
  "settings",
  [
    pytest.param(dict(WORK, estimate_every=2), marks=pytest.mark.fast),
    dict(
      WORK, local_start="centers", client_weights="uniform", sigma=0.0, num_groups=K
    ),
  ],
)
def test_rounds_and_what_is_deployed_are_those_of_numpy(problem, settings):
  h, rounds = bridge.rounds(problem, "fedsoft", COHORTS, **settings)
  centers, personal, period = centers_of(rounds[0].before), {}, {}
  u, asked = {}, []
  for number, r in enumerate(rounds):
    new = [i for i in r.ids if period.get(i, -1) < number // h.estimate_every]
    asked.append(len(new))
    for i in new:
      period[i] = number // h.estimate_every
      u[i] = importance(problem, centers, i, h.sigma)
    starts = {i: sum(p * c for p, c in zip(u[i] / u[i].sum(), centers)) for i in r.ids}
    if h.local_start == "personal":
      starts |= {i: personal[i] for i in r.ids if i in personal}
    expected = mixtures.fedsoft_round(
      centers,
      u,
      starts,
      problem.clients,
      r.ids,
      r.batches,
      h.client_lr,
      h.lam,
      problems.L2,
      h.client_weights,
    )
    for s in range(K):
      bridge.assert_step_close(
        centers[s], bridge.model_of(r.state, s), expected.centers[s], rtol=3e-4
      )
    centers = expected.centers
    for i in r.ids:
      personal[i] = expected.trained[i]
      bridge.assert_step_close(
        starts[i], problems.row(r.state.clients.models, i), personal[i], 3e-4
      )
      np.testing.assert_allclose(r.state.memory.importance.weights[i], u[i], rtol=1e-6)
      assert r.state.member[i] == np.argmax(u[i])
    size = 52
    down, up, exchanges, gradients = bridge.counts(r.aux)
    assert (down, exchanges, gradients) == (K * size, 1, bridge.read(r.batches))
    assert up == size + K * asked[-1] // len(r.ids)
  assert any((0 < share) & (share < 1) for i in u for share in u[i])
  assert (h.estimate_every == 1) == (asked == [4] * 4)

  deploy = bridge.deployer(problem, "fedsoft", **settings)
  problems.assert_equal(deploy(r.state, 4)[0], problems.row(r.state.clients.models, 4))
  # Who has not come trains as it would; whose data have no example takes m.
  weights = importance(problem, centers, NEVER, h.sigma)
  m = sum(p * c for p, c in zip(weights / weights.sum(), centers))
  batches = bridge.client_batches(problem, NEVER, bridge.KEYS[0], h)
  alone = mixtures.fedsoft_round(
    centers,
    {NEVER: weights},
    {NEVER: m},
    problem.clients,
    [NEVER],
    {NEVER: batches},
    h.client_lr,
    h.lam,
    problems.L2,
  )
  bridge.assert_step_close(m, deploy(r.state, NEVER)[0], alone.trained[NEVER], 3e-4)
  bridge.assert_vectors_close(
    bridge.to_oracle(deploy(r.state, bridge.NOBODY)[0]), np.mean(centers, 0)
  )


def test_one_cluster_is_fedprox(problem):
  """Where steps start at the center, up to rounding."""
  settings = {name: WORK[name] for name in ("local_steps", "batch_size", "client_lr")}
  _, one = bridge.rounds(
    problem, "fedsoft", num_groups=1, lam=0.7, local_start="centers", **settings
  )
  _, rounds = bridge.rounds(problem, "fedprox", mu=0.7, **settings)
  for a, b in zip(one, rounds):
    problems.assert_close(bridge.model_of(a.state), bridge.model_of(b.state))
    problems.assert_equal(a.aux.cost, b.aux.cost)


def test_sure_memberships_are_fedprox_in_ifcas_groups(problem):
  """Every client has one center that serves all of its examples best."""
  settings = dict(WORK, sigma=0.0, local_start="centers")
  algorithm = bridge.build(problem, "fedsoft", **settings)
  state = bridge.init(problem, algorithm)
  best = np.arange(12) % K
  sure = jnp.asarray(np.eye(K, dtype=np.float32)[best])
  importance = state.memory.importance._replace(
    weights=sure, period=jnp.full(12, 9, jnp.int32)
  )
  state = state._replace(memory=state.memory._replace(importance=importance))
  ids = [0, 1, 4, 5, 7]
  _, after, aux = bridge.one_round(problem, algorithm, ids, state=state)
  hparams = bridge.rounds(problem, "fedsoft", COHORTS[:1], **settings)[0]
  batches = bridge.batches(
    problem, bridge.cohort_of(problem, ids), bridge.KEYS[0], hparams
  )
  before = centers_of(state)
  expected = groups_oracle.group_round(
    before, best[ids], problem.clients, ids, batches, 0.3, problems.L2, WORK["lam"]
  )
  for s in range(K):
    bridge.assert_step_close(
      before[s], bridge.model_of(after, s), expected.models[s], rtol=3e-4
    )
  np.testing.assert_array_equal(aux.client["group"], best[ids])


def test_a_cluster_of_nobody_stays(problem):
  """With sigma = 0 a center that serves no example of the cohort is kept."""
  algorithm = bridge.build(problem, "fedsoft", **dict(WORK, sigma=0.0))
  state = bridge.init(problem, algorithm)
  worst = jax.tree.map(lambda leaf: leaf.at[1].mul(40.0), state.models)
  worst = jax.tree.map(lambda leaf: leaf.at[2].set(leaf[0]), worst)  # ties: the first
  state = state._replace(models=worst)
  _, after, _ = bridge.one_round(problem, algorithm, [0, 2], state=state)
  problems.assert_equal(bridge.model_of(after, 2), bridge.model_of(state, 2))


def test_another_aggregator_takes_the_place_of_every_mean(problem):
  """One that shortens nobody is the mean, up to rounding."""
  ids = COHORTS[0]
  plain, trimmed = (
    bridge.one_round(problem, bridge.build(problem, "fedsoft", **WORK, **options), ids)
    for options in ({}, dict(aggregator="centred_clipping:1e6"))
  )
  problems.assert_close(trimmed[1].models, plain[1].models, rtol=1e-5)
