"""One round of any local method with any server step, for 1 or K models.

A method has two halves: a ``client.update.ClientUpdate`` (how a client trains,
what it keeps and what it sends) and a ``central.steps.ServerStep``. ``compose``
makes an ``Algorithm`` of them. This module has what the rounds of all these
methods share: the anchor gradient, the order of the exchanges, the mean over
the cohort, or what an ``aggregation.Aggregator`` puts in its place, the choice
among K models. What a round reports and costs is in ``halves_report``.

A round has these steps; those that neither half needs are left out:

  1. ``phases.begin``: the cohort measures the anchor gradient at the K models
     w_k, and each participant finds the model it prefers; a "before" step moves
     every w_k;
  2. ``phases.train``: every participant trains from the model it prefers;
  3. ``_finish``: the mean update, or the means of K groups, are computed; an
     "aggregate" step applies them; for an "after" step the cohort measures the
     anchor gradient again, at the new models;
  4. whatever else the clients sent is merged into the state kept between
     rounds.

With K > 1 models, rounds 1 to T (``ModelGrouping.threshold``), the warm-up, are
played with one model, of which the K models are equal copies: every participant
prefers the first one and is in the first group. So these rounds are the same
program as the later ones, and what follows from the first model is copied.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Algorithm, Array, Cohort, FedSpec, Key, MapClients
from fedjax_alg.base import Model, Params, RoundAux, Shard
from fedjax_alg.central.aggregation import Aggregator, named, private
from fedjax_alg.central.attacks import Attack, forges, poisoned
from fedjax_alg.central.privacy import Privacy, refuse
from fedjax_alg.central.steps import ServerStep, WHEN
from fedjax_alg.client import objective
from fedjax_alg.client.compression import compressed, Compression, shapes
from fedjax_alg.client.update import ClientUpdate, own_memory, Trained
from fedjax_alg.engine.keys import BROADCAST, FIRST_GRADIENTS, LAST_GRADIENTS
from fedjax_alg.engine.keys import server_key, UPDATES
from fedjax_alg.errors import a_type, OptionError
from fedjax_alg.rounds import broadcast, halves_report, ledger, phases
from fedjax_alg.rounds.phases import Beginning, Choice, ModelGrouping
from fedjax_alg.rounds.phases import Turn, TwoHalves, Updates
from fedjax_alg.rounds.weights import participation


class ComposedState(NamedTuple):
  """What server and clients keep between rounds."""

  models: Params  #: [K, ...]; equal copies during the warm-up
  server: Any  #: state of the server step, [K, ...]
  memory: Any  #: ``memory`` of the client's half
  round: Array  #: [] int32, rounds completed
  #: what an aggregator keeps (``phases.AGGREGATED``)
  aggregates: Any = {}

  @property
  def own_memory(self) -> Any:
    """``memory`` without what senders keep of what they have not sent."""
    return own_memory(self.memory)


def compose(
    model: Model,
    client: ClientUpdate,
    server: ServerStep,
    *,
    map_clients: MapClients,
    weights: str = "examples",
    grouping: ModelGrouping | None = None,
    aggregator: Aggregator | str = "mean",
    attack: Attack | None = None,
    compression: Compression | None = None,
    privacy: Privacy | None = None,
) -> Algorithm[ComposedState]:
  """Makes an algorithm of its two halves.

  Args:
    model: the model and its objective.
    client: the client's half.
    server: the server's half.
    map_clients: how one client's code is mapped over the participants.
    weights: weights of the participants in every mean, one of
      ``weights.WEIGHTS``.
    grouping: how K models share the participants; None for one model.
    aggregator: what takes the place of the mean over the participants, for
      updates and anchor gradients, or its name in ``aggregation.AGGREGATORS``.
      With K models it combines the updates of every group. Means of what else
      clients send (``ClientUpdate.merge``) stay means.
    attack: what hostile clients do; None if there are none. What else they send
      is what they have computed.
    compression: which updates and models are sent in fewer bytes; None: none.
    privacy: how what the server releases is made private; None: not at all.
      Participants then have equal weights whatever ``weights`` says.

  Raises:
    OptionError: see ``halves``.
  """
  method = halves(
      model, client, server, map_clients=map_clients, weights=weights,
      grouping=grouping, aggregator=aggregator, attack=attack,
      compression=compression, privacy=privacy)
  return Algorithm(
      functools.partial(_init, method), functools.partial(_setup, method),
      functools.partial(_round, method),
      functools.partial(_client_params, method), lambda state: state.models,
      idle=None if privacy else functools.partial(_idle, method),
      takes_parts=client.takes_parts)


def halves(
    model: Model, client: ClientUpdate, server: ServerStep, *,
    map_clients: MapClients, weights: str = "examples",
    grouping: ModelGrouping | None = None,
    aggregator: Aggregator | str = "mean", attack: Attack | None = None,
    compression: Compression | None = None,
    privacy: Privacy | None = None) -> TwoHalves:
  """Checks that two halves fit together; the arguments are ``compose``'s.

  Raises:
    OptionError: ``weights`` or ``aggregator`` is unknown, ``client`` has one
      global model and ``grouping`` several, or it needs the mean, ``attack``
      forges updates that it reads itself, or what is sent cannot be compressed
      or made private.
  """
  if grouping and grouping.num_models > 1 and client.one_model:
    raise OptionError(f"`num_models`={grouping.num_models}: the local method "
                      f"has one global model ({client.one_model})")
  if isinstance(aggregator, str):
    aggregator = named(aggregator)
  phases.check_mean(client, aggregator, attack)
  if server.when not in WHEN:
    raise OptionError(f"`server`: its step is taken {server.when!r}, must be "
                      f"one of {', '.join(WHEN)}")
  if not hasattr(server.transform, "update"):
    raise OptionError(f"`server`: its transform is "
                      f"{a_type(server.transform)}, must be an optax "
                      "transformation")
  if grouping and grouping.own_anchors and not (
      aggregator.is_mean and (attack is None or not forges(attack))):
    raise OptionError(
        "`anchors`=preferring: read with the mean of what clients have measured"
        " (`aggregator`=mean, no forged gradients)")
  if grouping and grouping.extra_up and attack is not None and forges(attack):
    raise OptionError(f"`attack`={attack.name}: forges one vector of a client, "
                      "and with `group_mean`=models it sends two (label_flip "
                      "forges none)")
  method = TwoHalves(
      model, client, server, map_clients, participation(weights), grouping,
      aggregator, attack)
  if compression:
    method = _sent_in_fewer_bytes(method, compression)
  return _private(method, privacy) if privacy else method


def _private(method: TwoHalves, privacy: Privacy) -> TwoHalves:
  """The method, whose aggregates are private."""
  refuse(privacy, method.client.leak)
  if method.grouping:
    refuse(privacy, "participants are grouped by what they send without noise")
  if not method.aggregator.is_mean:
    refuse(privacy, f"the noise is that of a mean (`aggregator`="
           f"{method.aggregator.name} is none)")
  if len(method.released) > 1 and privacy.private == "fixed":
    refuse(privacy, "updates and anchor gradients are not of one length (give "
           "adaptive)")
  if privacy.noise_at == "clients" and (
      forges(method.attack) or method.client.upload_bytes):
    refuse(privacy, "with `noise_at`=clients every participant sends its whole "
           "update with its share of the noise (not with `attack`, "
           "`compress_up` or `uplink`=seeds)")
  return dataclasses.replace(
      method, aggregator=private(privacy, len(method.released)),
      weigh=participation("uniform"))


def _sent_in_fewer_bytes(
    method: TwoHalves, compression: Compression) -> TwoHalves:
  """The method, with what is compressed and what that keeps."""
  up, down = compression.compressors()
  client, gradients = method.client, None
  if up:
    said = f"`compress_up`={compression.compress_up}"
    if method.grouping and method.grouping.of_gradients:
      raise OptionError(f"{said}: the participants of a grouping by gradient "
                        "send gradients, not updates")
    client = compressed(client, up, shapes(method.model), said)
    gradients = up if up.unbiased else None
  if down:
    client = broadcast.with_memory(client, down, method.num_models)
  return dataclasses.replace(
      method, client=client, compress_gradients=gradients, compress_down=down)


def _init(
    method: TwoHalves, params: Params, spec: FedSpec, key: Key
) -> ComposedState:
  del key
  models = trees.repeat(params, method.num_models)
  transform = method.server.transform
  return ComposedState(
      models, jax.vmap(lambda p: trees.drop_weak_types(transform.init(p)))(models),
      _kept(method, method.client.init(params, spec)),
      jnp.zeros((), jnp.int32), phases.first_kept(method, models))


def _kept(method: TwoHalves, memory: Any) -> Any:
  """The memory, what clients keep shared out over processes."""
  store = method.client.store
  if store is None or not store.one_row:
    return memory
  return store.put(memory, method.map_clients.keep(store.get(memory)))


def _setup(
    method: TwoHalves, state: ComposedState, everyone: Cohort, key: Key
) -> ComposedState:
  del key
  return state._replace(memory=_kept(method, method.client.setup(
      state.memory, trees.index(state.models, 0),
      poisoned(method.attack, everyone), method.map_clients)))


def _joined(
    method: TwoHalves, state: ComposedState, cohort: Cohort) -> ComposedState:
  """The state when the clients of this round have joined."""
  if cohort.newcomers is None:
    return state
  return state._replace(memory=method.client.refresh(
      state.memory, trees.index(state.models, 0), cohort, method.map_clients))


def _idle(
    method: TwoHalves, state: ComposedState, cohort: Cohort) -> ComposedState:
  cohort = poisoned(method.attack, cohort)
  return _joined(method, state, cohort)._replace(round=state.round + 1)


def _round(
    method: TwoHalves, state: ComposedState, cohort: Cohort, key: Key
) -> tuple[ComposedState, RoundAux]:
  cohort = poisoned(method.attack, cohort)
  state = _joined(method, state, cohort)
  warm_up = None
  if method.grouping and method.num_models > 1:
    warm_up = state.round < method.grouping.threshold
  turn = Turn(cohort, key, state.round, warm_up, state.aggregates)
  beginning, choice = phases.begin(method, state.models, state.server, turn)
  trained, updates, kept = phases.train(
      method, beginning, choice, state.memory, turn)
  choice = _reported(method, choice, trained, turn)
  vectors: Params = ()
  grouping = method.grouping
  if grouping and grouping.of_gradients:
    vectors = phases.received(
        method, grouping.vectors(trained.params, cohort), None, choice, turn)
  else:
    trained = trained._replace(params=phases.received(
        method, trained.params, beginning.starts, choice, turn))
    if grouping:
      vectors = grouping.vectors(trained.params, cohort)
  models, server, aggregates, aux = _finish(
      method, beginning, memory=state.memory, choice=choice, trained=trained,
      updates=updates, vectors=vectors, turn=turn)
  memory = phases.remember(
      method, state.memory, kept, beginning.anchors, turn)
  models, server, aggregates = phases.together(
      turn, (models, server, aggregates))
  if method.compress_down:
    models, memory = broadcast.send(
        method.compress_down, state.models, models, memory, cohort,
        server_key(key, BROADCAST))
  return ComposedState(
      models, server, memory, state.round + 1, aggregates), aux


def _client_params(
    method: TwoHalves, state: ComposedState, client_id: Array, shard: Shard,
    key: Key) -> Params:
  """The global model; of K models the one that the client prefers, (18)."""
  del client_id, key
  if method.num_models == 1:
    return trees.index(state.models, 0)
  return trees.index(state.models, objective.preferred_model(
      method.model, state.models, shard))


def _reported(
    method: TwoHalves, choice: Choice, trained: Trained, turn: Turn) -> Choice:
  """The choice with a loss to report.

  Where no loss was measured before the training, it is the training's.
  """
  if choice.loss is None:
    return choice._replace(loss=trained.loss)
  if method.anchored:
    return choice
  return choice._replace(loss=jnp.where(
      turn.warm_up, trained.loss, choice.loss))


def _finish(
    method: TwoHalves, beginning: Beginning, *, memory: Any, choice: Choice,
    trained: Trained, updates: Updates, vectors: Params, turn: Turn
) -> tuple[Params, Any, Any, RoundAux]:
  """Updates the models, takes the "aggregate" or "after" step, and logs."""
  server, server_state = method.server, beginning.server
  starts, cohort = beginning.starts, turn.cohort
  update, groups, kept = phases.update(
      method, beginning, memory, trained.params, updates, vectors, turn)
  if server.when == "aggregate":
    models, server_state = phases.server_step(
        method, trees.scale(-1.0, update), server_state, starts, turn)
  else:
    models = trees.add_scaled(starts, server.aggregate_lr, update)
  discrepancy = phases.discrepancy(
      method, models, starts, trained.params, updates, choice.preference,
      groups, cohort)
  found = {FIRST_GRADIENTS: beginning.kept, UPDATES: kept}
  if server.when == "after":
    _, gradients, kept = phases.anchor(method, LAST_GRADIENTS, models, turn)
    found[LAST_GRADIENTS] = kept
    models, server_state = phases.server_step(
        method, gradients, server_state, models, turn)
  per_client, logged = halves_report.log(
      method, choice, groups, server_state, turn)
  logged |= discrepancy
  cost, work = halves_report.cost(
      method, ledger.model_size(models, method.num_models), server_state,
      trained.gradients, turn, memory)
  if method.aggregator.column:
    logged[method.aggregator.column] = turn.kept(UPDATES)[0][0]
  aggregates = {phases.AGGREGATED[purpose]: value[0]
                for purpose, value in found.items() if value}
  return models, server_state, aggregates, RoundAux(
      per_client, logged, cost, work)
