"""The epsilon of a run whose releases are private, on the host.

``dp_accounting`` (extra ``private``) computes it. Rounds of all clients together
are one Gaussian mechanism, whose epsilon is exact. Rounds of Poisson samples are
composed as privacy loss distributions, which is tight but for the discretization;
it rounds up. With clients that take turns, and noise that is correlated over rounds,
all rounds are one Gaussian mechanism, too, of the sensitivity that the least distance
of two participations leaves (``exchange.correlated``).
Cohorts of a fixed size have no such distribution there: for them
Renyi divergences are added up over rounds, which is valid but looser. Nothing of
it is in a compiled program.

References: Koskela, Jaelkoe, Honkela, "Computing Tight Differential Privacy
Guarantees Using FFT", AISTATS 2020; Doroshenko et al., "Connect the Dots",
PoPETs 2022 (the discretization); Mironov, "Renyi Differential Privacy", CSF 2017.
"""

from collections.abc import Iterable
import dataclasses
import functools
import importlib
import logging
import math
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from fedjax_alg.data.features import Standardize
from fedjax_alg.data.options import DataOptions
from fedjax_alg.engine import samplers
from fedjax_alg.engine.late import NoStragglers
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import correlated
from fedjax_alg.exchange.privacy import CorrelatedNoise, Noised
from fedjax_alg.hparams import HParams
from fedjax_alg.models.class_weights import BALANCED
from fedjax_alg.part import Part

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
  #: "poisson", "fixed", "cyclic" or "all": how the participants of a round are drawn
  sampling: str
  rate: float  #: share of the clients that take part, on average
  rounds: int | None = None  #: rounds that release something; None: all
  #: the least number of rounds from one participation of a client to its next
  separation: int = 1
  noise_bands: int = 1  #: see ``CorrelatedNoise``; 1: independent noise
  noise_buffers: int = 0  #: see ``CorrelatedNoise``

  @property
  def accountant(self) -> str:
    """The kind of accounting: "gaussian" (exact), "pld" (tight) or "rdp"."""
    if self.sampling == "fixed":
      return "rdp"
    return "pld" if self.sampling == "poisson" and self.rate < 1 else "gaussian"

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
    if _accountant() is None:
      return math.nan
    if self.rounds is not None:
      rounds = min(rounds, self.rounds)
    return _epsilon(dataclasses.replace(self, rounds=None), rounds)

  def epsilon_bound(self, rounds: int) -> float:
    """Bounds epsilon after some rounds, cheaply for a column of many rounds.

    Above 100, rounds are rounded up to two digits, so that a run of 1,000 rounds
    asks the accountant 190 times.

    Args:
      rounds: rounds run, at least 1.

    Returns:
      Epsilon of at least as many rounds (``epsilon``).
    """
    step = 10 ** max(0, len(str(rounds)) - 2)
    return self.epsilon(-(-rounds // step) * step)

  @property
  def caution(self) -> str:
    """Warning for the user; empty if there is none."""
    if self.noise_multiplier and _accountant() is None:
      return f"`private`: {MISSING}"
    if self.delta * self.clients >= 1:
      return (
        f"`private`: delta={self.delta:g}: with {self.clients} clients it should "
        f"be less than {1 / self.clients:.2g}; publishing one of them as "
        "they are has that delta"
      )
    return ""

  def facts(self, rounds: int) -> dict[str, object]:
    """Returns the facts on a run's privacy for summary.json and --dry_run."""
    epsilon = self.epsilon(rounds)
    return (
      {
        "epsilon": epsilon,
        "delta": self.delta,
        "unit": self.unit,
        "noise_multiplier": self.noise_multiplier,
        "sampling": self.sampling,
        "rate": self.rate,
        "accountant": self.accountant,
      }
      | (
        {
          "separation": self.separation,
          "noise_bands": self.noise_bands,
          "noise_buffers": self.noise_buffers,
        }
        if self.sampling == "cyclic"
        else {}
      )
      | ({"note": MISSING} if math.isnan(epsilon) else {})
    )


@functools.cache
def _accountant() -> ModuleType | None:
  """The module dp_accounting; None if it is missing."""
  try:
    return importlib.import_module("dp_accounting")
  except ImportError:
    return None


@functools.lru_cache(maxsize=4096)
def _epsilon(mechanism: Mechanism, rounds: int) -> float:
  """Epsilon of some rounds, each of which releases something."""
  dp = _accountant()
  assert dp is not None
  if mechanism.accountant == "rdp":
    orders, divergences = _renyi_divergences(mechanism)
    rdp = importlib.import_module("dp_accounting.rdp")
    epsilon, _ = rdp.compute_epsilon(orders, rounds * divergences, mechanism.delta)
    return float(epsilon)
  noise = mechanism.noise_multiplier
  if mechanism.accountant == "gaussian":  # so many Gaussians are one
    moved = math.sqrt(rounds)
    if mechanism.sampling == "cyclic":
      column = correlated.first_column(
        mechanism.noise_bands, mechanism.noise_buffers, rounds
      )
      moved = correlated.sensitivity(column, mechanism.separation)
    return float(dp.get_epsilon_gaussian(noise / moved, mechanism.delta))
  losses = _losses_of_a_round(noise, mechanism.clients, mechanism.rate)
  return float(losses.self_compose(rounds).get_epsilon_for_delta(mechanism.delta))


def _interval(noise: float, rate: float) -> float:
  """The width of the steps on which privacy losses are discretized.

  It is narrower where the losses of a release are small, so that epsilon is less
  than 1e-3 or 0.05 % above the tight number, and one number takes 50 ms.
  """
  # The loss of an outcome six standard deviations from the mean.
  exponent = (1 + 12 * noise) / (2 * noise**2)
  loss = exponent if exponent > 50 else math.log1p(rate * math.expm1(exponent))
  return max(1e-4, loss / 2500)


@functools.lru_cache(maxsize=16)
def _losses_of_a_round(noise: float, clients: int, rate: float) -> Any:
  """The privacy loss distribution of a Poisson sample in so many slots."""
  distributions = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
  slots, interval = samplers.slots_of_poisson(clients, rate), _interval(noise, rate)
  if slots == clients:
    return distributions.from_gaussian_mechanism(
      noise, sampling_prob=rate, value_discretization_interval=interval
    )
  return distributions.from_truncated_subsampled_gaussian_mechanism(
    dataset_size=clients,
    sampling_probability=rate,
    truncated_batch_size=slots,
    noise_multiplier=noise,
    value_discretization_interval=interval,
  )


@functools.lru_cache(maxsize=16)
def _renyi_divergences(mechanism: Mechanism) -> tuple[np.ndarray, np.ndarray]:
  """The orders, and the Renyi divergence of a round of fixed size at each.

  In a cohort of fixed size a client cannot be missing, only be replaced by
  another one, which changes the sum by up to 2 S.
  """
  dp = _accountant()
  assert dp is not None
  accountant = importlib.import_module("dp_accounting.rdp").RdpAccountant(
    neighboring_relation=dp.NeighboringRelation.REPLACE_ONE
  )
  log = logging.getLogger("absl")  # it names every order that it leaves out
  level = log.level
  log.setLevel(logging.ERROR)
  try:
    accountant.compose(
      dp.SampledWithoutReplacementDpEvent(
        mechanism.clients,
        round(mechanism.rate * mechanism.clients),
        dp.GaussianDpEvent(mechanism.noise_multiplier / 2),
      )
    )
  finally:
    log.setLevel(level)
  # No public name has them; they are added up over rounds, and computing them
  # takes 0.1 s.
  return np.array(accountant._orders), np.array(accountant._rdp)


class _RunOptions(Protocol):
  """What the accountant reads of ``runs.options.RunOptions``."""

  @property
  def sampling(self) -> Part:
    """Who takes part in a round."""

  @property
  def stragglers(self) -> Part:
    """The participants that do a part of their work."""

  @property
  def deadline_s(self) -> float | None:
    """Seconds until a round ends; None: it waits for all."""

  @property
  def dropout(self) -> float:
    """The share of participants that are lost."""

  @property
  def class_weights(self) -> str | None:
    """The weights of classes in the losses; None: they are equal."""

  def rate(self, clients: int) -> float:
    """Computes the share of the clients in a round."""


def _private_part(options: Iterable[HParams]) -> Noised | None:
  """The part that makes releases private; None: they are not."""
  for some in options:
    part = getattr(some, "private", None)
    if isinstance(part, Noised):
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
  private = f"`private`={part.WORD}"
  if options.sampling.WORD not in ("uniform", "poisson", "cyclic"):
    raise OptionError(
      f"{private}: the accountant knows `sampling`=uniform, poisson and cyclic, not "
      f"{options.sampling}"
    )
  if isinstance(part, CorrelatedNoise) and options.sampling.WORD != "cyclic":
    raise OptionError(
      f"{private}: needs `sampling`=cyclic, not {options.sampling}: the least number "
      "of rounds between two participations of a client decides epsilon"
    )
  if data.newcomers_at:
    raise OptionError(
      f"{private}: not with `newcomers_at`, the share of the clients in a round "
      "would change"
    )
  if data.shift.period is not None:
    raise OptionError(
      f"{private}: not with `shift`, a client's data would move to another client"
    )
  if options.deadline_s is not None:
    raise OptionError(
      f"{private}: not with `deadline_s`, who is in time may follow from which "
      "messages clients have missed"
    )
  if not isinstance(options.stragglers, NoStragglers):
    raise OptionError(
      f"{private}: not with `stragglers`={options.stragglers}, who is one depends on "
      "who else takes part, so a client changes more than its own update"
    )
  if options.class_weights == BALANCED:
    raise OptionError(
      f"{private}: not with `class_weights`={BALANCED}, which are numbers of all "
      "clients' examples without noise (allowed: a number for each class)"
    )
  if isinstance(data.features, Standardize):
    raise OptionError(
      f"{private}: not with `features`={data.features}, means and deviations over all "
      "clients' examples without noise (scale with known numbers instead)"
    )
  if part.at_clients and options.dropout:
    raise OptionError(
      f"{private}:at=clients: not with `dropout`, who is lost takes a share of the "
      "noise away"
    )
  if part.at_clients and options.sampling.WORD == "poisson":
    raise OptionError(
      f"{private}:at=clients: with `sampling`=poisson a participant does not "
      "know into how many shares the noise is split (allowed: uniform, cyclic)"
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
  if options.sampling.WORD == "cyclic" and layers is None:
    every = samplers.turns(clients, number)
    correlation = (
      {"noise_bands": part.bands, "noise_buffers": part.buffers}
      if isinstance(part, CorrelatedNoise)
      else {}
    )
    return Mechanism(
      part.noise,
      part.delta,
      clients,
      "cyclic",
      1 / every,
      separation=every,
      **correlation,
    )
  if options.sampling.WORD == "poisson":
    sampling = "poisson"
  else:
    sampling, rate = "all" if number == clients else "fixed", number / clients
  return Mechanism(part.noise, part.delta, clients, sampling, rate, layers)
