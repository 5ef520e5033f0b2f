"""FedSAM and FedLESAM: local steps that look for flat minima.

References:
  Qu, Li, Duan, Liu, Tang, Lu, "Generalized Federated Learning via Sharpness
  Aware Minimization", ICML 2022 (FedSAM); Caldarola, Caputo, Ciccone, "Improving
  Generalization in Federated Learning by Seeking Flat Minima", ECCV 2022.
  Fan, Hu, Yao, Niu, Zhang, Sugiyama, Wang, "Locally Estimated Global
  Perturbations are Better than Local Perturbations for Federated Sharpness-aware
  Minimization", ICML 2024 (FedLESAM).

SAM (Foret et al., ICLR 2021) takes the gradient where the loss is largest in a
ball of radius rho, to first order. FedSAM looks for that point on every
mini-batch, which costs a second gradient. FedLESAM takes the direction from the
model that the client received the last time to the one it receives now, reversed,
for an ascent of the global loss. It costs no gradient, and one model that each
client keeps. Before a client takes part, that is the initial model.
"""

from typing import Any

from fedjax_alg import trees
from fedjax_alg.algorithms.common import LocalMethod, averaging
from fedjax_alg.algorithms.fedavg import FedAvgHParams
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.client import sharpness
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import Optimizer, local_optimizer
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.client.update import ClientUpdate, Store
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.messages import Carrier
from fedjax_alg.hparams import HParams, hyper, is_zero
from fedjax_alg.rounds.two_halves import ComposedState
from fedjax_alg.typing import Numeric


class Radius(HParams):
  """The option of sharpness-aware local steps."""

  rho: float = hyper(
    0.05,
    "distance from the client's model at which gradients are taken; 0: at the model",
    minimum=0.0,
    source="Qu et al., Algorithm 1",
    neutral=0.0,
  )


class FedSAMHParams(Radius, FedAvgHParams):
  """Hyper-parameters of FedSAM and FedLESAM."""


def sam_update(
  model: Model,
  work: LocalWork,
  client_lr: Numeric,
  rho: Numeric,
  optimizer: Optimizer = None,
) -> ClientUpdate:
  """The client's part of FedSAM: steps along g_i(v + rho g / ||g||; B)."""
  client = sgd_update(
    model,
    work,
    client_lr,
    optimizer=optimizer,
    measure=sharpness.along_gradient(rho),
  )
  return client._replace(gradients_per_step=1 if is_zero(rho) else 2)


def lesam_update(
  model: Model,
  work: LocalWork,
  client_lr: Numeric,
  rho: Numeric,
  optimizer: Optimizer = None,
) -> ClientUpdate:
  """The client's part of FedLESAM, which keeps the model it received last."""

  def init(params, spec):
    return trees.repeat(params, spec.num_clients)

  def train(received, shard, last, key):
    measure = sharpness.along(trees.subtract(last, received.start), rho)
    client = sgd_update(model, work, client_lr, optimizer=optimizer, measure=measure)
    trained = client.train(received, shard, (), key)
    return trained._replace(kept=received.start)

  return sgd_update(model, work, client_lr, optimizer=optimizer)._replace(
    train=train,
    init=init,
    store=Store.whole(),
    one_model="a client's direction belongs to one model",
  )


class SAMUpdate(Radius, LocalMethod):
  """FedSAM's: gradients where the mini-batch's loss is larger."""

  WORD, EXAMPLE, TAKES_OPTIMIZER = "sam", "sam:0.05", True

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half (``LocalMethod.build``)."""
    return sam_update(
      model, options, options.client_lr, self.rho, local_optimizer(options)
    )


class LESAMUpdate(Radius, LocalMethod):
  """FedLESAM's: gradients up the estimated global ascent."""

  WORD, EXAMPLE, TAKES_OPTIMIZER = "lesam", "lesam:0.05", True

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half (``LocalMethod.build``)."""
    return lesam_update(
      model, options, options.client_lr, self.rho, local_optimizer(options)
    )


@builder
def fedsam(
  model: Model,
  hparams: FedSAMHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedSAM: local gradients are taken where the mini-batch's loss is larger.

  Participant i starts at v = w and takes mini-batch steps
    v <- v - client_lr g_i(v + rho g / ||g||; B),    g = g_i(v; B).
  The server averages as in FedAvg. With rho = 0, FedSAM is FedAvg.
  """
  client = sam_update(
    model, hparams, hparams.client_lr, hparams.rho, local_optimizer(hparams)
  )
  return averaging(model, client, hparams, map_clients, exchange=exchange)


@builder
def fedlesam(
  model: Model,
  hparams: FedSAMHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedLESAM: local gradients are taken up the estimated global ascent.

  Participant i keeps u_i, the model that it received the last time, at first the
  initial model. It starts at v = w and takes mini-batch steps
    v <- v - client_lr g_i(v + rho (u_i - w) / ||u_i - w||; B),
  then u_i <- w. The server averages as in FedAvg. With rho = 0, it is FedAvg.
  """
  client = lesam_update(
    model, hparams, hparams.client_lr, hparams.rho, local_optimizer(hparams)
  )
  return averaging(model, client, hparams, map_clients, exchange=exchange)
