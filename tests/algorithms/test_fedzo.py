"""FedZO against the oracle's estimates; what it costs."""

import jax
import numpy as np
import pytest

from tests import problems
from tests.algorithms import bridge, zeroth_order
from tests.reference import diversified as oracle

IDS = [0, 1, 5, 6]  # sizes 3, 90, 5, 20
BASE = dict(directions=4, smoothing=0.2, client_lr=0.05)


def directions(problem, draws, number, h):
  return zeroth_order.moves(
    problem, jax.random.fold_in(draws, number), h.directions, "sphere"
  )


def check_mean(problem, r, trained, h):
  """The model is the mean of those trained from the first."""
  w = bridge.start(problem)
  weights = oracle.average_weights(problem.clients, IDS, h.client_weights)
  bridge.assert_step_close(
    w,
    bridge.model_of(r.state),
    oracle.server_step(w, trained, weights, h.server_lr),
    rtol=5e-4,
  )


def client_of(problem, r, i, h):
  """The key of its directions, and of each step its examples."""
  rows_key, draws = jax.random.split(jax.random.fold_in(r.key, i))
  x, y = problem.clients[i]
  return draws, [
    (x[rows], y[rows]) for rows in bridge.client_batches(problem, i, rows_key, h)
  ]


@pytest.mark.parametrize(
  "settings",
  [
    dict(local_steps=3, batch_size=7),
    dict(
      local_steps=0,
      local_epochs=1,
      batch_size=40,
      server_lr=0.8,
      client_weights="examples",
    ),
    pytest.param(dict(local_steps=2, batch_size=0), marks=pytest.mark.slow),
  ],
)
def test_a_round_is_the_loops(problem, settings):
  h, (r,) = bridge.rounds(problem, "fedzo", [IDS], **BASE, **settings)
  trained = []
  for i in IDS:
    draws, batches = client_of(problem, r, i, h)
    v = bridge.start(problem)
    for number, batch in enumerate(batches):
      v = v - h.client_lr * zeroth_order.on_sphere(
        v,
        *batch,
        moves_=directions(problem, draws, number, h),
        smoothing=h.smoothing,
      )
    trained.append(v)
  check_mean(problem, r, trained, h)
  # No gradients; five forward passes for each example that is read.
  assert int(r.aux.cost.example_gradients) == 0
  zeroth_order.check_flops(problem, r.aux, h, IDS, 5)


def test_seeds_and_numbers_are_the_update(problem):
  """The server repeats the steps from what it was sent, without any data."""
  h, (r,) = bridge.rounds(
    problem, "fedzo", [IDS], **BASE, local_steps=3, batch_size=7, uplink="seeds"
  )
  w, received = bridge.start(problem), []

  def step(v, numbers, draws, number):
    return v - h.client_lr * (
      problems.L2 * v
      + v.size
      / (h.directions * h.smoothing)
      * np.tensordot(numbers, directions(problem, draws, number, h), 1)
    )

  for i in IDS:
    draws, batches = client_of(problem, r, i, h)
    v, messages = w, []
    for number, batch in enumerate(batches):
      messages.append(
        zeroth_order.changes(
          v,
          *batch,
          moves_=directions(problem, draws, number, h),
          smoothing=h.smoothing,
        ).astype(np.float32)
      )
      v = step(v, messages[-1], draws, number)
    words = np.asarray(jax.random.key_data(draws))
    assert words.nbytes + np.array(messages).nbytes == 4 * int(r.aux.cost.up) == 56
    draws, v = jax.random.wrap_key_data(words), w
    for number, numbers in enumerate(messages):
      v = step(v, numbers, draws, number)
    received.append(v)
  check_mean(problem, r, received, h)
  assert r.aux.cost.central_flops == 2 * 12 * 52 * len(IDS)
  bridge.assert_refused(
    problem, "fedzo", "uplink=seeds: needs local_steps", uplink="seeds", local_steps=0
  )
