"""FedExP: a server learning rate that follows from the updates themselves.

Reference: Jhunjhunwala, Wang, Joshi, "FedExP: Speeding Up Federated Averaging
via Extrapolation", ICLR 2023, Algorithm 1.

The paper's epsilon is tuned for every task; 1e-3 is that of its experiments with
networks. The authors' program (github.com/Divyansh03/FedExP) adds |S| epsilon where
Algorithm 1 and this step add epsilon, and lets epsilon shrink with the clients' rate.
The paper's theory weighs all clients alike. Other weights replace both means
by weighted ones. As in its experiments, the mean of the last two models is the
one that is evaluated, because the models of successive rounds oscillate. Momentum
is in the authors' program, and not in Algorithm 1.
"""

import dataclasses

from fedjax_alg.algorithms.common import averaging, local_rate, local_sgd, weights
from fedjax_alg.algorithms.fedavg import Proximal
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import Choice, UniformWeights
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.rounds.two_halves import ComposedState


class Extrapolation(HParams):
  """Options of the extrapolated server step."""

  epsilon: float = hyper(
    1e-3,
    "keeps the server's learning rate finite where the updates cancel",
    minimum=0.0,
    source="Algorithm 1, line 11",
  )
  average_iterates: bool = hyper(
    True,
    "whether the mean of the last two models is evaluated and deployed; else the last",
    source="section 5",
  )
  extrapolation_momentum: float = hyper(
    0.0,
    "momentum of the server, along which it goes as far as past and present updates "
    "disagree; 0: along the mean update",
    minimum=0.0,
    below=1.0,
    neutral=0.0,
    source="the authors' code",
  )


def extrapolated_server(options: Extrapolation) -> steps.ServerStep:
  """Makes the server's step that the options describe."""
  return steps.extrapolated(
    options.epsilon, options.average_iterates, options.extrapolation_momentum
  )


class ExtrapolatedServer(Extrapolation, steps.ServerRule):
  """A step that is longer, the more the updates disagree, as in FedExP."""

  WORD, EXAMPLE = "extrapolated", "extrapolated:0.001"

  @property
  def usual_rate(self) -> None:
    return None

  def build(self, server_lr: float) -> steps.ServerStep:
    """Makes ``steps.extrapolated``."""
    return extrapolated_server(self)


class FedExPHParams(Extrapolation, Proximal, ClientOptimizer, LocalWork):
  """Hyper-parameters of FedExP."""

  mu: float = dataclasses.field(
    default=0.0, metadata=Proximal.__dataclass_fields__["mu"].metadata
  )
  client_lr: float = local_rate(0.1, "Algorithm 1, line 6", "eta_l")
  client_weights: Choice = weights(
    UniformWeights(), "Algorithm 1, line 10", by_loss=True
  )


@builder
def fedexp(
  model: Model,
  hparams: FedExPHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedExP: the server goes further, the more the updates disagree.

  Participants train as in FedAvg, or in FedProx with `mu`. With their updates
  Delta_i and the mean Delta of these the server moves
    w <- w + eta_g Delta,
    eta_g = max(1, mean_i ||Delta_i||^2 / (2 (||Delta||^2 + epsilon))).
  With `extrapolation_momentum` it moves along a momentum (``steps.extrapolated``).
  """
  return averaging(
    model,
    local_sgd(model, hparams),
    hparams,
    map_clients,
    extrapolated_server(hparams),
    exchange=exchange,
  )
