"""Validation clients: they never take part; the server holds their data."""

from typing import Any

import numpy as np

from fedjax_alg.data.errors import DataError
from fedjax_alg.data.partition import HeldOut, Partition, split_fields


def check_hold_out(count: int, num_clients: int) -> None:
  """Checks that ``count`` of ``num_clients`` clients can be held out.

  Args:
    count: clients to hold out.
    num_clients: clients of the partition.

  Raises:
    DataError: no client would be left.
  """
  if count and count >= num_clients:
    raise DataError(
      f"`validation_clients`={count}: leaves none of the {num_clients} "
      f"clients to train (at most {num_clients - 1})"
    )


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
    DataError: no client would be left.
    ValueError: the partition already has held-out clients.
  """
  total = partition.num_clients
  # Those without training rows have none for the server.
  train = np.flatnonzero(partition.train_size > 0)
  check_hold_out(count, len(train))
  if count == 0:
    return partition
  if partition.held_out is not None:
    raise ValueError("the partition has clients held out already")
  rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
  clients = np.sort(train[rng.permutation(len(train))[:count]])
  fields: dict[str, Any] = {}
  out: list[np.ndarray] = []
  for split, order, size in _splits(partition):
    is_out = np.repeat(np.isin(np.arange(total), clients), size)
    fields |= split_fields(split, order[~is_out], np.delete(size, clients))
    out += [order[is_out], size[clients]]
  return partition._replace(
    **fields,
    held_out=HeldOut(clients.astype(np.int32), *out),
    flags=partition.flags | {"validation_clients": count, "validation_seed": seed},
  )


def put_back(partition: Partition) -> Partition:
  """The partition before ``hold_out``.

  Args:
    partition: a partition with or without held-out clients.

  Returns:
    The partition of all clients, in their first order.
  """
  held_out = partition.held_out
  if held_out is None:
    return partition
  total = partition.num_clients + len(held_out.clients)
  stay = np.delete(np.arange(total), held_out.clients)
  fields: dict[str, Any] = {}
  for (split, order, size), (_, held_order, held_size) in zip(
    _splits(partition), _splits(held_out)
  ):
    client = np.repeat(
      np.concatenate([stay, held_out.clients]), np.concatenate([size, held_size])
    )
    rows = np.concatenate([order, held_order])
    fields |= split_fields(
      split,
      rows[np.argsort(client, kind="stable")],
      np.bincount(client, minlength=total),
    )
  flags = {
    name: value
    for name, value in partition.flags.items()
    if name not in ("validation_clients", "validation_seed")
  }
  return partition._replace(**fields, flags=flags, held_out=None)


def _splits(
  clients: Partition | HeldOut,
) -> tuple[tuple[str, np.ndarray, np.ndarray], ...]:
  """The order and the sizes of both kinds of rows, with its name."""
  return (
    ("train", clients.train_order, clients.train_size),
    ("test", clients.test_order, clients.test_size),
  )
