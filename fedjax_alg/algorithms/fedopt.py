"""FedAvgM, FedAdagrad, FedYogi and FedAdam: FedAvg with a server optimizer.

References:
  Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for
  Federated Visual Classification", arXiv:1909.06335 (FedAvgM).
  Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2 (the
  other three).

The mean update is weighted by n_i as in both papers' experiments; Algorithm 2
is printed with equal weights (`client_weights`=uniform), and with K steps per
client where the experiments count epochs. `server_lr` and `client_lr` are tuned
for every task in the papers. The defaults here are values from their grids.
"""

from typing import Any

from fedjax_alg.algorithms.common import averaging, local_sgd, weights
from fedjax_alg.algorithms.fedavg import FedAvgHParams
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.central import steps
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import Choice, ExampleWeights
from fedjax_alg.hparams import field_like, hyper
from fedjax_alg.rounds.two_halves import ComposedState


class ServerHParams(FedAvgHParams):
  """Hyper-parameters that these methods share."""

  client_weights: Choice = weights(
    ExampleWeights(),
    "Reddi et al. section 5; Algorithm 2 has equal weights",
    by_loss=True,
  )


class FedAvgMHParams(ServerHParams):
  """Hyper-parameters of FedAvgM."""

  server_momentum: float = hyper(
    0.9,
    "beta, momentum of the server",
    minimum=0.0,
    below=1.0,
    source="Hsu et al. section 4.3",
  )


class FedAdagradHParams(ServerHParams):
  """Hyper-parameters of FedAdagrad."""

  server_lr: float = hyper(
    0.1,
    "eta, learning rate of the server",
    above=0.0,
    source="Reddi et al. Algorithm 2; tuned",
  )
  beta1: float = hyper(
    0.0,
    "decay of the first moment of the mean update",
    minimum=0.0,
    below=1.0,
    source="Reddi et al. section 5",
  )
  tau: float = field_like(steps.YogiServer, "tau")


class FedAdamHParams(ServerHParams):
  """Hyper-parameters of FedAdam and FedYogi."""

  server_lr: float = hyper(
    0.01,
    "eta, learning rate of the server",
    above=0.0,
    source="Reddi et al. Algorithm 2; tuned",
  )
  beta1: float = hyper(
    0.9,
    "decay of the first moment of the mean update",
    minimum=0.0,
    below=1.0,
    source="Reddi et al. section 5",
  )
  beta2: float = hyper(
    0.99,
    "decay of the second moment of the mean update",
    minimum=0.0,
    below=1.0,
    source="Reddi et al. section 5",
  )
  tau: float = field_like(steps.YogiServer, "tau")


def _build(
  rule: str, model: Model, hparams: Any, map_clients: MapClients, exchange: Exchange
) -> Algorithm[ComposedState]:
  """FedAvg with a rule of adaptivity; Adagrad's has no `beta2`."""
  return averaging(
    model,
    local_sgd(model, hparams),
    hparams,
    map_clients,
    steps.fedopt_step(
      rule,
      hparams.server_lr,
      hparams.beta1,
      getattr(hparams, "beta2", 0.0),
      hparams.tau,
    ),
    exchange=exchange,
  )


@builder
def fedavgm(
  model: Model,
  hparams: FedAvgMHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedAvgM: FedAvg with momentum on the server.

  Participants train as in FedAvg. With their mean update Delta the server moves
    v <- server_momentum v + Delta,    w <- w + server_lr v.
  """
  return averaging(
    model,
    local_sgd(model, hparams),
    hparams,
    map_clients,
    steps.sgd(hparams.server_lr, hparams.server_momentum),
    exchange=exchange,
  )


@builder
def fedadagrad(
  model: Model,
  hparams: FedAdagradHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedAdagrad: FedAvg with Adagrad on the server.

  Participants train as in FedAvg. With their mean update Delta the server moves
    m <- beta1 m + (1 - beta1) Delta,    v <- v + Delta^2,
    w <- w + server_lr m / (sqrt(v) + tau),
  from m = 0 and v = tau^2.
  """
  return _build("adagrad", model, hparams, map_clients, exchange=exchange)


@builder
def fedyogi(
  model: Model,
  hparams: FedAdamHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedYogi: FedAvg with Yogi on the server.

  As ``fedadam``, but with the second moment
    v <- v - (1 - beta2) Delta^2 sign(v - Delta^2).
  """
  return _build("yogi", model, hparams, map_clients, exchange=exchange)


@builder
def fedadam(
  model: Model,
  hparams: FedAdamHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedAdam: FedAvg with Adam on the server, without bias correction.

  Participants train as in FedAvg. With their mean update Delta the server moves
    m <- beta1 m + (1 - beta1) Delta,    v <- beta2 v + (1 - beta2) Delta^2,
    w <- w + server_lr m / (sqrt(v) + tau),
  from m = 0 and v = tau^2. (The cell `server`=adam of the grid is optax's Adam,
  with bias correction and v = 0 at the start.)
  """
  return _build("adam", model, hparams, map_clients, exchange=exchange)
