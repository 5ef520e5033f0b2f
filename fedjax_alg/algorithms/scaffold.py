"""SCAFFOLD: control variates correct the drift of clients.

Reference: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, Algorithm 1.

Every client keeps c_i, and the server keeps c, the mean of all c_i. All are
zero at the start; starting from a copy of the model, as some public code does,
would break that equality. The server's learning rate moves the model, not c.

With another optimizer than plain SGD, which the paper does not have, it acts on
the corrected gradient g_i - c_i + c. If it came before the correction, the
momentum of g_i would be corrected by c_i once. Option II then takes the mean
gradient of the local steps itself: (x - y) / (K eta_l) is that mean with plain
SGD alone, and up to 1 / (1 - momentum) times as long with momentum.

The paper's N is the number of all clients, and where clients join during the
run that of those who have joined and have examples. A newcomer's c_i is zero,
so c is scaled down to the mean over more clients when clients join.

With K models (``composed``), which the paper does not have, a client still has
one c_i: that of the model it trained last. c is their mean over all clients, as
the anchor gradient of MA-FSVRG is one over participants of all groups.
"""

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
from fedjax_alg.base import Algorithm, MapClients, Model, Params, builder
from fedjax_alg.client import objective
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import (
  ClientOptimizer,
  Optimizer,
  descent,
  local_optimizer,
  with_sum,
)
from fedjax_alg.client.sgd import descend
from fedjax_alg.client.update import ClientUpdate, MeanRow, Store, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.messages import Carrier
from fedjax_alg.exchange.weights import Choice, UniformWeights
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.rounds.two_halves import ComposedState


class VariateOptions(HParams):
  """Options of SCAFFOLD's control variates."""

  option: str = hyper(
    "II",
    "what a client's new control variate c_i is: I = its full gradient "
    "at the model that it received, II = the mean gradient of its local "
    "steps",
    choices=("I", "II"),
    source="Algorithm 1, line 12",
  )


class ScaffoldHParams(VariateOptions, ClientOptimizer, LocalWork):
  """Hyper-parameters of SCAFFOLD."""

  client_lr: float = local_rate(0.1, "Algorithm 1, line 10", "eta_l")
  server_lr: float = server_rate("Algorithm 1, line 16", "eta_g")
  client_weights: Choice = weights(
    UniformWeights(), "Algorithm 1, line 16", by_loss=True
  )


class ControlVariates(NamedTuple):
  """The control variates of the server and of the clients."""

  server: Params  #: c, the mean of the c_i over N clients
  clients: Params  #: [C, ...], c_i


def scaffold_update(
  model: Model,
  work: LocalWork,
  client_lr: Any,
  option: str,
  optimizer: Optimizer = None,
) -> ClientUpdate:
  """The client's part of SCAFFOLD: steps along g_i(y; B) - c_i + c."""

  def init(params, spec):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return ControlVariates(zeros, trees.repeat(zeros, spec.num_clients))

  def refresh(memory, params, cohort, map_clients):
    present = cohort.everyone.size > 0
    before = (present & ~cohort.newcomers).sum().astype(jnp.float32)
    share = before / jnp.maximum(present.sum(), 1).astype(jnp.float32)
    return memory._replace(server=trees.scale(share, memory.server))

  def weigh(cohort):
    return (cohort.everyone.size > 0).astype(jnp.float32)

  def move(memory, share, change):
    return memory._replace(server=trees.add(trees.scale(share, memory.server), change))

  def train(received, shard, client_row, key):
    start, shift = received.start, trees.subtract(received.shared, client_row)
    sums = option == "II" and optimizer is not None
    local_steps = descent(client_lr, optimizer, received.round)
    params, loss, opt_state, leaves = descend(
      model,
      start,
      shard,
      work,
      key,
      with_sum(local_steps) if sums else local_steps,
      lambda gradient, params, start: trees.add(gradient, shift),
    )
    steps_taken = jnp.maximum(
      work.num_steps(shard.size, shard.part).astype(jnp.float32), 1.0
    )
    if option == "I":
      _, new = objective.full_value_and_grad(model, start, shard)
    elif sums:
      new = jax.tree.map(
        lambda total, shift: total / steps_taken - shift, opt_state[1], shift
      )
    else:
      per_step = 1.0 / (steps_taken * client_lr)
      new = jax.tree.map(
        lambda start, end, shift: (start - end) * per_step - shift, start, params, shift
      )
    # An empty client keeps its c_i.
    changed = trees.where(
      shard.size > 0,
      trees.subtract(new, client_row),
      jax.tree.map(jnp.zeros_like, client_row),
    )
    return Trained(params, loss, changed, kept=changed, leaves=leaves)

  def upload_weights(memory, cohort):
    clients: Any = trees.num_rows(memory.clients)
    if cohort.newcomers is not None:
      clients = jnp.maximum((cohort.everyone.size > 0).sum(), 1).astype(jnp.float32)
    return cohort.present.astype(jnp.float32) / clients

  def merge(memory, cohort, change, anchors):
    # c <- c + (1/N) sum dc_i keeps c the mean of the N clients' c_i.
    return memory._replace(server=trees.add(memory.server, change))

  return ClientUpdate(
    train,
    work,
    init=init,
    refresh=refresh,
    learning_rate=lambda shard: client_lr,
    shared=lambda memory: memory.server,
    store=Store.of("clients"),
    upload_weights=upload_weights,
    merge=merge,
    mean_row=MeanRow(weigh, move),
    takes_parts=True,
    extra_down=1,
    extra_up=1,
    full_passes=1 if option == "I" else 0,
  )


class ScaffoldUpdate(VariateOptions, LocalMethod):
  """SCAFFOLD's: steps that control variates correct."""

  WORD, EXAMPLE, TAKES_OPTIMIZER = "scaffold", "scaffold:I", True

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half (``LocalMethod.build``)."""
    return scaffold_update(
      model, options, options.client_lr, self.option, local_optimizer(options)
    )


@builder
def scaffold(
  model: Model,
  hparams: ScaffoldHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """SCAFFOLD: control variates c_i and c correct the drift of clients.

  A participant takes K steps from the global model, y = x,
    y <- y - client_lr (g_i(y; B) - c_i + c),
  and updates its control variate (`option`),
    I:  c_i+ = grad f_i(x),    II: c_i+ = c_i - c + (x - y) / (K client_lr).
  The server moves
    x <- x + server_lr mean_i (y_i - x),    c <- c + (1/N) sum_i (c_i+ - c_i).
  """
  client = scaffold_update(
    model, hparams, hparams.client_lr, hparams.option, local_optimizer(hparams)
  )
  return averaging(model, client, hparams, map_clients, exchange=exchange)
