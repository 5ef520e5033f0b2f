"""Rounds of a server that waits for nobody, for any stateless local method.

At most M clients run at once (``rounds.events``), each from the model that was
the newest when it started. A round ends when as many have finished as its
cohort has participants; its cohort is who starts next. The server updates its
model when its buffer is full: once a round (FedBuff), or at every client
(FedAsync).

In a round the order of events is found first. Then all clients of a buffer
train at once, each from the model it has received, as those of a synchronous
round do. Where all take equally long and M is the size of the cohort, everybody
starts and finishes together, and the round is that of ``two_halves.compose``.

Deviations: a client that runs is not started a second time beside it, and one
that has finished not before the next update. Where cohort members still run,
others are drawn uniformly in their place. The server's own time is not counted.

References:
  Xie et al., "Asynchronous Federated Optimization", arXiv:1903.03934.
  Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation",
  AISTATS 2022, Algorithm 1.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import (
  Algorithm,
  Array,
  ClientData,
  Cohort,
  FedSpec,
  Key,
  MapClients,
  Model,
  Params,
  RoundAux,
  RoundTimes,
  no_setup,
  shared_client_params,
)
from fedjax_alg.central.steps import ServerStep
from fedjax_alg.client import minibatches
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.data import layout
from fedjax_alg.engine import clock
from fedjax_alg.engine.keys import (
  FORGERIES,
  SERVER_STEP,
  STARTED,
  UPDATES,
  client_keys,
  server_key,
)
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange.links import Exchange, fit, wrap
from fedjax_alg.rounds import events
from fedjax_alg.rounds.local_training import train
from fedjax_alg.rounds.one_model import (
  TwoHalves,
  as_gradient,
  costs,
  first_aggregates,
  server_keys,
  server_step,
)
from fedjax_alg.rounds.two_halves import check_server, deployed_models, pair_halves


class BufferedState(NamedTuple):
  """State of the server and of the running clients."""

  models: Params  #: [1, ...]
  server: Any  #: state of the server step, [1, ...]
  held: Params  #: [M, ...], the model that each running client has received
  running: events.Running
  version: Array  #: [] int32, updates of the model so far
  round: Array  #: [] int32, rounds completed
  #: what the aggregator keeps (``ComposedState.aggregates``)
  aggregates: Any = {}


@dataclasses.dataclass(frozen=True)
class Buffered(TwoHalves):
  """The arguments of ``compose_buffered``."""

  concurrency: int = 0  #: M; 0: the size of the cohort
  #: number of updates since a client's start [S] float32 -> factors [S]
  staleness: Callable[[Array], Array] = jnp.ones_like
  one_by_one: bool = False


_KEEPS_NOTHING = (
  "an asynchronous server's clients hold different models and keep nothing "
  "(allowed: `compress_up`=qsgd, or feedback=false)"
)
#: The links that a server that waits for nobody cannot have (``links.fit``).
REFUSED = {
  "personal": "an asynchronous server's clients keep nothing",
  "model_state": "an asynchronous server's clients keep nothing, and the "
  "models that they hold differ (allowed: batch)",
  "client_weights": "an asynchronous server's clients hold different models",
  "compress_down": _KEEPS_NOTHING,
  "memory": _KEEPS_NOTHING,
  "private": "who is in an asynchronous server's buffer depends on how long "
  "clients take, and is no draw that the accountant knows",
}


def compose_buffered(
  model: Model,
  client: ClientUpdate,
  server: ServerStep,
  *,
  staleness: Callable[[Array], Array],
  concurrency: int = 0,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
  one_by_one: bool = False,
  label: str = "the local method",
) -> Algorithm[BufferedState]:
  """Makes an asynchronous algorithm of its two halves.

  Args:
    model: the model and its objective.
    client: the client's half, without a memory.
    server: the server's half, which acts on the mean update.
    staleness: number of updates since a client's start [S] float32 -> factors
      of its update [S].
    map_clients: how one client's code is mapped over the participants.
    exchange: what happens to what clients and server send each other.
    concurrency: M, how many clients run at once; 0: as many as a cohort has.
    one_by_one: whether every client that finishes is an update of its own,
      towards the trained model (FedAsync); if not, a round is one update by
      the mean change (FedBuff).
    label: how messages name the local method.

  Raises:
    OptionError: the halves need clients that start from one model, or a link
      does not fit.
  """
  why = ""
  if client.needs_anchor:
    why = "needs a gradient that all participants measure at one model"
  elif client.store is not None or (
    client.init is not ClientUpdate._field_defaults["init"]
  ):
    why = (
      "keeps a state between rounds, which changes while clients of older models run"
    )
  if why:
    raise OptionError(
      f"{label}: {why}, and no two clients of an asynchronous server need have the same"
    )
  if server.when != "aggregate":
    raise OptionError(
      "`server`: its step needs gradients that all participants measure at "
      "one model, which an asynchronous server's do not hold"
    )
  if server.needs_mean_square:
    raise OptionError(
      "`server`: its step compares updates of one model, and an asynchronous server's "
      "are of several"
    )
  check_server(server)
  exchange, client = fit(
    exchange, client, model, refused=REFUSED, carrier=map_clients.carrier
  )
  method = Buffered(
    **vars(pair_halves(model, client, server, map_clients, exchange)),
    concurrency=concurrency,
    staleness=staleness,
    one_by_one=one_by_one,
  )
  models_of = lambda state: deployed_models(server, state.models, state.server)
  algorithm: Algorithm[Any] = Algorithm(
    functools.partial(_init, method),
    no_setup,
    functools.partial(_round, method),
    shared_client_params(models_of),
    models_of,
    idle=lambda state, cohort: state._replace(round=state.round + 1),
    takes_parts=client.takes_parts,
  )
  return wrap(exchange, algorithm)


def _init(method: Buffered, params: Params, spec: FedSpec, key: Key) -> BufferedState:
  places = method.concurrency or spec.cohort_size
  models = trees.repeat(params, 1)
  zero = jnp.zeros((), jnp.int32)
  return BufferedState(
    models,
    method.first_servers(models),
    trees.repeat(params, places),
    events.nobody(places, spec.num_clients),
    zero,
    zero,
    first_aggregates(method, models),
  )


def _take_clients(cohort: Cohort, ids: Array, part: Array) -> Cohort:
  """Makes a cohort of these clients; C: nobody."""
  every = cohort.everyone
  assert every is not None
  data = ClientData(
    every.x,
    every.y,
    every.offset,
    every.size,
    devices=cohort.machines,
    blocks=every.blocks,
  )
  selected = layout.take_cohort(data, ids)
  return selected._replace(
    validation=cohort.validation, part=None if cohort.part is None else part
  )


def _round(
  method: Buffered, state: BufferedState, cohort: Cohort, key: Key
) -> tuple[BufferedState, RoundAux]:
  slots, num_reports = cohort.ids.shape[0], cohort.present.sum(dtype=jnp.int32)
  waiting = waiting_clients(method, state, cohort, key)
  if not method.one_by_one:
    state, _, aux = _update(method, state, waiting, cohort, key, slots, num_reports)
    return state._replace(round=state.round + 1), aux

  def update_once(carry, k):
    state, waiting = carry
    new, waiting, aux = _update(
      method,
      state,
      waiting,
      cohort,
      jax.random.fold_in(key, k),
      1,
      (k < num_reports).astype(jnp.int32),
    )
    return (trees.where(k < num_reports, new, state), waiting), aux

  (state, _), aux = jax.lax.scan(
    update_once, (state, waiting), jnp.arange(slots, dtype=jnp.int32)
  )
  return state._replace(round=state.round + 1), _one_report(aux, num_reports)


def _one_report(aux: RoundAux, num_reports: Array) -> RoundAux:
  """The report of several updates with one client each, leaves [S, ...]."""
  mask = (jnp.arange(aux.cost.down.shape[0], dtype=jnp.int32) < num_reports).astype(
    jnp.float32
  )
  cost = jax.tree.map(lambda leaf: leaf[0], aux.cost)._replace(
    example_gradients=aux.cost.example_gradients.sum(dtype=jnp.int32),
    central_flops=(mask * aux.cost.central_flops).sum(),
  )
  times = aux.times
  if times is not None:
    # Durations add up; operations are those of a participant.
    times = RoundTimes(
      trees.slot_mean(mask, times.flops),
      *((mask * seconds).sum() for seconds in times[1:]),
    )
  server = trees.slot_mean(mask, aux.server)
  server["most_staleness"] = (mask * aux.server["most_staleness"]).max()
  return RoundAux(
    {}, server, cost, jax.tree.map(lambda leaf: leaf[:, 0], aux.work), times
  )


def waiting_clients(
  method: Buffered, state: BufferedState, cohort: Cohort, key: Key
) -> events.Waiting:
  """Lists who may start in a round: its cohort in random order, then others."""
  assert cohort.everyone is not None
  clients = cohort.everyone.size.shape[0]
  num_others = state.running.client.shape[0] - 1
  first, second = jax.random.split(server_key(key, STARTED))
  order = jnp.argsort(
    jnp.where(
      cohort.present, jax.vmap(jax.random.uniform)(client_keys(first, cohort.ids)), 2.0
    )
  )
  ids = jnp.where(cohort.present, cohort.ids, clients)[order]
  part = jnp.ones(ids.shape) if cohort.part is None else cohort.part[order]
  if num_others:
    others = minibatches.random_order_at(
      second, jnp.arange(num_others, dtype=jnp.int32) % clients, jnp.int32(clients)
    )
    is_listed = (
      (others[:, None] == ids[None]).any(1)
      | (cohort.everyone.size[others] == 0)
      | (jnp.arange(num_others, dtype=jnp.int32) >= clients)
    )
    ids = jnp.concatenate([ids, jnp.where(is_listed, clients, others)])
    part = jnp.concatenate([part, jnp.ones(num_others)])
  seconds = jnp.ones(ids.shape)
  if cohort.machines is not None:
    starters = _take_clients(cohort, ids, part)
    assert starters.devices is not None
    cost, work = costs(method, starters, (), None, state.server)
    seconds = clock.round_times(
      starters.devices, starters.weight, work, clock.bytes_sent(cost), jnp.zeros(())
    ).arrival
  return events.Waiting(ids, seconds, part)


def _update(
  method: Buffered,
  state: BufferedState,
  waiting: events.Waiting,
  cohort: Cohort,
  key: Key,
  slots: int,
  num_reports: Array,
) -> tuple[BufferedState, events.Waiting, RoundAux]:
  """Fills the buffer once, and updates the model."""
  assert cohort.everyone is not None
  clients = cohort.everyone.size.shape[0]
  running, waiting, finished, seconds = events.until_full(
    state.running, waiting, slots, num_reports, state.version, clients
  )
  # In the order of their ids, as a synchronous cohort.
  finished = trees.index(finished, jnp.argsort(finished.client, stable=True))
  client, exchange = method.client, method.exchange
  batch = _take_clients(cohort, finished.client, finished.part)
  # Each starts from the newest model or from the one that it received.
  starts = jax.tree.map(
    lambda new, old: jnp.concatenate([new, old]), state.models, state.held
  )
  origins = jnp.where(finished.version == state.version, 0, 1 + finished.place)
  training = train(
    client,
    method.map_clients,
    (starts, starts, ()),
    state.round,
    (),
    batch,
    key,
    origins,
  )
  trained = training.trained
  changes = trees.subtract(
    trained.params, state.models if method.one_by_one else trees.index(starts, origins)
  )
  weights, purpose = exchange.weigh(batch), UPDATES
  changes = exchange.receive(
    changes, batch, server_key(server_key(key, FORGERIES), purpose), weights
  )
  age = jnp.where(batch.present, state.version - finished.version, 0).astype(
    jnp.float32
  )
  changes = trees.scale_slots(method.staleness(age), changes)
  model, server, last = trees.index((state.models, state.server, state.aggregates), 0)
  mean, aggregate = exchange.combine(
    changes, weights, batch, server_keys(key, purpose, 1)[0], last.get("updates")
  )
  update = client.scale((), batch, mean)
  model, server = server_step(
    method,
    batch,
    state.round,
    as_gradient(update),
    server,
    model,
    server_keys(key, SERVER_STEP, 1)[0],
  )
  held_models = trees.where_slots(
    running.version == state.version,
    trees.index(state.models, jnp.zeros_like(running.version)),
    state.held,
  )
  report = {
    "train_loss": trees.slot_mean(batch.weight, trained.loss),
    **method.server.report(server),
    "staleness": trees.slot_mean(batch.present.astype(jnp.float32), age),
    "most_staleness": age.max(),
  }
  models, servers, aggregates = trees.repeat(
    (model, server, {name: aggregate for name in last}), 1
  )
  cost, work = costs(method, batch, (), trained.gradients, state.server)
  return (
    BufferedState(
      models, servers, held_models, running, state.version + 1, state.round, aggregates
    ),
    waiting,
    RoundAux({}, report, cost, work, _times(batch, work, cost, seconds)),
  )


def _times(batch: Cohort, work: Any, cost: Any, seconds: Array) -> RoundTimes | None:
  """The times of an update: nobody waits, so the seconds are all at work.

  They are shared out as the clients of the buffer have spent theirs.
  """
  if batch.devices is None:
    return None
  spent = clock.mean_times(
    batch.devices, batch.weight, work, cost._replace(central_flops=jnp.zeros(()))
  )
  total = spent.computation + spent.communication
  share = seconds / jnp.where(total > 0, total, 1.0)
  return RoundTimes(
    spent.flops, share * spent.computation, share * spent.communication, jnp.zeros(())
  )
