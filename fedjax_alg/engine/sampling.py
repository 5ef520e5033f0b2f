"""The participants of a round: the alternatives of `sampling`, as parts.

A part has the numbers that its sampler reads (``engine.samplers``), and makes it once
the number of clients is known.
"""

from collections.abc import Mapping
import dataclasses
from typing import ClassVar

import numpy as np

from fedjax_alg import own
from fedjax_alg.engine import samplers
from fedjax_alg.engine.availability import read_availability
from fedjax_alg.errors import OptionError, a_type
from fedjax_alg.hparams import MAX_SEED, OWN_CODE, hyper
from fedjax_alg.part import Part


class Sampling(Part):
  """A rule for the participants of a round."""

  #: whether the number of participants is drawn, too
  BY_CHANCE: ClassVar[bool] = False

  def sampler(self, num_clients: int) -> samplers.Sampler:
    """Makes the sampler.

    Args:
      num_clients: C.

    Raises:
      OptionError: the caller's own cannot be loaded or is no function.
    """
    raise NotImplementedError

  def availability(self, num_clients: int, rate: float) -> np.ndarray | None:
    """Draws or reads the clients' probabilities to be available.

    Args:
      num_clients: C.
      rate: the share of the clients that take part in a round.

    Returns:
      [C] float32; None: the sampler reads none.

    Raises:
      OptionError: they do not fit the clients.
    """
    return None

  def check(self) -> None:
    """Reads the file that it names.

    Raises:
      OptionError: it cannot be read.
    """

  def source(self) -> own.Source | None:
    """The file that it names; None: there is none."""
    return None


class _Drawn(Sampling):
  """A sampler that can draw very many clients in another way."""

  #: draw -> the sampler
  _WAYS: ClassVar[Mapping[str, samplers.Sampler]]

  _: dataclasses.KW_ONLY
  draw: str = hyper(
    "auto",
    "permutation = with a random number for every client, bijection = without, in a "
    "time that hardly grows with the number of clients. Both have the same "
    "distribution, and draw other clients from the same seed. auto = permutation "
    f"up to {samplers.FEW_CLIENTS:,} clients, then bijection. Where clients "
    "join later uniform cohorts are drawn by the permutation",
    choices=("auto", *samplers.DRAWS),
  )

  def sampler(self, num_clients: int) -> samplers.Sampler:
    """Makes the sampler of this draw (``Sampling.sampler``)."""
    few = num_clients <= samplers.FEW_CLIENTS
    auto = "permutation" if few else "bijection"
    return self._WAYS[auto if self.draw == "auto" else self.draw]


class UniformSampling(_Drawn):
  """All clients alike."""

  WORD, EXAMPLE = "uniform", "uniform:draw=bijection"
  _WAYS = samplers.DRAWS


class SizeSampling(_Drawn):
  """One after the other by their numbers of examples, without replacement.

  This is FedProx's sampling with `client_weights`=uniform, where the algorithm has it.
  """

  WORD, EXAMPLE = "size", "size:draw=bijection"
  _WAYS = {"permutation": samplers.by_size, "bijection": samplers.by_examples}


class _OfAvailable(_Drawn):
  """Uniformly among the clients that are available in a round."""

  _WAYS = {"permutation": samplers.by_availability, "bijection": samplers.by_trial}
  #: the seed of the clients' times of day
  seed = 0

  _: dataclasses.KW_ONLY
  day: int = hyper(
    0,
    "rounds of a day, over which every client's probability to be available goes up "
    "and down between 0 and twice its mean (at most 1), as 1 + sin, from a different "
    "time of day for each; 0: it stays the same",
    minimum=0,
  )

  def sampler(self, num_clients: int) -> samplers.Sampler:
    """Makes the sampler of this draw and day (``Sampling.sampler``)."""
    drawn = super().sampler(num_clients)
    if not self.day:
      return drawn
    return samplers.with_daily_cycle(drawn, self.day, self.seed)


class AvailabilitySampling(_OfAvailable):
  """Uniformly among the clients that are available in a round."""

  WORD, EXAMPLE = "availability", "availability:0.2,0.8,seed=3,day=24"

  least: float = hyper(
    0.1,
    "smallest probability with which a client is available in a round; it is drawn "
    "uniformly for each client",
    minimum=0.0,
    maximum=1.0,
  )
  most: float = hyper(0.9, "largest probability of a client", minimum=0.0, maximum=1.0)
  _: dataclasses.KW_ONLY
  seed: int = hyper(
    0,
    "seed of the probabilities and times of day, which all seeds of a run share",
    minimum=0,
    maximum=MAX_SEED,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.least > self.most:
      raise OptionError(
        f"availability: least={self.least:g}: must be at most `most`={self.most:g}"
      )

  def availability(self, num_clients: int, rate: float) -> np.ndarray:
    """Draws the probabilities (``Sampling.availability``)."""
    uniform = np.random.default_rng(self.seed).uniform(size=num_clients)
    return (self.least + (self.most - self.least) * uniform).astype(np.float32)


class AvailabilityFile(_OfAvailable):
  """As availability; a file has the clients' probabilities, one number a line."""

  WORD, EXAMPLE = "availability_file", "availability_file:phones.txt,day=24"

  path: str = hyper(
    dataclasses.MISSING, "the file, a text of one number a line or .npy"
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if "," in self.path:
      raise OptionError(
        f"availability_file: path={self.path}: must be without a comma, which ends it"
      )

  def availability(self, num_clients: int, rate: float) -> np.ndarray:
    """Reads the probabilities (``Sampling.availability``)."""
    numbers = read_availability(self.path)
    if len(numbers) != num_clients:
      raise OptionError(
        f"`sampling`={self}: has {len(numbers)} numbers, there are {num_clients} "
        "clients"
      )
    return numbers.astype(np.float32)

  def check(self) -> None:
    """Reads the file (``Sampling.check``)."""
    read_availability(self.path)

  def source(self) -> own.Source:
    """The file."""
    return own.source_of(self.path)


class PoissonSampling(Sampling):
  """Every client with the probability `participation`, so that their number varies."""

  WORD, EXAMPLE = "poisson", "poisson"
  BY_CHANCE = True

  def sampler(self, num_clients: int) -> samplers.Sampler:
    """Returns ``samplers.poisson``."""
    return samplers.poisson

  def availability(self, num_clients: int, rate: float) -> np.ndarray:
    """The rate of each client (``Sampling.availability``)."""
    return np.full(num_clients, rate, np.float32)


class CyclicSampling(Sampling):
  """In turns, each client again when all others have been there."""

  WORD, EXAMPLE = "cyclic", "cyclic"

  def sampler(self, num_clients: int) -> samplers.Sampler:
    """Returns ``samplers.cyclic``."""
    return samplers.cyclic


class OwnSampling(Sampling):
  """Your function (data, cohort_size, key, round) -> ids [cohort_size]."""

  WORD, EXAMPLE = OWN_CODE, "mine.py:draw"

  function: str = hyper(dataclasses.MISSING, f"the name of the function, {own.FORMS}")

  def __post_init__(self) -> None:
    super().__post_init__()
    own.refuse_nameless(self.function, "sampling")

  def sampler(self, num_clients: int) -> samplers.Sampler:
    """Loads the function (``Sampling.sampler``)."""
    function, _ = own.load(self.function, "sampling")
    if not callable(function):
      raise OptionError(
        f"`sampling`={self}: is {a_type(function)}; must be "
        "a function (data, cohort_size, key, round) -> ids [cohort_size]"
      )
    return samplers.with_checks(function, f"`sampling`={self}")

  def check(self) -> None:
    """Loads the function (``Sampling.check``)."""
    self.sampler(1)

  def source(self) -> own.Source:
    """The file that defines the function."""
    return own.load(self.function, "sampling")[1]


#: The rules for the participants of a round.
SAMPLING = (
  UniformSampling
  | SizeSampling
  | AvailabilitySampling
  | AvailabilityFile
  | PoissonSampling
  | CyclicSampling
  | OwnSampling
)
