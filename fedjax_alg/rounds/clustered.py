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
     ``examples``: may choose the examples that it trains on (FedDrift);
  3. local training from the group's model;
  4. ``regroup``: the server changes groups by the updates it received (CFL);
  5. every model moves by the mean update of its group, or by what an
     ``aggregation.Aggregator`` puts in its place; where clients belong to several
     models (``memberships``), to the mean of all trained models. A server step
     acts on each of them as on one model (``two_halves``);
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
)
from fedjax_alg.central.steps import ServerStep, average
from fedjax_alg.client.grouped import (
  GroupedMemory,
  for_groups,
  init_memory,
  setup_memory,
)
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer, local_optimizer
from fedjax_alg.client.personal import (
  Places,
  attach_client_leaves,
  first_states,
  with_client_leaves,
  with_states,
)
from fedjax_alg.client.sgd import sgd
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.engine.keys import (
  FORGERIES,
  MESSAGES,
  UPDATES,
  client_keys,
  server_key,
)
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import stacking
from fedjax_alg.exchange.links import Exchange, wrap
from fedjax_alg.exchange.weights import ExampleWeights, Plain
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds import ledger
from fedjax_alg.rounds.local_training import Training, mean_statistics, train
from fedjax_alg.rounds.one_model import (
  PURPOSES,
  TwoHalves,
  costs,
  first_aggregates,
  gradient_sender,
  server_keys,
  steps_of_models,
)
from fedjax_alg.rounds.two_halves import deployed_models, join_halves, pair_halves
from fedjax_alg.typing import Numeric, PyTree

#: Starts of the K models before any client has been seen: as equal copies, or
#: as independent random models.
STARTS = ("shared", "independent")


class GroupWork(ClientOptimizer, LocalWork):
  """Hyper-parameters that every clustered method has."""

  client_lr: float = hyper(0.1, "learning rate of the local steps", above=0.0)
  client_weights: Plain = hyper(
    ExampleWeights(),
    "weights of the participants in the mean update of their "
    "group: examples = n_i / n_j, uniform = all equal",
  )


class ServerMemory(NamedTuple):
  """What the server keeps for each model, besides its statistics."""

  step: Any  #: [K, ...], state of the server step
  local: Any  #: [K, ...], for the local method; () if this needs nothing


class ClusteredState(NamedTuple):
  """State of the server of a clustered method between rounds."""

  models: Params  #: [K, ...]
  #: [C] int32, each client's last group; -1 before the first one
  member: Array
  memory: Any  #: state that the rule keeps between rounds
  round: Array  #: [] int32, rounds completed
  #: name in ``one_model.PURPOSES`` -> [K, ...], what an aggregator keeps
  #: (``Aggregator.keeps``); empty if it keeps nothing
  aggregates: Any = {}
  #: [K, ...], running statistics of the models (``Model.roles``); () if the
  #: server keeps none
  states: Params = ()
  #: ``ServerMemory``; a rule that copies a model copies this and ``states``, too
  server: Any = ()
  #: [C, ...], what clients keep for the local method; () if they keep nothing
  clients: Any = ()


class Messages(NamedTuple):
  """Equal messages that some clients receive or send.

  Their floats together may be more than int32 can count.
  """

  number: Numeric = 0  #: [] int32
  floats: Numeric = 0  #: [] int32, of each

  def shared_by(self, participants: Array) -> Array:
    """Computes floor(number * floats / participants), [] int32.

    It is exact as long as the result and number * participants fit in int32.
    """
    whole, rest = jnp.divmod(jnp.asarray(self.floats, jnp.int32), participants)
    return whole * self.number + rest * self.number // participants


class Extra(NamedTuple):
  """Cost beyond one download and one upload, for the whole cohort."""

  down: Messages = Messages()  #: to clients
  up: Messages = Messages()  #: to the server
  exchanges: Numeric = 0  #: [] int32, further exchanges
  example_gradients: Numeric = 0  #: [] int32, per-example gradients
  flops: Numeric = 0.0  #: [] float32, arithmetic of the server
  #: [S] int32, the part of ``example_gradients`` that each participant computes
  #: itself, 0 on padding slots; other clients compute the rest, or it was
  #: computed before round 1
  own_gradients: Numeric = 0
  own_batches: Numeric = 0  #: [S] int32, the mini-batches of ``own_gradients``
  #: for how many models every participant evaluates the loss on its data; or
  #: [S] int32, of each participant
  evaluations: Any = 0


class TrainingResult(NamedTuple):
  """The result of the participants' local training, for ``Rule.finish``."""

  before: Params  #: [K, ...], the models at the start of the round
  groups: Array  #: [S] int32, the participants' groups
  #: [S, ...], the participants' trained models; () if they were not kept
  trained: Params
  notes: Any  #: [S, ...], the notes of ``Rule.assign``


class Rule(NamedTuple):
  """Rule that assigns clients to groups, in one clustered method."""

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
    lambda state, everyone, key: state
  )
  #: memory -> what ``assign`` reads besides the models
  shared: Callable[[Any], Any] = lambda memory: ()
  #: (memory, ids [S]) -> what ``assign`` reads about each client, [S, ...]
  client_rows: Callable[[Any, Array], Any] = lambda memory, ids: ()
  #: (state, cohort, key) -> state
  before: Callable[[ClusteredState, Cohort, Key], ClusteredState] = (
    lambda state, cohort, key: state
  )
  #: (state with the participants' groups, cohort, key) -> the cohort with the
  #: examples that participants train on, and the weights of these
  examples: Callable[[ClusteredState, Cohort, Key], Cohort] = (
    lambda state, cohort, key: cohort
  )
  #: (state, cohort, the participants' updates [S, ...]) -> state
  regroup: Callable[[ClusteredState, Cohort, Params], ClusteredState] = (
    lambda state, cohort, drifts: state
  )
  #: (state, cohort, result of the training) -> state
  finish: Callable[[ClusteredState, Cohort, TrainingResult], ClusteredState] = (
    lambda state, cohort, result: state
  )
  #: (state at the start, state at the end, cohort, notes) -> Extra
  extra: Callable[..., Extra] = lambda before, after, cohort, notes: Extra()
  #: (state) -> [C] int32, the groups to report; ``member`` by default
  membership: Callable[[ClusteredState], Array] = lambda state: state.member
  #: (state) -> [K] bool, the models that a client without a group may deploy, all
  #: of them if it is none; None: all
  joinable: Callable[[ClusteredState], Array] | None = None
  #: whether the sum of a group's updates is divided by the weight of the whole
  #: cohort instead of the group's weight (IFCA's gradient averaging)
  whole_divisor: bool = False
  #: (notes [S, ...]) -> [S, K] float32 from 0, how much each participant belongs
  #: to every model: its start is the mean of the models by these memberships,
  #: and it counts by them in the mean of every model. None: it belongs to the
  #: group of ``assign`` alone. With memberships ``reads_updates`` stays true
  memberships: Callable[[Any], Array] | None = None
  #: whether it also moves clients that do not take part to other groups
  moves_everyone: bool = False
  #: whether ``setup`` or ``before`` measures or trains models on the data of all
  #: clients, which then come with what each of them keeps
  reads_everyone: bool = False
  #: whether ``regroup`` or ``finish`` reads what each participant sent. If not,
  #: large updates are added up without being kept (``exchange.stacking``), and
  #: ``regroup`` is not called.
  reads_updates: bool = True


def _rule_key(key: Key, spec_clients: int) -> Key:
  """A key that differs from all keys of ``client_keys(key, ids)``."""
  return jax.random.fold_in(key, spec_clients + 1)


def with_last(state: ClusteredState, cohort: Cohort, vectors: Params) -> ClusteredState:
  """Keeps the participants' vectors [S, ...] in the ``last`` of a memory."""
  memory, rows = state.memory, trees.to_matrix(vectors)[0]
  return state._replace(
    memory=memory._replace(
      last=memory.last.at[cohort.ids].set(rows, mode="drop"),
      trained=memory.trained.at[cohort.ids].set(True, mode="drop"),
    )
  )


def flat(params: Params) -> Array:
  """One model as a vector [P], in the order of ``trees.to_matrix``."""
  return trees.to_matrix(jax.tree.map(lambda leaf: leaf[None], params))[0][0]


def pretrain(
  model: Model, hparams: GroupWork, start: Params, *args: Any, **options: Any
) -> Array:
  """The change of ``start`` by ``pretrain_model``, [P]."""
  return flat(
    trees.subtract(pretrain_model(model, hparams, start, *args, **options), start)
  )


def pretrain_model(
  model: Model,
  hparams: GroupWork,
  start: Params,
  shard: Shard,
  key: Key,
  work: LocalWork | None = None,
  rounds: Array | int = 0,
) -> Params:
  """The model of one client that trains from ``start``.

  It takes the steps of ``work``, by default those of a round. The learning rate
  is that after ``rounds`` rounds. With the default it is that of round 1, for
  work whose result must not depend on when a client comes.
  """
  # Its steps use the statistics of their mini-batches, not a model's.
  return sgd(
    model,
    start,
    shard._replace(state=None),
    work or hparams,
    hparams.client_lr,
    key,
    optimizer=local_optimizer(hparams),
    rounds=rounds,
  )[0]


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

  def draw_leaf(leaf, key):
    if leaf.ndim < 3:
      return leaf
    bound = (6.0 / (leaf.shape[-1] + leaf.shape[-2])) ** 0.5
    draw = jax.random.uniform(key, leaf.shape, leaf.dtype, -bound, bound)
    return jnp.where((leaf == 0).all(), draw, leaf)

  return jax.tree.unflatten(treedef, list(map(draw_leaf, leaves, keys)))


def initial_models(
  model: Model, params: Params, key: Key, k: int, start: str
) -> Params:
  """K initial models [K, ...]; ``start`` is one of ``STARTS``."""
  if start == "shared":
    return trees.repeat(params, k)
  return independent_models(model, key, k)


@dataclasses.dataclass(frozen=True)
class Clustered(TwoHalves):
  """The two halves of a method, ``client`` in groups, and a rule of grouping."""

  half: ClientUpdate = dataclasses.field(kw_only=True)  #: the client's, for one model
  rule: Rule = dataclasses.field(kw_only=True)


#: The links that clustered methods cannot have (``links.fit``).
REFUSED = {
  "client_weights": "weights by losses are those of one global model",
  "private": "clients are grouped by what they send or measure without noise",
  "compress_down": "clients receive the model of their group, and have not "
  "followed its changes while they were in another (only none)",
}


def compose_clustered(
  model: Model,
  client: ClientUpdate,
  rule: Rule,
  server: ServerStep | None = None,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[Any]:
  """Makes an algorithm from a local method, a rule of grouping and a server step.

  Args:
    model: the model and its objective.
    client: the local method; its memory stands once for each group
      (``client.grouped``).
    rule: which client belongs to which group.
    server: the step of the server for the model of each group; None: it moves by
      the mean update.
    map_clients: how one client's code is mapped over the participants.
    exchange: what happens to what clients and server send each other. Hostile
      clients' choice of a group, and what they send for the choice, is by their
      own data.

  Returns:
    The algorithm. Its state is a ``ClusteredState``.

  Raises:
    OptionError: ``client`` keeps what groups cannot have, or a link does not fit
      (``links.fit``).
  """
  _check_half(client, rule)
  pair = pair_halves(model, client, server or average(), map_clients, exchange)
  pair = join_halves(dataclasses.replace(pair, num_models=rule.num_groups), REFUSED)
  client, exchange = pair.client, pair.exchange
  fields: Any = vars(pair) | {"client": for_groups(client, rule.num_groups)}
  method = Clustered(**fields, half=client, rule=rule)
  models_of = lambda state: deployed_models(
    method.server, state.models, state.server.step
  )
  algorithm: Algorithm[Any] = Algorithm(
    functools.partial(_init, method),
    functools.partial(_setup, method),
    functools.partial(_round, method),
    functools.partial(_client_params, method),
    lambda state: with_states(model, models_of(state), state.states),
    rule.membership,
    idle=functools.partial(_idle, method),
    takes_parts=client.takes_parts,
    reports_state=("members",),
  )
  if model.roles is not None:
    algorithm = with_client_leaves(
      algorithm,
      method.client,
      model,
      map_clients,
      Places(
        lambda state: state,
        lambda state, changed: changed,
        lambda state: state.states,
        rule.num_groups,
        rule.reads_everyone,
      ),
    )
  return wrap(exchange, algorithm)


def _check_half(client: ClientUpdate, rule: Rule) -> None:
  """Refuses a local method that groups of a rule cannot have."""
  if client.one_model and client.needs("setup"):
    raise OptionError(
      f"`client_update`: the local method is set up at one model before round 1 "
      f"({client.one_model}), when clients have no group (allowed: one that is not)"
    )
  if rule.moves_everyone and client.mean_row:
    raise OptionError(
      "`client_update`: the server keeps the mean of what the members of a group keep, "
      "and here clients that do not take part change groups, too (allowed: one of "
      "which the server keeps no such mean)"
    )
  of_server = ("shared", "client_rows", "upload_weights", "merge", "record", "scale")
  lost = client.needs(*of_server, "needs_anchor")
  if rule.memberships is not None and lost:
    raise OptionError(
      f"`client_update`: the local method has {', '.join(lost)} for the "
      "participants of one group, and here they belong to all groups by shares "
      "(allowed: one that only trains, or keeps a row for each client)"
    )


def _init(method: Clustered, params: Params, spec: FedSpec, key: Key) -> ClusteredState:
  models, memory = method.rule.init(params, spec, key)
  local, clients = init_memory(method.half, params, spec, method.num_models)
  return ClusteredState(
    models,
    jnp.full(spec.num_clients, -1, jnp.int32),
    memory,
    jnp.zeros((), jnp.int32),
    first_aggregates(method, models),
    first_states(method.model, method.num_models),
    ServerMemory(method.first_servers(models), local),
    method.map_clients.keep(clients),
  )


def _setup(
  method: Clustered, state: ClusteredState, everyone: Cohort, key: Key
) -> ClusteredState:
  state = method.rule.setup(state, everyone, key)
  if not method.half.needs("setup"):
    return state
  # Of one model, at which the local method is set up.
  of_one = jax.tree.map(lambda leaf: leaf[:, 0], everyone.shards.state)
  everyone = everyone._replace(shards=everyone.shards._replace(state=of_one))
  local, clients = setup_memory(
    method.half,
    state.server.local,
    state.clients,
    state.models,
    everyone,
    method.map_clients,
  )
  return state._replace(
    server=state.server._replace(local=local), clients=method.map_clients.keep(clients)
  )


def _idle(method: Clustered, state: ClusteredState, cohort: Cohort) -> ClusteredState:
  """A round without participants, in which clients may join."""
  if method.client.refresh and method.half.needs("setup"):
    nobody = jnp.full_like(cohort.ids, -1)
    memory = GroupedMemory(
      state.server.local, state.clients, nobody, state.member, state.member
    )
    memory = method.client.refresh(memory, state.models, cohort, method.map_clients)
    state = state._replace(server=state.server._replace(local=memory.server))
  return state._replace(round=state.round + 1)


def _round(
  method: Clustered, state: ClusteredState, cohort: Cohort, key: Key
) -> tuple[ClusteredState, RoundAux]:
  """One round."""
  rule, client, server = method.rule, method.client, method.server
  at_start, exchange = state, method.exchange

  # Every participant finds its group.
  state = rule.before(state, cohort, _rule_key(key, state.member.shape[0] + 1))
  assigned, notes = _assign(method, state, cohort, key)
  state = state._replace(member=state.member.at[cohort.ids].set(assigned, mode="drop"))
  memberships = None if rule.memberships is None else rule.memberships(notes)
  cohort = rule.examples(state, cohort, _rule_key(key, state.member.shape[0] + 2))
  before, weights = state.models, exchange.weigh(cohort)
  memory = GroupedMemory(
    state.server.local,
    state.clients,
    jnp.where(cohort.present, assigned, -1),
    state.member,
    at_start.member,
  )
  if client.refresh:
    memory = client.refresh(memory, before, cohort, method.map_clients)

  # The participants measure gradients at their groups' models; the server may move.
  loss, anchors = None, ()
  if method.measures_anchor:
    loss, anchors, state = _anchor_gradients(
      method, "first_gradients", state, cohort, assigned, weights, key
    )
  if server.when == "before":
    playing = trees.members(memory.groups, method.num_models).any(1)
    state = _take_steps(method, state, cohort, playing, anchors, key)

  # Every participant trains.
  training = train(
    client,
    method.map_clients,
    (state.models, before, anchors),
    state.round,
    memory,
    cohort,
    key,
    assigned if memberships is None else memberships,
    _shares(method, state, cohort, weights),
  )
  # A rule that copies models copies both memories, of before and of after the round.
  merged = training.merge(client, memory, cohort, anchors)
  local = memory.server, merged.server
  state = state._replace(
    server=state.server._replace(local=local), clients=merged.clients
  )

  # The server moves the models.
  move = _by_updates if training.squares is None else _by_sums
  if memberships is not None:
    move = functools.partial(_by_updates, memberships=memberships)
  state, moves = move(method, state, cohort, assigned, training, weights, key)
  state = _move_models(
    method, state, cohort, memory._replace(groups=moves.groups), moves, key
  )
  if jax.tree.leaves(state.states):
    state = state._replace(
      states=mean_statistics(
        state.states, training.trained.leaves.state, cohort, moves.groups
      )
    )
  if server.when == "after":
    state = _measure_and_step(method, state, cohort, moves.groups, weights, key)
  state = rule.finish(
    state, cohort, TrainingResult(before, moves.groups, moves.trained, notes)
  )
  state = state._replace(round=state.round + 1)
  loss = training.trained.loss if loss is None else loss
  cost, work = _cost(method, at_start, state, cohort, training.trained.gradients, notes)
  return state, RoundAux(
    {"loss": loss, "group": moves.groups},
    _log(method, at_start, state, cohort, moves.groups, loss)
    | moves.distance(state.models),
    cost,
    work,
  )


def _shares(
  method: Clustered, state: ClusteredState, cohort: Cohort, weights: Array
) -> Array | None:
  """The factors of the updates in K sums [S, K]; None: every update is kept."""
  rule = method.rule
  if rule.reads_updates or (
    method.exchange.shares(cohort, trees.index(state.models, 0)) is None
  ):
    return None
  return trees.group_shares(
    weights,
    _last_group(state, cohort.ids),
    rule.num_groups,
    all_slots=rule.whole_divisor,
  ).T


def _anchor_gradients(
  method: Clustered,
  name: str,
  state: ClusteredState,
  cohort: Cohort,
  groups: Array,
  weights: Array,
  key: Key,
) -> tuple[Array, Params, ClusteredState]:
  """Measures the gradients of the participants at the models of their groups.

  Returns:
    The participants' losses [S], the mean gradient of each group [K, ...], and the
    state with what the aggregator keeps.
  """
  exchange, send, purpose = method.exchange, gradient_sender(method), PURPOSES[name]
  keys = client_keys(server_key(server_key(key, MESSAGES), purpose), cohort.ids)

  def one_client(models, shard, group, key):
    shard = shard._replace(state=trees.index(shard.state, group))
    return send(trees.index(models, group), shard, key)

  gradients, losses = method.map_clients(
    one_client, state.models, cohort.shards, groups, keys
  )
  gradients = exchange.receive(
    gradients,
    cohort,
    server_key(server_key(key, purpose), FORGERIES),
    weights,
    groups,
    method.rule.num_groups,
  )
  anchors, aggregates = _combine(
    method, state, cohort, groups, gradients, weights, key, name
  )
  return losses, anchors, state._replace(aggregates=state.aggregates | aggregates)


def _take_steps(
  method: Clustered,
  state: ClusteredState,
  cohort: Cohort,
  playing: Array,
  gradients: Params,
  key: Key,
  mean_squares: Array | None = None,
) -> ClusteredState:
  """The state after the server's step for each group with participants.

  Args:
    method: the method.
    state: the state.
    cohort: the participants.
    playing: [K] bool, the groups that have some.
    gradients: [K, ...].
    key: key of the round.
    mean_squares: [K], see ``one_model.steps_of_models``.
  """
  take_steps = steps_of_models(method, cohort, state.round, key)
  new = take_steps(gradients, state.server.step, state.models, mean_squares)
  models, steps = trees.where_slots(playing, new, (state.models, state.server.step))
  return state._replace(models=models, server=state.server._replace(step=steps))


def _measure_and_step(
  method: Clustered,
  state: ClusteredState,
  cohort: Cohort,
  groups: Array,
  weights: Array,
  key: Key,
) -> ClusteredState:
  """The step of the server along the gradients that groups measure at new models."""
  # Its rows and statistics are those after the training.
  cohort = attach_client_leaves(
    method.client, state, state.states, cohort, method.map_clients, method.num_models
  )
  _, gradients, state = _anchor_gradients(
    method, "last_gradients", state, cohort, groups, weights, key
  )
  playing = trees.members(groups, method.num_models).any(1)
  return _take_steps(method, state, cohort, playing, gradients, key)


class Moves(NamedTuple):
  """What moves the models of groups."""

  groups: Array  #: [S] int32, the participants' groups; -1 on padding slots
  playing: Array  #: [K] bool, the models that some of them have trained
  trained: Params  #: [S, ...], their trained models; () if they were not kept
  update: Params  #: [K, ...], the mean updates
  #: the models -> the logged distance of the trained models from them
  distance: Callable[[Params], dict[str, Array]]
  #: [K] float32, the means of ||update_i||^2; None: the server does not need them
  squares: Array | None = None


def _move_models(
  method: Clustered,
  state: ClusteredState,
  cohort: Cohort,
  memory: GroupedMemory,
  moves: Moves,
  key: Key,
) -> ClusteredState:
  """The state with models moved by the updates as the two halves say."""
  client, server = method.client, method.server
  before, after = state.server.local
  memory = memory._replace(member=state.member)
  update = client.scale(memory._replace(server=before), cohort, moves.update)
  if client.record:
    after = client.record(memory._replace(server=after), cohort, update).server
  state = state._replace(server=state.server._replace(local=after))
  if server.when == "aggregate":
    return _take_steps(
      method,
      state,
      cohort,
      moves.playing,
      trees.scale(-1.0, update),
      key,
      moves.squares,
    )
  return state._replace(
    models=trees.add_scaled(state.models, server.aggregate_lr, update)
  )


def _by_updates(
  method: Clustered,
  state: ClusteredState,
  cohort: Cohort,
  assigned: Array,
  training: Training,
  weights: Array,
  key: Key,
  memberships: Array | None = None,
) -> tuple[ClusteredState, Moves]:
  """Moves every model by the mean update of its group, or by memberships."""
  rule, exchange = method.rule, method.exchange
  if memberships is None:
    starts = trees.index(state.models, assigned)
  else:
    starts = jax.vmap(trees.slot_mean, (0, None))(memberships, state.models)
  updates = exchange.receive(
    trees.subtract(training.trained.params, starts),
    cohort,
    server_key(key, FORGERIES),
    weights,
    assigned,
    rule.num_groups,
  )
  # The trained models as the server computes them: the models that it sent plus
  # the updates that it received.
  params = trees.add(starts, updates)
  state = rule.regroup(state, cohort, updates)
  groups = _last_group(state, cohort.ids)
  if memberships is None:
    of_group = jnp.where(trees.members(groups, rule.num_groups), weights[None], 0.0)
    mean, aggregates = _combine(method, state, cohort, groups, updates, weights, key)
  else:
    of_group = (weights[:, None] * memberships).T
    mean, aggregates = _combine_all(method, state, cohort, params, of_group.T, key)
  state = state._replace(aggregates=state.aggregates | aggregates)

  def distance(models):
    gap = trees.slot_norm(trees.subtract(params, trees.index(models, groups)))
    return {"discrepancy": trees.slot_mean(cohort.present.astype(jnp.float32), gap)}

  squares = None
  if method.server.needs_mean_square:
    square = trees.slot_norm(updates) ** 2
    squares = jax.vmap(trees.slot_mean, (0, None))(of_group, square)
  return state, Moves(groups, of_group.any(1), params, mean, distance, squares)


def _combine(
  method: Clustered,
  state: ClusteredState,
  cohort: Cohort,
  groups: Array,
  updates: Params,
  weights: Array,
  key: Key,
  name: str = "updates",
) -> tuple[Params, dict[str, PyTree]]:
  """The means of the K groups, 0 for an empty one, and what is kept of them.

  ``name`` says what is combined, one of ``PURPOSES``.
  """
  exchange, k = method.exchange, method.rule.num_groups
  whole_divisor = method.rule.whole_divisor
  if exchange.aggregator.is_mean:
    return trees.group_mean(weights, groups, k, updates, all_slots=whole_divisor), {}
  of_group = jnp.where(trees.members(groups, k), weights[None], 0.0)
  moves, aggregates = jax.vmap(
    lambda weights, key, last: exchange.combine(updates, weights, cohort, key, last)
  )(of_group, server_keys(key, PURPOSES[name], k), state.aggregates.get(name))
  if whole_divisor:
    moves = trees.scale_slots(
      of_group.sum(1) / jnp.maximum(weights.sum(), 1e-30), moves
    )
  return moves, {} if aggregates is None else {name: aggregates}


def _combine_all(
  method: Clustered,
  state: ClusteredState,
  cohort: Cohort,
  params: Params,
  weights: Array,
  key: Key,
) -> tuple[Params, dict[str, PyTree]]:
  """``_combine`` where all trained models count by weights [S, K] in every mean."""
  exchange = method.exchange
  if exchange.aggregator.is_mean:
    total = weights.sum(0)
    means = trees.slot_sum(weights / jnp.maximum(total, 1e-30)[None], params)
    means = trees.where_slots(total > 0, means, state.models)
    return trees.subtract(means, state.models), {}
  moves, aggregates = jax.vmap(
    lambda model, weights, key, last: exchange.combine(
      trees.subtract_one(params, model), weights, cohort, key, last
    )
  )(
    state.models,
    weights.T,
    server_keys(key, UPDATES, method.rule.num_groups),
    state.aggregates.get("updates"),
  )
  return moves, {} if aggregates is None else {"updates": aggregates}


def _by_sums(
  method: Clustered,
  state: ClusteredState,
  cohort: Cohort,
  assigned: Array,
  training: Training,
  weights: Array,
  key: Key,
) -> tuple[ClusteredState, Moves]:
  """Moves models as ``_by_updates`` does, but reads only the sum of the updates."""
  rule, before = method.rule, state.models
  groups = _last_group(state, cohort.ids)
  in_group = jnp.where(trees.members(groups, rule.num_groups), weights[None], 0.0)

  def distance(models):
    of_group = in_group.sum(1)
    divisors = of_group
    if rule.whole_divisor:
      divisors = jnp.full_like(of_group, weights.sum())
    return {
      "discrepancy_rms": stacking.group_spread(
        weights,
        training.squares,
        trees.subtract(models, before),
        training.total,
        divisors,
        of_group,
      )
    }

  squares = None
  if method.server.needs_mean_square:
    squares = jax.vmap(trees.slot_mean, (0, None))(in_group, training.squares)
  return state, Moves(groups, in_group.any(1), (), training.total, distance, squares)


def _assign(
  method: Clustered, state: ClusteredState, cohort: Cohort, key: Key
) -> tuple[Array, PyTree]:
  """Groups [S] and notes [S, ...] of the participants."""
  rule = method.rule
  keys = client_keys(_rule_key(key, state.member.shape[0]), cohort.ids)

  def one_client(shared, shard, client_row, member, key):
    models, shared = shared
    return rule.assign(models, shared, client_row, member, shard, key)

  result: tuple[Array, PyTree] = method.map_clients(
    one_client,
    (state.models, rule.shared(state.memory)),
    cohort.shards,
    rule.client_rows(state.memory, cohort.ids),
    _last_group(state, cohort.ids),
    keys,
  )
  return result


def _last_group(state: ClusteredState, ids: Array) -> Array:
  """The last group of each client id; -1 for an id that is out of range."""
  return state.member.at[ids].get(mode="fill", fill_value=-1)


def _log(
  method: Clustered,
  before: ClusteredState,
  after: ClusteredState,
  cohort: Cohort,
  groups: Array,
  loss: Array,
) -> dict[str, Array]:
  """Reports on the server after a round, besides the discrepancy.

  Without participants the state stays what it was before (``Algorithm.idle``).
  """
  rule, k = method.rule, method.num_models
  playing = trees.members(groups, k) & cohort.present[None]
  member = jnp.where(
    cohort.present.any(), rule.membership(after), rule.membership(before)
  )
  members = trees.members(member, k)
  return {
    "train_loss": trees.slot_mean(cohort.weight, loss),
    "participants": playing.sum(1, dtype=jnp.int32),
    "members": members.sum(1, dtype=jnp.int32),
    **jax.vmap(method.server.report, axis_size=k)(after.server.step),
  }


def _cost(
  method: Clustered,
  before: ClusteredState,
  after: ClusteredState,
  cohort: Cohort,
  gradients: PyTree,
  notes: PyTree,
) -> tuple[RoundCost, Work]:
  """The cost of the round, and the work of each participant."""
  participants = cohort.present.sum(dtype=jnp.int32)
  # Those who were lost share what all receive, so that its total is the same.
  receivers = None if cohort.draw is None else cohort.draw.asked
  num_asked = participants
  if receivers is not None:
    num_asked = (receivers < before.member.shape[0]).sum(dtype=jnp.int32)
  extra = method.rule.extra(before, after, cohort, notes)
  down = extra.down.shared_by(jnp.maximum(num_asked, 1))
  # Without participants the round is undone (``Algorithm.idle``).
  down = jnp.where(participants > 0, down, 0)
  up = extra.up.shared_by(jnp.maximum(participants, 1))
  if method.statistics:  # each model that a client measures comes with its own
    down += method.statistics * (max(1, extra.evaluations) - 1)
  size = num_params(before.models) // method.num_models
  in_one = isinstance(extra.exchanges, int) and not extra.exchanges
  if in_one and isinstance(extra.evaluations, int) and extra.evaluations > 1:
    # A client chooses its group itself, so it is sent what the server keeps for each.
    assert not callable(method.client.extra_down)  # without `compress_down`
    down += int(method.client.extra_down * size) * (extra.evaluations - 1)
  if method.client.mean_row:  # who changes its group takes its row along
    up += size
  cost, work = costs(
    method,
    cohort,
    (),
    gradients,
    after.server.step,
    evaluations=extra.evaluations,
    floats=(down, up),
    flops=extra.flops,
    means=method.num_models,
  )
  return cost._replace(
    exchanges=cost.exchanges + extra.exchanges,
    example_gradients=cost.example_gradients + extra.example_gradients,
  ), Work(
    work.flops
    + ledger.GRADIENT_PASSES
    * method.model.flops
    * jnp.asarray(extra.own_gradients, jnp.float32),
    work.batches + jnp.asarray(extra.own_batches, jnp.float32),
  )


def _client_params(
  method: Clustered, state: ClusteredState, client_id: Array, shard: Shard, key: Key
) -> Params:
  """The model of the group to which the rule assigns the client."""
  rule, ids = method.rule, client_id[None]
  deployed = deployed_models(method.server, state.models, state.server.step)
  last, models, places = _last_group(state, ids)[0], deployed, None
  if rule.joinable is not None:
    # A model that may be deployed stands in the place of every other one.
    joinable = rule.joinable(state)
    stays = joinable | ~joinable.any() | (last >= 0)
    places = jnp.where(stays, jnp.arange(rule.num_groups), jnp.argmax(joinable))
    models = trees.index(models, places)
  if jax.tree.leaves(state.states):
    shard = shard._replace(state=state.states)
  group, _ = rule.assign(
    models,
    rule.shared(state.memory),
    trees.index(rule.client_rows(state.memory, ids), 0),
    last,
    shard,
    key,
  )
  if places is not None:
    group = places[group]
  return trees.index(with_states(method.model, deployed, state.states), group)
