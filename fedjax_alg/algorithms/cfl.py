"""CFL: a group is split in two when its members pull apart.

Reference: Sattler, Mueller, Samek, "Clustered Federated Learning:
Model-Agnostic Distributed Multitask Optimization Under Privacy Constraints",
IEEE TNNLS 2020, and its public code. All clients start in one group. Let dW_k
be the last update of member k. After a round, a group is split if

  ||mean_k dW_k|| < eps1   and   max_k ||dW_k|| > eps2

The values of eps1 and eps2 depend on the learning rate, the local work and the
model. With ``thresholds``=relative they are multiples of R, the largest norm that
the mean update of all clients had in any round so far.

Agglomerative clustering of -cos(dW_k, dW_l) gives the two halves. The group is
split only if the halves are far enough apart (``gamma_max``). Each half then
moves by the mean update of its members.

Deviations: when only some clients take part in a round, the other members count
with their last update. A client that takes part for the first time, and a
newcomer, walks down the splits so far to find its group: at each split it
trains from the model that was split and follows the half whose mean update is
closest to its own update. (The paper compares with the updates of all members
of the halves.) By default means are weighted by n_i; the public code has
uniform means. The number of groups is bounded by ``max_groups``.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import grouping, trees
from fedjax_alg.algorithms.halves import GroupTraining, in_groups
from fedjax_alg.base import (
  Algorithm,
  Array,
  Cohort,
  FedSpec,
  Key,
  MapClients,
  Model,
  Params,
  Shard,
  builder,
  num_params,
)
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import ExampleWeights
from fedjax_alg.hparams import hyper, is_zero
from fedjax_alg.part import Part
from fedjax_alg.rounds import clustered
from fedjax_alg.rounds.clustered import ClusteredState, Extra, Messages, Rule


class FixedThresholds(Part):
  """``eps1`` and ``eps2`` themselves; good ones depend on learning rate and model."""

  WORD, EXAMPLE = "fixed", "fixed:0.4,1.6"
  eps1: float = hyper(
    0.4,
    "a group is split only if the norm of its mean update is below this value",
    above=0.0,
    source="Sattler et al. (20); value of the public code",
  )
  eps2: float = hyper(
    1.6,
    "a group is split only if the largest norm of its members' updates "
    "is above this value",
    minimum=0.0,
    source="Sattler et al. (21); value of the public code",
  )

  def norms(self, largest: Any) -> tuple[Any, Any]:
    """The values of eps1 and eps2, [] each.

    Args:
      largest: not read.
    """
    del largest
    return self.eps1, self.eps2


class RelativeThresholds(Part):
  """Multiples of R, the largest norm that a mean update of all clients had so far."""

  WORD, EXAMPLE = "relative", "relative:0.5,1.5"
  eps1_share: float = hyper(
    0.5,
    "a group is split only if the norm of its mean update is below this share of R",
    above=0.0,
  )
  eps2_share: float = hyper(
    1.5,
    "a group is split only if the largest norm of its members' updates is above "
    "this multiple of R",
    minimum=0.0,
  )

  def norms(self, largest: Any) -> tuple[Any, Any]:
    """The values of eps1 and eps2, [] each.

    Args:
      largest: [] R.
    """
    return self.eps1_share * largest, self.eps2_share * largest


class CFLHParams(GroupTraining):
  """Hyper-parameters of CFL."""

  max_groups: int = hyper(
    8, "largest number of groups; once there are so many, no group is split", minimum=1
  )
  thresholds: FixedThresholds | RelativeThresholds = hyper(
    FixedThresholds(),
    "what the norms of updates are compared with: fixed = eps1 and eps2, relative = "
    "multiples of R, the largest norm that the mean update of all clients had in any "
    "round so far",
  )
  gamma_max: float = hyper(
    0.0,
    "a group is split only if this value is below sqrt((1 - a) / 2), where a is the "
    "largest cosine between members of the two new groups; 0: no such test",
    minimum=0.0,
    below=1.0,
    neutral=0.0,
    source="Sattler et al. Theorem 1; not in the public code",
  )
  linkage: str = hyper(
    "complete",
    "linkage of the clustering into two groups: single = the largest cosine between "
    "the two is as small as possible (the paper), complete = as in the public code",
    choices=("single", "complete"),
    source="Sattler et al. (16)",
  )
  split_after: int = hyper(
    20,
    "rounds before a group may be split",
    minimum=0,
    source="public code",
    traced=True,
  )


class Tree(NamedTuple):
  """Every split so far, stored under the number of the group it made."""

  parent: Array  #: [K] int32, the group that was split; -1: none
  model: Params  #: [K, ...], the model of that group before the split
  kept: Array  #: [K, P], mean update of the half that kept the number
  parted: Array  #: [K, P], mean update of the other half


class Updates(NamedTuple):
  """State of the server of CFL between rounds."""

  last: Array  #: [C, P], dW_k
  trained: Array  #: [C] bool, whether the client has sent an update
  number: Array  #: [] int32, the number of groups so far
  tree: Tree  #: the splits so far
  #: [] R, the largest norm of the mean update of all clients; () if the
  #: thresholds are fixed
  largest: Any = ()


def bipartition_rule(model: Model, hparams: CFLHParams) -> Rule:
  """CFL's rule: a group is split when its members' updates disagree."""

  def assign(models, memory, client_row, member, shard, key):
    """A client's group, and whether the client had none before."""
    number, tree = memory
    # A client that has a group walks past no split.
    group = _walk_down(
      model, hparams, tree, jnp.where(member < 0, number, 0), shard, key
    )
    return jnp.where(member < 0, group, member), member < 0

  return Rule(
    hparams.max_groups,
    functools.partial(_init, hparams),
    assign,
    regroup=functools.partial(_regroup, hparams),
    moves_everyone=hparams.max_groups > 1,
    extra=functools.partial(_extra, hparams),
    shared=lambda memory: (memory.number, memory.tree),
    membership=lambda state: jnp.where(state.memory.trained, state.member, -1),
  )


def _is_relative(hparams: CFLHParams) -> bool:
  """Whether the server keeps R."""
  return isinstance(hparams.thresholds, RelativeThresholds)


def _init(
  hparams: CFLHParams, params: Params, spec: FedSpec, key: Key
) -> tuple[Params, Updates]:
  k, size = hparams.max_groups, num_params(params)
  zeros = jnp.zeros((k, size))
  models = trees.repeat(params, k)
  return models, Updates(
    jnp.zeros((spec.num_clients, size)),
    jnp.zeros(spec.num_clients, bool),
    jnp.ones((), jnp.int32),
    Tree(jnp.full(k, -1, jnp.int32), models, zeros, zeros),
    jnp.zeros(()) if _is_relative(hparams) else (),
  )


def _walk_down(
  model: Model, hparams: CFLHParams, tree: Tree, number: Array, shard: Shard, key: Key
) -> Array:
  """The group that a client finds by the first ``number`` groups' splits.

  It starts at group 0.
  """

  def descend(new, group):
    directions = jnp.stack([tree.kept[new], tree.parted[new]])

    def half():
      update = clustered.pretrain(
        model,
        hparams,
        trees.index(tree.model, new),
        shard,
        jax.random.fold_in(key, new),
      )
      return grouping.closest_direction(update, directions, jnp.ones(2, bool))

    side = jax.lax.cond(tree.parent[new] == group, half, lambda: jnp.int32(0))
    return jnp.where(side == 1, new, group)

  leaf: Array = jax.lax.fori_loop(jnp.int32(1), number, descend, jnp.int32(0))
  return leaf


def _regroup(
  hparams: CFLHParams, state: ClusteredState, cohort: Cohort, drifts: Params
) -> ClusteredState:
  state = clustered.with_last(state, cohort, drifts)
  if hparams.max_groups == 1:
    return state
  if _is_relative(hparams):
    memory: Updates = state.memory
    weight, everyone = _weights(hparams, memory, cohort), jnp.zeros_like(state.member)
    (mean,) = trees.group_mean(weight, everyone, 1, memory.last)
    largest = jnp.maximum(memory.largest, jnp.linalg.norm(mean))
    state = state._replace(memory=memory._replace(largest=largest))
  result: ClusteredState = jax.lax.cond(
    state.round >= hparams.split_after,
    lambda: _split_all(hparams, state, cohort),
    lambda: state,
  )
  return result


def _weights(hparams: CFLHParams, memory: Updates, cohort: Cohort) -> Array:
  """The clients' weights in mean updates, 0 before their first, [C]."""
  weight = memory.trained.astype(jnp.float32)
  if hparams.client_weights == ExampleWeights():
    assert cohort.everyone is not None
    weight = weight * cohort.everyone.size.astype(jnp.float32)
  return weight


def _split_all(
  hparams: CFLHParams, state: ClusteredState, cohort: Cohort
) -> ClusteredState:
  """Splits every group whose mean update is short and one member's is long."""
  memory: Updates = state.memory
  weight = _weights(hparams, memory, cohort)
  eps1, eps2 = hparams.thresholds.norms(memory.largest)
  mean = trees.group_mean(weight, state.member, hparams.max_groups, memory.last)
  mean_norm = jnp.linalg.norm(mean, axis=1)
  norm = jnp.where(memory.trained, jnp.linalg.norm(memory.last, axis=1), 0.0)

  def split_one(group: Array, state: ClusteredState) -> ClusteredState:
    inside = (state.member == group) & memory.trained
    should_split = (
      (mean_norm[group] < eps1)
      & (jnp.where(inside, norm, 0.0).max() > eps2)
      & (inside.sum() > 2)
      & (state.memory.number < hparams.max_groups)
    )
    result: ClusteredState = jax.lax.cond(
      should_split, lambda: _split(hparams, state, group, inside, weight), lambda: state
    )
    return result

  state = jax.lax.fori_loop(jnp.int32(0), memory.number, split_one, state)
  return state


def _split(
  hparams: CFLHParams, state: ClusteredState, group: Array, inside: Array, weight: Array
) -> ClusteredState:
  """Splits a group if its halves are far enough apart.

  Args:
    hparams: the linkage and the smallest gap between the halves.
    state: the state.
    group: [] int32, the group.
    inside: [C] bool, its members that have sent an update.
    weight: [C], the clients' weights in the halves' mean updates.

  Returns:
    The state; one half has the number of the group, the other the next one.
  """
  memory: Updates = state.memory
  cosine = grouping.cosine(grouping.gram(memory.last, inside))
  half = grouping.agglomerate(-cosine, inside, hparams.linkage, num_groups=2).assignment
  across = (inside & (half == 0))[:, None] & (inside & (half == 1))[None]
  largest = jnp.where(across, cosine, -1.0).max()
  is_incongruent = jnp.bool_(True)
  if not is_zero(hparams.gamma_max):
    is_incongruent = (hparams.gamma_max < jnp.sqrt((1.0 - largest) / 2.0)) | (
      hparams.gamma_max == 0
    )
  new, tree = memory.number, memory.tree
  means = trees.group_mean(jnp.where(inside, weight, 0.0), half, 2, memory.last)
  models, states, server = jax.tree.map(
    lambda leaf: leaf.at[new].set(leaf[group]),
    (state.models, state.states, state.server),
  )
  split = state._replace(
    models=models,
    states=states,
    server=server,
    member=jnp.where(inside & (half == 1), new, state.member),
    memory=memory._replace(
      number=new + 1,
      tree=Tree(
        tree.parent.at[new].set(group),
        jax.tree.map(
          lambda all, leaf: all.at[new].set(leaf[group]), tree.model, state.models
        ),
        tree.kept.at[new].set(means[0]),
        tree.parted.at[new].set(means[1]),
      ),
    ),
  )
  state = trees.where(is_incongruent, split, state)
  return state


def _extra(
  hparams: CFLHParams,
  before: ClusteredState,
  after: ClusteredState,
  cohort: Cohort,
  walked: Array,
) -> Extra:
  """The cost of testing for splits, and of clients that walk down them."""
  k = hparams.max_groups
  size, clients = num_params(before.models) // k, len(before.member)
  flops = jnp.where(before.round >= hparams.split_after, 2.0 * k * clients * size, 0.0)
  if _is_relative(hparams):
    flops += 2.0 * clients * size
  splits = after.memory.number - before.memory.number
  # A client walks past at most all splits so far; this bound is counted.
  steps = before.memory.number - 1
  number = (walked & cohort.present).sum(dtype=jnp.int32) * steps
  gradients, batches = (
    steps * jnp.where(walked, jax.vmap(count)(cohort.shards.size), 0)
    for count in (hparams.examples_read, hparams.num_steps)
  )
  return Extra(
    down=Messages(number, size),
    up=Messages(number, size),
    exchanges=(number > 0).astype(jnp.int32),
    example_gradients=gradients.sum(),
    flops=flops + 2.0 * clients * clients * size * splits.astype(jnp.float32),
    own_gradients=gradients,
    own_batches=batches,
  )


@builder
def cfl(
  model: Model,
  hparams: CFLHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ClusteredState]:
  """CFL: a group is split in two when its members pull apart.

  All clients start in one group, and every group runs FedAvg by itself. From
  round `split_after` + 1 on, a group is split in two if its mean update is
  short and one of its members' last updates dW_k is long,
    ||mean_k dW_k|| < eps1   and   max_k ||dW_k|| > eps2.
  The two halves are found by clustering the cosines between the dW_k. Until a
  group is split, CFL is FedAvg.
  """
  return in_groups(
    model, hparams, bipartition_rule(model, hparams), map_clients, exchange=exchange
  )
