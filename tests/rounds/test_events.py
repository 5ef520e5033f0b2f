"""The order of events against a heap."""

import functools

import jax
import numpy as np
import pytest

from fedjax_alg.rounds import events
from tests import problems
from tests.reference.event_heap import Server

CLIENTS = 20


@functools.cache
def compile_events(slots):
  return problems.quick_jit(
    functools.partial(events.until_full, slots=slots, num_clients=CLIENTS)
  )


def waiting_of(rng, length):
  """Some clients in random order, with times that often tie.

  The times are quarters, so that float32 adds them up without rounding.
  """
  ids = rng.permutation(CLIENTS + 3)[:length]  # 20, 21 and 22 are nobody
  return ids, rng.integers(1, 9, len(ids)) / 4


@pytest.mark.parametrize("places, slots", [(4, 4), (9, 3), (2, 5)])
def test_the_order_of_a_heap(places, slots):
  rng = np.random.default_rng(places)
  oracle, running = Server(places), events.nobody(places, CLIENTS)
  for version in range(25):
    ids, seconds = waiting_of(rng, places + slots - 1)
    num_wanted = int(rng.integers(1, slots + 1))
    expected, lasted = oracle.run(
      {int(i): s for i, s in zip(ids, seconds) if i < CLIENTS}, num_wanted
    )
    seconds_32 = seconds.astype(np.float32)
    running, _, finished, time = jax.device_get(
      compile_events(slots)(
        running,
        events.Waiting(
          np.minimum(ids, CLIENTS).astype(np.int32), seconds_32, seconds_32 / 8
        ),
        num_reports=np.int32(num_wanted),
        version=np.int32(version),
      )
    )
    actual = np.stack([finished.client, finished.version, finished.place], 1)
    assert list(map(tuple, actual[: len(expected)])) == expected
    assert (actual[len(expected) :, 0] == CLIENTS).all()
    assert time == lasted
    actual_running = {
      int(p): (int(running.client[p]), int(running.version[p]))
      for p in range(places)
      if running.client[p] < CLIENTS
    }
    assert actual_running == oracle.running
    remaining = {place: when - oracle.now for when, place in oracle.heap}
    assert remaining == {p: float(running.left[p]) for p in actual_running}
    assert np.isfinite(running.left).all()


def test_what_is_left_waits_for_the_next_buffer():
  """Two run, three wait: one starts at once, one more at the first arrival."""
  running = events.nobody(2, CLIENTS)
  queue = events.Waiting(
    np.array([7, 8, 9, 10], np.int32),
    np.array([1.0, 3.0, 1.0, 5.0], np.float32),
    np.full(4, 0.5, np.float32),
  )

  def run(running, queue, version):
    return jax.device_get(
      compile_events(1)(
        running, queue, num_reports=np.int32(1), version=np.int32(version)
      )
    )

  running, queue, first, time = run(running, queue, version=0)
  assert (int(first.client[0]), float(time)) == (7, 1)
  # Client 9 would start when the buffer is full, so it waits for model 1.
  np.testing.assert_array_equal(queue.client, [20, 20, 9, 10])
  running, queue, second, time = run(running, queue, version=1)
  assert (int(second.client[0]), int(second.version[0])) == (9, 1)
  running, _, third, time = run(running, queue, version=2)
  assert (int(third.client[0]), int(third.version[0]), float(time)) == (8, 0, 1)
  assert third.part[0] == 0.5


def test_nobody_is_there():
  ones = np.ones(11, np.float32)
  _, _, finished, time = jax.device_get(
    compile_events(3)(
      events.nobody(9, CLIENTS),
      events.Waiting(np.full(11, CLIENTS, np.int32), ones, ones),
      num_reports=np.int32(3),
      version=np.int32(0),
    )
  )
  assert (finished.client == CLIENTS).all() and time == 0
