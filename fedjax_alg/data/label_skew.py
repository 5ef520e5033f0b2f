"""Generated splits: iid, few classes per client, Dirichlet."""

import numpy as np

from fedjax_alg.data import allocate
from fedjax_alg.data.errors import DataError

_TRIES = 100


def check_sizes(rows: int, num_clients: int, min_client_size: int) -> None:
  """Raises DataError if ``rows`` examples are too few for the clients."""
  if num_clients > rows:
    raise DataError(
        f"--num_clients={num_clients}: more clients than the {rows} training"
        " examples")
  if num_clients * min_client_size > rows:
    raise DataError(
        f"--num_clients={num_clients} --min_client_size={min_client_size} need"
        f" {num_clients * min_client_size} training examples, there are"
        f" {rows}")


def iid(
    rows: int, weights: np.ndarray, min_client_size: int,
    rng: np.random.Generator,
) -> np.ndarray:
  """[rows] int64, the client of each row; sizes in proportion to weights."""
  low = np.full(len(weights), min_client_size)
  size = allocate.spread(weights, rows, low, np.full(len(weights), rows))
  return rng.permutation(np.repeat(np.arange(len(weights)), size))


def dirichlet(
    available: np.ndarray, num_clients: int, alpha: float,
    min_client_size: int, rng: np.random.Generator,
) -> np.ndarray:
  """Each class over the clients by Dirichlet(alpha).

  Drawn again until every client has ``min_client_size`` examples.

  Args:
    available: [L] int, training examples of each class.
    num_clients: C.
    alpha: concentration of the symmetric Dirichlet, > 0.
    min_client_size: least row sum.
    rng: source of the draws.

  Returns:
    [C, L] int64, column sums ``available``.
  """
  if not 0 < alpha < np.inf:
    raise DataError(f"--dirichlet_alpha={alpha}: a number > 0 is needed")
  counts = np.zeros((num_clients, len(available)), np.int64)
  smallest = 0
  for _ in range(_TRIES):
    for label in np.flatnonzero(available):
      share = rng.dirichlet(np.full(num_clients, alpha))
      counts[:, label] = allocate.largest_remainder(
          share, int(available[label]), rng)
    smallest = max(smallest, int(counts.sum(axis=1).min()))
    if smallest >= min_client_size:
      return counts
  raise DataError(
      f"--dirichlet_alpha={alpha} with --num_clients={num_clients} left a"
      f" client with fewer than --min_client_size={min_client_size} examples in"
      f" {_TRIES} draws (best {smallest}): raise alpha or lower the other two")


def classes(
    available: np.ndarray, weights: np.ndarray, min_classes: int,
    max_classes: int, min_client_size: int, rng: np.random.Generator,
) -> np.ndarray:
  """Every client holds min_classes to max_classes classes.

  Each class has places in proportion to its examples; a client takes the
  classes with most places left, ties at random. A client asks of each of its
  classes the same part of its weight, and a class is spread over those who
  hold it as they ask, never less than each one's share of the minimum.

  Args:
    available: [L] int, training examples of each class.
    weights: [C] float > 0, relative client sizes.
    min_classes: the number of classes is uniform on [min, max].
    max_classes: k.
    min_client_size: least row sum.
    rng: source of the draws.

  Returns:
    [C, L] int64, column sums ``available``.
  """
  present = np.flatnonzero(available)
  if not 1 <= max_classes <= len(present):
    raise DataError(
        f"--classes_per_client={max_classes}: must lie in [1,"
        f" {len(present)}], the classes of the data")
  if not 1 <= min_classes <= max_classes:
    raise DataError(
        f"--min_classes_per_client={min_classes}: must lie in [1,"
        f" --classes_per_client={max_classes}]")
  num_clients = len(weights)
  where = (f"--num_clients={num_clients}"
           f" --classes_per_client={max_classes}")
  if num_clients * max_classes < len(present):
    raise DataError(
        f"{where} hold at most {num_clients * max_classes} of the"
        f" {len(present)} classes, every class needs a client")
  for _ in range(_TRIES):
    number = rng.integers(min_classes, max_classes + 1, num_clients)
    if number.sum() < len(present):
      continue
    held = _class_sets(available[present], number, rng)
    counts = _spread_classes(
        available[present], weights, held, min_client_size)
    if counts is not None:
      result = np.zeros((num_clients, len(available)), np.int64)
      result[:, present] = counts
      return result
  raise DataError(
      f"{where} --min_client_size={min_client_size}: no split found in"
      f" {_TRIES} draws, some class has too few examples for the clients that"
      " hold it: lower one of the three")


def _class_sets(available, number, rng):
  """[C, L] bool, row sums ``number``, column sums by class frequency."""
  num_clients, num_classes = len(number), len(available)
  places = allocate.spread(
      available.astype(np.float64), int(number.sum()),
      np.ones(num_classes, np.int64), np.full(num_classes, num_clients))
  held = np.zeros((num_clients, num_classes), bool)
  for client in rng.permutation(num_clients):
    # Taking the fullest columns first always completes (Gale and Ryser).
    best = np.lexsort((rng.random(num_classes), -places))[:number[client]]
    held[client, best] = True
    places[best] -= 1
  return held


def _spread_classes(available, weights, held, min_client_size):
  """[C, L] counts over the sets, None if someone falls below the minimum."""
  number = held.sum(axis=1)
  floor = -(-min_client_size // number)
  counts = np.zeros(held.shape, np.int64)
  for label, rows in enumerate(available):
    who = np.flatnonzero(held[:, label])
    low = floor[who]
    if low.sum() > rows:  # a rare class: one each, others may make up for it
      low = np.ones_like(low)
    if low.sum() > rows:
      return None
    counts[who, label] = allocate.spread(
        weights[who] / number[who], int(rows), low, np.full(len(who), rows))
  return counts if counts.sum(axis=1).min() >= min_client_size else None
