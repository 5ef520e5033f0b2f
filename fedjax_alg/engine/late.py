"""Late and lost clients: who of a round's participants the server hears from.

A sampler asks S clients to take part. Some of them are lost on the way, some do
less work than asked, and some come after the deadline on the simulated clock.
Whoever does not arrive becomes a padding slot before the round is run, so no
method knows of it: its state keeps what it has of the client, and a round that
nobody arrives in is ``Algorithm.idle``.

Reference:
  Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
  section 5.2: stragglers, of which FedAvg drops what FedProx keeps.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg.base import (
  Algorithm,
  Array,
  Cohort,
  Key,
  RoundAux,
  RoundCost,
  RoundTimes,
  State,
)
from fedjax_alg.engine import clock
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part

#: Name in ``RoundAux.server``, and column, of the number of clients that were
#: asked and sent nothing.
LOST = "cohort_lost"


class NoStragglers(Part):
  """All participants do all of their work."""

  WORD, EXAMPLE = "none", "none"

  def rule(self, keeps: bool) -> "Late":
    """Nobody is late (``Stragglers.rule``)."""
    return Late()


class _SomeStragglers(Part):
  """A share of every round's participants does a part of its local work."""

  share: float = hyper(
    dataclasses.MISSING,
    "share of every round's participants, drawn anew (FedProx: 0, 0.5, 0.9)",
    minimum=0.0,
    maximum=1.0,
  )


class Stragglers(_SomeStragglers):
  """Kept by fedprox, fednova, fedasync and fedbuff, and dropped by all others."""

  WORD, EXAMPLE = "share", "share:0.9,most=0.5"

  most: float = hyper(
    1.0,
    "a straggler's part of its work is uniform in (0, most]: of several "
    "`local_epochs` so many whole ones, else of the mini-batches, at least one",
    above=0.0,
    maximum=1.0,
  )

  def rule(self, keeps: bool) -> "Late":
    """The participants that are late, and whether the server keeps their work.

    Args:
      keeps: whether the method keeps partial work unless a run says otherwise.
    """
    return Late(stragglers=self.share, most=self.most, keep=keeps)


class KeptStragglers(Stragglers):
  """The server uses what they have done, as FedProx does."""

  WORD, EXAMPLE = "kept", "kept:0.9,most=0.5"

  def rule(self, keeps: bool) -> "Late":
    """Whatever the method does (``Stragglers.rule``)."""
    return super().rule(True)


class DroppedStragglers(_SomeStragglers):
  """Their work is lost, as with FedAvg in FedProx's experiment."""

  WORD, EXAMPLE = "dropped", "dropped:0.9"

  def rule(self, keeps: bool) -> "Late":
    """Whatever the method does (``Stragglers.rule``)."""
    return Late(stragglers=self.share)


#: The participants that do a part of their work.
STRAGGLERS = NoStragglers | Stragglers | KeptStragglers | DroppedStragglers


class Late(NamedTuple):
  """Rules for which participants of a round are late or lost."""

  dropout: float = 0.0  #: probability with which a participant is lost
  #: share of the participants that do a part of their work; the number is
  #: rounded
  stragglers: float = 0.0
  #: the part is uniform in (0, most]
  most: float = 1.0
  #: whether stragglers send what they have; if not, they are lost
  keep: bool = False
  #: seconds that the server waits for its participants; None: for all
  deadline_s: float | None = None


class Arrivals(NamedTuple):
  """The participants of a round that the server hears from."""

  arrived: Array  #: [S] bool
  part: Array | None  #: ``Cohort.part``
  #: [] float32, seconds until the server goes on without the others; None:
  #: when all have arrived
  round_end_s: Array | None


def draw_late(late: Late, cohort: Cohort, keys: Key) -> Arrivals:
  """Draws who is lost on the way, and who does a part of the work.

  Args:
    late: who is late or lost.
    cohort: the clients that were asked.
    keys: [S], one for each client, which do not depend on the slots; consumed.

  Returns:
    Who arrives, if the server waits.
  """
  lost, order, part = jax.vmap(lambda key: jax.random.uniform(key, (3,)))(keys).T
  arrived = cohort.present & (lost >= late.dropout)
  if not late.stragglers:
    return Arrivals(arrived, None, None)
  # As in the authors' code their number is not random.
  number = jnp.round(late.stragglers * cohort.present.sum().astype(jnp.float32))
  order = jnp.where(cohort.present, order, 2.0)
  rank = jnp.searchsorted(jnp.sort(order), order).astype(jnp.float32)
  behind = cohort.present & (rank < number)
  if not late.keep:
    return Arrivals(arrived & ~behind, None, None)
  part = jnp.where(behind, late.most * (1.0 - part), 1.0)
  return Arrivals(arrived, part, None)


def in_time(
  late: Late,
  algorithm: Algorithm[State],
  state: State,
  cohort: Cohort,
  arrivals: Arrivals,
  key: Key,
) -> Arrivals:
  """Leaves out who comes after the deadline on the simulated clock.

  How long each participant takes follows from the round's report. The round is
  traced for it with everybody, and all of it that the report does not depend
  on, such as the training, is not compiled.

  Args:
    late: who is late or lost; it has a deadline.
    algorithm: the algorithm.
    state: state before the round.
    cohort: the clients that were asked.
    arrivals: who would arrive without the deadline.
    key: key of the round.

  Returns:
    Who arrives.

  Raises:
    OptionError: the algorithm does not count its work.
  """
  _, would = algorithm.round(state, cohort._replace(part=arrivals.part), key)
  if would.work is None or cohort.devices is None:
    raise OptionError(
      f"`deadline_s`={late.deadline_s:g}: the algorithm does "
      "not count its work, so nobody is ever late"
    )
  arrival = clock.round_times(
    cohort.devices,
    cohort.weight,
    would.work,
    clock.bytes_sent(would.cost),
    would.cost.central_flops,
  ).arrival
  deadline = jnp.asarray(late.deadline_s, jnp.float32)
  arrived = arrivals.arrived & (arrival <= deadline)
  missing = (cohort.present & ~arrived).any()
  return arrivals._replace(
    arrived=arrived, round_end_s=jnp.where(missing, deadline, 0.0)
  )


def bill(
  aux: RoundAux,
  cost: RoundCost,
  num_asked: Array,
  arrived: Array,
  round_end_s: Array | None,
) -> RoundAux:
  """The report of a round with what those who did not arrive cost.

  They have received the models, and sent nothing.

  Args:
    aux: report of the round, in which nothing costs anything if nobody has
      arrived.
    cost: its cost, as the algorithm counts it.
    num_asked: [] int32, number of clients that were asked.
    arrived: [] int32, number of those that have arrived.
    round_end_s: see ``Arrivals``.

  Returns:
    The report with the number of those who did not arrive.
  """
  down: Any = {
    name: None
    if getattr(cost, name) is None
    else jnp.where(num_asked > 0, getattr(cost, name), 0)
    for name in ("down", "bytes_down")
  }
  times = aux.times
  if times is not None and round_end_s is not None:
    # Without an arrival the whole round is idle time.
    times = RoundTimes(*times[:3], jnp.where(arrived > 0, times.idle, round_end_s))
  return aux._replace(
    server=aux.server | {LOST: (num_asked - arrived).astype(jnp.int32)},
    cost=aux.cost._replace(**down),
    times=times,
  )
