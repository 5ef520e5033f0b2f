"""FedADMM: clients minimize their augmented Lagrangians.

Reference: Gong, Li, Freris, "FedADMM: A Robust Federated Deep Learning Framework
with Adaptivity to System Heterogeneity", ICDE 2022, Algorithm 1.

Local training starts from the received model, not from the client's last one;
the paper allows both. If all clients take part in every round, FedADMM with
`server_lr` 1 is FedDyn with `alpha` = rho.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.algorithms.common import averaging, local_rate, weights
from fedjax_alg.base import Algorithm, MapClients, Model, Params, builder
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import descent
from fedjax_alg.client.sgd import descend
from fedjax_alg.client.update import ClientUpdate, Store, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import Plain, UniformWeights
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds.two_halves import ComposedState


class FedADMMHParams(LocalWork):
  """Hyper-parameters of FedADMM."""

  client_lr: float = local_rate(0.1, "Algorithm 1, line 13", "eta_i")
  server_lr: float = hyper(
    0.5,
    "eta, factor of the participants' mean change; 1 with full participation",
    above=0.0,
    source="Algorithm 1, line 7",
  )
  rho: float = hyper(
    0.1,
    "weight of the quadratic term of the augmented Lagrangian",
    above=0.0,
    source="Gong et al. (3)",
  )
  client_weights: Plain = weights(UniformWeights(), "Algorithm 1, line 7")


class Duals(NamedTuple):
  """What clients keep, [C, ...]."""

  y: Params  #: y_i, dual variables
  augmented: Params  #: w_i + y_i / rho


def admm_update(model: Model, hparams: FedADMMHParams) -> ClientUpdate:
  """The client's part of FedADMM."""
  rho = hparams.rho

  def init(params, spec):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Duals(*(trees.repeat(tree, spec.num_clients) for tree in (zeros, params)))

  def train(received, shard, row, key):
    start = received.start

    def correct(gradient, params, start):
      pull = trees.add_scaled(row.y, rho, trees.subtract(params, start))
      return trees.add(gradient, pull)

    params, loss, _, leaves = descend(
      model, start, shard, hparams, key, descent(hparams.client_lr), correct
    )
    y = trees.add_scaled(row.y, rho, trees.subtract(params, start))
    augmented = trees.add_scaled(params, 1.0 / rho, y)
    change = trees.subtract(augmented, row.augmented)
    # An empty client sends and keeps nothing new.
    change = trees.where(shard.size > 0, change, jax.tree.map(jnp.zeros_like, change))
    kept = trees.where(shard.size > 0, Duals(y, augmented), row)
    return Trained(trees.add(start, change), loss, kept=kept, leaves=leaves)

  return ClientUpdate(
    train,
    hparams,
    init=init,
    store=Store.whole(),
    takes_parts=True,
    learning_rate=lambda shard: hparams.client_lr,
    one_model="a client's dual variables belong to one model",
    mean_only="of changes that add up to the clients' own",
    no_compression_because="changes add up to what clients keep",
  )


@builder
def fedadmm(
  model: Model,
  hparams: FedADMMHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedADMM: dual variables of the clients make local optima global ones.

  A participant takes steps from the global model, v = w,
    v <- v - client_lr (g_i(v; B) + y_i + rho (v - w)),
  then y_i <- y_i + rho (v - w). It sends Delta_i, the change of v_i + y_i / rho
  since it took part the last time. The server moves
    w <- w + server_lr mean_i Delta_i.
  """
  client = admm_update(model, hparams)
  return averaging(model, client, hparams, map_clients, exchange=exchange)
