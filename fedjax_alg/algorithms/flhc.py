"""FL+HC: all clients are clustered once, by their updates, after some rounds.

Reference: Briggs, Fan, Andras, "Federated learning with hierarchical clustering
of local updates to improve training on non-IID data", IJCNN 2020. After n
rounds of FedAvg all clients train from the global model w and send their
updates. Agglomerative clustering of the updates gives the groups. Each group
then continues separately from w.

Deviations: the number of groups is bounded by ``max_groups``: if the distance
threshold leaves more groups, merging continues. A newcomer trains from w and
joins the group whose mean update is nearest to its own.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import grouping, trees
from fedjax_alg.algorithms.common import TreeCut, tree_cut
from fedjax_alg.algorithms.halves import GroupTraining, in_groups
from fedjax_alg.base import (
  Algorithm,
  Array,
  Cohort,
  Key,
  MapClients,
  Model,
  Params,
  Shard,
  builder,
  num_params,
)
from fedjax_alg.engine.keys import client_keys
from fedjax_alg.exchange import Exchange
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds import clustered
from fedjax_alg.rounds.clustered import ClusteredState, Extra, Messages, Rule


class FLHCHParams(GroupTraining):
  """Hyper-parameters of FL+HC."""

  max_groups: int = hyper(5, "largest number of groups", minimum=1)
  cluster_after: int = hyper(
    10,
    "n, number of rounds with one model before all clients are clustered",
    minimum=0,
    source="Briggs et al. study 1, 3, 5, 10",
    traced=True,
  )
  metric: str = hyper(
    "l1",
    "distance between the updates of two clients",
    choices=("l1", "l2", "cosine"),
    source="Briggs et al., l1 recommended",
  )
  linkage: str = hyper(
    "complete",
    "linkage of the clustering, which says how the distance "
    "between two groups follows from the distances of their members",
    choices=("single", "complete", "average", "ward"),
    source="Briggs et al., complete recommended",
  )
  cut: TreeCut = tree_cut("Briggs et al., T (distance)")


class Clustering(NamedTuple):
  """State of the server of FL+HC between rounds."""

  done: Array  #: [] bool, whether the clients have been clustered
  model: Params  #: w, the global model at the clustering
  directions: Array  #: [K, P], mean update of each group at the clustering
  size: Array  #: [K] int32, number of clients in each group at the clustering


def once_rule(model: Model, hparams: FLHCHParams, map_clients: MapClients) -> Rule:
  """FL+HC's rule: one clustering of all clients' updates gives the groups."""
  k = hparams.max_groups

  def update_of(params, shard, key):
    return clustered.pretrain(
      model, hparams, params, shard, key, rounds=hparams.cluster_after
    )

  def init(params, spec, key):
    return trees.repeat(params, k), Clustering(
      jnp.bool_(False),
      params,
      jnp.zeros((k, num_params(params))),
      jnp.zeros(k, jnp.int32),
    )

  def cluster(state: ClusteredState, everyone: Shard, key: Key) -> ClusteredState:
    ids = jnp.arange(state.member.shape[0], dtype=jnp.int32)
    start = trees.index(state.models, 0)
    updates = map_clients(update_of, start, everyone, client_keys(key, ids))
    return _cluster(hparams, state, start, updates, everyone.size > 0)

  def before(state: ClusteredState, cohort: Cohort, key: Key) -> ClusteredState:
    everyone = cohort.everyone
    assert everyone is not None
    if k == 1:
      return state
    # Later than after n rounds if nobody took part in the round after them.
    result: ClusteredState = jax.lax.cond(
      (state.round >= hparams.cluster_after) & ~state.memory.done,
      lambda: cluster(state, everyone, key),
      lambda: state,
    )
    return result

  def assign(models, memory, client_row, member, shard, key):
    new = memory.done & (member < 0)
    group = jax.lax.cond(
      new,
      lambda: _nearest(hparams.metric, memory, update_of(memory.model, shard, key)),
      lambda: jnp.maximum(member, 0),
    )
    return group, new

  return Rule(
    k,
    init,
    assign,
    shared=lambda memory: memory,
    before=before,
    moves_everyone=k > 1,
    reads_everyone=k > 1,
    extra=functools.partial(_extra, hparams),
    reads_updates=False,
  )


def _cluster(
  hparams: FLHCHParams,
  state: ClusteredState,
  start: Params,
  updates: Array,
  present: Array,
) -> ClusteredState:
  """The state after the clustering.

  Args:
    hparams: the number of groups and how they are made.
    state: the state before.
    start: w, from which all clients have trained.
    updates: [C, P], their updates.
    present: [C] bool, the clients that are there.
  """
  k = hparams.max_groups
  member = hparams.cut.groups(
    grouping.distances(updates, present, hparams.metric),
    present,
    hparams.linkage,
    k,
    grouping.rounding(updates, present, hparams.metric),
  )
  return state._replace(
    models=trees.repeat(start, k),
    member=member,
    states=trees.repeat(trees.index(state.states, 0), k),
    server=trees.repeat(trees.index(state.server, 0), k),
    memory=Clustering(
      jnp.bool_(True),
      start,
      trees.group_mean(present.astype(jnp.float32), member, k, updates),
      trees.members(member, k).sum(1, dtype=jnp.int32),
    ),
  )


def _nearest(metric: str, memory: Clustering, update: Array) -> Array:
  """The group whose mean update is nearest to a newcomer's, [] int32."""
  rows = jnp.concatenate([update[None], memory.directions])
  gap = grouping.distances(rows, jnp.ones(len(rows), bool), metric)[0, 1:]
  return jnp.argmin(jnp.where(memory.size > 0, gap, jnp.inf)).astype(jnp.int32)


def _extra(
  hparams: FLHCHParams,
  before: ClusteredState,
  after: ClusteredState,
  cohort: Cohort,
  new: Array,
) -> Extra:
  """The cost of the clustering round, and of newcomers that look for a group.

  In the clustering round every client trains once more.
  """
  size = num_params(before.models) // hparams.max_groups
  clients = len(before.member)
  now = after.memory.done & ~before.memory.done
  assert cohort.everyone is not None
  num_asked = jnp.where(now, (cohort.everyone.size > 0).sum(dtype=jnp.int32), 0)
  read, steps = (jax.vmap(hparams.examples_read), jax.vmap(hparams.num_steps))
  number = (new & cohort.present).sum(dtype=jnp.int32) + num_asked
  gradients = (
    jnp.where(now, read(cohort.everyone.size).sum(), 0)
    + jnp.where(new, read(cohort.shards.size), 0).sum()
  )
  return Extra(
    down=Messages(number, size),
    up=Messages(number, size),
    exchanges=(number > 0).astype(jnp.int32),
    example_gradients=gradients,
    flops=jnp.where(
      now,
      2.0 * clients * clients * size + hparams.cut.flops(clients, hparams.max_groups),
      0.0,
    ),
    own_gradients=jnp.where(now | new, read(cohort.shards.size), 0),
    own_batches=jnp.where(now | new, steps(cohort.shards.size), 0),
  )


@builder
def flhc(
  model: Model,
  hparams: FLHCHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ClusteredState]:
  """FL+HC: FedAvg, then one hierarchical clustering of all clients.

  After n = `cluster_after` rounds of FedAvg all clients train from the global
  model w and send their updates. Agglomerative clustering of the updates gives
  the groups. From then on each group runs FedAvg by itself, starting at w.
  With one group, FL+HC is FedAvg.
  """
  return in_groups(
    model,
    hparams,
    once_rule(model, hparams, map_clients),
    map_clients,
    exchange=exchange,
  )
