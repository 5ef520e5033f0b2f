"""FedDrift: clients whose loss jumps open models, and models alike are merged.

Reference: Jothimurugesan, Hsieh, Wang, Joshi, Gibbons, "Federated Learning under
Distributed Concept Drift", AISTATS 2023 (FedDrift and FedDrift-Eager), and its
public code. Data come in steps. At the start of each one every client measures all
models on its new examples and joins the best. If the least loss has risen by more
than delta, it opens a model instead. Models that do about as well on each other's
data are merged. A model is trained on the examples of all steps that its clients
spent with it.

Readings: see docs/methods/feddrift.md. The code measures errors (`variant`), and
opens a model as a copy of the best one.

Deviations: the steps of a round read the examples of one step, drawn at random for
each client; in the code each of them draws. Losses for merging are of all
examples, in the code of about twenty batches. Ties go to the lowest number.
"""

import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import grouping, tasks, trees
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
from fedjax_alg.client import objective
from fedjax_alg.engine.keys import client_keys
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange
from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part
from fedjax_alg.rounds.clustered import ClusteredState, Extra, Messages, Rule
from fedjax_alg.typing import PyTree

#: The least loss of a client that was never asked, above all others.
_UNKNOWN = 1e9


class Detection(Part):
  """How drift is detected."""

  threshold: float = hyper(
    0.1,
    "delta, a client drifts if its least loss has risen by more than this",
    above=0.0,
    source="public code, 0.2 for SINE, 0.1 for CIRCLE and MNIST",
  )
  measure: str = hyper(
    "error",
    "what is compared with delta: error = share of examples that are "
    "classified wrongly, loss = loss of the task",
    choices=("error", "loss"),
    source="public code, error",
  )


class HierarchicalDrift(Detection):
  """Each client that drifts opens a model, and similar models are merged."""

  WORD, EXAMPLE = "hierarchical", "hierarchical:0.1"
  merge: float = hyper(
    0.0,
    "delta', models are merged up to this distance; 0: as delta",
    minimum=0.0,
    source="public code",
  )
  isolation: int = hyper(
    1,
    "W, number of steps for which only its client uses a new model",
    minimum=1,
    source="Jothimurugesan et al.",
  )

  def places(self, drifts: Array) -> Array:
    """Which of the new models each client opens.

    Args:
      drifts: [C] bool, the clients that drift.

    Returns:
      [C] int32, of the others without a meaning.
    """
    return jnp.cumsum(drifts, dtype=jnp.int32) - 1


class EagerDrift(Detection):
  """All clients that drift at a step open one model together, and none are merged."""

  WORD, EXAMPLE = "eager", "eager:0.2"

  def places(self, drifts: Array) -> Array:
    """Which of the new models each client opens.

    Args:
      drifts: [C] bool, the clients that drift.

    Returns:
      [C] int32, of the others without a meaning.
    """
    return jnp.minimum(jnp.cumsum(drifts, dtype=jnp.int32) - 1, 0)


class OracleKinds(Part):
  """Each kind of clients has a model from the start."""

  WORD = EXAMPLE = "oracle"
  #: by which a client without a group joins one
  measure: ClassVar[str] = "error"


class FedDriftHParams(GroupTraining):
  """Hyper-parameters of FedDrift."""

  max_groups: int = hyper(
    10, "K, largest number of groups, each with a model, at a time", minimum=1
  )
  variant: HierarchicalDrift | EagerDrift | OracleKinds = hyper(
    HierarchicalDrift(),
    "when models are opened: hierarchical = each client that drifts opens one, and "
    "similar models are merged; eager = all clients that drift at a step open one "
    "together, and none are merged; oracle = each kind of clients has a model from "
    "the start",
    source="Jothimurugesan et al., FedDrift, FedDrift-Eager, Oracle",
  )
  step_rounds: int = hyper(
    200,
    "number of rounds of a step; clients look for drift at its start; "
    "rounds of a step of `concepts`",
    minimum=1,
    source="Jothimurugesan et al.",
  )
  history_steps: int = hyper(
    10,
    "number of latest steps; clients train on their examples",
    minimum=1,
    maximum=1000,
  )

  def check_data(self, data: Any) -> None:
    """Refuses steps that do not divide those of the data, and data that move."""
    if data.shift.SWAPS:
      raise OptionError(
        f"`shift`={data.shift}: not with `algorithm`=feddrift, clients train on their "
        "examples of earlier steps, too"
      )
    if (data.concepts.period or 0) % self.step_rounds:
      raise OptionError(
        f"`step_rounds`={self.step_rounds}: must divide the rounds of a step, "
        f"{data.concepts.period} of `concepts`={data.concepts}"
        ", so that clients look for drift when their data change"
      )


class Drifts(NamedTuple):
  """State of the server of FedDrift between rounds.

  ``group``, ``offset`` and ``size`` say with which model each client was, and
  which examples it had, at the last H steps; step t is at place t modulo H.
  """

  alive: Array  #: [K] bool, the models that exist
  used: Array  #: [K] int32, the last step at which a client was with the model
  least: Array  #: [C] float32, each client's least loss when it was last asked
  until: Array  #: [C] int32, the step at which a client's model joins the others
  step: Array  #: [] int32, steps begun
  group: Array  #: [C, H] int32, -1: none
  offset: Array  #: [C, H] int32
  size: Array  #: [C, H] int32


def _measure(
  model: Model, hparams: FedDriftHParams, models: Params, shard: Shard
) -> Array:
  """The losses of K models on a client's examples, or their errors, [K]."""
  if hparams.variant.measure == "loss":
    losses: Array = objective.full_losses(model, models, shard)
    return losses

  def error(params, state):
    of_model = shard._replace(state=state)
    client_model = objective.of_client(model, of_model)

    def count_wrong(x, y, mask):
      outputs = objective.logits(client_model, params, x, mask=mask)
      return (mask & (outputs.argmax(-1) != y)).sum(dtype=jnp.int32)

    wrong = objective.sum_blocks(of_model, count_wrong)
    return wrong.astype(jnp.float32) / jnp.maximum(shard.size, 1).astype(jnp.float32)

  result: Array = jax.vmap(error)(models, shard.state)
  return result


def _open_models(
  memory: Drifts, best: Array, busy: Array, drifts: Array, place: Array
) -> tuple[Array, Array]:
  """The models that drifting clients open.

  Args:
    memory: the state before.
    best: [C] int32, the model that a client would join.
    busy: [K] bool, models that some client is with, or would join.
    drifts: [C] bool, the clients that drift.
    place: [C] int32, which of the new models each of them opens.

  Returns:
    [C] int32 their models, K for who opens none; [K] int32 the model of which a
    new one is a copy, K for those that are not new.
  """
  k = len(busy)
  # Empty places first, then the models that were longest unused.
  order = jnp.argsort(
    jnp.where(busy, jnp.iinfo(jnp.int32).max, jnp.where(memory.alive, memory.used, -1))
  ).astype(jnp.int32)
  opens = drifts & (place < (~busy).sum())
  slot = jnp.where(opens, order[jnp.clip(place, 0, k - 1)], k)
  # The first of several clients of a model is the one that it is made for.
  first = jnp.full(k, len(best)).at[slot].min(jnp.arange(len(best)), mode="drop")
  source = jnp.where(first < len(best), best[jnp.minimum(first, len(best) - 1)], k)
  return slot, source.astype(jnp.int32)


def _merge_models(
  threshold: Array, memory: Drifts, active: Array, losses: Array
) -> tuple[Array, Array]:
  """Which models become one.

  Args:
    threshold: delta'.
    memory: the state, with the new step.
    active: [K] bool, the models that may be merged.
    losses: [C, H, K], of all models on the examples of each step.

  Returns:
    [K] int32, the first model of each one's set, itself if it is alone; [K]
    float32, the number of examples of each.
  """
  k = len(active)
  of_model = jax.nn.one_hot(memory.group, k, dtype=bool)
  rows = jnp.where(of_model, memory.size[..., None], 0).astype(jnp.float32)
  number = rows.sum((0, 1))
  # [K of the model, K of the data]
  table = jnp.einsum("chi,chj->ij", losses, rows, precision=trees.HIGHEST)
  table = table / jnp.maximum(number, 1.0)[None]
  gap = table - jnp.diagonal(table)[:, None]
  active &= number > 0
  sets = grouping.agglomerate(
    jnp.maximum(jnp.maximum(gap, gap.T), 0.0),
    active,
    "complete",
    num_groups=k,
    threshold=threshold,
  ).assignment
  same = (sets[:, None] == sets[None]) & active[:, None] & active[None]
  first = jnp.argmax(same, 1).astype(jnp.int32)
  return jnp.where(active, first, jnp.arange(k, dtype=jnp.int32)), number


def drift_rule(model: Model, hparams: FedDriftHParams, map_clients: MapClients) -> Rule:
  """FedDrift's rule: groups by the losses of new examples, step by step."""
  k, steps = hparams.max_groups, hparams.history_steps
  measure = functools.partial(_measure, model, hparams)
  variant = hparams.variant

  def init(params: Params, spec: FedSpec, key: Key) -> tuple[Params, Drifts]:
    by_error = isinstance(variant, Detection) and variant.measure == "error"
    if k > 1 and by_error and not tasks.of(model).has_classes:
      raise OptionError(
        f"`variant`={variant}: measures errors, the examples have no class (allowed: "
        "measure=loss)"
      )
    clients, history = spec.num_clients, steps if k > 1 else 0
    empty = jnp.zeros((clients, history), jnp.int32)
    return trees.repeat(params, k), Drifts(
      jnp.arange(k) == 0,
      jnp.full(k, -1, jnp.int32),
      jnp.full(clients, _UNKNOWN, jnp.float32),
      jnp.zeros(clients, jnp.int32),
      jnp.int32(0),
      empty - 1,
      empty,
      empty,
    )

  def losses_of(models: Params, shard: Shard, shift: Array, size: Array) -> Array:
    def at_step(rows: tuple[Array, Array]) -> Array:
      shift, size = rows
      return measure(models, shard._replace(offset=shard.offset + shift, size=size))

    losses: Array = jax.lax.map(at_step, (shift, size))
    return losses

  def begin_step(state: ClusteredState, cohort: Cohort) -> ClusteredState:
    everyone, place = cohort.everyone, state.memory.step % steps
    assert everyone is not None
    present = everyone.size > 0
    memory = state.memory._replace(
      group=state.memory.group.at[:, place].set(-1),
      offset=state.memory.offset.at[:, place].set(everyone.offset),
      size=state.memory.size.at[:, place].set(everyone.size),
    )
    if isinstance(variant, OracleKinds):
      member = jnp.where(present, everyone.kind, state.member)
      return _with_step(state._replace(member=member), memory, place, present)
    isolated = present & (memory.until > memory.step)
    group = jnp.where(isolated, state.member, -1)
    active = memory.alive & ~trees.members(group, k).any(1)
    active = jnp.where(active.any(), active, memory.alive)
    # From the place of the client's rows, which differs where these are in blocks.
    asked = (memory.offset - everyone.offset[:, None], memory.size)
    merging = variant if isinstance(variant, HierarchicalDrift) else None
    if not merging:
      asked = (jnp.zeros_like(everyone.size)[:, None], everyone.size[:, None])
    losses = map_clients(losses_of, state.models, everyone, *asked)
    now = jnp.where(active[None], losses[:, place if merging else 0], jnp.inf)
    best, least = jnp.argmin(now, 1).astype(jnp.int32), now.min(1)
    group = jnp.where(present, jnp.where(isolated, group, best), -1)
    drifts = present & ~isolated & (least > memory.least + variant.threshold)
    busy = trees.members(group, k).any(1)
    slot, source = _open_models(memory, best, busy, drifts, variant.places(drifts))
    opened, opens = source < k, slot < k
    lost = opened[jnp.maximum(memory.group, 0)] & (memory.group >= 0)
    memory = memory._replace(
      alive=memory.alive | opened,
      group=jnp.where(lost, -1, memory.group),
      least=jnp.where(present & ~isolated, least, memory.least),
      until=jnp.where(opens, memory.step + merging.isolation, memory.until)
      if merging
      else memory.until,
    )
    copies = jnp.where(opened, source, jnp.arange(k, dtype=jnp.int32))
    state = state._replace(
      models=trees.index(state.models, copies),
      states=trees.index(state.states, copies),
      server=trees.index(state.server, copies),
      member=jnp.where(present, jnp.where(opens, slot, group), state.member),
    )
    state = _with_step(state, memory, place, present)
    if not merging:
      return state
    threshold = jnp.where(merging.merge > 0, merging.merge, merging.threshold)
    memory = state.memory
    first, number = _merge_models(threshold, memory, active & ~opened, losses)
    return _in_place_of(state, first, number)

  def before(state: ClusteredState, cohort: Cohort, key: Key) -> ClusteredState:
    if k == 1:
      return state
    # Later than at the start of a step if nobody took part in its first round.
    result: ClusteredState = jax.lax.cond(
      state.round // hparams.step_rounds >= state.memory.step,
      lambda: begin_step(state, cohort),
      lambda: state,
    )
    return result

  def assign(models, alive, client_row, member, shard, key):
    if k == 1:
      return jnp.int32(0), ()

    def join():
      losses = jnp.where(alive, measure(models, shard), jnp.inf)
      return jnp.argmin(losses).astype(jnp.int32)

    return jax.lax.cond(member < 0, join, lambda: member), ()

  def examples(state: ClusteredState, cohort: Cohort, key: Key) -> Cohort:
    return cohort if k == 1 else _draw_steps(state, cohort, key)

  return Rule(
    k,
    init,
    assign,
    shared=lambda memory: memory.alive,
    before=before,
    moves_everyone=k > 1,
    reads_everyone=k > 1,
    examples=examples,
    extra=functools.partial(_extra, hparams),
    reads_updates=False,
  )


def _with_step(
  state: ClusteredState, memory: Drifts, place: Array, present: Array
) -> ClusteredState:
  """The state with the groups of a new step in its memory."""
  group = jnp.where(present, state.member, -1)
  with_clients = trees.members(group, len(memory.alive)).any(1)
  return state._replace(
    memory=memory._replace(
      alive=memory.alive | with_clients,
      group=memory.group.at[:, place].set(group),
      used=jnp.where(with_clients, memory.step, memory.used),
      step=memory.step + 1,
    )
  )


def _in_place_of(state: ClusteredState, first: Array, number: Array) -> ClusteredState:
  """The state with models that were merged, by their numbers of examples.

  Args:
    state: the state.
    first: [K] int32, the model that each one becomes.
    number: [K] float32, the examples of each model.
  """
  k, memory = len(first), state.memory
  itself = jnp.arange(k, dtype=jnp.int32)
  merged = jnp.zeros(k, bool).at[first].max(first != itself)

  def mix(tree: PyTree) -> Any:
    """Means of the merged models; a count of steps stays with the first."""
    return jax.tree.map(
      lambda leaf: (
        trees.where_slots(merged, trees.group_mean(number, first, k, leaf), leaf)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
        else leaf
      ),
      tree,
    )

  def rename(group: Array) -> Array:
    return jnp.where(group < 0, group, first[jnp.maximum(group, 0)])

  return state._replace(
    models=mix(state.models),
    states=mix(state.states),
    server=mix(state.server),
    member=rename(state.member),
    memory=memory._replace(
      alive=memory.alive & (first == itself),
      used=jnp.full(k, -1, jnp.int32).at[first].max(memory.used),
      group=rename(memory.group),
    ),
  )


def _draw_steps(state: ClusteredState, cohort: Cohort, key: Key) -> Cohort:
  """The participants with the examples of one of their model's steps each.

  They count with the examples of all these steps.
  """
  memory = state.memory
  clients = jnp.minimum(cohort.ids, len(memory.least) - 1)
  size = memory.size[clients]
  fits = (memory.group[clients] == state.member[clients][:, None]) & (size > 0)
  draws = jax.vmap(lambda key: jax.random.uniform(key, size.shape[1:]))(
    client_keys(key, cohort.ids)
  )
  step = jnp.argmax(jnp.where(fits, draws, -1.0), 1)[:, None]

  def take(table: Array, now: Array) -> Array:
    drawn = jnp.take_along_axis(table[clients], step, 1)[:, 0]
    return jnp.where(fits.any(1) & cohort.present, drawn, now)

  shards = cohort.shards._replace(
    offset=take(memory.offset, cohort.shards.offset),
    size=take(memory.size, cohort.shards.size),
  )
  total = jnp.where(fits, size, 0).sum(1).astype(jnp.float32)
  weight = jnp.where(fits.any(1) & cohort.present, total, cohort.weight)
  return cohort._replace(shards=shards, weight=weight)


def _extra(
  hparams: FedDriftHParams,
  before: ClusteredState,
  after: ClusteredState,
  cohort: Cohort,
  notes: Any,
) -> Extra:
  """The cost of a new step: all clients get the models, and send losses.

  With the models come the statistics that the server keeps. Losses are one for each
  model, and of FedDrift also those on the examples of each model's steps.
  """
  if hparams.max_groups == 1 or isinstance(hparams.variant, OracleKinds):
    return Extra()
  size = num_params((before.models, before.states)) // hparams.max_groups
  assert cohort.everyone is not None
  asks = after.memory.step > before.memory.step
  number = jnp.where(asks, (cohort.everyone.size > 0).sum(dtype=jnp.int32), 0)
  models = before.memory.alive.sum(dtype=jnp.int32)
  merges = isinstance(hparams.variant, HierarchicalDrift)
  losses = models * (models + 1) if merges else models
  return Extra(
    down=Messages(number, models * size),
    up=Messages(number, losses),
    exchanges=asks.astype(jnp.int32),
  )


@builder
def feddrift(
  model: Model,
  hparams: FedDriftHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ClusteredState]:
  """FedDrift: FedAvg with several models, which drifting clients open.

  At the start of step t client i measures all models on its new examples,
  l_i = min_m l_i(w_m), and joins the model of least loss. If l_i has risen by
  more than delta since step t - 1, it opens a model of its own. Models i and j
  are at the distance max(L_ij - L_ii, L_ji - L_jj, 0), where L_ij is the loss of
  model i on the examples of cluster j; complete-linkage clustering merges them up
  to delta'. With one model, FedDrift is FedAvg.

  Raises:
    OptionError: a `variant` that measures errors with data without classes.
  """
  return in_groups(
    model,
    hparams,
    drift_rule(model, hparams, map_clients),
    map_clients,
    exchange=exchange,
  )
