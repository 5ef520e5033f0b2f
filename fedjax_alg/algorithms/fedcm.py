"""FedCM and SCAFFOLD-M: local steps mixed with the global momentum.

References:
  Xu, Wang, Wang, Yao, "FedCM: Federated Learning with Client-level Momentum",
  arXiv:2106.10874, Algorithm 2.
  Cheng, Huang, Wu, Yuan, "Momentum Benefits Non-IID Federated Learning Simply
  and Provably", ICLR 2024: FedAvg-M (FedCM under other names) and SCAFFOLD-M.

`server_lr` is a factor of the mean update, so the papers' rate of the server is
server_lr client_lr K with K local steps. The papers have equal numbers of steps.
Here the momentum is the mean update over client_lr times the participants' mean
number of steps, which is the same where these are equal.
"""

from typing import Any

from fedjax_alg.algorithms.common import (
  LocalMethod,
  averaging,
  local_rate,
  server_rate,
  weights,
)
from fedjax_alg.algorithms.scaffold import VariateOptions, scaffold_update
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.client.global_momentum import with_global_momentum
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import Optimizer
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.messages import Carrier
from fedjax_alg.exchange.weights import Choice, UniformWeights
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.rounds.two_halves import ComposedState
from fedjax_alg.typing import Numeric


class GlobalMomentum(HParams):
  """Options of the global momentum in local steps."""

  gradient_weight: float = hyper(
    0.1,
    "weight of the client's gradient in a local step; the global momentum has the "
    "rest; 1: no momentum",
    above=0.0,
    maximum=1.0,
    source="FedCM, Algorithm 2, line 8 (alpha); Cheng et al. (beta)",
  )


class FedCMHParams(GlobalMomentum, LocalWork):
  """Hyper-parameters of FedCM."""

  client_lr: float = local_rate(0.1, "FedCM, Algorithm 2, line 9", "eta_l")
  server_lr: float = server_rate("FedCM, Algorithm 2, line 14", "eta_g")
  client_weights: Choice = weights(
    UniformWeights(), "FedCM, Algorithm 2, line 13", by_loss=True
  )


class ScaffoldMHParams(VariateOptions, FedCMHParams):
  """Hyper-parameters of SCAFFOLD-M."""


def fedcm_update(
  model: Model, work: LocalWork, client_lr: Numeric, gradient_weight: Numeric
) -> ClientUpdate:
  """The client's part of FedCM."""

  def make(optimizer: Optimizer) -> ClientUpdate:
    return sgd_update(model, work, client_lr, optimizer=optimizer)

  return with_global_momentum(make, work, client_lr, gradient_weight)


def scaffold_m_update(
  model: Model,
  work: LocalWork,
  client_lr: Numeric,
  gradient_weight: Numeric,
  option: str,
) -> ClientUpdate:
  """The client's part of SCAFFOLD-M."""

  def make(optimizer: Optimizer) -> ClientUpdate:
    return scaffold_update(model, work, client_lr, option, optimizer)

  return with_global_momentum(make, work, client_lr, gradient_weight)


class CMUpdate(GlobalMomentum, LocalMethod):
  """FedCM's: steps along the gradient and the global momentum."""

  WORD, EXAMPLE = "fedcm", "fedcm:0.1"

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half (``LocalMethod.build``)."""
    return fedcm_update(model, options, options.client_lr, self.gradient_weight)


class ScaffoldMUpdate(VariateOptions, GlobalMomentum, LocalMethod):
  """SCAFFOLD-M's: control variates and the global momentum."""

  WORD, EXAMPLE = "scaffold_m", "scaffold_m:0.1"

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half (``LocalMethod.build``)."""
    return scaffold_m_update(
      model, options, options.client_lr, self.gradient_weight, self.option
    )


@builder
def fedcm(
  model: Model,
  hparams: FedCMHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedCM: local steps go along the gradient and the global momentum.

  With beta = gradient_weight, participant i starts at v = w and takes K steps
    v <- v - client_lr (beta g_i(v; B) + (1 - beta) m).
  With the mean update Delta = mean_i (v_i - w) the server moves
    w <- w + server_lr Delta,    m <- -Delta / (client_lr K),
  from m = 0. FedCM with gradient_weight = 1 is FedAvg.
  """
  client = fedcm_update(model, hparams, hparams.client_lr, hparams.gradient_weight)
  return averaging(model, client, hparams, map_clients, exchange=exchange)


@builder
def scaffold_m(
  model: Model,
  hparams: ScaffoldMHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """SCAFFOLD-M: control variates, and the global momentum in local steps.

  With beta = gradient_weight, participant i starts at y = x and takes K steps
    y <- y - client_lr (beta (g_i(y; B) - c_i + c) + (1 - beta) m).
  The control variates c_i and c are SCAFFOLD's: with `option` II the new c_i is
  the mean of the g_i. m is FedCM's. SCAFFOLD-M with gradient_weight = 1 is
  SCAFFOLD.
  """
  client = scaffold_m_update(
    model, hparams, hparams.client_lr, hparams.gradient_weight, hparams.option
  )
  return averaging(model, client, hparams, map_clients, exchange=exchange)
