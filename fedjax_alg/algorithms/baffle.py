"""BAFFLE: the server's gradient is estimated from losses of the clients.

Reference: Feng, Pang, Du, Chen, Yan, Lin, "Does Federated Learning Really Need
Backpropagation?", ECCV 2024 (arXiv:2301.12195).

The protocol of the paper is ``shared``. In a step of it, server and clients
draw the same K directions delta_k ~ N(0, sigma^2 I) from a common seed. Every
client c reports K scalars, measured on a mini-batch B_c:
  forward: dL_ck = L(w + delta_k; B_c) - L(w; B_c)
  central: dL_ck = (L(w + delta_k; B_c) - L(w - delta_k; B_c)) / 2
The server's optimizer takes a step on the estimated gradient
  ghat = (1 / (K sigma^2)) sum_k (sum_c (n_c / n) dL_ck) delta_k.

The protocol of the public code is ``per_client``. Every client draws directions
of its own, scales its estimate down until no entry exceeds ``clip``, and sends
this vector. The server averages the vectors with weights 1 / |S|. This uses |S|
times as many directions, but clients must send vectors instead of scalars; or
(``uplink``=seeds) the seed of their directions and K scalars, of which the
server makes the same vector and scales it down itself.

Each step needs one exchange with the clients, and a round has
``steps_per_round`` steps. The global model is a moving average of the server's
models over the rounds (EMA), which is what the authors evaluate. Its decay
after round t = 1, 2, ... is min(ema, (1 + t) / (10 + t)).

Deviations: the server's optimizer has no weight decay; instead the gradient of
the model's L2 term is added exactly, after the clipping. The learning rate
follows no schedule. The perturbed weights are computed anew for each direction;
the authors add and subtract in place, which accumulates rounding errors. The
variant in which clients train alone for an epoch is not implemented.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax

from fedjax_alg import trees
from fedjax_alg.base import (
  BYTES_PER_FLOAT,
  Algorithm,
  Array,
  Cohort,
  FedSpec,
  Key,
  MapClients,
  Model,
  Params,
  RoundAux,
  RoundCost,
  Shard,
  Work,
  builder,
  no_setup,
  num_params,
  round_cost,
  shared_client_params,
)
from fedjax_alg.central import steps
from fedjax_alg.client import minibatches, objective, zeroth_order
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.engine.keys import client_keys
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import stacking
from fedjax_alg.exchange.weights import ExampleWeights, UniformWeights
from fedjax_alg.hparams import HParams, field_like, hyper, is_zero
from fedjax_alg.part import Part


class SharedDirections(Part):
  """All clients try the same directions and send one number for each (the paper)."""

  WORD, EXAMPLE = "shared", "shared"


class OwnDirections(zeroth_order.Uplink, Part):
  """Every client draws directions and sends a vector (the public code)."""

  WORD, EXAMPLE = "per_client", "per_client:uplink=seeds"

  clip: float = hyper(
    0.3,
    "largest absolute entry of a client's estimate; an estimate with a "
    "larger entry is scaled down; 0: no limit",
    minimum=0.0,
    neutral=0.0,
  )


class BaffleAdam(steps.AdamServer):
  """Adam of optax, with bias correction."""

  beta2: float = field_like(steps.AdamServer, "beta2", default=0.99)


class BaffleHParams(HParams):
  """Hyper-parameters of BAFFLE."""

  protocol: SharedDirections | OwnDirections = hyper(
    SharedDirections(), "what clients send"
  )
  steps_per_round: int = hyper(
    1,
    "server steps per round, each an exchange with one mini-batch of every participant",
    minimum=1,
  )
  batch_size: int = hyper(
    32, "examples of each client per step; 0: all its examples", minimum=0
  )
  directions: int = hyper(
    100, "K, number of random directions of one gradient estimate", minimum=1
  )
  smoothing: float = hyper(
    1e-4, "sigma, standard deviation of a direction's entries", above=0.0
  )
  scheme: str = hyper(
    "forward",
    "how losses are differenced: forward = against the loss at w "
    "(K + 1 losses), central = on both sides of w (2 K losses)",
    choices=zeroth_order.SCHEMES,
  )
  server: steps.SGDServer | BaffleAdam = hyper(BaffleAdam(), "the server's optimizer")
  server_lr: float = hyper(0.01, "learning rate of the server, per step", above=0.0)
  ema: float = hyper(
    0.995,
    "decay per round of the averaged weights, which are evaluated; "
    "the first rounds use a smaller decay; 0: evaluate the weights "
    "themselves",
    minimum=0.0,
    below=1.0,
  )

  def work(self) -> LocalWork:
    """The mini-batches that a participant reads in a round."""
    return LocalWork(local_steps=self.steps_per_round, batch_size=self.batch_size)


class BaffleState(NamedTuple):
  """State of the server of BAFFLE."""

  params: Params
  ema: Params  #: moving average of ``params``, the global model
  optimiser: optax.OptState
  round: Array  #: [] int32, rounds completed


def clip_entries(vector: Array, most: float) -> Array:
  """Scales a vector down so that no absolute entry exceeds ``most``.

  With ``most`` = 0 the vector is returned as it is.
  """
  if is_zero(most):
    return vector
  largest = jnp.abs(vector).max()
  factor = jnp.minimum(1.0, most / jnp.maximum(largest, 1e-30))
  return vector * jnp.where(most > 0, factor, 1.0)


class Draws(NamedTuple):
  """The random numbers of a participant's mini-batches."""

  bits: Array  #: random words of the shuffle (``minibatches.shuffle_bits``)
  dropout: Key | None  #: key of the dropout; None for a model without dropout


def _draws(model: Model, key: Key) -> Draws:
  return Draws(minibatches.shuffle_bits(key), objective.dropout_key(model, key, 0))


@builder
def baffle(
  model: Model, hparams: BaffleHParams, *, map_clients: MapClients
) -> Algorithm[BaffleState]:
  """BAFFLE: the server follows a gradient estimated from clients' losses.

  In a step, client c reports for K random directions delta_k ~ N(0, sigma^2 I)
  how much its loss on a mini-batch B_c changes,
    dL_ck = L(w + delta_k; B_c) - L(w; B_c),
  and the server's optimizer (`server`) takes a step on the estimated gradient
    ghat = (1 / (K sigma^2)) sum_k (sum_c (n_c / n) dL_ck) delta_k.
  With `protocol`=per_client, the variant of the public code, clients draw
  directions of their own and send vectors.

  Returns:
    Its global model is a moving average of the server's models over the
    rounds, with decay `ema`.

  Raises:
    OptionError: the L2 term is one of the sum (`l2_of`).
  """
  if model.l2_of_sum:
    raise OptionError(
      "`l2_of`=sum: not with baffle, whose server adds the "
      "term without the clients' sizes (mean)"
    )
  server = hparams.server.build(hparams.server_lr)
  method = Baffle(model, hparams, map_clients, server.transform)

  def global_params(state: BaffleState) -> Params:
    return trees.repeat(state.ema, 1)

  return Algorithm(
    functools.partial(_init, method),
    no_setup,
    functools.partial(_round, method),
    shared_client_params(global_params),
    global_params,
    idle=lambda state, cohort: state._replace(round=state.round + 1),
  )


@dataclasses.dataclass(frozen=True)
class Baffle:
  """The arguments of ``baffle``, and the server's optimizer."""

  model: Model
  hparams: BaffleHParams
  map_clients: MapClients
  optimiser: optax.GradientTransformation

  def loss(self, shard: Shard, draws: Draws, step: Array) -> Callable[[Params], Array]:
    """The loss of a client's mini-batch ``step`` as a function of the model.

    The L2 term is not included.
    """
    model, size, key = self.model, self.hparams.batch_size, draws.dropout
    if key is not None:
      key = jax.random.fold_in(key, step)
    if not size:
      return lambda params: zeroth_order.full_loss_without_l2(model, params, shard, key)
    rows, mask = minibatches.batch_rows(shard, draws.bits, step, size)
    x, y = minibatches.take_rows(shard, rows)
    return lambda params: zeroth_order.batch_loss(model, params, x, y, mask, key)


def _init(method: Baffle, params: Params, spec: FedSpec, key: Key) -> BaffleState:
  return BaffleState(
    params, params, method.optimiser.init(params), jnp.zeros((), jnp.int32)
  )


def _along_shared(
  method: Baffle, params: Params, step: Array, cohort: Cohort, batches: Draws, key: Key
) -> tuple[Array, Array]:
  """Estimates the gradient along directions that all clients share.

  Returns:
    The estimate [P] and the clients' losses [S].
  """
  h = method.hparams
  weights = ExampleWeights().build()(cohort)
  base = jnp.zeros(cohort.ids.shape)
  if h.scheme == "forward":
    base = method.map_clients(
      lambda at, shard, batches: method.loss(shard, batches, at[1])(at[0]),
      (params, step),
      cohort.shards,
      batches,
    )

  def report(shared, shard, batches, base):
    params, step, vectors = shared
    return zeroth_order.differences(
      method.loss(shard, batches, step),
      params,
      base,
      vectors,
      smoothing=h.smoothing,
      scheme=h.scheme,
    )

  def measure(vectors):  # drawn once for all: most of the arithmetic
    change, around = method.map_clients(
      report, (params, step, vectors), cohort.shards, batches, base
    )
    return trees.slot_mean(weights, change), around

  losses, vector = zeroth_order.over_directions(
    measure,
    jnp.zeros_like(base),
    key,
    num_params(params),
    directions=h.directions,
    smoothing=h.smoothing,
    kind="gaussian",
  )
  return vector, losses


def _along_own(
  method: Baffle, params: Params, step: Array, cohort: Cohort, batches: Draws, key: Key
) -> tuple[Array, Array]:
  """Estimates the gradient along directions that each client draws itself.

  Returns:
    The estimate [P] and the clients' losses [S].
  """
  h, protocol = method.hparams, method.hparams.protocol
  assert isinstance(protocol, OwnDirections)
  clip = protocol.clip

  def estimate(shared, shard, batches, key):
    params, step = shared
    loss, gradient = zeroth_order.estimate_gradient(
      method.loss(shard, batches, step),
      params,
      key,
      directions=h.directions,
      kind="gaussian",
      smoothing=h.smoothing,
      scheme=h.scheme,
    )
    return clip_entries(jax.flatten_util.ravel_pytree(gradient)[0], clip), loss

  return stacking.mean(
    method.map_clients,
    estimate,
    params,
    UniformWeights().build()(cohort),
    (params, step),
    cohort.shards,
    batches,
    client_keys(key, cohort.ids),
  )


def _round(
  method: Baffle, state: BaffleState, cohort: Cohort, key: Key
) -> tuple[BaffleState, RoundAux]:
  h, model = method.hparams, method.model
  rows, draws = jax.random.split(key)
  batches = jax.vmap(functools.partial(_draws, model))(client_keys(rows, cohort.ids))
  flat, unravel = jax.flatten_util.ravel_pytree(state.params)
  exchange = _along_own if isinstance(h.protocol, OwnDirections) else _along_shared

  def server_step(step, carry):
    params, optimiser_state, _ = carry
    vector, losses = exchange(
      method, params, step, cohort, batches, jax.random.fold_in(draws, step)
    )
    losses, gradient = objective.regularise(model, params, losses, unravel(vector))
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
      updates, optimiser_state = method.optimiser.update(
        gradient, optimiser_state, params
      )
    return optax.apply_updates(params, updates), optimiser_state, losses

  params, optimiser_state, losses = jax.lax.fori_loop(
    jnp.int32(0),
    jnp.int32(h.steps_per_round),
    server_step,
    (state.params, state.optimiser, jnp.zeros(cohort.ids.shape)),
  )
  number = state.round + 1
  t = number.astype(jnp.float32)
  decay = jnp.minimum(h.ema, (1.0 + t) / (10.0 + t))
  ema = trees.add_scaled(trees.scale(decay, state.ema), 1.0 - decay, params)
  aux = RoundAux(
    {"loss": losses},
    {"train_loss": trees.slot_mean(cohort.weight, losses)},
    _cost(h, flat.size, cohort.ids.shape[0]),
    _work(model, h, cohort.shards.size),
  )
  return BaffleState(params, ema, optimiser_state, number), aux


def _cost(h: BaffleHParams, size: int, slots: int) -> RoundCost:
  """The cost of a round of ``size`` parameters.

  Each step sends the model down, and a scalar for each direction or one vector
  up. The server multiplies scalars by directions, shared ones once, and those
  of each client where it sends their seed. The seed of shared directions is not
  counted.
  """
  up, flops = size, 0.0
  if not isinstance(h.protocol, OwnDirections):
    up, flops = h.directions, zeroth_order.replay_flops(h.directions, size)
  elif h.protocol.sends_seeds:
    up = zeroth_order.seeds_bytes(h.directions) // BYTES_PER_FLOAT
    flops = slots * zeroth_order.replay_flops(h.directions, size)
  return round_cost(
    h.steps_per_round * size,
    h.steps_per_round * up,
    h.steps_per_round,
    0,
    h.steps_per_round * flops,
  )


def _work(model: Model, h: BaffleHParams, sizes: Array) -> Work:
  """Computes the work of clients of these sizes ([S] int32) in a round."""
  examples = jax.vmap(h.work().examples_read)(sizes).astype(jnp.float32)
  batches = jax.vmap(h.work().num_steps)(sizes).astype(jnp.float32)
  passes = zeroth_order.passes(h.directions, h.scheme)
  return Work(model.flops * passes * examples, passes * batches)


def caution_differences(hparams: BaffleHParams, num_params: int) -> str:
  """A warning if float32 cannot resolve the loss differences, else ""."""
  return zeroth_order.caution_resolution("gaussian", hparams.smoothing, num_params)
