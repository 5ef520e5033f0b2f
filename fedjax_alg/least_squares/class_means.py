"""Class means and numbers of examples, which a client sends as L (d + 1) floats.

The server multiplies a client's means by its numbers, so that what it adds up
are sums. ``Spread`` also has what the server computes from each message before
adding it up: the products n mu mu' of the client's means, from whose total the
covariance of a class follows (FedCOF).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_alg import tasks, trees
from fedjax_alg.base import Array, Layer, Params, Shard
from fedjax_alg.client import objective
from fedjax_alg.exchange.messages import Carrier, carry
from fedjax_alg.least_squares import moments
from fedjax_alg.least_squares.closed_form import AdditiveStatistics


class Means(NamedTuple):
  """Sums of the inputs by class, from which the means follow."""

  sums: Array  #: [L, d]
  counts: Array  #: [L] examples


class Spread(NamedTuple):
  """``Means``, and how far the means of the clients are spread."""

  means: Means
  products: Array  #: [L, d, d] sums over clients of n mu mu'
  holders: Array  #: [L] clients with examples of the class


def class_means(total: Means) -> Float[Array, "L d"]:
  """The mean of every class [L, d]; 0 of a class without examples."""
  counts: Array = jnp.maximum(total.counts, jnp.ones_like(total.counts))
  return total.sums / counts[:, None]


def _products(means: Means) -> Float[Array, "L d d"]:
  """n mu mu' of every class."""
  return jnp.einsum(
    "ld,le->lde", means.sums, class_means(means), precision=trees.HIGHEST
  )


def spread_of(means: Means) -> Spread:
  """What the server computes from one client's means."""
  holds = (means.counts > 0).astype(means.counts.dtype)
  return Spread(means, _products(means), holds)


def covariances(total: Spread) -> Float[Array, "L d d"]:
  """Sigma_c = sum_i n_ic (mu_ic - mu_c)(mu_ic - mu_c)' / (M_c - 1).

  If the clients' examples of a class are drawn alike, each Sigma_c is on average
  the covariance of the class (with the divisor N_c - 1).

  Args:
    total: the sums over all clients; M_c are the holders of class c.

  Returns:
    [L, d, d]; 0 of a class that one client holds.
  """
  centred = total.products - _products(total.means)
  others = total.holders - 1.0
  several = (others > 0)[:, None, None]  # else what rounding leaves would be divided
  centred = jnp.where(several, centred, jnp.zeros_like(centred))
  result: Array = centred / jnp.maximum(others, jnp.ones_like(others))[:, None, None]
  return result


def _clear_means(means: Means) -> Means:
  """The means with sums of exactly 0 for classes without examples."""
  has_examples = (means.counts > 0)[:, None]
  return means._replace(
    sums=jnp.where(has_examples, means.sums, jnp.zeros_like(means.sums))
  )


def _clear_spread(spread: Spread) -> Spread:
  """Likewise; the products of such a class count nothing (``covariances``)."""
  return spread._replace(means=_clear_means(spread.means))


def statistics(
  layer: Layer, task: tasks.Task, with_spread: bool = False
) -> AdditiveStatistics:
  """The statistics of the inputs of a head.

  Args:
    layer: a dense layer.
    task: gives the classes of examples.
    with_spread: whether they are a ``Spread`` or ``Means``.

  Returns:
    The statistics, in float64.
  """
  d = layer.fan_in
  assert layer.positions == 1 and task.fitted is not None
  targets_of: Callable[..., Array] = task.fitted

  def zero_means(num_classes: int) -> Means:
    return Means(
      jnp.zeros((num_classes, d), jnp.float64), jnp.zeros(num_classes, jnp.float64)
    )

  def add_means(means: Means, params: Params, shard: Shard) -> Means:
    num_classes = means.counts.shape[0]

    def add_block(means, x, y, mask):
      with jax.default_matmul_precision("highest"):
        inputs = layer.inputs(params, x)
      inputs = jnp.where(mask[:, None], inputs, jnp.zeros_like(inputs))
      member = targets_of(y, mask, num_classes).astype(jnp.float64)
      sums = jnp.matmul(member.T, inputs.astype(jnp.float64), precision=trees.HIGHEST)
      return Means(means.sums + sums, means.counts + member.sum(0))

    result: Means = objective.fold_blocks(
      shard, add_block, means, moments.block_rows(layer)
    )
    return result

  def zero(num_classes: int) -> Spread:
    return Spread(
      zero_means(num_classes),
      jnp.zeros((num_classes, d, d), jnp.float64),
      jnp.zeros(num_classes, jnp.float64),
    )

  def add(spread: Spread, params: Params, shard: Shard) -> Spread:
    client = add_means(zero_means(spread.holders.shape[0]), params, shard)
    result: Spread = trees.add(spread, spread_of(client))
    return result

  def send(spread: Spread, carrier: Carrier | None) -> Spread:
    return spread_of(carry(carrier, spread.means))

  def floats_sent(num_classes: int) -> int:
    return num_classes * (d + 1)

  if not with_spread:
    return AdditiveStatistics(
      zero_means,
      add_means,
      lambda means: means.counts.sum(),
      floats_sent,
      2.0 * d,
      _clear_means,
      counts=lambda means: means.counts,
    )
  return AdditiveStatistics(
    zero,
    add,
    lambda spread: spread.means.counts.sum(),
    floats_sent,
    2.0 * d,
    _clear_spread,
    send,
    counts=lambda spread: spread.means.counts,
  )
