"""What ``experiments.tune --paper`` chooses between.

All methods of a paper have the same number of settings, drawn together from
all ranges of a method; the first is the one that the paper states, or the
stated learning rate for methods whose rate it does not state.
"""

from collections.abc import Mapping
import math
from typing import Any, NamedTuple

import numpy as np

from .diversified import ablation
from .diversified import figures as diversified


class Log(NamedTuple):
  """Numbers between two ends, spread evenly by their logarithms."""

  low: float
  high: float

  def at(self, place: float) -> float:
    """The number at a place in [0, 1), to two digits."""
    return float(f"{self.low * (self.high / self.low) ** place:.2g}")

  def times(self, unit: float) -> "Log":
    return Log(unit * self.low, unit * self.high)


class AnyOf(NamedTuple):
  """One of some values."""

  values: tuple[Any, ...]

  def at(self, place: float) -> Any:
    return self.values[int(place * len(self.values))]


#: setting -> where its values come from
Space = dict[str, Log | AnyOf]


class Protocol(NamedTuple):
  """How the methods of a paper are tuned on one data set."""

  rates: Log  #: of client_lr, for a step of one mini-batch
  stated: float  #: client_lr of the paper, for a step of one mini-batch
  #: how many last rounds decide by their validation accuracy; None: all
  last: int | None
  flags: tuple[str, ...] = ()  #: of every run
  rounds: int | None = None  #: of methods whose flag file says none
  held: tuple[str, ...] = ()  #: flags that hold clients out
  #: ranges that all methods have besides
  shared: Mapping[str, Log | AnyOf] = {}
  #: algorithm -> its own settings here, in place of those of ``OWN``
  own: Mapping[str, Space] = {}
  #: algorithm -> what is stated of them, in place of ``STATED``
  stated_own: Mapping[str, Mapping[str, Any]] = {}
  #: the protocol whose accuracy decides: validation (of clients that are held
  #: out) or local (of clients that have a model each, on a sixth of the training
  #: images or another draw of synthetic data)
  by: str = "validation"
  seeds: int = 3  #: of every setting on each partition


#: Methods whose local learning rate is client_lr / n_i.
DIVIDED = ("fsvrg", "cfsvrg", "clsfsvrg", "ma_fsvrg", "ga_fsvrg")
#: algorithm -> what its --client_lr is in units of a mini-batch step.
UNITS = {"pfedme": 0.1, "pfedzo": 0.1, "fedzo": 0.1}

_SERVER = Log(0.002, 0.2)
_BETA1 = AnyOf((0.0, 0.5, 0.8, 0.9, 0.95))
_RULE = AnyOf(("printed", "corrected"))
_RIDGE = Log(1.0, 1000.0)
#: algorithm -> its own settings.
OWN: dict[str, Space] = {
    "fedprox": {"mu": Log(1e-4, 1.0)},
    "per_fedavg": {"adapt_lr": Log(1e-3, 1.0)},
    "losac": {"variant": AnyOf(("client", "table"))},
    "cfsvrg": {"server_lr": Log(0.01, 10.0)},
    "clsfsvrg": {"line_search_test": AnyOf(("half_gradient", "decrease"))},
    "ma_fsvrg": {"server_lr": _SERVER, "beta1": _BETA1, "central_rule": _RULE},
    "ga_fsvrg": {"server_lr": _SERVER, "beta1": _BETA1, "central_rule": _RULE,
                 "gradient_step": Log(0.3, 10.0)},
    "pfedme": {"personal_lr": Log(0.01, 0.1), "lam": Log(5.0, 30.0),
               "server_lr": AnyOf((1.0, 2.0, 4.0))},
    "pfedzo": {"personal_lr": Log(0.003, 0.03)},
    "local": {"local_epochs": AnyOf((1, 2, 5))},
    "baffle": {"server_lr": Log(0.003, 0.03)},
    "fedacnnl": {"ridge": _RIDGE},
    # One group is pFedACnnL-WC, a line of its own.
    "pfedacnnl": {"num_groups": AnyOf((2, 3, 5, 10)), "ridge": _RIDGE,
                  "personal_ridge": _RIDGE},
}
#: algorithm -> what its paper states of ``OWN``, or an author's usual value.
STATED: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.01}, "per_fedavg": {"adapt_lr": 0.01},
    "losac": {"variant": "table"}, "cfsvrg": {"server_lr": 1.0},
    "clsfsvrg": {"line_search_test": "half_gradient"},
    "ma_fsvrg": {"server_lr": 0.02, "beta1": 0.0, "central_rule": "corrected"},
    "ga_fsvrg": {"server_lr": 0.02, "beta1": 0.0, "central_rule": "corrected",
                 "gradient_step": 1.0},
    "pfedme": {"personal_lr": 0.05, "lam": 15.0, "server_lr": 2.0},
    "pfedzo": {"personal_lr": 0.01}, "local": {"local_epochs": 1},
    "baffle": {"server_lr": 0.01}, "fedacnnl": {"ridge": 100.0},
    "pfedacnnl": {"num_groups": 5, "ridge": 100.0, "personal_ridge": 100.0},
}

_TENTH = ("--participation=0.1",)
#: On CIFAR-10 a central step of 0.005 is too long already
#: (docs/papers/readings.md, R-D6).
_CENTRAL: Space = {
    "server_lr": Log(1e-4, 0.02), "beta1": _BETA1, "central_rule": _RULE}
#: The captions of Figs. 5 to 7.
_CAPTION: dict[str, Any] = {
    "server_lr": 0.02, "beta1": 0.9, "central_rule": "corrected"}
_CIFAR = Protocol(
    Log(3e-3, 1.0), 0.08 * 1_100 / 50_000, 10, _TENTH,
    held=diversified.HELD["cifar10"],
    own={"ma_fsvrg": _CENTRAL, "ga_fsvrg": _CENTRAL | {
        "server_lr": Log(5e-4, 0.05), "gradient_step": Log(0.003, 1.0)}},
    stated_own={"ma_fsvrg": _CAPTION,
                "ga_fsvrg": _CAPTION | {"gradient_step": 1.0}})

#: A ridge for each layer, relative to the Gram matrix.
_DCNN: dict[str, Space] = {
    "fedacnnl": {
        "code_high_passed": AnyOf(("0", "1")),
        "ridge": AnyOf(("0.01,0.01,0.01,0.01,0.01", "0.1,0.1,0.1,0.1,0.1",
                        "1,1,1,1,1", "0.01,1,1,0.01,0.01"))},
    "pfedacnnl": {
        "num_groups": AnyOf((2, 5)),
        "personal_ridge": AnyOf((
            "inf,inf,inf,50,20", "inf,inf,inf,500,200",
            "inf,inf,inf,5000,2000"))}}

_GROUPS = AnyOf((2, 3, 5, 8))
#: The board of clustered methods (experiments.papers.beyond.board).
_BOARD = Protocol(
    Log(0.003, 1.0), 0.03, 1, by="local", seeds=1,
    own={"fedprox": {"mu": Log(1e-3, 10.0)},
         "ifca": {"num_groups": _GROUPS}, "fesem": {"num_groups": _GROUPS},
         "fedgroup": {"num_groups": _GROUPS},
         "cfl": {"max_groups": _GROUPS, "eps1": Log(0.03, 3.0),
                 "eps2": Log(0.03, 3.0)},
         "flhc": {"max_groups": _GROUPS, "cluster_after": AnyOf((3, 5, 10))},
         "ditto": {"lam": Log(0.01, 3.0), "personal_lr": Log(0.003, 1.0)},
         "local": {}},
    stated_own={"fedprox": {"mu": 1.0}, "ifca": {"num_groups": 3},
                "fesem": {"num_groups": 3}, "fedgroup": {"num_groups": 3},
                "cfl": {"max_groups": 3, "eps1": 0.4, "eps2": 1.6},
                "flhc": {"max_groups": 3, "cluster_after": 10},
                "ditto": {"lam": 1.0, "personal_lr": 0.03}})

#: (paper, data) -> protocol.
PROTOCOLS: dict[tuple[str, str], Protocol] = {
    ("conjugate", "mnist"): Protocol(
        Log(1e-3, 3.0), 0.3 / 145, None, _TENTH,
        shared={"hog_norm": AnyOf(("none", "l2"))}),
    ("conjugate", "cifar10"): Protocol(
        Log(3e-3, 1.0), 0.3 / 120, None, _TENTH,
        shared={"hog_norm": AnyOf(("none", "l2"))}),
    ("diversified", "mnist"): Protocol(
        Log(0.03, 10.0), 12 / 145, 10, _TENTH, held=diversified.HELD["mnist"]),
    ("diversified", "cifar10"): _CIFAR,
    **{("beyond", f"board_{data}"): _BOARD
       for data in ("mnist", "fashion", "digits")},
    ("analytic", "mnist"): Protocol(
        Log(0.03, 1.0), 0.1, 1, rounds=20, by="local"),
    ("analytic", "mnist_lr"): Protocol(
        Log(0.03, 1.0), 0.1, 1, by="local"),
    ("analytic", "synthetic"): Protocol(
        Log(0.01, 0.3), 0.1, 1, rounds=600, by="local"),
    ("analytic", "synthetic_lr"): Protocol(
        Log(0.01, 0.3), 0.1, 1, by="local"),
    ("analytic", "cifar10"): Protocol(
        Log(0.01, 0.1), 0.1, 1, rounds=10, own=_DCNN, by="local"),
}


def space(paper: str, data: str, name: str, has_rate: bool, size: float
          ) -> tuple[Space, dict[str, Any]]:
  """The ranges of a method, and the setting that is stated.

  Args:
    paper: the paper.
    data: its data set.
    name: an algorithm, or a combination of the ablation.
    has_rate: whether it has a client_lr.
    size: the mean of n_i.

  Returns:
    The ranges, and the first setting.
  """
  protocol = PROTOCOLS[paper, data]
  if name in ablation.CELLS:
    cell = ablation.CELLS[name]
    unit = size if cell.local == "FSVRG" else 1.0
    own: Space = {}
    if cell.server != "average":
      own["server_lr"] = _SERVER if cell.server == "adaptive" else (
          OWN["cfsvrg"]["server_lr"])
    if cell.server == "adaptive":
      own |= {"beta1": _BETA1, "central_rule": _RULE}
    stated = {"server_lr": 0.02 if cell.server == "adaptive" else 1.0,
              "beta1": 0.0, "central_rule": "corrected"}
  else:
    unit = size if name in DIVIDED else UNITS.get(name, 1.0)
    own, stated = dict(OWN.get(name, {})), STATED.get(name, {})
    if name in protocol.own:
      own = dict(protocol.own[name])
      stated = dict(protocol.stated_own.get(name, {}))
  first = {flag: stated.get(flag, values.at(0.0))
           for flag, values in own.items()}
  for flag, values in protocol.shared.items():
    own[flag], first[flag] = values, values.at(0.0)
  if has_rate:
    own["client_lr"] = protocol.rates.times(unit)
    first["client_lr"] = float(f"{protocol.stated * unit:.2g}")
  return own, first


def drawn(
    ranges: Space, first: Mapping[str, Any], number: int, seed: int = 0
) -> list[dict[str, Any]]:
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
      for values in ranges.values())
  rng, found = np.random.default_rng(seed), [dict(first)]
  while len(found) < min(number, most):
    left = min(number, most) - len(found)
    places = (rng.permuted(np.tile(np.arange(left), (len(ranges), 1)), axis=1)
              + rng.random((len(ranges), left))) / left
    for place in places.T:
      setting = {flag: values.at(float(p))
                 for (flag, values), p in zip(ranges.items(), place)}
      if setting not in found:
        found.append(setting)
  return found
