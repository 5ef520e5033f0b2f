"""Scaffnew: local steps until a coin falls, and control variates of a client.

Reference: Mishchenko, Malinovsky, Stich, Richtarik, "ProxSkip: Yes! Local
Gradient Steps Provably Lead to Communication Acceleration! Finally!", ICML 2022,
Algorithm 2.

The paper throws a coin after every step of all clients, and they communicate
with probability p. A round here is all that is between two communications: the
number of steps is geometric, with the mean 1 / p, and the same for all clients.
What a client adds to its h_i after the communication, (p / gamma) (x - x_i), it
adds at the start of its next round, when it has x. All clients take part in
every round. With batches of all examples (`batch_size` 0) on a strongly convex
problem the paper proves the rate 1 - min(gamma mu, p^2) a step.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from fedjax_alg import trees
from fedjax_alg.algorithms.common import (
  averaging,
  local_rate,
  refuse_new_sizes,
  weights,
)
from fedjax_alg.base import Algorithm, Array, Key, MapClients, Model, Params, builder
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import descent
from fedjax_alg.client.sgd import descend
from fedjax_alg.client.update import ClientUpdate, Store, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import Plain, UniformWeights
from fedjax_alg.hparams import HParams, field_like, hyper
from fedjax_alg.rounds.two_halves import ComposedState

#: What makes the key of the coin of a client's key.
_COIN = 0x5CAF


class ScaffnewHParams(HParams):
  """Hyper-parameters of Scaffnew."""

  batch_size: int = field_like(LocalWork, "batch_size")
  client_lr: float = local_rate(0.1, "Algorithm 2, line 6", "gamma")
  communication: float = hyper(
    0.1,
    "p, probability that a local step is followed by a communication; a round has "
    "1 / p local steps on average",
    above=0.0,
    maximum=1.0,
    source="Algorithm 2, line 4",
  )
  client_weights: Plain = weights(UniformWeights(), "Algorithm 2, line 9")

  def check_data(self, data: Any) -> None:
    """Refuses changing weights: the weighted sum of h would no longer be 0."""
    refuse_new_sizes(self.client_weights, data)


class DrawnSteps(LocalWork):
  """Local work of a number of steps that is drawn in each round."""

  steps: Any = 0  #: [] int32

  def num_steps(
    self, size: Int[Array, ""], part: Float[Array, ""] | None = None
  ) -> Int[Array, ""]:
    """Returns the drawn number, [] int32; 0 for a client without examples."""
    return jnp.where(size > 0, self.steps, 0)


class Variates(NamedTuple):
  """What clients keep, [C, ...]."""

  h: Params  #: h_i before the last communication
  last: Params  #: x_i, the model that was sent


def draw_steps(key: Key, p: Float[Array, ""] | float) -> Int[Array, ""]:
  """Draws the number of steps up to the first communication, [] int32.

  Args:
    key: consumed.
    p: probability of a communication after a step.
  """
  tail = jnp.log1p(-jax.random.uniform(key))
  skip = jnp.log1p(-jnp.asarray(p, jnp.float32))  # -inf for p = 1
  return 1 + jnp.floor(tail / skip).astype(jnp.int32)


def scaffnew_update(model: Model, hparams: ScaffnewHParams) -> ClientUpdate:
  """The client's part of Scaffnew."""
  gamma, p = hparams.client_lr, hparams.communication

  def init(params, spec):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Variates(*(trees.repeat(tree, spec.num_clients) for tree in (zeros, params)))

  def client_rows(memory, cohort, keys):
    # One coin for all clients: that of the first client, whatever its slot.
    first = jnp.argmin(jnp.where(cohort.present, cohort.ids, jnp.iinfo(jnp.int32).max))
    num_steps = draw_steps(jax.random.fold_in(keys[first], _COIN), p)
    joins = jnp.zeros((), bool)
    if cohort.newcomers is not None:
      joins = cohort.newcomers.at[cohort.ids].get(mode="clip")
    return tuple(jnp.broadcast_to(row, cohort.ids.shape) for row in (num_steps, joins))

  def train(received, shard, client_row, key):
    (h, last), (num_steps, joins) = client_row
    start = received.start
    last = trees.where(joins, start, last)  # so that a newcomer's h_i is 0
    h = trees.add_scaled(h, p / gamma, trees.subtract(start, last))
    work = DrawnSteps(batch_size=hparams.batch_size, steps=num_steps)
    params, loss, _, leaves = descend(
      model,
      start,
      shard,
      work,
      key,
      descent(gamma),
      lambda gradient, *_: trees.subtract(gradient, h),
    )
    return Trained(
      params,
      loss,
      gradients=work.examples_read(shard.size),
      kept=Variates(h, params),
      leaves=leaves,
    )

  return ClientUpdate(
    train,
    LocalWork(local_steps=1, batch_size=hparams.batch_size),
    init=init,
    store=Store.whole(),
    client_rows=client_rows,
    learning_rate=lambda shard: gamma,
    one_model="h_i belongs to one model",
    mean_only="by which h_i are corrected",
    no_compression_because="h_i are corrected by the exact mean",
  )


@builder
def scaffnew(
  model: Model,
  hparams: ScaffnewHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """Scaffnew: a random number of corrected local steps between communications.

  With p = communication, every client starts at x_i = x and takes L steps
    x_i <- x_i - client_lr (g_i(x_i; B) - h_i),
  where L is geometric with the mean 1 / p, the same for all clients. Then
    x <- mean_i x_i,    h_i <- h_i + (p / client_lr) (x - x_i),
  from h_i = 0. With p = 1 and batches of all examples it is gradient descent.
  """
  client = scaffnew_update(model, hparams)
  return averaging(
    model,
    client,
    hparams,
    map_clients,
    steps.average(),
    exchange=exchange,
  )
