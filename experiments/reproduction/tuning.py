"""The choices of ``experiments.tune --paper``, and how it chooses.

All methods of a paper have the same number of settings, drawn together from
all ranges of a method; the first is the one that the paper states, or the
stated learning rate for methods whose rate it does not state.
"""

from collections.abc import Iterable, Mapping, Sequence
import functools
import itertools
import math
import pathlib
import secrets
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import files as files_lib
from fedjax_alg import registry
from fedjax_alg.data.federation import load_examples
from fedjax_alg.part import put_into_parts, write_parts
from fedjax_alg.records import summary as results
from fedjax_alg.records import tables
from fedjax_alg.records.frames import read_frames
from fedjax_alg.records.scores import in_last
from fedjax_alg.runs import store

from ..cli import config as config_lib
from ..cli import flag_words, flags, guard, presets, sweeps
from ..cli.config import Layer, UsageError
from ..reports import markdown
from . import durations
from .beyond import accelerations, backbone, bridge, kinds_map, natural
from .conjugate import figures as conjugate
from .diversified import figures as diversified

#: Every setting of a paper's method is run on so many partitions.
PARTITIONS = 3
#: Settings of every method, unless a protocol says another number.
SETTINGS = 12
#: Validation examples that every class has to have.
LEAST = 100

#: Partitions of synthetic data from this seed on are drawn for tuning alone.
_OTHER_DRAW = 1000

#: paper -> its own methods, whose settings are those of headline.flags.
_PROPOSED = {diversified.NAME: diversified.PROPOSED, conjugate.NAME: conjugate.PROPOSED}
#: Training examples of a data set.
_EXAMPLES = {
  "mnist": 60_000,
  "fashion_mnist": 60_000,
  "cifar10": 50_000,
  "digits": 1438,
  "watch:step=100": 1182,
  "watch:step=100,test=part": 1812,
}


class Log(NamedTuple):
  """Numbers between two ends, spread evenly by their logarithms."""

  low: float
  high: float
  #: what the paper states, or an author's usual value; None: the first
  stated: float | None = None

  def at(self, place: float) -> float:
    """The number at a place in [0, 1), to two digits."""
    return float(f"{self.low * (self.high / self.low) ** place:.2g}")

  def times(self, unit: float) -> "Log":
    return Log(unit * self.low, unit * self.high)


class AnyOf(NamedTuple):
  """One of some values."""

  values: tuple[object, ...]
  stated: object = None  #: as that of ``Log``

  def at(self, place: float) -> object:
    return self.values[int(place * len(self.values))]

  def times(self, unit: float) -> "AnyOf":
    """The same numbers in another unit."""
    return AnyOf(
      tuple(float(f"{unit * float(str(value)):.2g}") for value in self.values)
    )


#: setting -> where its values come from
Space = dict[str, Log | AnyOf]


class _Protocol(NamedTuple):
  """Protocol by which the methods of a paper are tuned on one data set."""

  rates: Log | AnyOf  #: of client_lr, for a step of one mini-batch
  stated: float  #: client_lr of the paper, for a step of one mini-batch
  #: how many last rounds decide by their validation accuracy; None: all
  last: int | None
  values: Mapping[str, Any] = {}  #: of every run
  rounds: int | None = None  #: of methods whose preset says none
  held: Mapping[str, Any] = {}  #: values that hold clients out
  #: the protocol that decides: validation (of clients that are held out), or
  #: on a sixth of the training images or another draw of synthetic data, local
  #: (of clients that have a model each) or global
  by: str = "validation"
  #: ranges that all methods have besides
  shared: Mapping[str, Log | AnyOf] = {}
  #: algorithm -> its own settings here, in place of those of ``SPACES``
  own: Mapping[str, Space] = {}
  seeds: int = 3  #: of every setting on each partition
  #: algorithms in place of those with a preset
  algorithms: tuple[str, ...] = ()
  #: algorithm -> a factor of its rates
  units: Mapping[str, float] = {}
  #: algorithm -> a setting that is client_lr, too
  same_rate: Mapping[str, str] = {}
  pictures: bool = True  #: whether every run is drawn, too
  settings: int = SETTINGS  #: of every method, if the user does not say how many


#: Methods whose local learning rate is client_lr / n_i.
DIVIDED = ("fsvrg", "cfsvrg", "clsfsvrg", "ma_fsvrg", "ga_fsvrg")
#: algorithm -> what its --client_lr is in units of a mini-batch step.
UNITS = {"pfedme": 0.1, "pfedzo": 0.1, "fedzo": 0.1}

_SERVER = Log(0.002, 0.2, 0.02)
_BETA1 = AnyOf((0.0, 0.5, 0.8, 0.9, 0.95))
_RULE = AnyOf(("printed", "corrected"), "corrected")
_RIDGE = Log(1.0, 1000.0, 100.0)
#: algorithm -> its own settings.
SPACES: dict[str, Space] = {
  "fedprox": {"mu": Log(1e-4, 1.0, 0.01)},
  "per_fedavg": {"adapt_lr": Log(1e-3, 1.0, 0.01)},
  "losac": {"variant": AnyOf(("client", "table"), "table")},
  "cfsvrg": {"server_lr": Log(0.01, 10.0, 1.0)},
  "clsfsvrg": {"line_search_test": AnyOf(("half_gradient", "decrease"))},
  "ma_fsvrg": {"server_lr": _SERVER, "beta1": _BETA1, "central_rule": _RULE},
  "ga_fsvrg": {
    "server_lr": _SERVER,
    "beta1": _BETA1,
    "central_rule": _RULE,
    "gradient_step": Log(0.3, 10.0, 1.0),
  },
  "pfedme": {
    "personal_lr": Log(0.01, 0.1, 0.05),
    "lam": Log(5.0, 30.0, 15.0),
    "server_lr": AnyOf((1.0, 2.0, 4.0), 2.0),
  },
  "pfedzo": {"personal_lr": Log(0.003, 0.03, 0.01)},
  "local": {"local_epochs": AnyOf((1, 2, 5))},
  "baffle": {"server_lr": Log(0.003, 0.03, 0.01)},
  "fedacnnl": {"ridge": _RIDGE},
  # One group is pFedACnnL-WC, a line of its own.
  "pfedacnnl": {
    "clustering.num_groups": AnyOf((2, 3, 5, 10), 5),
    "ridge": _RIDGE,
    "personal_ridge": _RIDGE,
  },
}


_analytic = functools.partial(_Protocol, stated=0.1, last=1, by="local")
_TENTH = {"participation": 0.1}
#: On CIFAR-10 a central step of 0.005 is too long already
#: (docs/papers/readings.md, R-D6). Stated are the captions of Figs. 5 to 7.
_CENTRAL: Space = {
  "server_lr": Log(1e-4, 0.02, 0.02),
  "beta1": _BETA1._replace(stated=0.9),
  "central_rule": _RULE,
}
_CIFAR = _Protocol(
  Log(3e-3, 1.0),
  0.08 * 1_100 / 50_000,
  10,
  _TENTH,
  held=diversified.HELD["cifar10"],
  own={
    "ma_fsvrg": _CENTRAL,
    "ga_fsvrg": _CENTRAL
    | {"server_lr": Log(5e-4, 0.05, 0.02), "gradient_step": Log(0.003, 1.0, 1.0)},
  },
)

#: A ridge for each layer, relative to the Gram matrix.
_DCNN: dict[str, Space] = {
  "fedacnnl": {
    "code": AnyOf(("position:centred", "position:1,centred")),
    "ridge": AnyOf(
      (
        "0.01,0.01,0.01,0.01,0.01",
        "0.1,0.1,0.1,0.1,0.1",
        "1,1,1,1,1",
        "0.01,1,1,0.01,0.01",
      )
    ),
  },
  "pfedacnnl": {
    "clustering.num_groups": AnyOf((2, 5)),
    "personal_ridge": AnyOf(
      ("inf,inf,inf,50,20", "inf,inf,inf,500,200", "inf,inf,inf,5000,2000")
    ),
  },
}

_GROUPS = AnyOf((2, 3, 5, 8), 3)
#: The board of clustered methods (experiments.reproduction.beyond.board).
_BOARD = _Protocol(
  Log(0.003, 1.0),
  0.03,
  1,
  by="local",
  seeds=1,
  own={
    "fedprox": {"mu": Log(1e-3, 10.0, 1.0)},
    "ifca": {"num_groups": _GROUPS},
    "fesem": {"num_groups": _GROUPS},
    "fedgroup": {"num_groups": _GROUPS},
    "cfl": {
      "max_groups": _GROUPS,
      "thresholds.eps1": Log(0.03, 3.0, 0.4),
      "thresholds.eps2": Log(0.03, 3.0, 1.6),
    },
    "flhc": {"max_groups": _GROUPS, "cluster_after": AnyOf((3, 5, 10), 10)},
    "ditto": {"lam": Log(0.01, 3.0, 1.0), "personal_lr": Log(0.003, 1.0, 0.03)},
    "local": {},
  },
)
#: Of 60 clients no 20 a group can be pre-trained.
_BOARD_DIGITS = _BOARD._replace(
  own={
    **_BOARD.own,
    "fedgroup": {"num_groups": _GROUPS, "centers": AnyOf(("kmeans:7",))},
  }
)

#: Rates of the map on each data set (experiments.reproduction.beyond.kinds_map).
_MAP_RATES = {
  "digits": AnyOf((0.1, 0.3, 1.0)),
  "mnist": AnyOf((0.03, 0.1, 0.3)),
  "fashion": AnyOf((0.03, 0.1, 0.3)),
  "watch": AnyOf((0.03, 0.1, 0.3)),
}


def _of_map(data: str, kind: str) -> _Protocol:
  """The map: a rate of three, and what the methods are told of the kinds."""
  rates, steps = _MAP_RATES[data], kinds_map.KINDS[kind].steps
  told = kinds_map.fixed_settings(kind)
  return _Protocol(
    rates,
    float(str(rates.at(0.0))),
    # With drift every evaluation counts, at the end of each step.
    None if steps else 1,
    {"eval_every": steps} if steps else {},
    by="local",
    own={
      name: {flag: AnyOf((value,)) for flag, value in values.items()}
      for name, values in told.items()
    },
    seeds=1,
    algorithms=tuple(told),
    # Scaled corrections make their steps longer where features are rare.
    units={"ma_fsvrg": 0.3, "ga_fsvrg": 0.3},
    same_rate={"ditto": "personal_lr"},
    pictures=False,
  )


#: Rates of the bridge between the board and the map, by model and by who takes part
#: (experiments.reproduction.beyond.bridge): so wide that no best one is at an end.
_BRIDGE_RATES = {
  ("softmax", "10"): AnyOf(
    (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
  ),
  ("softmax", "all"): AnyOf((0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)),
  ("mlp", "10"): AnyOf((0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
  ("mlp", "all"): AnyOf((0.01, 0.03, 0.1, 0.3, 1.0)),
}


def _of_bridge(setup: bridge.Setup) -> _Protocol:
  """The bridge: a rate of five to eleven, and the number of groups of the map."""
  return _Protocol(
    _BRIDGE_RATES[setup.levels[0], setup.levels[1]],
    0.03,
    1,
    by="local",
    own={
      name: {flag: AnyOf((value,)) for flag, value in values.items()}
      for name, values in bridge.FIXED.items()
    },
    seeds=1,
    algorithms=tuple(bridge.FIXED),
    pictures=False,
  )


#: Rates of the study of central acceleration: those of clients on each data set,
#: and what a server has (experiments.reproduction.beyond.accelerations).
_ACCELERATION_RATES = {
  "digits": Log(0.03, 10.0, 0.3),
  "mnist": Log(0.03, 10.0, 0.1),
  "fashion": Log(0.01, 1.0, 0.1),
  "cifar10": Log(0.003, 0.3, 0.03),
}
#: Factor of the rates of ``DIVIDED`` on data whose clients have unlike sizes.
_SIZE_UNITS = {"fashion": 0.1, "cifar10": 0.1}
#: Steps of GA-FSVRG against a group's mean gradient. With networks the shortest of
#: the usual ones was the best in a first search.
_GRADIENT_STEPS = {
  "digits": Log(0.3, 10.0, 1.0),
  "mnist": Log(0.3, 10.0, 1.0),
  "fashion": Log(0.03, 1.0, 1.0),
  "cifar10": Log(0.03, 1.0, 1.0),
}
_MIXED = AnyOf((0.05, 0.1, 0.2, 0.4, 0.7), 0.1)
_ADAPTIVE = Log(0.003, 0.3, 0.01)
_ACCELERATIONS: dict[str, Space] = {
  "fedavgm": {
    "server_lr": AnyOf((0.1, 0.3, 1.0), 1.0),
    "server_momentum": AnyOf((0.5, 0.8, 0.9, 0.95), 0.9),
  },
  "fedadam": {"server_lr": _ADAPTIVE},
  "fedyogi": {"server_lr": _ADAPTIVE},
  "fedcm": {"gradient_weight": _MIXED},
  "scaffold_m": {"gradient_weight": _MIXED},
  "fedexp": {"epsilon": AnyOf((1e-4, 1e-3, 1e-2, 0.1), 1e-3)},
  "fedacg": {"server_momentum": AnyOf((0.5, 0.7, 0.85, 0.95), 0.85)},
  "fedmuon": {"gradient_share": AnyOf((0.05, 0.1, 0.3, 1.0), 0.1)},
  "ma_fsvrg": {"server_lr": _SERVER, "beta1": _BETA1},
  "ga_fsvrg": {"server_lr": _SERVER, "beta1": _BETA1},
}


def _of_accelerations(data: str, share: str) -> _Protocol:
  """Central acceleration: the global model on a sixth of the training images."""
  told = accelerations.told_settings(data, share)
  rates = _ACCELERATION_RATES[data]
  of_ga: Space = {"gradient_step": _GRADIENT_STEPS[data]}
  spaces = {**_ACCELERATIONS, "ga_fsvrg": {**_ACCELERATIONS["ga_fsvrg"], **of_ga}}
  return _Protocol(
    rates,
    float(str(rates.stated)),
    10,
    by="global",
    own={
      name: {
        **spaces.get(name, SPACES.get(name, {})),
        **{flag: AnyOf((value,)) for flag, value in values.items()},
      }
      for name, values in told.items()
    },
    seeds=1,
    algorithms=tuple(told),
    # A step moves a matrix by 1 in every direction, whatever the gradient. With
    # Dirichlet(0.1) clients have unlike sizes, and a step of client_lr / n_i is
    # many times longer for a small client than for one of the mean size. (The
    # models of GA-FSVRG move by gradients, and validation prefers its long steps.)
    units={"fedmuon": 0.03}
    | {name: _SIZE_UNITS.get(data, 1.0) for name in DIVIDED if name != "ga_fsvrg"},
    pictures=False,
  )


#: Probes on the features of a network (experiments.reproduction.beyond.backbone).
#: Clients are held out, since other images would need their features once more.
_PROBES = _Protocol(
  Log(0.01, 3.0),
  0.1,
  10,
  {"rounds": 100},
  held={"validation_clients": 20, "num_clients": 120},
  own={"fedadam": {"server_lr": Log(0.003, 0.3, 0.01)}},
  seeds=1,
  algorithms=tuple(backbone.PROBES.values()),
  pictures=False,
  settings=6,
)

#: Blocks as they are, or of length 1.
_BLOCKS = {"features": AnyOf(("hog:norm=none", "hog"))}

#: (paper, data) -> protocol.
PROTOCOLS: dict[tuple[str, str], _Protocol] = {
  ("conjugate", "mnist"): _Protocol(
    Log(1e-3, 3.0), 0.3 / 145, None, _TENTH, shared=_BLOCKS
  ),
  ("conjugate", "cifar10"): _Protocol(
    Log(3e-3, 1.0), 0.3 / 120, None, _TENTH, shared=_BLOCKS
  ),
  ("diversified", "mnist"): _Protocol(
    Log(0.03, 10.0), 12 / 145, 10, _TENTH, held=diversified.HELD["mnist"]
  ),
  ("diversified", "cifar10"): _CIFAR,
  ("beyond", "board_mnist"): _BOARD,
  ("beyond", "board_fashion"): _BOARD,
  ("beyond", "board_digits"): _BOARD_DIGITS,
  **{
    ("beyond", kinds_map.preset_of(*place)): _of_map(*place)
    for place in kinds_map.PLACES
  },
  **{
    ("beyond", panel.data): _of_map("watch", natural.LIKE) for panel in natural.PANELS
  },
  **{("beyond", setup.preset): _of_bridge(setup) for setup in bridge.SETUPS},
  **{
    ("beyond", accelerations.data_preset(*place)): _of_accelerations(*place)
    for place in accelerations.PLACES
  },
  **{("beyond", data): _PROBES for data in backbone.DATA},
  ("analytic", "mnist"): _analytic(Log(0.03, 1.0), rounds=20),
  ("analytic", "mnist_lr"): _analytic(Log(0.03, 1.0)),
  ("analytic", "synthetic"): _analytic(Log(0.01, 0.3), rounds=600),
  ("analytic", "synthetic_lr"): _analytic(Log(0.01, 0.3)),
  ("analytic", "cifar10"): _analytic(Log(0.01, 0.1), rounds=10, own=_DCNN),
}


def _space(
  paper: str, data: str, name: str, size: float
) -> tuple[Space, dict[str, object]]:
  """The ranges of a method, and the setting that is stated.

  Args:
    paper: the paper.
    data: its data set.
    name: an algorithm.
    size: the mean of n_i.

  Returns:
    The ranges, and the first setting.
  """
  protocol = PROTOCOLS[paper, data]
  has_rate = "client_lr" in registry.get(name).fields
  unit = size if name in DIVIDED else UNITS.get(name, 1.0)
  specific = protocol.own.get(name, SPACES.get(name, {}))
  ranges = specific | dict(protocol.shared)
  first = {
    flag: values.at(0.0) if values.stated is None else values.stated
    for flag, values in ranges.items()
  }
  if has_rate:
    unit *= protocol.units.get(name, 1.0)
    ranges["client_lr"] = protocol.rates.times(unit)
    first["client_lr"] = float(f"{protocol.stated * unit:.2g}")
  return ranges, first


#: Draws without a new setting after which there is none.
_FRUITLESS = 20


def _sample_settings(
  ranges: Space, first: Mapping[str, object], number: int, seed: int = 0
) -> list[dict[str, object]]:
  """Settings drawn from all ranges together (a Latin hypercube).

  Args:
    ranges: where the values come from.
    first: the first setting, in which a range may have no part.
    number: how many settings; fewer where there are not as many.
    seed: of the draw; the settings of a method stay the same.

  Returns:
    The settings, none of them twice.
  """
  most = math.prod(
    len(values.values) if isinstance(values, AnyOf) else number
    for values in ranges.values()
  )
  rng, settings = np.random.default_rng(seed), [dict(first)]
  fruitless = 0  # values are rounded, so numbers have an end, too
  while len(settings) < min(number, most) and fruitless < _FRUITLESS:
    missing, before = min(number, most) - len(settings), len(settings)
    places = (
      rng.permuted(np.tile(np.arange(missing), (len(ranges), 1)), axis=1)
      + rng.random((len(ranges), missing))
    ) / missing
    for place in places.T:
      setting = {
        flag: values.at(float(p)) for (flag, values), p in zip(ranges.items(), place)
      }
      if setting not in settings:
        settings.append(setting)
    fruitless = 0 if len(settings) > before else fruitless + 1
  return settings


def _with_parts(name: str, setting: Mapping[str, object]) -> dict[str, object]:
  """A setting with the texts of the parts of which it has fields, OPTION.FIELD."""
  fields = registry.get(name).fields
  defaults = {option: field.default for option, field in fields.items()}
  values = write_parts(put_into_parts(setting, defaults, fields))
  return {option: values[option] for option in (name.split(".")[0] for name in setting)}


class Trial(NamedTuple):
  """One setting of a method."""

  setting: dict[str, Any]
  #: accuracy in percent of every partition, mean over the seeds; NaN for one
  #: where it diverged
  accuracies: tuple[float, ...]

  @property
  def validation(self) -> float:
    """The mean over the partitions."""
    return sum(self.accuracies) / len(self.accuracies)

  @property
  def words(self) -> str:
    """The setting as a command line has it."""
    return " ".join(config_lib.layer_words([flags.setting_texts(self.setting)]))


class Study(NamedTuple):
  """The methods of a paper on one data set, and the folder of their runs."""

  paper: str
  data: str
  root: pathlib.Path
  source: Sequence[Layer] = ()  #: where images lie that are split
  extra: Sequence[Layer] = ()  #: further settings of all runs

  @property
  def protocol(self) -> _Protocol:
    """Protocol by which the methods are tuned."""
    return PROTOCOLS[self.paper, self.data]

  def preset_names(self) -> dict[str, str]:
    """algorithm -> the preset that its choice is put into."""
    folder = "methods" if self.data == "mnist" else f"methods_{self.data}"
    if self.protocol.algorithms:
      return {
        name: f"{self.paper}/{folder}/{name}.flags" for name in self.protocol.algorithms
      }
    paths = map(pathlib.PurePosixPath, presets.names())
    return {
      path.stem: f"{self.paper}/{folder}/{path.name}"
      for path in paths
      if path.parent == pathlib.PurePosixPath(self.paper, "methods")
      and path.stem in registry.ALGORITHMS
      and not (self.paper == "analytic" and path.stem == "afl")
    }

  def names(self, words: Iterable[str] | None) -> list[str]:
    """The methods that are tuned; by default all.

    Raises:
      UsageError: one has no preset.
    """
    tunable = self.preset_names()
    names = list(dict.fromkeys(tunable if words is None else words))
    for name in names:
      if name not in tunable:
        raise UsageError(
          f"--methods={name}: no preset (there are {', '.join(tunable)})"
        )
    return names

  def data_values(self) -> dict[str, Any]:
    """The values of the data preset, with data held out for validation."""
    values = config_lib.values_of(f"{self.paper}/{self.data}.flags")
    if self.protocol.by == "validation":
      return {**values, **self.protocol.held}
    if str(values["dataset"]).startswith("synthetic"):
      return {**values, "partition_seed": _OTHER_DRAW}
    sources = _sources(values)
    path = _holdout_file(
      self.root,
      "+".join(sources),
      (*self.source, {"kinds": values["kinds"]}) if len(sources) > 1 else self.source,
    )
    if len(sources) > 1:  # of which the file says the kinds
      values = {name: value for name, value in values.items() if name != "kinds"}
    return {**values, "dataset": f"npz:{path}"}

  def method_layers(self, name: str) -> tuple[Layer, ...]:
    """The settings of a method in its presets."""
    folders = dict.fromkeys(
      ("methods", f"methods_{self.data.split('_')[0]}", f"methods_{self.data}")
    )
    paths = [f"{self.paper}/{folder}/{name}.flags" for folder in folders]
    if name in _PROPOSED.get(self.paper, ()):
      paths.insert(0, f"{self.paper}/headline.flags")
    rounds = None if _is_closed_form(name) else self.protocol.rounds
    return (
      {"rounds": rounds} if rounds else {},
      *filter(presets.exists, paths),
      {"algorithm": name},
    )

  def run_layers(self, name: str) -> tuple[Layer, ...]:
    """The settings of the runs in which a method is tuned, but for how."""
    # An evaluation may take as long as rounds: one of pFedACnnL fits the
    # personal layers of all clients again.
    every = 100 if self.protocol.last == 1 else 5
    return (
      *self.method_layers(name),
      self.data_values(),
      {"num_seeds": self.protocol.seeds, "eval_every": every},
      self.protocol.values,
      *self.extra,
    )

  def settings(self, name: str, number: int | None = None) -> list[dict[str, object]]:
    """The settings of a method that are tried, the stated one first.

    Args:
      name: the method.
      number: how many; None: as many as the protocol says.
    """
    values = config_lib.merge_layers(self.data_values(), *self.extra)
    if str(values["dataset"]).startswith("npz:"):
      preset = f"{self.paper}/{self.data}.flags"
      values = config_lib.merge_layers(preset, *self.extra)
    examples = sum(_EXAMPLES.get(name, 0) for name in _sources(values))
    dealt = values.get("train_examples") or examples
    size = int(dealt) / int(values["num_clients"])
    settings = [
      _with_parts(name, setting)
      for setting in _sample_settings(
        *_space(self.paper, self.data, name, size), number or self.protocol.settings
      )
    ]
    same = self.protocol.same_rate.get(name)
    if same:
      settings = [setting | {same: setting["client_lr"]} for setting in settings]
    return settings

  def base_run(
    self, name: str, settings: Sequence[Mapping[str, object]]
  ) -> config_lib.Config:
    """The run that the settings of a method override.

    It has what all of them share, which may be what the method needs on these data
    (FedDrift looks for drift when they change).
    """
    first, *others = settings
    shared = {
      flag: value
      for flag, value in first.items()
      if all(setting.get(flag) == value for setting in others)
    }
    return config_lib.build_config(
      *self.run_layers(name),
      {"eval_protocols": self.protocol.by},
      flags.setting_texts(shared),
    )

  def runs(
    self, name: str, settings: Sequence[Mapping[str, object]], partitions: int
  ) -> list[list[config_lib.Config]]:
    """The runs of each setting of a method, for each of the first partitions."""
    base = self.base_run(name, settings)
    first = base.data.partition_seed or 0
    return [
      [
        base.override(partition_seed=partition, **flags.setting_texts(setting))
        for setting in settings
      ]
      for partition in range(first, first + partitions)
    ]

  def run_group(self, name: str) -> durations.RunGroup:
    """The runs that tune a method, to tell how long they take."""
    runs = self.runs(name, self.settings(name), PARTITIONS)
    return durations.RunGroup(
      f"tuning on {self.data}: {label(name)}",
      list(itertools.chain(*runs)),
      self.root,
      self.protocol.pictures,
    )

  def play(
    self, name: str, number: int | None = None, partitions: int | None = None
  ) -> list[Trial]:
    """Runs the settings of one method on the first partitions, ``PARTITIONS``."""
    partitions = partitions or PARTITIONS
    settings = self.settings(name, number)
    runs = self.runs(name, settings, partitions)
    print(
      f"{label(name)}: {len(settings)} settings x {partitions} "
      f"partition{'s' * (partitions > 1)} x {self.protocol.seeds} seeds",
      flush=True,
    )
    by_partition = list(map(self.scores, runs))
    trials = [
      Trial(
        setting,
        tuple(sum(seeds) / len(seeds) if seeds else math.nan for seeds in by_seed),
      )
      for setting, by_seed in zip(settings, zip(*by_partition))
    ]
    for trial in trials:
      print(f"  {trial.words}: {trial.validation:.2f} %", flush=True)
    return trials

  def scores(self, runs: Sequence[config_lib.Config]) -> list[list[float]]:
    """The accuracy in percent of every run and seed; [] if it diverged."""
    by = self.protocol.by
    scores: list[list[float]] = []
    for outcome in sweeps.run_configs(
      [  # those begun before are gone on with
        config.with_output(out_dir=str(store.folder_of(self.root, config)))
        for config in runs
      ],
      LEAST if by == "validation" else 0,
      pictures=self.protocol.pictures,
    ):
      if outcome.diverged:
        scores.append([])
        continue
      frames = read_frames(outcome.folder)
      # With K models it is that of the mean of the K.
      protocol = f"{by}_mean" if f"{by}_mean" in frames.protocols else by
      last = in_last(frames.rounds_of(protocol), self.protocol.last)
      scores.append(
        [
          100 * float(curve[last].mean())
          for curve in frames.curves(protocol, "accuracy")
        ]
      )
    return scores


def _sources(values: Mapping[str, Any]) -> list[str]:
  """The data sets of a run: one, or those of --kinds=sources."""
  word, _, names = str(values.get("kinds", "")).partition(":")
  return names.split(",") if word == "sources" else [str(values["dataset"])]


def _holdout_file(
  root: pathlib.Path, dataset: str, source: Sequence[Layer]
) -> pathlib.Path:
  """A file of the training images, of which a sixth are its test images.

  Args:
    root: its folder.
    dataset: the data set; names of several are joined by +.
    source: further settings with which it is read.
  """
  path = root / f"{dataset.partition(':')[0]}_held_out.npz"
  if not path.is_file():
    examples = load_examples(
      config_lib.build_config(
        {"dataset": dataset.split("+")[0], "algorithm": "fedavg"}, *source
      ).data
    )
    arrays = {"x": examples.x_train, "y": examples.y_train}
    if examples.client_train is not None:
      arrays["client"] = examples.client_train
    if "+" in dataset:
      arrays["kind"] = examples.kind_train
    last = np.random.default_rng(0).permutation(len(arrays["y"]))
    test, train = np.split(last, [len(last) // 6])
    root.mkdir(parents=True, exist_ok=True)
    # Jobs that tune a method each may write the file at the same time.
    suffix = f".{secrets.token_hex(4)}.partial"
    with files_lib.replacing(path, suffix) as partial, open(partial, "wb") as file:
      np.savez(
        file,
        **{f"{name}_train": values[train] for name, values in arrays.items()},
        **{f"{name}_test": values[test] for name, values in arrays.items()},
      )
  return path


def _is_closed_form(name: str) -> bool:
  """Whether the rounds of a method are those of its layers."""
  return registry.get(name).rounds is not None


def label(name: str) -> str:
  """The name of what is tuned in tables."""
  return registry.get(name).label


def choose(trials: Sequence[Trial]) -> Trial:
  """The first trial of best validation accuracy.

  Raises:
    RunError: all diverged.
  """
  alive = [trial for trial in trials if not math.isnan(trial.validation)]
  if not alive:
    raise guard.RunError("every setting diverged")
  return max(alive, key=lambda trial: trial.validation)


def write(
  preset: str, name: str, trials: Sequence[Trial], author: str, seeds: int
) -> None:
  """Writes the choice into the table of a paper, with how it was made.

  If the preset is a file, the file gets the values.

  Args:
    preset: name of the preset.
    name: an algorithm.
    trials: all settings that were tried.
    author: the command that tried them.
    seeds: of every setting on each partition.

  Raises:
    OSError: the table cannot be written.
    OptionError: it is wrong.
    RunError: all settings diverged.
  """
  best = choose(trials)
  folder, _, short = preset.removesuffix(".flags").partition("/")[2].rpartition("/")
  values = flags.setting_texts(best.setting)
  if presets.exists(preset):
    rows = presets.load_preset(preset).settings
  else:
    rows = (presets.PresetRow(folder, short, "algorithm", name),)
  file = presets.PRESETS / preset
  if file.is_file():
    lines = files_lib.read_text(file).splitlines()
    others = [line for line in lines if flag_words.name_of(line) not in values]
    results.write_text(
      file, "\n".join([*others, *config_lib.layer_words([values])]) + "\n"
    )
  remarks = {row.flag: row.remark for row in rows if row.remark}
  choice = []
  for flag, value in values.items():
    row = presets.PresetRow(
      folder,
      short,
      flag,
      "" if file.is_file() else value,
      chosen_by="stated",
      remark=remarks.get(flag, ""),
    )
    # Of one value nothing is chosen.
    if len({str(trial.setting[flag]) for trial in trials}) > 1 or len(trials) == 1:
      row = row._replace(
        chosen_by="validation",
        tried=f"{len(trials)} settings x {PARTITIONS} partitions x {seeds} seeds",
        score=f"{best.validation:.2f}",
        stated_score=_finite(trials[0].validation),
        source=author,
      )
    choice.append(row)
  presets.replace(preset, [*(row for row in rows if row.flag not in values), *choice])


def _finite(accuracy: float) -> str:
  """An accuracy in percent; "" if the setting diverged."""
  return "" if math.isnan(accuracy) else f"{accuracy:.2f}"


def choice_table(
  title: str, rows: Iterable[tables.Row], last: int | None, seeds: int
) -> str:
  """Every method's choice as Markdown, from the rows of its tune.csv."""
  which = f"the last {last} rounds" if last else "all rounds"
  choices = []
  for method, trials in group_by_method(rows).items():
    best = next(trial for trial in trials if trial["chosen"])
    choices.append(
      [
        method,
        len(trials),
        best["setting"],
        f"{best['validation']:.2f}",
        ", ".join(
          f"{best[name]:.2f}" for name in best if name.startswith("partition_")
        ),
        *(f"{trial['validation']:.2f}" for trial in trials if trial["stated"]),
      ]
    )
  return (
    f"# {title}\n\nValidation accuracy in percent, mean of {which}, of "
    f"{seeds} seeds on each of {PARTITIONS} partitions.\n\n"
    + markdown.table(
      [
        "method",
        "settings tried",
        "best",
        "its accuracy",
        "by partition",
        "the stated setting",
      ],
      choices,
    )
    + "\n"
  )


#: Recognizer of a tune.csv.
IS_TABLE = files_lib.table_with("method", "setting", "validation", "stated", "chosen")


def trial_rows(tuned: dict[str, list[Trial]]) -> list[dict[str, object]]:
  """A row of tune.csv for each setting that was tried."""
  return [
    {
      "method": label(name),
      "setting": trial.words,
      "validation": trial.validation,
      **{f"partition_{i}": a for i, a in enumerate(trial.accuracies)},
      "stated": int(trial is trials[0]),
      "chosen": int(trial is choose(trials)),
    }
    for name, trials in tuned.items()
    for trial in trials
  ]


def group_by_method(
  rows: Iterable[tables.Row],
) -> dict[str, list[tables.Row]]:
  """Groups the rows of a tune.csv: method -> its settings."""
  by_method: dict[str, list[tables.Row]] = {}
  for row in rows:
    by_method.setdefault(row["method"], []).append(row)
  return by_method


def merge_trials(path: pathlib.Path, rows: Sequence[tables.Row]) -> list[tables.Row]:
  """Adds the rows of other methods that an earlier command wrote to ``path``."""
  if not path.is_file():
    return list(rows)
  by_method = group_by_method(tables.read_rows(path, None)) | group_by_method(rows)
  return [row for trials in by_method.values() for row in trials]
