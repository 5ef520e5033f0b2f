"""The phases of a round of ``two_halves``: begin, train and update.

They work on all K models, leaves [K, ...], in every round. During the warm-up
the K models are equal copies: what costs a pass over data is computed for the
first of them alone, and at the end of the round it is copied (``together``).
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_alg import trees
from fedjax_alg.base import Array, Cohort, Key, MapClients, Model, Params
from fedjax_alg.base import Shard
from fedjax_alg.central.aggregation import Aggregator
from fedjax_alg.central.attacks import Attack, forged, forges
from fedjax_alg.central.steps import ServerStep
from fedjax_alg.central.validation import validation_arguments
from fedjax_alg.client import objective
from fedjax_alg.client.compression import Compressor
from fedjax_alg.client.update import ClientUpdate, Received, Trained
from fedjax_alg.engine.keys import client_keys, FIRST_GRADIENTS, FORGERIES
from fedjax_alg.engine.keys import LAST_GRADIENTS, MESSAGES, server_key
from fedjax_alg.engine.keys import SERVER_STEP, UPDATES
from fedjax_alg.errors import OptionError
from fedjax_alg.rounds import stacking


def check_mean(
    client: ClientUpdate, aggregator: Aggregator, attack: Attack | None
) -> None:
  """Refuses what would take the place of a mean that a local method needs.

  Raises:
    OptionError: ``client.mean_only``, and there is something.
  """
  if client.mean_only and not aggregator.is_mean:
    raise OptionError(f"`aggregator`={aggregator.name}: the local method needs "
                      f"the mean ({client.mean_only})")
  if client.mean_only and attack is not None and forges(attack):
    raise OptionError(f"`attack`={attack.name}: the local method's server adds "
                      "up what clients have computed, so their updates cannot "
                      "be forged (label_flip leaves them)")


class Stage(NamedTuple):
  """Where K models stand between one model and K groups."""

  #: [] bool, whether all participants are one group, the first: the warm-up.
  #: None: there is one model.
  together: Any
  #: [] bool, whether the K models are equal copies that become different
  splitting: Array


class ModelGrouping(NamedTuple):
  """How K models share a cohort from round ``threshold`` + 1 on."""

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
      lambda model, vectors, scale: jax.tree.map(
          lambda all, one: all - one[None], vectors, model))
  #: whether the anchor gradient of w_k is the mean over those alone who prefer
  #: w_k, and not over all participants
  own_anchors: bool = False
  extra_up: int = 0  #: vectors that a participant sends beside its gradient


@dataclasses.dataclass(frozen=True)
class TwoHalves:
  """The arguments of ``compose``."""

  model: Model
  client: ClientUpdate
  server: ServerStep
  map_clients: MapClients
  #: cohort -> weights of the participants in every mean, [S]
  weigh: Callable[[Cohort], Array]
  grouping: ModelGrouping | None  #: None for one model
  aggregator: Aggregator
  attack: Attack | None = None  #: what hostile participants do
  #: how anchor gradients are sent; None: whole
  compress_gradients: Compressor | None = None
  compress_down: Compressor | None = None  #: how models are; None: whole

  @property
  def num_models(self) -> int:
    """K, the number of global models."""
    return self.grouping.num_models if self.grouping else 1

  @property
  def anchored(self) -> bool:
    """Whether a round starts with the anchor gradient."""
    return self.client.needs_anchor or self.server.when == "before"

  @property
  def released(self) -> tuple[int, ...]:
    """What is aggregated in a round, some of ``AGGREGATED``."""
    return (UPDATES, *((FIRST_GRADIENTS,) if self.anchored else ()), *(
        (LAST_GRADIENTS,) if self.server.when == "after" else ()))

  @property
  def sums(self) -> bool:
    """Whether the sum of what participants send is enough."""
    return self.aggregator.is_mean and not forges(self.attack)


class Turn(NamedTuple):
  """What a round is played with."""

  cohort: Cohort
  key: Key  #: key of the round
  round: Array  #: [] int32, rounds completed before this one
  #: [] bool, whether the K models are one, in copies; None: there is one
  warm_up: Any
  #: what an aggregator keeps (``Aggregator.keeps``), purpose (``AGGREGATED``)
  #: -> [K, ...]; empty if it keeps nothing
  last: Mapping[str, Any]

  def kept(self, purpose: int) -> tuple[Any, ...]:
    """The last argument of ``Aggregator.combined``, [K, ...]."""
    return (self.last[AGGREGATED[purpose]],) if self.last else ()


#: What is aggregated in a round, by the purpose of the key (``server_key``).
AGGREGATED = {UPDATES: "updates", FIRST_GRADIENTS: "first_gradients",
              LAST_GRADIENTS: "last_gradients"}


def first_kept(method: TwoHalves, models: Params) -> dict[str, Any]:
  """What an aggregator keeps at the start, see ``Turn.last``."""
  if not method.aggregator.keeps:
    return {}
  kept = jax.vmap(method.aggregator.keeps)(models)
  return {AGGREGATED[purpose]: kept for purpose in method.released}


class Beginning(NamedTuple):
  """The models from which the participants train."""

  models: Params  #: [K, ...], w_k, at which anchor gradients are measured
  starts: Params  #: [K, ...], where training starts: w_k, moved by the server
  anchors: Params  #: [K, ...], mean gradients at ``models``, or ()
  server: Any  #: [K, ...], state of the server step
  kept: tuple[Any, ...] = ()  #: what the aggregator keeps of ``anchors``


class Updates(NamedTuple):
  """The updates of which only their sum was kept (``rounds.stacking``)."""

  mean: Params = ()  #: weighted mean of the updates, [...]
  #: [S] float32, squared norm of each update; None: the trained models were
  #: kept
  squares: Any = None


class Kept(NamedTuple):
  """What a round leaves to the client half's memory."""

  table: Any = ()  #: the new table of ``ClientUpdate.store``, or ()
  #: what ``ClientUpdate.merge`` gets: the sum of the uploads or all of them
  uploads: Any = ()


class Choice(NamedTuple):
  """The model that each participant prefers."""

  preference: Array  #: [S] int32; 0 with one model
  loss: Any  #: [S] float32, loss of the preferred model; None: not measured


def together(turn: Turn, per_model: Any) -> Any:
  """Leaves [K, ...]; during the warm-up copies of the first model's."""
  if turn.warm_up is None:
    return per_model
  # No jnp.where: fused with what made the leaves it would compute them twice.
  return jax.lax.cond(
      turn.warm_up, lambda: jax.tree.map(
          lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), per_model),
      lambda: per_model)


def _over_data(
    k: int, fn: Callable[[Params, Shard], Any],
    in_warm_up: Callable[[Params, Shard], Any] | None = None
) -> Callable[..., Any]:
  """A client's code ((models, warm_up), shard) -> [K, ...].

  It is ``fn`` at each of the K models; during the warm-up ``in_warm_up``, by
  default ``fn``, at the first of them.
  """

  def one_client(shared, shard):
    models, warm_up = shared
    at_all = functools.partial(
        _over_models(lambda params: fn(params, shard), k), models)
    if warm_up is None:
      return at_all()
    at_one = in_warm_up or fn
    return jax.lax.cond(
        warm_up,
        lambda: trees.repeat(at_one(trees.index(models, 0), shard), k), at_all)

  return one_client


def _over_models(fn: Callable[..., Any], k: int) -> Callable[..., Any]:
  """``fn`` over a leading axis K; with K = 1 it is not vectorised."""
  if k > 1:
    return jax.vmap(fn)
  return lambda *args: jax.tree.map(
      lambda leaf: leaf[None], fn(*trees.index(args, 0)))


def begin(
    method: TwoHalves, models: Params, server_state: Any, turn: Turn
) -> tuple[Beginning, Choice]:
  """Anchor gradients and preferences, and the "before" step, of K models."""
  anchors: Any = ()
  kept: tuple[Any, ...] = ()
  losses = None
  if method.anchored:
    # The mean in (17) is over S^r here. It cannot be over S^{r-1}, whose
    # members never receive the accelerated models. Every participant counts for
    # every k (errata D-06).
    losses, anchors, kept = anchor(method, FIRST_GRADIENTS, models, turn)
  elif method.num_models > 1:
    losses = method.map_clients(
        _over_data(
            method.num_models,
            functools.partial(objective.full_loss, method.model),
            lambda params, shard: jnp.zeros(())),
        (models, turn.warm_up), turn.cohort.shards)
  choice = _choose(losses, turn)
  starts = models
  if method.server.when == "before":
    starts, server_state = server_step(
        method, anchors, server_state, models, turn)
  return Beginning(models, starts, anchors, server_state, kept), choice


def anchor(
    method: TwoHalves, purpose: int, models: Params, turn: Turn
) -> tuple[Array, Params, tuple[Any, ...]]:
  """The participants' losses [S, K], the anchor gradients [K, ...], and kept.

  The last is what the aggregator keeps, [K, ...].
  """
  cohort, shared = turn.cohort, (models, turn.warm_up)
  one_client = _over_data(method.num_models, functools.partial(
      objective.full_value_and_grad, method.model))
  own = method.grouping is not None and method.grouping.own_anchors
  args: tuple[Any, ...] = ()
  compressor = method.compress_gradients
  if compressor:
    one_client = _compressed(one_client, compressor, method.num_models)
    key = server_key(server_key(turn.key, MESSAGES), purpose)
    args = (client_keys(key, cohort.ids),)
  if method.sums:
    measure = _of_preferred(one_client) if own else one_client
    anchors, losses = stacking.mean(
        method.map_clients, lambda *args: measure(*args)[::-1], models,
        method.weigh(cohort), shared, cohort.shards, *args)
    if own:
      anchors = _shared_out(method, anchors, losses, turn)
    return losses, anchors, ()
  losses, gradients = method.map_clients(
      one_client, shared, cohort.shards, *args)
  return losses, *_aggregate(method, purpose, gradients, turn)


def _of_preferred(measure: Callable[..., Any]) -> Callable[..., Any]:
  """A client's code whose gradients are 0 but at the model it prefers."""

  def one_client(shared, shard, *args):
    losses, gradients = measure(shared, shard, *args)
    _, warm_up = shared
    best = jnp.where(warm_up, 0, jnp.argmin(losses))
    own = jnp.arange(losses.shape[0]) == best
    return losses, trees.where_slots(
        own, gradients, jax.tree.map(jnp.zeros_like, gradients))

  return one_client


def _shared_out(
    method: TwoHalves, anchors: Params, losses: Array, turn: Turn) -> Params:
  """Means over all made means over those who prefer a model.

  Where nobody does, it is 0.
  """
  weights, k = method.weigh(turn.cohort), method.num_models
  preference = _choose(losses, turn).preference
  share = jax.vmap(lambda own: jnp.where(own, weights, 0.0).sum())(
      trees.members(preference, k)) / jnp.maximum(weights.sum(), 1e-30)
  return trees.scale_slots(1.0 / jnp.where(share > 0, share, 1.0), anchors)


def _compressed(
    measure: Callable[..., Any], compressor: Compressor, k: int
) -> Callable[..., Any]:
  """A client's code that sends its K gradients compressed, with one key."""

  def one_client(shared, shard, key):
    losses, gradients = measure(shared, shard)
    return losses, _over_models(
        lambda gradient: compressor.send(gradient, (), key)[0], k)(gradients)

  return one_client


def _aggregate(
    method: TwoHalves, purpose: int, sent: Params, turn: Turn
) -> tuple[Params, tuple[Any, ...]]:
  """Aggregates [K, ...] of what participants sent for K models [S, K, ...]."""
  weights, cohort = method.weigh(turn.cohort), turn.cohort

  def one(of_model, key, last):
    if method.attack is not None and forges(method.attack):
      of_model = forged(
          method.attack, of_model, weights,
          jnp.zeros(cohort.ids.shape, jnp.int32), 1, cohort,
          client_keys(server_key(key, FORGERIES), cohort.ids))
    return method.aggregator.combined(of_model, weights, cohort, key, last)

  return jax.vmap(one, in_axes=(1, 0, 0))(
      sent, keys_of(turn, purpose, method.num_models), turn.kept(purpose))


def received(
    method: TwoHalves, sent: Params, starts: Params | None, choice: Choice,
    turn: Turn) -> Params:
  """What the server receives in the place of ``sent`` from hostile clients.

  Args:
    method: the method.
    sent: [S, ...], the participants' trained models or gradients.
    starts: [K, ...], the models of which they are changed copies; None if they
      are changes themselves.
    choice: which of the K models each participant trained.
    turn: what the round is played with.
  """
  if method.attack is None or not forges(method.attack):
    return sent
  cohort, groups = turn.cohort, choice.preference
  weights = cohort.present.astype(jnp.float32) if method.grouping else (
      method.weigh(cohort))
  key = server_key(server_key(turn.key, FORGERIES), UPDATES)
  change = functools.partial(
      forged, method.attack, weights=weights, groups=groups,
      num_groups=method.num_models, cohort=cohort,
      keys=client_keys(key, cohort.ids))
  if starts is None:
    return change(sent)
  start = trees.index(starts, groups)
  return trees.add(start, change(trees.subtract(sent, start)))


def _choose(losses: Array | None, turn: Turn) -> Choice:
  """Each participant's model of least loss; the first during the warm-up."""
  preference = jnp.zeros(turn.cohort.ids.shape, jnp.int32)
  if losses is None:  # there is one model, whose loss was not measured
    return Choice(preference, None)
  if turn.warm_up is not None:
    best = jnp.argmin(losses, axis=1).astype(jnp.int32)
    preference = jnp.where(turn.warm_up, preference, best)
  loss = jnp.take_along_axis(losses, preference[:, None], axis=1)[:, 0]
  return Choice(preference, loss)


def server_step(
    method: TwoHalves, gradients: Params, state: Any, models: Params, turn: Turn
) -> tuple[Params, Any]:
  """Takes the server's step for each model: (moved models, new state)."""
  transform = optax.with_extra_args_support(method.server.transform)
  extra: dict[str, Any] = {"round": turn.round}
  if method.server.needs_validation:
    extra |= validation_arguments(
        method.model, turn.cohort.validation, method.map_clients)

  def one(gradient, state, params, key):
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
      updates, state = transform.update(
          gradient, state, params, grad=gradient, key=key, **extra)
    return optax.apply_updates(params, updates), state

  k = method.num_models
  return _over_models(one, k)(
      gradients, state, models, keys_of(turn, SERVER_STEP, k))


def keys_of(turn: Turn, purpose: int, k: int) -> Key:
  """A key of the server for each of K models, [K]."""
  return client_keys(
      server_key(turn.key, purpose), jnp.arange(k, dtype=jnp.int32))


def train(
    method: TwoHalves, beginning: Beginning, choice: Choice, memory: Any,
    turn: Turn) -> tuple[Trained, Updates, Kept]:
  """Local training of every participant, leaves [S, ...], and the updates.

  Where the mean of the updates is enough, the trained models are (), and what
  is summed or kept of the rest is not stacked.
  """
  client, cohort = method.client, turn.cohort
  store, weigh_uploads = client.store, client.upload_weights

  def one_client(
      shared, shard, client_row, preference, client_id, key, part, *more):
    shard = shard._replace(part=part)
    beginning, extra, rounds = shared
    pick = preference if method.num_models > 1 else 0
    models, starts, anchors = trees.index(beginning, pick)
    return client.trained(
        Received(starts, models, anchors, extra, rounds, client_id), shard,
        (client_row, *more) if more else client_row, key)

  def and_keep(*args):
    trained = one_client(*args)
    return trained.kept, trained._replace(kept=())

  def in_sum(shared, shard, client_row, *args):
    trained = one_client(shared, shard, client_row, *args)
    _, starts, _ = trees.index(shared[0], 0)
    update = trees.subtract(trained.params, starts)
    kept: Any = trained.kept
    summed: Any = (update,)
    trained = trained._replace(params=(), kept=())
    if weigh_uploads:
      summed = (update, trained.upload)
      trained = trained._replace(upload=())
    return kept, summed, (trained, stacking.square(update))

  keys = client_keys(turn.key, cohort.ids)
  shared = beginning[:3], client.shared(memory), turn.round
  others: tuple[Any, ...] = choice.preference, cohort.ids, keys, cohort.part
  table: Any = ()
  if store:
    table, places = store.get(memory), store.places(memory, cohort, keys)
    more = client.client_rows(memory, cohort, keys)
    others += (more,) if jax.tree.leaves(more) else ()
  if method.grouping or not method.sums or stacking.fits(
      cohort.ids.shape[0], trees.index(beginning.starts, 0)):
    if store:
      table, trained = method.map_clients.change(
          and_keep, store.write, table, places, shared, cohort.shards, *others)
    else:
      trained = method.map_clients(
          one_client, shared, cohort.shards,
          client.client_rows(memory, cohort, keys), *others)
    uploads = trained.upload
    if weigh_uploads:
      uploads = trees.slot_sum(weigh_uploads(memory, cohort), uploads)
    return trained, Updates(), Kept(table, uploads)
  weights: Any = (stacking.shares(method.weigh(cohort)),)
  if weigh_uploads:
    weights += (weigh_uploads(memory, cohort),)
  if store:
    table, summed, (trained, squares) = method.map_clients.update(
        in_sum, store.write, table, places, weights, shared, cohort.shards,
        *others)
  else:
    summed, (trained, squares) = method.map_clients.reduce(
        lambda *args: in_sum(*args)[1:], weights, shared, cohort.shards,
        client.client_rows(memory, cohort, keys), *others)
  uploads = summed[1] if weigh_uploads else trained.upload
  return trained, Updates(summed[0], squares), Kept(table, uploads)


def remember(
    method: TwoHalves, memory: Any, kept: Kept, anchors: Any, turn: Turn
) -> Any:
  """The client half's memory after the round."""
  client = method.client
  memory = client.merge(memory, turn.cohort, kept.uploads, anchors)
  return client.store.put(memory, kept.table) if client.store else memory


def update(
    method: TwoHalves, beginning: Beginning, memory: Any, trained: Params,
    updates: Updates, vectors: Params, turn: Turn
) -> tuple[Params, Any, tuple[Any, ...]]:
  """The updates of the K models, the groups or None, and kept.

  The last is what the aggregator keeps, [K, ...].
  """
  kept: tuple[Any, ...] = ()
  cohort, k = turn.cohort, method.num_models
  scale = functools.partial(method.client.scale, memory, cohort)
  starts, groups = beginning.starts, None
  if method.grouping:
    # Round T + 1, the first after the warm-up, splits the copies; if nobody
    # took part in it, they are still copies in the next one.
    splitting = turn.round == method.grouping.threshold
    if k > 1:
      splitting |= (turn.round > method.grouping.threshold) & trees.copies(
          beginning.models)
    target, groups = method.grouping.regroup(
        starts, vectors, beginning.anchors, cohort,
        Stage(turn.warm_up, splitting), scale)
    if not method.aggregator.is_mean:
      changes, kept = _changes_of_groups(
          method, starts, vectors, groups, scale, turn)
      target = trees.add(starts, changes)
    # An empty group takes no grouping step (errata D-13).
    target = trees.where_slots(groups.size > 0, target, starts)
    update = trees.subtract(target, starts)
  else:
    mean = updates.mean
    if updates.squares is None:
      mean, kept = method.aggregator.combined(
          trees.subtract(trained, starts), method.weigh(cohort), cohort,
          keys_of(turn, UPDATES, 1)[0], trees.index(turn.kept(UPDATES), 0))
      kept = jax.tree.map(lambda leaf: leaf[None], kept)
    update = jax.tree.map(lambda leaf: leaf[None], mean)
  return _over_models(scale, k)(update), groups, kept  # (60)


def _changes_of_groups(
    method: TwoHalves, starts: Params, vectors: Params, groups: Any,
    scale: Callable[[Params], Params], turn: Turn
) -> tuple[Params, tuple[Any, ...]]:
  """The aggregates of the K groups [K, ...]; in a group all count alike."""
  assert method.grouping is not None
  changes, cohort, k = method.grouping.changes, turn.cohort, method.num_models
  weights = (trees.members(groups.assignment, k) & cohort.present[None]).astype(
      jnp.float32)

  def one(start, weights, key, last):
    return method.aggregator.combined(
        changes(start, vectors, scale), weights, cohort, key, last)

  return _over_models(one, k)(
      starts, weights, keys_of(turn, UPDATES, k), turn.kept(UPDATES))


def discrepancy(
    method: TwoHalves, models: Params, starts: Params, trained: Params,
    updates: Updates, preference: Array, groups: Any, cohort: Cohort
) -> dict[str, Array]:
  """How far the trained models are from their aggregate of this round.

  The aggregate is that of this round (errata F-26).

  Returns:
    "discrepancy", the mean distance (FedGroup (4)); where the updates were not
    kept, "discrepancy_rms", the root of the mean squared distance, in which
    participants have the weights that they have in the mean.
  """
  if updates.squares is not None:
    weights = method.weigh(cohort)
    return {"discrepancy_rms": stacking.spread(
        weights, updates.squares, trees.subtract(models, starts),
        jax.tree.map(lambda leaf: leaf[None], updates.mean),
        weights.sum()[None], weights.sum()[None])}
  if groups is None:  # one model: distances are between updates
    gap = trees.subtract(
        trees.subtract(trained, starts), trees.subtract(models, starts))
  else:
    gap = trees.subtract(trained, trees.index(models, preference))
  return {"discrepancy": trees.slot_mean(
      cohort.present.astype(jnp.float32), trees.slot_norm(gap))}
