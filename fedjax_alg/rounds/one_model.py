"""One round of one global model, from the cohort to the new state.

A method is two halves, a ``client.update.ClientUpdate`` (how a client trains,
what it keeps and what it sends) and a ``central.steps.ServerStep``, with the
links between them (``exchange``). ``run_round`` is the round; what stands after
it serves rounds of several models, too (``k_models``, ``buffered``). The state
has a leading axis of K models; here K is 1, and ``run_round`` takes the axis
off first and puts it back last.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_alg import trees
from fedjax_alg.base import (
  Algorithm,
  Array,
  Cohort,
  FedSpec,
  Key,
  MapClients,
  Model,
  Params,
  RoundAux,
  RoundCost,
  Shard,
  Work,
  num_params,
  round_cost,
)
from fedjax_alg.central.steps import ServerStep
from fedjax_alg.central.validation import validation_arguments
from fedjax_alg.client import objective
from fedjax_alg.client.personal import first_states
from fedjax_alg.client.update import ClientUpdate, own_memory
from fedjax_alg.engine.keys import (
  FIRST_GRADIENTS,
  FORGERIES,
  LAST_GRADIENTS,
  MESSAGES,
  SERVER_STEP,
  UPDATES,
  client_keys,
  server_key,
)
from fedjax_alg.exchange import stacking
from fedjax_alg.exchange.links import Exchange, communication
from fedjax_alg.rounds import ledger
from fedjax_alg.rounds.local_training import (
  Training,
  attach_new_leaves,
  mean_statistics,
  train,
)
from fedjax_alg.typing import Numeric, PyTree

#: Names of the aggregates of a round -> the purpose of the key (``server_key``).
PURPOSES = {
  "updates": UPDATES,
  "first_gradients": FIRST_GRADIENTS,
  "last_gradients": LAST_GRADIENTS,
}


class ComposedState(NamedTuple):
  """State of server and clients between rounds."""

  models: Params  #: [K, ...]; equal copies during the warm-up
  server: Any  #: state of the server step, [K, ...]
  memory: Any  #: ``memory`` of the client's half
  round: Array  #: [] int32, rounds completed
  #: what the aggregator keeps (``Aggregator.keeps``), name in ``PURPOSES`` ->
  #: [K, ...], and what weights by losses keep, "weights" -> [1, C]; empty if
  #: they keep nothing
  aggregates: Any = {}
  #: [K, ...], running statistics of the models (``Model.roles``); () if the
  #: server keeps none
  states: Params = ()

  @property
  def own_memory(self) -> PyTree:
    """``memory`` without what senders keep of what they have not sent."""
    return own_memory(self.memory)


class Mean(NamedTuple):
  """The mean of the participants' updates, or what takes its place."""

  update: Params  #: [...]
  kept: Any  #: what the aggregator keeps
  updates: Params  #: those received, [S, ...]; () where only their sum was kept
  #: [] float32, mean of ||update_i||^2; None: the server does not need it
  square: Any = None


@dataclasses.dataclass(frozen=True)
class TwoHalves:
  """The two halves of a method, and what is between them."""

  model: Model
  client: ClientUpdate
  server: ServerStep
  map_clients: MapClients
  exchange: Exchange
  params: Params  #: shapes of the model's parameters
  statistics: int  #: floats of the running statistics that go with a model
  #: (method, start, training, cohort, key, aggregates) -> the mean update
  average: Callable[..., Mean]
  num_models: int = 1  #: K, number of global models

  def first_servers(self, models: Params) -> PyTree:
    """The state of the server step at the start, [K, ...]."""
    return jax.vmap(
      lambda params: trees.drop_weak_types(self.server.transform.init(params))
    )(models)

  @property
  def measures_anchor(self) -> bool:
    """Whether a round starts with the anchor gradient."""
    return self.client.needs_anchor or self.server.when == "before"

  @property
  def moves_on_anchor(self) -> bool:
    """Whether a round has the anchor gradient at its start or at its end."""
    return self.measures_anchor or self.server.when != "aggregate"

  @property
  def purposes(self) -> list[str]:
    """Purposes of the aggregations in a round, some of ``PURPOSES``."""
    return [
      "updates",
      *["first_gradients"] * self.measures_anchor,
      *["last_gradients"] * (self.server.when == "after"),
    ]


def run_round(
  method: TwoHalves, state: ComposedState, cohort: Cohort, key: Key
) -> tuple[ComposedState, RoundAux]:
  """Runs a round.

  Args:
    method: the two halves and the links between them.
    state: the state.
    cohort: the participants.
    key: key of the round; consumed.

  Returns:
    The state, whose ``states`` are the participants' statistics after their
    steps [S, ...] (``keeps_statistics``), and the report.
  """
  start, server_state, last = trees.index(
    (state.models, state.server, state.aggregates), 0
  )

  # Every participant trains from the model.
  training = train(
    method.client,
    method.map_clients,
    (start, start, ()),
    state.round,
    state.memory,
    cohort,
    key,
    weights=method.exchange.shares(cohort, start),
  )

  # The server moves the model by the mean of their updates.
  mean = method.average(method, start, training, cohort, key, last)
  update = method.client.scale(state.memory, cohort, mean.update)
  new_model, server_state = server_step(
    method,
    cohort,
    state.round,
    as_gradient(update),
    server_state,
    start,
    server_keys(key, SERVER_STEP, 1)[0],
    mean_square=mean.square,
  )

  # Costs, reports, and the new state.
  return end_round(
    method,
    state,
    cohort,
    training,
    Ends(
      new_model,
      server_state,
      training.trained.loss,
      measure_spread(method, mean, training, cohort, trees.subtract(new_model, start)),
      {"updates": mean.kept},
      update=update,
    ),
  )


def run_anchored_round(
  method: TwoHalves, state: ComposedState, cohort: Cohort, key: Key
) -> tuple[ComposedState, RoundAux]:
  """``run_round`` in which the cohort measures gradients at the server's model.

  Args:
    method: the method, for which ``moves_on_anchor``.
    state: see ``run_round``.
    cohort: see ``run_round``.
    key: see ``run_round``.
  """
  client, server = method.client, method.server
  model, server_state, last = trees.index(
    (state.models, state.server, state.aggregates), 0
  )
  step = functools.partial(
    server_step, method, cohort, state.round, key=server_keys(key, SERVER_STEP, 1)[0]
  )
  measure = functools.partial(anchor_gradient, method, key=key, last=last)

  # The cohort measures the gradient at the model, and the server may move it.
  loss, anchor, start, kept = None, (), model, {}
  if method.measures_anchor:
    loss, anchor, kept["first_gradients"] = measure("first_gradients", model, cohort)
  if server.when == "before":
    start, server_state = step(anchor, server_state, model)

  # Every participant trains; the server takes the mean of the updates.
  training = train(
    client,
    method.map_clients,
    (start, model, anchor),
    state.round,
    state.memory,
    cohort,
    key,
    weights=method.exchange.shares(cohort, start),
  )
  mean = method.average(method, start, training, cohort, key, last)
  kept["updates"] = mean.kept
  update = client.scale(state.memory, cohort, mean.update)

  # The server moves the model.
  if server.when == "aggregate":
    new_model, server_state = step(
      as_gradient(update), server_state, start, mean_square=mean.square
    )
  else:
    new_model = trees.add_scaled(start, server.aggregate_lr, update)
  report = measure_spread(
    method, mean, training, cohort, trees.subtract(new_model, start)
  )
  if server.when == "after":
    _, gradient, kept["last_gradients"] = measure(
      "last_gradients", new_model, _after_training(method, state, cohort, training)
    )
    new_model, server_state = step(gradient, server_state, new_model)
  loss = training.trained.loss if loss is None else loss
  return end_round(
    method,
    state,
    cohort,
    training,
    Ends(new_model, server_state, loss, report, kept, anchor, update),
  )


def _after_training(
  method: TwoHalves, state: ComposedState, cohort: Cohort, training: Training
) -> Cohort:
  """The cohort with what clients and server have after the local steps."""
  states = trees.index(state.states, 0)
  if jax.tree.leaves(states):
    states = mean_statistics(states, training.trained.leaves.state, cohort)
  return attach_new_leaves(
    method.client, state.memory, training, states, cohort, method.map_clients
  )


class Ends(NamedTuple):
  """What a round ends with."""

  model: Params
  server: Any  #: state of the server step
  loss: Array  #: [S], the participants' losses
  report: dict[str, Array]
  kept: dict[str, Any]  #: what the aggregator keeps, by name in ``PURPOSES``
  anchor: Params = ()  #: the gradient measured at the start
  update: Params = ()  #: the mean update


def end_round(
  method: TwoHalves,
  state: ComposedState,
  cohort: Cohort,
  training: Training,
  ends: Ends,
) -> tuple[ComposedState, RoundAux]:
  """The new state, the reports and the costs of a round.

  Args:
    method: the method.
    state: that before the round.
    cohort: the participants.
    training: their local training.
    ends: the results of the server.
  """
  aggregator, last = method.exchange.aggregator, state.aggregates
  report = {
    **ends.report,
    "train_loss": trees.slot_mean(cohort.weight, ends.loss),
    **method.server.report(ends.server),
    **aggregator.report(trees.index(last.get("updates"), 0)),
  }
  models, servers, anchors, aggregates = trees.repeat(
    (ends.model, ends.server, ends.anchor, {name: ends.kept[name] for name in last}), 1
  )
  cost, work = costs(method, cohort, state.memory, training.trained.gradients, servers)
  memory = training.merge(method.client, state.memory, cohort, anchors)
  if method.client.record:
    memory = method.client.record(memory, cohort, ends.update)
  return ComposedState(
    models, servers, memory, state.round + 1, aggregates, training.trained.leaves.state
  ), RoundAux({"loss": ends.loss}, report, cost, work)


def gradient_sender(
  method: Any,
) -> Callable[[Params, Shard, Key], tuple[Params, Array]]:
  """A client's code (params, shard, key) -> its gradient as it is sent, and its loss.

  Args:
    method: a ``TwoHalves``, or what has its model, links and map of clients.
  """
  compressor = method.exchange.compress_gradients

  def one_client(params: Params, shard: Shard, key: Key) -> tuple[Params, Array]:
    loss, gradient = objective.full_value_and_grad(method.model, params, shard)
    if compressor:
      gradient, _ = compressor.sender(method.map_clients.carrier)(gradient, (), key)
    return gradient, loss

  return one_client


def anchor_gradient(
  method: TwoHalves, name: str, model: Params, cohort: Cohort, key: Key, last: PyTree
) -> tuple[Array, Params, PyTree]:
  """The participants' losses [S], their gradients' mean, and what is kept."""
  exchange, one_client = method.exchange, gradient_sender(method)
  keys = client_keys(server_key(server_key(key, MESSAGES), PURPOSES[name]), cohort.ids)
  weights = exchange.weigh(cohort)
  if exchange.can_stream:
    gradient, losses = stacking.mean(
      method.map_clients, one_client, model, weights, model, cohort.shards, keys
    )
    return losses, gradient, None
  gradients, losses = method.map_clients(one_client, model, cohort.shards, keys)
  of_one = combine_gradients(
    method,
    name,
    jax.tree.map(lambda leaf: leaf[:, None], gradients),
    cohort,
    key,
    trees.repeat(last, 1),
  )
  return losses, *trees.index(of_one, 0)


def mean_update(
  method: TwoHalves,
  start: Params,
  training: Training,
  cohort: Cohort,
  key: Key,
  last: Any,
) -> Mean:
  """Takes the mean of the updates, or what is in its place.

  Args:
    method: the method.
    start: the model from which the participants have trained.
    training: their local training.
    cohort: the participants.
    key: key of the round.
    last: what the aggregator keeps, by name in ``PURPOSES``.
  """
  needs_square = method.server.needs_mean_square
  if training.squares is not None:
    weights = method.exchange.weigh(cohort)
    square = trees.slot_mean(weights, training.squares) if needs_square else None
    return Mean(training.total, None, (), square)
  exchange, starts = method.exchange, trees.repeat(start, 1)
  weights, trained = exchange.weigh(cohort), training.trained.params
  if exchange.forges:
    trained = trees.add(
      starts,
      exchange.receive(
        trees.subtract(trained, starts),
        cohort,
        server_key(server_key(key, FORGERIES), UPDATES),
        weights,
      ),
    )
  updates = trees.subtract(trained, starts)
  mean, kept = exchange.combine(
    updates, weights, cohort, server_keys(key, UPDATES, 1)[0], last.get("updates")
  )
  square = None
  if needs_square:
    square = trees.slot_mean(weights, trees.slot_norm(updates) ** 2)
  return Mean(mean, kept, updates, square)


def measure_spread(
  method: TwoHalves, mean: Mean, training: Training, cohort: Cohort, move: Params
) -> dict[str, Array]:
  """Measures how far the trained models are from the model of this round.

  The column is "discrepancy", the mean distance (FedGroup (4)); where the
  updates were not kept "discrepancy_rms", the root of the mean squared
  distance, in which participants have the weights that they have in the mean.
  The model is that of this round (errata F-26).

  Args:
    method: the method.
    mean: the mean update.
    training: the participants' training.
    cohort: the participants.
    move: how far the model has moved.
  """
  if training.squares is None:
    gap = trees.slot_norm(trees.subtract(mean.updates, trees.repeat(move, 1)))
    return {"discrepancy": trees.slot_mean(cohort.present.astype(jnp.float32), gap)}
  weights = method.exchange.weigh(cohort)
  total = weights.sum()[None]
  return {
    "discrepancy_rms": stacking.group_spread(
      weights,
      training.squares,
      trees.repeat(move, 1),
      trees.repeat(training.total, 1),
      total,
      total,
    )
  }


def init(method: TwoHalves, params: Params, spec: FedSpec, key: Key) -> ComposedState:
  """The state before ``setup``."""
  models = trees.repeat(params, method.num_models)
  return ComposedState(
    models,
    method.first_servers(models),
    _place_memory(method, method.client.init(params, spec)),
    jnp.zeros((), jnp.int32),
    first_aggregates(method, models),
    first_states(method.model, method.num_models),
  )


def first_aggregates(method: TwoHalves, models: Params) -> dict[str, Any]:
  """Makes the initial state of the aggregator, ``ComposedState.aggregates``."""
  keeps = method.exchange.aggregator.keeps
  return (
    {} if keeps is None else {name: jax.vmap(keeps)(models) for name in method.purposes}
  )


def _place_memory(method: TwoHalves, memory: object) -> Any:
  """The memory, what clients keep shared out over processes."""
  store = method.client.store
  if store is None or not store.one_row:
    return memory
  return store.put(memory, method.map_clients.keep(store.get(memory)))


def setup(
  method: TwoHalves, state: ComposedState, everyone: Cohort, key: Key
) -> ComposedState:
  """The state before round 1."""
  return state._replace(
    memory=_place_memory(
      method,
      method.client.setup(
        state.memory,
        trees.index(state.models, 0),
        everyone,
        method.map_clients,
      ),
    )
  )


def idle(state: ComposedState, cohort: Cohort) -> ComposedState:
  """The state after a round without participants."""
  return state._replace(round=state.round + 1)


def admits_newcomers(
  algorithm: Algorithm[ComposedState], method: TwoHalves
) -> Algorithm[ComposedState]:
  """The algorithm whose memory takes in the clients that join in a round.

  Args:
    algorithm: the algorithm of ``method``.
    method: its local half has a ``refresh``.
  """
  refresh, idle_round = method.client.refresh, algorithm.idle
  assert refresh is not None

  def admit(state: ComposedState, cohort: Cohort) -> ComposedState:
    if cohort.newcomers is None:
      return state
    return state._replace(
      memory=refresh(
        state.memory, trees.index(state.models, 0), cohort, method.map_clients
      )
    )

  return algorithm._replace(
    round=lambda state, cohort, key: algorithm.round(admit(state, cohort), cohort, key),
    idle=idle_round
    and (lambda state, cohort: idle_round(admit(state, cohort), cohort)),
  )


def keeps_statistics(
  algorithm: Algorithm[ComposedState],
) -> Algorithm[ComposedState]:
  """The algorithm of ``run_round`` whose server keeps running statistics.

  They are the mean of the participants' by examples; none where each client
  keeps its own.
  """

  def run(state, cohort, key):
    new, aux = algorithm.round(state, cohort, key)
    states = state.states
    if jax.tree.leaves(states):
      states = trees.repeat(
        mean_statistics(trees.index(states, 0), new.states, cohort), 1
      )
    return new._replace(states=states), aux

  return algorithm._replace(round=run)


def server_keys(key: Key, purpose: int, k: int) -> Key:
  """A key of the server for each of K models, [K]."""
  return client_keys(server_key(key, purpose), jnp.arange(k, dtype=jnp.int32))


def combine_gradients(
  method: TwoHalves,
  name: str,
  gradients: Params,
  cohort: Cohort,
  key: Key,
  last: Any,
) -> tuple[Params, Any]:
  """Combines the anchor gradients that participants sent of K models.

  Args:
    method: the method.
    name: "first_gradients" or "last_gradients".
    gradients: [S, K, ...].
    cohort: the participants.
    key: key of the round.
    last: ``ComposedState.aggregates``.

  Returns:
    The anchor gradients [K, ...], and what the aggregator keeps.
  """
  exchange, weights = method.exchange, method.exchange.weigh(cohort)

  def of_model(gradients, key, last):
    gradients = exchange.receive(gradients, cohort, server_key(key, FORGERIES), weights)
    return exchange.combine(gradients, weights, cohort, key, last)

  result: tuple[Params, PyTree] = jax.vmap(of_model, in_axes=(1, 0, 0))(
    gradients, server_keys(key, PURPOSES[name], method.num_models), last.get(name)
  )
  return result


def as_gradient(update: Params) -> Params:
  """The gradient of an "aggregate" step: minus the update of one model.

  It is taken with an axis of one model, which keeps XLA from contracting it
  with what the server computes first, so that its bits are those of K models.
  """
  return trees.index(trees.scale(-1.0, trees.repeat(update, 1)), 0)


def server_step(
  method: TwoHalves,
  cohort: Cohort,
  rounds: Array,
  gradient: Params,
  state: PyTree,
  params: Params,
  key: Key,
  running: Params = None,
  mean_square: Array | None = None,
) -> tuple[Params, PyTree]:
  """Takes the server's step for one model: (moved model, new state).

  ``running`` are the model's statistics if they are not those of
  ``cohort.validation``; ``mean_square`` is that of the updates, [], for a
  server that needs it.
  """
  transform = optax.with_extra_args_support(method.server.transform)
  extra: dict[str, Any] = {"round": rounds}
  if method.server.needs_mean_square:
    extra["mean_square"] = mean_square
  if method.server.needs_validation:
    shard = cohort.validation
    if shard is not None and running is not None:
      shard = shard._replace(state=running)
    extra |= validation_arguments(method.model, shard, method.map_clients)
  with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
    updates, state = transform.update(
      gradient, state, params, grad=gradient, key=key, **extra
    )
  return optax.apply_updates(params, updates), state


def steps_of_models(
  method: TwoHalves,
  cohort: Cohort,
  rounds: Array,
  key: Key,
  over_models: Callable[..., Callable[..., Any]] = jax.vmap,
) -> Callable[..., tuple[Params, PyTree]]:
  """The server's step for each of K models.

  Args:
    method: the method.
    cohort: the participants.
    rounds: [] int32, rounds completed before this one.
    key: key of the round.
    over_models: makes a function of one model a function of leaves [K, ...].

  Returns:
    The function (gradients, states, models, mean_squares=None), leaves [K, ...],
    -> (moved models, new states).
  """
  keys = server_keys(key, SERVER_STEP, method.num_models)
  running = cohort.validation and cohort.validation.state
  step = over_models(functools.partial(server_step, method, cohort, rounds))
  return lambda gradients, states, models, mean_squares=None: step(
    gradients, states, models, keys, running, mean_squares
  )


def costs(
  method: TwoHalves,
  cohort: Cohort,
  memory: PyTree,
  gradients: PyTree,
  server_states: PyTree,
  *,
  k: int = 1,
  evaluations: int = 0,
  passes: int = 0,
  more_up: int = 0,
  floats: tuple[Numeric, Numeric] = (0, 0),
  flops: Numeric = 0.0,
  means: int | None = None,
) -> tuple[RoundCost, Work]:
  """The cost of a round, and the work of each participant.

  A participant receives the models, the anchor gradient that corrects its
  steps, the model that the server moved, and the models at which it measures
  again. It sends the trained model, the gradients of every model, and the
  second gradients (errata D-20). With the models come and go their statistics,
  if the server keeps them.

  Args:
    method: the method.
    cohort: the participants.
    memory: that of the client's half before the round.
    gradients: ``Trained.gradients``.
    server_states: [k, ...], of the server step after the round.
    k: number of models.
    evaluations: number of losses on all of a participant's data, which do not
      count as example gradients.
    passes: number of further gradients on all of it.
    more_up: bytes that a participant sends besides.
    floats: further floats that it receives and sends, [] int32 if they depend on the
      round.
    flops: of the server besides.
    means: number of models that the server aggregates; None: k.
  """
  client, server, exchange = method.client, method.server, method.exchange
  first, after = method.measures_anchor, server.when == "after"
  passes += k * first + k * after + client.full_passes
  gradients, work = ledger.count_work(
    method.model,
    client,
    cohort.shards.size,
    gradients,
    full_passes=passes,
    evaluations=client.evaluations + evaluations,
    part=cohort.part,
  )
  slots, size = cohort.ids.shape[0], num_params(method.params)
  total: Any = (
    (means or k) * (1 + first + after) * exchange.aggregator.flops(slots, size)
    + client.server_flops(slots, size)
    + flops
  )
  if server.needs_validation and cohort.validation is not None:
    # A pass over the validation data is counted as a multiplication and an
    # addition for each parameter and example.
    total = total + (
      2.0
      * size
      * cohort.validation.size.astype(jnp.float32)
      * jax.vmap(server.evaluations)(server_states).sum()
    )
  messages = communication(
    exchange,
    client,
    method.params,
    memory,
    cohort,
    models=k,
    floats_down=method.statistics * k * (1 + after) + floats[0],
    floats_up=method.statistics + floats[1],
    vectors=client.needs_anchor + (server.when == "before") + k * after,
    gradients=k * (first + after),
    more_up=more_up,
  )
  return round_cost(
    **messages,
    exchanges=1 + first + after,
    example_gradients=gradients.sum() + passes * cohort.shards.size.sum(),
    central_flops=total,
  ), work
