"""Clients that take part only from some round on."""

from collections.abc import Sequence

import numpy as np

from fedjax_alg.data.errors import DataError
from fedjax_alg.data.partition import Partition


def check_newcomers(
    newcomers: Sequence[tuple[int, int]], num_clients: int, fewest: int = 1
) -> None:
  """Whether so many of ``num_clients`` clients can come later.

  Args:
    newcomers: (rounds played before, number of clients), see
      ``with_newcomers``.
    num_clients: C.
    fewest: clients that must be there from the start.

  Raises:
    DataError: numbers out of range, rounds not ascending, too many; one line.
  """
  text = ",".join(f"{number}:{count}" for number, count in newcomers)
  rounds = [number for number, _ in newcomers]
  if any(number < 1 for number in rounds):
    raise DataError(f"`newcomers_at`={text}: a round must be at least 1")
  if any(a >= b for a, b in zip(rounds, rounds[1:])):
    raise DataError(f"`newcomers_at`={text}: the rounds must ascend")
  if any(count < 1 for _, count in newcomers):
    raise DataError(f"`newcomers_at`={text}: a count must be at least 1")
  left = num_clients - sum(count for _, count in newcomers)
  if left < fewest:
    raise DataError(
        f"`newcomers_at`={text}: leaves {max(left, 0)} of the {num_clients} "
        f"clients at the start (at least {fewest} needed)")


def with_newcomers(
    partition: Partition, newcomers: Sequence[tuple[int, int]], seed: int
) -> np.ndarray:
  """Chooses the clients that come later.

  Args:
    partition: the split; clients keep their numbers and rows.
    newcomers: (rounds played before, number of clients) of each group that
      joins, rounds ascending from 1.
    seed: >= 0, of the choice alone, a stream apart from that of the partition.

  Returns:
    [C] int32, rounds played before each client takes part; 0: from the start.

  Raises:
    DataError: see ``check_newcomers``.
  """
  check_newcomers(newcomers, partition.num_clients)
  rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
  order = rng.permutation(partition.num_clients)
  joins = np.zeros(partition.num_clients, np.int32)
  first = 0
  for number, count in newcomers:
    joins[order[first:first + count]] = number
    first += count
  return joins
