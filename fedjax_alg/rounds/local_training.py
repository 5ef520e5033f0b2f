"""The local training of a round's participants, in every kind of round."""

import functools
from typing import Any, NamedTuple

import jax

from fedjax_alg import trees
from fedjax_alg.base import Array, Cohort, Key, MapClients, Params, Shard
from fedjax_alg.client.personal import attach_client_leaves
from fedjax_alg.client.update import ClientUpdate, Received, Store, Trained
from fedjax_alg.engine.keys import client_keys
from fedjax_alg.exchange import stacking
from fedjax_alg.typing import PyTree

#: Store of clients without a state.
_NOTHING: Store[Any, Any] = Store(lambda memory: (), lambda memory, table: memory)


class Training(NamedTuple):
  """Result of the participants' training."""

  #: leaves [S, ...]; ``params`` are () where only their updates' sum is kept
  trained: Trained
  table: Any  #: the new table of ``ClientUpdate.store``, or ()
  uploads: PyTree  #: what ``ClientUpdate.merge`` gets: their sum or all of them
  total: Params = ()  #: weighted sum of the updates, [...] or [K, ...]
  squares: Any = None  #: [S] float32, squared norm of each update; None: kept

  def merge(
    self, client: ClientUpdate, memory: PyTree, cohort: Cohort, anchors: PyTree
  ) -> Any:
    """The memory of the client's half after the round; anchors [K, ...]."""
    memory = client.merge(memory, cohort, self.uploads, anchors)
    return client.store.put(memory, self.table) if client.store else memory


def mean_statistics(
  before: Params, after: Params, cohort: Cohort, groups: Array | None = None
) -> Params:
  """The server's running statistics after a round: means by examples.

  Args:
    before: those before, [...] or [K, ...].
    after: those of the participants after their steps, [S, ...].
    cohort: the participants.
    groups: [S] int32, the group of each; None: there is one model.
  """
  weights = cohort.weight
  if groups is None:
    return trees.where(weights.sum() > 0, trees.slot_mean(weights, after), before)
  k = jax.tree.leaves(before)[0].shape[0]
  members = trees.members(groups, k) & cohort.present[None]
  return trees.where_slots(
    members.any(1), trees.group_mean(weights, groups, k, after), before
  )


def attach_new_leaves(
  client: ClientUpdate,
  memory: PyTree,
  training: Training,
  states: Params,
  cohort: Cohort,
  map_clients: MapClients,
  models: int | None = None,
) -> Cohort:
  """The cohort with what its clients and the server have after the training.

  Args:
    client: the client's half.
    memory: its memory before the training.
    training: the participants' training.
    states: the server's new statistics; see ``attach_client_leaves``.
    cohort: the participants.
    map_clients: how one client's code is mapped over the participants.
    models: see ``attach_client_leaves``.
  """
  if client.personal is not None:
    assert client.store is not None
    memory = client.store.put(memory, training.table)
  return attach_client_leaves(client, memory, states, cohort, map_clients, models)


def train(
  client: ClientUpdate,
  map_clients: MapClients,
  models: tuple[Params, Params, Params],
  rounds: Array,
  memory: PyTree,
  cohort: Cohort,
  key: Key,
  groups: Array | None = None,
  weights: Array | None = None,
) -> Training:
  """Trains every participant.

  Args:
    client: the client's half.
    map_clients: how one client's code is mapped over the participants.
    models: ``start``, ``reference`` and ``anchor`` of ``Received``.
    rounds: [] int32, rounds completed before this one.
    memory: that of the client's half.
    cohort: the participants.
    key: key of the round.
    groups: [S] int32, which of K models [K, ...] each participant gets; or
      [S, K] float32, its memberships, by which it gets the mean of the models
      (``Received.memberships``). None: there is one model.
    weights: [S], or [S, K] for K sums: factors of the updates in their sum;
      None: the trained models are kept.
  """
  store, weigh_uploads = client.store, client.upload_weights
  keys = client_keys(key, cohort.ids)
  data = (models, client.shared(memory), rounds), cohort.shards
  slots = (
    groups,
    cohort.ids,
    keys,
    cohort.part,
    client.client_rows(memory, cohort, keys),
  )
  if weights is None:
    table: Any = ()
    if store:
      table, trained = map_clients.change(
        functools.partial(_one_with_row, client),
        store.write,
        store.get(memory),
        store.places(memory, cohort, keys),
        *data,
        *slots,
      )
    else:
      trained = map_clients(functools.partial(_one_client, client), *data, *slots)
    uploads = trained.upload
    if weigh_uploads:
      uploads = trees.slot_sum(weigh_uploads(memory, cohort), uploads)
    return Training(trained, table, uploads)
  store = store or _NOTHING
  table, places = store.get(memory), store.places(memory, cohort, keys)
  factors = [weights]
  if weigh_uploads:
    factors.append(weigh_uploads(memory, cohort))
  table, total, (trained, squares) = map_clients.update(
    functools.partial(_in_sum, client),
    store.write,
    table,
    places,
    factors,
    *data,
    *slots,
  )
  uploads = total[1] if weigh_uploads else trained.upload
  return Training(trained, table, uploads, total[0], squares)


def _one_client(
  client: ClientUpdate,
  shared: Any,
  shard: Shard,
  group: Array | None,
  client_id: Array,
  key: Key,
  part: Array | None,
  client_row: Any,
) -> Trained:
  """The local training of one participant."""
  models, from_server, rounds = shared
  memberships = None
  if group is not None and group.ndim:
    memberships, models = group, trees.slot_mean(group, models)
  elif group is not None:
    models = trees.index(models, group)
    shard = shard._replace(state=trees.index(shard.state, group))
  start, reference, anchor = models
  return client.train_checked(
    Received(start, reference, anchor, from_server, rounds, client_id, memberships),
    shard._replace(part=part),
    client_row,
    key,
  )


def _one_with_row(
  client: ClientUpdate,
  shared: object,
  shard: Shard,
  row: Any,
  group: Array | None,
  client_id: Array,
  key: Key,
  part: Array | None,
  method_row: PyTree,
) -> tuple[Any, Trained]:
  """The local training of one participant: what it keeps, and the rest."""
  if not client.store:
    row = method_row
  elif jax.tree.leaves(method_row):
    row = row, method_row
  trained = _one_client(client, shared, shard, group, client_id, key, part, row)
  return trained.kept if client.store else (), trained._replace(kept=())


def _in_sum(
  client: ClientUpdate,
  shared: Any,
  shard: Shard,
  row: Any,
  group: Array | None,
  *slot: Any,
) -> tuple[Any, list[Any], Any]:
  """Trains a participant; returns its row, the values to sum, and the rest."""
  new_row, trained = _one_with_row(client, shared, shard, row, group, *slot)
  start = shared[0][0]
  if group is not None:
    start = trees.index(start, group)
  update = trees.subtract(trained.params, start)
  summed, remainder = [update], trained._replace(params=())
  if client.upload_weights:
    summed, remainder = [update, trained.upload], remainder._replace(upload=())
  return new_row, summed, (remainder, stacking.square(update))
