"""FedGroup and FedGrouProx: fixed groups by the directions of first updates.

Reference: Duan et al., "FedGroup: Efficient Clustered Federated Learning via
Decomposed Data-Driven Measure", 2020: Algorithm 2 (training), Algorithm 3
(group cold start), (5)-(8) (similarities) and (9) (client cold start).
``rounds.clustered.compose_clustered`` runs the rounds with ``_direction_rule``.

Before round 1, alpha m random clients are pre-trained from the initial model
w_0 and grouped by their updates. The model of a group starts at the mean of its
members' models. Every other client is pre-trained when it first takes part, and
joins the group whose direction is closest to its update.
docs/papers/fedgroup.md lists what the paper leaves open or prints wrongly, and
what is done here instead.

Deviations: a client is grouped anew when its class frequencies have changed by
more than ``migration`` (FlexCFL, Duan et al. 2021, with normalized histograms).
This happens only if the clients' data change.
"""

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import grouping, tasks, trees
from fedjax_alg.algorithms.common import group_count
from fedjax_alg.algorithms.fedavg import Proximal, ProxUpdate
from fedjax_alg.algorithms.halves import (
  GroupTraining,
  in_groups,
  refuse_other_updates,
)
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
from fedjax_alg.client import objective
from fedjax_alg.engine.keys import client_keys
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange
from fedjax_alg.hparams import hyper, is_zero, refuse_without_effect
from fedjax_alg.part import Part
from fedjax_alg.rounds import clustered
from fedjax_alg.rounds.clustered import (
  ClusteredState,
  Extra,
  Messages,
  Rule,
  TrainingResult,
)

SIMILARITIES = ("edc", "madc")


class KMeansCenters(Part):
  """The pre-trained clients are clustered by the directions of their updates."""

  WORD, EXAMPLE = "kmeans", "kmeans:20,madc"
  pretrain_scale: int = hyper(
    20,
    "alpha; alpha x m clients are pre-trained before round 1, or all if "
    "there are fewer",
    minimum=1,
    source="Algorithm 3",
  )
  similarity: str = hyper(
    "edc",
    "how they are clustered: edc = k-means++ on the decomposed cosines of their "
    "updates, madc = complete linkage on mean absolute differences of cosines",
    choices=SIMILARITIES,
    source="(7), (8)",
  )
  group_count: str = group_count("num_groups")

  def pool_size(self, num_groups: int) -> int:
    """Counts the clients to be pre-trained before round 1."""
    return num_groups * self.pretrain_scale

  def flops(self, rows: int, num_groups: int) -> float:
    """The arithmetic of the choice of a number of groups."""
    return grouping.counting_flops(self.group_count, rows, num_groups)

  def group(self, num_groups: int, updates: Array, mask: Array, key: Key) -> Array:
    """Groups the pre-trained clients (Algorithm 3, lines 7 to 14).

    Args:
      num_groups: m.
      updates: [n, P], the clients' updates.
      mask: [n] bool, which entries are clients.
      key: consumed.

    Returns:
      The groups [n] int32 in [0, m), -1 for entries that are no clients.
    """
    m = num_groups
    gram = grouping.gram(updates, mask)
    if self.similarity == "madc":
      distance = grouping.madc(grouping.cosine(gram), mask)
      return grouping.cluster(
        distance,
        mask,
        "complete",
        count=self.group_count,
        max_groups=m,
        threshold=-jnp.inf,
        rounding=grouping.ROUNDING,
      )

    def by_edc(number: int) -> Array:
      points = grouping.edc_points(gram, mask, number)
      return jnp.where(mask, grouping.kmeans(points, mask, key, number).assignment, -1)

    if self.group_count == "fixed":
      return by_edc(m)
    # Numbers of groups are compared in one space, that of m directions.
    distance = grouping.edc(grouping.edc_points(gram, mask, m))
    return grouping.choose_number(distance, by_edc, m, grouping.ROUNDING)


class RandomCenters(Part):
  """Each of m random clients starts a group (RCC)."""

  WORD = EXAMPLE = "random"
  group_count: ClassVar[str] = "fixed"

  def pool_size(self, num_groups: int) -> int:
    """Counts the clients to be pre-trained before round 1."""
    return num_groups

  def flops(self, rows: int, num_groups: int) -> float:
    """The arithmetic of the choice of a number of groups."""
    del rows, num_groups
    return 0.0

  def group(self, num_groups: int, updates: Array, mask: Array, key: Key) -> Array:
    """The groups [n] int32; -1 for clients that are no center.

    Args:
      num_groups: m.
      updates: not read.
      mask: [n] bool, which entries are clients.
      key: not read.
    """
    del updates, key
    place = jnp.arange(mask.shape[0], dtype=jnp.int32)
    return jnp.where(mask & (place < num_groups), place, -1)


class CosineStart(Part):
  """Into the group whose direction is closest to the client's first update."""

  WORD, EXAMPLE = "cosine", "cosine:latest"
  direction: str = hyper(
    "initial",
    "the direction of a group, with which a new client's update "
    "is compared: initial = the mean of the group's first updates, auxiliary "
    "= the group's model minus the mean model of all groups, latest = the "
    "group's last update (as printed); the client is pre-trained from the "
    "initial model w_0 with initial, and from the mean model of all groups "
    "with auxiliary and latest",
    choices=("initial", "auxiliary", "latest"),
    source="(9)",
  )


class RandomStart(Part):
  """Into a group that is drawn at random (RAC)."""

  WORD = EXAMPLE = "random"


class FedGroupHParams(GroupTraining):
  """Hyper-parameters of FedGroup."""

  num_groups: int = hyper(3, "m, number of groups", minimum=1, source="Algorithm 3")
  centers: KMeansCenters | RandomCenters = hyper(
    KMeansCenters(),
    "how the groups are formed before round 1: kmeans = the pre-trained clients are "
    "clustered, random = each of m random clients starts a group (RCC)",
    source="Algorithm 3; ablation RCC",
  )
  cold_start: CosineStart | RandomStart = hyper(
    CosineStart(),
    "how any other client is put into a group when it first takes "
    "part: cosine = into the group of the closest direction, random = into "
    "a group drawn at random (RAC)",
    source="(9); ablation RAC",
  )
  pretrain_steps: int = hyper(
    50,
    "mini-batch steps of a client's pre-training",
    minimum=0,
    source="public code; the paper says 20 epochs (Algorithm 3) and one (3.4)",
  )
  eta_g: float = hyper(
    0.0,
    "inter-group learning rate, by which the models of the groups pull "
    "each other after every round; 0: no pull",
    minimum=0.0,
    neutral=0.0,
    source="Algorithm 2 line 19",
  )
  inter_group: str = hyper(
    "printed",
    "form of the inter-group step: printed = along the models' "
    "differences, each scaled to length 1 (line 19), code = to the weighted "
    "mean with the other models, each scaled to length 1 (the public code)",
    choices=("printed", "code"),
    source="Algorithm 2 line 19; (20)",
  )
  migration: float = hyper(
    0.2,
    "a client is grouped anew when the total variation between its "
    "class frequencies now and when it was grouped is above this; 1: never",
    minimum=0.0,
    maximum=1.0,
    source="FlexCFL, whose test compares raw counts",
  )

  def check_data(self, data: Any) -> None:
    """Refuses a threshold for clients whose classes change, if none ever do."""
    usual = FedGroupHParams.migration
    if str(data.shift) == "none" and self.migration != usual:
      raise OptionError(
        f"`migration`={self.migration}: without effect, the clients' classes stay as "
        f"they are (allowed: {usual}, or give `shift`)"
      )


class FedGrouProxHParams(Proximal, FedGroupHParams):
  """Hyper-parameters of FedGrouProx."""


class GroupMemory(NamedTuple):
  """State of the server of FedGroup between rounds."""

  start: Params  #: w_0
  directions: Array  #: [m, P], mean first update of each group
  #: [m, P], how each group's model changed in the last round in which the group
  #: trained, inter-group step included
  latest: Array
  populated: Array  #: [m] bool, groups that have had a member
  # The next two stay at the server: they are () in what clients receive.
  #: [C] int32, the group of each client; -1 where it is not known yet
  cold_start_group: Any
  #: [C, L] float32, each client's class frequencies when it was grouped; [C, 0]
  #: if there are no classes, so that all keep their groups
  histogram: Any


class Note(NamedTuple):
  """Record of how a participant was assigned to its group."""

  histogram: Array  #: [L], the client's class frequencies now
  kept: Array  #: [] bool, whether the client keeps a group known before
  first: Array  #: [] bool, whether the client was never in a group before


def _frequencies(shard: Shard, num_classes: int) -> Array:
  """The share of each class in the client's data, [L] float32."""
  if not num_classes:
    return jnp.zeros(0)
  return objective.label_counts(shard, num_classes) / jnp.maximum(shard.size, 1).astype(
    jnp.float32
  )


def _pool_size(hparams: FedGroupHParams) -> int:
  """Counts the clients pre-trained before round 1: alpha m, or m with RCC."""
  return hparams.centers.pool_size(hparams.num_groups)


def num_compared(hparams: FedGroupHParams, num_clients: int) -> int:
  """Counts the pre-trained clients compared in pairs; none with RCC."""
  if isinstance(hparams.centers, RandomCenters):
    return 0
  return min(_pool_size(hparams), num_clients)


def few_clients(hparams: FedGroupHParams, num_clients: int) -> str:
  """Warns of fewer clients than are to be pre-trained; "" if there are enough.

  All clients are then pre-trained.
  """
  number, centers = _pool_size(hparams), hparams.centers
  if number <= num_clients or isinstance(centers, RandomCenters):
    return ""
  return (
    f"`centers`={centers}: pretrain_scale={centers.pretrain_scale} would pre-train "
    f"{number} clients for `num_groups`={hparams.num_groups}, all "
    f"{num_clients} are"
  )


def _pretrain_pool(
  model: Model,
  hparams: FedGroupHParams,
  start: Params,
  everyone: Cohort,
  key: Key,
  map_clients: MapClients,
) -> tuple[Array, Array, Array]:
  """Pre-trains the first clients (Algorithm 3, lines 2 to 6).

  Args:
    model: the model.
    hparams: alpha, m and the settings of the pre-training.
    start: w_0.
    everyone: all clients; those not present yet have no examples.
    key: consumed.
    map_clients: how one client's code is mapped over the clients.

  Returns:
    The ids of the pre-trained clients [n] int32, their updates [n, P], and
    which entries are clients [n] bool; where fewer than n clients are
    present, the rest of the ids is C.
  """
  number = _pool_size(hparams)
  draw, work = jax.random.split(key)
  present = everyone.present
  order = jnp.argsort(jnp.where(present, jax.random.uniform(draw, present.shape), 2.0))[
    :number
  ]
  mask = present[order]
  ids = jnp.where(mask, everyone.ids[order], present.shape[0])
  shards = everyone.shards
  pool = shards.at(
    shards.offset[order], jnp.where(mask, shards.size[order], 0)
  )._replace(personal=trees.index(shards.personal, order))
  updates = map_clients(
    lambda start, shard, key: _first_update(model, hparams, start, shard, key),
    start,
    pool,
    client_keys(work, ids),
  )
  return ids.astype(jnp.int32), updates, mask


def _first_update(
  model: Model, hparams: FedGroupHParams, start: Params, shard: Shard, key: Key
) -> Array:
  """A client's update after `pretrain_steps` local steps from ``start``, [P].

  Without steps it is zero.
  """
  if not hparams.pretrain_steps:
    return jnp.zeros_like(clustered.flat(start))
  work = hparams.with_steps(hparams.pretrain_steps)
  return clustered.pretrain(model, hparams, start, shard, key, work)


def _first_examples(hparams: FedGroupHParams, size: Array) -> Array:
  """Counts the examples that ``_first_update`` reads, [S].

  Args:
    hparams: the settings of the pre-training.
    size: [S] int32, the clients' numbers of examples.
  """
  if not hparams.pretrain_steps:
    return jnp.zeros_like(size)
  work = hparams.with_steps(hparams.pretrain_steps)
  return jax.vmap(work.examples_read)(size)


def pretrain_and_group(
  model: Model,
  hparams: FedGroupHParams,
  start: Params,
  everyone: Cohort,
  key: Key,
  map_clients: MapClients,
) -> tuple[Array, Array, Array, Array]:
  """The pre-trained clients and their groups in a setup with this key.

  Returns:
    The ids, updates and mask of ``_pretrain_pool``, and the groups of
    ``KMeansCenters.group``.
  """
  pool_key, cluster_key, _ = jax.random.split(key, 3)
  ids, updates, mask = _pretrain_pool(
    model, hparams, start, everyone, pool_key, map_clients
  )
  groups = hparams.centers.group(hparams.num_groups, updates, mask, cluster_key)
  return ids, updates, mask, groups


def inter_group_step(models: Array, populated: Array, eta_g: float, form: str) -> Array:
  """The inter-group step: Algorithm 2 line 19, or the public code's form.

  Args:
    models: [m, P].
    populated: [m] bool, the groups that take part.
    eta_g: inter-group learning rate.
    form: "printed": w_j + eta_g sum_l (w_l - w_j) / ||w_l - w_j||, where 0/0
      is 0;
      "code": (w_j + eta_g sum_l w_l/||w_l||) / (1 + eta_g sum_l 1/||w_l||).

  Returns:
    The models after the step, [m, P].
  """
  others = (
    populated[:, None] & populated[None] & ~jnp.eye(len(models), dtype=bool)
  ).astype(jnp.float32)
  norms = jnp.linalg.norm(models, axis=1)
  if form == "printed":
    gap = jnp.linalg.norm(models[None] - models[:, None], axis=2)
    scale = others / jnp.where(gap > 0, gap, jnp.inf)
  else:
    scale = others / jnp.where(norms > 0, norms, jnp.inf)[None]
  pull = jnp.matmul(scale, models, precision=trees.HIGHEST)
  total = scale.sum(1, keepdims=True)
  if form == "printed":
    return models + eta_g * (pull - total * models)
  return (models + eta_g * pull) / (1.0 + eta_g * total)


@dataclasses.dataclass(frozen=True)
class Directions:
  """The arguments of ``_direction_rule``, which all its functions read."""

  model: Model
  hparams: FedGroupHParams
  map_clients: MapClients


def _direction_rule(
  model: Model, hparams: FedGroupHParams, map_clients: MapClients
) -> Rule:
  """FedGroup's rule: groups by the direction of first updates."""
  if is_zero(hparams.eta_g):
    refuse_without_effect(hparams, ["inter_group"], "without effect with `eta_g`=0")
  method = Directions(model, hparams, map_clients)
  return Rule(
    hparams.num_groups,
    functools.partial(_init, method),
    functools.partial(_assign, method),
    setup=functools.partial(_setup, method),
    reads_everyone=True,
    shared=lambda memory: memory._replace(cold_start_group=(), histogram=()),
    client_rows=_client_rows,
    finish=functools.partial(_finish, hparams),
    extra=functools.partial(_extra, hparams),
    reads_updates=False,
  )


def _init(
  method: Directions, params: Params, spec: FedSpec, key: Key
) -> tuple[Params, GroupMemory]:
  hparams, classes = (
    method.hparams,
    (spec.num_classes if tasks.of(method.model).has_classes else 0),
  )
  m = hparams.num_groups
  size = num_params(params)
  return trees.repeat(params, m), GroupMemory(
    params,
    jnp.zeros((m, size)),
    jnp.zeros((m, size)),
    jnp.zeros(m, bool),
    jnp.full(spec.num_clients, -1, jnp.int32),
    jnp.zeros((spec.num_clients, classes)),
  )


def _cold_start(
  method: Directions, memory: GroupMemory, models: Params, shard: Shard, key: Key
) -> Array:
  """The group of a client that has none, [] int32."""
  hparams = method.hparams
  cold = hparams.cold_start
  if isinstance(cold, RandomStart):
    # Groups without members have no model of their own.
    return jax.random.categorical(
      key, jnp.where(memory.populated, 0.0, -jnp.inf)
    ).astype(jnp.int32)
  start, directions = memory.start, memory.directions
  if cold.direction != "initial":
    if hparams.centers.group_count == "fixed":
      start = jax.tree.map(lambda leaf: leaf.mean(0), models)
    else:  # fewer than m groups have a model
      start = trees.slot_mean(memory.populated.astype(jnp.float32), models)
    directions = memory.latest
  if cold.direction == "auxiliary":
    rows, _ = trees.to_matrix(models)
    directions = rows - clustered.flat(start)[None]
  update = _first_update(method.model, hparams, start, shard, key)
  return grouping.closest_direction(update, directions, memory.populated)


def _setup(
  method: Directions, state: ClusteredState, everyone: Cohort, key: Key
) -> ClusteredState:
  memory: GroupMemory = state.memory
  ids, updates, _, groups = pretrain_and_group(
    method.model, method.hparams, memory.start, everyone, key, method.map_clients
  )
  m = method.hparams.num_groups
  directions = trees.group_mean((groups >= 0).astype(jnp.float32), groups, m, updates)
  # Line 16 makes a model of a mean of updates (errata F-07). Here the model is
  # w_0 + mean update.
  rows, from_rows = trees.to_matrix(state.models)
  in_pool = jnp.where(groups >= 0, ids, state.member.shape[0])
  member = state.member.at[in_pool].set(groups, mode="drop")
  memory = memory._replace(
    directions=directions,
    latest=directions,
    populated=trees.members(groups, m).any(1),
    cold_start_group=member,
  )
  return _plan_cold_start(
    method,
    state._replace(models=from_rows(rows + directions), member=member, memory=memory),
    everyone,
    key,
  )


def _plan_cold_start(
  method: Directions, state: ClusteredState, everyone: Cohort, key: Key
) -> ClusteredState:
  """Finds the groups of all clients that were not pre-trained.

  Where a client's group does not depend on the round in which it first takes
  part, it is found before round 1. Its cost is counted when the client takes
  part.
  """
  memory: GroupMemory = state.memory
  cold = method.hparams.cold_start
  fixed = isinstance(cold, RandomStart) or cold.direction == "initial"

  def one_client(shared, shard, key):
    models, memory = shared
    group = _cold_start(method, memory, models, shard, key) if fixed else jnp.int32(-1)
    return group, _frequencies(shard, memory.histogram.shape[1])

  # ``pretrain_and_group`` draws from the first two.
  _, _, plan_key = jax.random.split(jax.random.clone(key), 3)
  shared = memory._replace(cold_start_group=(), histogram=memory.histogram[:0])
  groups, histogram = method.map_clients(
    one_client,
    (state.models, shared),
    everyone.shards,
    client_keys(plan_key, everyone.ids),
  )
  unassigned = everyone.present & (state.member < 0)
  return state._replace(
    memory=memory._replace(
      cold_start_group=jnp.where(unassigned, groups, state.member), histogram=histogram
    )
  )


def _client_rows(memory: GroupMemory, ids: Array) -> tuple[Array, Array]:
  return (
    memory.cold_start_group.at[ids].get(mode="fill", fill_value=-1),
    memory.histogram.at[ids].get(mode="clip"),
  )


def _assign(
  method: Directions,
  models: Params,
  memory: GroupMemory,
  client_row: tuple[Array, Array],
  member: Array,
  shard: Shard,
  key: Key,
) -> tuple[Array, Note]:
  migration = method.hparams.migration
  group, then = client_row
  now = _frequencies(shard, then.shape[0])
  keeps_group = group >= 0
  # Rounding may take the distance past 1.
  keeps_group &= (0.5 * jnp.abs(now - then).sum() <= migration) | (migration >= 1.0)
  group = jax.lax.cond(
    keeps_group, lambda: group, lambda: _cold_start(method, memory, models, shard, key)
  )
  return group, Note(now, keeps_group, member < 0)


def _finish(
  hparams: FedGroupHParams,
  state: ClusteredState,
  cohort: Cohort,
  result: TrainingResult,
) -> ClusteredState:
  memory: GroupMemory = state.memory
  notes: Note = result.notes
  before, _ = trees.to_matrix(result.before)
  rows, from_rows = trees.to_matrix(state.models)
  members = trees.members(result.groups, hparams.num_groups)
  trained = (members & cohort.present[None]).any(1)
  if not is_zero(hparams.eta_g):
    rows = inter_group_step(rows, memory.populated, hparams.eta_g, hparams.inter_group)
    state = state._replace(models=from_rows(rows))
  # ``latest`` includes all aggregations of the round, and so the inter-group
  # step (section 3.1).
  return state._replace(
    memory=memory._replace(
      latest=jnp.where(trained[:, None], rows - before, memory.latest),
      cold_start_group=memory.cold_start_group.at[cohort.ids].set(
        result.groups, mode="drop"
      ),
      histogram=memory.histogram.at[cohort.ids].set(
        jnp.where(
          notes.kept[:, None], _client_rows(memory, cohort.ids)[1], notes.histogram
        ),
        mode="drop",
      ),
    )
  )


def _extra(
  hparams: FedGroupHParams,
  before: ClusteredState,
  after: ClusteredState,
  cohort: Cohort,
  notes: Note,
) -> Extra:
  """The cost of pre-training: each client gets a model and sends an update.

  The clients pre-trained before round 1 are counted in the first round in which
  clients take part. Until then ``latest`` is what ``setup`` made it.
  """
  m = hparams.num_groups
  size = num_params(before.models) // m
  first = (before.memory.latest == before.memory.directions).all()
  new = (notes.first | ~notes.kept) & cohort.present
  if isinstance(hparams.cold_start, RandomStart):
    new = jnp.zeros_like(new)
  pretrained = min(_pool_size(hparams), len(before.member))
  pool = first & (before.member >= 0)
  number = new.sum(dtype=jnp.int32) + pool.sum(dtype=jnp.int32)
  gradients = jnp.where(new, _first_examples(hparams, cohort.shards.size), 0)
  assert cohort.everyone is not None
  pooled = jnp.where(pool, _first_examples(hparams, cohort.everyone.size), 0)
  n = float(pretrained)
  return Extra(
    down=Messages(number, size),
    up=Messages(number, size),
    exchanges=(number > 0).astype(jnp.int32),
    example_gradients=gradients.sum() + pooled.sum(),
    flops=jnp.where(
      first,
      2.0 * n * n * size + hparams.centers.flops(pretrained, m),
      0.0,
    )
    + 2.0 * m * size * new.sum().astype(jnp.float32),
    own_gradients=gradients,
    own_batches=jnp.where(new, hparams.pretrain_steps, 0),
  )


@builder
def fedgroup(
  model: Model,
  hparams: FedGroupHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ClusteredState]:
  """FedGroup: m groups, found once by the directions of first updates.

  Before round 1, alpha m random clients are pre-trained from the initial model
  w_0. Their updates are clustered into m groups (`centers`), and the model
  of each group starts at the mean of its members' models. Any other client is
  pre-trained when it first takes part, and joins the group whose direction is
  closest to its update, (9). In a round every group runs FedAvg by itself,
    w_j <- w_j + sum_{i in j} (n_i / n_j) (v_i - w_j),
  and with eta_g > 0 the models of the groups then pull each other,
    w_j <- w_j + eta_g sum_l (w_l - w_j) / ||w_l - w_j||.
  With one group and no pre-training, FedGroup is FedAvg.
  """
  return in_groups(
    model,
    hparams,
    _direction_rule(model, hparams, map_clients),
    map_clients,
    exchange=exchange,
  )


@builder
def fedgrouprox(
  model: Model,
  hparams: FedGrouProxHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ClusteredState]:
  """FedGrouProx: FedGroup with FedProx's local steps.

  A participant's local model is pulled towards the model w_j of its group,
    v <- v - client_lr (g_i(v; B) + mu (v - w_j)).
  Pre-training has no such pull (errata F-25). With mu = 0, FedGrouProx is
  FedGroup. ``fedgroup`` says how the groups are found.
  """
  refuse_other_updates(hparams, "FedGrouProx is FedGroup with prox")
  return in_groups(
    model,
    dataclasses.replace(hparams, client_update=ProxUpdate(hparams.mu)),
    _direction_rule(model, hparams, map_clients),
    map_clients,
    exchange=exchange,
  )
