"""What rounds of one and of K models share: state, server step, costs.

A method is two halves, a ``client.update.ClientUpdate`` (how a client trains,
what it keeps and what it sends) and a ``central.steps.ServerStep``, with the
links between them (``exchange``).
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_alg import trees
from fedjax_alg.base import Array, Cohort, FedSpec, Key, MapClients, Model
from fedjax_alg.base import num_params, Params, round_cost, RoundCost, Work
from fedjax_alg.central.steps import ServerStep
from fedjax_alg.central.validation import validation_arguments
from fedjax_alg.client.update import ClientUpdate, own_memory
from fedjax_alg.engine.cohorts import client_keys, FIRST_GRADIENTS, FORGERIES
from fedjax_alg.engine.cohorts import LAST_GRADIENTS, server_key, UPDATES
from fedjax_alg.exchange.compression import shapes
from fedjax_alg.exchange.links import Exchange
from fedjax_alg.exchange.traffic import communication
from fedjax_alg.rounds import ledger

#: What is aggregated in a round, by the purpose of the key (``server_key``).
AGGREGATED = {UPDATES: "updates", FIRST_GRADIENTS: "first_gradients",
              LAST_GRADIENTS: "last_gradients"}


class ComposedState(NamedTuple):
  """What server and clients keep between rounds."""

  models: Params  #: [K, ...]; equal copies during the warm-up
  server: Any  #: state of the server step, [K, ...]
  memory: Any  #: ``memory`` of the client's half
  round: Array  #: [] int32, rounds completed
  #: what the aggregator keeps (``Aggregator.keeps``), name in ``AGGREGATED`` ->
  #: [K, ...]; empty if it keeps nothing
  aggregates: Any = {}

  @property
  def own_memory(self) -> Any:
    """``memory`` without what senders keep of what they have not sent."""
    return own_memory(self.memory)


@dataclasses.dataclass(frozen=True)
class TwoHalves:
  """The two halves of a method, and what is between them."""

  model: Model
  client: ClientUpdate
  server: ServerStep
  map_clients: MapClients
  exchange: Exchange

  @property
  def num_models(self) -> int:
    """K, the number of global models."""
    return 1

  @property
  def anchored(self) -> bool:
    """Whether a round starts with the anchor gradient."""
    return self.client.needs_anchor or self.server.when == "before"

  @property
  def aggregated(self) -> tuple[int, ...]:
    """What is aggregated in a round, some of ``AGGREGATED``."""
    return (UPDATES, *((FIRST_GRADIENTS,) if self.anchored else ()), *(
        (LAST_GRADIENTS,) if self.server.when == "after" else ()))


def init(
    method: TwoHalves, params: Params, spec: FedSpec, key: Key
) -> ComposedState:
  """The state before ``setup``."""
  del key
  models = trees.repeat(params, method.num_models)
  transform = method.server.transform
  return ComposedState(
      models, jax.vmap(lambda p: trees.strong(transform.init(p)))(models),
      _placed(method, method.client.init(params, spec)),
      jnp.zeros((), jnp.int32), first_aggregates(method, models))


def first_aggregates(method: TwoHalves, models: Params) -> dict[str, Any]:
  """What the aggregator keeps at the start, ``ComposedState.aggregates``."""
  keeps = method.exchange.aggregator.keeps
  return {} if keeps is None else {
      AGGREGATED[purpose]: jax.vmap(keeps)(models)
      for purpose in method.aggregated}


def _placed(method: TwoHalves, memory: Any) -> Any:
  """The memory, what clients keep shared out over processes."""
  store = method.client.store
  if store is None or not store.one_row:
    return memory
  return store.put(memory, method.map_clients.keep(store.get(memory)))


def setup(
    method: TwoHalves, state: ComposedState, everyone: Cohort, key: Key
) -> ComposedState:
  """The state before round 1."""
  del key
  return state._replace(memory=_placed(method, method.client.setup(
      state.memory, trees.index(state.models, 0),
      method.exchange.poisoned(everyone), method.map_clients)))


def joined(
    method: TwoHalves, state: ComposedState, cohort: Cohort) -> ComposedState:
  """The state when the clients of this round have joined."""
  if cohort.newcomers is None:
    return state
  return state._replace(memory=method.client.refresh(
      state.memory, trees.index(state.models, 0), cohort, method.map_clients))


def idle(
    method: TwoHalves, state: ComposedState, cohort: Cohort) -> ComposedState:
  """The state after a round without participants."""
  cohort = method.exchange.poisoned(cohort)
  return joined(method, state, cohort)._replace(round=state.round + 1)


def server_keys(key: Key, purpose: int, k: int) -> Key:
  """A key of the server for each of K models, [K]."""
  return client_keys(server_key(key, purpose), jnp.arange(k, dtype=jnp.int32))


def combined_gradients(
    method: TwoHalves, purpose: int, sent: Params, cohort: Cohort, key: Key,
    last: Any) -> tuple[Params, Any]:
  """Combines the anchor gradients that participants sent of K models.

  Args:
    method: the method.
    purpose: of the key, ``FIRST_GRADIENTS`` or ``LAST_GRADIENTS``.
    sent: [S, K, ...].
    cohort: the participants.
    key: key of the round.
    last: [K, ...], what the aggregator has kept, or None.

  Returns:
    The anchor gradients [K, ...], and what the aggregator keeps.
  """
  exchange, weights = method.exchange, method.exchange.weigh(cohort)

  def of_model(gradients, key, last):
    gradients = exchange.receive(
        gradients, cohort, server_key(key, FORGERIES), weights)
    return exchange.combine(gradients, weights, cohort, key, last)

  return jax.vmap(of_model, in_axes=(1, 0, 0))(
      sent, server_keys(key, purpose, method.num_models), last)


def against(update: Params) -> Params:
  """The gradient of an "aggregate" step: minus the update of one model.

  It is taken with an axis of one model, which keeps XLA from contracting it
  with what the server computes first, so that its bits are those of K models.
  """
  return trees.index(trees.scale(-1.0, trees.repeat(update, 1)), 0)


def server_step(
    method: TwoHalves, cohort: Cohort, rounds: Array, gradient: Params,
    state: Any, params: Params, key: Key) -> tuple[Params, Any]:
  """Takes the server's step for one model: (moved model, new state)."""
  transform = optax.with_extra_args_support(method.server.transform)
  extra: dict[str, Any] = {"round": rounds}
  if method.server.needs_validation:
    extra |= validation_arguments(
        method.model, cohort.validation, method.map_clients)
  with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
    updates, state = transform.update(
        gradient, state, params, grad=gradient, key=key, **extra)
  return optax.apply_updates(params, updates), state


def costs(
    method: TwoHalves, cohort: Cohort, memory: Any, gradients: Any,
    server_states: Any, *, k: int = 1, evaluations: int = 0, passes: int = 0,
    more_up: int = 0, flops: float = 0.0) -> tuple[RoundCost, Work]:
  """The cost of a round, and the work of each participant.

  A participant receives the models, the anchor gradient that corrects its
  steps, the model that the server moved, and the models at which it measures
  again. It sends the trained model, the gradients of every model, and the
  second gradients (errata D-20).

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
    flops: of the server besides.
  """
  client, server, exchange = method.client, method.server, method.exchange
  first, after = method.anchored, server.when == "after"
  passes += k * first + k * after + client.full_passes
  gradients, work = ledger.count_work(
      method.model, client, cohort.shards.size, gradients, full_passes=passes,
      evaluations=evaluations, part=cohort.part)
  slots, size = cohort.ids.shape[0], num_params(shapes(method.model))
  total: Any = k * (1 + first + after) * exchange.aggregator.flops(
      slots, size) + client.server_flops(slots, size) + flops
  if server.needs_validation and cohort.validation is not None:
    # A pass over the validation data is counted as a multiplication and an
    # addition for each parameter and example.
    total = total + (2.0 * size * cohort.validation.size.astype(jnp.float32)
                     * jax.vmap(server.evaluations)(server_states).sum())
  sent = communication(
      exchange, client, method.model, memory, cohort, models=k,
      vectors=client.needs_anchor + (server.when == "before") + k * after,
      gradients=k * (first + after), more_up=more_up)
  return round_cost(
      **sent, exchanges=1 + first + after,
      example_gradients=gradients.sum() + passes * cohort.shards.size.sum(),
      central_flops=total), work
