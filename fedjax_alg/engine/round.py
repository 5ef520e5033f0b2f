"""One round of an algorithm: the cohort, the call and the report."""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import (
  NEVER,
  Algorithm,
  Array,
  ClientData,
  Cohort,
  Draw,
  Key,
  RoundAux,
  State,
)
from fedjax_alg.data import layout, store
from fedjax_alg.engine import clock, samplers
from fedjax_alg.engine import late as late_clients
from fedjax_alg.engine.keys import LATE, RunKeys, client_keys, server_key
from fedjax_alg.engine.late import Late
from fedjax_alg.typing import Numeric

#: Name in ``RoundAux.server``, and column, of the number of participants.
PRESENT = "cohort_present"


def sample_cohort(
  data: ClientData,
  cohort_size: int,
  key: Key,
  number: Array | int = 0,
  sampler: samplers.Sampler = samplers.uniform,
) -> Cohort:
  """Draws the participants of a round.

  Args:
    data: the clients' training data.
    cohort_size: S.
    key: consumed.
    number: rounds run so far.
    sampler: who takes part.

  Returns:
    The cohort, in the order of the client ids; empty slots are padding slots.
  """
  ids = sampler(data, cohort_size, key, jnp.asarray(number))
  expected: Numeric | None = None
  if sampler in samplers.DRAWS.values():
    expected = float(cohort_size)
  elif sampler is samplers.poisson:
    availability = samplers.availability_of(data)
    if data.joins is not None:  # the others have no update to come
      availability = jnp.where(data.joins == NEVER, 0.0, availability)
    expected = availability.sum()
  elif sampler is samplers.cyclic:
    num_training = samplers.num_training_clients(data)
    expected = num_training / samplers.turns(num_training, cohort_size)
  return layout.take_cohort(data, ids, number)._replace(draw=Draw(expected))


#: Name in ``RunLog.finite`` of ``has_rows``.
ROWS = "participants, of which some have no rows on the device (data_on)"


def has_rows(data: ClientData, ids: Array) -> Array:
  """Whether the rows of all participants of a round are on the device.

  Which rows are there was decided by a program of its own, which may round the random
  numbers of a sampler in another way. That is unlikely, and must not go unnoticed.

  Args:
    data: the clients' training data, with the rows of a window.
    ids: [S] int32, those that take part, C in an empty slot.

  Returns:
    [] bool.
  """
  y = store.arrays(data.y)[0]
  clients, rows = data.size.shape[0], y.shape[0]
  if data.blocks is not None:
    rows *= y.shape[1]
  places = jnp.minimum(ids, clients - 1)
  absent = (data.offset[places] >= rows) & (data.size[places] > 0)
  all_there: Array = ~(absent & (ids < clients)).any()
  return all_there


class Participation(NamedTuple):
  """Rules for who takes part in a run's rounds, and whose updates arrive."""

  cohort_size: int  #: S, the number of slots
  #: who takes part. With another one than those of ``samplers.DRAWS``,
  #: ``aux.server[PRESENT]`` is their number, and a round in which nobody takes
  #: part is ``algorithm.idle`` and costs nothing.
  sampler: samplers.Sampler = samplers.uniform
  #: who of them is late or lost; None: nobody. Otherwise
  #: ``aux.server[PRESENT]`` is the number of those who arrive, and
  #: ``aux.server[late.LOST]`` that of the others.
  late: Late | None = None


def sample_and_run(
  algorithm: Algorithm[State],
  data: ClientData,
  participation: Participation,
  keys: RunKeys,
  number: Array,
  state: State,
) -> tuple[State, RoundAux, Array]:
  """Draws the participants of a round and runs it.

  The random numbers depend only on the seed and on the number of the round. If
  ``data`` has simulated machines and the algorithm counts its work,
  ``aux.times`` is set.

  Args:
    algorithm: the algorithm.
    data: the clients' training data.
    participation: who takes part.
    keys: random streams of the run.
    number: [] int32, the round, from 0.
    state: state before the round.

  Returns:
    The new state, the report of the round, and [S] int32, the clients that were asked,
    C in an empty slot.
  """
  cohort_size, sampler, late = participation
  # The hash of both keys is one piece of the program.
  of_cohort, key = jax.vmap(jax.random.fold_in, (0, None))(
    jnp.stack([keys.cohort, keys.work]), number
  )
  cohort = sample_cohort(data, cohort_size, of_cohort, number, sampler)
  ids, num_asked, round_end_s = cohort.ids, cohort.present.sum(), None
  if late is not None:
    arrivals = late_clients.draw_late(
      late, cohort, client_keys(server_key(key, LATE), cohort.ids)
    )
    if late.deadline_s is not None:
      arrivals = late_clients.in_time(late, algorithm, state, cohort, arrivals, key)
    round_end_s, nobody = arrivals.round_end_s, data.size.shape[0]
    assert cohort.draw is not None
    draw = cohort.draw._replace(asked=jnp.where(cohort.present, cohort.ids, nobody))
    cohort = layout.take_cohort(
      data, jnp.where(arrivals.arrived, cohort.ids, nobody), number
    )._replace(part=arrivals.part, draw=draw)
  always = sampler in samplers.DRAWS.values() and late is None
  if always or algorithm.idle is None:
    new, aux = algorithm.round(state, cohort, key)
  else:
    new, aux = _round_or_idle(algorithm, algorithm.idle, state, cohort, key)
  if cohort.devices is not None and aux.work is not None and aux.times is None:
    aux = aux._replace(
      times=clock.mean_times(
        cohort.devices, cohort.weight, aux.work, aux.cost, round_end_s
      )
    )
  if always:
    return new, aux, ids
  present = cohort.present.sum()
  some = cohort.present.any()
  cost, aux = aux.cost, or_nothing(algorithm, aux, some)
  aux = aux._replace(server=aux.server | {PRESENT: present})
  if late is not None:
    aux = late_clients.bill(aux, cost, num_asked, present, round_end_s)
  return new, aux, ids


def _round_or_idle(
  algorithm: Algorithm[State],
  idle: Callable[[State, Cohort], State],
  state: State,
  cohort: Cohort,
  key: Key,
) -> tuple[State, RoundAux]:
  """A round of any cohort, which may be nobody.

  Args:
    algorithm: the algorithm.
    idle: its ``Algorithm.idle``.
    state: state before the round.
    cohort: the participants.
    key: key of the round.

  Returns:
    The new state, and the report. Without participants it has the cost as the
    algorithm counts it and ``Algorithm.reports_state``, and zeros in all else.
  """
  some = cohort.present.any()
  if store.is_on_host(cohort.shards.x):  # the first map ends the trace of a round
    new, aux = algorithm.round(state, cohort, key)
    return trees.where(some, new, idle(state, cohort)), aux

  # Traced once for both; no call is left.
  @functools.partial(jax.jit, inline=True)
  def run(state):
    return algorithm.round(state, cohort, key)

  def nothing(state):
    aux = run(state)[1]
    zeros = jax.tree.map(jnp.zeros_like, aux)
    reports = {
      name: aux.server[name] for name in set(algorithm.reports_state) & set(aux.server)
    }
    server = zeros.server | reports
    return idle(state, cohort), zeros._replace(server=server, cost=aux.cost)

  # A choice between two states afterwards would copy all that clients keep.
  result: tuple[State, RoundAux] = jax.lax.cond(some, run, nothing, state)
  return result


def or_nothing(algorithm: Algorithm[State], aux: RoundAux, some: Array) -> RoundAux:
  """The report of a round, or of a round without participants.

  Args:
    algorithm: the algorithm.
    aux: report of the round.
    some: [] bool, whether anybody took part.

  Returns:
    The report. Without participants costs and times are 0, and what the server
    measured is NaN; ``algorithm.reports_state`` stays.
  """

  def or_zero(leaf):
    return jnp.where(some, leaf, jnp.zeros_like(leaf))

  def or_nan(leaf):
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
      return or_zero(leaf)
    return jnp.where(some, leaf, jnp.full_like(leaf, jnp.nan))

  return aux._replace(
    server={
      name: value if name in algorithm.reports_state else or_nan(value)
      for name, value in aux.server.items()
    },
    cost=jax.tree.map(or_zero, aux.cost),
    times=jax.tree.map(or_zero, aux.times),
  )
