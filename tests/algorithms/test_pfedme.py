"""pFedMe and pFedZO against NumPy loops, and what they reduce to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.algorithms import pfedme
from fedjax_alg.base import Shard
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge, zeroth_order as loops
from tests.reference import baselines
from tests.reference import diversified as oracle

IDS = [0, 1, 5, 6]  # sizes 3, 90, 5, 20
KEY = jax.random.key(3)
BASE = dict(inner_steps=3, lam=3.0, client_lr=0.2, personal_lr=0.15)
ZO = dict(directions=4, smoothing=0.2)
WORK = [
    dict(local_steps=3, batch_size=7),
    dict(local_steps=0, local_epochs=2, batch_size=40, server_lr=1.5,
         client_weights="examples"),
    dict(local_steps=2, batch_size=0),
]


def expected_pair(problem, w, i, key, h, like=None):
  """theta and w_k of client i; estimated where ``like`` is given."""
  rows_key, draws = jax.random.split(key)
  x, y = problem.clients[i]
  theta = copy = w
  number = 0
  for rows in bridge.client_batches(problem, i, rows_key, h):
    for _ in range(h.inner_steps):
      if like is None:
        g = oracle.batch_gradient(theta, x, y, rows, problems.L2)
      else:
        moves = loops.moves(like, jax.random.fold_in(draws, number),
                            h.directions, "sphere")
        g = loops.estimate(theta, x[rows], y[rows], moves, h.smoothing,
                           "sphere", l2=problems.L2)
      number += 1
      pull = oracle.add(theta, copy, -1.0)
      theta = oracle.add(
          theta, oracle.add(g, pull, h.lam), -h.personal_lr)
    copy = oracle.add(
        copy, oracle.add(copy, theta, -1.0), -h.client_lr * h.lam)
  return theta, copy


def build(problem, name, **settings):
  algorithm = registry.build(
      name, problem.model, map_clients=clients.ClientMap(), **settings)
  params = problems.some_params(problem.model)
  return algorithm, algorithm.init(params, problem.spec, KEY), params


def deployed(algorithm):
  """(state, client id, shard, key) -> theta, w_k."""
  return problems.quick_jit(lambda *args: (
      algorithm.client_params(*args), algorithm.client_copy(*args)))


@pytest.mark.parametrize("name, settings", [
    *(("pfedme", {**BASE, **work}) for work in WORK),
    ("pfedzo", {**BASE, **ZO, **WORK[0]}), ("pfedzo", {
        **BASE, **ZO, **WORK[2]})])
def test_a_round_is_the_loops(problem, name, settings):
  h = registry.get(name).hparams(**settings)
  params = problems.some_params(problem.model)
  like = params if name == "pfedzo" else None
  model, aux, cohort = bridge.play(
      problem, name, IDS, KEY, params, **settings)
  w = bridge.to_oracle(params)
  trained = [expected_pair(
      problem, w, i, jax.random.fold_in(KEY, i), h, like)[1] for i in IDS]
  weights = baselines.average_weights(problem.clients, IDS, h.client_weights)
  expected = baselines.server_step(w, trained, weights, h.server_lr)
  bridge.assert_step_close(w, model, expected, rtol=5e-4)

  read = np.array([h.examples_read(size) for size in cohort.shards.size])
  gradients, passes = (3 * read, 9) if name == "pfedme" else (0 * read, 15)
  assert int(aux.cost.example_gradients) == gradients.sum()
  np.testing.assert_allclose(
      aux.work.flops, passes * problem.model.flops * read, rtol=1e-6)


@pytest.mark.parametrize("name", ["pfedme", "pfedzo"])
def test_what_a_client_deploys_and_its_copy(problem, name):
  settings = {**BASE, **WORK[0], **(ZO if name == "pfedzo" else {})}
  h = registry.get(name).hparams(**settings)
  algorithm, state, params = build(problem, name, **settings)
  deploy = deployed(algorithm)
  w = bridge.to_oracle(params)
  like = params if name == "pfedzo" else None
  for i in (4, 6):
    key = jax.random.fold_in(KEY, i)
    theta, copy = deploy(
        state, jnp.int32(i), layout.shard_of(problem.data, i), key)
    expected_theta, expected_copy = expected_pair(problem, w, i, key, h, like)
    bridge.assert_step_close(w, theta, expected_theta, rtol=5e-4)
    bridge.assert_step_close(w, copy, expected_copy, rtol=5e-4)
    assert problems.differ(theta, copy)
  nothing = Shard(problem.data.x, problem.data.y, jnp.int32(0), jnp.int32(0))
  for found in deploy(state, jnp.int32(12), nothing, KEY):
    problems.assert_equal(found, params)


def test_a_copy_that_goes_all_the_way_is_the_personal_model(problem):
  """lam client_lr = 1."""
  algorithm, state, params = build(
      problem, "pfedme", local_steps=3, batch_size=7, inner_steps=2, lam=4.0,
      client_lr=0.25)
  theta, copy = deployed(algorithm)(
      state, jnp.int32(1), layout.shard_of(problem.data, 1), KEY)
  problems.assert_equal(theta, copy)
  assert problems.differ(theta, params)


def test_with_one_inner_step_it_is_fedavg_then(problem):
  """lam client_lr = 1: theta starts every step at w_k, nothing pulls it."""
  params = problems.some_params(problem.model)
  work = dict(local_steps=4, batch_size=0)
  found = bridge.play(
      problem, "pfedme", IDS, KEY, params, inner_steps=1, lam=4.0,
      client_lr=0.25, personal_lr=0.3, **work)[0]
  fedavg = bridge.play(
      problem, "composed", IDS, KEY, params, client_update="sgd",
      server="average", client_weights="uniform", client_lr=0.3, **work)[0]
  problems.assert_close(found, fedavg)


def test_without_a_pull_clients_train_alone(problem):
  """lam = 0: the global model stays, theta takes R K plain steps."""
  settings = dict(local_steps=3, batch_size=0, inner_steps=2, lam=0.0,
                  personal_lr=0.3)
  params = problems.some_params(problem.model)
  model = bridge.play(problem, "pfedme", IDS, KEY, params, **settings)[0]
  problems.assert_equal(model, params)
  algorithm, state, _ = build(problem, "pfedme", **settings)
  theta, _ = deployed(algorithm)(
      state, jnp.int32(6), layout.shard_of(problem.data, 6), KEY)
  alone = bridge.play(
      problem, "composed", [6], KEY, params, client_update="sgd",
      server="average", local_steps=6, batch_size=0, client_lr=0.3)[0]
  problems.assert_close(theta, alone)


def test_it_warns_where_it_must_diverge_or_cannot_see():
  good = pfedme.PFedMeHParams()
  assert not registry.get("pfedme").caution(good, 7850)
  bad = pfedme.PFedMeHParams(lam=20.0, personal_lr=0.1)
  found = registry.get("pfedme").caution(bad, 7850)
  assert found.startswith("`personal_lr`=0.1 with `lam`=20: ")
  caution = registry.get("pfedzo").caution
  assert not caution(pfedme.PFedZOHParams(), 7850)
  assert "`lam`=20" in caution(pfedme.PFedZOHParams(lam=20.0), 7850)
  assert "smoothing" in caution(pfedme.PFedZOHParams(smoothing=1e-6), 7850)
