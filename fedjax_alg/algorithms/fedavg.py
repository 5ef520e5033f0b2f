"""FedAvg and FedProx.

References:
  McMahan et al., "Communication-Efficient Learning of Deep Networks from
  Decentralized Data", AISTATS 2017, Algorithm 1.
  Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
  Algorithm 2.

FedProx's stragglers, clients that train for fewer epochs than they are asked,
are the run's option `stragglers` (``engine.late``).

Deviation: the server's average is weighted by n_i over the cohort, as in the
authors' code. (The analysis in the FedProx paper samples clients by n_i and
averages uniformly.)
"""

from typing import Any

import optax

from fedjax_alg.algorithms.common import (
  LocalMethod,
  averaging,
  local_rate,
  local_sgd,
  server_rate,
  weights,
)
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer, local_optimizer
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.messages import Carrier
from fedjax_alg.exchange.weights import Choice, ExampleWeights
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.rounds.two_halves import ComposedState


class FedAvgHParams(ClientOptimizer, LocalWork):
  """Hyper-parameters of FedAvg."""

  client_lr: float = local_rate(0.1, "McMahan et al. Algorithm 1, ClientUpdate", "eta")
  server_lr: float = server_rate(
    "McMahan et al. Algorithm 1, server", note="; 1 is the plain average"
  )
  client_weights: Choice = weights(ExampleWeights(), by_loss=True)


class Proximal(HParams):
  """Hyper-parameters of the proximal term."""

  mu: float = hyper(
    0.1,
    "weight of the proximal term (mu/2)||v - w||^2",
    minimum=0.0,
    source="Li et al. (2)",
    neutral=0.0,
  )


class SGDUpdate(LocalMethod):
  """FedAvg's: steps along the gradients."""

  WORD, EXAMPLE, TAKES_OPTIMIZER = "sgd", "sgd", True

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half (``LocalMethod.build``)."""
    return sgd_update(
      model, options, options.client_lr, optimizer=local_optimizer(options)
    )


class ProxUpdate(Proximal, LocalMethod):
  """FedProx's: a proximal term pulls towards the global model."""

  WORD, EXAMPLE, TAKES_OPTIMIZER = "prox", "prox:0.1", True

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half (``LocalMethod.build``)."""
    return sgd_update(
      model, options, options.client_lr, self.mu, local_optimizer(options)
    )


class FedProxHParams(Proximal, FedAvgHParams):
  """Hyper-parameters of FedProx."""


@builder
def fedavg(
  model: Model,
  hparams: FedAvgHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
  optimizer: optax.GradientTransformation | None = None,
) -> Algorithm[ComposedState]:
  """FedAvg: the weighted average of the locally trained models.

  Participant i starts at the global model, v = w, and takes mini-batch steps
    v <- v - client_lr g_i(v; B).
  The server moves along the participants' mean update,
    w <- w + server_lr sum_i (n_i / n^r) (v_i - w).

  Args:
    optimizer: an optimizer of the caller's for the local steps, its learning
      rate included, instead of `client_lr` and `client_optimizer`.
  """
  return averaging(
    model, local_sgd(model, hparams, optimizer), hparams, map_clients, exchange=exchange
  )


@builder
def fedprox(
  model: Model,
  hparams: FedProxHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
  optimizer: optax.GradientTransformation | None = None,
) -> Algorithm[ComposedState]:
  """FedProx: FedAvg whose local models are pulled towards the global model.

  The local steps minimize f_i(v) + (mu/2) ||v - w||^2:
    v <- v - client_lr (g_i(v; B) + mu (v - w)).
  The server averages as in FedAvg. With mu = 0, FedProx is FedAvg.

  Args:
    optimizer: an optimizer of the caller's for the local steps, its learning
      rate included, instead of `client_lr` and `client_optimizer`.
  """
  return averaging(
    model, local_sgd(model, hparams, optimizer), hparams, map_clients, exchange=exchange
  )
