"""The local methods and the server steps, for all methods that take any of them.

`client_update`=sgd|prox|svrg|scaffold|mime|mime_lite|losac|nova|dyn|fedcm|
         scaffold_m|muon|sam|lesam
`server`=average|sgd|adam|yogi|adagrad|adaptive|conjugate_gradient|
         cg_line_search|extrapolated|lookahead|optax:NAME
"""

from typing import Any

from fedjax_alg.algorithms import (
  conjugate,
  diversified,
  fedavg,
  fedcm,
  feddyn,
  fedexp,
  fedmuon,
  fednova,
  fedsam,
  fsvrg,
  losac,
  mime,
  scaffold,
)
from fedjax_alg.algorithms.common import weighted
from fedjax_alg.base import Algorithm, MapClients, Model
from fedjax_alg.central import steps
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange
from fedjax_alg.hparams import HParams, hyper, is_zero
from fedjax_alg.rounds.clustered import (
  ClusteredState,
  GroupWork,
  Rule,
  compose_clustered,
)

#: The local methods.
CLIENT_UPDATES = (
  fedavg.SGDUpdate
  | fedavg.ProxUpdate
  | fsvrg.SVRGUpdate
  | scaffold.ScaffoldUpdate
  | mime.MimeUpdate
  | mime.MimeLiteUpdate
  | losac.LosacUpdate
  | fednova.NovaUpdate
  | feddyn.DynUpdate
  | fedcm.CMUpdate
  | fedcm.ScaffoldMUpdate
  | fedmuon.MuonUpdate
  | fedsam.SAMUpdate
  | fedsam.LESAMUpdate
)


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


class ServerChoice(HParams):
  """Hyper-parameters of methods that take any server step."""

  server: SERVERS = hyper(
    steps.AverageServer(),
    "the server step, which applies the participants' mean update",
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

  @property
  def server_rate(self) -> Any:
    """`server_lr`, or the default that 0 stands for.

    Raises:
      OptionError: a rate is given, and the step has none.
    """
    usual = self.server.usual_rate
    if is_zero(self.server_lr):
      return self.server_lr if usual is None else usual
    if usual is None:
      raise OptionError(
        f"`server_lr`={self.server_lr}: `server`={self.server.WORD} finds the length "
        "of its step itself (allowed: 0)"
      )
    return self.server_lr


class GroupTraining(ServerChoice, GroupWork):
  """Hyper-parameters of clustered methods that take any local method."""

  client_update: CLIENT_UPDATES = hyper(
    fedavg.SGDUpdate(),
    "the local method, by which a participant trains; what the server keeps for it, "
    "such as control variates or a momentum, it keeps for each group",
  )


def in_groups(
  model: Model,
  hparams: Any,
  rule: Rule,
  map_clients: MapClients,
  client: ClientUpdate | None = None,
  *,
  exchange: Exchange,
) -> Algorithm[ClusteredState]:
  """A local method, that of `client_update` by default, in every group of a rule."""
  weighs, server = False, None
  if isinstance(hparams, ServerChoice):
    server = hparams.server.build(hparams.server_rate)
  if client is None:
    update = hparams.client_update
    update.check_optimizer(hparams)
    client, weighs = update.build(model, hparams, map_clients.carrier), update.weighs
  return compose_clustered(
    model,
    client,
    rule,
    server,
    map_clients=map_clients,
    exchange=weighted(exchange, hparams, weighs),
  )


def refuse_other_updates(hparams: GroupTraining, why: str) -> None:
  """Refuses a local method where another one is given already.

  Args:
    hparams: the hyper-parameters.
    why: the reason, for the message.

  Raises:
    OptionError: `client_update` is not sgd.
  """
  if hparams.client_update != fedavg.SGDUpdate():
    raise OptionError(f"`client_update`={hparams.client_update}: {why} (allowed: sgd)")
