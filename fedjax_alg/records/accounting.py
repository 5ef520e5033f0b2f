"""The epsilon of a run whose releases are private, on the host.

It is that of ``dp_accounting`` (extra ``private``): Renyi differential privacy
of a round, added up over rounds. Nothing of it is in a compiled program.
"""

from collections.abc import Iterable
import dataclasses
import functools
import importlib
import logging
import math
from types import ModuleType
from typing import Protocol

import numpy as np

from fedjax_alg.data.options import DataOptions
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange.privacy import Privacy
from fedjax_alg.least_squares.private import PrivateMoments
from fedjax_alg.typing import HParams

#: Message if the accountant is not installed.
MISSING = (
  "epsilon is not known, dp-accounting is not installed (pip install "
  "'fedjax_alg[private]')"
)


@dataclasses.dataclass(frozen=True)
class Mechanism:
  """Private release of every round, as the accountant sees it."""

  noise_multiplier: float  #: z, of all that a round releases
  delta: float
  clients: int  #: C
  #: "poisson", "fixed" or "all": how the participants of a round are drawn
  sampling: str
  rate: float  #: share of the clients that take part, on average
  rounds: int | None = None  #: rounds that release something; None: all

  @property
  def unit(self) -> str:
    """The relation of neighboring data sets, in words."""
    return (
      "a client replaced by another"
      if self.sampling == "fixed"
      else "a client added or removed"
    )

  def epsilon(self, rounds: int) -> float:
    """Epsilon after some rounds.

    Args:
      rounds: rounds run, at least 1.

    Returns:
      Epsilon; infinite without noise, NaN without the accountant.
    """
    if not self.noise_multiplier:
      return math.inf
    of_one = _of_a_round(self.noise_multiplier, self.sampling, self.clients, self.rate)
    if of_one is None:
      return math.nan
    if self.rounds is not None:
      rounds = min(rounds, self.rounds)
    orders, divergences = of_one
    modules = _accountant()
    assert modules is not None  # as there are orders
    return float(
      modules[1].compute_epsilon(orders, rounds * np.array(divergences), self.delta)[0]
    )

  @property
  def caution(self) -> str:
    """Warning for the user; empty if there is none."""
    if self.noise_multiplier and _accountant() is None:
      return f"`private`: {MISSING}"
    if self.delta * self.clients >= 1:
      return (
        f"`delta`={self.delta:g}: with {self.clients} clients it should "
        f"be less than {1 / self.clients:.2g}; publishing one of them as "
        "they are has that delta"
      )
    return ""

  def facts(self, rounds: int) -> dict[str, object]:
    """Returns the facts on a run's privacy for summary.json and --dry_run."""
    epsilon = self.epsilon(rounds)
    return {
      "epsilon": epsilon,
      "delta": self.delta,
      "unit": self.unit,
      "noise_multiplier": self.noise_multiplier,
      "sampling": self.sampling,
      "rate": self.rate,
    } | ({"note": MISSING} if math.isnan(epsilon) else {})


@functools.cache
def _accountant() -> tuple[ModuleType, ModuleType] | None:
  """The modules dp_accounting and dp_accounting.rdp; None if missing."""
  try:
    return importlib.import_module("dp_accounting"), importlib.import_module(
      "dp_accounting.rdp"
    )
  except ImportError:
    return None


@functools.lru_cache(maxsize=64)
def _of_a_round(
  noise: float, sampling: str, clients: int, rate: float
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
  """The orders, and the Renyi divergence of a round at each; None: unknown.

  In a cohort of fixed size a client cannot be missing, only be replaced by
  another one, which changes the sum by up to 2 S.
  """
  modules = _accountant()
  if modules is None:
    return None
  dp, rdp = modules
  relation, event = (
    dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    (dp.GaussianDpEvent(noise)),
  )
  if sampling == "poisson" and rate < 1:
    event = dp.PoissonSampledDpEvent(rate, event)
  elif sampling == "fixed":
    relation = dp.NeighboringRelation.REPLACE_ONE
    event = dp.SampledWithoutReplacementDpEvent(
      clients, round(rate * clients), dp.GaussianDpEvent(noise / 2)
    )
  accountant = rdp.RdpAccountant(neighboring_relation=relation)
  log = logging.getLogger("absl")  # it names every order that it leaves out
  level = log.level
  log.setLevel(logging.ERROR)
  try:
    accountant.compose(event)
  finally:
    log.setLevel(level)
  # No public name has them; they are added up over rounds, and finding them
  # takes 0.1 s.
  return tuple(accountant._orders), tuple(accountant._rdp)


class _RunOptions(Protocol):
  """What the accountant reads of ``runs.options.RunOptions``."""

  @property
  def sampling(self) -> str:
    """Who takes part in a round."""

  @property
  def deadline_s(self) -> float | None:
    """Seconds until a round ends; None: it waits for all."""

  @property
  def dropout(self) -> float:
    """The share of participants that are lost."""

  def rate(self, clients: int) -> float:
    """Computes the share of the clients in a round."""


def _private_part(parts: Iterable[HParams]) -> Privacy | PrivateMoments | None:
  """The options by which releases are private; None: they are not."""
  for part in parts:
    if isinstance(part, (Privacy, PrivateMoments)) and part.private != "none":
      return part
  return None


def is_private(parts: Iterable[HParams]) -> bool:
  """Whether a method with these options makes releases private.

  Args:
    parts: its hyper-parameters and the options of its exchange.
  """
  return _private_part(parts) is not None


def check_accounting(
  options: _RunOptions, data: DataOptions, parts: Iterable[HParams]
) -> None:
  """Checks that what is private can be accounted for.

  Args:
    options: the options of the run.
    data: options of the data.
    parts: hyper-parameters of the algorithm and options of its exchange.

  Raises:
    OptionError: it cannot.
  """
  part = _private_part(parts)
  if part is None:
    return
  private = f"`private`={part.private}"
  at_clients = getattr(part, "noise_at", "") == "clients"
  if options.sampling not in ("uniform", "poisson"):
    raise OptionError(
      f"{private}: the accountant knows `sampling`=uniform and poisson, not "
      f"{options.sampling}"
    )
  if data.newcomers_at:
    raise OptionError(
      f"{private}: not with `newcomers_at`, the share of the clients in a round "
      "would change"
    )
  if data.shift != "none":
    raise OptionError(
      f"{private}: not with `shift`, a client's data would move to another client"
    )
  if options.deadline_s is not None:
    raise OptionError(
      f"{private}: not with `deadline_s`, who is in time may follow from which "
      "messages clients have missed"
    )
  if at_clients and options.dropout:
    raise OptionError(
      "`noise_at`=clients: not with `dropout`, who is lost takes a share of the "
      "noise away"
    )
  if at_clients and options.sampling == "poisson":
    raise OptionError(
      "`noise_at`=clients: with `sampling`=poisson a participant does not "
      "know into how many shares the noise is split (only uniform)"
    )


def mechanism(
  parts: Iterable[HParams],
  options: _RunOptions,
  clients: int,
  layers: int | None = None,
) -> Mechanism | None:
  """Returns the mechanism of the private release in a round of a run.

  Args:
    parts: hyper-parameters of the algorithm and options of its exchange.
    options: the options of the run.
    clients: C.
    layers: rounds after which nothing is released any more; None: none.

  Returns:
    None if nothing is private.
  """
  part = _private_part(parts)
  if part is None:
    return None
  rate = 1.0 if layers is not None else options.rate(clients)
  number = round(rate * clients)
  if options.sampling == "poisson":
    sampling = "poisson"
  else:
    sampling, rate = "all" if number == clients else "fixed", number / clients
  return Mechanism(part.noise_multiplier, part.delta, clients, sampling, rate, layers)
