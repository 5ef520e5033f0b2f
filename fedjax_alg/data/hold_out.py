"""Clients that never take part.

The server holds the data of validation clients. Of clients that `without` names
nobody holds any, and all others have what they would have had.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_alg.data import client_names as names_lib
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
      the ``Partitioner`` with the same seed. With the same seed, the clients
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
  """The partition before ``leave_out`` and ``hold_out``.

  Args:
    partition: a partition with or without clients that never take part.

  Returns:
    The partition of all clients, in their first order.
  """
  held_out = partition.held_out
  out = [part for part in (held_out, partition.left_out) if part is not None]
  if not out:
    return partition
  stay = partition.places
  total = len(stay) + (0 if held_out is None else len(held_out.clients))
  fields: dict[str, Any] = {}
  for parts in zip(_splits(partition), *map(_splits, out)):
    client = np.repeat(
      np.concatenate([stay, *(part.clients for part in out)]),
      np.concatenate([size for _, _, size in parts]),
    )
    rows = np.concatenate([order for _, order, _ in parts])
    fields |= split_fields(
      parts[0][0],
      rows[np.argsort(client, kind="stable")],
      np.bincount(client, minlength=total),
    )
  flags = {
    name: value
    for name, value in partition.flags.items()
    if name not in ("validation_clients", "validation_seed", "without")
  }
  return partition._replace(**fields, flags=flags, held_out=None, left_out=None)


def leave_out(
  partition: Partition, clients: Sequence[int], names: Sequence[str]
) -> Partition:
  """Takes all rows of some clients out of a partition, and changes nothing else.

  Their places stay, without rows, so that the other clients have the numbers, the
  rows, and the random numbers that they would have had.

  Args:
    partition: the partition; it is not modified.
    clients: [N] positions among all clients, validation clients included.
    names: what the clients are called, for ``flags``.

  Returns:
    The partition. ``left_out`` has the rows of these clients.

  Raises:
    DataError: no client with training rows would be left, or no validation client.
  """
  out = np.sort(np.asarray(clients, np.int32))
  full = put_back(partition)
  left_rows: list[np.ndarray] = []
  for _, order, size in _splits(full):
    of_client = np.repeat(np.arange(full.num_clients), size)
    left_rows += [order[np.isin(of_client, out)], size[out]]
  held_out = partition.held_out
  if held_out is not None:
    held_out = held_out._replace(**_emptied(held_out, np.isin(held_out.clients, out)))
  fields: dict[str, Any] = {}
  new = _emptied(partition, np.isin(partition.places, out))
  for split in ("train", "test"):
    fields |= split_fields(split, new[f"{split}_order"], new[f"{split}_size"])
  for kind, size in (
    ("with training rows", new["train_size"]),
    ("for validation", np.ones(1) if held_out is None else held_out.train_size),
  ):
    if not size.any():
      raise DataError(
        f"`without`={names_lib.join_names(names)}: leaves no client {kind}"
      )
  return partition._replace(
    **fields,
    held_out=held_out,
    left_out=HeldOut(out, *left_rows),
    flags=partition.flags | {"without": list(names)},
  )


def _emptied(clients: Partition | HeldOut, out: np.ndarray) -> dict[str, np.ndarray]:
  """The orders and sizes of clients of which some (``out`` [C]) have no rows."""
  fields = {}
  for split, order, size in _splits(clients):
    fields[f"{split}_order"] = order[~np.repeat(out, size)]
    fields[f"{split}_size"] = np.where(out, 0, size).astype(np.int32)
  return fields


def _splits(
  clients: Partition | HeldOut,
) -> tuple[tuple[str, np.ndarray, np.ndarray], ...]:
  """The order and the sizes of both kinds of rows, with its name."""
  return (
    ("train", clients.train_order, clients.train_size),
    ("test", clients.test_order, clients.test_size),
  )
