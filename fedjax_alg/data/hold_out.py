"""Clients that never take part: the server holds their training rows."""

import numpy as np

from fedjax_alg.data import allocate
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.partition import HeldOut, Partition


def check_hold_out(count: int, num_clients: int) -> None:
  """Whether ``count`` of ``num_clients`` clients can be held out.

  Raises:
    DataError: a negative number, or no client would be left.
  """
  if count < 0:
    raise DataError(f"`validation_clients`={count}: must be at least 0")
  if count and count >= num_clients:
    raise DataError(
        f"`validation_clients`={count}: leaves none of the {num_clients} "
        f"clients to train (at most {num_clients - 1})")


def hold_out(partition: Partition, count: int, seed: int) -> Partition:
  """Takes random clients out of a partition, for the server to validate on.

  The others keep their order and rows and are numbered anew from 0. The held
  out clients' training rows become ``held_out.train_order``; their local test
  rows leave ``test_order`` and are nobody's.

  Args:
    partition: a split with no client held out; it is left alone.
    count: N, clients held out; 0 returns ``partition`` itself.
    seed: >= 0, of the choice alone: a stream apart from that of
      ``make_partition`` with the same seed. Of one seed, a smaller count holds
      out some of the clients of a larger one.

  Returns:
    The partition of the C - N others.

  Raises:
    DataError: fewer than 0 clients, or all of them; one line.
    ValueError: the partition has clients held out already.
  """
  total = partition.num_clients
  check_hold_out(count, total)
  if count == 0:
    return partition
  if partition.held_out is not None:
    raise ValueError("the partition has clients held out already")
  rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
  held = np.zeros(total, bool)
  held[rng.permutation(total)[:count]] = True
  train_held = np.repeat(held, partition.train_size)
  test_held = np.repeat(held, partition.test_size)
  train_size = partition.train_size[~held]
  test_size = partition.test_size[~held]
  return partition._replace(
      train_order=partition.train_order[~train_held],
      train_offset=allocate.offsets(train_size), train_size=train_size,
      test_order=partition.test_order[~test_held],
      test_offset=allocate.offsets(test_size), test_size=test_size,
      flags=partition.flags | {
          "validation_clients": count, "validation_seed": seed},
      held_out=HeldOut(
          np.flatnonzero(held).astype(np.int32),
          partition.train_order[train_held], partition.train_size[held],
          partition.test_order[test_held]))
