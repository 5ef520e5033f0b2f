"""BAFFLE against NumPy loops; its protocols, averages and costs."""

import jax
from jax.extend import core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.algorithms import baffle
from tests import problems
from tests.algorithms import bridge, zeroth_order
from tests.reference import analytic
from tests.reference import diversified as oracle

COHORTS = [[0, 1, 5, 6], [2, 4, 6]]
BASE = dict(directions=4, smoothing=0.2, batch_size=7)


class Server:
  """SGD with momentum or Adam."""

  def __init__(self, h):
    self.h, self.t, self.m, self.v = h, 0, 0.0, 0.0

  def step(self, g):
    h, self.t = self.h, self.t + 1
    rule = h.server
    if rule.WORD == "sgd":
      self.m = rule.momentum * self.m + g
      return -h.server_lr * self.m
    self.m = rule.beta1 * self.m + (1 - rule.beta1) * g
    self.v = rule.beta2 * self.v + (1 - rule.beta2) * g * g
    first = self.m / (1 - rule.beta1**self.t)
    second = self.v / (1 - rule.beta2**self.t)
    return -h.server_lr * first / (np.sqrt(second) + rule.eps)


def estimate(problem, w, ids, rows, key, h):
  """What the server steps along, without L2."""

  def of(i, r, key):
    x, y = problem.clients[i]
    moves = zeroth_order.moves(problem, key, h.directions, "gaussian")
    return moves, zeroth_order.changes(w, x[r], y[r], moves, h.smoothing, h.scheme)

  total, shares = 0.0, oracle.average_weights(problem.clients, ids)
  for i, r, share in zip(ids, rows, shares):
    per_client = h.protocol.WORD == "per_client"
    moves, reports = of(i, r, jax.random.fold_in(key, i) if per_client else key)
    gradient = analytic.gaussian_estimator(reports, h.smoothing * moves, h.smoothing)
    if per_client:
      share = 1 / len(ids)
      if h.protocol.clip:
        gradient = gradient * min(1.0, h.protocol.clip / np.abs(gradient).max())
    total = total + share * gradient
  return total


def oracle_rounds(problem, h):
  """(w, its running average) after each round."""
  w = ema = bridge.start(problem)
  server, result = Server(h), []
  for t, (ids, key) in enumerate(zip(COHORTS, bridge.KEYS), 1):
    rows_key, draws = jax.random.split(key)
    batches = bridge.by_client(problem, ids, rows_key, h.work())
    for step in range(h.steps_per_round):
      w = w + server.step(
        problems.L2 * w
        + estimate(
          problem,
          w,
          ids,
          [batches[i][step] for i in ids],
          jax.random.fold_in(draws, step),
          h,
        )
      )
    decay = min(h.ema, (1 + t) / (10 + t))
    ema = decay * ema + (1 - decay) * w
    result.append((w, ema))
  return result


@pytest.mark.parametrize(
  "settings",
  [
    dict(scheme="forward", server="sgd", server_lr=0.3, steps_per_round=3),
    dict(
      scheme="central", server="adam:eps=0.01", server_lr=0.05, directions=12, ema=0.2
    ),
    dict(
      scheme="forward",
      server="sgd",
      batch_size=0,
      server_lr=0.2,
      steps_per_round=2,
      ema=0.0,
    ),
    dict(protocol="per_client:seeds", server="sgd", server_lr=0.3, ema=0.1),
    dict(
      protocol="per_client:clip=0",
      scheme="central",
      server="adam:eps=0.01",
      server_lr=0.05,
      steps_per_round=2,
    ),
  ],
)
def test_rounds_are_the_loops(problem, settings):
  """Of 12 directions a chunk has six."""
  h, rounds = bridge.rounds(problem, "baffle", COHORTS, **{**BASE, **settings})
  start = bridge.start(problem)
  up = 52 if h.protocol.WORD == "per_client" else h.directions
  if getattr(h.protocol, "sends_seeds", False):  # and the two words of a key
    up = h.directions + 2
  steps = h.steps_per_round
  passes = 2 * h.directions if h.scheme == "central" else h.directions + 1
  for t, (r, (w, ema)) in enumerate(
    zip(rounds, oracle_rounds(problem, h), strict=True), 1
  ):
    bridge.assert_step_close(start, r.state.params, w, rtol=1e-3)
    bridge.assert_step_close(start, r.state.ema, ema, rtol=1e-3)
    assert int(r.state.round) == t
    if not h.ema:
      problems.assert_equal(r.state.ema, r.state.params)
    assert bridge.counts(r.aux) == [52 * steps, steps * up, steps, 0]
    read = zeroth_order.check_flops(problem, r.aux, h.work(), r.ids, passes)
    assert r.aux.work.batches.tolist() == [steps * passes] * len(read)
  # The averaged weights are the global model.
  state = rounds[-1].state
  actual = bridge.build(problem, "baffle", **{**BASE, **settings}).global_params(state)
  problems.assert_equal(jax.tree.map(lambda leaf: leaf[0], actual), state.ema)


def test_a_client_scales_its_estimate_down():
  v = jnp.array([0.1, -0.3])
  problems.assert_equal(baffle.clip_entries(v, 0.3), v)
  problems.assert_equal(baffle.clip_entries(v, 0.0), v)
  problems.assert_close(baffle.clip_entries(v, 0.15), 0.5 * v)
  problems.assert_equal(baffle.clip_entries(0.0 * v, 0.3), 0.0 * v)


def draw_sizes(jaxpr, slots, inside=False):
  """Sizes of what is drawn inside a loop over ``slots`` clients."""
  for eqn in jaxpr.eqns:
    in_loop = inside or (eqn.primitive.name == "scan" and eqn.params["length"] == slots)
    if in_loop and eqn.primitive.name == "random_bits":
      yield eqn.outvars[0].aval.size
    for sub in jex_core.jaxprs_in_params(eqn.params):
      yield from draw_sizes(sub, slots, in_loop)


@pytest.mark.parametrize("protocol, largest", [("shared", 0), ("per_client", 4 * 52)])
def test_shared_directions_are_drawn_once_not_by_every_client(
  problem, protocol, largest
):
  algorithm = bridge.build(problem, "baffle", protocol=protocol, **BASE)
  jaxpr = jax.make_jaxpr(algorithm.round)(
    bridge.init(problem, algorithm), bridge.cohort_of(problem, range(7)), bridge.KEYS[0]
  )
  assert max(draw_sizes(jaxpr.jaxpr, 7), default=0) == largest
