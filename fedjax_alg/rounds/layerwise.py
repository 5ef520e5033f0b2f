"""Methods that fit one layer per round by least squares over all clients.

FedACnnL, pFedACnnL and AFL share this module (analytic, (1)-(13) and Algorithm
1), as the gradient methods share ``two_halves``. In round l every client runs
its data through the layers fitted so far, which gives X, and sends R_k = X'X
and the parts of X'T, where T = Y Q_l (6). The server adds these up for each of
K groups of clients, solves for layer l of each group (5), (11), and sends the
layers back. The partition, the batch size and the order of the clients change
the result only by rounding.

After the last layer nothing more is sent. With ``personal_ridge`` every client
then fits layers of its own, one per round, which are pulled towards the layers
of its group ((12)-(13)). Personal layers are not stored: ``client_params``
computes them from the group's model and the client's data.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import tasks, trees
from fedjax_alg.base import (
  Algorithm,
  Array,
  Cohort,
  Devices,
  FedSpec,
  Key,
  Layer,
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
from fedjax_alg.least_squares import codes, few_rows, solve
from fedjax_alg.least_squares import moments as moments_lib
from fedjax_alg.least_squares import private as private_moments
from fedjax_alg.least_squares.layer_fits import (
  FitPlan,
  LayerFits,
  code_of,
  empty_fit,
  fit_layer,
  fit_personal_layer,
  layer_key,
  per_layer,
  put_weights,
)
from fedjax_alg.least_squares.private import PrivateMoments
from fedjax_alg.rounds import ledger
from fedjax_alg.typing import PyTree


class LayerwiseState(NamedTuple):
  """State of the server: its K models, and facts about the clients."""

  models: Params  #: [K, ...]
  fits: tuple[solve.Fit, ...]  #: the fit of every layer, [K, ...]
  counts: Array  #: [K, L], examples of each class in each group, or zeros
  centres: Array  #: [K, w], mean encoded label vector of each group
  member: Array  #: [C] int32, each client's group; -1 before it takes part
  batch: Array  #: [C] int32, each client's batch size in the next round
  fastest: Array  #: [] float32, seconds of the fastest client in round 1
  code_seed: Array  #: [2] uint32, seed of the codes, shared by all clients
  round: Array  #: [] int32, rounds completed


@dataclasses.dataclass(frozen=True)
class Layerwise:
  """The arguments of ``layerwise``."""

  plan: FitPlan  #: how the server fits layers
  map_clients: MapClients
  num_groups: int  #: K
  label_norm: str  #: "l1" or "l2", the norm in (9)


def layerwise(
  layers: tuple[Layer, ...],
  options: LayerFits,
  *,
  map_clients: MapClients,
  num_groups: int = 1,
  personal_ridge: tuple[float, ...] = (),
  label_norm: str = "l1",
  total_ridge: Callable[[Array, Array], Array] = lambda ridge, clients: ridge,
  private: PrivateMoments | None = None,
  task: tasks.Task = tasks.CLASSIFICATION,
) -> Algorithm[LayerwiseState]:
  """Makes an algorithm that fits one layer per round by least squares.

  Args:
    layers: the layers of the model.
    options: how layers are fitted.
    map_clients: how one client's code is mapped over the participants.
    num_groups: K, number of groups of clients; 1: one model for all clients.
    personal_ridge: lambda of (12) for each layer, infinity for a layer that
      clients keep from their group; empty: no layer is personal.
    label_norm: "l1" or "l2", the norm in (9).
    total_ridge: (ridge [], number of participants []) -> the ridge that is
      added to the sum of the Gram matrices.
    private: how the sums are made private; None or its ``private`` none: not at
      all. There is one group then.
    task: what the last layer is fitted to.

  Raises:
    OptionError: the number of ridges does not fit the layers, the first batch
      is larger than the largest, what is private is read without noise, or
      class counts are needed and the task has none.
  """
  if private and private.private == "none":
    private = None
  if options.adaptive_batch and options.batch_size > options.max_batch_size:
    raise OptionError(
      f"`batch_size`={options.batch_size}: must be at most "
      f"`max_batch_size`={options.max_batch_size}"
    )
  gammas = per_layer("ridge", options.ridge, len(layers), True)
  method = Layerwise(
    FitPlan(layers, options, gammas, total_ridge, personal_ridge, private, task),
    map_clients,
    num_groups,
    label_norm,
  )
  if private:
    _check_private(method)
  if num_groups > 1 and not task.has_classes:
    raise OptionError(
      f"`clustering`: groups clients by their classes, the task {task.name} has none"
    )
  return Algorithm(
    functools.partial(_init, method),
    functools.partial(_setup, method),
    functools.partial(_round, method),
    functools.partial(_client_params, method),
    lambda state: state.models,
    (lambda state: state.member) if num_groups > 1 else None,
  )


def _check_private(method: Layerwise) -> None:
  """Refuses what reads more than the noised sums."""
  label = f"`private`={method.plan.private.private}"  # type: ignore[union-attr]
  assert method.num_groups == 1 and not method.plan.personal_ridge
  if not method.plan.task.has_classes:
    raise OptionError(
      f"{label}: its unit is that of classes, the task {method.plan.task.name} has none"
    )
  if method.plan.options.code_centred:
    raise OptionError(
      f"{label}: not with `code_centred`, which reads the class counts without noise"
    )


def _init(method: Layerwise, params: Params, spec: FedSpec, key: Key) -> LayerwiseState:
  plan, k, classes = method.plan, method.num_groups, spec.num_classes
  if k > spec.num_clients:
    raise OptionError(f"`num_groups`={k}: more than the {spec.num_clients} clients")
  dtype = jax.tree.leaves(params)[0].dtype
  seed = jax.random.key_data(key)
  width = _encode_labels(method, seed, jnp.ones(classes)).shape[0]
  return LayerwiseState(
    trees.repeat(params, k),
    tuple(empty_fit(plan, l, k, classes, dtype) for l in range(len(plan.layers))),
    jnp.zeros((k, classes)),
    jnp.zeros((k, width)),
    jnp.full(spec.num_clients, -1, jnp.int32),
    jnp.full(spec.num_clients, plan.options.batch_size, jnp.int32),
    jnp.zeros(()),
    seed,
    jnp.zeros((), jnp.int32),
  )


def _setup(
  method: Layerwise, state: LayerwiseState, everyone: Cohort, key: Key
) -> LayerwiseState:
  """Groups the clients, and counts the examples of each class in a group."""
  seed, (k, classes) = state.code_seed, state.counts.shape
  if not method.plan.task.has_classes:
    return state
  counts = method.map_clients(
    lambda _, shard: objective.label_counts(shard, classes), (), everyone.shards
  )
  present = everyone.present
  centres, groups = state.centres, jnp.zeros(present.shape, jnp.int32)
  if k > 1:
    points = jax.vmap(functools.partial(_encode_labels, method, seed))(counts)
    clusters = kmeans(points, present, key, k)
    centres, groups = clusters.centres, clusters.assignment
  counts = jax.ops.segment_sum(
    jnp.where(present[:, None], counts, jnp.zeros_like(counts)),
    jnp.where(present, groups, k),
    k,
  )
  return state._replace(centres=centres, counts=counts)


def _round(
  method: Layerwise, state: LayerwiseState, cohort: Cohort, key: Key
) -> tuple[LayerwiseState, RoundAux]:
  plan = method.plan
  groups = jnp.zeros(cohort.ids.shape, jnp.int32)
  if method.num_groups > 1:
    groups = method.map_clients(
      functools.partial(_group_of, method),
      (state.code_seed, state.centres, state.counts),
      cohort.shards,
    )
  fit = [
    functools.partial(_train_layer, method, l, cohort=cohort, groups=groups, key=key)
    for l in range(len(plan.layers))
  ]
  ways: list[Callable[..., PyTree]] = [*fit, lambda state: (state.models, state.fits)]
  if isinstance(state.round, int):  # a round of its own program (``deploy``)
    models, fits = ways[min(state.round, len(plan.layers))](state)
  else:
    models, fits = jax.lax.switch(
      jnp.minimum(state.round, len(plan.layers)), ways, state
    )
  cost = ledger.layer_cost(
    plan, state.round, method.num_groups, state.counts.shape[1], state.centres.shape[1]
  )
  batch = state.batch.at[cohort.ids].get(mode="clip").astype(jnp.float32)
  work = Work(
    jnp.where(cohort.present, cohort.weight * cost.per_example + cost.per_client, 0.0),
    jnp.where(cost.per_example > 0, jnp.ceil(cohort.weight / batch), 0.0),
  )
  state = state._replace(
    models=models,
    fits=fits,
    round=jnp.int32(state.round + 1),
    member=state.member.at[cohort.ids].set(groups, mode="drop"),
  )
  billed = round_cost(cost.down, cost.up, cost.exchanges, 0, cost.central_flops)
  if plan.options.adaptive_batch and cohort.devices is not None:
    state = _adapt_batches(method, state, cohort, cohort.devices, work, billed)
  mean_batch = trees.slot_mean(cohort.present.astype(jnp.float32), batch)
  return state, RoundAux({"group": groups}, {"batch_size": mean_batch}, billed, work)


def _client_params(
  method: Layerwise, state: LayerwiseState, client_id: Array, shard: Shard, key: Key
) -> Params:
  """The group's model, with the personal layers of the rounds so far."""
  del client_id, key
  group = _group_of(method, (state.code_seed, state.centres, state.counts), shard)
  params = trees.index(state.models, group)
  if not method.plan.personal_ridge:
    return params
  personal: Callable[..., Params] = functools.partial(_personal, method)
  if method.plan.double_products:
    # This must include the conditionals, which vmap traces once more.
    personal = _in_double(personal)
  return personal(state, group, params, shard)


def _in_double(fn: Callable[..., object]) -> Callable[..., Any]:
  """``fn``, traced with float64 enabled whatever the dtypes of the run are.

  A vmap around a loop that calls ``fn`` would trace it again without float64.
  Therefore the seeds of these methods are never vectorised
  (``registry.Entry.rounds``).
  """

  def call(*args):
    with jax.enable_x64(True):
      return fn(*args)

  return call


def _encode_labels(method: Layerwise, seed: Array, counts: Array) -> Array:
  """Encodes label counts [L] by (9), [w].

  The counts are divided by their norm and multiplied by the narrowest Q of the
  hidden layers. For a convolution it is a code without positions. The formula
  (8) is lost; the paper says that it "reduces the communication" (errata A-11).
  """
  layers, last = method.plan.layers, method.plan.last
  norm = (
    counts.sum() if method.label_norm == "l1" else jnp.sqrt((counts * counts).sum())
  )
  share = counts / jnp.maximum(norm, 1.0)
  hidden = min(range(last), key=lambda l: layers[l].width, default=None)
  if hidden is None:
    return share
  code = codes.draw_code(
    layer_key(seed, hidden), layers[hidden], counts.shape[0], "class", counts.dtype
  )[:, 0]
  return jnp.matmul(share[None], code, precision=trees.HIGHEST)[0]


def _group_of(method: Layerwise, shared: Any, shard: Shard) -> Array:
  """The group whose mean encoded labels are nearest, [] int32."""
  seed, centres, counts = shared
  if method.num_groups == 1:
    return jnp.zeros((), jnp.int32)
  labels = objective.label_counts(shard, counts.shape[1])
  return nearest_centre(_encode_labels(method, seed, labels), centres)


def _train_layer(
  method: Layerwise,
  l: int,
  state: LayerwiseState,
  *,
  cohort: Cohort,
  groups: Array,
  key: Key,
) -> tuple[Params, tuple[solve.Fit, ...]]:
  """Fits layer l in one federated round: (models, fits) with that layer."""
  plan, layer = method.plan, method.plan.layers[l]
  total = _sum_moments(method, layer, state, cohort, groups)
  clients = cohort.present.sum()

  def one_group(group):
    counts, moments, params, old = group
    moments = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), moments)
    fit, kernel, offset = fit_layer(plan, l, clients, state.code_seed, counts, moments)
    fit = jax.tree.map(lambda new, leaf: new.astype(leaf.dtype), fit, old)
    # A group without examples keeps its layer.
    return trees.where(
      moments.number > 0,
      (put_weights(layer, params, kernel, offset), fit),
      (params, old),
    )

  def solve(total, noise):
    if plan.private:
      total = private_moments.add_noise(total, noise)
    if method.num_groups == 1:
      total = trees.repeat(total, 1)
    return jax.lax.map(one_group, (state.counts, total, state.models, state.fits[l]))

  # Random numbers are drawn before float64 is enabled.
  noise = private_moments.noise(plan.private, total, key) if plan.private else ()
  models, fit = _in_double(solve)(total, noise)
  return models, (*state.fits[:l], fit, *state.fits[l + 1 :])


def _sum_moments(
  method: Layerwise, layer: Layer, state: LayerwiseState, cohort: Cohort, groups: Array
) -> moments_lib.Moments:
  """Every group's sums over the cohort, [K, ...]; with K = 1 [...]."""
  plan = method.plan
  k, classes = state.counts.shape
  carrier = method.map_clients.carrier

  def zero():
    sums = moments_lib.zero_moments(layer, classes, plan.product, plan.task)
    return sums if k == 1 else trees.repeat(sums, k)

  def add(total, models, shard, group):
    params = trees.index(models, 0 if k == 1 else group)
    if plan.private or carrier is not None:  # the sums of each client alone
      client_sums = moments_lib.add_shard(
        zero(), layer, params, shard, plan.product, task=plan.task
      )
      return trees.add(
        total,
        private_moments.clip_moments(plan.private, client_sums)
        if plan.private
        else moments_lib.carry_sums(client_sums, carrier),
      )
    sums = total if k == 1 else trees.index(total, group)
    sums = moments_lib.add_shard(
      sums, layer, params, shard, plan.product, task=plan.task
    )
    if k == 1:
      return sums
    return jax.tree.map(lambda leaf, new: leaf.at[group].set(new), total, sums)

  result: moments_lib.Moments = method.map_clients.total(
    _in_double(add),
    _in_double(zero),
    state.models,
    cohort.shards,
    groups,
    psum=_in_double(jax.lax.psum),
  )
  return result


def _personal(
  method: Layerwise, state: LayerwiseState, group: Array, params: Params, shard: Shard
) -> Params:
  """``params`` with the personal layers of the rounds run so far."""
  layers = len(method.plan.layers)
  for l in range(layers):
    params = jax.lax.cond(
      state.round > layers + l,
      functools.partial(_personal_layer, method, l, state, group),
      lambda params, shard: params,
      params,
      shard,
    )
  return params


def _personal_layer(
  method: Layerwise,
  l: int,
  state: LayerwiseState,
  group: Array,
  params: Params,
  shard: Shard,
) -> Params:
  """``params`` with the client's personal layer l, by (13)."""
  if method.plan.keeps_group_layer(l):
    return params
  plan, layer = method.plan, method.plan.layers[l]
  meta = trees.index(state.fits[l], group)
  dtype = np.promote_types(plan.product, meta.basis.dtype)

  def by_sums(state, group, meta, params, shard):
    moments = moments_lib.add_shard(
      moments_lib.zero_moments(layer, state.counts.shape[1], dtype, plan.task),
      layer,
      params,
      shard,
      plan.product,
      task=plan.task,
    )
    return fit_personal_layer(
      plan, l, state.code_seed, state.counts[group], meta, moments
    )

  def by_rows(size, state, group, meta, params, shard):
    meta = jax.tree.map(lambda leaf: leaf.astype(dtype), meta)
    code = code_of(plan, state.code_seed, l, state.counts[group].astype(dtype), dtype)
    return few_rows.fit_by_rows(
      layer,
      params,
      shard,
      code,
      meta,
      plan.personal_ridge[l],
      plan.options.bias,
      size,
      plan.task,
    )

  sizes: tuple[int, ...] = ()
  # Accelerators map clients by vmap, which would compute every way.
  if jax.default_backend() == "cpu":
    sizes = few_rows.row_limits(layer, plan.personal_ridge[l])
  ways: list[Callable[..., PyTree]] = [
    *(functools.partial(by_rows, size) for size in sizes),
    by_sums,
  ]
  # A client takes the smallest size that holds its examples.
  solution = jax.lax.switch(
    (shard.size > jnp.asarray(sizes, jnp.int32)).sum(dtype=jnp.int32),
    ways,
    state,
    group,
    meta,
    params,
    shard,
  )
  return put_weights(layer, params, *solution)


def _adapt_batches(
  method: Layerwise,
  state: LayerwiseState,
  cohort: Cohort,
  devices: Devices,
  work: Work,
  cost: RoundCost,
) -> LayerwiseState:
  """Gives slow clients larger batches in the next round, by (7)."""
  times = clock.round_times(
    devices, cohort.weight, work, clock.bytes_sent(cost), cost.central_flops
  )
  first = jnp.where(cohort.present, times.arrival, jnp.inf).min()
  fastest = jnp.where(state.round == 1, first, state.fastest)
  batch = clock.adapt_batch_size(
    state.batch.at[cohort.ids].get(mode="clip"),
    times.arrival,
    fastest,
    method.plan.options.max_batch_size,
  )
  return state._replace(
    fastest=fastest, batch=state.batch.at[cohort.ids].set(batch, mode="drop")
  )
