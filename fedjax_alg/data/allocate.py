"""Arithmetic of partitions: dividing whole numbers into shares."""

import heapq

import numpy as np

from fedjax_alg.data.errors import DataError

#: Rows that are sorted at once, if they come client by client.
_PART = 2**20
#: The most rows of all clients, with room for padding; offsets are int32.
MOST_ROWS = 2**31 - 2**16


def allocate(
  weights: np.ndarray, total: int, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
  """Divides ``total`` units in proportion to weights, within bounds.

  The share of i is clip(c weights_i, low_i, high_i), where c is chosen so that
  the shares sum to ``total``. Shares are rounded by the largest remainder.

  Args:
    weights: [n] float, > 0.
    total: number of units, sum(low) <= total <= sum(high).
    low: [n] int, lower bounds.
    high: [n] int, upper bounds, >= low.

  Returns:
    [n] int64 with the sum ``total``.

  Raises:
    ValueError: ``total`` is outside the bounds.
  """
  if not low.sum() <= total <= high.sum():
    raise ValueError(f"total {total} outside [{low.sum()}, {high.sum()}]")
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
  result: np.ndarray = np.floor(exact).astype(np.int64)
  order = np.argsort(result - exact, kind="stable")  # largest remainder first
  order = order[(result < high)[order]]
  result[order[: total - result.sum()]] += 1
  return result


def largest_remainder(
  fractions: np.ndarray, total: int, rng: np.random.Generator
) -> np.ndarray:
  """Divides ``total`` units in proportion to fractions.

  Equal remainders are ordered at random, so that clients with low ids have no
  advantage in every class.

  Args:
    fractions: [n] float, sum > 0.
    total: number of units.
    rng: orders equal remainders.

  Returns:
    [n] int64 with the sum ``total``.

  Examples:
    >>> largest_remainder(
    ...     np.array([0.5, 0.3, 0.2]), 7, np.random.default_rng(0)).tolist()
    [4, 2, 1]
  """
  exact = fractions * (total / fractions.sum())
  result: np.ndarray = np.floor(exact).astype(np.int64)
  order = np.lexsort((rng.random(len(exact)), result - exact))
  result[order[: total - result.sum()]] += 1
  return result


def spread_test(
  train: np.ndarray, available: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
  """Computes the number of test examples of each class for each client.

  The test examples of a class are divided in proportion to the clients'
  training counts of this class, and all of them are used if a client holds the
  class. If the test set has the class proportions of the training set, the
  local test split of a client therefore has the class proportions of its
  training data. A small client may get no test example because of rounding. It
  then takes one, of a class that it holds, from the client with the most test
  examples of this class among those with more than one.

  Args:
    train: [C, L] int, training counts.
    available: [L] int, test examples of each class.
    rng: orders equal remainders.

  Returns:
    [C, L] int64; the column sums are at most ``available``.
  """
  test = np.zeros(train.shape, np.int64)
  for label in np.flatnonzero((train.sum(axis=0) > 0) & (available > 0)):
    test[:, label] = largest_remainder(
      train[:, label].astype(np.float64), int(available[label]), rng
    )
  _spare_for_empty(train, test)
  return test


def _spare_for_empty(train: np.ndarray, test: np.ndarray) -> None:
  """Gives every client without a test example one of another, in place."""
  sizes = test.sum(axis=1)
  empty = np.flatnonzero(sizes == 0)
  # For each class a heap of possible givers: most examples first, then least id.
  givers: dict[int, list[tuple[int, int]]] = {}
  order = np.argsort(-train[empty], axis=1, kind="stable")
  for client, labels in zip(empty.tolist(), order.tolist()):
    for label in labels:
      if train[client, label] == 0:
        break
      if label not in givers:
        can = np.flatnonzero((sizes > 1) & (test[:, label] > 0))
        givers[label] = list(zip((-test[can, label]).tolist(), can.tolist()))
        heapq.heapify(givers[label])
      heap = givers[label]
      while heap and sizes[heap[0][1]] <= 1:  # has given for other classes
        heapq.heappop(heap)
      if heap:
        minus, giver = heap[0]
        if minus == -1:
          heapq.heappop(heap)
        else:
          heapq.heapreplace(heap, (minus + 1, giver))
        test[giver, label] -= 1
        sizes[giver] -= 1
        test[client, label] += 1
        sizes[client] += 1
        break


def deal_classes(
  y: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
  """Gives ``counts[u, l]`` random rows of class l to client u.

  Args:
    y: [n] int labels.
    counts: [C, L] int; a column sum is at most the number of rows of the class.
    rng: chooses the rows.

  Returns:
    [n] int64, the client of each row, -1 for an unused row.
  """
  owner = np.full(len(y), -1, np.int64)
  for label in range(counts.shape[1]):
    rows = rng.permutation(np.flatnonzero(y == label))
    clients = np.repeat(np.arange(len(counts)), counts[:, label])
    owner[rows[: len(clients)]] = clients
  return owner


def pack(
  owner: np.ndarray, num_clients: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Orders the rows by client, and at random within a client.

  Args:
    owner: [n] int, the client of each row, -1 for unused rows.
    num_clients: C.
    rng: orders the rows within a client, so that they are not sorted by class.

  Returns:
    order [M] int64 of the used rows, offset [C] int32, size [C] int32.
  """
  if (owner[:1] >= 0).all() and (owner[1:] >= owner[:-1]).all():
    order = _order_in_parts(owner, rng)
    size = np.bincount(owner, minlength=num_clients).astype(np.int32)
  else:
    used = np.flatnonzero(owner >= 0)
    order = used[_lexsort(owner[used], rng.random(len(used)))].astype(np.int64)
    size = np.bincount(owner[used], minlength=num_clients).astype(np.int32)
  return order, offsets(size), size


def _order_in_parts(owner: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """The order of ``pack`` for rows that are sorted by client, in less memory."""
  order, begin = np.empty(len(owner), np.int64), 0
  while begin < len(owner):
    last = owner[min(begin + _PART, len(owner)) - 1]
    end = int(np.searchsorted(owner, last, side="right"))
    part = owner[begin:end] - owner[begin]
    order[begin:end] = begin + _lexsort(part, rng.random(end - begin))
    begin = end
  return order


def _lexsort(owner: np.ndarray, tie: np.ndarray) -> np.ndarray:
  """np.lexsort((tie, owner)), three times as fast for millions of rows.

  Args:
    owner: [n] int, >= 0.
    tie: [n] float64 in [0, 1).

  Returns:
    [n] int64.
  """
  bits = 63 - int(owner.max(initial=0)).bit_length()
  key = owner.astype(np.int64) << bits
  key |= (tie * 2.0 ** min(bits, 53)).astype(np.int64)
  order = np.argsort(key)
  key = key[order]
  if (key[1:] == key[:-1]).any():  # equal only as far as the bits go
    return np.lexsort((tie, owner))
  return order


def offsets(size: np.ndarray) -> np.ndarray:
  """Finds the first row of each client if clients lie back to back.

  Args:
    size: [C] int, their numbers of rows.

  Returns:
    [C] int32.

  Raises:
    DataError: there are more rows than int32 counts.
  """
  ends: np.ndarray = np.cumsum(size, dtype=np.int64)
  if ends.max(initial=0) > MOST_ROWS:
    raise DataError(f"`dataset`: {ends[-1]:,} rows of clients, at most {MOST_ROWS:,}")
  first: np.ndarray = ends - size
  return first.astype(np.int32)
