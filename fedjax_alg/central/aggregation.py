"""Aggregators: what the server makes of what the participants send.

The mean is one of them. Another one takes its place in
``rounds.two_halves.compose``, for the participants' updates and for their
anchor gradients.
"""

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Cohort, Key, Params, Traffic
from fedjax_alg.client.compression import Compression
from fedjax_alg.errors import did_you_mean, OptionError
from fedjax_alg.hparams import hyper


class Aggregator(NamedTuple):
  """Combines one vector of each participant into one vector.

  ``combine`` has to ignore every slot of weight 0, even if it holds NaN:
  padding slots have weight 0, and with K models so have the participants of
  other groups. If all weights are 0, the result is 0. It is mapped over K
  models (``jax.vmap``).
  """

  #: (vectors [S, ...], weights [S] float32, cohort, key) -> vector [...]
  combine: Callable[[Params, Array, Cohort, Key], Params]
  #: whether it is the weighted mean, which needs nothing but a running sum
  is_mean: bool = False
  # Costs besides those of the mean:
  extra_down: Traffic = 0  #: what more each participant receives in a round
  extra_up: Traffic = 0  #: what more each participant sends in a round
  #: (slots, P) -> the server's flops for one vector of P floats
  flops: Callable[[int, int], float] = lambda slots, size: 0.0


def weighted_mean() -> Aggregator:
  """The mean over the participants, as in FedAvg."""
  return Aggregator(
      lambda vectors, weights, cohort, key: trees.slot_mean(weights, vectors),
      is_mean=True)


def coordinate_median() -> Aggregator:
  """The median of every coordinate; participants count alike.

  With an even number of participants it is the mean of the two middle values.
  A NaN counts as larger than all numbers, so NaN from fewer than half of the
  participants does not reach the result.

  Source: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal
  Statistical Rates", ICML 2018, Definition 1.
  """

  def combine(vectors, weights, cohort, key):
    del cohort, key
    chosen = weights > 0
    count = chosen.sum(dtype=jnp.int32)

    def middle(leaf):
      ordered = jnp.sort(leaf, axis=0)  # NaN comes last
      value = 0.5 * ordered[(count - 1) // 2] + 0.5 * ordered[count // 2]
      return jnp.where(count > 0, value, jnp.zeros_like(value))

    absent = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), vectors)
    return jax.tree.map(middle, trees.where_slots(chosen, vectors, absent))

  # Sorting takes about n log2 n comparisons.
  return Aggregator(combine, flops=lambda slots, size: float(
      size * slots * max(slots - 1, 1).bit_length()))


#: The aggregators that a hyper-parameter can name.
AGGREGATORS: dict[str, Callable[[], Aggregator]] = {
    "mean": weighted_mean, "median": coordinate_median}


def named(name: str) -> Aggregator:
  """Makes an aggregator by name.

  Args:
    name: one of ``AGGREGATORS``.

  Returns:
    The aggregator.

  Raises:
    OptionError: an unknown name.
  """
  if name not in AGGREGATORS:
    raise OptionError(
        f"`aggregator`={name}: unknown{did_you_mean(name, AGGREGATORS)} (one "
        f"of {', '.join(AGGREGATORS)})")
  return AGGREGATORS[name]()


@dataclasses.dataclass(frozen=True)
class Aggregation(Compression):
  """The choice of an aggregator, for methods made by ``compose``."""

  aggregator: str = hyper(
      "mean", "how the server combines the participants' updates and anchor "
      "gradients: mean = their weighted mean, median = the median of every "
      "coordinate, in which participants count alike",
      choices=tuple(AGGREGATORS), source="median: Yin et al., ICML 2018",
      later=True)

  def received(self) -> dict[str, Any]:
    """The arguments of ``compose`` that say what the server gets of whom."""
    return dict(super().received(), aggregator=self.aggregator)
