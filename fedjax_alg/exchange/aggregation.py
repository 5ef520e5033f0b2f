"""Aggregators: what the server makes of what the participants send.

The mean is one of them. Another one takes its place (``links.Exchange``) for
the participants' updates and for their anchor gradients, with several models
for the updates of every group. What is robust against false updates stands in
``robust``.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Params, Traffic
from fedjax_alg.exchange import robust
from fedjax_alg.hparams import HParams, field_like, hyper
from fedjax_alg.part import Part, forms


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
  #: whether participants count by their weights, and not alike
  weighted: bool = True
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


def _sorting(slots: int, size: int) -> float:
  """Counts the comparisons of sorting, about n log2 n."""
  return float(size * slots * max(slots - 1, 1).bit_length())


class WeightedMean(Part):
  """The weighted mean of the vectors, as in FedAvg."""

  WORD, EXAMPLE = "mean", "mean"

  def build(self) -> Aggregator:
    """Makes the aggregator."""
    return Aggregator(
      lambda vectors, weights, cohort, key: trees.slot_mean(weights, vectors),
      is_mean=True,
      name=self.WORD,
    )


class _Rule(Part):
  """A rule that reads vectors and weights alone (``robust``)."""

  #: whether participants count by their weights, and not alike
  WEIGHTED: ClassVar[bool] = True

  def combine(self, vectors: Params, weights: Array) -> Params:
    """Combines vectors [S, ...] with weights [S] into one [...]."""
    raise NotImplementedError

  def flops(self, slots: int, size: int) -> float:
    """Counts the operations of the server for one vector of ``size`` floats."""
    raise NotImplementedError

  def build(self) -> Aggregator:
    """Makes the aggregator."""
    return Aggregator(
      lambda vectors, weights, cohort, key: self.combine(vectors, weights),
      flops=self.flops,
      name=self.WORD,
      weighted=self.WEIGHTED,
    )


class _ByRank(_Rule):
  """A rule that sorts every coordinate; participants count alike."""

  WEIGHTED = False

  def flops(self, slots: int, size: int) -> float:
    return _sorting(slots, size)


class Median(_ByRank):
  """The median of every coordinate; participants count alike.

  A NaN counts as larger than all numbers, so NaN from fewer than half of the
  participants does not reach the result (``robust.median_by_coordinate``).
  """

  WORD, EXAMPLE = "median", "median"

  def combine(self, vectors: Params, weights: Array) -> Params:
    return robust.median_by_coordinate(vectors, weights)


class TrimmedMean(_ByRank):
  """The mean of every coordinate without its largest and smallest values."""

  WORD, EXAMPLE = "trimmed_mean", "trimmed_mean:0.3"

  tolerated: float = hyper(
    0.2,
    "share of a round's participants that may be hostile: so many of the largest and "
    "of the smallest values are left out",
    minimum=0.0,
    below=0.5,
    source="beta, Yin et al. Definition 2",
  )

  def combine(self, vectors: Params, weights: Array) -> Params:
    return robust.trimmed_mean(vectors, weights, self.tolerated)


class _ByDistance(_Rule):
  """A rule that compares all pairs of vectors; participants count alike."""

  WEIGHTED = False

  tolerated: float = field_like(
    TrimmedMean,
    "tolerated",
    help="share of a round's participants that may be hostile",
    source="f / n, Blanchard et al.",
  )

  def flops(self, slots: int, size: int) -> float:
    # A difference, a square and an addition for each pair and coordinate.
    return 3.0 * size * slots * slots


class Krum(_ByDistance):
  """The one vector that is nearest to most others."""

  WORD, EXAMPLE = "krum", "krum:0.3"

  def combine(self, vectors: Params, weights: Array) -> Params:
    return robust.krum(vectors, weights, self.tolerated)


class MultiKrum(_ByDistance):
  """The mean of the vectors that are nearest to most others."""

  WORD, EXAMPLE = "multi_krum", "multi_krum:0.3"

  def combine(self, vectors: Params, weights: Array) -> Params:
    return robust.multi_krum(vectors, weights, self.tolerated)


class GeometricMedian(_Rule):
  """The point of least sum of distances."""

  WORD, EXAMPLE = "geometric_median", "geometric_median:20"

  iterations: int = hyper(
    10,
    "number of steps to it",
    minimum=1,
    maximum=1000,
    source="R, Pillutla et al. Algorithm 2",
  )

  def combine(self, vectors: Params, weights: Array) -> Params:
    return robust.geometric_median(vectors, weights, self.iterations)

  def flops(self, slots: int, size: int) -> float:
    return _sorting(slots, size) + 5.0 * self.iterations * slots * size


class NormBound(_Rule):
  """The mean of vectors that are shortened to a length."""

  WORD, EXAMPLE = "norm_bound", "norm_bound:5"

  radius: float = hyper(
    0.0,
    "the length; 0 stands for the median of the lengths in a round",
    minimum=0.0,
    neutral=0.0,
    source="M, Sun et al. section 3",
  )

  def combine(self, vectors: Params, weights: Array) -> Params:
    return robust.norm_bound(vectors, weights, self.radius)

  def flops(self, slots: int, size: int) -> float:
    return 5.0 * slots * size


class CenteredClipping(Part):
  """The mean of vectors that are clipped around the last one."""

  WORD, EXAMPLE = "centred_clipping", "centred_clipping:5,iterations=3"

  radius: float = field_like(
    NormBound,
    "radius",
    help="largest distance from the last one; 0 stands for the median of the "
    "distances in a round",
    source="tau, Karimireddy et al. (7)",
  )
  iterations: int = field_like(
    GeometricMedian,
    "iterations",
    default=1,
    help="number of steps",
    source="L, Karimireddy et al.",
  )

  def build(self) -> Aggregator:
    """Makes the aggregator, which keeps its result for the next round."""

    def combine(vectors, weights, cohort, key, last):
      center = robust.centred_clipping(
        vectors, weights, last, self.radius, self.iterations
      )
      return center, center

    return Aggregator(
      combine,
      keeps=lambda vector: jax.tree.map(jnp.zeros_like, vector),
      name=self.WORD,
      flops=lambda slots, size: 6.0 * self.iterations * slots * size,
    )


#: The aggregators of a run.
Choice = (
  WeightedMean
  | Median
  | TrimmedMean
  | Krum
  | MultiKrum
  | GeometricMedian
  | CenteredClipping
  | NormBound
)


class AggregatorOptions(HParams):
  """Options of the aggregator, which takes the place of the mean."""

  GROUP: ClassVar[str] = "robustness"

  aggregator: Choice = hyper(
    WeightedMean(),
    "how the server combines the participants' updates and gradients at the server's "
    "model, one of "
    + ", ".join(forms(Choice))
    + " (`help`=aggregator has their fields). With median, trimmed_mean and both "
    "Krums participants count alike",
    source="Yin et al., ICML 2018 (median, trimmed_mean); Blanchard et al., "
    "NeurIPS 2017 (krum, multi_krum); Pillutla et al., IEEE TSP 2022 "
    "(geometric_median); Karimireddy et al., ICML 2021 (centred_clipping); "
    "Sun et al., arXiv:1911.07963 (norm_bound)",
  )
