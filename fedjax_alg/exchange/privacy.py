"""Updates of which the server learns little about any one client.

Every participant's update is shortened to a norm S, their sum gets Gaussian
noise of standard deviation z_u S in every coordinate, and is divided by the
expected number of participants (McMahan et al., "Learning Differentially
Private Recurrent Language Models", ICLR 2018). Participants count alike: with
weights by examples a client's share of the sum would have no bound that does
not depend on the others. The unit of privacy is the client with all its data.

What z a round has, and how many rounds there are, decides epsilon
(``records.accounting``). A round may release more than the updates: anchor
gradients, shortened and noised in the same way, and with adaptive clipping the
number of updates that were short enough. Gaussians on the same participants
compose as one of multiplier (sum_i z_i^-2)^(-1/2), so with m vectors

  z = (m (z_u^-2 + (2 sigma_b)^-2))^(-1/2)

for the standard deviation sigma_b of the count's noise, whose terms are +-1/2
(Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with
Adaptive Clipping", NeurIPS 2021, Theorem 1, there with m = 1). z is the option,
and z_u follows (``deviations``). Noise may be correlated over rounds (``correlated``).
"""

from collections.abc import Callable
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Cohort, Key, Params
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import correlated
from fedjax_alg.exchange.aggregation import Aggregator
from fedjax_alg.exchange.messages import Carrier
from fedjax_alg.hparams import (
  HParams,
  field_like,
  hyper,
  is_zero,
  refuse_without_effect,
)
from fedjax_alg.part import Part, forms
from fedjax_alg.typing import Numeric, PyTree

#: Name in ``RoundAux.server``, and column, of the norm S of a round.
CLIP_NORM = "clip_norm"


#: Fields that say how noise is made.
OF_NOISE = {"at", "count_noise", "bands", "buffers"}

#: Norms are rounded: a vector is made a little shorter than S.
_SHORTER = 1.0 - 2.0**-18


class NoPrivacy(Part):
  """What clients send is neither clipped nor noised."""

  WORD, EXAMPLE = "none", "none"


class Noised(Part):
  """A sum of clipped vectors that gets Gaussian noise before it is released."""

  clip: float = hyper(
    1.0,
    "S, the norm to which an update is clipped",
    above=0.0,
    source="McMahan et al. 2018, Algorithm 1",
  )
  noise: float = hyper(
    1.0,
    "z, standard deviation of the noise of a round in units of what one client can "
    "change; 0: none, and no privacy",
    minimum=0.0,
    neutral=0.0,
    source="McMahan et al. 2018, Algorithm 1",
  )
  _: dataclasses.KW_ONLY
  delta: float = hyper(
    1e-5,
    "delta of the (epsilon, delta) that is reported; less than one in the number of "
    "clients",
    above=0.0,
    below=1.0,
    traced=False,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if is_zero(self.noise):
      names = OF_NOISE & type(self).__dataclass_fields__.keys()
      refuse_without_effect(
        self, sorted(names), "there is no noise with noise=0", self.WORD
      )

  @property
  def at_clients(self) -> bool:
    """Whether every participant draws a share of the noise."""
    return getattr(self, "at", "server") == "clients"


class NoisedMean(Noised):
  """The noised mean of clipped updates, in the place of the aggregator."""

  def build(self, releases: int) -> Aggregator:
    """Makes the aggregator.

    Args:
      releases: m, the number of vectors that a round releases.
    """
    return Aggregator(
      lambda vectors, weights, cohort, key: private_mean(
        self, vectors, cohort, key, self.clip, releases
      )[0],
      flops=lambda slots, size: 5.0 * slots * size,
      name="private",
    )


class _IndependentNoise(NoisedMean, kw_only=True):
  """A noised mean whose noise is another one in every round."""

  at: str = hyper(
    "server",
    "where the noise is drawn: server = at the server, clients = a share at each "
    "participant, with the same variance of the sum (with `sampling`=uniform or "
    "cyclic)",
    choices=("server", "clients"),
  )


class FixedClipping(_IndependentNoise):
  """Updates are clipped to a norm, and their sum gets Gaussian noise."""

  WORD, EXAMPLE = "fixed", "fixed:1,2"


class AdaptiveClipping(_IndependentNoise):
  """Updates are clipped to a norm that follows a quantile of their lengths."""

  WORD, EXAMPLE = "adaptive", "adaptive:1,2,quantile=0.8"

  clip: float = field_like(Noised, "clip", help="S of the first round")
  _: dataclasses.KW_ONLY
  quantile: float = hyper(
    0.5,
    "gamma, share of the updates that are to be shorter than S",
    minimum=0.0,
    maximum=1.0,
    source="Andrew et al. Algorithm 1",
  )
  lr: float = hyper(
    0.2,
    "eta_C, how fast S follows: S <- S exp(-eta_C (share - gamma))",
    minimum=0.0,
    source="Andrew et al. Algorithm 1",
  )
  count_noise: float = hyper(
    0.0,
    "sigma_b, standard deviation of the noise of the number of updates that are "
    "shorter than S; 0 stands for a 20th of the expected number of participants. At "
    "least `noise`, and more if a round also releases gradients at the server's model",
    minimum=0.0,
    neutral=0.0,
    source="Andrew et al. Algorithm 1 and section 3.1",
  )

  def build(self, releases: int) -> Aggregator:
    """Makes the aggregator, which keeps S for the next round."""
    return Aggregator(
      lambda vectors, weights, cohort, key, norm: private_mean(
        self, vectors, cohort, key, norm, releases
      ),
      keeps=lambda vector: jnp.asarray(self.clip, jnp.float32),
      report=lambda norm: {CLIP_NORM: norm},
      flops=lambda slots, size: 5.0 * slots * size,
      name="private",
    )


class CorrelatedNoise(NoisedMean, kw_only=True):
  """Updates are clipped to a norm; noise is correlated over rounds (DP-FTRL)."""

  WORD, EXAMPLE = "ftrl", "ftrl:1,2,bands=20"

  bands: int = hyper(
    10,
    "b, rounds over which noise is correlated; the server keeps the noise of the "
    "last b - 1 rounds. 1: independent noise, as fixed has",
    minimum=1,
    maximum=1000,
    source="Choquette-Choo et al., NeurIPS 2023",
  )
  buffers: int = hyper(
    0,
    "number of vectors that the server keeps to correlate noise over all rounds, "
    "in the place of `bands`; 0: bands",
    minimum=0,
    maximum=10,
    source="Dvijotham et al., FOCS 2024 (buffered linear Toeplitz)",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    default = type(self).__dataclass_fields__["bands"].default
    if self.buffers and self.bands != default:
      raise OptionError(
        f"{self.WORD}: bands={self.bands}: buffers={self.buffers} takes their place "
        "(give one of them)"
      )

  def build(self, releases: int) -> Aggregator:
    """Makes the aggregator, which keeps earlier noise for the next rounds."""
    independent = super().build(releases)
    if is_zero(self.noise):
      return independent
    stream = correlated.inverse(self.bands, self.buffers)
    if stream is None:
      return independent
    return independent._replace(
      combine=lambda vectors, weights, cohort, key, last: correlated_mean(
        self, vectors, cohort, key, stream, last
      ),
      keeps=stream.init_multiply,
    )


#: How the updates of a run are made private.
Choice = NoPrivacy | FixedClipping | AdaptiveClipping | CorrelatedNoise


class Privacy(HParams):
  """Options of private updates."""

  GROUP: ClassVar[str] = "privacy"

  private: Choice = hyper(
    NoPrivacy(),
    "user-level differential privacy of what the server makes of the clients' "
    "updates, one of "
    + ", ".join(forms(Choice))
    + " (`help`=private has their fields); fixed:1,2 = clipped to the norm 1, and "
    "their sum gets noise of standard deviation 2. Participants count alike. Anchor "
    "gradients need adaptive. With `sampling`=uniform, poisson or cyclic (ftrl: "
    "cyclic)",
    source="McMahan et al., ICLR 2018 (fixed); Andrew et al., NeurIPS 2021 "
    "(adaptive); Kairouz et al., ICML 2021 (ftrl)",
  )


def deviations(
  options: Noised, expected: Array | float, vectors: int
) -> tuple[Numeric, Numeric]:
  """The noise that z asks for.

  Args:
    options: how updates are made private; z is more than 0.
    expected: the expected number of participants.
    vectors: m, updates and anchor gradients.

  Returns:
    z_u, the multiplier of each vector; and sigma_b, which is at least
    sqrt(m) z, because half of that would use all of z up.
  """
  z, m = options.noise, vectors
  if not isinstance(options, AdaptiveClipping):
    return z * m**0.5, 0.0
  requested = expected / 20.0 if is_zero(options.count_noise) else options.count_noise
  count = jnp.maximum(requested, z * m**0.5)
  return (1.0 / (z * z * m) - 0.25 / (count * count)) ** -0.5, count


def _expected_participants(cohort: Cohort) -> Array:
  """The expected number of participants; of a cohort made by hand, theirs."""
  if cohort.draw is None or cohort.draw.expected is None:
    return jnp.maximum(cohort.present.sum().astype(jnp.float32), 1.0)
  return jnp.asarray(cohort.draw.expected, jnp.float32)


def clip(vectors: Params, norm: Array | float) -> tuple[Params, Array]:
  """Clips each vector to ``norm``; returns (clipped [S, ...], was_short [S] bool).

  A vector that is short enough keeps its bits; one with an entry that is not
  finite becomes 0.
  """
  lengths = trees.slot_norm(vectors)
  was_short = lengths <= norm
  factors = jnp.where(
    was_short, 1.0, _SHORTER * norm / jnp.where(was_short, 1.0, lengths)
  )
  clipped = trees.scale_slots(factors, vectors)
  return trees.where_slots(
    trees.finite_slots(vectors), clipped, jax.tree.map(jnp.zeros_like, clipped)
  ), was_short


def clip_on_clients(
  client: ClientUpdate, options: Noised, carrier: Carrier | None
) -> ClientUpdate:
  """The client's half whose clients clip what leaves their machine.

  In a simulation the server does it, with the same numbers but for rounding.
  On machines it does so again: noise is enough for nothing longer. With
  ``AdaptiveClipping`` only the server knows the norm, and it alone clips.
  """
  if isinstance(options, AdaptiveClipping) or carrier is None:
    return client

  def train(received, shard, client_row, key):
    trained = client.train_checked(received, shard, client_row, key)
    update = trees.subtract(trained.params, received.start)
    clipped, _ = clip(trees.repeat(update, 1), options.clip)
    return trained._replace(params=trees.add(received.start, trees.index(clipped, 0)))

  return client._replace(train=train)


def private_mean(
  options: Noised,
  vectors: Params,
  cohort: Cohort,
  key: Key,
  norm: Array | float,
  releases: int,
  correlate: Callable[[Params], Params] = lambda noise: noise,
) -> tuple[Params, Array]:
  """The noised mean of clipped vectors.

  Args:
    options: how it is made private.
    vectors: leaves [S, ...], what the participants send.
    cohort: the participants.
    key: consumed.
    norm: S, the norm to which they are clipped.
    releases: m, the vectors that the round releases.
    correlate: independent noise of the vector -> what the server adds.

  Returns:
    The mean, leaves [...], and S of the next round.
  """
  present = cohort.present.astype(jnp.float32)
  expected, count = _expected_participants(cohort), present.sum()
  clipped, was_short = clip(vectors, norm)
  # Values that are summed with noise: the vector, and the count's +-1/2.
  summands: tuple[Any, ...] = (clipped,)
  adaptive = isinstance(options, AdaptiveClipping)
  noisy = not is_zero(options.noise)
  if adaptive:
    summands += (was_short.astype(jnp.float32) - 0.5,)
  noise_stds: tuple[Any, ...] = ()
  if noisy:
    multiplier, count_std = deviations(options, expected, releases)
    noise_stds = (norm * multiplier, count_std)[: len(summands)]
  if noisy and options.at_clients:
    share = jnp.maximum(count, 1.0) ** -0.5
    # A client's share does not depend on its slot.
    samples = jax.vmap(
      lambda i, summand: trees.normal(jax.random.fold_in(key, i), summand)
    )(cohort.ids, summands)
    summands = tuple(
      trees.add_scaled(summand, deviation * share, noise)
      for summand, deviation, noise in zip(summands, noise_stds, samples)
    )
  # The mean of those who are there first: with as many as expected, and
  # without noise, it is the mean with equal weights bit for bit.
  means = trees.scale(count / expected, trees.slot_mean(present, summands))
  if noisy and not options.at_clients:
    vector_noise, *count_noise = trees.normal(key, means)
    means = tuple(
      trees.add_scaled(mean, deviation / expected, noise)
      for mean, deviation, noise in zip(
        means, noise_stds, (correlate(vector_noise), *count_noise)
      )
    )
  if not isinstance(options, AdaptiveClipping):
    return means[0], jnp.asarray(norm, jnp.float32)
  share = means[1] + 0.5
  return means[0], norm * jnp.exp(-options.lr * (share - options.quantile))


def correlated_mean(
  options: Noised,
  vectors: Params,
  cohort: Cohort,
  key: Key,
  stream: Any,
  last: PyTree,
) -> tuple[Params, PyTree]:
  """The mean of clipped vectors with noise that is correlated over rounds.

  Args:
    options: how it is made private.
    vectors: leaves [S, ...], what the participants send.
    cohort: the participants.
    key: consumed.
    stream: C^-1, see ``correlated.inverse``.
    last: what is kept of earlier noises.

  Returns:
    The mean, leaves [...], and what is kept now.
  """
  kept = last

  def correlate(noise):
    nonlocal kept
    noise, kept = stream.multiply_next(noise, last)
    return noise

  mean, _ = private_mean(options, vectors, cohort, key, options.clip, 1, correlate)
  return mean, kept
