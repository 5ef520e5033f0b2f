"""Validation clients: they never take part; the server holds their data."""

import numpy as np

from fedjax_alg.data import allocate
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.partition import HeldOut, Partition


def check_hold_out(count: int, num_clients: int) -> None:
  """Checks that ``count`` of ``num_clients`` clients can be held out.

  Args:
    count: clients to hold out.
    num_clients: clients of the partition.

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
  """Takes random clients out of a partition, as validation data of the server.

  The remaining clients keep their order and rows and are renumbered from 0.
  The training rows of the held-out clients become ``held_out.train_order``.
  Their local test rows are removed from ``test_order`` and are not used.

  Args:
    partition: a partition without held-out clients; it is not modified.
    count: N, the number of clients to hold out; 0 returns ``partition``.
    seed: seed of the choice, >= 0. The random stream differs from that of
      ``make_partition`` with the same seed. With the same seed, the clients
      that a smaller count holds out are a subset of those of a larger count.

  Returns:
    The partition of the remaining C - N clients.

  Raises:
    DataError: ``count`` is negative, or no client would be left.
    ValueError: the partition already has held-out clients.
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
          partition.test_order[test_held], partition.test_size[held]))


def put_back(partition: Partition) -> Partition:
  """The partition before ``hold_out``.

  Args:
    partition: a partition with or without held-out clients.

  Returns:
    The partition of all clients, in their first order.
  """
  held = partition.held_out
  if held is None:
    return partition
  total = partition.num_clients + len(held.clients)
  stay = np.delete(np.arange(total), held.clients)

  def merged(order, size, held_order, held_size):
    client = np.repeat(np.concatenate([stay, held.clients]),
                       np.concatenate([size, held_size]))
    rows = np.concatenate([order, held_order])
    sizes = np.bincount(client, minlength=total).astype(np.int32)
    return (rows[np.argsort(client, kind="stable")], allocate.offsets(sizes),
            sizes)

  train = merged(partition.train_order, partition.train_size,
                 held.train_order, held.train_size)
  test = merged(partition.test_order, partition.test_size,
                held.test_order, held.test_size)
  flags = {name: value for name, value in partition.flags.items()
           if name not in ("validation_clients", "validation_seed")}
  return partition._replace(
      train_order=train[0], train_offset=train[1], train_size=train[2],
      test_order=test[0], test_offset=test[1], test_size=test[2], flags=flags,
      held_out=None)
