"""BAFFLE against NumPy loops; its protocols, averages and costs."""

import jax
from jax.extend import core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.algorithms import baffle
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge, zeroth_order
from tests.reference import diversified as oracle

COHORTS = [[0, 1, 5, 6], [2, 4, 6]]
BASE = dict(directions=4, smoothing=0.2, batch_size=7)


class Server:
  """SGD with momentum or Adam on vectors of the oracle's order."""

  def __init__(self, h):
    self.h, self.t, self.m, self.v = h, 0, 0.0, 0.0

  def step(self, g):
    h, self.t = self.h, self.t + 1
    if h.server == "sgd":
      self.m = h.server_momentum * self.m + g
      return -h.server_lr * self.m
    self.m = h.beta1 * self.m + (1 - h.beta1) * g
    self.v = h.beta2 * self.v + (1 - h.beta2) * g * g
    first = self.m / (1 - h.beta1 ** self.t)
    second = self.v / (1 - h.beta2 ** self.t)
    return -h.server_lr * first / (np.sqrt(second) + h.eps)


def estimates(problem, w, ids, rows, key, h):
  """The vector that the server steps along, without L2."""
  data = [problem.clients[i] for i in ids]
  data = [(x[r], y[r]) for (x, y), r in zip(data, rows)]
  draw = lambda key: zeroth_order.moves(
      problems.some_params(problem.model), key, h.directions, "gaussian")
  if h.protocol == "per_client":
    total = 0.0
    for i, (x, y) in zip(ids, data):
      found = oracle.to_vector(zeroth_order.estimate(
          w, x, y, draw(jax.random.fold_in(key, i)), h.smoothing, "gaussian",
          h.scheme))
      if h.clip:
        found = found * min(1.0, h.clip / np.abs(found).max())
      total = total + found / len(ids)
    return total
  moves = draw(key)
  sizes = np.array([len(problem.clients[i][1]) for i in ids])
  reports = np.array([
      zeroth_order.changes(w, x, y, moves, h.smoothing, h.scheme)
      for x, y in data])  # [|S|, K]
  return sizes / sizes.sum() @ reports @ moves / (h.directions * h.smoothing)


def expected_rounds(problem, h):
  """(w, its running average) after each round."""
  w = ema = bridge.start(problem)
  server, result = Server(h), []
  for t, (ids, key) in enumerate(zip(COHORTS, bridge.KEYS), 1):
    rows_key, draws = jax.random.split(key)
    batches = [bridge.client_batches(
        problem, i, jax.random.fold_in(rows_key, i), h.work()) for i in ids]
    for step in range(h.steps_per_round):
      vector = estimates(
          problem, w, ids, [b[step] for b in batches],
          jax.random.fold_in(draws, step), h)
      move = server.step(vector + problems.L2 * oracle.to_vector(w))
      w = oracle.add(w, oracle.to_model(move, w))
    decay = min(h.ema, (1 + t) / (10 + t))
    ema = oracle.weighted_sum([decay, 1 - decay], [ema, w])
    result.append((w, ema))
  return result


@pytest.mark.parametrize("settings", [
    dict(scheme="forward", server="sgd", server_lr=0.3, steps_per_round=3),
    dict(scheme="central", server="adam", server_lr=0.05, eps=0.01,
         directions=12, ema=0.2),
    dict(scheme="forward", server="sgd", batch_size=0, server_lr=0.2,
         steps_per_round=2, ema=0.0),
    dict(protocol="per_client", server="sgd", server_lr=0.3, ema=0.1,
         uplink="seeds"),
    dict(protocol="per_client", scheme="central", clip=0.0, server="adam",
         server_lr=0.05, eps=0.01, steps_per_round=2),
])
def test_rounds_are_the_loops(problem, settings):
  """Of 12 directions a chunk has six."""
  h, rounds = bridge.rounds(
      problem, "baffle", COHORTS, **{**BASE, **settings})
  start = bridge.start(problem)
  up = 52 if h.protocol == "per_client" else h.directions
  if h.sends_seeds:  # and the two words of a key
    up = h.directions + 2
  steps = h.steps_per_round
  passes = 2 * h.directions if h.scheme == "central" else h.directions + 1
  for t, (r, (w, ema)) in enumerate(
      zip(rounds, expected_rounds(problem, h), strict=True), 1):
    bridge.assert_step_close(start, r.state.params, w, rtol=1e-3)
    bridge.assert_step_close(start, r.state.ema, ema, rtol=1e-3)
    assert int(r.state.round) == t
    if not h.ema:
      problems.assert_equal(r.state.ema, r.state.params)
    assert [int(n) for n in r.aux.cost[:4]] == [
        52 * steps, steps * up, steps, 0]
    read = np.array([h.work().examples_read(problems.SIZES[i]) for i in r.ids])
    np.testing.assert_allclose(
        r.aux.work.flops, passes * problem.model.flops * read, rtol=1e-6)
    assert r.aux.work.batches.tolist() == [steps * passes] * len(read)
  # The averaged weights are the global model.
  state = rounds[-1].state
  found = registry.build(
      "baffle", problem.model, map_clients=clients.ClientMap(),
      **{**BASE, **settings}).global_params(state)
  problems.assert_equal(jax.tree.map(lambda leaf: leaf[0], found), state.ema)


def test_a_client_scales_its_estimate_down():
  v = jnp.array([0.1, -0.3])
  problems.assert_equal(baffle.clipped(v, 0.3), v)
  problems.assert_equal(baffle.clipped(v, 0.0), v)
  problems.assert_close(baffle.clipped(v, 0.15), 0.5 * v)
  problems.assert_equal(baffle.clipped(0.0 * v, 0.3), 0.0 * v)


def drawn_by_clients(jaxpr, slots, inside=False):
  """Sizes of what is drawn inside a loop over ``slots`` clients."""
  for eqn in jaxpr.eqns:
    here = inside or (
        eqn.primitive.name == "scan" and eqn.params["length"] == slots)
    if here and eqn.primitive.name == "random_bits":
      yield eqn.outvars[0].aval.size
    for sub in jex_core.jaxprs_in_params(eqn.params):
      yield from drawn_by_clients(sub, slots, here)


@pytest.mark.parametrize("protocol, largest", [
    ("shared", 0), ("per_client", 4 * 52)])
def test_shared_directions_are_drawn_once_not_by_every_client(
    problem, protocol, largest):
  algorithm = registry.build(
      "baffle", problem.model, map_clients=clients.ClientMap(),
      protocol=protocol, **BASE)
  params = problems.some_params(problem.model)
  state = algorithm.init(params, problem.spec, bridge.KEYS[0])
  jaxpr = jax.make_jaxpr(algorithm.round)(
      state, bridge.cohort_of(problem, range(7)), bridge.KEYS[0])
  assert max(drawn_by_clients(jaxpr.jaxpr, 7), default=0) == largest
