"""Distances of the clients' label distributions."""

from collections.abc import Callable
from typing import Any

import numpy as np

#: Numbers that the distances of all pairs of clients may read.
_MOST = 2 * 10**8


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> np.ndarray:
  """Computes the Jensen-Shannon distance, in [0, 1].

  It is the square root of the mean of both Kullback-Leibler divergences (base
  2) from the mean distribution.

  Args:
    p: [..., L] distributions.
    q: [..., L] distributions.

  Returns:
    [...] float64.

  Examples:
    >>> jensen_shannon(np.array([1.0, 0.0]), np.array([0.0, 1.0])).item()
    1.0
  """
  middle = (p + q) / 2

  def divergence(a: np.ndarray) -> np.ndarray:
    ratio = np.divide(a, middle, out=np.ones_like(middle), where=a > 0)
    result: np.ndarray = (a * np.log2(ratio)).sum(-1)
    return result

  squared = (divergence(p) + divergence(q)) / 2
  result: np.ndarray = np.sqrt(np.clip(squared, 0.0, 1.0))
  return result


def hellinger(p: np.ndarray, q: np.ndarray) -> np.ndarray:
  """Computes the Hellinger distance, in [0, 1].

  Args:
    p: [..., L] distributions.
    q: [..., L] distributions.

  Returns:
    [...] float64.

  Examples:
    >>> hellinger(np.array([1.0, 0.0]), np.array([0.0, 1.0])).item()
    1.0
  """
  squared = np.square(np.sqrt(p) - np.sqrt(q)).sum(-1) / 2
  result: np.ndarray = np.sqrt(np.minimum(squared, 1.0))
  return result


def label_distances(
  label_histogram: np.ndarray, kinds: np.ndarray | None = None
) -> dict[str, dict[str, float]]:
  """Summarizes how far the clients' label distributions are from each other.

  Args:
    label_histogram: [C, L] int, training examples of each class.
    kinds: [C] int, the kinds of the clients; None if they have none.

  Returns:
    "jensen_shannon" and "hellinger" -> ``to_all_mean`` and ``to_all_max``, the
    distances of the clients from the distribution of all examples;
    ``pairs_mean`` and ``pairs_max`` of all pairs of clients, unless there are
    very many; and with kinds ``same_kind_mean`` and ``other_kind_mean`` of the
    pairs of one kind and of two. Clients without examples do not count, and a
    mean of nothing is left out.
  """
  has = label_histogram.sum(1) > 0
  counts = label_histogram[has].astype(np.float64)
  if counts.shape[1] < 2 or not len(counts):
    return {}
  shares = counts / counts.sum(1, keepdims=True)
  all_ = counts.sum(0) / counts.sum()
  of_kind = None if kinds is None else kinds[has]
  return {
    name: _summary(distance, shares, all_, of_kind)
    for name, distance in (("jensen_shannon", jensen_shannon), ("hellinger", hellinger))
  }


def _summary(
  distance: Callable[..., np.ndarray],
  shares: np.ndarray,
  all_: np.ndarray,
  kinds: np.ndarray | None,
) -> dict[str, float]:
  to_all = distance(shares, all_)
  values: dict[str, Any] = {"to_all_mean": to_all.mean(), "to_all_max": to_all.max()}
  number = len(shares)
  if 1 < number and number * shares.size <= _MOST:
    pairs = np.concatenate(
      [distance(shares[i], shares[i + 1 :]) for i in range(number - 1)]
    )
    values |= {"pairs_mean": pairs.mean(), "pairs_max": pairs.max()}
    if kinds is not None:
      same = np.concatenate([kinds[i] == kinds[i + 1 :] for i in range(number - 1)])
      for name, of in (("same_kind_mean", same), ("other_kind_mean", ~same)):
        if of.any():
          values[name] = pairs[of].mean()
  return {name: round(float(value), 6) for name, value in values.items()}
