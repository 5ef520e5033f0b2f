"""A local method in groups, each with a model and a memory.

What a method does with a cohort, it does in every group with the cohort of the group:
its participants, its members among all clients, those that have just joined it. So the
control variates, momenta and statistics of a group are as in a federation of its
members. A participant that changes its group takes what it keeps along.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import split, trees
from fedjax_alg.base import Array, Cohort, FedSpec, MapClients, Params
from fedjax_alg.client.update import ClientUpdate, MeanRow, Store, fetch_rows
from fedjax_alg.errors import OptionError
from fedjax_alg.typing import PyTree


class GroupedMemory(NamedTuple):
  """The memory of a local method in K groups, and the groups of a round."""

  server: PyTree  #: [K, ...], what the server keeps for each group
  clients: PyTree  #: [C, ...], what clients keep, in whichever group they are
  groups: Array  #: [S] int32, the participants' groups; -1 on padding slots
  member: Array  #: [C] int32, every client's group; -1: none yet
  before: Array  #: [C] int32, the same before this round


def split_memory(client: ClientUpdate, memory: PyTree) -> tuple[PyTree, PyTree]:
  """The memory of a local method: what the server keeps, and what clients keep.

  Args:
    client: the local method.
    memory: its memory.

  Returns:
    The memory without the table of its store, and this table; () if it has none.
  """
  if not client.store:
    return memory, ()
  table = client.store.get(memory)
  nothing = split.tree_map(lambda leaf: None, lambda leaf: None, table)
  return client.store.put(memory, nothing), table


def init_memory(
  client: ClientUpdate, params: Params, spec: FedSpec, k: int
) -> tuple[PyTree, PyTree]:
  """The memory before round 1: that of the server [K, ...], and of the clients."""
  server, clients = split_memory(client, client.init(params, spec))
  return trees.repeat(server, k), clients


def setup_memory(
  client: ClientUpdate,
  server: PyTree,
  clients: PyTree,
  models: Params,
  everyone: Cohort,
  map_clients: MapClients,
) -> tuple[PyTree, PyTree]:
  """``ClientUpdate.setup``, once; all groups start with the same.

  Args:
    client: the local method.
    server: its memory in every group, equal copies [K, ...].
    clients: [C, ...], what clients keep.
    models: [K, ...]; it is set up at the first.
    everyone: all clients as one cohort.
    map_clients: how one client's code is mapped over the clients.
  """
  memory = _join(client, trees.index(server, 0), clients)
  first, clients = split_memory(
    client, client.setup(memory, trees.index(models, 0), everyone, map_clients)
  )
  return trees.repeat(first, len(jax.tree.leaves(models)[0])), clients


def _join(client: ClientUpdate, server: PyTree, clients: PyTree) -> Any:
  """The memory of one group; the inverse of ``split_memory``."""
  return client.store.put(server, clients) if client.store else server


def cohort_of_group(
  cohort: Cohort, memory: GroupedMemory, group: Array | int
) -> Cohort:
  """The cohort of a group, with empty places where others were.

  Args:
    cohort: the participants, [S].
    memory: the groups of the round.
    group: [] int32.

  Returns:
    The cohort. Others have size and weight 0, and the id C. Among ``everyone`` all
    but the group's members have size 0. Its ``newcomers`` are those that join it.
  """
  inside, members = memory.groups == group, memory.member == group
  everyone, shards = cohort.everyone, cohort.shards
  if everyone is not None:
    everyone = everyone._replace(size=jnp.where(members, everyone.size, 0))
  return cohort._replace(
    ids=jnp.where(inside, cohort.ids, memory.member.shape[0]),
    shards=shards._replace(size=jnp.where(inside, shards.size, 0)),
    weight=jnp.where(inside, cohort.weight, 0.0),
    everyone=everyone,
    newcomers=members & (memory.before != memory.member),
  )


def for_groups(client: ClientUpdate, k: int) -> ClientUpdate:
  """The local method in K groups, with a ``GroupedMemory``.

  Its functions take the models, updates and anchor gradients of all groups, [K, ...].
  A group without participants keeps its memory, and its update is 0.

  Args:
    client: the local method for one model.
    k: K.

  Raises:
    OptionError: it keeps rows that are not one for each client.
  """
  store = client.store
  if store and not store.one_row:
    raise OptionError(
      "`client_update`: the local method keeps rows that groups cannot have, "
      "measured at one model (allowed: one row for each client)"
    )

  def in_each(fn: Callable[..., Any], memory: Any, cohort: Cohort, *args: Any) -> Any:
    """Calls fn(memory, cohort, *args) of each group; ``args`` are [K, ...]."""

    def in_group(group: Array, server: PyTree, *args: Any) -> Any:
      return fn(
        _join(client, server, memory.clients),
        cohort_of_group(cohort, memory, group),
        *args,
      )

    return jax.vmap(in_group)(jnp.arange(k, dtype=jnp.int32), memory.server, *args)

  def keep_others(memory: Any, new: PyTree, old: PyTree) -> Any:
    """``new`` [K, ...] of the groups with participants, and ``old`` of the others."""
    playing = trees.members(memory.groups, k).any(1)
    return trees.where_slots(playing, new, old)

  def change(fn: Callable[..., Any], memory: Any, cohort: Cohort, *args: Any) -> Any:
    new = in_each(
      lambda *args: split_memory(client, fn(*args))[0], memory, cohort, *args
    )
    return memory._replace(server=keep_others(memory, new, memory.server))

  def merge(memory, cohort, uploads, anchors):
    def of_group(memory, cohort, anchor, *summed):
      uploads_here = summed[0] if summed else uploads
      return client.merge(memory, cohort, uploads_here, trees.repeat(anchor, 1))

    summed = [uploads] if client.upload_weights else []
    return change(of_group, memory, cohort, anchors, *summed)

  def refresh(memory, params, cohort, map_clients):
    join: Any = client.refresh
    if client.needs("setup"):  # it has the reports of all clients from the start
      if cohort.newcomers is None:
        return memory
      half = _join(client, trees.index(memory.server, 0), memory.clients)
      half = join(half, trees.index(params, 0), cohort, map_clients)
      return memory._replace(server=trees.repeat(split_memory(client, half)[0], k))
    if client.mean_row:
      return move_means(client.mean_row, memory, cohort, map_clients)
    of_group = lambda memory, cohort, params: join(memory, params, cohort, map_clients)
    return change(of_group, memory, cohort, params)

  def move_means(
    mean_row: MeanRow, memory: Any, cohort: Cohort, map_clients: MapClients
  ) -> Any:
    """The means of the groups' rows, after participants have changed groups."""
    weight = mean_row.weigh(cohort)
    total, new_total = (
      trees.members(member, k).astype(jnp.float32) @ weight
      for member in (memory.before, memory.member)
    )
    previous = memory.before.at[cohort.ids].get(mode="fill", fill_value=-1)
    weight = weight.at[cohort.ids].get(mode="fill", fill_value=0.0)
    weight = jnp.where(cohort.present, weight, 0.0)[None]
    came, went = (
      trees.members(groups, k).astype(jnp.float32)
      for groups in (memory.groups, previous)
    )
    # 0 of those who stay in their group.
    shares = weight * (came - went) / jnp.maximum(new_total, 1.0)[:, None]
    rows = mean_row.rows(fetch_rows(memory.clients, cohort, map_clients))
    gains = jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, 1), rows)
    ratios = total / jnp.maximum(new_total, 1.0)

    def move(memory, cohort, ratio, gain):
      return split_memory(client, mean_row.move(memory, ratio, gain))[0]

    new = in_each(move, memory, cohort, ratios, gains)
    has_changed = (total != new_total) | (shares != 0).any(1)
    return memory._replace(server=trees.where_slots(has_changed, new, memory.server))

  def client_rows(memory, cohort, keys):
    of_group = lambda memory, cohort: client.client_rows(memory, cohort, keys)
    rows = in_each(of_group, memory, cohort)
    slots = jnp.arange(cohort.ids.shape[0])
    return memory.groups, jax.tree.map(lambda leaf: leaf[memory.groups, slots], rows)

  def train(received, shard, client_row, key):
    stored, (group, row) = client_row if store else ((), client_row)
    if store:
      row = (stored, row) if jax.tree.leaves(row) else stored
    shared = trees.index(received.shared, group)
    return client.train(received._replace(shared=shared), shard, row, key)

  parts: dict[str, Any] = {}
  if store:
    parts["store"] = Store(
      lambda memory: memory.clients,
      lambda memory, table: memory._replace(clients=table),
      store.write,
    )
  if client.needs("shared", "client_rows"):
    parts |= dict(train=train, client_rows=client_rows)
  if client.needs("shared"):
    parts["shared"] = lambda memory: jax.vmap(
      lambda server: client.shared(_join(client, server, memory.clients)), axis_size=k
    )(memory.server)
  if client.upload_weights:
    weights: Any = client.upload_weights
    parts["upload_weights"] = lambda memory, cohort: in_each(weights, memory, cohort).T
  if client.needs("merge"):
    parts["merge"] = merge
  if client.record:
    record: Any = client.record
    parts["record"] = lambda *args: change(record, *args)
  if client.needs("scale"):
    parts["scale"] = lambda memory, cohort, update: keep_others(
      memory,
      in_each(client.scale, memory, cohort, update),
      jax.tree.map(jnp.zeros_like, update),
    )
  if client.refresh:
    parts["refresh"] = refresh
  return client._replace(**parts)
