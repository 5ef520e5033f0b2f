"""FedZO against a NumPy loop; what it costs."""

import jax
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.algorithms.fedzo import FedZOHParams, caution
from tests import problems
from tests.algorithms import bridge, zeroth_order as loops
from tests.reference import baselines
from tests.reference import diversified as oracle

IDS = [0, 1, 5, 6]  # sizes 3, 90, 5, 20
KEY = jax.random.key(3)
BASE = dict(directions=4, smoothing=0.2, client_lr=0.05)


def expected_round(problem, params, h):
  """The model after a round."""
  w = bridge.to_oracle(params)
  trained = []
  for i in IDS:
    rows_key, draws = jax.random.split(jax.random.fold_in(KEY, i))
    x, y = problem.clients[i]
    v = w
    for number, rows in enumerate(bridge.client_batches(
        problem, i, rows_key, h)):
      moves = loops.moves(params, jax.random.fold_in(draws, number),
                          h.directions, "sphere")
      v = oracle.add(v, loops.estimate(
          v, x[rows], y[rows], moves, h.smoothing, "sphere", l2=problems.L2),
          -h.client_lr)
    trained.append(v)
  weights = baselines.average_weights(problem.clients, IDS, h.client_weights)
  return baselines.server_step(w, trained, weights, h.server_lr)


@pytest.mark.parametrize("settings", [
    dict(local_steps=3, batch_size=7),
    dict(local_steps=0, local_epochs=1, batch_size=40, server_lr=0.8,
         client_weights="examples"),
    dict(local_steps=2, batch_size=0),
])
def test_a_round_is_the_loops(problem, settings):
  h = FedZOHParams(**BASE, **settings)
  params = problems.some_params(problem.model)
  model, aux, cohort = bridge.play(
      problem, "fedzo", IDS, KEY, params, **BASE, **settings)
  bridge.assert_step_close(
      bridge.to_oracle(params), model, expected_round(problem, params, h),
      rtol=5e-4)
  # No gradients; five forward passes for each example that is read.
  assert int(aux.cost.example_gradients) == 0
  read = np.array([h.examples_read(size) for size in cohort.shards.size])
  np.testing.assert_allclose(
      aux.work.flops, 5 * problem.model.flops * read, rtol=1e-6)


def test_many_directions_are_nearly_fedavg(problem):
  """Full batches. Of a step of length g an error of g sqrt(d / n) is left."""
  settings = dict(local_steps=2, batch_size=0, client_lr=0.2)
  params = problems.some_params(problem.model)
  exact = bridge.play(
      problem, "composed", IDS, KEY, params, client_update="sgd",
      server="average", client_weights="uniform", **settings)[0]
  start = oracle.to_vector(bridge.to_oracle(params))
  step = oracle.to_vector(bridge.to_oracle(exact)) - start
  for directions, low, high in ((50, 0.3, 1.0), (5000, 0.0, 0.1)):
    found = bridge.play(
        problem, "fedzo", IDS, KEY, params, directions=directions,
        smoothing=0.01, **settings)[0]
    error = oracle.to_vector(bridge.to_oracle(found)) - start - step
    assert low < np.linalg.norm(error) / np.linalg.norm(step) < high


def test_seeds_and_numbers_are_the_update(problem):
  """The server repeats the steps from what it was sent, without any data."""
  h = FedZOHParams(**BASE, local_steps=3, batch_size=7, uplink="seeds")
  params = problems.some_params(problem.model)
  model, aux, _ = bridge.play(
      problem, "fedzo", IDS, KEY, params, **BASE, local_steps=3, batch_size=7,
      uplink="seeds")

  def moves(draws, number):
    return loops.moves(params, jax.random.fold_in(draws, number),
                       h.directions, "sphere")

  def step(v, numbers, moves_):
    d = oracle.to_vector(v).size
    direction = oracle.add(oracle.zeros_like(v), v, problems.L2)
    for change, move in zip(numbers, moves_, strict=True):
      direction = oracle.add(
          direction, move, d / (h.directions * h.smoothing) * change)
    return oracle.add(v, direction, -h.client_lr)

  w, messages, received = bridge.to_oracle(params), [], []
  for i in IDS:
    rows_key, draws = jax.random.split(jax.random.fold_in(KEY, i))
    x, y = problem.clients[i]
    v, numbers = w, []
    for number, rows in enumerate(bridge.client_batches(
        problem, i, rows_key, h)):
      moves_ = moves(draws, number)
      numbers.append(loops.changes(v, x[rows], y[rows], moves_, h.smoothing))
      v = step(v, numbers[-1], moves_)
    messages.append((np.asarray(jax.random.key_data(draws)),
                     np.array(numbers, np.float32)))
  for words, numbers in messages:
    assert words.nbytes + numbers.nbytes == 4 * int(aux.cost.up) == 56
    draws, v = jax.random.wrap_key_data(words), w
    for number, sent in enumerate(numbers):
      v = step(v, sent, moves(draws, number))
    received.append(v)
  weights = baselines.average_weights(problem.clients, IDS, h.client_weights)
  bridge.assert_step_close(
      w, model, baselines.server_step(w, received, weights, h.server_lr),
      rtol=5e-4)
  assert aux.cost.central_flops == 2 * 12 * 52 * len(IDS)
  with pytest.raises(ValueError, match="uplink=seeds: needs local_steps"):
    registry.build("fedzo", problem.model, map_clients=None, uplink="seeds",
                   local_steps=0)


def test_it_warns_of_differences_that_float32_cannot_see():
  assert registry.get("fedzo").caution is caution
  assert not caution(FedZOHParams(), 7850)
  assert "`smoothing`=1e-05" in caution(FedZOHParams(smoothing=1e-5), 7850)
