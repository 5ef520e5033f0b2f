"""Finishing times of an asynchronous server's clients, on the simulated clock.

How long a client takes does not depend on the models, so the order of events
is computed from numbers alone, before anybody trains. At most M clients run at
once. Whoever finishes makes room for the next one, who receives the newest
model; all that happens at the same instant is received before anybody starts.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg.base import Array


class Running(NamedTuple):
  """The clients that run, in M places."""

  client: Array  #: [M] int32; C: the place is free
  left: Array  #: [M] float32, seconds until it finishes; 0 in a free place
  version: Array  #: [M] int32, number of the model that it has received
  part: Array  #: [M] float32, ``Cohort.part``


class Waiting(NamedTuple):
  """The clients that the server may start, in this order; none twice."""

  client: Array  #: [N] int32; C: nobody
  seconds: Array  #: [N] float32, how long each takes, more than 0
  part: Array  #: [N] float32, ``Cohort.part``


class Finished(NamedTuple):
  """The clients that finish, in order."""

  client: Array  #: [S] int32; C: nobody
  version: Array  #: [S] int32
  part: Array  #: [S] float32
  place: Array  #: [S] int32, where it has run


def nobody(places: int, num_clients: int) -> Running:
  """M free places."""
  return Running(
    jnp.full(places, num_clients, jnp.int32),
    jnp.zeros(places),
    jnp.zeros(places, jnp.int32),
    jnp.ones(places),
  )


def _fill_places(
  running: Running, waiting: Waiting, version: Array, num_clients: int
) -> tuple[Running, Array]:
  """Fills the free places; returns who runs, and who still waits, bool."""
  n_waiting = waiting.client.shape[0]
  idle = (waiting.client < num_clients) & ~(
    waiting.client[:, None] == running.client[None]
  ).any(1)
  # The r-th free place takes the r-th client that is idle.
  order = jnp.argsort(~idle, stable=True).astype(jnp.int32)
  free = running.client == num_clients
  rank = jnp.cumsum(free, dtype=jnp.int32) - 1
  entry = jnp.where(
    free & (rank < idle.sum()), order[jnp.clip(rank, 0, n_waiting - 1)], n_waiting
  )
  started = entry < n_waiting
  index = jnp.minimum(entry, n_waiting - 1)
  idle = idle.at[entry].set(False, mode="drop")
  return Running(
    jnp.where(started, waiting.client[index], running.client),
    jnp.where(started, waiting.seconds[index], running.left),
    jnp.where(started, version, running.version),
    jnp.where(started, waiting.part[index], running.part),
  ), idle


def until_full(
  running: Running,
  waiting: Waiting,
  slots: int,
  num_reports: Array,
  version: Array,
  num_clients: int,
) -> tuple[Running, Waiting, Finished, Array]:
  """Lets clients run until the server's buffer is full.

  First all free places are filled. A client does not start again before the
  buffer is full. Who would start at the instant at which it is full waits for
  the next model: its place stays free.

  Args:
    running: who runs, at the instant of the last update.
    waiting: who may start.
    slots: S, the most that the buffer holds.
    num_reports: [] int32, how many it has to hold, at most S. If fewer run and
      wait, it is full when all have finished.
    version: [] int32, number of the newest model.
    num_clients: C.

  Returns:
    Who runs, seconds from the instant at which the buffer is full; who waits;
    who is in the buffer; and how many seconds it took, [] float32.
  """
  m_places, n_waiting = running.client.shape[0], waiting.client.shape[0]
  running, idle = _fill_places(running, waiting, version, num_clients)
  # Where a place was taken over before the buffer was full: when, and by whom.
  never = jnp.full(m_places, -1.0)

  def event(carry, k):
    running, idle, since, entry = carry
    time = jnp.where(running.client < num_clients, running.left, jnp.inf)
    place = jnp.argmin(time).astype(jnp.int32)
    now = time[place]
    real = (k < num_reports) & jnp.isfinite(now)
    out = Finished(
      jnp.where(real, running.client[place], num_clients),
      running.version[place],
      running.part[place],
      place,
    )
    starter, some = jnp.argmax(idle).astype(jnp.int32), idle.any()
    into = jnp.where(real, place, m_places)

    def put(array, value, otherwise):
      return array.at[into].set(jnp.where(some, value, otherwise), mode="drop")

    running = Running(
      put(running.client, waiting.client[starter], num_clients),
      put(running.left, now + waiting.seconds[starter], 0.0),
      put(running.version, version, 0),
      put(running.part, waiting.part[starter], 1.0),
    )
    begun = real & some
    idle = idle.at[jnp.where(begun, starter, n_waiting)].set(False, mode="drop")
    since = put(since, now, -1.0)
    entry = put(entry, starter, n_waiting)
    return (running, idle, since, entry), (out, jnp.where(real, now, 0.0))

  (running, idle, since, entry), (finished, times) = jax.lax.scan(
    event,
    (running, idle, never, jnp.full(m_places, n_waiting, jnp.int32)),
    jnp.arange(slots, dtype=jnp.int32),
  )
  full = times.max()
  undone = (entry < n_waiting) & (since == full)
  idle = idle.at[jnp.where(undone, entry, n_waiting)].set(True, mode="drop")
  client = jnp.where(undone, num_clients, running.client)
  runs = client < num_clients
  running = Running(
    client,
    jnp.where(runs, running.left - full, 0.0),
    jnp.where(runs, running.version, 0),
    jnp.where(runs, running.part, 1.0),
  )
  waiting = waiting._replace(client=jnp.where(idle, waiting.client, num_clients))
  return running, waiting, finished, full
