"""Methods that combine any local method with any server step.

  `client_update`=sgd|prox|svrg|scaffold|mime|mime_lite|losac|nova|dyn|fedcm|
           scaffold_m|muon|sam|lesam
  `server`=average|sgd|adam|yogi|adagrad|adaptive|conjugate_gradient|
           cg_line_search|extrapolated|lookahead|optax:NAME
  `grouping`=none|model:K|gradient:K, K global models for groups of participants

Many named algorithms are such combinations with other defaults: FedAvg is sgd x
average, FSVRG is svrg x average, CLSFSVRG is svrg x cg_line_search, FedACG is
prox x lookahead, and MA-FSVRG is svrg x adaptive x K models.
"""

import dataclasses
from typing import Any

from fedjax_alg.algorithms import diversified, fedavg
from fedjax_alg.algorithms.common import averaging, weights
from fedjax_alg.algorithms.halves import CLIENT_UPDATES, ServerChoice
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer, Optax
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import Choice, ExampleWeights, Plain
from fedjax_alg.hparams import hyper, is_zero
from fedjax_alg.named_optimizers import RATE_FREE
from fedjax_alg.part import forms
from fedjax_alg.rounds.two_halves import ComposedState


class ComposedHParams(ServerChoice, ClientOptimizer, LocalWork):
  """Hyper-parameters of all combinations."""

  client_update: CLIENT_UPDATES = hyper(
    fedavg.SGDUpdate(),
    "the local method, by which a participant trains; nova is "
    "FedNova's plain SGD, without its `mu`, `client_momentum` and `tau_eff`",
  )
  grouping: (
    diversified.OneModel | diversified.GroupsByModel | diversified.GroupsByGradient
  ) = hyper(
    diversified.OneModel(),
    "K, the number of global models that the server keeps, and what participants are "
    "grouped by: their trained models (MA), or their gradients at these (GA)",
  )
  client_weights: Choice = weights(
    ExampleWeights(),
    mean="every mean (with `grouping`, models of a group count alike)",
    by_loss=True,
  )
  local_steps: int = hyper(
    20, "mini-batch steps per round; 0: count by `local_epochs`", minimum=0
  )
  client_lr: float = hyper(
    0.0,
    "learning rate of the local steps (svrg divides it by n_i); 0 "
    "stands for the default, which is 12 with svrg, 0.01 with muon, 1 with optimizers "
    "that estimate their steps, such as optax:prodigy, and else 0.1",
    minimum=0.0,
  )

  def resolved(self) -> "ComposedHParams":
    """The same, with each learning rate of 0 replaced by its default."""
    rates: dict[str, Any] = {}
    if is_zero(self.client_lr):
      optimizer, update = self.client_optimizer, self.client_update
      factor = isinstance(optimizer, Optax) and optimizer.name in RATE_FREE
      rates["client_lr"] = 1.0 if factor and update.TAKES_OPTIMIZER else update.RATE
    return dataclasses.replace(self, **rates, server_lr=self.server_rate)


def _check_composition(hparams: ComposedHParams) -> None:
  """Refuses what ``compose`` itself cannot recognize.

  Raises:
    OptionError: an option has no effect with this local method or server step; or
      weights by losses with a local method that reads the weights itself; or a
      grouping by gradient although neither half measures anchor gradients.
  """
  update, server, groups = hparams.client_update, hparams.server, hparams.grouping
  weights = hparams.client_weights
  update.check_optimizer(hparams)
  if not isinstance(weights, Plain) and update.PLAIN_WEIGHTS:
    raise OptionError(
      f"`client_weights`={weights.WORD}: `client_update`={update.WORD} reads "
      f"the weights itself (allowed: {', '.join(forms(Plain))})"
    )
  if (
    groups.num_models > 1
    and groups.BY_GRADIENT
    and not (update.ANCHORED or server.build(1.0).when == "before")
  ):
    raise OptionError(
      f"`grouping`={groups.WORD}: `client_update`={update.WORD} with "
      f"`server`={server} measures no anchor gradients for the "
      "groups to start from (svrg and mime do, and the conjugate servers)"
    )


@builder
def composed(
  model: Model,
  hparams: ComposedHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """Combines any local method with any server step.

  `client_update` names the local method, and `server` the step that the server
  takes with the participants' mean update. With a `grouping` the server keeps K
  models, each for a group of participants. A learning rate of 0
  stands for the default of the chosen local method or server step
  (``ComposedHParams.resolved``).

  Raises:
    OptionError: the local method and the server step do not fit together.
  """
  _check_composition(hparams)
  hparams = hparams.resolved()
  return averaging(
    model,
    hparams.client_update.build(model, hparams, map_clients.carrier),
    hparams,
    map_clients,
    hparams.server.build(hparams.server_lr),
    hparams.grouping.build(model, map_clients),
    exchange=exchange,
    reads_weights=hparams.client_update.weighs,
  )
