"""PACFL: groups by the principal angles between the clients' data subspaces.

Reference: Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin, "Efficient
Distribution Similarity Identification in Clustered Federated Learning via
Principal Angles Between Client Data Subspaces", AAAI 2023. Before round 1 every
client sends p left singular vectors of its data. Agglomerative clustering of
the angles between these subspaces gives the groups, each of which runs FedAvg
from the same start.

Readings: the authors' code takes the arccos of the entries of U'V, not of its
singular values (`angle`=entry), and in its runs on label skew the singular
vectors of every class (`subspace`=classes).

Deviations: the number of groups is bounded by ``max_groups``, as in FL+HC. A
newcomer joins the nearest group by the linkage, and opens none of its own.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import grouping, tasks, trees
from fedjax_alg.algorithms.client_updates import GroupTraining, in_groups
from fedjax_alg.algorithms.common import TreeCut, tree_cut
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
)
from fedjax_alg.client import objective
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds.clustered import (
  ClusteredState,
  Extra,
  Messages,
  Rule,
  TrainingResult,
)


class PACFLHParams(GroupTraining):
  """Hyper-parameters of PACFL."""

  max_groups: int = hyper(5, "largest number of groups", minimum=1)
  num_vectors: int = hyper(
    5,
    "p, singular vectors of a subspace",
    minimum=1,
    source="Vahidian et al., 3 to 5; public code",
  )
  subspace: str = hyper(
    "all",
    "which singular vectors a client sends: all = p of all its examples, classes = p "
    "of the examples of each of its classes",
    choices=("all", "classes"),
    source="Vahidian et al.; classes in the public code for label skew",
  )
  angle: str = hyper(
    "smallest",
    "distance of two clients in degrees: smallest = the least principal angle "
    "of their subspaces, sum = the sum of all of them, entry = the least angle "
    "of a singular vector of the one with one of the other",
    choices=grouping.ANGLES,
    source="Vahidian et al.; entry in the public code",
  )
  linkage: str = hyper(
    "average",
    "linkage of the clustering, which says how the distance "
    "between two groups follows from the distances of their members",
    choices=("single", "complete", "average"),
    source="public code",
  )
  cut: TreeCut = tree_cut("Vahidian et al., beta in degrees (distance)")


class Signatures(NamedTuple):
  """State of the server of PACFL between rounds."""

  vectors: Array  #: [C, r, D], the subspaces of the clients present at the start
  group: Array  #: [C] int32, their groups; -1 for all others
  billed: Array  #: [] bool, whether what they sent has been counted


def data_subspace(hparams: PACFLHParams, classes: int, shard: Shard) -> Array:
  """The singular vectors that a client sends, [r, D]."""
  leaves = jax.tree.leaves(objective.block_shapes(shard)[0])
  if any(not jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
    raise OptionError(
      "`algorithm`=pacfl: compares the clients' examples as numbers, x holds token ids"
    )

  def vectors_of(label: Array) -> Array:
    def gram(x, y, mask):
      if hparams.subspace == "classes":
        mask &= y == label
      rows = jnp.concatenate([a.reshape(len(a), -1) for a in jax.tree.leaves(x)], 1)
      rows = jnp.where(mask[:, None], rows, 0.0)
      return jnp.matmul(rows.T, rows, precision=trees.HIGHEST)

    return grouping.leading_vectors(
      objective.sum_blocks(shard, gram), hparams.num_vectors
    )

  vectors: Array = jax.lax.map(vectors_of, jnp.arange(classes, dtype=jnp.int32))
  return vectors.reshape(-1, vectors.shape[-1])


def _num_sent(vectors: Array) -> Array:
  """Counts the vectors that are not zero, [] int32."""
  return (vectors != 0).any(-1).sum(dtype=jnp.int32)


def subspace_rule(model: Model, hparams: PACFLHParams, map_clients: MapClients) -> Rule:
  """PACFL's rule: one clustering of the clients' subspaces gives the groups."""
  k = hparams.max_groups

  def init(params: Params, spec: FedSpec, key: Key) -> tuple[Params, Signatures]:
    if hparams.subspace == "classes" and not tasks.of(model).has_classes:
      raise OptionError("`subspace`=classes: the examples have no class (all)")
    parts = spec.num_classes if hparams.subspace == "classes" else 1
    rows = parts * hparams.num_vectors if k > 1 else 0
    return trees.repeat(params, k), Signatures(
      jnp.zeros((spec.num_clients, rows, math.prod(spec.input_shape))),
      jnp.full(spec.num_clients, -1, jnp.int32),
      jnp.bool_(False),
    )

  def subspace(num_rows: int, shard: Shard) -> Array:
    return data_subspace(hparams, num_rows // hparams.num_vectors, shard)

  def setup(state: ClusteredState, everyone: Cohort, key: Key) -> ClusteredState:
    if k == 1:
      return state
    num_rows = state.memory.vectors.shape[1]
    vectors = map_clients(
      lambda _, shard: subspace(num_rows, shard), (), everyone.shards
    )
    gaps = grouping.angles(vectors, vectors, hparams.angle)
    member = hparams.cut.groups(
      0.5 * (gaps + gaps.T),
      everyone.present,
      hparams.linkage,
      k,
      grouping.angle_rounding(vectors, hparams.angle),
    )
    return state._replace(
      member=member, memory=Signatures(vectors, member, jnp.bool_(False))
    )

  def assign(models, memory, client_row, member, shard, key):
    if k == 1:
      return jnp.int32(0), jnp.int32(0)

    def join():
      vectors = subspace(memory.vectors.shape[1], shard)
      return _nearest(hparams, memory, vectors), _num_sent(vectors)

    return jax.lax.cond(member < 0, join, lambda: (member, jnp.int32(0)))

  def finish(
    state: ClusteredState, cohort: Cohort, result: TrainingResult
  ) -> ClusteredState:
    return state._replace(memory=state.memory._replace(billed=jnp.bool_(True)))

  return Rule(
    k,
    init,
    assign,
    setup=setup,
    shared=lambda memory: memory,
    finish=finish,
    extra=functools.partial(_extra, hparams),
    reads_updates=False,
  )


def _nearest(hparams: PACFLHParams, memory: Signatures, vectors: Array) -> Array:
  """The group that a newcomer joins by the linkage, [] int32."""
  gaps = grouping.angles(vectors[None], memory.vectors, hparams.angle)
  member = trees.members(memory.group, hparams.max_groups)
  gaps = jnp.broadcast_to(gaps, member.shape)
  if hparams.linkage == "single":
    gap = gaps.min(1, where=member, initial=jnp.inf)
  elif hparams.linkage == "complete":
    gap = gaps.max(1, where=member, initial=-jnp.inf)
  else:
    gap = gaps.mean(1, where=member)
  return jnp.argmin(jnp.where(member.any(1), gap, jnp.inf)).astype(jnp.int32)


def _extra(
  hparams: PACFLHParams,
  before: ClusteredState,
  after: ClusteredState,
  cohort: Cohort,
  num_sent: Any,
) -> Extra:
  """The cost of the subspaces: those of the start, and of newcomers."""
  memory: Signatures = before.memory
  clients, rows, size = memory.vectors.shape
  first = ~memory.billed
  joined = jnp.where(cohort.present, num_sent, 0)
  number = jnp.where(first, _num_sent(memory.vectors), 0) + joined.sum(dtype=jnp.int32)
  pairs = clients * (
    jnp.where(first, float(clients), 0.0) + (joined > 0).sum().astype(jnp.float32)
  )
  return Extra(
    up=Messages(number, size),
    exchanges=(number > 0).astype(jnp.int32),
    flops=2.0 * pairs * rows * rows * size
    + jnp.where(
      first,
      hparams.cut.flops(clients, hparams.max_groups),
      0.0,
    ),
  )


@builder
def pacfl(
  model: Model,
  hparams: PACFLHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ClusteredState]:
  """PACFL: FedAvg in groups of clients whose data span close subspaces.

  Before round 1 every client sends p left singular vectors of its data, as they
  are, not centered. The distance of two clients is the least principal angle of
  their subspaces. Agglomerative clustering gives the groups, which start from
  the same model and run FedAvg on their own. A newcomer sends its vectors when
  it first takes part, and joins the nearest group.
  With one group, PACFL is FedAvg.

  Raises:
    OptionError: `subspace`=classes with data without classes; token ids.
  """
  return in_groups(
    model,
    hparams,
    subspace_rule(model, hparams, map_clients),
    map_clients,
    exchange=exchange,
  )
