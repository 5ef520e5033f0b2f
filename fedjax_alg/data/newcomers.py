"""Newcomers: clients that join only after some rounds, or never."""

from collections.abc import Sequence

import numpy as np

from fedjax_alg.base import NEVER
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.partition import Partition


def check_newcomers(
  newcomers: Sequence[tuple[int, int]], num_clients: int, fewest: int = 1
) -> None:
  """Checks that so many of ``num_clients`` clients can join later.

  Args:
    newcomers: (rounds run before, number of clients), see
      ``with_newcomers``.
    num_clients: C.
    fewest: minimum number of clients that must take part from the start.

  Raises:
    DataError: a number is out of range, the rounds do not ascend, or there are
      too many newcomers.
  """
  text = ",".join(f"{number}:{count}" for number, count in newcomers)
  label = f"`newcomers_at`={text}"
  rounds = [number for number, _ in newcomers]
  at_start = num_clients - sum(count for _, count in newcomers)
  if any(number < 1 for number in rounds):
    raise DataError(f"{label}: a round must be at least 1")
  if any(a >= b for a, b in zip(rounds, rounds[1:])):
    raise DataError(f"{label}: the rounds must ascend")
  if any(count < 1 for _, count in newcomers):
    raise DataError(f"{label}: a count must be at least 1")
  if at_start < fewest:
    raise DataError(
      f"{label}: leaves {max(at_start, 0)} of the {num_clients} "
      f"clients at the start (at least {fewest} needed)"
    )


def with_newcomers(
  partition: Partition, newcomers: Sequence[tuple[int, int]], seed: int
) -> np.ndarray:
  """Chooses the clients that join later.

  Args:
    partition: the partition; clients keep their numbers and rows.
    newcomers: (rounds run before, number of clients) for each set of
      clients that joins together; the rounds ascend from 1.
    seed: seed of the choice, >= 0. The random stream differs from that of the
      partition.

  Returns:
    [C] int32, rounds run before each client joins; 0 for a client that
    takes part from the start, ``NEVER`` for one without training rows.

  Raises:
    DataError: see ``check_newcomers``.
  """
  train = np.flatnonzero(partition.train_size > 0)
  check_newcomers(newcomers, len(train))
  rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
  order = train[rng.permutation(len(train))]
  joins = np.where(partition.train_size > 0, 0, NEVER).astype(np.int32)
  first = 0
  for number, count in newcomers:
    joins[order[first : first + count]] = number
    first += count
  return joins
