"""FedZO against the oracle's estimates; what it costs."""

import jax
import numpy as np
import pytest

from fedjax_alg import registry
from tests import problems
from tests.algorithms import bridge, zeroth_order
from tests.reference import baselines
from tests.reference import diversified as oracle

IDS = [0, 1, 5, 6]  # sizes 3, 90, 5, 20
BASE = dict(directions=4, smoothing=0.2, client_lr=0.05)


def directions(problem, draws, number, h):
  return zeroth_order.moves(
      problems.some_params(problem.model), jax.random.fold_in(draws, number),
      h.directions, "sphere")


def mean(problem, w, trained, h):
  weights = baselines.average_weights(problem.clients, IDS, h.client_weights)
  return baselines.server_step(w, trained, weights, h.server_lr)


@pytest.mark.parametrize("settings", [
    dict(local_steps=3, batch_size=7),
    dict(local_steps=0, local_epochs=1, batch_size=40, server_lr=0.8,
         client_weights="examples"),
    dict(local_steps=2, batch_size=0),
])
def test_a_round_is_the_loops(problem, settings):
  h, (r,) = bridge.rounds(problem, "fedzo", [IDS], **BASE, **settings)
  w, trained = bridge.start(problem), []
  for i in IDS:
    rows_key, draws = jax.random.split(jax.random.fold_in(r.key, i))
    (x, y), v = problem.clients[i], w
    for number, rows in enumerate(bridge.client_batches(
        problem, i, rows_key, h)):
      v = oracle.add(v, zeroth_order.estimate(
          v, x[rows], y[rows], directions(problem, draws, number, h),
          h.smoothing, "sphere", l2=problems.L2), -h.client_lr)
    trained.append(v)
  bridge.assert_step_close(
      w, bridge.model_of(r.state), mean(problem, w, trained, h), rtol=5e-4)
  # No gradients; five forward passes for each example that is read.
  assert int(r.aux.cost.example_gradients) == 0
  read = np.array([h.examples_read(problems.SIZES[i]) for i in IDS])
  np.testing.assert_allclose(
      r.aux.work.flops, 5 * problem.model.flops * read, rtol=1e-6)


def test_seeds_and_numbers_are_the_update(problem):
  """The server repeats the steps from what it was sent, without any data."""
  h, (r,) = bridge.rounds(
      problem, "fedzo", [IDS], **BASE, local_steps=3, batch_size=7,
      uplink="seeds")
  w, received = bridge.start(problem), []

  def step(v, numbers, draws, number):
    vector = oracle.to_vector(v)
    direction = problems.L2 * vector + vector.size / (
        h.directions * h.smoothing) * numbers @ directions(
            problem, draws, number, h)
    return oracle.to_model(vector - h.client_lr * direction, v)

  for i in IDS:
    rows_key, draws = jax.random.split(jax.random.fold_in(r.key, i))
    (x, y), v, sent = problem.clients[i], w, []
    for number, rows in enumerate(bridge.client_batches(
        problem, i, rows_key, h)):
      sent.append(zeroth_order.changes(
          v, x[rows], y[rows], directions(problem, draws, number, h),
          h.smoothing).astype(np.float32))
      v = step(v, sent[-1], draws, number)
    words, sent = np.asarray(jax.random.key_data(draws)), np.array(sent)
    assert words.nbytes + sent.nbytes == 4 * int(r.aux.cost.up) == 56
    draws, v = jax.random.wrap_key_data(words), w
    for number, numbers in enumerate(sent):
      v = step(v, numbers, draws, number)
    received.append(v)
  bridge.assert_step_close(
      w, bridge.model_of(r.state), mean(problem, w, received, h), rtol=5e-4)
  assert r.aux.cost.central_flops == 2 * 12 * 52 * len(IDS)
  with pytest.raises(ValueError, match="uplink=seeds: needs local_steps"):
    registry.build("fedzo", problem.model, map_clients=None, uplink="seeds",
                   local_steps=0)
