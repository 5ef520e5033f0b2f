"""Mime, MimeLite and MimeSVRG against the oracle, and their identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.data import layout
from tests import problems
from tests.algorithms import bridge
from tests.reference import baselines
from tests.reference import diversified as oracle

COHORTS = [[0, 1, 4, 5, 8, 11], [1, 2, 3, 6, 9], [0, 4, 7, 8, 10, 11]]
KEYS = [jax.random.key(seed) for seed in (3, 4, 5)]
WORK = dict(local_steps=4, batch_size=6, client_lr=0.1)


def play(problem, name, cohorts=None, **settings):
  cohorts = cohorts or COHORTS
  return bridge.history(
      problem, name, cohorts, KEYS[:len(cohorts)],
      problems.some_params(problem.model), **settings)


def assert_statistics_close(memory, expected):
  """m and v; () where the base has none."""
  for mine, theirs in zip(memory, expected, strict=True):
    if theirs is None:
      assert mine == ()
      continue
    theirs = oracle.to_vector(theirs)
    np.testing.assert_allclose(
        oracle.to_vector(bridge.to_oracle(mine)), theirs, rtol=0,
        atol=1e-4 * np.abs(theirs).max())


@pytest.mark.parametrize("name, settings", [
    ("mime", dict(base="sgd", client_weights="uniform", server_lr=0.8)),
    ("mime", dict(base="momentum", client_weights="examples",
                  base_momentum=0.7)),
    ("mime", dict(base="adam", client_weights="uniform", client_lr=0.01,
                  base_beta2=0.9, base_eps=0.1)),
    ("mime_lite", dict(base="sgd", client_weights="examples")),
    ("mime_lite", dict(base="momentum", client_weights="uniform",
                       server_lr=1.2)),
    ("mime_lite", dict(base="adam", client_weights="examples",
                       client_lr=0.01, base_eps=0.1)),
    ("mime_svrg", dict(client_weights="examples", local_steps=0,
                       local_epochs=2, batch_size=10)),
])
def test_rounds_are_the_oracles(problem, name, settings):
  settings = {**WORK, **settings}
  h = registry.get(name).hparams(**settings)
  states, log, cohorts = play(problem, name, **settings)
  w, s = bridge.to_oracle(problems.some_params(problem.model)), None
  base = dict(base="sgd") if name == "mime_svrg" else dict(
      base=h.base, momentum=h.base_momentum, b1=h.base_momentum,
      b2=h.base_beta2, eps=h.base_eps)
  for state, aux, cohort, ids, key in zip(
      states[1:], log, cohorts, COHORTS, KEYS, strict=True):
    batches = bridge.batches(problem, cohort, key, h)
    found = baselines.mime_round(
        w, s, problem.clients, ids, batches, h.client_lr, h.server_lr,
        problems.L2, lite=name == "mime_lite", weights=h.client_weights,
        **base)
    bridge.assert_step_close(w, bridge.model_of(state), found.model, 3e-4)
    assert_statistics_close(state.memory, found.state)
    # The paper's s comes down, MimeLite's full gradient goes up.
    lite, vectors = name == "mime_lite", {"momentum": 1, "adam": 2}.get(
        base["base"], 0)
    full = not lite or vectors > 0
    read = sum(len(rows) for i in ids for rows in batches[i])
    assert [int(count) for count in aux.cost[:4]] == [
        52 * (1 + (not lite) + vectors), 52 * (1 + full), 1 + (not lite),
        full * sum(len(problem.clients[i][1]) for i in ids)
        + read * (1 if lite else 2)]
    if name != "mime_lite":  # the full pass has the loss
      losses = [oracle.loss(w, *problem.clients[i], problems.L2) for i in ids]
      np.testing.assert_allclose(aux.client["loss"], losses, rtol=1e-4)
    w, s = found.model, found.state


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_mime_lite_on_sgd_is_fedavg(problem, weights):
  """Bit for bit, under the same weights."""
  lite, lite_log, _ = play(
      problem, "mime_lite", base="sgd", client_weights=weights, **WORK)
  name, more = "fedavg", {}
  if weights == "uniform":
    name, more = "composed", dict(
        client_update="sgd", client_weights="uniform")
  plain, log, _ = play(problem, name, **WORK, **more)
  problems.assert_equal([s.models for s in lite], [s.models for s in plain])
  problems.assert_equal(lite_log, log)


def test_mime_svrg_is_mime_on_sgd(problem):
  work = dict(local_steps=3, batch_size=0)
  one, log, _ = play(problem, "mime", base="sgd", **work)
  other, other_log, _ = play(problem, "mime_svrg", **work)
  problems.assert_equal([s.models for s in one], [s.models for s in other])
  problems.assert_equal(log, other_log)


def test_one_full_step_of_all_is_gradient_descent(problem):
  """MimeSVRG, everyone, weights n_i / n: w - 0.3 grad f."""
  everyone = list(range(12))
  states, _, _ = play(
      problem, "mime_svrg", [everyone] * 2, local_steps=1, batch_size=0,
      client_lr=0.3, client_weights="examples")
  w = bridge.to_oracle(problems.some_params(problem.model))
  for state in states[1:]:
    g = oracle.anchor_gradient(w, problem.clients, everyone, problems.L2)
    moved = oracle.add(w, g, -0.3)
    bridge.assert_step_close(w, bridge.model_of(state), moved)
    w = moved


def test_fsvrg_without_scaling_is_mime_svrg():
  """Of clients of 16 examples, FSVRG's rate being 16 times MimeSVRG's."""
  made = problems.make_clients((16,) * 6)
  problem = problems.softmax_problem()._replace(
      clients=made, data=problems.client_data(made))
  problem = problem._replace(spec=problem.spec._replace(
      num_clients=6, cohort_size=4, num_examples=96))
  cohorts = [[0, 1, 2, 5], [0, 3, 4, 5]]
  work = dict(local_steps=5, batch_size=6)
  fsvrg, log, _ = play(
      problem, "fsvrg", cohorts, client_lr=16 * 0.125, local_scaling=False,
      aggregate_scaling="none", **work)
  mime, mime_log, _ = play(
      problem, "mime_svrg", cohorts, client_lr=0.125, **work)
  assert problems.differ(mime[0].models, mime[2].models)
  problems.assert_close(
      [s.models for s in fsvrg], [s.models for s in mime], rtol=1e-6,
      atol=1e-7)
  problems.assert_equal([aux.cost for aux in log],
                        [aux.cost for aux in mime_log])


def test_statistics_wait_for_the_end_of_the_round(problem):
  """The first round of momentum steps along (1 - b) g: m is still zero."""
  momentum, _, _ = play(
      problem, "mime_lite", [COHORTS[0]], base="momentum", base_momentum=0.5,
      local_steps=3, batch_size=0, client_lr=0.4)
  plain, _, _ = play(
      problem, "mime_lite", [COHORTS[0]], base="sgd", local_steps=3,
      batch_size=0, client_lr=0.2)
  problems.assert_close(momentum[1].models, plain[1].models)
  cohort = layout.take_cohort(
      problem.data, jnp.array(COHORTS[0], jnp.int32))
  w = bridge.to_oracle(problems.some_params(problem.model))
  shares = baselines.average_weights(
      problem.clients, np.asarray(cohort.ids), "uniform")
  mean = oracle.weighted_sum(shares, [
      oracle.gradient(w, *problem.clients[i], problems.L2)
      for i in COHORTS[0]])
  assert_statistics_close(
      momentum[1].memory[:1],
      [oracle.add(oracle.zeros_like(mean), mean, 0.5)])
