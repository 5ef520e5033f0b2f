"""Personal parameters and running statistics of clients (``models.roles``).

``with_own`` gives any local method personal parameters and running statistics.
What the method sees are the shared parameters: the vectors that it corrects,
keeps and sends have nothing of the others. Where its local steps ask for a
gradient (``client.minibatches.fold_steps``), the personal parameters take a
step of their own, with the gradient at the same point and on the same
mini-batch:

  p_i <- p_i - rate * grad_p f(w_i, p_i; B)

and running statistics become those after the forward pass, at the first
parameters that the method asks for, which for variance-reduced steps is the
moving model and not the reference. So the reduction of variance acts on the
shared parameters alone.

The part `personal` (``roles.PersonalTraining``) says when personal parameters move:

- together: with every local step, as in FedPer (Arivazhagan et al.,
  arXiv:1912.00818) and in LG-FedAvg (Liang et al., arXiv:2001.01523), where the
  personal layers are the first ones.
- first: some steps before the method's own, at the shared parameters that were
  received, and not in its steps (FedRep: Collins et al., ICML 2021,
  Algorithm 1).
- evaluation: in no round; a client fits them when it deploys the model
  (FedBABU: Oh et al., ICLR 2022, whose body is shared and whose head is not).

Their rate is that of the method's local steps, with the factor that
`client_lr_schedule` has in the round. A client that deploys the model fits them
at the rate of round 1, as this must not depend on when it does so.

With its `steps` a client that no round has trained yet (a newcomer) fits its
personal parameters on its own data before it deploys the model, whatever
the part is. Statistics move in all these steps, too; those that the
client keeps (`model_state`=local; FedBN: Li et al., ICLR 2021) in the steps of
this fit even if no parameter is personal.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import split, trees
from fedjax_alg.base import (
  Algorithm,
  Array,
  Cohort,
  Key,
  MapClients,
  Model,
  Params,
  Shard,
  initial_shapes,
)
from fedjax_alg.client import minibatches
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import (
  ClientOptimizer,
  Schedule,
  local_optimizer,
)
from fedjax_alg.client.update import (
  ClientUpdate,
  Place,
  Received,
  Trained,
  fetch_rows,
  with_rows,
)
from fedjax_alg.data.store import is_on_host
from fedjax_alg.errors import OptionError, RowsOnHostError
from fedjax_alg.models.roles import (
  ClientLeaves,
  PersonalAtEvaluation,
  PersonalFirst,
  PersonalTogether,
)
from fedjax_alg.typing import PyTree

# Folded into a client's key for the steps with its personal parameters alone.
_PERSONAL_FIT = 0x9E45


class Row(NamedTuple):
  """A client's personal state; leaves [C, ...] in the table of all clients."""

  leaves: Params  #: its personal parameters
  trained: Array  #: [] bool, whether it has taken part in a round
  state: Params = ()  #: its running statistics


def _fit_work(model: Model, work: LocalWork) -> LocalWork:
  """The steps with the personal parameters alone."""
  steps = model.roles.personal.steps
  return work.with_steps(steps) if steps else work


def _fit_personal(
  model: Model,
  client: ClientUpdate,
  shared: Params,
  leaves: ClientLeaves,
  shard: Shard,
  key: Key,
  rounds: Array | int = 0,
) -> ClientLeaves:
  """Trains a client's personal parameters, the shared parameters fixed.

  Args:
    model: the model of the shared parameters.
    client: the local method, of which the number of steps and the rate are.
    shared: the shared parameters.
    leaves: the personal parameters and the statistics to start from.
    shard: the client's training data.
    key: consumed.
    rounds: [] int32, see ``rate_of_round``.
  """
  rate = _rate(model, client, shard, rounds)

  def step(gradient, params):
    ((_, grad),) = gradient(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, grad)

  personal, (_, state) = minibatches.fold_steps(
    model.roles.personal_model(model, shared),
    shard._replace(personal=None, state=leaves.state),
    _fit_work(model, client.work),
    jax.random.fold_in(key, _PERSONAL_FIT),
    step,
    leaves.personal,
  )
  return ClientLeaves(personal, None if leaves.state is None else state)


def _rate(model: Model, client: ClientUpdate, shard: Shard, rounds: Array | int) -> Any:
  """The learning rate of personal parameters; 0 where there are none."""
  rate = model.roles.personal.rate
  if rate or not model.roles.has_personal:
    return rate
  return rate_of_round(client, shard, rounds)


def rate_of_round(client: ClientUpdate, shard: Shard, rounds: Array | int) -> Any:
  """The learning rate of the local steps in a round, with its schedule.

  Args:
    client: the local method, which has a learning rate; its schedule, if any, is
      over rounds (``refuse_rate_of_steps``).
    shard: the client's data, or those of several.
    rounds: [] int32, rounds completed before this one; 0: the rate of round 1.

  Returns:
    The rate, [], or [S] of several clients.
  """
  assert client.learning_rate is not None
  rate: Any = client.learning_rate(shard)
  options = client.work
  optimizer = local_optimizer(options) if isinstance(options, ClientOptimizer) else None
  if optimizer is None or optimizer.schedule is None:
    return rate
  return rate * optimizer.schedule(jnp.asarray(rounds, jnp.int32))


def refuse_rate_of_steps(client: ClientUpdate, why: str) -> None:
  """Refuses a learning rate that changes from one local step to the next.

  Args:
    client: the local method.
    why: who needs one rate for a round.

  Raises:
    OptionError: its schedule is over steps.
  """
  schedule = getattr(client.work, "client_lr_schedule", None)
  if isinstance(schedule, Schedule) and schedule.over == "steps":
    raise OptionError(f"`client_lr_schedule`={schedule}: {why} (allowed: over=rounds)")


#: Why updates cannot be made private with the server's statistics.
_STATE_IS_SENT = (
  "the model's running statistics are sent without noise "
  "(`model_state`=local or batch sends none)"
)


def _check(client: ClientUpdate, model: Model) -> None:
  """Refuses leaves of clients' own that a local method cannot have."""
  roles, why = model.roles, client.no_personal_because
  if why and roles.has_personal:
    raise OptionError(f"`roles`=personal: not with this local method, which {why}")
  if why:
    raise OptionError(
      f"`model_state`={roles.model_state}: not with this local method, which "
      f"{why} (allowed: batch)"
    )
  if roles.has_personal and client.learning_rate is None and (not roles.personal.rate):
    raise OptionError(
      f"`personal`={roles.personal}: the local method has no learning rate of its own "
      "(give a `rate` above 0)"
    )
  in_rounds = not isinstance(roles.personal, PersonalAtEvaluation)
  if roles.has_personal and in_rounds and not roles.personal.rate:
    refuse_rate_of_steps(
      client,
      f"`personal`={roles.personal} has one rate in a round; give it a `rate` above 0",
    )


def with_own(client: ClientUpdate, model: Model) -> ClientUpdate:
  """The local method with what clients have beside the shared parameters.

  Args:
    client: the local method of the shared parameters.
    model: their model.

  Returns:
    The local method, whose ``Trained.leaves`` has the statistics after the local
    steps. What clients keep, personal parameters and `model_state`=local, is a
    table beside its memory.

  Raises:
    OptionError: the local method cannot have them.
  """
  roles = model.roles
  if roles is None or not (roles.has_personal or roles.has_state):
    return client
  _check(client, model)
  training = roles.personal if roles.has_personal else None
  local, first_shapes = (
    roles.has_state and not roles.sends_state,
    initial_shapes(roles.start),
  )

  def train_with_personal(train_method, received, shard, personal, key):
    """Runs the method; returns also personal parameters and statistics."""
    if isinstance(training, PersonalFirst):
      personal, state = _fit_personal(
        model,
        client,
        received.start,
        ClientLeaves(personal, shard.state),
        shard,
        key,
        received.round,
      )
      shard = shard._replace(state=state)
    moves = isinstance(training, PersonalTogether)
    rate = _rate(model, client, shard, received.round) if moves else None
    result = train_method(shard._replace(personal=personal, rate=rate))
    after, state = result.leaves
    for is_moved, kind in (
      (not moves or jax.tree.leaves(after), "`roles`=personal"),
      (
        not roles.has_state or jax.tree.leaves(state),
        f"`model_state`={roles.model_state}",
      ),
    ):
      if not is_moved:
        raise OptionError(
          f"{kind}: `train` of the local method must return as `leaves` what "
          "`fold_steps` returns beside the carry"
        )
    result = _count_first_steps(result, model, client, shard)
    return result, after if moves else personal, state

  if not roles.keeps:

    def train_with_state(received, shard, row, key):
      return train_with_personal(
        lambda shard: client.train_checked(received, shard, row, key),
        received,
        shard,
        None,
        key,
      )[0]

    return client._replace(
      train=train_with_state, unprotected=client.leak or _STATE_IS_SENT
    )

  def init(params, spec):
    leaves, state = jax.tree.map(
      lambda leaf: jnp.zeros((spec.num_clients, *leaf.shape), leaf.dtype), first_shapes
    )
    return Row(leaves, jnp.zeros(spec.num_clients, bool), state if local else ())

  def train(
    train_method: Callable[..., Trained],
    received: Received,
    shard: Shard,
    row: Row,
    key: Key,
  ) -> tuple[Trained, Row]:
    if local:
      shard = shard._replace(state=row.state)
    result, personal, state = train_with_personal(
      train_method, received, shard, row.leaves, key
    )
    return result, Row(personal, row.trained | (shard.size > 0), state if local else ())

  extended = with_rows(
    client,
    init,
    train,
    message="`roles`=personal: the local method's table has a row for each mini-batch"
    if roles.has_personal
    else "`model_state`=local: the local method's table has a row for each mini-batch",
    unprotected=client.leak or (_STATE_IS_SENT if roles.sends_state else ""),
  )
  return extended._replace(
    personal=Place(lambda table: table[0], lambda table, rows: (rows, table[1]))
  )


def _count_first_steps(
  trained: Trained, model: Model, client: ClientUpdate, shard: Shard
) -> Trained:
  """The costs with those of the steps before the method's own."""
  roles = model.roles
  if not (roles.has_personal and isinstance(roles.personal, PersonalFirst)):
    return trained
  gradients = trained.gradients
  if gradients is None:
    gradients = client.gradients_per_step * client.work.examples_read(
      shard.size, shard.part
    )
  return trained._replace(
    gradients=gradients + _fit_work(model, client.work).examples_read(shard.size)
  )


def first_states(model: Model, models: int) -> Params:
  """The server's first statistics [K, ...]; () if it keeps none.

  They are those of seed 0 for every seed of a run, as frozen parameters are.
  """
  if model.roles is None or not model.roles.sends_state:
    return ()
  return trees.repeat(model.roles.start(jax.random.key(0)).state, models)


def with_states(model: Model, params: Params, states: Params) -> Params:
  """Models of the shared parameters, joined with the server's statistics."""
  return model.roles.join(params, states) if jax.tree.leaves(states) else params


def attach_client_leaves(
  client: ClientUpdate,
  memory: PyTree,
  states: Params,
  cohort: Cohort,
  map_clients: MapClients,
  models: int | None = None,
  reads_everyone: bool = False,
) -> Cohort:
  """The cohort whose shards hold what clients compute with.

  Args:
    client: the local method.
    memory: its memory.
    states: the server's statistics [...], [K, ...] in a round of K models; ()
      if it keeps none.
    cohort: the participants.
    map_clients: how clients are mapped.
    models: K in a round of K models, where statistics have this axis.
    reads_everyone: whether the round measures models on the data of clients that do
      not take part; with newcomers it may in any case.
  """
  slots = cohort.ids.shape[0]
  reads_everyone |= cohort.newcomers is not None
  if client.personal is not None:
    rows = _rows(client, memory, cohort, map_clients)
    cohort = cohort._replace(shards=_with_rows(cohort.shards, rows, models))
    if reads_everyone and cohort.everyone is not None:
      of_all = _with_all_rows(client, memory, cohort.everyone, map_clients, models)
      cohort = cohort._replace(everyone=of_all)
  if not jax.tree.leaves(states):
    return cohort
  everyone, validation = cohort.everyone, cohort.validation
  if everyone is not None and reads_everyone:
    everyone = everyone._replace(state=trees.repeat(states, everyone.size.shape[0]))
  if validation is not None:
    validation = validation._replace(state=states)
  return cohort._replace(
    shards=cohort.shards._replace(state=trees.repeat(states, slots)),
    everyone=everyone,
    validation=validation,
  )


def _of_models(state: Params, models: int | None, axis: int) -> Params:
  """Statistics with an axis of K models; None if there are none."""
  if not jax.tree.leaves(state):
    return None
  if models is None:
    return state
  return jax.tree.map(
    lambda leaf: jnp.repeat(jnp.expand_dims(leaf, axis), models, axis), state
  )


def _with_rows(shards: Shard, rows: Row, models: int | None) -> Shard:
  """Shards [S] with what their clients keep."""
  return shards._replace(personal=rows.leaves, state=_of_models(rows.state, models, 1))


def _with_all_rows(
  client: ClientUpdate,
  memory: PyTree,
  everyone: Shard,
  map_clients: MapClients,
  models: int | None,
) -> Shard:
  """The shards of all clients [C] with what each of them keeps.

  Where the rows are on the host, they stay as they are: code that maps all clients
  there gets their examples alone (``engine.windows``).
  """
  assert client.store is not None and client.personal is not None
  table = client.personal.get(client.store.get(memory))._replace(trained=())
  if split.within(table):
    ids = jnp.arange(everyone.size.shape[0], dtype=jnp.int32)
    cohort = Cohort(ids, everyone, everyone.size.astype(jnp.float32))
    return _with_rows(everyone, fetch_rows(table, cohort, map_clients), models)
  is_table = lambda leaf: split.is_held(leaf) or split.is_absent(leaf)
  if any(map(is_table, jax.tree.leaves(table, is_leaf=is_table))):
    return everyone
  return _with_rows(everyone, table, models)  # no copy of it


def _rows(
  client: ClientUpdate, memory: PyTree, cohort: Cohort, map_clients: MapClients
) -> Row:
  """Reads the participants' rows of the table, [S, ...]."""
  assert client.store is not None and client.personal is not None
  table = client.personal.get(client.store.get(memory))
  row: Row = fetch_rows(table._replace(trained=()), cohort, map_clients)
  return row


class Places(NamedTuple):
  """Where the state of an algorithm has what clients compute with."""

  memory: Callable[[Any], Any]  #: state -> the memory of the local method
  put: Callable[[Any, Any], Any]  #: (state, memory) -> state
  #: state -> the server's statistics, see ``attach_client_leaves``
  states: Callable[[Any], Params]
  #: K in a round of K models, where statistics have this axis
  models: int | None
  #: see ``attach_client_leaves``
  reads_everyone: bool = False


def with_client_leaves(
  algorithm: Algorithm,
  client: ClientUpdate,
  model: Model,
  map_clients: MapClients,
  places: Places,
) -> Algorithm:
  """The algorithm whose clients compute with what they keep, and deploy it.

  Args:
    algorithm: the algorithm of the shared parameters and of the server's
      statistics.
    client: its local method, with leaves that clients keep or without.
    model: the model of the shared parameters, with roles.
    map_clients: how clients are mapped.
    places: where the state has them.
  """
  roles, inner = model.roles, algorithm
  memory, put, _, models, reads_everyone = places

  def run_round(state, cohort, key):
    cohort = attach_client_leaves(
      client,
      memory(state),
      places.states(state),
      cohort,
      map_clients,
      models,
      reads_everyone,
    )
    return inner.round(state, cohort, key)

  def setup(state, everyone, key):
    if reads_everyone and is_on_host(everyone.shards.x):
      raise RowsOnHostError(
        "`data_on`=host: not with layers or statistics that clients keep, of which "
        "this method reads all clients' before round 1 (allowed: device)"
      )
    # The server's statistics are still those of a shard without any.
    shards = _with_all_rows(client, memory(state), everyone.shards, map_clients, models)
    return inner.setup(state, everyone._replace(shards=shards), key)

  algorithm = algorithm._replace(keeps_state=roles.has_state)
  if roles.has_state or client.personal is not None:
    algorithm = algorithm._replace(round=run_round)
  if client.personal is None:
    return algorithm
  if reads_everyone or client.needs("setup"):
    algorithm = algorithm._replace(setup=setup)
  store, place, options = client.store, client.personal, roles.personal
  by_itself = roles.has_personal and isinstance(options, PersonalAtEvaluation)
  assert store is not None

  def client_params(state, client_id, shard, key):
    table = place.get(store.get(memory(state)))
    row = trees.rows(table, client_id)
    # A client that the state does not know has no row.
    is_known = client_id < trees.num_rows(table.trained)
    first = ClientLeaves(shard.personal, shard.state)
    if shard.personal is None and shard.state is None:
      first = roles.start(jax.random.key(0))
    leaves = ClientLeaves(trees.where(is_known, row.leaves, first.personal), None)
    if jax.tree.leaves(row.state):
      leaves = leaves._replace(state=trees.where(is_known, row.state, first.state))
    params = inner.client_params(
      state,
      client_id,
      shard._replace(
        personal=leaves.personal, state=_of_models(leaves.state, models, 0)
      ),
      key,
    )
    shared = roles.of("shared", params)
    if roles.sends_state:
      leaves = leaves._replace(state=roles.of("state", params))
    if by_itself or options.steps:
      fits = by_itself | ~(is_known & row.trained)
      leaves = trees.where(
        fits, _fit_personal(model, client, shared, leaves, shard, key), leaves
      )
    return roles.join(shared, *leaves)

  def start_personal(state, first_leaves):
    table = store.get(memory(state))
    rows = place.get(table)
    leaves, state_rows = jax.tree.map(
      lambda leaf, row: jnp.broadcast_to(leaf, row.shape),
      (
        first_leaves.personal,
        first_leaves.state if jax.tree.leaves(rows.state) else (),
      ),
      (rows.leaves, rows.state),
    )
    tables = map_clients.keep((leaves, state_rows))
    return put(
      state,
      store.put(
        memory(state),
        place.put(table, rows._replace(leaves=tables[0], state=tables[1])),
      ),
    )

  return algorithm._replace(client_params=client_params, start_personal=start_personal)
