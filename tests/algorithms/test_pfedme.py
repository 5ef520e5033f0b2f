"""pFedMe and pFedZO against the oracle: rounds, and what is deployed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.base import Shard
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge, zeroth_order
from tests.reference import analytic
from tests.reference import baselines
from tests.reference import diversified as oracle

IDS = [0, 1, 5, 6]  # sizes 3, 90, 5, 20
BASE = dict(inner_steps=3, lam=3.0, client_lr=0.2, personal_lr=0.15)
ZO = dict(directions=4, smoothing=0.2, **BASE)
WORK = [
    dict(local_steps=3, batch_size=7),
    dict(local_steps=0, local_epochs=2, batch_size=40, server_lr=1.5,
         client_weights="examples"),
    dict(local_steps=2, batch_size=0),
]


def expected_pair(problem, name, i, key, h):
  """theta and w_k of client i."""
  rows_key, draws = jax.random.split(key)
  x, y = problem.clients[i]
  batches = bridge.client_batches(problem, i, rows_key, h)

  def gradient(theta, r, k):
    rows = batches[r]
    if name == "pfedme":
      return oracle.batch_gradient(theta, x, y, rows, problems.L2)
    moves = zeroth_order.moves(
        problems.some_params(problem.model),
        jax.random.fold_in(draws, r * h.inner_steps + k), h.directions,
        "sphere")
    return zeroth_order.estimate(
        theta, x[rows], y[rows], moves, h.smoothing, "sphere", l2=problems.L2)

  return analytic.envelope_client(
      bridge.start(problem), gradient, len(batches), h.inner_steps,
      h.personal_lr, h.client_lr, h.lam)


@pytest.mark.parametrize("name, settings", [
    *(("pfedme", {**BASE, **work}) for work in WORK),
    ("pfedzo", {**ZO, **WORK[0]}), ("pfedzo", {**ZO, **WORK[2]})])
def test_a_round_is_the_oracles(problem, name, settings):
  h, (r,) = bridge.rounds(problem, name, [IDS], **settings)
  w = bridge.start(problem)
  trained = [expected_pair(
      problem, name, i, jax.random.fold_in(r.key, i), h)[1] for i in IDS]
  weights = baselines.average_weights(problem.clients, IDS, h.client_weights)
  expected = baselines.server_step(w, trained, weights, h.server_lr)
  bridge.assert_step_close(w, bridge.model_of(r.state), expected, rtol=5e-4)

  read = np.array([h.examples_read(problems.SIZES[i]) for i in IDS])
  gradients, passes = (3 * read, 9) if name == "pfedme" else (0 * read, 15)
  assert int(r.aux.cost.example_gradients) == gradients.sum()
  np.testing.assert_allclose(
      r.aux.work.flops, passes * problem.model.flops * read, rtol=1e-6)


@pytest.mark.parametrize("name", ["pfedme", "pfedzo"])
def test_what_a_client_deploys_and_its_copy(problem, name):
  settings = {**(ZO if name == "pfedzo" else BASE), **WORK[0]}
  h = registry.get(name).hparams(**settings)
  algorithm = registry.build(
      name, problem.model, map_clients=clients.ClientMap(), **settings)
  params = problems.some_params(problem.model)
  state = algorithm.init(params, problem.spec, bridge.KEYS[0])
  deploy = problems.quick_jit(lambda *args: (
      algorithm.client_params(*args), algorithm.client_copy(*args)))
  w = bridge.start(problem)
  for i in (4, 6):
    key = jax.random.fold_in(bridge.KEYS[0], i)
    both = deploy(state, jnp.int32(i), layout.shard_of(problem.data, i), key)
    for found, expected in zip(both, expected_pair(problem, name, i, key, h)):
      bridge.assert_step_close(w, found, expected, rtol=5e-4)
    assert problems.differ(*both)
  nothing = Shard(problem.data.x, problem.data.y, jnp.int32(0), jnp.int32(0))
  for found in deploy(state, jnp.int32(12), nothing, bridge.KEYS[0]):
    problems.assert_equal(found, params)
