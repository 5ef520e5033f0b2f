"""FedADMM: clients minimize their augmented Lagrangians.

Reference: Gong, Li, Freris, "FedADMM: A Robust Federated Deep Learning Framework
with Adaptivity to System Heterogeneity", ICDE 2022, Algorithm 1.

Local training starts from the received model, not from the client's last one;
the paper allows both. If all clients take part in every round, FedADMM with
`server_lr` 1 is FedDyn with `alpha` = rho.

The changes that clients send add up: with the paper's step eta / |S|, the model is
  w_0 + (eta C / |S|) mean_i (w_i + y_i / rho - w_0)
over all C clients. So it only ends where the mean gradient is 0 if eta = |S| / C, as
in the paper's theorem; with a larger eta the mean gradient ends at a positive multiple
of w - w_0, and training may diverge. `server_lr` is eta C / |S|.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.algorithms.common import (
  averaging,
  local_rate,
  refuse_new_sizes,
  weights,
)
from fedjax_alg.algorithms.feddyn import total_weight
from fedjax_alg.base import Algorithm, MapClients, Model, Params, builder
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import descent
from fedjax_alg.client.sgd import descend
from fedjax_alg.client.update import ClientUpdate, Store, Trained
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import Plain, UniformWeights
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds.two_halves import ComposedState


class FedADMMHParams(LocalWork):
  """Hyper-parameters of FedADMM."""

  client_lr: float = local_rate(0.1, "Algorithm 1, line 13", "eta_i")
  server_lr: float = hyper(
    1.0,
    "factor of the sum of the participants' changes over C, eta C / |S|; with another "
    "than 1 the limit is not a stationary point",
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

  def check_data(self, data: Any) -> None:
    """Refuses data with which the model is no longer the mean of what clients keep.

    The changes of clients that join would count from the first model, and with
    weights by examples those of the others would count for another size.
    """
    if data.newcomers_at is not None:
      raise OptionError(
        "`newcomers_at`: not with fedadmm, whose model is the mean of what the "
        "clients of the first round keep (use feddyn)"
      )
    refuse_new_sizes(self.client_weights, data)


class Duals(NamedTuple):
  """What clients keep, [C, ...]."""

  y: Params  #: y_i, dual variables
  augmented: Params  #: w_i + y_i / rho


def admm_update(model: Model, hparams: FedADMMHParams) -> ClientUpdate:
  """The client's part of FedADMM, and the share of the participants."""
  rho, weigh = hparams.rho, hparams.client_weights.build()

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

  def scale(memory, cohort, change):
    return trees.scale(weigh(cohort).sum() / total_weight(weigh, cohort), change)

  return ClientUpdate(
    train,
    hparams,
    init=init,
    store=Store.whole(),
    scale=scale,
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
    w <- w + (server_lr / C) sum_i Delta_i.
  """
  client = admm_update(model, hparams)
  return averaging(model, client, hparams, map_clients, exchange=exchange)
