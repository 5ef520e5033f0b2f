"""The local methods, as one choice for all methods that take any of them.

sgd|prox|svrg|scaffold|mime|mime_lite|losac|nova|dyn|fedcm|scaffold_m|muon|sam|lesam
"""

from typing import Any

from fedjax_alg.algorithms import (
  fedavg,
  fedcm,
  feddyn,
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
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange
from fedjax_alg.hparams import hyper
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


class GroupTraining(GroupWork):
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
  weighs = False
  if client is None:
    update = hparams.client_update
    update.check_optimizer(hparams)
    client, weighs = update.build(model, hparams, map_clients.carrier), update.weighs
  return compose_clustered(
    model,
    client,
    rule,
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
