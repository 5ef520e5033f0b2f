"""One round of any local method with any server step, for 1 or K models.

A method is two halves: a ``client.update.ClientUpdate`` (what a client does
with the model, what it keeps and sends) and a ``central.steps.ServerStep``.
``compose`` makes an ``Algorithm`` of them; everything that a round has in
common stands here once: the anchor gradient, the order of the exchanges, the
mean over the cohort, the preference among K models.

A round, each line only where a half asks for it:

  1. ``_begin``: the cohort measures the anchor gradient at the K models w_k,
     and which of them it prefers; "before" steps move w_k along it;
  2. ``_train``: every client trains from the model it prefers;
  3. ``_finish``: the mean update, or the means of K groups; "aggregate" steps
     apply it; the cohort measures the anchor gradient again, "after" steps
     follow it;
  4. what clients sent beside is merged into the state kept between rounds.

With K > 1 models the rounds up to T (``ModelGrouping.threshold``) are played
with one: ``_for_one_or_all``.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_alg import trees
from fedjax_alg.base import Algorithm, Array, Cohort, FedSpec, Key, MapClients
from fedjax_alg.base import Model, Params, RoundAux, RoundCost, Shard, Work
from fedjax_alg.base import round_cost
from fedjax_alg.central.steps import ServerStep
from fedjax_alg.central.validation import validation_arguments
from fedjax_alg.client import objective
from fedjax_alg.client.update import ClientUpdate, Received, Trained
from fedjax_alg.engine.cohorts import client_keys
from fedjax_alg.errors import OptionError
from fedjax_alg.rounds import ledger
from fedjax_alg.rounds.weights import participation


class ModelGrouping(NamedTuple):
  """How K models share a cohort from round ``threshold`` + 1 on."""

  num_models: int  #: K
  threshold: int  #: T, rounds with one model
  #: (models w_k [K, ...], trained models [S, ...], anchors [K, ...], cohort,
  #: splitting [] bool, scale) -> targets w*_k [K, ...], groups
  regroup: Callable[..., tuple[Params, Any]]
  full_passes: int = 0  #: that it asks of every participant
  #: (slots, P, K) -> server arithmetic
  flops: Callable[[int, int, int], float] = lambda slots, size, k: 0.0


class ComposedState(NamedTuple):
  """The server and, in ``memory``, what clients keep."""

  models: Params  #: [K, ...]; equal copies during the warm-up
  server: Any  #: the server step's state, [K, ...]
  memory: Any  #: of the client's half
  round: Array  #: [] int32, rounds completed


@dataclasses.dataclass(frozen=True)
class TwoHalves:
  """What ``compose`` was given."""

  model: Model
  client: ClientUpdate
  server: ServerStep
  map_clients: MapClients
  weigh: Callable[[Cohort], Array]  #: the participants in every mean, [S]
  grouping: ModelGrouping | None

  @property
  def num_models(self) -> int:
    """K."""
    return self.grouping.num_models if self.grouping else 1

  @property
  def anchored(self) -> bool:
    """Whether a round starts with the anchor gradient."""
    return self.client.needs_anchor or self.server.when == "before"


class Beginning(NamedTuple):
  """What a round's participants train from."""

  models: Params  #: [K, ...] w_k, where anchors were measured
  starts: Params  #: [K, ...] where training starts: w_k, or moved
  anchors: Params  #: [K, ...] mean gradient at ``models``, or ()
  server: Any  #: the server step's state, [K, ...]


class Choice(NamedTuple):
  """The participants' preferences among the models, [S]."""

  preference: Array  #: int32; 0 with one model
  loss: Any  #: float32, of the preferred model; None: nobody measured it


def compose(
    model: Model,
    client: ClientUpdate,
    server: ServerStep,
    *,
    map_clients: MapClients,
    weights: str = "examples",
    grouping: ModelGrouping | None = None,
) -> Algorithm[ComposedState]:
  """Makes an algorithm of its two halves.

  Args:
    model: the model and its objective.
    client: the client's half.
    server: the server's half.
    map_clients: how clients are mapped.
    weights: of the participants in every mean, one of ``weights.WEIGHTS``.
    grouping: None for one model.

  Raises:
    ValueError: unknown weights; halves that do not fit.
  """
  if grouping and grouping.num_models > 1 and client.one_model:
    raise OptionError(f"`num_models`={grouping.num_models}: the local method "
                      f"has one global model ({client.one_model})")
  method = TwoHalves(
      model, client, server, map_clients, participation(weights), grouping)
  return Algorithm(
      functools.partial(_init, method), functools.partial(_setup, method),
      functools.partial(_round, method),
      functools.partial(_client_params, method), lambda state: state.models)


def _init(
    method: TwoHalves, params: Params, spec: FedSpec, key: Key
) -> ComposedState:
  del key
  models = trees.repeat(params, method.num_models)
  transform = method.server.transform
  return ComposedState(
      models, jax.vmap(lambda p: trees.strong(transform.init(p)))(models),
      method.client.init(params, spec), jnp.zeros((), jnp.int32))


def _setup(
    method: TwoHalves, state: ComposedState, everyone: Cohort, key: Key
) -> ComposedState:
  del key
  return state._replace(memory=method.client.setup(
      state.memory, trees.index(state.models, 0), everyone,
      method.map_clients))


def _round(
    method: TwoHalves, state: ComposedState, cohort: Cohort, key: Key
) -> tuple[ComposedState, RoundAux]:
  if cohort.newcomers is not None:
    state = state._replace(memory=method.client.refresh(
        state.memory, trees.index(state.models, 0), cohort,
        method.map_clients))
  begin = functools.partial(_begin, method, cohort=cohort)
  beginning, choice = _for_one_or_all(
      method, state.round, begin, (state.models, state.server))
  trained = _train(method, beginning, choice, state.memory, cohort, key)
  choice = _reported(method, state.round, choice, trained)
  finish = functools.partial(
      _finish, method, state=state, choice=choice, trained=trained,
      cohort=cohort)
  (models, server), aux = _for_one_or_all(
      method, state.round, finish, beginning)
  memory = method.client.merge(
      state.memory, cohort, trained.upload, beginning.anchors)
  return ComposedState(models, server, memory, state.round + 1), aux


def _client_params(
    method: TwoHalves, state: ComposedState, client_id: Array, shard: Shard,
    key: Key) -> Params:
  """The global model, of K the one the client prefers on its data (18)."""
  del client_id, key
  if method.num_models == 1:
    return trees.index(state.models, 0)
  return trees.index(state.models, objective.preferred_model(
      method.model, state.models, shard))


def _for_one_or_all(
    method: TwoHalves, rounds: Array, fn: Callable[..., tuple[Any, Any]],
    per_model: Any) -> tuple[Any, Any]:
  """``fn`` for one model during the warm-up, for all K after it.

  Args:
    method: with K.
    rounds: [] int32, completed so far.
    fn: (k, leaves [k, ...]) -> (leaves [k, ...], anything of one shape).
    per_model: leaves [K, ...], equal copies during the warm-up.

  Returns:
    Leaves [K, ...], again copies during the warm-up; the rest.
  """
  k = method.num_models
  if k == 1:
    return fn(1, per_model)

  def one():
    result, rest = fn(1, trees.index(per_model, slice(0, 1)))
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, k, axis=0), result), rest

  assert method.grouping is not None
  return jax.lax.cond(
      rounds < method.grouping.threshold, one, lambda: fn(k, per_model))


def _over_models(fn: Callable[..., Any], k: int) -> Callable[..., Any]:
  """``fn`` over a leading axis K; for K = 1 without vectorising."""
  if k > 1:
    return jax.vmap(fn)
  return lambda *args: jax.tree.map(
      lambda leaf: leaf[None], fn(*trees.index(args, 0)))


def _begin(
    method: TwoHalves, k: int, per_model: tuple[Params, Any], cohort: Cohort
) -> tuple[Beginning, Choice]:
  """Anchor gradients, preferences and the "before" step of k models."""
  models, server_state = per_model
  anchors: Any = ()
  losses = None
  if method.anchored:
    losses, gradients = _full_passes(method, k, models, cohort)
    # (17) averages over S^r, not S^{r-1}, whose members never see the models
    # after acceleration; every participant counts for every k (errata D-06).
    anchors = trees.slot_mean(method.weigh(cohort), gradients)
  elif k > 1:
    losses = method.map_clients(
        functools.partial(objective.full_losses, method.model), models,
        cohort.shards)
  choice = _choose(method, k, losses, cohort)
  starts = models
  if method.server.when == "before":
    starts, server_state = _server_step(
        method, k, anchors, server_state, models, cohort)
  return Beginning(models, starts, anchors, server_state), choice


def _full_passes(
    method: TwoHalves, k: int, models: Params, cohort: Cohort
) -> tuple[Array, Params]:
  """Losses [S, K] and gradients [S, K, ...] of every model everywhere."""

  def one_client(models, shard):
    return _over_models(lambda params: objective.full_value_and_grad(
        method.model, params, shard), k)(models)

  return method.map_clients(one_client, models, cohort.shards)


def _choose(
    method: TwoHalves, k: int, losses: Array | None, cohort: Cohort
) -> Choice:
  """The model of least loss for each participant; of one model that one."""
  preference = jnp.zeros(cohort.ids.shape, jnp.int32)
  if losses is None:  # of one model, that nobody measured
    unknown = jnp.zeros(cohort.ids.shape) if method.num_models > 1 else None
    return Choice(preference, unknown)
  if k > 1:
    preference = jnp.argmin(losses, axis=1).astype(jnp.int32)
  loss = jnp.take_along_axis(losses, preference[:, None], axis=1)[:, 0]
  return Choice(preference, loss)


def _server_step(
    method: TwoHalves, k: int, gradients: Params, state: Any, models: Params,
    cohort: Cohort) -> tuple[Params, Any]:
  """The server's step for each model: (moved models, state)."""
  extra: dict[str, Any] = {}
  if method.server.needs_validation:
    extra = validation_arguments(
        method.model, cohort.validation, method.map_clients)

  def one(gradient, state, params):
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
      updates, state = method.server.transform.update(
          gradient, state, params, grad=gradient, **extra)
    return optax.apply_updates(params, updates), state

  return _over_models(one, k)(gradients, state, models)


def _train(
    method: TwoHalves, beginning: Beginning, choice: Choice, memory: Any,
    cohort: Cohort, key: Key) -> Trained:
  """Local training of every participant, leaves [S, ...].

  The same program for one model and for K, whose copies during the warm-up
  are all the same to train from.
  """
  client = method.client

  def one_client(shared, shard, client_row, preference, key):
    beginning, extra = shared
    pick = preference if method.num_models > 1 else 0
    models, starts, anchors = trees.index(beginning, pick)
    return client.train(
        Received(starts, models, anchors, extra), shard, client_row, key)

  keys = client_keys(key, cohort.ids)
  return method.map_clients(
      one_client, (beginning[:3], client.shared(memory)), cohort.shards,
      client.client_rows(memory, cohort, keys), choice.preference, keys)


def _reported(
    method: TwoHalves, rounds: Array, choice: Choice, trained: Trained
) -> Choice:
  """The choice with a loss to report: the trained one's where none is known."""
  if choice.loss is None:
    return choice._replace(loss=trained.loss)
  if method.anchored:
    return choice
  assert method.grouping is not None
  return choice._replace(loss=jnp.where(
      rounds < method.grouping.threshold, trained.loss, choice.loss))


def _finish(
    method: TwoHalves, k: int, beginning: Beginning, *, state: ComposedState,
    choice: Choice, trained: Trained, cohort: Cohort
) -> tuple[tuple[Params, Any], RoundAux]:
  """The update of k models, the "aggregate" or "after" step, what is logged."""
  server, server_state = method.server, beginning.server
  starts = beginning.starts
  update, groups = _update(
      method, k, beginning, state, trained.params, cohort)
  if server.when == "aggregate":
    models, server_state = _server_step(
        method, k, trees.scale(-1.0, update), server_state, starts, cohort)
  else:
    models = trees.add_scaled(starts, server.aggregate_lr, update)
  discrepancy = _discrepancy(
      models, starts, trained.params, choice.preference, groups, cohort)
  if server.when == "after":
    _, gradients = _full_passes(method, k, models, cohort)
    models, server_state = _server_step(
        method, k, trees.slot_mean(method.weigh(cohort), gradients),
        server_state, models, cohort)
  per_client, logged = _log(method, choice, groups, server_state, cohort)
  logged["discrepancy"] = discrepancy
  cost, work = _cost(
      method, k, ledger.model_size(models, k), server_state, cohort,
      trained.gradients)
  return (models, server_state), RoundAux(per_client, logged, cost, work)


def _update(
    method: TwoHalves, k: int, beginning: Beginning, state: ComposedState,
    trained: Params, cohort: Cohort) -> tuple[Params, Any]:
  """What the k models move by [k, ...], and the groups if there are any."""
  participants = cohort.present.sum().astype(jnp.float32)
  scale = functools.partial(method.client.scale, state.memory, participants)
  starts, groups = beginning.starts, None
  if method.grouping:
    # Round T + 1 splits the copies; no round of the warm-up is that one.
    splitting = state.round == method.grouping.threshold
    target, groups = method.grouping.regroup(
        starts, trained, beginning.anchors, cohort, splitting, scale)
    # An empty group takes no grouping step (errata D-13).
    target = trees.where_slots(groups.size > 0, target, starts)
    update = trees.subtract(target, starts)
  else:
    mean = trees.slot_mean(
        method.weigh(cohort), trees.subtract(trained, starts))
    update = jax.tree.map(lambda leaf: leaf[None], mean)
  return _over_models(scale, k)(update), groups  # (60)


def _discrepancy(
    models: Params, starts: Params, trained: Params, preference: Array,
    groups: Any, cohort: Cohort) -> Array:
  """Mean distance of the trained models from their aggregate (FedGroup (4))."""
  if groups is None:  # one model: of the updates, which are exact
    gap = trees.subtract(
        trees.subtract(trained, starts), trees.subtract(models, starts))
  else:
    gap = trees.subtract(trained, trees.index(models, preference))
  return trees.slot_mean(
      cohort.present.astype(jnp.float32), trees.slot_norm(gap))


def _log(
    method: TwoHalves, choice: Choice, groups: Any, server_state: Any,
    cohort: Cohort) -> tuple[dict[str, Array], dict[str, Array]]:
  """What a round reports of the participants [S], and of the server."""
  num_models = method.num_models
  per_client = {"loss": choice.loss}
  logged = {"train_loss": trees.slot_mean(cohort.weight, choice.loss)}
  if jax.tree.leaves(server_state):  # else there is no axis to map over
    for name, values in jax.vmap(method.server.report)(server_state).items():
      logged[name] = values if num_models > 1 else values[0]
  if groups is not None:
    per_client |= {"preference": choice.preference,
                   "assignment": groups.assignment}
    logged["group_size"] = groups.size
  # The warm-up has one model; the log has the shape of K.
  return per_client, {
      name: jnp.zeros(num_models, value.dtype).at[:value.shape[0]].set(value)
      if value.ndim else value for name, value in logged.items()}


def _cost(
    method: TwoHalves, k: int, size: int, server_state: Any, cohort: Cohort,
    gradients: Any) -> tuple[RoundCost, Work]:
  """The ledger of the round, and the participants' own work."""
  client, server, grouping = method.client, method.server, method.grouping
  anchored = method.anchored
  before, after = server.when == "before", server.when == "after"
  # Down: the models, the anchor gradient to correct with, the model that the
  # server moved, the models to measure again. Up: the trained model, gradients
  # of every model, the preference, gradients again (errata D-20). A forward
  # pass for the preference alone is no example gradient.
  down = k + client.needs_anchor + before + k * after + client.extra_down
  up = 1 + k * anchored + k * after + client.extra_up
  passes = k * anchored + k * after + client.full_passes + (
      grouping.full_passes if grouping else 0)
  gradients, work = ledger.count_work(
      method.model, client, cohort.shards.size, gradients, full_passes=passes,
      evaluations=k if k > 1 and not anchored else 0)
  flops: Any = (
      grouping.flops(cohort.ids.shape[0], size, k) if grouping else 0.0)
  if server.needs_validation and cohort.validation is not None:
    # A pass over the validation data: a multiplication and an addition for
    # each parameter and example.
    flops = flops + (2.0 * size * cohort.validation.size.astype(jnp.float32)
                     * jax.vmap(server.evaluations)(server_state).sum())
  return round_cost(
      down=down * size, up=up * size + (1 if grouping else 0),
      exchanges=1 + anchored + after,
      example_gradients=gradients.sum() + passes * cohort.shards.size.sum(),
      central_flops=flops), work
