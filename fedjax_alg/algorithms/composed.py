"""Methods that combine any local method with any server step.

  `client_update`=sgd|prox|svrg|scaffold|mime|mime_lite|losac|nova|dyn|fedcm|
           scaffold_m|muon|sam|lesam
  `server`=average|sgd|adam|yogi|adagrad|adaptive|conjugate_gradient|
           cg_line_search|extrapolated|lookahead|optax:NAME
  `num_models`=1|K, with K > 1 grouped by `grouping`=model|gradient

Many named algorithms are such combinations with other defaults: FedAvg is sgd x
average, FSVRG is svrg x average, CLSFSVRG is svrg x cg_line_search, FedACG is
prox x lookahead, and MA-FSVRG is svrg x adaptive x K models.
"""

from collections.abc import Callable
import dataclasses
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
  fedopt,
  fedsam,
  fsvrg,
  losac,
  mime,
  scaffold,
)
from fedjax_alg.algorithms.common import averaging, local_sgd, weights
from fedjax_alg.algorithms.fsvrg import FSVRGHParams
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer, local_optimizer
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.conditions import MANY, but, is_zero, only
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.messages import Carrier
from fedjax_alg.exchange.weights import (
  READ,
  Choice,
  ExampleWeights,
  Plain,
  UniformWeights,
)
from fedjax_alg.hparams import field_like, hyper
from fedjax_alg.named_optimizers import PREFIX, RATE_FREE
from fedjax_alg.part import forms
from fedjax_alg.rounds.two_halves import ComposedState, ModelGrouping

CLIENT_UPDATES = (
  "sgd",
  "prox",
  "svrg",
  "scaffold",
  "mime",
  "mime_lite",
  "losac",
  "nova",
  "dyn",
  "fedcm",
  "scaffold_m",
  "muon",
  "sam",
  "lesam",
)
SERVERS = (
  "average",
  "sgd",
  "adam",
  "yogi",
  "adagrad",
  "adaptive",
  "conjugate_gradient",
  "cg_line_search",
  "extrapolated",
  "lookahead",
  f"{PREFIX}NAME",
)

#: Optimizers of optax that estimate their steps -> their default learning rate.
_FACTORS = {f"{PREFIX}{name}": 1.0 for name in RATE_FREE}
#: Default learning rates of the local methods and of the server steps. A local
#: method that is not named here has 0.1.
CLIENT_LR = {"svrg": 12.0, "muon": 0.01}
SERVER_LR = {
  "average": 1.0,
  "sgd": 1.0,
  "adam": 0.01,
  "yogi": 0.01,
  "adagrad": 0.1,
  "adaptive": 0.02,
  "conjugate_gradient": 0.02,
  **_FACTORS,
}
#: Server steps whose length is not an option.
_WITHOUT_RATE = ("cg_line_search", "extrapolated", "lookahead")
#: Default learning rate of the server's other optimizers of optax.
OPTAX_LR = 0.01

_SVRG = only("client_update", "svrg")
#: Participants of a group count alike, but for the gradients at its model;
#: some local methods read the weights themselves.
_WEIGHTED = (
  READ & (only("num_models", 1) | diversified.ANCHORED)
  | only("client_update", "nova", "dyn")
  | only("client_update", "mime_lite") & only("base", "momentum", "adam")
)


@dataclasses.dataclass(frozen=True)
class ComposedHParams(
  fedavg.Proximal,
  scaffold.VariateOptions,
  mime.BaseOptimiser,
  losac.Delays,
  feddyn.DynOptions,
  fedcm.GlobalMomentum,
  fedmuon.Orthogonality,
  fedsam.Radius,
  fedexp.Extrapolation,
  conjugate.LineSearch,
  conjugate.Conjugate,
  conjugate.Aggregate,
  fedopt.Adaptivity,
  diversified.AdamOptions,
  diversified.KModelsHParams,
  ClientOptimizer,
  LocalWork,
):
  """Hyper-parameters of all combinations.

  A combination reads those of its local method and of its server step.
  """

  client_update: str = hyper(
    "sgd",
    "the local method, by which a participant trains; nova is "
    "FedNova's plain SGD, without its `mu`, `client_momentum` and `tau_eff`",
    choices=CLIENT_UPDATES,
  )
  server: str = hyper(
    "average",
    "the server step, which applies the participants' mean update; optax:NAME is an "
    "optimizer of optax (optax:lion), with its other arguments at their defaults",
    choices=SERVERS,
  )
  client_weights: Choice = weights(
    ExampleWeights(), mean="every mean", when=_WEIGHTED, by_loss=True
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
  server_lr: float = hyper(
    0.0,
    "learning rate of the server; 0 stands for the default, which is 1 "
    "with average and sgd, 0.01 with adam, yogi and optax:NAME, 0.1 with adagrad, "
    "0.02 with adaptive and conjugate_gradient, and 1 with optimizers that estimate "
    "their steps, such as optax:prodigy",
    minimum=0.0,
    when=but("server", *_WITHOUT_RATE),
  )
  server_momentum: float = hyper(
    0.9,
    "momentum of the server's SGD, and how far lookahead moves the model along it",
    minimum=0.0,
    below=1.0,
    when=only("server", "sgd", "lookahead"),
  )
  local_scaling: bool = field_like(
    FSVRGHParams,
    "local_scaling",
    source="diversified (20)-(21)",
    when=_SVRG & fsvrg.FEATURES,
  )
  aggregate_scaling: str = field_like(
    FSVRGHParams, "aggregate_scaling", when=_SVRG & fsvrg.FEATURES
  )
  num_models: int = hyper(
    1, "K, number of global models that the server keeps", minimum=1
  )
  grouping: str = hyper(
    "model",
    "what participants are grouped by: model = their trained models "
    "(MA), gradient = their gradients at these (GA)",
    choices=("model", "gradient"),
    when=only("num_models", MANY),
  )
  gradient_step: float = hyper(
    1.0,
    "length of the step against a group's mean gradient",
    source="diversified (57)-(58)",
    when=only("grouping", "gradient"),
  )
  group_mean: str = field_like(
    diversified.GAHParams, "group_mean", when=only("grouping", "gradient")
  )

  def resolved(self) -> "ComposedHParams":
    """The same, with each learning rate of 0 replaced by its default."""
    rates: dict[str, Any] = {}
    if is_zero(self.client_lr):
      usual = _FACTORS.get(str(self.client_optimizer), 0.1)
      rates["client_lr"] = CLIENT_LR.get(self.client_update, usual)
    if is_zero(self.server_lr) and self.server not in _WITHOUT_RATE:
      rates["server_lr"] = SERVER_LR.get(self.server, OPTAX_LR)
    return dataclasses.replace(self, **rates)


def client_half(model: Model, h: Any, carrier: Carrier | None = None) -> ClientUpdate:
  """The local method that the hyper-parameters name; they have its options."""
  rate, optimizer = h.client_lr, local_optimizer(h)
  uniform = h.client_weights == UniformWeights()
  make: dict[str, Callable[[], ClientUpdate]] = {
    "sgd": lambda: sgd_update(model, h, rate, optimizer=optimizer),
    "prox": lambda: local_sgd(model, h),
    "svrg": lambda: fsvrg.svrg_update(
      model,
      FSVRGHParams(
        h.local_steps,
        h.local_epochs,
        h.batch_size,
        client_lr=rate,
        local_scaling=h.local_scaling,
        aggregate_scaling=h.aggregate_scaling,
      ),
    ),
    "scaffold": lambda: scaffold.scaffold_update(model, h, rate, h.option, optimizer),
    "losac": lambda: losac.losac_update(model, h, rate, h),
    "nova": lambda: fednova.nova_update(model, h, rate, h.client_weights),
    "dyn": lambda: feddyn.dyn_update(
      model, h, rate, h.alpha, h.client_weights, carrier
    ),
    "mime": lambda: mime.mime_update(model, h, rate, h, False, uniform),
    "mime_lite": lambda: mime.mime_update(model, h, rate, h, True, uniform),
    "fedcm": lambda: fedcm.fedcm_update(model, h),
    "scaffold_m": lambda: fedcm.scaffold_m_update(model, h),
    "muon": lambda: fedmuon.muon_update(model, h),
    "sam": lambda: fedsam.sam_update(model, h, rate, h.rho, optimizer),
    "lesam": lambda: fedsam.lesam_update(model, h, rate, h.rho, optimizer),
  }
  return make[h.client_update]()


def server_half(h: Any) -> steps.ServerStep:
  """The server step that the hyper-parameters name; they have its options."""
  rate = h.server_lr
  make: dict[str, Callable[[], steps.ServerStep]] = {
    "average": lambda: steps.average(rate),
    "sgd": lambda: steps.sgd(rate, h.server_momentum),
    "adam": lambda: steps.adam(rate, h.beta1, h.beta2, h.eps),
    **dict.fromkeys(
      ("yogi", "adagrad"),
      lambda: steps.fedopt_step(h.server, rate, h.beta1, h.beta2, h.tau),
    ),
    "adaptive": lambda: steps.adaptive_step(
      rate, h.beta1, h.beta2, h.eps, h.central_rule
    )._replace(aggregate_lr=h.aggregate_lr),
    "conjugate_gradient": lambda: conjugate.cfsvrg_server(h),
    "cg_line_search": lambda: conjugate.clsfsvrg_server(h),
    "extrapolated": lambda: fedexp.extrapolated_server(h),
    "lookahead": lambda: steps.lookahead(h.server_momentum),
  }
  if h.server.startswith(PREFIX):
    return steps.from_optax(h.server, rate)
  return make[h.server]()


#: Local methods that read the weights of the participants themselves.
_WEIGH = ("nova", "dyn", "mime", "mime_lite")


def _check_composition(hparams: ComposedHParams) -> None:
  """Refuses what ``compose`` itself cannot recognize.

  Raises:
    OptionError: a grouping by gradient although neither the local method nor
      the server step measures anchor gradients; or weights by losses with a
      local method that reads the weights itself.
  """
  weights = hparams.client_weights
  if not isinstance(weights, Plain) and hparams.client_update in _WEIGH:
    raise OptionError(
      f"`client_weights`={weights.WORD}: `client_update`={hparams.client_update} reads "
      f"the weights itself (allowed: {', '.join(forms(Plain))})"
    )
  if (
    hparams.num_models > 1
    and hparams.grouping == "gradient"
    and not (
      hparams.client_update in ("svrg", "mime")
      or hparams.server in ("conjugate_gradient", "cg_line_search")
    )
  ):
    raise OptionError(
      f"`grouping`=gradient: `client_update`={hparams.client_update} with "
      f"`server`={hparams.server} measures no anchor gradients for the "
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
  takes with the participants' mean update. With `num_models` > 1 the server
  keeps K models and groups the participants by `grouping`. A learning rate of 0
  stands for the default of the chosen local method or server step
  (``ComposedHParams.resolved``).

  Raises:
    OptionError: the local method and the server step do not fit together.
  """
  _check_composition(hparams)
  hparams = hparams.resolved()
  groups: ModelGrouping | None = None
  if hparams.num_models > 1:
    groups = (
      diversified.by_model(hparams)
      if hparams.grouping == "model"
      else (
        diversified.by_gradient(
          model, hparams, hparams.gradient_step, map_clients, hparams.group_mean
        )
      )
    )
  return averaging(
    model,
    client_half(model, hparams, map_clients.carrier),
    hparams,
    map_clients,
    server_half(hparams),
    groups,
    exchange=exchange,
  )
