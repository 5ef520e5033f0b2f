"""Distances of the clients' label distributions, and of their examples."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: Numbers that the distances of all pairs of clients may read.
_MOST = 2 * 10**8
#: Leading singular vectors of a client's examples (PACFL's p), and the examples
#: that they are computed from.
SUBSPACE_VECTORS, _SUBSPACE_ROWS = 3, 64
_WIDTH, _ITERATIONS = 8, 30
#: Angles below it are rounding errors.
_ROUNDING = 1e-3


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


def subspace_angles(
  examples: Sequence[np.ndarray], kinds: np.ndarray
) -> dict[str, object]:
  """Summarizes the angles between the subspaces of clients' examples, in degrees.

  A subspace has the three leading right singular vectors of a client's examples,
  which are not centered; of more than 64 examples those of 64, evenly spaced.
  The distance of two clients is the least principal angle, as in PACFL (Vahidian
  et al. 2023), which takes vectors of each class.

  Args:
    examples: of each of C clients [n_i, ...] float, n_i at least 1.
    kinds: [C] int in [0, K), the kinds of the clients.

  Returns:
    "vectors" and "clients", the numbers of both; ``pairs_mean``,
    ``same_kind_mean`` and ``other_kind_mean`` over pairs of clients; and "kinds"
    [K, K], the means over the pairs of clients of two kinds, None without pairs.
  """
  bases = _leading_vectors(examples)
  number = int(kinds.max()) + 1
  sums, pairs = np.zeros((2, number, number))
  for i, basis in enumerate(bases[:-1]):
    # The cosine of the least principal angle is the largest singular value.
    cosines = np.linalg.svd(bases[i + 1 :] @ basis.T, compute_uv=False)[:, 0]
    degrees = np.degrees(np.arccos(np.clip(cosines, 0.0, 1.0)))
    degrees[degrees < _ROUNDING] = 0.0
    for table, values in ((sums, degrees), (pairs, 1.0)):
      np.add.at(table, (kinds[i], kinds[i + 1 :]), values)
  sums, pairs = sums + sums.T, pairs + pairs.T  # every pair twice
  same = np.eye(number, dtype=bool)
  result: dict[str, object] = {"vectors": SUBSPACE_VECTORS, "clients": len(bases)}
  for name, of in (
    ("pairs_mean", np.ones_like(same)),
    ("same_kind_mean", same),
    ("other_kind_mean", ~same),
  ):
    if pairs[of].any():
      result[name] = round(float(sums[of].sum() / pairs[of].sum()), 3)
  result["kinds"] = [
    [round(a / n, 3) if n else None for a, n in zip(*rows)]
    for rows in zip(sums.tolist(), pairs.tolist())
  ]
  return result


def _leading_vectors(examples: Sequence[np.ndarray]) -> np.ndarray:
  """The leading right singular vectors of C arrays, [C, 3, D].

  Rows beyond the rank are zero.
  """
  few = [_few_rows(rows) for rows in examples]
  grams = np.zeros((len(few), _SUBSPACE_ROWS, _SUBSPACE_ROWS))
  for gram, x in zip(grams, few):
    gram[: len(x), : len(x)] = x @ x.T
  # Subspace iteration: a full decomposition of each would start BLAS's threads.
  basis = np.random.default_rng(0).normal(size=(_SUBSPACE_ROWS, _WIDTH))
  for _ in range(_ITERATIONS):
    basis = np.linalg.qr(grams @ basis)[0]
  values, turn = np.linalg.eigh(basis.swapaxes(1, 2) @ grams @ basis)
  values, vectors = (
    array[..., : -SUBSPACE_VECTORS - 1 : -1] for array in (values, basis @ turn)
  )
  has_rank = values > 1e-9 * values[:, :1]
  scale = np.where(has_rank, 1 / np.sqrt(np.where(has_rank, values, 1.0)), 0.0)
  return np.stack(
    [(v * a)[: len(x)].T @ x for x, v, a in zip(few, vectors, scale[:, None])]
  )


def _few_rows(rows: np.ndarray) -> np.ndarray:
  """Rows of an array, evenly spaced, as float64 vectors."""
  places = np.linspace(0, len(rows) - 1, min(len(rows), _SUBSPACE_ROWS)).astype(int)
  return np.asarray(rows[places], np.float64).reshape(len(places), -1)
