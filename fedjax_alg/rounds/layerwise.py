"""A model fitted layer by layer, one a round, by least squares over clients.

What FedACnnL, pFedACnnL and AFL share (analytic, (1)-(13) and Algorithm 1), as
``composition`` is what gradient methods share. Round l: every client runs its
data through the layers fitted so far and sends R_k = X'X and the parts of X'T,
T = Y Q_l (6); the server adds them up for each of K groups of clients and
solves for layer l (5), (11); it sends the layer back. No partition, batch size
or order of clients changes the result but by rounding. After the last layer
nothing more is sent: a client then fits its own layers, pulled towards its
group's ((12)-(13)), one a round, where that is asked for. Nothing is kept for
that: what a client would deploy is computed from its group's model and its data
when it is asked for.
"""

from collections.abc import Callable
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import trees
from fedjax_alg.base import Algorithm, Array, Cohort, Devices, FedSpec, Key
from fedjax_alg.base import Layer, MapClients, Model, Params, RoundAux, Shard
from fedjax_alg.base import Work, round_cost
from fedjax_alg.client import objective
from fedjax_alg.errors import OptionError
from fedjax_alg.engine import clock
from fedjax_alg.grouping import kmeans, nearest_centre
from fedjax_alg.hparams import hyper
from fedjax_alg.least_squares import codes, moments as moments_lib, solve

PRECISIONS = ("float64", "float32")


@dataclasses.dataclass(frozen=True)
class LayerFits:
  """How layers are fitted; shared by every method that does."""

  ridge: str = hyper(
      "1", "gamma of every layer's least squares, added once by the server: "
      "one number, or one for each layer, separated by commas", source="(1)")
  ridge_unit: str = hyper(
      "absolute", "of `ridge`: absolute, or relative to the mean of the Gram "
      "matrix's diagonal", choices=("absolute", "relative"))
  bias: str = hyper(
      "ones", "none; ones = a column of ones, penalised as the rest; centred "
      "= fitted to centred data, not penalised", choices=solve.BIASES)
  code: str = hyper(
      "position", "what hidden layers are fitted to: position = a random code "
      "for every output position and channel, class = the same at all "
      "positions; random_filters = not fitted at all, whitened random filters "
      "(a control)", choices=codes.CODES, source="T = Y Q, (1)")
  code_centred: bool = hyper(
      False, "codes less their mean over examples")
  code_high_passed: int = hyper(
      0, "convolutions, from the first, whose codes are high-passed over "
      "space", minimum=0, when=("code", ("position",)))
  normalize: bool = hyper(
      False, "outputs of hidden layers divided by their standard deviation")
  precision: str = hyper(
      "float64", "of products, sums and clients' own solutions; the server "
      "solves in float64 either way", choices=PRECISIONS)
  batch_size: int = hyper(
      32, "B, examples that a client's simulated machine takes at a time at "
      "first; it changes no weight", minimum=1, source="(6)")
  adaptive_batch: bool = hyper(
      True, "whether B grows on clients that arrive late", source="(7)")
  max_batch_size: int = hyper(
      512, "B_max, what fits into a client's memory", minimum=1,
      source="(7); value not stated",
      when=("adaptive_batch", (True,)))


class LayerwiseState(NamedTuple):
  """The server's K models and what it knows of the clients."""

  models: Params  #: [K, ...]
  fits: tuple[solve.Fit, ...]  #: of every layer, [K, ...]
  counts: Array  #: [K, L] examples by class of each group
  centres: Array  #: [K, w] mean encoded label vectors
  member: Array  #: [C] int32 group, -1: not yet there
  batch: Array  #: [C] int32 batch size of the next round
  fastest: Array  #: [] float32 least seconds of a client in round 1
  code_seed: Array  #: [2] uint32, shared by all
  round: Array  #: [] int32, rounds completed


class _Ledger(NamedTuple):
  """What a round costs, beside the batches."""

  down: Any
  up: Any
  exchanges: Any
  central_flops: Any
  per_example: Any  #: a client's flops for one example
  per_client: Any  #: and besides


#: Columns of the ledger that are whole numbers.
_WHOLE = ("down", "up", "exchanges")


def per_layer(
    name: str, text: str, num_layers: int, zero: bool) -> tuple[float, ...]:
  """A flag's number for each layer.

  Args:
    name: of the flag.
    text: one number, or one for each layer, separated by commas.
    num_layers: of the model.
    zero: whether 0 is allowed, else infinity is.

  Raises:
    ValueError: not numbers, out of range, or neither one nor one a layer.
  """
  said = f"`{name}`={text}"
  try:
    values = tuple(float(word) for word in text.split(","))
  except ValueError:
    raise OptionError(f"{said}: must be numbers separated by commas") from None
  if zero and not all(0 <= value < math.inf for value in values):
    raise OptionError(f"{said}: must be at least 0")
  if not zero and not all(value > 0 for value in values):
    raise OptionError(f"{said}: must be more than 0, or inf")
  if len(values) not in (1, num_layers):
    raise OptionError(f"{said}: {len(values)} numbers for {num_layers} layers "
                     "(allowed: one, or one for each)")
  return values * (num_layers // len(values))


def _put(layer: Layer, params: Params, kernel: Array, bias: Array) -> Params:
  """``params`` with a layer's weights, in the dtype they had."""
  dtype = layer.get(params)[0].dtype
  return layer.put(params, kernel.astype(dtype), bias.astype(dtype))


def layers_of(model: Model, name: str) -> tuple[Layer, ...]:
  """The model's layers.

  Raises:
    ValueError: it has others than dense layers and convolutions.
  """
  if model.layers is None:
    raise OptionError(
        f"`algorithm`={name}: least squares fits dense layers and convolutions "
        "only, the model has others")
  return model.layers


def layerwise(
    model: Model, layers: tuple[Layer, ...], hparams: LayerFits, *,
    map_clients: MapClients, num_groups: int = 1,
    personal_ridge: tuple[float, ...] = (), label_norm: str = "l1",
    total_ridge: Callable[[Array, Array], Array] = lambda ridge, clients: ridge,
) -> Algorithm[LayerwiseState]:
  """One layer a round by least squares, for K groups of clients.

  Args:
    model: the model.
    layers: its layers.
    hparams: how layers are fitted.
    map_clients: how clients are mapped.
    num_groups: K; 1 for one model of all.
    personal_ridge: lambda of (12) for each layer, infinity for one that stays
      the group's; empty: nothing is personal.
    label_norm: "l1" or "l2", of (9).
    total_ridge: (ridge [], clients of the round []) -> the ridge of the sum.
  """
  gammas = per_layer("ridge", hparams.ridge, len(layers), True)
  relative = hparams.ridge_unit == "relative"
  last = len(layers) - 1
  product = jnp.dtype(hparams.precision)

  def in_float64(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` traced with float64 at hand, whatever the run's dtypes are.

    A vmap from outside that meets a loop around it would trace it again
    without; so seeds of these methods are never vectorised
    (``registry.Entry.rounds``).
    """

    def call(*args):
      with jax.enable_x64(True):
        return fn(*args)

    return call

  def high_pass(l: int) -> bool:
    return (hparams.code == "position" and l < hparams.code_high_passed
            and layers[l].positions > 1)

  def random(l: int) -> bool:
    return hparams.code == "random_filters" and l < last

  def kept(l: int) -> bool:
    """Whether layer l of a client is its group's."""
    return random(l) or math.isinf(personal_ridge[l])

  def layer_key(seed: Array, l: int) -> Key:
    return jax.random.fold_in(jax.random.wrap_key_data(seed), l)

  def code_of(seed: Array, l: int, counts: Array, dtype: Any) -> Array:
    """Q of layer l for a group with ``counts`` [L] examples by class."""
    num_classes = counts.shape[0]
    if l == last:
      return codes.identity(num_classes, dtype)
    kind = "class" if layers[l].positions == 1 else hparams.code
    code = codes.draw(layer_key(seed, l), layers[l], num_classes, kind, dtype)
    return codes.centred(code, counts) if hparams.code_centred else code

  def columns(l: int, num_classes: int) -> int:
    """r, right-hand sides of layer l."""
    shared = layers[l].positions == 1 or hparams.code == "class" or l == last
    return num_classes if shared and not random(l) else layers[l].width

  def encoded(seed: Array, counts: Array) -> Array:
    """(9): label counts [L], of length 1, times the narrowest Q, [w].

    (8) is lost; it "reduces the communication" (errata A-11). Of a
    convolution a code without positions.
    """
    norm = counts.sum() if label_norm == "l1" else jnp.sqrt(
        (counts * counts).sum())
    share = counts / jnp.maximum(norm, 1.0)
    hidden = min(range(last), key=lambda l: layers[l].width, default=None)
    if hidden is None:
      return share
    code = codes.draw(layer_key(seed, hidden), layers[hidden],
                      counts.shape[0], "class", counts.dtype)[:, 0]
    return jnp.matmul(share[None], code, precision=trees.HIGHEST)[0]

  def group_of(shared: Any, shard: Shard) -> Array:
    """The group whose clients have labels like this one's, [] int32."""
    seed, centres, counts = shared
    if num_groups == 1:
      return jnp.zeros((), jnp.int32)
    own = objective.label_counts(shard, counts.shape[1])
    return nearest_centre(encoded(seed, own), centres)

  def init(params: Params, spec: FedSpec, key: Key) -> LayerwiseState:
    if num_groups > spec.num_clients:
      raise OptionError(f"`num_groups`={num_groups}: more than the "
                       f"{spec.num_clients} clients")
    dtype = jax.tree.leaves(params)[0].dtype
    classes, seed = spec.num_classes, jax.random.key_data(key)

    def nothing(l: int) -> solve.Fit:
      d = layers[l].fan_in + (hparams.bias == "ones" and not random(l))
      return solve.Fit(
          jnp.zeros((num_groups, d, columns(l, classes)), dtype),
          jnp.ones((num_groups, layers[l].width), dtype))

    width = encoded(seed, jnp.ones(classes)).shape[0]
    return LayerwiseState(
        trees.repeat(params, num_groups),
        tuple(map(nothing, range(len(layers)))),
        jnp.zeros((num_groups, classes)), jnp.zeros((num_groups, width)),
        jnp.full(spec.num_clients, -1, jnp.int32),
        jnp.full(spec.num_clients, hparams.batch_size, jnp.int32),
        jnp.zeros(()), seed, jnp.zeros((), jnp.int32))

  def setup(state: LayerwiseState, everyone: Cohort, key: Key):
    """The groups, and how many examples of each class they hold."""
    seed, classes = state.code_seed, state.counts.shape[1]
    counts = map_clients(
        lambda _, shard: objective.label_counts(shard, classes), (),
        everyone.shards)
    there = everyone.weight > 0
    centres = state.centres
    groups = jnp.zeros(there.shape, jnp.int32)
    if num_groups > 1:
      points = jax.vmap(functools.partial(encoded, seed))(counts)
      found = kmeans(points, there, key, num_groups)
      centres, groups = found.centres, found.assignment
    counts = jax.ops.segment_sum(
        jnp.where(there[:, None], counts, jnp.zeros_like(counts)),
        jnp.where(there, groups, num_groups), num_groups)
    return state._replace(centres=centres, counts=counts)

  def fit_group(
      l: int, clients: Array, seed: Array, counts: Array,
      moments: moments_lib.Moments):
    """(5), (11): layer l from the moments of a group: (Fit, W, b)."""
    layer, dtype = layers[l], moments.gram.dtype
    code = code_of(seed, l, counts.astype(dtype), dtype)
    bias = hparams.bias
    if random(l):  # no targets: of the equations only the Gram is read
      bias = "centred" if bias == "centred" else "none"
      code = jnp.zeros((counts.shape[0], layer.positions, layer.width), dtype)
    equations = solve.problem(moments, layer, code, bias, high_pass(l))
    gamma = total_ridge(
        solve.absolute(gammas[l], equations.gram, relative),
        clients.astype(dtype))
    if random(l):
      equations = equations._replace(mix=None, target=jnp.zeros(
          layer.width, dtype))
      draw = jax.random.normal(
          layer_key(seed, l), (layer.fan_in, layer.width), jnp.float32)
      basis = solve.random_filters(equations.gram, gamma, draw.astype(dtype))
    else:
      basis = solve.solve(equations.gram, equations.cross, gamma)
    fit = solve.Fit(basis, jnp.ones(layer.width, dtype))
    kernel, offset = solve.weights(fit, equations, moments, layer, bias)
    if hparams.normalize and l < last:
      scale = solve.spread(kernel, moments, layer)
      return fit._replace(scale=scale), kernel / scale[None], offset / scale
    return fit, kernel, offset

  def train_layer(l: int, state: LayerwiseState, cohort: Cohort, groups: Array):
    """One federated round: (models, fits) with layer l."""
    layer, (k, classes) = layers[l], state.counts.shape

    @in_float64
    def zero():
      one = moments_lib.zeros(layer, classes, product)
      return one if k == 1 else trees.repeat(one, k)

    @in_float64
    def add(total, models, shard, group):
      params = trees.index(models, 0 if k == 1 else group)
      own = total if k == 1 else trees.index(total, group)
      own = moments_lib.add_shard(own, layer, params, shard, product)
      if k == 1:
        return own
      return jax.tree.map(
          lambda leaf, new: leaf.at[group].set(new), total, own)

    total = map_clients.total(add, zero, state.models, cohort.shards, groups)
    clients = (cohort.weight > 0).sum()

    def one_group(group):
      counts, moments, params, old = group
      moments = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), moments)
      fit, kernel, offset = fit_group(
          l, clients, state.code_seed, counts, moments)
      fit = jax.tree.map(lambda new, leaf: new.astype(leaf.dtype), fit, old)
      # A group of nobody keeps its layer.
      return trees.where(
          moments.counts.sum() > 0,
          (_put(layer, params, kernel, offset), fit), (params, old))

    @in_float64
    def solved(total):
      if k == 1:
        total = trees.repeat(total, 1)
      return jax.lax.map(
          one_group, (state.counts, total, state.models, state.fits[l]))

    models, fit = solved(total)
    fits = (*state.fits[:l], fit, *state.fits[l + 1:])
    return models, fits

  def personal_layer(
      l: int, state: LayerwiseState, group: Array, params: Params, shard: Shard
  ) -> Params:
    """(13): ``params`` with the client's own layer l."""
    if kept(l):
      return params
    layer, meta = layers[l], trees.index(state.fits[l], group)
    sums = np.promote_types(product, meta.basis.dtype)
    moments = moments_lib.add_shard(
        moments_lib.zeros(layer, state.counts.shape[1], sums), layer, params,
        shard, product)
    code = code_of(
        state.code_seed, l, state.counts[group].astype(sums), sums)
    equations = solve.problem(
        moments, layer, code, hparams.bias, high_pass(l))
    basis = solve.solve(
        equations.gram, equations.cross, jnp.asarray(personal_ridge[l], sums),
        meta.basis.astype(sums))
    fit = solve.Fit(basis, meta.scale.astype(sums))
    return _put(layer, params, *solve.weights(
        fit, equations, moments, layer, hparams.bias))

  def personal(
      state: LayerwiseState, group: Array, params: Params, shard: Shard
  ) -> Params:
    """``params`` with as many personal layers as rounds were played for."""
    for l in range(len(layers)):
      params = jax.lax.cond(
          state.round > last + 1 + l,
          functools.partial(personal_layer, l, state, group),
          lambda params, shard: params, params, shard)
    return params

  if hparams.precision == "float64":
    # Around the conditionals too: under vmap they are traced once more.
    personal = in_float64(personal)

  def ledger(l: int, k: int, classes: int, encoded_width: int) -> _Ledger:
    """Of round l: layers 0 ... last together, then personal ones, then none."""
    if l > last + (len(layers) if personal_ridge else 0):
      return _Ledger(0, 0, 0, 0.0, 0.0, 0.0)
    personal, l = l > last, l % len(layers)
    layer = layers[l]
    d, sides = layer.fan_in, columns(l, classes)
    solution = d ** 3 / 3 + (1.0 if random(l) else 2.0) * d * d * sides
    forward = sum(2.0 * done.positions * done.fan_in * done.width
                  for done in layers[:l])
    per_example = forward + moments_lib.flops(layer)
    if personal:
      if kept(l):
        return _Ledger(0, 0, 0, 0.0, 0.0, 0.0)
      return _Ledger(0, 0, 0, 0.0, per_example, solution)
    # A layer whose positions share a code goes back as its solution for Y.
    down = (d + (hparams.bias != "none")) * min(sides, layer.width) + (
        layer.width if hparams.normalize and l < last else 0)
    up = moments_lib.floats_sent(
        layer, classes, 0 if random(l) else layer.width)
    if l == 0 and k > 1:
      up += encoded_width
    return _Ledger(down, up, 1, k * solution, per_example, 0.0)

  def round_(state: LayerwiseState, cohort: Cohort, key: Key):
    del key
    groups = map_clients(
        group_of, (state.code_seed, state.centres, state.counts),
        cohort.shards)
    k, classes = state.counts.shape

    def train(l: int, state: LayerwiseState):
      return train_layer(l, state, cohort, groups)

    def rest(state: LayerwiseState):
      return state.models, state.fits

    models, fits = jax.lax.switch(
        jnp.minimum(state.round, len(layers)),
        [*(functools.partial(train, l) for l in range(len(layers))), rest],
        state)
    width = state.centres.shape[1]
    entries = [ledger(l, k, classes, width)
               for l in range(2 * len(layers) + 1)]
    table = _Ledger(*(
        jnp.asarray(column, jnp.int32 if name in _WHOLE else jnp.float32)
        for name, column in zip(_Ledger._fields, zip(*entries))))
    now = trees.index(table, jnp.minimum(state.round, len(entries) - 1))
    there = cohort.weight > 0
    batch = state.batch.at[cohort.ids].get(mode="clip").astype(jnp.float32)
    work = Work(
        jnp.where(there, cohort.weight * now.per_example + now.per_client, 0.0),
        jnp.where(now.per_example > 0, jnp.ceil(cohort.weight / batch), 0.0))
    state = state._replace(
        models=models, fits=fits, round=state.round + 1,
        member=state.member.at[cohort.ids].set(groups, mode="drop"))
    if hparams.adaptive_batch and cohort.devices is not None:
      state = adapted(state, cohort, cohort.devices, work, now)
    cost = round_cost(now.down, now.up, now.exchanges, 0, now.central_flops)
    mean_batch = trees.slot_mean(there.astype(jnp.float32), batch)
    return state, RoundAux(
        {"group": groups}, {"batch_size": mean_batch}, cost, work)

  def adapted(
      state: LayerwiseState, cohort: Cohort, devices: Devices, work: Work,
      now: _Ledger) -> LayerwiseState:
    """(7): larger batches for those who came late."""
    times = clock.round_times(
        devices, cohort.weight, work, now.down, now.up, now.central_flops)
    first = jnp.where(cohort.weight > 0, times.arrival, jnp.inf).min()
    fastest = jnp.where(state.round == 1, first, state.fastest)
    batch = clock.adapted_batch(
        state.batch.at[cohort.ids].get(mode="clip"), times.arrival, fastest,
        hparams.max_batch_size)
    return state._replace(
        fastest=fastest,
        batch=state.batch.at[cohort.ids].set(batch, mode="drop"))

  def client_params(state, client_id, shard, key):
    """The group's model, with the personal layers fitted by now."""
    del client_id, key
    group = group_of(
        (state.code_seed, state.centres, state.counts), shard)
    params = trees.index(state.models, group)
    return personal(state, group, params, shard) if personal_ridge else params

  return Algorithm(
      init, setup, round_, client_params, lambda state: state.models,
      (lambda state: state.member) if num_groups > 1 else None)
