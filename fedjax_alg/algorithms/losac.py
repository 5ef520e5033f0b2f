"""LoSAC: every local step refreshes an estimate of the global gradient.

Reference: Chen et al., "LoSAC: An Efficient Local Stochastic Average Control
Method for Federated Optimization", ACM TKDD 17(4), 2023. Only its abstract and
other papers' descriptions were available, so this is a reconstruction
(docs/papers/conjugate.md lists its sources). It is SAGA with a table of delayed
gradients that is spread over the clients.

Variant ``client`` keeps one delayed gradient q_k for each client, and the
estimate of the global gradient is G = sum_k (n_k/n) q_k. Variant ``table``
keeps one for each fixed mini-batch j of a client, and G = sum_kj (n_kj/n) q_kj;
it needs memory for all mini-batches of all clients. Let s be the share of q in
G. A participant starts with G_l = G, and a local step with a gradient r is

  v <- v - eta (r - q + G_l);   G_l <- G_l + s (r - q);   q <- r

A client sends its update of the model, and G_l - G. The server adds the *sum*
of the latter to G: every client changes a different part of G, so G stays
exact.

n counts the examples of the clients that are present. When clients join, n
grows, and G is scaled by the old n over the new one. The delayed gradients of
the newcomers then enter G: they are zero, or with `variant`=client:full the
full gradients at the global model of that round.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.algorithms.common import (
  LocalMethod,
  averaging,
  local_rate,
  server_rate,
  weights,
)
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
)
from fedjax_alg.client import minibatches, objective
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.update import ClientUpdate, Received, Store, Trained
from fedjax_alg.data import store
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.messages import Carrier
from fedjax_alg.exchange.weights import Plain, UniformWeights
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.part import Part
from fedjax_alg.rounds.two_halves import ComposedState
from fedjax_alg.typing import PyTree


class ClientGradients(Part):
  """One delayed gradient for each client."""

  WORD, EXAMPLE = "client", "client:full"
  first_gradients: str = hyper(
    "zeros",
    "delayed gradient of a client that has not taken part yet: "
    "zeros, or full = its full gradient at the initial model (of a newcomer: "
    "at the global model when it joins)",
    choices=("zeros", "full"),
    source="reconstruction",
  )

  def build(self, model: Model, work: LocalWork, client_lr: float) -> ClientUpdate:
    """The client's half.

    Args:
      model: the model.
      work: the amount of local work.
      client_lr: eta.
    """
    return _client_variant(model, work, client_lr, self.first_gradients)


class GradientTable(Part):
  """One delayed gradient for each fixed mini-batch of each client."""

  WORD = EXAMPLE = "table"
  SMALLER_STATE = "`variant`=client"

  def check_data(self, data: Any) -> None:
    """Refuses clients that join; see ``HParams``."""
    if data.newcomers_at is not None:
      raise OptionError(
        "`newcomers_at`: not with `variant`=table, which keeps a gradient of "
        "every batch of the first round's clients (use `variant`=client)"
      )

  def build(self, model: Model, work: LocalWork, client_lr: float) -> ClientUpdate:
    """The client's half.

    Args:
      model: the model.
      work: the amount of local work.
      client_lr: eta.

    Raises:
      OptionError: there is no fixed number of steps or no batch size, or the
        model has dropout.
    """
    if model.train_apply is not None:
      raise OptionError(
        "`variant`=table: a delayed gradient of a batch met another dropout "
        "or `augment` than the fresh one; take `variant`=client or a model "
        "without these and statistics of batches"
      )
    if not work.local_steps or not work.batch_size:
      name = "batch_size" if work.local_steps else "local_steps"
      raise OptionError(f"`{name}`=0: `variant`=table needs at least 1")
    return _table_variant(model, work, client_lr)


class Delays(HParams):
  """Options of the delayed gradients that LoSAC's clients store."""

  variant: ClientGradients | GradientTable = hyper(
    ClientGradients(),
    "which delayed gradients are kept: client = one for each "
    "client, table = one for each fixed mini-batch of each client (memory "
    "for examples / batch_size vectors)",
    source="reconstruction",
  )

  def check_data(self, data: Any) -> None:
    """Refuses examples that change: G counts each gradient by the client's share."""
    if data.change is not None:
      raise OptionError(
        f"`{data.change.OPTION}`: not with the delayed gradients of LoSAC, which "
        "are of the examples that a client had (allowed: data that stay)"
      )


class LosacHParams(Delays, LocalWork):
  """Hyper-parameters of LoSAC."""

  local_steps: int = hyper(
    20,
    "mini-batch steps per round; 0: count by `local_epochs` "
    "(only with `variant`=client)",
    minimum=0,
  )
  client_lr: float = local_rate(symbol="eta")
  server_lr: float = server_rate()
  client_weights: Plain = weights(UniformWeights())


class DelayedGradients(NamedTuple):
  """The delayed gradients, and the estimate G that is made of them."""

  estimate: Params  #: G
  #: [C, ...] q_k (variant client), or [R, ...] q_kj, the rows of one client
  #: after those of another (variant table)
  table: Params
  #: [C] int32, each client's first row of the table, -1 before the client has
  #: joined (variant table); [0] in variant client
  first_row: Array
  examples: Array  #: [] float32, n, over the clients that are present


def _client_variant(
  model: Model, work: LocalWork, client_lr: float, first: str
) -> ClientUpdate:

  def init(params, spec):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return DelayedGradients(
      zeros,
      trees.repeat(zeros, spec.num_clients),
      jnp.zeros(0, jnp.int32),
      jnp.zeros(()),
    )

  def setup(memory, params, everyone, map_clients):
    examples = everyone.weight.sum()
    if first == "zeros":
      return memory._replace(examples=examples)
    _check_leaves(model, everyone.shards)
    table = map_clients(
      lambda params, shard: objective.full_value_and_grad(model, params, shard)[1],
      params,
      everyone.shards,
    )
    return memory._replace(
      estimate=trees.slot_mean(everyone.weight, table), table=table, examples=examples
    )

  def refresh(memory, params, cohort, map_clients):
    memory = _more_examples(memory, cohort)
    if first == "zeros":
      return memory

    def ask():
      everyone, new = cohort.everyone, cohort.newcomers
      joining = everyone._replace(size=jnp.where(new, everyone.size, 0))
      fresh = map_clients(
        lambda params, shard: objective.full_value_and_grad(model, params, shard)[1],
        params,
        joining,
      )
      share = joining.size.astype(jnp.float32) / memory.examples
      return memory._replace(
        estimate=trees.add(memory.estimate, trees.slot_sum(share, fresh)),
        table=trees.where_rows(new, fresh, memory.table),
      )

    return jax.lax.cond(cohort.newcomers.any(), ask, lambda: memory)

  def train(received, shard, client_row, key):
    before, examples = received.shared
    share = shard.size.astype(jnp.float32) / examples

    def step(gradient, carry):
      params, estimate, delayed, _ = carry
      ((loss, fresh),) = gradient(params)
      params, estimate = _advance(params, estimate, delayed, fresh, share, client_lr)
      return params, estimate, fresh, loss

    (params, estimate, delayed, loss), leaves = minibatches.fold_steps(
      model, shard, work, key, step, (received.start, before, client_row, jnp.zeros(()))
    )
    return Trained(
      params,
      loss,
      trees.subtract(estimate, before),
      kept=trees.subtract(delayed, client_row),
      leaves=leaves,
    )

  return _client_update(train, work, client_lr, init=init, setup=setup, refresh=refresh)


def _check_leaves(model: Model, everyone: Shard) -> None:
  """Refuses full gradients at models that lack the clients' own leaves."""
  keeps = model.roles is not None and model.roles.keeps
  if keeps and store.is_on_host(everyone.x):
    raise OptionError(
      "`variant`=client:full: not with `data_on`=host and layers or statistics that "
      "clients keep, which are not there before round 1 (allowed: client)"
    )


def _client_update(
  train: Any, work: LocalWork, client_lr: float, *table: PyTree, **parts: Any
) -> ClientUpdate:
  """The client's half of either variant."""
  return ClientUpdate(
    train,
    work,
    store=Store.of("table", *table),
    upload_weights=lambda memory, cohort: cohort.present.astype(jnp.float32),
    merge=lambda memory, cohort, change, anchors: memory._replace(
      estimate=trees.add(memory.estimate, change)
    ),
    shared=lambda memory: (memory.estimate, memory.examples),
    learning_rate=lambda shard: client_lr,
    one_model="a client's delayed gradients belong to one model",
    extra_down=1,
    extra_up=1,
    **parts,
  )


def _advance(params, estimate, delayed, fresh, share, client_lr):
  """v and G_l after a step with the gradient r = ``fresh``."""
  change = trees.subtract(fresh, delayed)
  params = jax.tree.map(
    lambda v, change, g: v - client_lr * (change + g), params, change, estimate
  )
  return params, trees.add_scaled(estimate, share, change)


def _more_examples(memory, cohort):
  """Updates G and n to the clients present now; a newcomer's q is zero."""
  examples = cohort.everyone.size.astype(jnp.float32).sum()
  return memory._replace(
    estimate=trees.scale(memory.examples / examples, memory.estimate), examples=examples
  )


def picks(key: Key, slots: int, batches: Array) -> Array:
  """The mini-batches that the steps of a round visit, [slots] int32.

  The client's ``batches`` ([] int32) mini-batches come in a random order, which
  repeats: step k visits entry k mod ``batches``.
  """
  order = jnp.arange(slots, dtype=jnp.int32) % jnp.maximum(batches, 1)
  return minibatches.shuffle(
    minibatches.shuffle_bits(key), jnp.int32(0), order, jnp.maximum(batches, 1)
  )


def fixed_batch(
  shard: Shard, client_id: Array, batch: Array, batch_size: int
) -> tuple[Array, Array]:
  """Rows [B] and mask [B] of a mini-batch that is the same in every round."""
  key = jax.random.fold_in(jax.random.key(0), client_id)
  return minibatches.batch_rows(shard, minibatches.shuffle_bits(key), batch, batch_size)


def _table_variant(model: Model, work: LocalWork, client_lr: float) -> ClientUpdate:

  def batches(size):
    return minibatches.batches_per_epoch(size, work.batch_size)

  def init(params, spec):
    if not spec.max_examples:
      raise OptionError("`variant`=table needs FedSpec.max_examples")
    # At least the number of mini-batches of all clients, whatever their sizes.
    total = spec.max_examples // work.batch_size + spec.num_clients
    zeros = jax.tree.map(jnp.zeros_like, params)
    return DelayedGradients(
      zeros,
      trees.repeat(zeros, total),
      jnp.zeros(spec.num_clients, jnp.int32),
      jnp.zeros(()),
    )

  def setup(memory, params, everyone, map_clients):
    count = batches(everyone.shards.size)
    is_client = everyone.ids < everyone.ids.shape[0]
    first_row = (jnp.cumsum(count) - count).astype(jnp.int32)
    return memory._replace(
      first_row=jnp.where(is_client, first_row, -1), examples=everyone.weight.sum()
    )

  def refresh(memory, params, cohort, map_clients):
    """Gives newcomers the rows of the table after those in use."""
    memory = _more_examples(memory, cohort)
    count = batches(cohort.everyone.size)
    has_rows = memory.first_row >= 0
    num_rows = jnp.where(has_rows, count, 0).sum()
    new_rows = jnp.where(cohort.newcomers, count, 0)
    first_row = (num_rows + jnp.cumsum(new_rows) - new_rows).astype(jnp.int32)
    return memory._replace(
      first_row=jnp.where(cohort.newcomers & ~has_rows, first_row, memory.first_row)
    )

  return _client_update(
    functools.partial(_train_by_table, model, work, client_lr),
    work,
    client_lr,
    trees.set_rows,
    functools.partial(_places, work),
    init=init,
    setup=setup,
    refresh=refresh,
  )


def _places(work: LocalWork, memory: Any, cohort: Cohort, keys: Key) -> Array:
  """The rows of the q that each participant visits, [S, `local_steps`]."""
  slots = work.local_steps
  first = memory.first_row.at[cohort.ids].get(mode="clip")
  count = minibatches.batches_per_epoch(cohort.shards.size, work.batch_size)
  # ``_train_by_table`` draws the same once more.
  visited = jax.vmap(lambda key, n: picks(key, slots, n))(jax.random.clone(keys), count)
  # A mini-batch that is visited again shares the slot of its first visit.
  live = jnp.arange(slots, dtype=jnp.int32)[None] < count[:, None]
  return jnp.where(live, first[:, None] + visited, trees.num_rows(memory.table))


def _train_by_table(
  model: Model,
  work: LocalWork,
  client_lr: float,
  received: Received,
  shard: Shard,
  delayed: Params,
  key: Key,
) -> Trained:
  """Local steps on fixed mini-batches, ``delayed`` being the q of each."""
  before, examples = received.shared
  batches = minibatches.batches_per_epoch(shard.size, work.batch_size)
  visited = picks(key, work.local_steps, batches)  # as in ``_places``
  count = jnp.maximum(batches, 1)
  differentiate = minibatches.EXACT
  if work.microbatch_size:
    differentiate = minibatches.in_microbatches(differentiate, work.microbatch_size)

  def step(k, carry):
    params, estimate, delayed, _, examples_read = carry
    slot = k % count
    rows, mask = fixed_batch(shard, received.client_id, visited[slot], work.batch_size)
    x, y = minibatches.take_rows(shard, rows)
    loss, fresh = differentiate.batch(model, params, x, y, mask, None)
    share = mask.sum().astype(jnp.float32) / examples
    params, estimate = _advance(
      params, estimate, trees.index(delayed, slot), fresh, share, client_lr
    )
    delayed = jax.tree.map(lambda rows, new: rows.at[slot].set(new), delayed, fresh)
    return (params, estimate, delayed, loss, examples_read + mask.sum(dtype=jnp.int32))

  params, estimate, delayed, loss, examples_read = jax.lax.fori_loop(
    jnp.int32(0),
    work.num_steps(shard.size),
    step,
    (received.start, before, delayed, jnp.zeros(()), jnp.int32(0)),
  )
  return Trained(params, loss, trees.subtract(estimate, before), examples_read, delayed)


def losac_update(
  model: Model, work: LocalWork, client_lr: float, options: Delays
) -> ClientUpdate:
  """The client's part of LoSAC.

  Raises:
    OptionError: `variant`=table lacks a fixed number of steps or a batch size,
      or the model has dropout.
  """
  return options.variant.build(model, work, client_lr)


class LosacUpdate(Delays, LocalMethod):
  """LoSAC's: steps that refresh an estimate of the global gradient."""

  WORD, EXAMPLE = "losac", "losac:table"

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half (``LocalMethod.build``)."""
    return losac_update(model, options, options.client_lr, self)


@builder
def losac(
  model: Model,
  hparams: LosacHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """LoSAC: every local step refreshes an estimate of the global gradient.

  G is an estimate of the global gradient, made of the clients' delayed
  gradients q. A participant starts at v = w and G_l = G. A local step with a
  fresh gradient r is
    v <- v - client_lr (r - q + G_l);    G_l <- G_l + s (r - q);    q <- r,
  where s is the share of the examples behind q among the examples of all
  clients. The server moves
    w <- w + server_lr mean_i (v_i - w),    G <- G + sum_i (G_i - G).
  The method is a reconstruction; the module's docstring says from what.

  Raises:
    OptionError: `variant`=table lacks a fixed number of steps or a batch size,
      or meets a model with dropout.
  """
  client = losac_update(model, hparams, hparams.client_lr, hparams)
  return averaging(model, client, hparams, map_clients, exchange=exchange)
