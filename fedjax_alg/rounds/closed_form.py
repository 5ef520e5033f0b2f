"""Methods in closed form: one round for each part of a model, solved from sums.

In round l every client runs its data through the parts solved so far and sends
the statistics of step l (``least_squares.closed_form``). The server adds these
up for each of K groups of clients, solves for part l of each group, and sends
the parts back. The partition, the batch size and the order of the clients
change the result only by rounding.

After the last step nothing more is sent. Where a step has a personal part,
every client then computes parts of its own, one per round. Personal parts are
not stored: ``client_params`` computes them from the group's model and the
client's data.

With ``store_sums`` the state has the total of every step in double precision,
and which clients it holds. ``revise`` subtracts the sums of some clients from a
total, or adds them, and solves the step again: the model is that of a run in
which they never took part, or did, up to rounding. Only these clients compute
anything. Later steps read the outputs of earlier ones, so they have to be
played again by all who remain (``unlearning.revision``).

A total without examples has no solution. In a round, the part of the model then
stays what it is at the start (``_with_total``). A revision is refused that would
leave such a total, as the part has been solved with clients who leave
(``revision.check_rest``).
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import tasks, trees
from fedjax_alg.base import (
  Algorithm,
  Array,
  Cohort,
  Devices,
  FedSpec,
  Key,
  MapClients,
  Params,
  RoundAux,
  RoundCost,
  Shard,
  Work,
  round_cost,
)
from fedjax_alg.client import objective
from fedjax_alg.engine import clock
from fedjax_alg.errors import OptionError
from fedjax_alg.grouping import kmeans, nearest_centre
from fedjax_alg.least_squares import heads, private
from fedjax_alg.least_squares.closed_form import ClosedFormStep, StepContext, Sums
from fedjax_alg.rounds import ledger
from fedjax_alg.typing import PyTree


class ClosedFormState(NamedTuple):
  """State of the server: its K models, and facts about the clients."""

  models: Params  #: [K, ...]
  fits: tuple[PyTree, ...]  #: the fit of every step, [K, ...]
  counts: Array  #: [K, L], examples of each class in each group, or zeros
  centres: Array  #: [K, w], mean encoded label vector of each group
  member: Array  #: [C] int32, each client's group; -1 before it takes part
  batch: Array  #: [C] int32, each client's batch size in the next round
  fastest: Array  #: [] float32, seconds of the fastest client in round 1
  code_seed: Array  #: [2] uint32, seed of the codes, shared by all clients
  round: Array  #: [] int32, rounds completed


class StepSums(NamedTuple):
  """The total of a step, for as long as the run is there."""

  #: the sums of all clients, of float64 leaves the bits, [..., 2] uint32
  total: PyTree
  clients: Array  #: [C] bool, whose sums the total holds


class StateWithSums(NamedTuple):
  """A ``ClosedFormState`` beside the sums that it was solved from."""

  models: Params
  fits: tuple[PyTree, ...]
  counts: Array
  centres: Array
  member: Array
  batch: Array
  fastest: Array
  code_seed: Array
  round: Array
  sums: tuple[StepSums, ...]  #: of every step
  counted: Array  #: [C] bool, whose examples ``counts`` holds


def to_bits(sums: Sums) -> PyTree:
  """Float64 leaves as pairs of uint32, which outlive ``enable_x64``."""
  return jax.tree.map(
    lambda leaf: jax.lax.bitcast_convert_type(leaf.astype(jnp.float64), jnp.uint32),
    sums,
  )


def from_bits(bits: PyTree) -> Sums:
  """The inverse of ``to_bits``; call it within ``enable_x64``."""
  return jax.tree.map(
    lambda leaf: jax.lax.bitcast_convert_type(leaf, jnp.float64), bits
  )


def class_shares(seed: Array, counts: Array) -> Array:
  """The shares of the classes among a client's examples, [L]."""
  del seed
  return counts / jnp.maximum(counts.sum(), 1.0)


@dataclasses.dataclass(frozen=True)
class Grouping:
  """How clients are grouped by their classes."""

  num_groups: int = 1  #: K
  #: (seed, class counts [L]) -> vector [w], by which clients are grouped
  encode: Callable[[Array, Array], Array] = class_shares


@dataclasses.dataclass(frozen=True)
class _Method:
  """The arguments of ``make_closed_form``."""

  steps: tuple[ClosedFormStep, ...]
  map_clients: MapClients
  task: tasks.Task
  grouping: Grouping
  batch_size: int
  max_batch_size: int | None
  double: bool
  store_sums: bool

  @property
  def num_groups(self) -> int:
    return self.grouping.num_groups

  @property
  def is_personal(self) -> bool:
    return any(step.personal for step in self.steps)


def make_closed_form(
  steps: Sequence[ClosedFormStep],
  *,
  map_clients: MapClients,
  task: tasks.Task = tasks.CLASSIFICATION,
  grouping: Grouping = Grouping(),
  batch_size: int = 32,
  max_batch_size: int | None = None,
  double: bool = True,
  store_sums: bool = False,
) -> Algorithm[Any]:
  """Makes an algorithm that solves one step in each round.

  Args:
    steps: the steps, in the order of their rounds.
    map_clients: how one client's code is mapped over the participants.
    task: what the model predicts; with classes, those of a group are counted.
    grouping: how clients are grouped; a model is solved for each group.
    batch_size: the batch size on a client's simulated machine, at first.
    max_batch_size: the largest, to which it grows on slow clients; None: it
      does not grow.
    double: whether personal parts are computed in double precision.
    store_sums: whether the state has the totals of the steps (``StateWithSums``),
      so that clients can be subtracted from them.

  Raises:
    OptionError: there are groups, and the task has no classes; or the sums
      cannot be stored, because there are groups or the sums are private.
  """
  if store_sums and grouping.num_groups > 1:
    raise OptionError(
      "`store_sums`: the groups were formed with the classes of all clients, so "
      "none can be forgotten (allowed: one group)"
    )
  if store_sums and any(step.statistics.noise for step in steps):
    raise OptionError(
      "`store_sums`: not with `private`, whose noised sums are released for good"
    )
  if grouping.num_groups > 1 and not task.has_classes:
    raise OptionError(
      f"`clustering`: groups clients by their classes, the task {task.name} has none"
    )
  method = _Method(
    tuple(steps),
    map_clients,
    task,
    grouping,
    batch_size,
    max_batch_size,
    double,
    store_sums,
  )
  return Algorithm(
    functools.partial(_init, method),
    functools.partial(_setup, method),
    functools.partial(_round, method),
    functools.partial(_client_params, method),
    lambda state: state.models,
    (lambda state: state.member) if grouping.num_groups > 1 else None,
    revise=functools.partial(_revise, method) if store_sums else None,
    sums=functools.partial(_zero_sums, method),
  )


def _zero_sums(method: _Method, num_classes: int) -> list[Sums]:
  """The sums of every step of no clients, [K, ...]."""
  zeros: list[Sums] = _in_double(
    lambda: [
      trees.repeat(step.statistics.zero(num_classes), method.num_groups)
      for step in method.steps
    ]
  )()
  return zeros


def _init(method: _Method, params: Params, spec: FedSpec, key: Key) -> Any:
  k, classes = method.num_groups, spec.num_classes
  if k > spec.num_clients:
    raise OptionError(
      f"`clustering`: num_groups={k}: more than the {spec.num_clients} clients"
    )
  dtype = jax.tree.leaves(params)[0].dtype
  seed = jax.random.key_data(key)
  width = method.grouping.encode(seed, jnp.ones(classes)).shape[0]
  state = ClosedFormState(
    trees.repeat(params, k),
    tuple(trees.repeat(step.empty_fit(classes, dtype), k) for step in method.steps),
    jnp.zeros((k, classes)),
    jnp.zeros((k, width)),
    jnp.full(spec.num_clients, -1, jnp.int32),
    jnp.full(spec.num_clients, method.batch_size, jnp.int32),
    jnp.zeros(()),
    seed,
    jnp.zeros((), jnp.int32),
  )
  if not method.store_sums:
    return state
  nobody = jnp.zeros(spec.num_clients, bool)
  empty = _in_double(
    lambda: [to_bits(step.statistics.zero(classes)) for step in method.steps]
  )()
  sums = tuple(StepSums(total, nobody) for total in empty)
  return StateWithSums(*state, sums, nobody)


def _setup(method: _Method, state: Any, everyone: Cohort, key: Key) -> Any:
  """Groups the clients, and counts the examples of each class in a group."""
  seed, (k, classes) = state.code_seed, state.counts.shape
  if not method.task.has_classes:
    return state
  counts = method.map_clients(
    lambda _, shard: objective.label_counts(shard, classes), (), everyone.shards
  )
  present = everyone.present
  centres, groups = state.centres, jnp.zeros(present.shape, jnp.int32)
  if k > 1:
    points = jax.vmap(functools.partial(method.grouping.encode, seed))(counts)
    clusters = kmeans(points, present, key, k)
    centres, groups = clusters.centres, clusters.assignment
  counts = jax.ops.segment_sum(
    jnp.where(present[:, None], counts, jnp.zeros_like(counts)),
    jnp.where(present, groups, k),
    k,
  )
  if method.store_sums:
    counted = state.counted.at[everyone.ids].set(present, mode="drop")
    state = state._replace(counted=counted)
  return state._replace(centres=centres, counts=counts)


def _round(
  method: _Method, state: ClosedFormState, cohort: Cohort, key: Key
) -> tuple[ClosedFormState, RoundAux]:
  groups = jnp.zeros(cohort.ids.shape, jnp.int32)
  if method.num_groups > 1:
    groups = method.map_clients(
      functools.partial(_group_of, method),
      (state.code_seed, state.centres, state.counts),
      cohort.shards,
    )
  fit = [
    functools.partial(_solve_step, method, l, cohort=cohort, groups=groups, key=key)
    for l in range(len(method.steps))
  ]
  ways: list[Callable[..., PyTree]] = [*fit, _solution]
  if isinstance(state.round, int):  # a round of its own program (``extras.flower``)
    solution = ways[min(state.round, len(method.steps))](state)
  else:
    solution = jax.lax.switch(jnp.minimum(state.round, len(method.steps)), ways, state)
  cost = ledger.cost_of_steps(
    method.steps,
    state.round,
    method.num_groups,
    state.counts.shape[1],
    state.centres.shape[1],
  )
  batch = state.batch.at[cohort.ids].get(mode="clip").astype(jnp.float32)
  work = Work(
    jnp.where(cohort.present, cohort.weight * cost.per_example + cost.per_client, 0.0),
    jnp.where(cost.per_example > 0, jnp.ceil(cohort.weight / batch), 0.0),
  )
  state = state._replace(
    **solution,
    round=jnp.int32(state.round + 1),
    member=state.member.at[cohort.ids].set(groups, mode="drop"),
  )
  billed = round_cost(cost.down, cost.up, cost.exchanges, 0, cost.central_flops)
  if method.max_batch_size is not None and cohort.devices is not None:
    state = _adapt_batches(method, state, cohort, cohort.devices, work, billed)
  mean_batch = trees.slot_mean(cohort.present.astype(jnp.float32), batch)
  return state, RoundAux({"group": groups}, {"batch_size": mean_batch}, billed, work)


def _client_params(
  method: _Method, state: ClosedFormState, client_id: Array, shard: Shard, key: Key
) -> Params:
  """The group's model, with the personal parts of the rounds so far."""
  del client_id, key
  group = _group_of(method, (state.code_seed, state.centres, state.counts), shard)
  params = trees.index(state.models, group)
  if not method.is_personal:
    return params
  personal: Callable[..., Params] = functools.partial(_personal, method)
  if method.double:
    # This must include the conditionals, which vmap traces once more.
    personal = _in_double(personal)
  return personal(state, group, params, shard)


def _in_double(fn: Callable[..., object]) -> Callable[..., Any]:
  """``fn``, traced with float64 enabled whatever the dtypes of the run are.

  A vmap around a loop that calls ``fn`` would trace it again without float64.
  Therefore the seeds of these methods are never vectorized
  (``registry.Entry.rounds``).
  """

  def call(*args):
    with jax.enable_x64(True):
      return fn(*args)

  return call


def _group_of(method: _Method, shared: Any, shard: Shard) -> Array:
  """The group whose mean encoded labels are nearest, [] int32."""
  seed, centres, counts = shared
  if method.num_groups == 1:
    return jnp.zeros((), jnp.int32)
  labels = objective.label_counts(shard, counts.shape[1])
  return nearest_centre(method.grouping.encode(seed, labels), centres)


def _solution(state: Any) -> dict[str, Any]:
  """The fields of the state that a step changes."""
  solution = {"models": state.models, "fits": state.fits}
  return solution | ({"sums": state.sums} if isinstance(state, StateWithSums) else {})


def _solve_step(
  method: _Method,
  l: int,
  state: Any,
  *,
  cohort: Cohort,
  groups: Array,
  key: Key,
) -> dict[str, Any]:
  """Solves step l in one federated round: ``_solution`` with that step."""
  step = method.steps[l]
  total = _sum_statistics(method, step, state, cohort, groups)
  # Random numbers are drawn before float64 is enabled.
  noise = () if step.statistics.noise is None else step.statistics.noise(total, key)
  clients = None
  if method.store_sums:
    clients = (
      jnp.zeros_like(state.counted).at[cohort.ids].set(cohort.present, mode="drop")
    )
  return _with_total(method, l, state, cohort.present.sum(), total, noise, clients)


def _with_total(
  method: _Method,
  l: int,
  state: Any,
  number: Array,
  total: Sums,
  noise: PyTree,
  clients: Array | None,
) -> dict[str, Any]:
  """``_solution`` with step l solved from a total.

  Args:
    method: the method.
    l: index of the step.
    state: the state.
    number: [] of the clients in the total.
    total: the sums, [K, ...]; with K = 1 [...].
    noise: what is added to it; () for nothing.
    clients: [C] bool, whose sums they are; None: they are not stored.
  """
  step = method.steps[l]

  def one_group(group, absent):
    counts, total, params, old = group
    total = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), total)
    new, fit = step.solve(
      total, StepContext(number, state.code_seed, counts, params, old)
    )
    if step.head is not None and absent is not None:
      new = heads.without_absent(step.head, new, absent)
    fit = jax.tree.map(lambda new, leaf: new.astype(leaf.dtype), fit, old)
    # Without examples there is no solution: the part stays that of the start.
    return trees.where(
      step.statistics.number(total) > 0,
      (new, fit),
      (params, old),
    )

  def solve(total, noise):
    if step.statistics.noise is not None:
      total = private.add_noise(total, noise)
    bits = to_bits(total) if method.store_sums else ()
    if method.num_groups == 1:
      total = trees.repeat(total, 1)
    absent = None  # from all groups
    if step.statistics.counts is not None:
      absent = jax.vmap(step.statistics.counts)(total).sum(0) <= 0
      if method.num_groups > 1 or method.is_personal:
        # Who does not take part may have examples for its personal head.
        absent &= state.counts.sum(0) <= 0
    return jax.lax.map(
      functools.partial(one_group, absent=absent),
      (state.counts, total, state.models, state.fits[l]),
    ), bits

  (models, fit), bits = _in_double(solve)(total, noise)
  solution = _solution(state) | {
    "models": models,
    "fits": (*state.fits[:l], fit, *state.fits[l + 1 :]),
  }
  if clients is not None:
    solution["sums"] = (*state.sums[:l], StepSums(bits, clients), *state.sums[l + 1 :])
  return solution


def _revise(method: _Method, state: Any, cohort: Cohort, l: int, sign: int) -> Any:
  """``Algorithm.revise``; clients that are in the total, or not, are skipped."""
  stored, new_ids = state.sums[l], cohort.ids
  inside = stored.clients.at[new_ids].get(mode="fill", fill_value=sign > 0)
  changes = cohort.present & (inside if sign < 0 else ~inside)
  shards = cohort.shards.at(
    cohort.shards.offset, jnp.where(changes, cohort.shards.size, 0)
  )
  part = cohort._replace(shards=shards, weight=jnp.where(changes, cohort.weight, 0.0))
  change = _sum_statistics(
    method, method.steps[l], state, part, jnp.zeros_like(new_ids)
  )
  total = _in_double(
    lambda bits, change: method.steps[l].statistics.clear(
      jax.tree.map(
        lambda sums, part: sums + sign * part.astype(sums.dtype),
        from_bits(bits),
        change,
      )
    )
  )(stored.total, change)
  clients = stored.clients.at[jnp.where(changes, new_ids, stored.clients.shape[0])].set(
    sign > 0, mode="drop"
  )
  state = _recount(method, state, cohort, sign)
  solution = _with_total(method, l, state, clients.sum(), total, (), clients)
  places = jnp.where(cohort.present, new_ids, state.member.shape[0])
  member = state.member.at[places].set(0 if sign > 0 else -1, mode="drop")
  return state._replace(**solution, member=member)


def _recount(method: _Method, state: Any, cohort: Cohort, sign: int) -> Any:
  """The state with the class counts of a cohort added or subtracted."""
  if not method.task.has_classes:
    return state
  inside = state.counted.at[cohort.ids].get(mode="fill", fill_value=sign > 0)
  changes = cohort.present & (inside if sign < 0 else ~inside)
  classes = state.counts.shape[1]
  counts = method.map_clients(
    lambda _, shard: objective.label_counts(shard, classes), (), cohort.shards
  )
  change = jnp.where(changes[:, None], counts, jnp.zeros_like(counts)).sum(
    0, keepdims=True
  )
  places = jnp.where(changes, cohort.ids, state.counted.shape[0])
  return state._replace(
    counts=state.counts + sign * change.sum(0, keepdims=True),
    counted=state.counted.at[places].set(sign > 0, mode="drop"),
  )


def _sum_statistics(
  method: _Method,
  step: ClosedFormStep,
  state: ClosedFormState,
  cohort: Cohort,
  groups: Array,
) -> Sums:
  """Every group's sums over the cohort, [K, ...]; with K = 1 [...]."""
  statistics, (k, classes) = step.statistics, state.counts.shape
  carrier = method.map_clients.carrier

  def zero():
    sums = statistics.zero(classes)
    return sums if k == 1 else trees.repeat(sums, k)

  def add(total, models, shard, group):
    params = trees.index(models, 0 if k == 1 else group)
    if statistics.clip is not None or carrier is not None:
      return trees.add(total, statistics.of_client(params, shard, classes, carrier))
    sums = total if k == 1 else trees.index(total, group)
    sums = statistics.add(sums, params, shard)
    if k == 1:
      return sums
    return jax.tree.map(lambda leaf, new: leaf.at[group].set(new), total, sums)

  return method.map_clients.total(
    _in_double(add),
    _in_double(zero),
    state.models,
    cohort.shards,
    groups,
    psum=_in_double(jax.lax.psum),
  )


def _personal(
  method: _Method, state: ClosedFormState, group: Array, params: Params, shard: Shard
) -> Params:
  """``params`` with the personal parts of the rounds run so far."""
  for l, step in enumerate(method.steps):
    if step.personal is None:
      continue
    context = StepContext(
      (state.member == group).sum(),
      state.code_seed,
      state.counts[group],
      trees.index(state.models, group),
      trees.index(state.fits[l], group),
    )
    params = jax.lax.cond(
      state.round > len(method.steps) + l,
      step.personal,
      lambda params, shard, context: params,
      params,
      shard,
      context,
    )
    if step.head is not None:
      absent = heads.absent_classes(step.head, context.params)
      params = heads.without_absent(step.head, params, absent)
  return params


def _adapt_batches(
  method: _Method,
  state: ClosedFormState,
  cohort: Cohort,
  devices: Devices,
  work: Work,
  cost: RoundCost,
) -> ClosedFormState:
  """Gives slow clients larger batches in the next round, by (7)."""
  assert method.max_batch_size is not None
  times = clock.round_times(
    devices, cohort.weight, work, clock.bytes_sent(cost), cost.central_flops
  )
  first = jnp.where(cohort.present, times.arrival, jnp.inf).min()
  fastest = jnp.where(state.round == 1, first, state.fastest)
  batch = clock.adapt_batch_size(
    state.batch.at[cohort.ids].get(mode="clip"),
    times.arrival,
    fastest,
    method.max_batch_size,
  )
  return state._replace(
    fastest=fastest, batch=state.batch.at[cohort.ids].set(batch, mode="drop")
  )
