"""Mime, MimeLite and MimeSVRG against the oracle, and their identities."""

import numpy as np
import pytest

from tests import problems
from tests.algorithms import bridge
from tests.reference import baselines
from tests.reference import diversified as oracle

WORK = dict(local_steps=4, batch_size=6, client_lr=0.1)


def assert_statistics_close(memory, expected):
  """m and v; () where the base has none."""
  for mine, theirs in zip(memory, expected, strict=True):
    if theirs is None:
      assert mine == ()
      continue
    bridge.assert_vectors_close(
        bridge.to_oracle(mine), theirs,
        1e-4 * np.abs(oracle.to_vector(theirs)).max())


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
  h, rounds = bridge.rounds(problem, name, **{**WORK, **settings})
  w, s = bridge.start(problem), None
  base = dict(base="sgd") if name == "mime_svrg" else dict(
      base=h.base, momentum=h.base_momentum, b1=h.base_momentum,
      b2=h.base_beta2, eps=h.base_eps)
  lite, vectors = name == "mime_lite", {"momentum": 1, "adam": 2}.get(
      base["base"], 0)
  for r in rounds:
    found = baselines.mime_round(
        w, s, problem.clients, r.ids, r.batches, h.client_lr, h.server_lr,
        problems.L2, lite=lite, weights=h.client_weights, **base)
    bridge.assert_step_close(w, bridge.model_of(r.state), found.model, 3e-4)
    assert_statistics_close(r.state.memory, found.state)
    # The paper's s comes down, MimeLite's full gradient goes up.
    full = not lite or vectors > 0
    assert [int(count) for count in r.aux.cost[:4]] == [
        52 * (1 + (not lite) + vectors), 52 * (1 + full), 1 + (not lite),
        full * sum(len(problem.clients[i][1]) for i in r.ids)
        + bridge.read(r.batches) * (1 if lite else 2)]
    if not lite:  # the full pass has the loss
      losses = [oracle.loss(w, *problem.clients[i], problems.L2)
                for i in r.ids]
      np.testing.assert_allclose(r.aux.client["loss"], losses, rtol=1e-4)
    w, s = found.model, found.state


def test_fsvrg_without_scaling_is_mime_svrg():
  """Of clients of 16 examples, FSVRG's rate being 16 times MimeSVRG's."""
  problem = problems.of_sizes((16,) * 6)
  work = dict(cohorts=[[0, 1, 2, 5], [0, 3, 4, 5]], local_steps=5,
              batch_size=6)
  _, fsvrg = bridge.rounds(
      problem, "fsvrg", client_lr=16 * 0.125, local_scaling=False,
      aggregate_scaling="none", **work)
  _, mime = bridge.rounds(problem, "mime_svrg", client_lr=0.125, **work)
  for one, other in zip(fsvrg, mime):
    assert problems.differ(other.state.models, other.before.models)
    problems.assert_close(
        one.state.models, other.state.models, rtol=1e-6, atol=1e-7)
    problems.assert_equal(one.aux.cost, other.aux.cost)
