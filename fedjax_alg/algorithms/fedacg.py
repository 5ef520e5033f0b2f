"""FedACG: clients train from the model moved ahead by the server's momentum.

Reference: Kim, Kim, Han, "Communication-Efficient Federated Learning with
Accelerated Client Gradient", CVPR 2024, Algorithm 1. `server_momentum` 0.85 and
0.001 are numbers of the authors' code. Its penalty 0.001 ||v - z||^2 is not halved;
`mu` 0.002 is the same penalty.

The state of a run holds the model moved ahead, z = w + lambda m, whose steps are
those of Nesterov's SGD (``central.steps.lookahead``); w is evaluated and deployed.
"""

from fedjax_alg.algorithms.common import averaging, local_rate, local_sgd, weights
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import Choice, UniformWeights
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds.two_halves import ComposedState


class FedACGHParams(ClientOptimizer, LocalWork):
  """Hyper-parameters of FedACG."""

  client_lr: float = local_rate(0.1, "Algorithm 1, line 8", "eta")
  client_weights: Choice = weights(
    UniformWeights(), "Algorithm 1, line 12", by_loss=True
  )
  server_momentum: float = hyper(
    0.85,
    "lambda, momentum of the server, and how far the model is moved ahead by it",
    minimum=0.0,
    below=1.0,
    source="Algorithm 1, lines 4 and 13",
  )
  mu: float = hyper(
    0.001,
    "beta, weight of the term (mu/2)||v - z||^2 of the local objective",
    minimum=0.0,
    source="Algorithm 1, line 7",
    neutral=0.0,
  )


@builder
def fedacg(
  model: Model,
  hparams: FedACGHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedACG: the server sends the model moved ahead by its momentum.

  Participant i starts at z = w + server_momentum m and takes mini-batch steps
    v <- v - client_lr (g_i(v; B) + mu (v - z)).
  With the mean update Delta = mean_i (v_i - z) the server moves
    m <- server_momentum m + Delta,    w <- z + Delta.
  With server_momentum = mu = 0, FedACG is FedAvg.
  """
  return averaging(
    model,
    local_sgd(model, hparams),
    hparams,
    map_clients,
    steps.lookahead(hparams.server_momentum),
    exchange=exchange,
  )
