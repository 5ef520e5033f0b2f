"""One round of clustered federated learning, for any rule of grouping.

A clustered method keeps K models, one for each group. Every participant belongs
to one group and trains from the group's model. Each model moves by the mean
update of the group's participants; the model of a group without participants
stays as it is. The methods differ in a ``Rule``, which says which client
belongs to which group, and when that is decided.

A round has these steps. Those with a name are functions of the rule, and a rule
may leave out all of them but ``assign``:

  1. ``before``: a step that involves all clients (FL+HC's clustering);
  2. ``assign``: finds every participant's group from its training data;
  3. local training from the group's model;
  4. ``regroup``: the server changes groups by the updates it received (CFL);
  5. every model moves by the mean update of its group, or by what an
     ``aggregation.Aggregator`` puts in its place;
  6. ``finish``: the server changes the new models (FedGroup's inter-group step)
     or stores something for later rounds (FeSEM's local models).
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Algorithm, Array, Cohort, FedSpec, Key, MapClients
from fedjax_alg.base import Model, Params, RoundAux, RoundCost, Shard, Work
from fedjax_alg.base import BYTES_PER_FLOAT, round_cost
from fedjax_alg.central.aggregation import Aggregation, Aggregator, named
from fedjax_alg.central.attacks import Attack, forged, forges, poisoned
from fedjax_alg.central.privacy import Privacy, refuse
from fedjax_alg.client.compression import compressed, Compression, shapes
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer, LocalOptimizer
from fedjax_alg.client.sgd import sgd
from fedjax_alg.client.update import Beside, ClientUpdate, Received, Trained
from fedjax_alg.engine.keys import client_keys, FORGERIES, server_key, UPDATES
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds import ledger, stacking
from fedjax_alg.rounds.phases import check_mean
from fedjax_alg.rounds.weights import participation, READ, WEIGHTS

#: How the K models start before any client has been seen: as equal copies, or
#: as independent random models.
STARTS = ("shared", "independent")


@dataclasses.dataclass(frozen=True)
class GroupWork(ClientOptimizer, Aggregation, LocalWork):
  """Hyper-parameters that every clustered method has."""

  client_lr: float = hyper(
      0.1, "learning rate of the local steps", above=0.0)
  client_weights: str = hyper(
      "examples", "weights of the participants in the mean update of their "
      "group: examples = n_i / n_j, uniform = all equal", choices=WEIGHTS,
      when=READ)


class ClusteredState(NamedTuple):
  """What the server of a clustered method keeps between rounds."""

  models: Params  #: [K, ...]
  #: [C] int32, each client's last group; -1 before the first one
  member: Array
  memory: Any  #: state that the rule keeps between rounds
  round: Array  #: [] int32, rounds completed
  #: [K, ...], what an aggregator keeps (``Aggregator.keeps``), or ()
  aggregates: Any = ()


class Extra(NamedTuple):
  """Cost beyond one download and one upload, for the whole cohort."""

  down: Any = 0  #: [] int32, floats sent to clients
  up: Any = 0  #: [] int32, floats sent to the server
  exchanges: Any = 0  #: [] int32, further exchanges
  example_gradients: Any = 0  #: [] int32, per-example gradients
  flops: Any = 0.0  #: [] float32, arithmetic of the server
  #: [S] int32, the part of ``example_gradients`` that each participant computes
  #: itself, 0 on padding slots; other clients compute the rest, or it was
  #: computed before round 1
  own_gradients: Any = 0
  own_batches: Any = 0  #: [S] int32, the mini-batches of ``own_gradients``
  #: for how many models every participant evaluates the loss on its data
  evaluations: int = 0


class TrainingResult(NamedTuple):
  """The result of the participants' local training, for ``Rule.finish``."""

  before: Params  #: [K, ...], the models at the start of the round
  groups: Array  #: [S] int32, the participants' groups
  #: [S, ...], the participants' trained models; () if they were not kept
  trained: Params
  notes: Any  #: [S, ...], the notes of ``Rule.assign``


class Rule(NamedTuple):
  """Which client belongs to which group, in one clustered method."""

  num_groups: int  #: K
  #: (params, spec, key) -> (models [K, ...], memory), made without data
  init: Callable[[Params, FedSpec, Key], tuple[Params, Any]]
  #: (models [K, ...], ``shared``, the client's row of ``client_rows``, its
  #: last group or -1, shard, key) -> (group [] int32, note); for one client. A
  #: newcomer gets the row of id C. ``note`` is passed on to ``finish`` and
  #: ``extra``.
  assign: Callable[..., tuple[Array, Any]]
  #: (state, all clients present as one cohort, key) -> state; before round 1
  setup: Callable[[ClusteredState, Cohort, Key], ClusteredState] = (
      lambda state, everyone, key: state)
  #: memory -> what ``assign`` reads besides the models
  shared: Callable[[Any], Any] = lambda memory: ()
  #: (memory, ids [S]) -> what ``assign`` reads about each client, [S, ...]
  client_rows: Callable[[Any, Array], Any] = lambda memory, ids: ()
  #: (state, cohort, key) -> state
  before: Callable[[ClusteredState, Cohort, Key], ClusteredState] = (
      lambda state, cohort, key: state)
  #: (state, cohort, the participants' updates [S, ...]) -> state
  regroup: Callable[[ClusteredState, Cohort, Params], ClusteredState] = (
      lambda state, cohort, drifts: state)
  #: (state, cohort, result of the training) -> state
  finish: Callable[[ClusteredState, Cohort, TrainingResult],
                   ClusteredState] = lambda state, cohort, result: state
  #: (state at the start, state at the end, cohort, notes) -> Extra
  extra: Callable[..., Extra] = lambda before, after, cohort, notes: Extra()
  #: (state) -> [C] int32, the groups to report; ``member`` by default
  membership: Callable[[ClusteredState], Array] = lambda state: state.member
  #: whether the sum of a group's updates is divided by the weight of the whole
  #: cohort instead of the group's weight (IFCA's gradient averaging)
  whole_divisor: bool = False
  #: whether ``regroup`` or ``finish`` reads what each participant sent. If not,
  #: large updates are added up without being kept (``rounds.stacking``), and
  #: ``regroup`` is not called.
  reads_updates: bool = True


def rule_key(key: Key, spec_clients: int) -> Key:
  """A key that differs from all keys of ``client_keys(key, ids)``."""
  return jax.random.fold_in(key, spec_clients + 1)


def flat(params: Params) -> Array:
  """One model as a vector [P], in the order of ``trees.to_matrix``."""
  return trees.to_matrix(jax.tree.map(lambda leaf: leaf[None], params))[0][0]


def pretrain(
    model: Model, work: LocalWork, client_lr: float, start: Params,
    shard: Shard, key: Key, optimizer: LocalOptimizer | None = None,
    rounds: Array | int = 0) -> Array:
  """The update of one client that trains by ``work`` from ``start``, [P].

  The learning rate is that after ``rounds`` rounds. With the default it is that
  of round 1, for work whose result must not depend on when a client comes.
  """
  params, _ = sgd(model, start, shard, work, client_lr, key,
                  optimizer=optimizer, rounds=rounds)
  return flat(trees.subtract(params, start))


def independent_models(model: Model, key: Key, k: int) -> Params:
  """Draws K random initial models.

  Kernels that the model starts at zero, as softmax regression does, are drawn
  uniformly from +-sqrt(6 / (rows + columns)) (Glorot and Bengio 2010), because
  K models at zero would be equal. The public code for comparisons with IFCA and
  FeSEM does the same.

  Args:
    model: the model.
    key: consumed.
    k: K.

  Returns:
    The models, leaves [K, ...].
  """
  first, second = jax.random.split(key)
  models = jax.vmap(model.init)(jax.random.split(first, k))
  leaves, treedef = jax.tree.flatten(models)
  keys = jax.random.split(second, len(leaves))

  def drawn(leaf, key):
    if leaf.ndim < 3:
      return leaf
    bound = (6.0 / (leaf.shape[-1] + leaf.shape[-2])) ** 0.5
    draw = jax.random.uniform(key, leaf.shape, leaf.dtype, -bound, bound)
    return jnp.where((leaf == 0).all(), draw, leaf)

  return jax.tree.unflatten(treedef, list(map(drawn, leaves, keys)))


def initial_models(
    model: Model, params: Params, key: Key, k: int, start: str) -> Params:
  """K initial models [K, ...]; ``start`` is one of ``STARTS``."""
  if start == "shared":
    return trees.repeat(params, k)
  return independent_models(model, key, k)


@dataclasses.dataclass(frozen=True)
class Clustered:
  """The arguments of ``compose_clustered``."""

  model: Model
  client: ClientUpdate
  rule: Rule
  map_clients: MapClients
  #: cohort -> weights of the participants in their group's mean, [S]
  weigh: Callable[[Cohort], Array]
  aggregator: Aggregator
  attack: Attack | None = None  #: what hostile participants do


def compose_clustered(
    model: Model,
    client: ClientUpdate,
    rule: Rule,
    *,
    map_clients: MapClients,
    weights: str = "examples",
    aggregator: Aggregator | str = "mean",
    attack: Attack | None = None,
    compression: Compression | None = None,
    privacy: Privacy | None = None,
) -> Algorithm[Any]:
  """Makes an algorithm from a local method and a rule of grouping.

  Args:
    model: the model and its objective.
    client: the local method. It trains, and clients may keep a row each
      (``ClientUpdate.store``); it has none of the parts in ``NOT_CALLED``.
    rule: which client belongs to which group.
    map_clients: how one client's code is mapped over the participants.
    weights: weights of the participants in their group's mean, one of
      ``weights.WEIGHTS``.
    aggregator: what takes the place of the mean over a group, or its name in
      ``aggregation.AGGREGATORS``.
    attack: what hostile clients do; None if there are none. Their choice of a
      group, and what they send for the choice, is by their own data.
    compression: whether updates are sent in fewer bytes; None: they are not.
    privacy: refused; None: the updates are not made private.

  Returns:
    The algorithm. Its state is a ``ClusteredState``; with the table of what
    clients keep for their compressors beside it, a ``Beside``.

  Raises:
    OptionError: ``weights`` or ``aggregator`` is unknown, ``client`` has a
      part that rounds of groups do not call, or what is sent cannot be
      compressed or made private.
  """
  if privacy:
    refuse(privacy, "clients are grouped by what they send or measure without "
           "noise")
  if isinstance(aggregator, str):
    aggregator = named(aggregator)
  _check_half(client)
  check_mean(client, aggregator, attack)
  if compression:
    up, down = compression.compressors()
    if down:
      raise OptionError(
          f"`compress_down`={compression.compress_down}: clients receive the "
          "model of their group, and have not followed its changes while they "
          "were in another (only none)")
    if up:
      client = compressed(client, up, shapes(model),
                          f"`compress_up`={compression.compress_up}")
  method = Clustered(
      model, client, rule, map_clients, participation(weights), aggregator,
      attack)
  plain = Algorithm(
      functools.partial(_init, rule, aggregator),
      lambda state, everyone, key: rule.setup(
          state, poisoned(attack, everyone), key),
      functools.partial(_round, method),
      functools.partial(_client_params, rule), lambda state: state.models,
      rule.membership,
      idle=lambda state, cohort: _counted(state))
  return _with_table(method, plain) if client.store else plain


#: Parts of a client's half that a round of groups never calls, so that a half
#: with one of them would lose what it does there.
NOT_CALLED = ("setup", "refresh", "shared", "client_rows", "needs_anchor",
              "upload_weights", "merge", "scale")


def _check_half(client: ClientUpdate) -> None:
  """Refuses a local method of which rounds of groups would call a part."""
  lost = client.needs(*NOT_CALLED)
  if client.store and not client.store.one_row:
    lost.append("store.places")
  if lost:
    why = f" ({client.one_model})" if client.one_model else ""
    raise OptionError(
        f"`client`: the local method needs {', '.join(lost)}, which rounds of "
        f"clustered methods do not call{why} (allowed: one that only trains, "
        "or that keeps a row for each client)")


def _with_table(method: Clustered, plain: Algorithm) -> Algorithm[Beside]:
  """The algorithm whose clients keep rows of a table (``Beside.extra``)."""
  store, membership = method.client.store, plain.membership
  assert store is not None and membership is not None

  def init(params: Params, spec: FedSpec, key: Key) -> Beside:
    table = store.get(method.client.init(params, spec))
    return Beside(
        plain.init(params, spec, key), method.map_clients.keep(table))

  def round_(state: Beside, cohort: Cohort, key: Key):
    own, table, aux = _play(method, state.own, state.extra, cohort, key)
    return Beside(own, table), aux

  def idle(state: Beside, cohort: Cohort) -> Beside:
    del cohort
    return state._replace(own=_counted(state.own))

  return Algorithm(
      init, lambda state, *args: state._replace(
          own=plain.setup(state.own, *args)),
      round_, lambda state, *args: plain.client_params(state.own, *args),
      lambda state: state.own.models, lambda state: membership(state.own),
      idle=idle)


def _counted(state: ClusteredState) -> ClusteredState:
  """The state after a round in which nobody takes part."""
  return state._replace(round=state.round + 1)


def _init(
    rule: Rule, aggregator: Aggregator, params: Params, spec: FedSpec, key: Key
) -> ClusteredState:
  models, memory = rule.init(params, spec, key)
  return ClusteredState(
      models, jnp.full(spec.num_clients, -1, jnp.int32), memory,
      jnp.zeros((), jnp.int32),
      jax.vmap(aggregator.keeps)(models) if aggregator.keeps else ())


def _round(
    method: Clustered, state: ClusteredState, cohort: Cohort, key: Key
) -> tuple[ClusteredState, RoundAux]:
  state, _, aux = _play(method, state, (), cohort, key)
  return state, aux


def _play(
    method: Clustered, state: ClusteredState, table: Any, cohort: Cohort,
    key: Key) -> tuple[ClusteredState, Any, RoundAux]:
  """One round; ``table``: the rows that clients keep, or ()."""
  rule, at_start = method.rule, state
  cohort = poisoned(method.attack, cohort)
  state = rule.before(state, cohort, rule_key(key, state.member.shape[0] + 1))
  groups, notes = _assign(method, state, cohort, key)
  state = state._replace(
      member=state.member.at[cohort.ids].set(groups, mode="drop"))
  before = state.models
  sums = method.aggregator.is_mean and not (
      rule.reads_updates or forges(method.attack))
  move = _in_sum if sums and not stacking.fits(
      cohort.ids.shape[0], trees.index(before, 0)) else _kept
  state, table, groups, trained, distance = move(
      method, state, table, cohort, groups, key)
  state = rule.finish(
      state, cohort, TrainingResult(before, groups, trained.params, notes))
  state = state._replace(round=state.round + 1)
  cost, work = _cost(
      method, at_start, state, cohort, trained.gradients, notes)
  return state, table, RoundAux(
      {"loss": trained.loss, "group": groups},
      _log(rule, state, cohort, groups, trained.loss) | distance(state.models),
      cost, work)


#: The new state and table, the participants' groups [S], their training, and a
#: function that logs their distance from the models that it is given
Moved = tuple[
    ClusteredState, Any, Array, Trained, Callable[[Params], dict[str, Array]]]


def _kept(
    method: Clustered, state: ClusteredState, table: Any, cohort: Cohort,
    groups: Array, key: Key) -> Moved:
  """Trains, and moves every model by the mean update of its group."""
  rule = method.rule
  table, trained = _train(
      method, state.models, state.round, table, cohort, groups, key)
  starts = trees.index(state.models, groups)
  updates = trees.subtract(trained.params, starts)
  if method.attack is not None and forges(method.attack):
    updates = forged(
        method.attack, updates, method.weigh(cohort), groups, rule.num_groups,
        cohort, client_keys(server_key(key, FORGERIES), cohort.ids))
  # The trained models as the server computes them: the models that it sent plus
  # the updates that it received.
  params = trees.add(starts, updates)
  state = rule.regroup(state, cohort, updates)
  groups = _last_group(state, cohort.ids)
  mean, aggregates = _combined(method, state, cohort, groups, updates, key)
  state = state._replace(
      models=trees.add(state.models, mean), aggregates=aggregates)

  def distance(models):
    gap = trees.slot_norm(trees.subtract(params, trees.index(models, groups)))
    return {"discrepancy": trees.slot_mean(
        cohort.present.astype(jnp.float32), gap)}

  return state, table, groups, trained._replace(params=params), distance


def _combined(
    method: Clustered, state: ClusteredState, cohort: Cohort, groups: Array,
    updates: Params, key: Key) -> tuple[Params, Params]:
  """The moves of the K models, 0 for an empty group, and what is kept."""
  weights, k = method.weigh(cohort), method.rule.num_groups
  whole = method.rule.whole_divisor
  if method.aggregator.is_mean:
    return trees.group_mean(weights, groups, k, updates, whole=whole), ()
  of_group = jnp.where(trees.members(groups, k), weights[None], 0.0)
  last = (state.aggregates,) if method.aggregator.keeps else ()
  found, kept = jax.vmap(
      lambda weights, key, last: method.aggregator.combined(
          updates, weights, cohort, key, last))(of_group, client_keys(
              server_key(key, UPDATES), jnp.arange(k, dtype=jnp.int32)), last)
  moves = found if not whole else trees.scale_slots(
      of_group.sum(1) / jnp.maximum(weights.sum(), 1e-30), found)
  return moves, kept[0] if kept else ()


def _in_sum(
    method: Clustered, state: ClusteredState, table: Any, cohort: Cohort,
    groups: Array, key: Key) -> Moved:
  """As ``_kept``, for a rule that reads no updates, and without keeping any."""
  rule, before, given = method.rule, state.models, groups
  weights, groups = method.weigh(cohort), _last_group(state, cohort.ids)
  shares = trees.group_shares(
      weights, groups, rule.num_groups, whole=rule.whole_divisor)

  def one_client(shared, shard, row, group, *args):
    trained = _one_client(method, shared, shard, row, group, *args)
    update = trees.subtract(trained.params, trees.index(shared[0], group))
    return trained.kept, update, (
        trained._replace(params=(), kept=()), stacking.square(update))

  of_slots = given, cohort.ids, client_keys(key, cohort.ids)
  if method.client.store:
    table, mean, (trained, squares) = method.map_clients.update(
        one_client, method.client.store.write, table, cohort.ids, shares.T,
        (before, state.round), cohort.shards, *of_slots)
  else:
    mean, (trained, squares) = method.map_clients.reduce(
        lambda shared, shard, *args: one_client(shared, shard, (), *args)[1:],
        shares.T, (before, state.round), cohort.shards, *of_slots)
  state = state._replace(models=trees.add(before, mean))

  def distance(models):
    of_group = jnp.where(
        trees.members(groups, rule.num_groups), weights[None], 0.0).sum(1)
    divisors = of_group
    if rule.whole_divisor:
      divisors = jnp.full_like(of_group, weights.sum())
    return {"discrepancy_rms": stacking.spread(
        weights, squares, trees.subtract(models, before), mean, divisors,
        of_group)}

  return state, table, groups, trained, distance


def _assign(
    method: Clustered, state: ClusteredState, cohort: Cohort, key: Key
) -> tuple[Array, Any]:
  """Groups [S] and notes [S, ...] of the participants."""
  rule = method.rule
  keys = client_keys(rule_key(key, state.member.shape[0]), cohort.ids)

  def one_client(shared, shard, client_row, member, key):
    models, shared = shared
    return rule.assign(models, shared, client_row, member, shard, key)

  return method.map_clients(
      one_client, (state.models, rule.shared(state.memory)), cohort.shards,
      rule.client_rows(state.memory, cohort.ids),
      _last_group(state, cohort.ids), keys)


def _train(
    method: Clustered, models: Params, rounds: Array, table: Any,
    cohort: Cohort, groups: Array, key: Key) -> tuple[Any, Trained]:
  """Local training of every participant: the table, and leaves [S, ...]."""
  one_client = functools.partial(_one_client, method)
  of_slots = groups, cohort.ids, client_keys(key, cohort.ids)
  if not method.client.store:
    return table, method.map_clients(
        lambda shared, shard, *args: one_client(shared, shard, (), *args),
        (models, rounds), cohort.shards, *of_slots)

  def and_keep(*args):
    trained = one_client(*args)
    return trained.kept, trained._replace(kept=())

  return method.map_clients.change(
      and_keep, method.client.store.write, table, cohort.ids, (models, rounds),
      cohort.shards, *of_slots)


def _one_client(
    method: Clustered, shared: Any, shard: Shard, row: Any, group: Array,
    client_id: Array, key: Key) -> Trained:
  """Local training of one participant."""
  models, rounds = shared
  start = trees.index(models, group)
  return method.client.trained(
      Received(start, start, (), (), rounds, client_id), shard, row, key)


def _last_group(state: ClusteredState, ids: Array) -> Array:
  """The last group of each client id; -1 for an id that is out of range."""
  return state.member.at[ids].get(mode="fill", fill_value=-1)


def _log(
    rule: Rule, state: ClusteredState, cohort: Cohort, groups: Array,
    loss: Array) -> dict[str, Array]:
  """What a round reports about the server, besides the discrepancy."""
  k = rule.num_groups
  playing = trees.members(groups, k) & cohort.present[None]
  known = trees.members(rule.membership(state), k)
  return {
      "train_loss": trees.slot_mean(cohort.weight, loss),
      "participants": playing.sum(1, dtype=jnp.int32),
      "members": known.sum(1, dtype=jnp.int32)}


def _cost(
    method: Clustered, before: ClusteredState, after: ClusteredState,
    cohort: Cohort, gradients: Any, notes: Any) -> tuple[RoundCost, Work]:
  """The cost of the round, and the work of each participant."""
  model, rule = method.model, method.rule
  size = ledger.model_size(before.models, rule.num_groups)
  participants = jnp.maximum(cohort.present.sum(dtype=jnp.int32), 1)
  extra = rule.extra(before, after, cohort, notes)
  client = method.client
  gradients, work = ledger.count_work(
      model, client, cohort.shards.size, gradients,
      full_passes=client.full_passes, evaluations=extra.evaluations)
  passes = client.full_passes * cohort.shards.size.sum()
  own = jnp.asarray(extra.own_gradients, jnp.float32)
  work = Work(
      work.flops + ledger.GRADIENT_PASSES * model.flops * own,
      work.batches + jnp.asarray(extra.own_batches, jnp.float32))
  aggregator = method.aggregator
  flops = extra.flops + client.server_flops(cohort.ids.shape[0], size)
  # The means of the K groups are not counted; ``extra.flops`` is the rule's.
  if not aggregator.is_mean:
    flops = flops + rule.num_groups * aggregator.flops(
        cohort.ids.shape[0], size)
  down, up = (
      size + sum(-(-ledger.sent_bytes(size, getattr(half, name))
                   // BYTES_PER_FLOAT) for half in (client, aggregator))
      for name in ("extra_down", "extra_up"))
  down, more_up = down + extra.down // participants, extra.up // participants
  cost_up: dict[str, Any] = {"up": up + more_up}
  if client.upload_bytes:
    update = ledger.communication(0, BYTES_PER_FLOAT * (up - size) + (
        ledger.sent_bytes(size, client.upload_bytes)))
    cost_up = {
        "up": update["up"] + more_up,
        "bytes_up": update.get("bytes_up", BYTES_PER_FLOAT * update["up"]) + (
            BYTES_PER_FLOAT * more_up)}
  return round_cost(
      down=down, **cost_up, exchanges=1 + extra.exchanges,
      example_gradients=gradients.sum() + passes + extra.example_gradients,
      central_flops=flops), work


def _client_params(
    rule: Rule, state: ClusteredState, client_id: Array, shard: Shard, key: Key
) -> Params:
  """The model of the group to which the rule assigns the client."""
  ids = client_id[None]
  group, _ = rule.assign(
      state.models, rule.shared(state.memory),
      trees.index(rule.client_rows(state.memory, ids), 0),
      _last_group(state, ids)[0], shard, key)
  return trees.index(state.models, group)
