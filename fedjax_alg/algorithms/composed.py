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

from fedjax_alg.algorithms import conjugate, diversified, fedavg, fedexp
from fedjax_alg.algorithms.client_updates import CLIENT_UPDATES
from fedjax_alg.algorithms.common import averaging, weights
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer, Optax
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import Choice, ExampleWeights, Plain
from fedjax_alg.hparams import hyper, is_zero
from fedjax_alg.named_optimizers import RATE_FREE
from fedjax_alg.part import forms
from fedjax_alg.rounds.two_halves import ComposedState

#: The server steps.
SERVERS = (
  steps.AverageServer
  | steps.SGDServer
  | steps.AdamServer
  | steps.YogiServer
  | steps.AdagradServer
  | diversified.AdaptiveServer
  | conjugate.ConjugateServer
  | conjugate.LineSearchServer
  | fedexp.ExtrapolatedServer
  | steps.LookaheadServer
  | steps.OptaxServer
)


class ComposedHParams(ClientOptimizer, LocalWork):
  """Hyper-parameters of all combinations."""

  client_update: CLIENT_UPDATES = hyper(
    fedavg.SGDUpdate(),
    "the local method, by which a participant trains; nova is "
    "FedNova's plain SGD, without its `mu`, `client_momentum` and `tau_eff`",
  )
  server: SERVERS = hyper(
    steps.AverageServer(),
    "the server step, which applies the participants' mean update",
  )
  grouping: (
    diversified.OneModel | diversified.GroupsByModel | diversified.GroupsByGradient
  ) = hyper(
    diversified.OneModel(),
    "K, the number of global models that the server keeps, and what participants are "
    "grouped by: their trained models (MA), or their gradients at these (GA)",
  )
  client_weights: Choice = weights(ExampleWeights(), mean="every mean", by_loss=True)
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
  server_lr: float = hyper(
    0.0,
    "learning rate of the server; 0 stands for the default, which is 1 "
    "with average and sgd, 0.01 with adam, yogi and optax:NAME, 0.1 with adagrad, "
    "0.02 with adaptive and conjugate_gradient, and 1 with optimizers that estimate "
    "their steps, such as optax:prodigy; the others take none",
    minimum=0.0,
    neutral=0.0,
  )

  def resolved(self) -> "ComposedHParams":
    """The same, with each learning rate of 0 replaced by its default."""
    rates: dict[str, Any] = {}
    if is_zero(self.client_lr):
      optimizer, update = self.client_optimizer, self.client_update
      factor = isinstance(optimizer, Optax) and optimizer.name in RATE_FREE
      rates["client_lr"] = 1.0 if factor and update.TAKES_OPTIMIZER else update.RATE
    if is_zero(self.server_lr) and self.server.usual_rate is not None:
      rates["server_lr"] = self.server.usual_rate
    return dataclasses.replace(self, **rates)


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
  if server.usual_rate is None and not is_zero(hparams.server_lr):
    raise OptionError(
      f"`server_lr`={hparams.server_lr}: `server`={server.WORD} finds the length of "
      "its step itself (allowed: 0)"
    )
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
