"""BAFFLE against NumPy loops; its protocols, averages and costs."""

import jax
from jax.extend import core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.algorithms import baffle
from fedjax_alg.algorithms.baffle import BaffleHParams
from fedjax_alg.client import zeroth_order
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge, zeroth_order as loops
from tests.reference import diversified as oracle

COHORTS = [[0, 1, 5, 6], [2, 4, 6]]
KEYS = [jax.random.key(seed) for seed in (3, 4)]
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


def estimates(problem, w, params, ids, step, rows, key, h):
  """The vector that the server steps along, without L2."""
  data = [problem.clients[i] for i in ids]
  data = [(x[r], y[r]) for (x, y), r in zip(data, rows)]
  if h.protocol == "per_client":
    total = 0.0
    for i, (x, y) in zip(ids, data):
      moves = loops.moves(params, jax.random.fold_in(key, i), h.directions,
                          "gaussian")
      found = oracle.to_vector(loops.estimate(
          w, x, y, moves, h.smoothing, "gaussian", h.scheme))
      if h.clip:
        found = found * min(1.0, h.clip / np.abs(found).max())
      total = total + found / len(ids)
    return total
  moves = loops.moves(params, key, h.directions, "gaussian")
  sizes = np.array([len(problem.clients[i][1]) for i in ids])
  reports = np.array([loops.changes(w, x, y, moves, h.smoothing, h.scheme)
                      for x, y in data])  # [|S|, K]
  change = sizes / sizes.sum() @ reports
  return sum(c * oracle.to_vector(v) for c, v in zip(change, moves)) / (
      h.directions * h.smoothing)


def expected_rounds(problem, params, h):
  """(w, its running average) after each round."""
  w = ema = bridge.to_oracle(params)
  server, result = Server(h), []
  for t, (ids, key) in enumerate(zip(COHORTS, KEYS), 1):
    rows_key, draws = jax.random.split(key)
    batches = [bridge.client_batches(
        problem, i, jax.random.fold_in(rows_key, i), h.work()) for i in ids]
    for step in range(h.steps_per_round):
      vector = estimates(
          problem, w, params, ids, step, [b[step] for b in batches],
          jax.random.fold_in(draws, step), h)
      move = server.step(vector + problems.L2 * oracle.to_vector(w))
      w = oracle.add(w, oracle.to_model(move, w))
    decay = min(h.ema, (1 + t) / (10 + t))
    ema = oracle.add(oracle.add(oracle.zeros_like(w), ema, decay), w, 1 - decay)
    result.append((w, ema))
  return result


@pytest.mark.parametrize("settings", [
    dict(scheme="forward", server="sgd", server_lr=0.3, steps_per_round=3),
    dict(scheme="central", server="adam", server_lr=0.05, eps=0.01,
         directions=11, ema=0.2),
    dict(scheme="forward", server="sgd", batch_size=0, server_lr=0.2,
         steps_per_round=2, ema=0.0),
    dict(protocol="per_client", server="sgd", server_lr=0.3, ema=0.1,
         uplink="seeds"),
    dict(protocol="per_client", scheme="central", clip=0.0, server="adam",
         server_lr=0.05, eps=0.01, steps_per_round=2),
])
def test_rounds_are_the_loops(problem, settings):
  settings = {**BASE, **settings}
  h = BaffleHParams(**settings)
  params = problems.some_params(problem.model)
  states, log, cohorts = bridge.history(
      problem, "baffle", COHORTS, KEYS, params, **settings)
  start = bridge.to_oracle(params)
  for t, (state, (w, ema)) in enumerate(
      zip(states[1:], expected_rounds(problem, params, h), strict=True), 1):
    bridge.assert_step_close(start, state.params, w, rtol=1e-3)
    bridge.assert_step_close(start, state.ema, ema, rtol=1e-3)
    assert int(state.round) == t
    if not h.ema:
      problems.assert_equal(state.ema, state.params)
  d = start["kernel"].size + start["bias"].size
  steps = h.steps_per_round
  up = d if h.protocol == "per_client" else h.directions
  if h.sends_seeds:  # and the two words of a key
    up = h.directions + 2
  passes = 2 * h.directions if h.scheme == "central" else h.directions + 1
  for aux, cohort in zip(log, cohorts):
    assert [int(n) for n in aux.cost[:4]] == [steps * d, steps * up, steps, 0]
    read = np.array([h.work().examples_read(n) for n in cohort.shards.size])
    np.testing.assert_allclose(
        aux.work.flops, passes * problem.model.flops * read, rtol=1e-6)
    assert aux.work.batches.tolist() == [steps * passes] * len(read)


def one_step(problem, ids, **settings):
  """The vector that the server steps along, of a round of one step."""
  params = problems.some_params(problem.model)
  states, _, _ = bridge.history(
      problem, "baffle", [ids], KEYS[:1], params, server="sgd",
      server_momentum=0.0, server_lr=1.0, ema=0.0, **{**BASE, **settings})
  start, end = (oracle.to_vector(bridge.to_oracle(s.params)) for s in states)
  return start - end


def test_scalars_may_be_added_up_before_they_meet_the_directions(problem):
  """What each client alone would have moved the server by, and all of them."""
  ids = COHORTS[0]
  sizes = np.array([problems.SIZES[i] for i in ids])
  alone = np.array([one_step(problem, [i]) for i in ids])
  together = one_step(problem, ids)
  np.testing.assert_allclose(
      together, sizes / sizes.sum() @ alone, atol=1e-5 * np.abs(alone).max())
  assert np.abs(together).max() > 0.1


def test_a_client_scales_its_estimate_down(problem):
  whole = one_step(problem, [4], protocol="per_client", clip=0.0)
  params = problems.some_params(problem.model)
  decay = problems.L2 * oracle.to_vector(bridge.to_oracle(params))
  found = one_step(problem, [4], protocol="per_client", clip=0.05)
  largest = np.abs(whole - decay).max()
  assert largest > 0.05
  np.testing.assert_allclose(
      found - decay, (whole - decay) * 0.05 / largest, atol=2e-6)
  v = jnp.array([0.1, -0.3])
  problems.assert_equal(baffle.clipped(v, 0.3), v)
  problems.assert_equal(baffle.clipped(v, 0.0), v)
  problems.assert_close(baffle.clipped(v, 0.15), 0.5 * v)
  problems.assert_equal(baffle.clipped(0.0 * v, 0.3), 0.0 * v)


def test_chunks_of_directions_change_nothing(problem, monkeypatch):
  """But for the order of a sum."""
  expected = one_step(problem, COHORTS[0], directions=12)
  monkeypatch.setattr(zeroth_order, "CHUNK", 3)
  np.testing.assert_allclose(
      one_step(problem, COHORTS[0], directions=12), expected, atol=1e-5)


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
  state = algorithm.init(params, problem.spec, KEYS[0])
  cohort = layout.take_cohort(
      problem.data, jnp.arange(7, dtype=jnp.int32))
  jaxpr = jax.make_jaxpr(algorithm.round)(state, cohort, KEYS[0])
  assert max(drawn_by_clients(jaxpr.jaxpr, 7), default=0) == largest


def test_the_averaged_weights_are_the_global_model(problem):
  params = problems.some_params(problem.model)
  states, _, _ = bridge.history(
      problem, "baffle", COHORTS, KEYS, params, **BASE)
  algorithm = registry.build(
      "baffle", problem.model, map_clients=clients.ClientMap(), **BASE)
  found = algorithm.global_params(states[-1])
  problems.assert_equal(
      jax.tree.map(lambda leaf: leaf[0], found), states[-1].ema)
  assert problems.differ(states[-1].ema, states[-1].params)


def test_it_warns_of_differences_that_float32_cannot_see():
  assert registry.get("baffle").caution is baffle.caution
  assert not baffle.caution(BaffleHParams(), 10 ** 6)
  assert "`smoothing`=1e-06" in baffle.caution(
      BaffleHParams(smoothing=1e-6), 10)
