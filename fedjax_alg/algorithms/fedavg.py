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

import dataclasses

import optax

from fedjax_alg.base import Algorithm, builder, MapClients, Model
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer, local_optimizer
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.conditions import only
from fedjax_alg.exchange import exchange_of
from fedjax_alg.exchange.aggregation import Aggregation
from fedjax_alg.exchange.weights import BY_LOSS, FAIR, READ
from fedjax_alg.hparams import hyper, validate
from fedjax_alg.rounds.two_halves import ComposedState, compose


@dataclasses.dataclass(frozen=True)
class FedAvgHParams(ClientOptimizer, Aggregation, LocalWork):
  """Hyper-parameters of FedAvg."""

  client_lr: float = hyper(
      0.1, "eta, learning rate of the local steps", above=0.0,
      source="McMahan et al. Algorithm 1, ClientUpdate")
  server_lr: float = hyper(
      1.0, "factor of the participants' mean update; 1 is the plain average",
      above=0.0, source="McMahan et al. Algorithm 1, server")
  client_weights: str = hyper(
      "examples", "weights of the participants in the mean update: examples = "
      "n_i / n^r, uniform = all equal, " + BY_LOSS, when=READ, source=FAIR,
      later=True)


@dataclasses.dataclass(frozen=True)
class Proximal:
  """Hyper-parameters of the proximal term."""

  mu: float = hyper(
      0.1, "weight of the proximal term (mu/2)||v - w||^2", minimum=0.0,
      source="Li et al. (2)", neutral=0.0,
      when=only("client_update", "prox"))


@dataclasses.dataclass(frozen=True)
class FedProxHParams(Proximal, FedAvgHParams):
  """Hyper-parameters of FedProx."""


@builder
def fedavg(
    model: Model, hparams: FedAvgHParams, *, map_clients: MapClients,
    optimizer: optax.GradientTransformation | None = None,
) -> Algorithm[ComposedState]:
  """FedAvg: the weighted average of the locally trained models.

  Participant i starts at the global model, v = w, and takes mini-batch steps
    v <- v - client_lr g_i(v; B).
  The server moves along the participants' mean update,
    w <- w + server_lr sum_i (n_i / n^r) (v_i - w).

  Args:
    optimizer: an optimiser of the caller's for the local steps, its learning
      rate included, instead of `client_lr` and `client_optimizer`.
  """
  validate(hparams)
  return compose(
      model, sgd_update(model, hparams, hparams.client_lr,
                        optimizer=local_optimizer(hparams, optimizer)),
      steps.average(hparams.server_lr), map_clients=map_clients,
      exchange=exchange_of(hparams))


@builder
def fedprox(
    model: Model, hparams: FedProxHParams, *, map_clients: MapClients,
    optimizer: optax.GradientTransformation | None = None,
) -> Algorithm[ComposedState]:
  """FedProx: FedAvg whose local models are pulled towards the global model.

  The local steps minimise f_i(v) + (mu/2) ||v - w||^2:
    v <- v - client_lr (g_i(v; B) + mu (v - w)).
  The server averages as in FedAvg. With mu = 0, FedProx is FedAvg.

  Args:
    optimizer: an optimiser of the caller's for the local steps, its learning
      rate included, instead of `client_lr` and `client_optimizer`.
  """
  validate(hparams)
  return compose(
      model, sgd_update(model, hparams, hparams.client_lr, hparams.mu,
                        local_optimizer(hparams, optimizer)),
      steps.average(hparams.server_lr), map_clients=map_clients,
      exchange=exchange_of(hparams))
