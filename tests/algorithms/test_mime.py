"""Mime, MimeLite and MimeSVRG against the oracle."""

import numpy as np
import pytest

from tests import problems
from tests.algorithms import bridge
from tests.reference import baselines

WORK = dict(local_steps=4, batch_size=6, client_lr=0.1)


def assert_statistics_close(memory, expected):
  """m and v; () where the base has none."""
  for mine, theirs in zip(memory, expected, strict=True):
    if theirs is None:
      assert mine == ()
      continue
    bridge.assert_vectors_close(
      bridge.to_oracle(mine), theirs, 1e-4 * np.abs(theirs).max()
    )


@pytest.mark.parametrize(
  "name, settings",
  [
    (
      "mime",
      dict(base="momentum:0.7", client_weights="examples", server_lr=0.8),
    ),
    (
      "mime",
      dict(
        base="adam:beta2=0.9,eps=0.1",
        client_weights="uniform",
        client_lr=0.01,
      ),
    ),
    ("mime_lite", dict(base="sgd", client_weights="examples")),
    (
      "mime_lite",
      dict(
        base="adam:eps=0.1",
        client_weights="examples",
        server_lr=1.2,
        client_lr=0.01,
      ),
    ),
    (
      "mime_svrg",
      dict(client_weights="examples", local_steps=0, local_epochs=2, batch_size=10),
    ),
  ],
)
def test_rounds_are_the_oracles(problem, name, settings):
  h, rounds = bridge.rounds(problem, name, **{**WORK, **settings})
  w, s = bridge.start(problem), None
  base = dict(base="sgd")
  if name != "mime_svrg":
    beta = getattr(h.base, "beta", None)
    base = dict(
      base=h.base.WORD,
      momentum=beta,
      b1=beta,
      b2=getattr(h.base, "beta2", None),
      eps=getattr(h.base, "eps", None),
    )
  lite, vectors = name == "mime_lite", {"momentum": 1, "adam": 2}.get(base["base"], 0)
  for r in rounds:
    expected = baselines.mime_round(
      w,
      s,
      problem.clients,
      r.ids,
      r.batches,
      h.client_lr,
      h.server_lr,
      problems.L2,
      lite=lite,
      weights=h.client_weights,
      **base,
    )
    bridge.assert_step_close(w, bridge.model_of(r.state), expected.model, 3e-4)
    assert_statistics_close(r.state.memory, expected.state)
    # The paper's s comes down, MimeLite's full gradient goes up.
    full = not lite or vectors > 0
    assert bridge.counts(r.aux) == [
      52 * (1 + (not lite) + vectors),
      52 * (1 + full),
      1 + (not lite),
      full * bridge.examples(problem, r.ids)
      + bridge.read(r.batches) * (1 if lite else 2),
    ]
    if not lite:  # the full pass has the loss
      np.testing.assert_allclose(
        r.aux.client["loss"], bridge.losses(problem, w, r.ids), rtol=1e-4
      )
    w, s = expected.model, expected.state
