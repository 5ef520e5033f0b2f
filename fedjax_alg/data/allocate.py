"""Whole-number shares: the arithmetic beneath every partition."""

import numpy as np


def spread(
    weights: np.ndarray, total: int, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
  """``total`` units in proportion to ``weights``, each share within bounds.

  The share of i is clip(c weights_i, low_i, high_i) for the one c at which the
  shares sum to ``total``, rounded by largest remainder.

  Args:
    weights: [n] float, > 0.
    total: with sum(low) <= total <= sum(high).
    low: [n] int.
    high: [n] int, >= low.

  Returns:
    [n] int64 that sum to ``total``.
  """
  if not low.sum() <= total <= high.sum():
    raise ValueError(
        f"total {total} outside [{low.sum()}, {high.sum()}]")
  weights = weights / weights.max()

  def shares(c):
    return np.clip(c * weights, low, high)

  below, above = 0.0, 1.0
  while shares(above).sum() < total:
    above *= 2
  for _ in range(100):  # bisection down to the last bit
    middle = (below + above) / 2
    if shares(middle).sum() < total:
      below = middle
    else:
      above = middle
  exact = shares(above)
  result = np.floor(exact).astype(np.int64)
  order = np.argsort(result - exact, kind="stable")  # largest remainder first
  order = order[(result < high)[order]]
  result[order[:total - result.sum()]] += 1
  return result


def largest_remainder(
    fractions: np.ndarray, total: int, rng: np.random.Generator
) -> np.ndarray:
  """``total`` units in proportion to ``fractions`` ([n], sum > 0).

  Equal remainders are ordered at random, else low ids would win every class.
  """
  exact = fractions * (total / fractions.sum())
  result = np.floor(exact).astype(np.int64)
  order = np.lexsort((rng.random(len(exact)), result - exact))
  result[order[:total - result.sum()]] += 1
  return result


def spread_test(
    train: np.ndarray, available: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
  """How many test examples of each class each client is given.

  Every client gets the same part of its training count of a class, so its
  local test split has its own class proportions wherever the test set has
  those of the training set, and every test example of a held class is used.
  Rounding can leave a tiny client with none: it then takes one of a class it
  holds from the client that has most of it and keeps one itself.

  Args:
    train: [C, L] int, training counts.
    available: [L] int, test examples of each class.
    rng: orders equal remainders.

  Returns:
    [C, L] int64; column sums at most ``available``.
  """
  test = np.zeros(train.shape, np.int64)
  for label in np.flatnonzero((train.sum(axis=0) > 0) & (available > 0)):
    test[:, label] = largest_remainder(
        train[:, label].astype(np.float64), int(available[label]), rng)
  for client in np.flatnonzero(test.sum(axis=1) == 0):
    for label in np.argsort(-train[client], kind="stable"):
      if train[client, label] == 0:
        break
      spare = np.where(test.sum(axis=1) > 1, test[:, label], 0)
      if spare.max() > 0:
        test[spare.argmax(), label] -= 1
        test[client, label] += 1
        break
  return test


def deal(
    y: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
  """Hands ``counts[u, l]`` random rows of class l to client u.

  Args:
    y: [n] int labels.
    counts: [C, L] int, column sums at most the rows of the class.
    rng: chooses the rows.

  Returns:
    [n] int64, the client of each row, -1 for a row nobody was given.
  """
  owner = np.full(len(y), -1, np.int64)
  for label in range(counts.shape[1]):
    rows = rng.permutation(np.flatnonzero(y == label))
    given = np.repeat(np.arange(len(counts)), counts[:, label])
    owner[rows[:len(given)]] = given
  return owner


def pack(
    owner: np.ndarray, num_clients: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Rows client by client, in random order within a client.

  Args:
    owner: [n] int, the client of each row, -1 for unused rows.
    num_clients: C.
    rng: orders the rows of a client, so that no client is sorted by class.

  Returns:
    order [M] int64 of the used rows, offset [C] int32, size [C] int32.
  """
  used = np.flatnonzero(owner >= 0)
  order = used[np.lexsort((rng.random(len(used)), owner[used]))]
  size = np.bincount(owner[used], minlength=num_clients).astype(np.int32)
  return order.astype(np.int64), offsets(size), size


def offsets(size: np.ndarray) -> np.ndarray:
  """[C] int32, the first row of each client when they lie back to back."""
  return (np.cumsum(size) - size).astype(np.int32)
