"""pFedMe and pFedZO against the oracle: rounds, and what is deployed."""

import jax
import pytest

from fedjax_alg import registry
from tests import problems
from tests.algorithms import bridge, zeroth_order
from tests.reference import analytic
from tests.reference import diversified as oracle

IDS = [0, 1, 5, 6]  # sizes 3, 90, 5, 20
BASE = dict(inner_steps=3, lam=3.0, client_lr=0.2, personal_lr=0.15)
ZO = dict(directions=4, smoothing=0.2, **BASE)
WORK = [
  dict(local_steps=3, batch_size=7),
  dict(
    local_steps=0,
    local_epochs=2,
    batch_size=40,
    server_lr=1.5,
    client_weights="examples",
  ),
  dict(local_steps=2, batch_size=0),
]


def oracle_pair(problem, name, i, key, h):
  """theta and w_k of client i."""
  rows_key, draws = jax.random.split(key)
  x, y = problem.clients[i]
  batches = bridge.client_batches(problem, i, rows_key, h)

  def gradient(theta, r, k):
    batch = x[batches[r]], y[batches[r]]
    if name == "pfedme":
      return oracle.gradient(theta, *batch, problems.L2)
    moves = zeroth_order.moves(
      problem, jax.random.fold_in(draws, r * h.inner_steps + k), h.directions, "sphere"
    )
    return zeroth_order.on_sphere(theta, *batch, moves, h.smoothing)

  return analytic.envelope_client(
    bridge.start(problem),
    gradient,
    len(batches),
    h.inner_steps,
    h.personal_lr,
    h.client_lr,
    h.lam,
  )


@pytest.mark.parametrize(
  "name, settings",
  [
    *(("pfedme", {**BASE, **work}) for work in WORK[:2]),
    pytest.param("pfedme", {**BASE, **WORK[2]}, marks=pytest.mark.slow),
    pytest.param("pfedzo", {**ZO, **WORK[0]}, marks=pytest.mark.slow),
    ("pfedzo", {**ZO, **WORK[2]}),
  ],
)
def test_a_round_is_the_oracles(problem, name, settings):
  h, (r,) = bridge.rounds(problem, name, [IDS], **settings)
  w = bridge.start(problem)
  trained = [
    oracle_pair(problem, name, i, jax.random.fold_in(r.key, i), h)[1] for i in IDS
  ]
  weights = oracle.average_weights(problem.clients, IDS, h.client_weights)
  expected = oracle.server_step(w, trained, weights, h.server_lr)
  bridge.assert_step_close(w, bridge.model_of(r.state), expected, rtol=5e-4)
  read = zeroth_order.check_flops(problem, r.aux, h, IDS, 9 if name == "pfedme" else 15)
  assert int(r.aux.cost.example_gradients) == (
    3 * read.sum() if name == "pfedme" else 0
  )


@pytest.mark.parametrize("name", ["pfedme", "pfedzo"])
def test_what_a_client_deploys_and_its_copy(problem, name):
  settings = {**(ZO if name == "pfedzo" else BASE), **WORK[0]}
  h = registry.get(name).hparams(**settings)
  state = bridge.init(problem, bridge.build(problem, name, **settings))
  deploy = bridge.deployer(problem, name, **settings)
  w = bridge.start(problem)
  for i in (4, 6):
    key = jax.random.fold_in(bridge.KEYS[0], i)
    both = deploy(state, i, key)
    for actual, expected in zip(both, oracle_pair(problem, name, i, key, h)):
      bridge.assert_step_close(w, actual, expected, rtol=5e-4)
    assert problems.differ(*both)
  for actual in deploy(state, bridge.NOBODY):
    problems.assert_equal(actual, problems.some_params(problem.model))
