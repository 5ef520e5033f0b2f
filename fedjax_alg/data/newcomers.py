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
  rounds = [number for number, _ in newcomers]
  at_start = num_clients - sum(count for _, count in newcomers)
  for refused, why in (
    (any(number < 1 for number in rounds), "a round must be at least 1"),
    (any(a >= b for a, b in zip(rounds, rounds[1:])), "the rounds must ascend"),
    (any(count < 1 for _, count in newcomers), "a count must be at least 1"),
    (
      at_start < fewest,
      f"leaves {max(at_start, 0)} of the {num_clients} "
      f"clients at the start (at least {fewest} needed)",
    ),
  ):
    if refused:
      raise DataError(f"`newcomers_at`={text}: {why}")


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
