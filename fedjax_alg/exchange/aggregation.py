"""Aggregators: what the server makes of what the participants send.

The mean is one of them. Another one takes its place (``links.Exchange``) for
the participants' updates and for their anchor gradients, with several models
for the updates of every group. What is robust against false updates stands in
``robust``.
"""

from collections.abc import Callable
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Params, Traffic
from fedjax_alg.conditions import is_zero, only
from fedjax_alg.errors import check_known
from fedjax_alg.exchange import correlated, robust
from fedjax_alg.exchange.privacy import Privacy, correlated_mean, private_mean
from fedjax_alg.hparams import hyper
from fedjax_alg.typing import PyTree

#: Name in ``RoundAux.server``, and column, of the norm S of a round.
CLIP_NORM = "clip_norm"


class Aggregator(NamedTuple):
  """Combines one vector of each participant into one vector.

  ``combine`` has to ignore every slot of weight 0, even if it holds NaN:
  padding slots have weight 0, and with K models so have the participants of
  other groups. If all weights are 0, the result is 0. It is mapped over K
  models (``jax.vmap``).
  """

  #: (vectors [S, ...], weights [S] float32, cohort, key) -> vector [...]
  combine: Callable[..., Params]
  #: whether it is the weighted mean, which needs nothing but a running sum
  is_mean: bool = False
  #: (vector) -> what it keeps from round to round, at first, of which
  #: ``combine`` gets the newest as a fifth argument and then returns (vector,
  #: what it keeps now); None: nothing
  keeps: Callable[[Params], Any] | None = None
  #: (what it keeps of updates before a round) -> scalars to log
  report: Callable[[Any], dict[str, Array]] = lambda last: {}
  # Costs besides those of the mean:
  extra_down: Traffic = 0  #: what more each participant receives in a round
  extra_up: Traffic = 0  #: what more each participant sends in a round
  #: (slots, P) -> the server's flops for one vector of P floats
  flops: Callable[[int, int], float] = lambda slots, size: 0.0
  name: str = "your own"  #: for messages


def weighted_mean() -> Aggregator:
  """The mean over the participants, as in FedAvg."""
  return Aggregator(
    lambda vectors, weights, cohort, key: trees.slot_mean(weights, vectors),
    is_mean=True,
    name="mean",
  )


def _of_sent(
  name: str,
  combine: Callable[..., Params],
  *args: PyTree,
  flops: Callable[[int, int], float],
) -> Aggregator:
  """An aggregator that reads vectors and weights alone (``robust``)."""
  return Aggregator(
    lambda vectors, weights, cohort, key: combine(vectors, weights, *args),
    flops=flops,
    name=name,
  )


def _sorting(slots: int, size: int) -> float:
  """Counts the comparisons of sorting, about n log2 n."""
  return float(size * slots * max(slots - 1, 1).bit_length())


def _comparing(slots: int, size: int) -> float:
  """Counts a difference, a square and an addition for each pair and coordinate."""
  return 3.0 * size * slots * slots


def coordinate_median() -> Aggregator:
  """The median of every coordinate; participants count alike.

  A NaN counts as larger than all numbers, so NaN from fewer than half of the
  participants does not reach the result (``robust.median_by_coordinate``).
  """
  return _of_sent("median", robust.median_by_coordinate, flops=_sorting)


#: Aggregators with which all participants count alike.
UNWEIGHTED = ("median", "trimmed_mean", "krum", "multi_krum")

#: Iterations of the aggregators that take more than one step.
ITERATIONS = {"geometric_median": 10, "centred_clipping": 1}

#: The aggregators that an option can name, made from an instance of
#: ``AggregatorOptions``.
AGGREGATORS: dict[str, Callable[[Any], Aggregator]] = {
  "mean": lambda options: weighted_mean(),
  "median": lambda options: coordinate_median(),
  "trimmed_mean": lambda options: _of_sent(
    "trimmed_mean", robust.trimmed_mean, options.tolerated, flops=_sorting
  ),
  "krum": lambda options: _of_sent(
    "krum", robust.krum, options.tolerated, flops=_comparing
  ),
  "multi_krum": lambda options: _of_sent(
    "multi_krum", robust.multi_krum, options.tolerated, flops=_comparing
  ),
  "geometric_median": lambda options: _of_sent(
    "geometric_median",
    robust.geometric_median,
    options.iterations,
    flops=lambda slots, size: (
      _sorting(slots, size) + (5.0 * options.iterations * slots * size)
    ),
  ),
  "centred_clipping": lambda options: Aggregator(
    lambda vectors, weights, cohort, key, last: (
      (
        robust.centred_clipping(
          vectors, weights, last, options.aggregator_radius, options.iterations
        ),
      )
      * 2
    ),
    keeps=lambda vector: jax.tree.map(jnp.zeros_like, vector),
    name="centred_clipping",
    flops=lambda slots, size: 6.0 * options.iterations * slots * size,
  ),
  "norm_bound": lambda options: _of_sent(
    "norm_bound",
    robust.norm_bound,
    options.aggregator_radius,
    flops=lambda slots, size: 5.0 * slots * size,
  ),
}


@dataclasses.dataclass(frozen=True)
class AggregatorOptions:
  """Options of the aggregator, which takes the place of the mean."""

  GROUP: ClassVar[str] = "robustness"

  aggregator: str = hyper(
    "mean",
    "how the server combines the participants' updates and gradients at the server's "
    "model: mean =  their weighted mean, median = the median of every coordinate, "
    "trimmed_mean = its mean without the largest and smallest values, krum = the one "
    "vector that is nearest to most others, multi_krum = the mean of such vectors, "
    "geometric_median = the point of least sum of distances, centred_clipping = the "
    "mean of vectors that are clipped around the last one, norm_bound = the mean of "
    "shortened vectors. With median, trimmed_mean and both Krums participants count "
    "alike",
    choices=tuple(AGGREGATORS),
    source="Yin et al., ICML 2018 (median, trimmed_mean); Blanchard et al., "
    "NeurIPS 2017 (krum, multi_krum); Pillutla et al., IEEE TSP 2022 "
    "(geometric_median); Karimireddy et al., ICML 2021 (centred_clipping); "
    "Sun et al., arXiv:1911.07963 (norm_bound)",
  )
  tolerated: float = hyper(
    0.2,
    "share of a round's participants that the aggregator takes to be "
    "hostile: trimmed_mean leaves so many of the largest and of the smallest "
    "values out, krum and multi_krum as many of the vectors (`aggregator`="
    "trimmed_mean|krum|multi_krum)",
    minimum=0.0,
    below=0.5,
    source="beta, Yin et al. Definition 2; f / n, Blanchard et al.",
    when=only("aggregator", "trimmed_mean", "krum", "multi_krum"),
  )
  aggregator_radius: float = hyper(
    0.0,
    "length to which vectors (norm_bound), or their distances from the center "
    "(centred_clipping), are shortened; 0 stands for the median of these lengths in "
    "the round (`aggregator`=centred_clipping|norm_bound)",
    minimum=0.0,
    neutral=0.0,
    source="tau, Karimireddy et al. (7); M, Sun et al. section 3",
    when=only("aggregator", "centred_clipping", "norm_bound"),
  )
  aggregator_iterations: int = hyper(
    0,
    "number of steps to the result; 0 stands for the default, which is "
    "10 with geometric_median and 1 with centred_clipping (`aggregator`="
    "geometric_median|centred_clipping)",
    minimum=0,
    maximum=1000,
    source="R, Pillutla et al. Algorithm 2; L, Karimireddy et al.",
    when=only("aggregator", *ITERATIONS),
  )

  @property
  def iterations(self) -> int:
    """The number of steps that the aggregator takes."""
    return self.aggregator_iterations or ITERATIONS[self.aggregator]


def private(options: Privacy, releases: int) -> Aggregator:
  """The noised mean of shortened vectors (``privacy``).

  Args:
    options: how it is made private.
    releases: the number of vectors that a round releases.
  """
  flops: Callable[[int, int], float] = lambda slots, size: 5.0 * slots * size
  stream = None
  if options.private == "ftrl" and not is_zero(options.noise_multiplier):
    stream = correlated.inverse(options.noise_bands, options.noise_buffers)
  if stream is not None:
    return Aggregator(
      lambda vectors, weights, cohort, key, last: correlated_mean(
        options, vectors, cohort, key, stream, last
      ),
      keeps=stream.init_multiply,
      flops=flops,
      name="private",
    )
  if options.private != "adaptive":
    return Aggregator(
      lambda vectors, weights, cohort, key: private_mean(
        options, vectors, cohort, key, options.clip_norm, releases
      )[0],
      flops=flops,
      name="private",
    )
  return Aggregator(
    lambda vectors, weights, cohort, key, norm: private_mean(
      options, vectors, cohort, key, norm, releases
    ),
    keeps=lambda vector: jnp.asarray(options.clip_norm, jnp.float32),
    report=lambda norm: {CLIP_NORM: norm},
    flops=flops,
    name="private",
  )


def make_aggregator(name: str, options: AggregatorOptions | None = None) -> Aggregator:
  """Makes an aggregator by name.

  Args:
    name: one of ``AGGREGATORS``.
    options: its options; None: the defaults.

  Returns:
    The aggregator.

  Raises:
    OptionError: an unknown name.
  """
  check_known("aggregator", name, AGGREGATORS)
  return AGGREGATORS[name](options or AggregatorOptions(aggregator=name))
