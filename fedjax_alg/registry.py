"""The table of algorithms, from which flags, contract tests and docs follow."""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
import inspect
import types
import typing
from typing import Any, NamedTuple

from fedjax_alg import optional, own
from fedjax_alg.algorithms import (
  afl,
  afl_dual,
  apfl,
  asynchronous,
  baffle,
  cfl,
  composed,
  conjugate,
  deepafl,
  ditto,
  diversified,
  fed3r,
  fedacg,
  fedacnnl,
  fedadmm,
  fedavg,
  fedcm,
  fedcof,
  feddrift,
  feddyn,
  fedem,
  fedexp,
  fedgroup,
  fedmuon,
  fedncm,
  fednova,
  fedopt,
  fedsam,
  fedsoft,
  fedzo,
  fesem,
  flhc,
  fsvrg,
  halves,
  ifca,
  losac,
  mime,
  pacfl,
  per_fedavg,
  pfedme,
  references,
  safle,
  scaffnew,
  scaffold,
)
from fedjax_alg.base import Algorithm, MapClients, Model
from fedjax_alg.errors import OptionError, UnreadError, did_you_mean, normalize_name
from fedjax_alg.exchange import ExchangeOptions, NoExchange, exchange_of
from fedjax_alg.exchange.attacks import Hostility
from fedjax_alg.exchange.compression import Compression
from fedjax_alg.exchange.options import MeanOptions
from fedjax_alg.exchange.privacy import Privacy
from fedjax_alg.least_squares import heads
from fedjax_alg.models.feature_map import BucketFeatures, FourierFeatures
from fedjax_alg.models.roles import (
  PersonalAtEvaluation,
  PersonalFirst,
  PersonalTogether,
)
from fedjax_alg.part import parts_of, read_parts
from fedjax_alg.rounds import expected
from fedjax_alg.rounds.expected import Expected, Ledger


class Display(NamedTuple):
  """How a method is shown: in tables of methods, on its page, in pictures."""

  #: the table of methods that it stands in: one, asynchronous, groups, personal,
  #: gradient_free or other
  family: str = "other"
  #: where its paper can be read, "arXiv:NUMBER" or "doi:NUMBER"; "" if it has none, or
  #: none that we could check
  address: str = ""
  #: color and dash pattern, of ``runs.styles``, that no other method has; ("", "") gets
  #: what a picture has left
  style: tuple[str, str] = ("", "")
  #: options of the learning curve on its page, in place of client_lr=0.3; None: those
  curve: Mapping[str, Any] | None = None
  #: whether its point is each client's own model
  is_personal: bool = False

  @property
  def link(self) -> str:
    """The address of the paper on the web; "" where there is none."""
    kind, _, number = self.address.partition(":")
    sites = {"arXiv": "https://arxiv.org/abs/", "doi": "https://doi.org/"}
    return sites[kind] + number if number else ""


class Entry(NamedTuple):
  """An algorithm of the registry.

  ``build(model, hparams, *, map_clients, exchange)`` is the builder:
    model: the model and its objective (``base.Model``).
    hparams: an instance of ``hparams``.
    map_clients: how clients are mapped (``engine.clients``).
    exchange: the links between clients and server (``exchange.Exchange``); a
      builder without this argument has none.
  It returns a ``base.Algorithm``. It raises an OptionError if a hyper-parameter
  is out of range or hyper-parameters do not fit together.
  """

  hparams: type[Any]  #: frozen dataclass of ``hparams.hyper`` fields
  build: Callable[..., Algorithm]
  label: str  #: name in figures and tables, as the papers print it
  paper: str  #: the paper that describes the algorithm
  all_clients: bool = False  #: whether all clients take part in every round
  #: (hparams) -> whether the server needs validation data
  needs_validation: Callable[[Any], bool] = lambda hparams: False
  #: whether a client adapts the model on the client's training data
  adapts: bool = False
  #: (hparams, number of layers) -> rounds until all layers are fitted, the
  #: default of `rounds`, for methods that fit layers in closed form
  #: (``Model.layers``); None for all other methods
  rounds: Callable[[Any, int], int] | None = None
  #: a reason besides divergence why numbers may become non-finite
  nonfinite: str = ""
  #: (hparams, P) -> a warning of one line, or ""
  caution: Callable[[Any, int], str] = lambda hparams, num_params: ""
  #: (hparams, C) -> n, the number of clients that are compared in pairs at
  #: once, in matrices [n, n]
  pairwise_clients: Callable[[Any, int], int] = lambda hparams, num_clients: 0
  #: (hparams) -> what the method decides by comparing numbers, so that its
  #: result jumps where a decision changes and a derivative does not see it
  #: (``gradients.hypergradient``); "" for a method whose rounds are smooth
  nonsmooth_because: Callable[[Any], str] = lambda hparams: ""
  #: why nothing that is sent can be compressed (``exchange.compression``) or
  #: made private as updates are (``exchange.privacy``); empty if updates can
  no_compression_because: str = ""
  #: whether stragglers' partial work is kept unless a run says otherwise
  keeps_partial_work: bool = False
  #: why rounds have no deadline; empty if they can have one
  no_deadline: str = ""
  #: what a round costs, as the contract tests expect it; they ask for it
  ledger: Ledger | None = None
  #: options of a run that have another default with this method
  options: Mapping[str, Any] = types.MappingProxyType({})
  #: hyper-parameters with which the contract tests run the method on a small
  #: convex problem, where the defaults would diverge or take long
  test_hparams: Mapping[str, Any] = types.MappingProxyType({})
  #: whether it can be deployed (``flower.setting``): its rounds ask clients
  #: through the client map alone, and clients start from nothing of the server's
  deploys: bool = False
  #: (hparams, C) -> a warning of one line about the number of clients, or ""
  caution_of_clients: Callable[[Any, int], str] = lambda hparams, num_clients: ""
  #: (hparams) -> the most kinds of clients, of a method that reads the kinds and
  #: has a model for each; None for all others
  models_of_kinds: Callable[[Any], int | None] = lambda hparams: None
  #: dataclass of the options of the links that the method can have, some of the
  #: bases of ``exchange.ExchangeOptions``; None: all of them, if the builder has
  #: the argument ``exchange``
  links: type[Any] | None = None
  display: Display = Display()

  @property
  def exchange(self) -> type[Any]:
    """The dataclass of the options of the exchange."""
    if not takes_exchange(self.build):
      return NoExchange
    return self.links or ExchangeOptions

  @property
  def fields(self) -> dict[str, dataclasses.Field]:
    """Name -> field of the hyper-parameters and of the options of the exchange."""
    return {
      field.name: field
      for kind in (self.hparams, self.exchange)
      for field in dataclasses.fields(kind)
    }

  def parts(self, **values: object) -> tuple[Any, Any]:
    """Makes the hyper-parameters and the options of the exchange.

    Args:
      **values: their fields; all others have their defaults. Texts of parts are
        read.
    """
    values = read_parts(values, self.fields)
    names = {field.name for field in dataclasses.fields(self.exchange)}
    return (
      self.hparams(**{k: v for k, v in values.items() if k not in names}),
      self.exchange(**{k: v for k, v in values.items() if k in names}),
    )

  def make(
    self, model: Model, hparams: object, exchange: object, map_clients: MapClients
  ) -> Algorithm:
    """Calls the builder.

    Args:
      model: the model and its objective.
      hparams: an instance of ``hparams``.
      exchange: an instance of ``exchange``.
      map_clients: how clients are mapped.
    """
    links = {} if self.exchange is NoExchange else {"exchange": exchange_of(exchange)}

    def build(model: Model) -> Algorithm:
      return self.build(model, hparams, map_clients=map_clients, **links)

    if model.roles is not None and model.roles.merging is not None:
      merging = optional.load_extra("lora.merging", "`lora`")
      moving: Algorithm = merging.with_kernels_of_state(build, model)
      return moving
    return build(model)


def takes_exchange(build: Callable[..., object]) -> bool:
  """Whether a builder leaves the links between clients and server to the caller."""
  if isinstance(build, functools.partial) and "exchange" in build.keywords:
    return False
  try:
    return "exchange" in inspect.signature(build).parameters
  except (TypeError, ValueError):  # no Python function
    return False


_DIVERSIFIED = "Zhao, Cai, Lu, IEEE TNNLS 2024"
_CONJUGATE = "Zhao, Cai, Lu: conjugated central acceleration"
_FEDGROUP = "Duan et al., FedGroup, 2020"
_ANALYTIC = "Gu et al., arXiv:2502.06915"
_SINGULAR = "a layer's Gram matrix is singular, give "
_FEDOPT = "Reddi et al., ICLR 2021"
_MIME = "Karimireddy et al., arXiv:2008.03606"
_SUMS = "it sends sums over its data, not updates"
#: Who finishes in a round are not those who start: all take equally many steps
#: with one example.
_ANYBODY = {"concurrency": 5, "batch_size": 1}
_NO_BARRIER = "its server waits for nobody"
#: One model down and one up; and with an anchor gradient before.
_PLAIN = expected.vectors(1, 1)
_ANCHORED = expected.vectors(2, 2, 2, passes=1, steps=2)
_TWICE_ANCHORED = expected.vectors(3, 2, 2, passes=1, steps=2)
#: Why methods with groups of clients are not smooth.
_GROUPS = "who belongs to which group is decided by comparisons"


def _k_models(hparams: Any) -> str:
  return _GROUPS if hparams.num_models > 1 else ""


def _always(why: str) -> Callable[[Any], str]:
  return lambda hparams: why


_SEARCH = "a line search takes the first step length that passes its test"


def _searches(hparams: Any) -> bool:
  return isinstance(getattr(hparams, "server", None), conjugate.LineSearchServer)


def _jumps_of_composed(hparams: Any) -> str:
  search = _SEARCH if _searches(hparams) else ""
  return " and ".join(filter(None, (_k_models(hparams.grouping), search)))


#: The step of FSVRG's family is client_lr / n_i.
_SLOW = {"client_lr": 1.0}


def _entry(
  build: Any, label: str, paper: str, ledger: Ledger = _PLAIN, **fields: Any
) -> Entry:
  """The entry of a builder, whose annotation names its hyper-parameters."""
  return Entry(
    typing.get_type_hints(build)["hparams"],
    build,
    label,
    paper,
    ledger=ledger,
    **fields,
  )


_deployed = functools.partial(_entry, deploys=True)
_grouped = functools.partial(
  _entry, nonsmooth_because=_always(_GROUPS), needs_validation=_searches
)
_pooled = functools.partial(
  _grouped,
  paper=_FEDGROUP,
  pairwise_clients=fedgroup.num_compared,
  caution_of_clients=fedgroup.few_clients,
  ledger=expected.beside(_PLAIN, expected.pool_before_all),
)

_HEAD = expected.closed_form()


def _head(
  build: Any,
  label: str,
  paper: str,
  ledger: Ledger = _HEAD,
  **fields: Any,
) -> Entry:
  """The entry of a method that fits a head in one round."""
  return _deployed(
    build,
    label,
    paper,
    ledger,
    all_clients=True,
    rounds=heads.single_round(build.__name__),
    no_compression_because=_SUMS,
    **fields,
  )


ALGORITHMS: dict[str, Entry] = {
  "fedavg": _deployed(
    fedavg.fedavg,
    "FedAvg",
    "McMahan et al., AISTATS 2017",
    display=Display("one", "arXiv:1602.05629", ("#000000", "solid")),
  ),
  **{
    name: _entry(
      fedavg.fedavg,
      label,
      paper,
      options={"roles": roles, "personal": training, **extra},
      display=display,
    )
    for name, label, paper, roles, training, extra, display in (
      (
        "fedper",
        "FedPer",
        "Arivazhagan et al., arXiv:1912.00818",
        ("personal:last",),
        PersonalTogether(),
        {},
        Display("personal", "arXiv:1912.00818", ("#695A2D", "solid"), is_personal=True),
      ),
      (
        "lg_fedavg",
        "LG-FedAvg",
        "Liang et al., arXiv:2001.01523",
        ("personal:**", "shared:last"),
        PersonalTogether(),
        {},
        Display(
          "personal", "arXiv:2001.01523", ("#EAA60A", "longdash"), is_personal=True
        ),
      ),
      (
        "fedrep",
        "FedRep",
        "Collins et al., ICML 2021",
        ("personal:last",),
        PersonalFirst(),
        {},
        Display("personal", "arXiv:2102.07078", ("#695A2D", "dash"), is_personal=True),
      ),
      (
        "fedbabu",
        "FedBABU",
        "Oh et al., ICLR 2022",
        ("personal:last",),
        PersonalAtEvaluation(),
        {},
        Display(
          "personal",
          "arXiv:2106.06042",
          ("#695A2D", "dot"),
          curve={"client_lr": 0.3, "personal": PersonalAtEvaluation(steps=20)},
          is_personal=True,
        ),
      ),
      (
        "fedbn",
        "FedBN",
        "Li et al., ICLR 2021",
        ("personal:norm",),
        PersonalTogether(),
        {"model_state": "local"},
        Display(
          "personal",
          "arXiv:2102.07623",
          ("#695A2D", "5px,2px,2px,2px,2px,2px"),
          is_personal=True,
        ),
      ),
    )
  },
  "fedprox": _deployed(
    fedavg.fedprox,
    "FedProx",
    "Li et al., MLSys 2020",
    keeps_partial_work=True,
    display=Display("one", "arXiv:1812.06127", ("#EAA60A", "dash")),
  ),
  "fedavgm": _deployed(
    fedopt.fedavgm,
    "FedAvgM",
    "Hsu et al., arXiv:1909.06335",
    display=Display(
      "one", "arXiv:1909.06335", ("#000000", "longdash"), curve={"client_lr": 0.1}
    ),
  ),
  "fedadagrad": _deployed(
    fedopt.fedadagrad,
    "FedAdagrad",
    _FEDOPT,
    display=Display("one", "arXiv:2003.00295", ("#D55E00", "longdashdot")),
  ),
  "fedyogi": _deployed(
    fedopt.fedyogi,
    "FedYogi",
    _FEDOPT,
    display=Display("one", "arXiv:2003.00295", ("#EAA60A", "dashdot")),
  ),
  "fedadam": _deployed(
    fedopt.fedadam,
    "FedAdam",
    _FEDOPT,
    display=Display("one", "arXiv:2003.00295", ("#882255", "longdashdot")),
  ),
  "fsvrg": _deployed(
    fsvrg.fsvrg,
    "FSVRG",
    "Konecny et al., arXiv:1610.02527",
    _ANCHORED,
    test_hparams=_SLOW,
    display=Display(
      "one", "arXiv:1610.02527", ("#22AD82", "dash"), curve={"client_lr": 3.0}
    ),
  ),
  "ma_fsvrg": _deployed(
    diversified.ma_fsvrg,
    "MA-FSVRG",
    _DIVERSIFIED,
    expected.of_k_models(0),
    caution=diversified.caution_without_effect,
    test_hparams=_SLOW,
    nonsmooth_because=_k_models,
    display=Display(
      "groups",
      "doi:10.1109/TNNLS.2024.3487873",
      ("#006BAA", "solid"),
      curve={"client_lr": 3.0},
    ),
  ),
  "ga_fsvrg": _deployed(
    diversified.ga_fsvrg,
    "GA-FSVRG",
    _DIVERSIFIED,
    expected.of_k_models(1),
    caution=diversified.caution_without_effect,
    test_hparams={**_SLOW, "gradient_step": 0.1},
    nonsmooth_because=_k_models,
    display=Display(
      "groups",
      "doi:10.1109/TNNLS.2024.3487873",
      ("#D55E00", "solid"),
      curve={"client_lr": 3.0},
    ),
  ),
  "cfsvrg": _deployed(
    conjugate.cfsvrg,
    "CFSVRG",
    _CONJUGATE,
    _TWICE_ANCHORED,
    test_hparams=_SLOW,
    display=Display("one", "", ("#D55E00", "longdash"), curve={"client_lr": 3.0}),
  ),
  "clsfsvrg": _entry(
    conjugate.clsfsvrg,
    "CLSFSVRG",
    _CONJUGATE,
    _TWICE_ANCHORED,
    needs_validation=lambda hparams: True,
    test_hparams=_SLOW,
    nonsmooth_because=_always(_SEARCH),
    display=Display("one", "", ("#882255", "solid"), curve={"client_lr": 3.0}),
  ),
  "scaffold": _deployed(
    scaffold.scaffold,
    "SCAFFOLD",
    "Karimireddy et al., ICML 2020",
    expected.vectors(2, 2),
    display=Display("one", "arXiv:1910.06378", ("#A52DFF", "dashdot")),
  ),
  "fedexp": _deployed(
    fedexp.fedexp,
    "FedExP",
    "Jhunjhunwala et al., ICLR 2023",
    links=MeanOptions,
    display=Display("one", "arXiv:2301.09604", ("#EAA60A", "5px,2px,2px,2px,2px,2px")),
  ),
  "fedacg": _deployed(
    fedacg.fedacg,
    "FedACG",
    "Kim et al., CVPR 2024",
    display=Display("one", "arXiv:2201.03172", ("#000000", "dash")),
  ),
  "fedcm": _deployed(
    fedcm.fedcm,
    "FedCM",
    "Xu et al., arXiv:2106.10874",
    expected.vectors(2, 1),
    display=Display("one", "arXiv:2106.10874", ("#22AD82", "dashdot")),
  ),
  "scaffold_m": _entry(
    fedcm.scaffold_m,
    "SCAFFOLD-M",
    "Cheng et al., ICLR 2024",
    expected.vectors(3, 2),
    display=Display("one", "arXiv:2306.16504", ("#A52DFF", "dot")),
  ),
  "fedmuon": _entry(
    fedmuon.fedmuon,
    "FedMuon",
    "Takezawa et al., ICLR 2026",
    expected.vectors(2, 2),
    display=Display(
      "one", "arXiv:2509.26337", ("#882255", "4px,4px"), curve={"client_lr": 0.02}
    ),
  ),
  "fedsam": _deployed(
    fedsam.fedsam,
    "FedSAM",
    "Qu et al., ICML 2022",
    expected.vectors(1, 1, steps=2),
    display=Display("one", "arXiv:2206.02618", ("#006BAA", "longdash")),
  ),
  "fedlesam": _entry(
    fedsam.fedlesam,
    "FedLESAM",
    "Fan et al., ICML 2024",
    display=Display("one", "arXiv:2405.18890", ("#006BAA", "longdashdot")),
  ),
  "scaffnew": _entry(
    scaffnew.scaffnew,
    "Scaffnew",
    "Mishchenko et al., ICML 2022",
    expected.mean_of_drawn_steps,
    all_clients=True,
    no_compression_because="h_i are corrected by the exact mean",
    links=Hostility,
    test_hparams={"communication": 1.0},
    display=Display("one", "arXiv:2202.09357", ("#A52DFF", "4px,4px")),
  ),
  "fedadmm": _entry(
    fedadmm.fedadmm,
    "FedADMM",
    "Gong et al., ICDE 2022",
    no_compression_because="changes add up to what clients keep",
    links=Hostility,
    test_hparams={"rho": 0.3},
    display=Display("one", "arXiv:2204.03529", ("#EAA60A", "4px,4px")),
  ),
  "mime": _deployed(
    mime.mime,
    "Mime",
    _MIME,
    _ANCHORED,
    display=Display("one", "arXiv:2008.03606", ("#332288", "dashdot")),
  ),
  "mime_lite": _deployed(
    mime.mime_lite,
    "MimeLite",
    _MIME,
    display=Display("one", "arXiv:2008.03606", ("#332288", "longdashdot")),
  ),
  "mime_svrg": _deployed(
    mime.mime_svrg,
    "MimeSVRG",
    _MIME,
    _ANCHORED,
    display=Display("one", "arXiv:2008.03606", ("#332288", "longdash")),
  ),
  "losac": _entry(
    losac.losac,
    "LoSAC",
    "Chen et al., ACM TKDD 2023; reconstructed",
    expected.vectors(2, 2),
    display=Display("one", "arXiv:2112.07839", ("#695A2D", "longdash")),
  ),
  "fednova": _deployed(
    fednova.fednova,
    "FedNova",
    "Wang et al., NeurIPS 2020",
    caution=fednova.caution_signs,
    keeps_partial_work=True,
    test_hparams={"mu": 0.1, "client_momentum": 0.5},
    display=Display("one", "arXiv:2007.07481", ("#695A2D", "dashdot")),
  ),
  "feddyn": _deployed(
    feddyn.feddyn,
    "FedDyn",
    "Acar et al., ICLR 2021",
    no_compression_because="h is the mean of all clients' linear terms, so "
    "updates are sent whole",
    links=Hostility,
    display=Display("one", "arXiv:2111.04263", ("#EAA60A", "dot")),
  ),
  "per_fedavg": _entry(
    per_fedavg.per_fedavg,
    "PFedAvg",
    "Fallah et al., NeurIPS 2020",
    expected.vectors(1, 1, batches=2),
    adapts=True,
    display=Display(
      "personal",
      "arXiv:2002.07948",
      ("#882255", "5px,2px,2px,2px,2px,2px"),
      is_personal=True,
    ),
  ),
  "fedgroup": _pooled(
    fedgroup.fedgroup,
    "FedGroup",
    deploys=True,
    display=Display("groups", "arXiv:2010.06870", ("#22AD82", "solid")),
  ),
  "fedgrouprox": _pooled(
    fedgroup.fedgrouprox,
    "FedGrouProx",
    deploys=True,
    display=Display(
      "groups",
      "arXiv:2010.06870",
      ("#332288", "dash"),
      curve={"client_lr": 0.3, "mu": 0.1},
    ),
  ),
  "ifca": _grouped(
    ifca.ifca,
    "IFCA",
    "Ghosh et al., NeurIPS 2020",
    expected.preferred,
    deploys=True,
    display=Display("groups", "arXiv:2006.04088", ("#006BAA", "dot")),
  ),
  "fesem": _grouped(
    fesem.fesem,
    "FeSEM",
    "Xie et al., arXiv:2005.01026",
    expected.beside(_PLAIN, expected.before_their_first),
    display=Display("groups", "arXiv:2005.01026", ("#D55E00", "dot")),
  ),
  "cfl": _grouped(
    cfl.cfl,
    "CFL",
    "Sattler et al., IEEE TNNLS 2020",
    expected.beside(_PLAIN, expected.past_all_splits),
    pairwise_clients=lambda hparams, num_clients: (
      num_clients * (hparams.max_groups > 1)
    ),
    display=Display(
      "groups",
      "arXiv:1910.01991",
      ("#006BAA", "dashdot"),
      curve={"client_lr": 0.3, "thresholds": "fixed:eps2=0.6"},
    ),
  ),
  "flhc": _grouped(
    flhc.flhc,
    "FL+HC",
    "Briggs et al., IJCNN 2020",
    expected.beside(_PLAIN, expected.at_the_clustering),
    pairwise_clients=lambda hparams, num_clients: num_clients,
    display=Display("groups", "arXiv:2004.11791", ("#D55E00", "dash")),
  ),
  "pacfl": _grouped(
    pacfl.pacfl,
    "PACFL",
    "Vahidian et al., AAAI 2023",
    expected.with_subspaces,
    test_hparams={"num_vectors": 3},
    pairwise_clients=lambda hparams, num_clients: (
      num_clients * (hparams.max_groups > 1)
    ),
    display=Display("groups", "arXiv:2209.10526", ("#A52DFF", "solid")),
  ),
  "feddrift": _grouped(
    feddrift.feddrift,
    "FedDrift",
    "Jothimurugesan et al., AISTATS 2023",
    expected.with_losses,
    test_hparams={"step_rounds": 2, "variant": "hierarchical:0.02,loss"},
    models_of_kinds=lambda hparams: (
      hparams.max_groups if isinstance(hparams.variant, feddrift.OracleKinds) else None
    ),
    display=Display("groups", "arXiv:2206.00799", ("#A52DFF", "longdashdot")),
  ),
  "fedem": _entry(
    fedem.fedem,
    "FedEM",
    "Marfoq et al., NeurIPS 2021",
    expected.of_components,
    display=Display("groups", "arXiv:2108.10252", ("#A52DFF", "longdash")),
  ),
  "fedsoft": _grouped(
    fedsoft.fedsoft,
    "FedSoft",
    "Ruan, Joe-Wong, AAAI 2022",
    expected.with_importance,
    caution=fedsoft.caution_pull,
    display=Display("groups", "arXiv:2112.06053", ("#A52DFF", "dash")),
  ),
  "fedacnnl": _deployed(
    fedacnnl.fedacnnl,
    "FedACnnL",
    _ANALYTIC,
    expected.closed_form(),
    all_clients=True,
    rounds=fedacnnl.num_rounds,
    nonfinite=_SINGULAR + "`ridge` more than 0",
    no_compression_because=_SUMS,
    display=Display("gradient_free", "arXiv:2502.06915", ("#EAA60A", "solid")),
  ),
  "pfedacnnl": _entry(
    fedacnnl.pfedacnnl,
    "pFedACnnL",
    _ANALYTIC,
    expected.closed_form(grouped=1),
    all_clients=True,
    adapts=True,
    rounds=fedacnnl.num_rounds,
    nonfinite=_SINGULAR + "`ridge` more than 0",
    no_compression_because=_SUMS,
    display=Display(
      "gradient_free", "arXiv:2502.06915", ("#332288", "solid"), is_personal=True
    ),
  ),
  "afl": _deployed(
    afl.afl,
    "AFL",
    "analytic FL, He et al., CVPR 2025; agnostic FL is `client_weights`=agnostic",
    expected.closed_form(),
    all_clients=True,
    rounds=heads.single_round("afl"),
    caution=afl.caution_ridge,
    no_compression_because=_SUMS,
    display=Display(
      "gradient_free",
      "arXiv:2405.16240",
      ("#332288", "dot"),
      curve={"remove_ridge": False},
    ),
  ),
  "fed3r": _head(
    fed3r.fed3r,
    "Fed3R",
    "Fani et al., ICML 2024",
    test_hparams={"normalize": False},
    nonfinite=_SINGULAR + "`ridge` more than 0",
    display=Display(
      "gradient_free",
      "arXiv:2406.01116",
      ("#D55E00", "4px,4px"),
      curve={"feature_map": FourierFeatures(gamma=0.25)},
    ),
  ),
  "fedncm": _head(
    fedncm.fedncm,
    "FedNCM",
    "Legate et al., NeurIPS 2023",
    ledger=expected.of_class_means("euclidean"),
    display=Display("gradient_free", "arXiv:2306.03937", ("#22AD82", "4px,4px")),
  ),
  "fedcof": _head(
    fedcof.fedcof,
    "FedCOF",
    "Goswami et al., NeurIPS 2025",
    ledger=expected.of_class_means(),
    nonfinite=_SINGULAR + "`shrinkage` more than 0",
    display=Display("gradient_free", "arXiv:2412.14326", ("#006BAA", "4px,4px")),
  ),
  "afl_dual": _entry(
    afl_dual.afl_dual,
    "AFL dual",
    "Fan et al., arXiv:2508.10732; APFL of Deng et al. is `algorithm`=apfl",
    expected.closed_form(),
    all_clients=True,
    adapts=True,
    rounds=heads.single_round("afl_dual"),
    caution=afl.caution_ridge,
    no_compression_because=_SUMS,
    display=Display(
      "gradient_free",
      "arXiv:2508.10732",
      ("#332288", "4px,4px"),
      curve={"remove_ridge": False},
      is_personal=True,
    ),
  ),
  "deepafl": _deployed(
    deepafl.deepafl,
    "DeepAFL",
    "Tang et al., ICLR 2026",
    expected.closed_form(bias=0),
    all_clients=True,
    rounds=deepafl.rounds_of_blocks,
    nonfinite=_SINGULAR + "`ridge` more than 0",
    no_compression_because=_SUMS,
    display=Display(
      "gradient_free",
      "arXiv:2603.00579",
      ("#000000", "4px,4px"),
      curve={"model": "residual:blocks=3"},
    ),
  ),
  "safle": _head(
    safle.safle,
    "SAFLe",
    "Bacellar et al., CVPR 2026",
    ledger=expected.closed_form(bias=0),
    nonfinite=_SINGULAR + "`ridge` more than 0",
    options={"feature_map": BucketFeatures()},
    display=Display("gradient_free", "arXiv:2512.03336", ("#695A2D", "4px,4px")),
  ),
  "fedzo": _entry(
    fedzo.fedzo,
    "FedZO",
    "Fang et al., IEEE TSP 2022",
    expected.vectors(1, 1, steps=0),
    caution=fedzo.caution_directions,
    display=Display(
      "gradient_free",
      "arXiv:2201.09531",
      ("#D55E00", "5px,2px,2px,2px,2px,2px"),
      curve={},
    ),
  ),
  "baffle": _entry(
    baffle.baffle,
    "BAFFLE",
    "Feng et al., ECCV 2024",
    expected.of_server_steps,
    caution=baffle.caution_differences,
    no_compression_because="it sends loss differences or estimates of a "
    "gradient, not updates (see `uplink`)",
    display=Display(
      "gradient_free", "arXiv:2301.12195", ("#22AD82", "longdashdot"), curve={}
    ),
  ),
  "pfedme": _entry(
    pfedme.pfedme,
    "pFedMe",
    "Dinh et al., NeurIPS 2020",
    lambda r: Expected(r.params, r.params, 1, r.hparams.inner_steps * r.read(1)),
    adapts=True,
    caution=pfedme.caution_inner_steps,
    test_hparams={"client_lr": 0.3},
    display=Display(
      "personal",
      "arXiv:2006.08848",
      ("#882255", "longdash"),
      curve={},
      is_personal=True,
    ),
  ),
  "pfedzo": _entry(
    pfedme.pfedzo,
    "pFedZO",
    "Chen et al., ICPP 2024; reconstructed",
    expected.vectors(1, 1, steps=0),
    adapts=True,
    caution=pfedme.caution_zo,
    test_hparams={"client_lr": 0.3},
    display=Display(
      "gradient_free",
      "",
      ("#006BAA", "5px,2px,2px,2px,2px,2px"),
      curve={},
      is_personal=True,
    ),
  ),
  "ditto": _deployed(
    ditto.ditto,
    "Ditto",
    "Li et al., ICML 2021",
    expected.vectors(1, 1, steps=2),
    adapts=True,
    caution=ditto.caution_personal_steps,
    display=Display(
      "personal", "arXiv:2012.04221", ("#882255", "dot"), is_personal=True
    ),
  ),
  "apfl": _entry(
    apfl.apfl,
    "APFL",
    "Deng et al., arXiv:2003.13461",
    expected.vectors(1, 1, steps=2),
    display=Display(
      "personal",
      "arXiv:2003.13461",
      ("#A52DFF", "5px,2px,2px,2px,2px,2px"),
      is_personal=True,
    ),
  ),
  "composed": _entry(
    composed.composed,
    "composed",
    "any `client_update` with any `server`",
    expected.of_grouping,
    needs_validation=_searches,
    test_hparams={"grouping": "model:2,threshold=0"},
    nonsmooth_because=_jumps_of_composed,
    display=Display("other", "", ("#000000", "longdashdot")),
  ),
  "fedasync": _entry(
    asynchronous.fedasync,
    "FedAsync",
    "Xie et al., arXiv:1903.03934",
    links=Hostility,
    keeps_partial_work=True,
    no_deadline=_NO_BARRIER,
    test_hparams=_ANYBODY,
    display=Display(
      "asynchronous", "arXiv:1903.03934", ("#332288", "5px,2px,2px,2px,2px,2px")
    ),
  ),
  "fedbuff": _entry(
    asynchronous.fedbuff,
    "FedBuff",
    "Nguyen et al., AISTATS 2022",
    keeps_partial_work=True,
    no_deadline=_NO_BARRIER,
    test_hparams=_ANYBODY,
    display=Display("asynchronous", "arXiv:2106.06639", ("#882255", "dash")),
  ),
  "central": _entry(
    references.central,
    "pooled optimum",
    "reference",
    expected.vectors(0, 0, 0, passes=1, steps=0),
    all_clients=True,
    no_compression_because="nothing is sent",
    display=Display("other", "", ("#000000", "5px,2px,2px,2px,2px,2px"), curve={}),
  ),
  "local": _entry(
    references.local,
    "each client alone",
    "reference",
    expected.vectors(0, 0, 0),
    no_compression_because="nothing is sent",
    display=Display("other", "", ("#000000", "dashdot"), is_personal=True),
  ),
}


def get(name: str) -> Entry:
  """Finds the entry of an algorithm.

  Args:
    name: one of ``ALGORITHMS``.

  Returns:
    The entry.

  Raises:
    OptionError: an unknown name; the message says what was meant, if that can
      be told.
  """
  if name not in ALGORITHMS:
    raise OptionError(
      f"`algorithm`={name}: {_instead(name)} (one of "
      f"{', '.join(ALGORITHMS)}; or your own, {own.FORMS})"
    )
  return ALGORITHMS[name]


def _names(*kinds: type[Any]) -> set[str]:
  return {field.name for kind in kinds for field in dataclasses.fields(kind)}


_OF_UPDATES = _names(Compression, Privacy)
_OF_EXCHANGE = _names(ExchangeOptions)


def refuse_unread(name: str, field: str, allowed: Iterable[str]) -> None:
  """Refuses a hyper-parameter that an algorithm does not have.

  Args:
    name: the algorithm, perhaps not one of ``ALGORITHMS``.
    field: the hyper-parameter.
    allowed: those that it has.

  Raises:
    UnreadError: it is none of them.
  """
  if field not in allowed:
    why = why_unread(name, field)
    raise UnreadError(
      f"`{field}`: {name} does not read it"
      f"{f' ({why})' if why else did_you_mean(field, allowed)}"
    )


def why_unread(name: str, field: str) -> str:
  """Explains why an algorithm does not read a hyper-parameter that others do.

  Args:
    name: the algorithm, perhaps not one of ``ALGORITHMS``.
    field: the hyper-parameter.

  Returns:
    The reason; empty if there is none but that it has no such thing.
  """
  entry = ALGORITHMS.get(name)
  place = _place_in_parts(entry, field) if entry else ""
  if place:
    return place
  if field == "precision":
    return (
      "it is of the sums of fedacnnl and pfedacnnl; a model is computed in "
      "bfloat16 with `compute_dtype`"
    )
  if entry is None:  # the caller's own
    no_links = "its builder has no argument exchange"
    return no_links if field in _OF_EXCHANGE else ""
  return entry.no_compression_because if field in _OF_UPDATES else ""


def _place_in_parts(entry: Entry, name: str) -> str:
  """Where a method's parts have a field of this name; "" if none has."""
  if not any(name in other.fields for other in ALGORITHMS.values()):
    return ""  # it is no option of another method, so it may be misspelt
  places: dict[str, str] = {}
  for option, field in entry.fields.items():
    for part in parts_of(field.type):
      if name in {field.name for field in dataclasses.fields(part)}:
        places.setdefault(option, f"`{option}`={part.WORD}:{name}=...")
  return f"it is a field, {' or '.join(places.values())}" if places else ""


#: Halves of methods as papers write them -> their names in the grid.
_CLIENTS = {
  "fed": "sgd",
  "fedavg": "sgd",
  "fedprox": "prox",
  "fsvrg": "svrg",
  "fednova": "nova",
  "feddyn": "dyn",
}
_SERVERS = {
  "avg": "average",
  "avgm": "sgd",
  "momentum": "sgd",
  "cg": "conjugate_gradient",
}
#: Methods that have no name here, but are a setting of one that has.
_SETTINGS = {
  "fedsgd": "`algorithm`=fedavg with `local_steps`=1 and `batch_size`=0",
  "localsgd": "`algorithm`=fedavg",
  "fedopt": "`algorithm`=fedadam, fedyogi or fedadagrad",
  "mimeadam": "`algorithm`=mime with `base`=adam (the paper's MimeAdam; a "
  "cell of the grid is `client_update`=mime with `server`=adam)",
  "proxskip": "`algorithm`=scaffnew",
  "mimesgdm": "`algorithm`=mime with `base`=momentum",
  "mimeliteadam": "`algorithm`=mime_lite with `base`=adam",
  **dict.fromkeys(
    ("qffl", "qfedavg"), "`algorithm`=fedavg with `client_weights`=qffl:Q"
  ),
  "qfedsgd": "`algorithm`=fedavg with `client_weights`=qffl:Q, "
  "`local_steps`=1 and `batch_size`=0",
  **dict.fromkeys(
    ("agnostic", "agnosticfl", "agnosticfedavg", "agnosticfederatedlearning"),
    "`algorithm`=fedavg with `client_weights`=agnostic (`algorithm`=afl is "
    "analytic FL)",
  ),
}
#: Methods of the literature that are not here, and whose names resemble those
#: of others.
_NOT_HERE = ("fedproto", "fedpd", "moon")


def _words(choice: object) -> list[str]:
  return [part.WORD for part in parts_of(choice)]


def _instead(name: str) -> str:
  """Says what an unknown name may stand for."""
  text = normalize_name(name)
  for candidate, entry in ALGORITHMS.items():
    if text in (normalize_name(candidate), normalize_name(entry.label)):
      return f"unknown, did you mean {candidate!r}?"
  if text in _SETTINGS:
    return f"no name here, it is {_SETTINGS[text]}"
  for client in (*_words(halves.CLIENT_UPDATES), *_CLIENTS):
    for server in (*_words(halves.SERVERS), *_SERVERS):
      if text == normalize_name(client + server):
        return (
          f"no name here, it is `client_update`="
          f"{_CLIENTS.get(client, client)} with `server`="
          f"{_SERVERS.get(server, server)}"
        )
  if text in _NOT_HERE:
    return "this method is not here"
  return f"unknown{did_you_mean(name, ALGORITHMS)}"


def build(
  name: str, model: Model, *, map_clients: MapClients, **hparams: object
) -> Algorithm:
  """Builds an algorithm by name.

  Args:
    name: one of ``ALGORITHMS``.
    model: the model and its objective.
    map_clients: how clients are mapped.
    **hparams: the algorithm's hyper-parameters and options of the exchange.

  Returns:
    The algorithm.

  Raises:
    OptionError: an unknown name, or a hyper-parameter that is unknown or out
      of range.
  """
  entry = get(name)
  for field in hparams:
    refuse_unread(name, field, entry.fields)
  return entry.make(model, *entry.parts(**hparams), map_clients)
