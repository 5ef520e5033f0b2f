"""One round of K global models that share a cohort, with a warm-up of one.

Every participant trains the model that it prefers, that of least loss on its
data; a ``ModelGrouping`` then makes K groups of what came back, and the server
takes its step for each model. Rounds of one model are in ``one_model``, whose
order of exchanges is the same; rounds in which clients belong to groups by a
rule of their own are in ``clustered``.

Rounds 1 to T (``ModelGrouping.threshold``), the warm-up, have one model, of
which the K models are equal copies: every participant prefers the first one and
is in the first group. So these rounds are the same program as the later ones:
what costs a pass over data is computed for the first model alone, and at the
end of the round it is copied (``_broadcast_first_model``).
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import (
  BYTES_PER_FLOAT,
  Array,
  Cohort,
  Key,
  Model,
  Params,
  RoundAux,
  RoundCost,
  Shard,
  Work,
  num_params,
)
from fedjax_alg.client import objective
from fedjax_alg.client.personal import with_states
from fedjax_alg.client.update import Trained
from fedjax_alg.engine.keys import (
  FORGERIES,
  MESSAGES,
  UPDATES,
  client_keys,
  server_key,
)
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import stacking
from fedjax_alg.rounds.local_training import attach_new_leaves, mean_statistics, train
from fedjax_alg.rounds.one_model import (
  PURPOSES,
  ComposedState,
  TwoHalves,
  combine_gradients,
  costs,
  server_keys,
  steps_of_models,
)
from fedjax_alg.typing import PyTree


class Stage(NamedTuple):
  """Stage of K models between one model and K groups."""

  #: [] bool, whether all participants are one group, the first: the warm-up.
  #: None: there is one model.
  warm_up: Any
  #: [] bool, whether the K models are equal copies that become different
  splitting: Array


class ModelGrouping(NamedTuple):
  """Rule by which K models share a cohort from round ``threshold`` + 1 on."""

  num_models: int  #: K
  threshold: int  #: T, number of rounds with one model
  #: (models w_k [K, ...], vectors [S, ...], anchors [K, ...], cohort,
  #: ``Stage``, scale) -> targets w*_k [K, ...], groups
  regroup: Callable[..., tuple[Params, Any]]
  #: (trained models [S, ...], cohort) -> the vectors that are grouped
  vectors: Callable[[Params, Cohort], Params] = lambda trained, cohort: trained
  #: whether these vectors are gradients, which participants send in the place
  #: of their trained models
  of_gradients: bool = False
  #: number of gradients that every participant computes on all its data for it
  full_passes: int = 0
  #: (slots, P, K) -> flops of the server
  flops: Callable[[int, int, int], float] = lambda slots, size, k: 0.0
  #: (w_k [...], vectors [S, ...], scale) -> the participants' changes of w_k
  #: [S, ...], for aggregators other than the mean. The mean of the changes of
  #: group k is w*_k - w_k, but for what ``regroup`` may project away.
  changes: Callable[[Params, Params, Callable[[Params], Params]], Params] = (
    lambda model, vectors, scale: trees.subtract_one(vectors, model)
  )
  #: whether the anchor gradient of w_k is the mean over those alone who prefer
  #: w_k, and not over all participants
  own_anchors: bool = False
  extra_up: int = 0  #: vectors that a participant sends beside its gradient


@dataclasses.dataclass(frozen=True)
class KModels(TwoHalves):
  """The two halves of a method, and how K models share its participants."""

  grouping: ModelGrouping = dataclasses.field(kw_only=True)


def forbidden_links(method: KModels) -> dict[str, str]:
  """The links that a grouping cannot have, and why (``links.fit``).

  Raises:
    OptionError: the local method has one global model, or the grouping reads
      what a link changes.
  """
  client, grouping = method.client, method.grouping
  if method.num_models > 1 and client.one_model:
    raise OptionError(
      f"`num_models`={method.num_models}: the local method has "
      f"one global model ({client.one_model}; allowed: 1)"
    )
  if client.record:
    raise OptionError(
      f"`num_models`={method.num_models}: the local method records the mean update of "
      "one model (allowed: 1)"
    )
  if grouping.own_anchors and not method.exchange.can_stream:
    raise OptionError(
      "`anchors`=preferring: read with the mean of what clients have measured"
      " (`aggregator`=mean, no forged gradients)"
    )
  reasons = {
    "private": "participants are grouped by what they send without noise",
    "client_weights": "weights by losses are those of one global model",
  }
  if grouping.of_gradients:
    reasons["compress_up"] = (
      "the participants of a grouping by gradient send gradients, not updates"
    )
  if grouping.extra_up:
    reasons["attack"] = (
      "forges one vector of a client, and with `group_mean`="
      "models it sends two (label_flip forges none)"
    )
  return reasons


def deploy_preferred(
  model: Model,
  models_of: Callable[[ComposedState], Params],
  state: ComposedState,
  client_id: Array,
  shard: Shard,
  key: Key,
) -> Params:
  """The model that a client prefers, (18), with the server's statistics.

  Args:
    model: the model.
    models_of: state -> the K models that are deployed, [K, ...].
    state: the state.
    client_id: the client; not read.
    shard: its data.
    key: not read.
  """
  models = models_of(state)
  if jax.tree.leaves(state.states):
    shard = shard._replace(state=state.states)
  return trees.index(
    with_states(model, models, state.states),
    objective.preferred_model(model, models, shard),
  )


class RoundInputs(NamedTuple):
  """Inputs that all parts of a round read."""

  cohort: Cohort
  key: Key  #: key of the round
  round: Array  #: [] int32, rounds completed before this one
  #: [] bool, whether the K models are one, in copies; None: there is one
  warm_up: Any
  last: Mapping[str, Any]  #: ``ComposedState.aggregates``


def run_k_models(
  method: KModels, state: ComposedState, cohort: Cohort, key: Key
) -> tuple[ComposedState, RoundAux]:
  """Runs a round; the arguments are those of ``one_model.run_round``."""
  client, server = method.client, method.server
  grouping, k = method.grouping, method.num_models
  warm_up = state.round < grouping.threshold if k > 1 else None
  inputs = RoundInputs(cohort, key, state.round, warm_up, state.aggregates)
  models, servers, new = state.models, state.server, {}
  step = steps_of_models(
    method, cohort, state.round, key, functools.partial(_over_models, k=k)
  )

  losses, anchors, new["first_gradients"] = _losses(method, models, inputs)
  preference, loss = _preference(losses, inputs)
  starts = models
  if server.when == "before":
    starts, servers = step(anchors, servers, models)

  training = train(
    client,
    method.map_clients,
    (starts, models, anchors),
    state.round,
    state.memory,
    cohort,
    key,
    preference,
  )
  if loss is None:
    loss = training.trained.loss
  elif not method.measures_anchor:  # in the warm-up there was no measurement
    assert warm_up is not None
    loss = jnp.where(warm_up, training.trained.loss, loss)
  attach = functools.partial(attach_new_leaves, client, state.memory, training)
  at_end = inputs
  if grouping.of_gradients and client.personal is not None:
    at_end = inputs._replace(cohort=attach((), cohort, method.map_clients))
  trained, vectors = _receive(method, training.trained, starts, preference, at_end)
  update, groups, new["updates"] = _updates(
    method, models, starts, anchors, state.memory, vectors, inputs
  )
  mean_squares = None
  if server.needs_mean_square:
    mean_squares = _mean_squares(method, starts, state.memory, vectors, groups, inputs)
  states = state.states
  if jax.tree.leaves(states):
    states = mean_statistics(
      states, training.trained.leaves.state, cohort, groups.assignment
    )

  if server.when == "aggregate":
    new_models, servers = step(trees.scale(-1.0, update), servers, starts, mean_squares)
  else:
    new_models = trees.add_scaled(starts, server.aggregate_lr, update)
  # Distance to the new models of this round (errata F-26).
  gap = trees.slot_norm(trees.subtract(trained, trees.index(new_models, preference)))
  discrepancy = trees.slot_mean(cohort.present.astype(jnp.float32), gap)
  if server.when == "after":
    if jax.tree.leaves(states) or client.personal is not None:
      cohort = attach(states, cohort, method.map_clients, k)
    _, gradients, new["last_gradients"] = anchor_gradients(
      method, "last_gradients", new_models, inputs._replace(cohort=cohort)
    )
    new_models, servers = step(gradients, servers, new_models)

  report = _report(method, loss, groups, servers, inputs)
  cost, work = _costs(method, servers, training.trained.gradients, state.memory, inputs)
  memory = training.merge(client, state.memory, inputs.cohort, anchors)
  new_models, servers, aggregates, states = _broadcast_first_model(
    warm_up,
    (new_models, servers, {name: new[name] for name in state.aggregates}, states),
  )
  return ComposedState(
    new_models, servers, memory, state.round + 1, aggregates, states
  ), RoundAux(
    {"loss": loss, "preference": preference, "assignment": groups.assignment},
    report | {"discrepancy": discrepancy},
    cost,
    work,
  )


def _broadcast_first_model(warm_up: PyTree, per_model: PyTree) -> Any:
  """Leaves [K, ...]; during the warm-up copies of the first model's."""
  if warm_up is None:
    return per_model
  # No jnp.where: fused with what made the leaves it would compute them twice.
  return jax.lax.cond(
    warm_up,
    lambda: jax.tree.map(
      lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), per_model
    ),
    lambda: per_model,
  )


def _over_models(fn: Callable[..., PyTree], k: int) -> Callable[..., Any]:
  """``fn`` over a leading axis K; with K = 1 it is not vectorized."""
  if k > 1:
    return jax.vmap(fn)
  return lambda *args: jax.tree.map(lambda leaf: leaf[None], fn(*trees.index(args, 0)))


def _over_data(
  k: int,
  fn: Callable[[Params, Shard], object],
  in_warm_up: Callable[[Params, Shard], object] | None = None,
) -> Callable[..., Any]:
  """A client's code ((models, warm_up), shard[, key]) -> [K, ...].

  It is ``fn`` at each of the K models; during the warm-up ``in_warm_up``, by
  default ``fn``, at the first of them.
  """

  def one_client(shared, shard, key=None):
    models, warm_up = shared
    at_all = functools.partial(
      _over_models(lambda params, state: fn(params, shard._replace(state=state)), k),
      models,
      shard.state,
    )
    if warm_up is None:
      return at_all()
    at_one, first = in_warm_up or fn, shard._replace(state=trees.index(shard.state, 0))
    return jax.lax.cond(
      warm_up, lambda: trees.repeat(at_one(trees.index(models, 0), first), k), at_all
    )

  return one_client


def _losses(
  method: KModels, models: Params, inputs: RoundInputs
) -> tuple[Any, Params, Any]:
  """The losses [S, K] or None, anchor gradients [K, ...] or (), and kept."""
  if method.measures_anchor:
    # The mean in (17) is over S^r here. It cannot be over S^{r-1}, whose
    # members never receive the accelerated models. Every participant counts for
    # every k (errata D-06).
    return anchor_gradients(method, "first_gradients", models, inputs)
  if method.num_models == 1:
    return None, (), None
  return (
    method.map_clients(
      _over_data(
        method.num_models,
        functools.partial(objective.full_loss, method.model),
        lambda params, shard: jnp.zeros(()),
      ),
      (models, inputs.warm_up),
      inputs.cohort.shards,
    ),
    (),
    None,
  )


def anchor_gradients(
  method: KModels, name: str, models: Params, inputs: RoundInputs
) -> tuple[Array, Params, PyTree]:
  """The participants' losses [S, K], the anchor gradients [K, ...], and kept.

  The last is what the aggregator keeps, [K, ...].
  """
  cohort, k, exchange = inputs.cohort, method.num_models, method.exchange
  measure = _over_data(
    k, functools.partial(objective.full_value_and_grad, method.model)
  )
  if exchange.compress_gradients:
    send = exchange.compress_gradients.sender(method.map_clients.carrier)
    measure = _with_compression(measure, send, k)
  if method.grouping.own_anchors:
    measure = _of_preferred(measure)
  shared, keys = (
    (models, inputs.warm_up),
    client_keys(
      server_key(server_key(inputs.key, MESSAGES), PURPOSES[name]), cohort.ids
    ),
  )
  if not exchange.can_stream:
    losses, gradients = method.map_clients(measure, shared, cohort.shards, keys)
    return losses, *combine_gradients(
      method, name, gradients, cohort, inputs.key, inputs.last
    )
  anchors, losses = stacking.mean(
    method.map_clients,
    lambda *args: measure(*args)[::-1],
    models,
    exchange.weigh(cohort),
    shared,
    cohort.shards,
    keys,
  )
  if method.grouping.own_anchors:
    anchors = _over_those_who_prefer(method, anchors, losses, inputs)
  return losses, anchors, None


def _with_compression(
  measure: Callable[..., Any], send: Callable[..., Any], k: int
) -> Callable[..., Any]:
  """A client's code that sends its K gradients compressed, with one key."""

  def one_client(shared, shard, key):
    losses, gradients = measure(shared, shard, key)
    compress = lambda gradient: send(gradient, (), key)[0]
    return losses, _over_models(compress, k)(gradients)

  return one_client


def _of_preferred(measure: Callable[..., Any]) -> Callable[..., Any]:
  """A client's code whose gradients are 0 but at the model it prefers."""

  def one_client(shared, shard, key):
    losses, gradients = measure(shared, shard, key)
    _, warm_up = shared
    best = jnp.where(warm_up, 0, jnp.argmin(losses))
    preferred = jnp.arange(losses.shape[0]) == best
    return losses, trees.where_slots(
      preferred, gradients, jax.tree.map(jnp.zeros_like, gradients)
    )

  return one_client


def _over_those_who_prefer(
  method: KModels, anchors: Params, losses: Array, inputs: RoundInputs
) -> Params:
  """Means over all made means over those who prefer a model; else 0."""
  weights = method.exchange.weigh(inputs.cohort)
  preference, _ = _preference(losses, inputs)
  share = jax.vmap(lambda in_group: jnp.where(in_group, weights, 0.0).sum())(
    trees.members(preference, method.num_models)
  ) / jnp.maximum(weights.sum(), 1e-30)
  return trees.scale_slots(1.0 / jnp.where(share > 0, share, 1.0), anchors)


def _preference(
  losses: Array | None, inputs: RoundInputs
) -> tuple[Array, Array | None]:
  """Each participant's model of least loss, and that loss; None: unmeasured.

  During the warm-up it is the first one.
  """
  preference = jnp.zeros(inputs.cohort.ids.shape, jnp.int32)
  if losses is None:
    return preference, None
  if inputs.warm_up is not None:
    best = jnp.argmin(losses, axis=1).astype(jnp.int32)
    preference = jnp.where(inputs.warm_up, preference, best)
  loss = jnp.take_along_axis(losses, preference[:, None], axis=1)[:, 0]
  return preference, loss


def _receive(
  method: KModels,
  result: Trained,
  starts: Params,
  preference: Array,
  inputs: RoundInputs,
) -> tuple[Params, Params]:
  """The trained models and the vectors that are grouped, with what is forged.

  Hostile clients forge the gradients that they send, or their updates.
  """
  grouping, exchange, cohort = method.grouping, method.exchange, inputs.cohort
  trained: Params = result.params
  if jax.tree.leaves(result.leaves.state):
    shards = cohort.shards._replace(state=result.leaves.state)
    cohort = cohort._replace(shards=shards)
  receive = functools.partial(
    exchange.receive,
    cohort=cohort,
    key=server_key(server_key(inputs.key, FORGERIES), UPDATES),
    weights=cohort.present.astype(jnp.float32),
    groups=preference,
    num_groups=method.num_models,
  )
  vectors = grouping.vectors
  if not exchange.forges:
    return trained, vectors(trained, cohort)
  if grouping.of_gradients:
    return trained, receive(vectors(trained, cohort))
  start = trees.index(starts, preference)
  trained = trees.add(start, receive(trees.subtract(trained, start)))
  return trained, vectors(trained, cohort)


def _updates(
  method: KModels,
  models: Params,
  starts: Params,
  anchors: Params,
  memory: PyTree,
  vectors: Params,
  inputs: RoundInputs,
) -> tuple[Params, Any, Any]:
  """The updates of the K models, the groups, and what the aggregator keeps."""
  cohort, k, grouping = inputs.cohort, method.num_models, method.grouping
  exchange, aggregate = method.exchange, None
  scale = functools.partial(method.client.scale, memory, cohort)
  # Round T + 1, the first after the warm-up, splits the copies; if nobody took
  # part in it, they are still copies in the next one.
  splitting = inputs.round == grouping.threshold
  if k > 1:
    splitting |= (inputs.round > grouping.threshold) & trees.copies(models)
  targets, groups = grouping.regroup(
    starts, vectors, anchors, cohort, Stage(inputs.warm_up, splitting), scale
  )
  if not exchange.aggregator.is_mean:

    def change(start, weights, key, last):
      return exchange.combine(
        grouping.changes(start, vectors, scale), weights, cohort, key, last
      )

    members = trees.members(groups.assignment, k) & cohort.present[None]
    changes, aggregate = _over_models(change, k)(
      starts,
      members.astype(jnp.float32),  # in a group all count alike
      server_keys(inputs.key, UPDATES, k),
      inputs.last.get("updates"),
    )
    targets = trees.add(starts, changes)
  # An empty group takes no grouping step (errata D-13).
  targets = trees.where_slots(groups.size > 0, targets, starts)
  update = _over_models(scale, k)(trees.subtract(targets, starts))  # (60)
  return update, groups, aggregate


def _mean_squares(
  method: KModels,
  starts: Params,
  memory: PyTree,
  vectors: Params,
  groups: Any,
  inputs: RoundInputs,
) -> Array:
  """Computes the mean of the squared updates of each group, [K] float32."""
  k, cohort = method.num_models, inputs.cohort
  scale = functools.partial(method.client.scale, memory, cohort)

  def of_model(start, members):
    changes = method.grouping.changes(start, vectors, scale)
    return trees.slot_mean(members, trees.slot_norm(changes) ** 2)

  members = trees.members(groups.assignment, k) & cohort.present[None]
  squares: Array = _over_models(of_model, k)(starts, members.astype(jnp.float32))
  return squares


def _report(
  method: KModels, loss: Array, groups: Any, servers: PyTree, inputs: RoundInputs
) -> dict[str, Array]:
  """Reports on the server after a round."""
  k, aggregator = method.num_models, method.exchange.aggregator
  report = {"train_loss": trees.slot_mean(inputs.cohort.weight, loss)}
  if jax.tree.leaves(servers):  # without leaves vmap has no axis
    for name, values in jax.vmap(method.server.report)(servers).items():
      report[name] = values if k > 1 else values[0]
  report["group_size"] = groups.size
  if inputs.warm_up is not None:  # logs one model in the shape of K models
    first = ~inputs.warm_up | (jnp.arange(k, dtype=jnp.int32) == 0)
    report = {
      name: jnp.where(first, value, jnp.zeros_like(value)) if value.ndim else value
      for name, value in report.items()
    }
  return report | aggregator.report(trees.index(inputs.last.get("updates"), 0))


def _costs(
  method: KModels,
  servers: PyTree,
  gradients: PyTree,
  memory: PyTree,
  inputs: RoundInputs,
) -> tuple[RoundCost, Work]:
  """The cost of the round, and the work of each participant.

  A participant also sends the model that it prefers. Forward passes for the
  preference alone do not count as example gradients.
  """
  grouping, cohort = method.grouping, inputs.cohort
  size, slots = num_params(method.params), cohort.ids.shape[0]

  k, measures = method.num_models, method.num_models > 1 and not method.measures_anchor
  count = functools.partial(
    costs,
    method,
    cohort,
    memory,
    gradients,
    passes=grouping.full_passes,
    more_up=BYTES_PER_FLOAT * (1 + size * grouping.extra_up),
  )
  of_all = count(
    servers,
    k=k,
    evaluations=k if measures else 0,
    flops=grouping.flops(slots, size, k),
  )
  if inputs.warm_up is None:
    return of_all
  of_one = count(
    trees.index(servers, slice(0, 1)), flops=grouping.flops(slots, size, 1)
  )
  both: list[tuple[RoundCost, Work]] = [of_one, of_all]
  is_whole = [(cost.bytes_down is None, cost.bytes_up is None) for cost, _ in both]
  if is_whole[0] != is_whole[1]:
    both = list(_with_same_bytes(*both))
  result: tuple[RoundCost, Work] = trees.where(inputs.warm_up, *both)
  return result


def _with_same_bytes(
  *costs_and_work: tuple[RoundCost, Work],
) -> Iterator[tuple[RoundCost, Work]]:
  """Costs of which all have the bytes that one of them has."""
  for cost, work in costs_and_work:
    for way in ("down", "up"):
      name = f"bytes_{way}"
      if getattr(cost, name) is None and any(
        getattr(any_cost, name) is not None for any_cost, _ in costs_and_work
      ):
        num_bytes: Any = {name: BYTES_PER_FLOAT * getattr(cost, way).astype(jnp.uint32)}
        cost = cost._replace(**num_bytes)
    yield cost, work
