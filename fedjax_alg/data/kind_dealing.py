"""Deals kinds to clients, and the rows of a kind to its clients."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from fedjax_alg.data import allocate, store
from fedjax_alg.data.client_names import name_at
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.kind_changes import Kinds, NaturalKinds, OwnKinds
from fedjax_alg.data.kinds import STREAM, ClientKinds
from fedjax_alg.data.partition import Partition, Partitioner, split_fields


def share_out(number: int, clients: int, shares: Sequence[float] | None) -> np.ndarray:
  """Computes how many clients are of each kind.

  Args:
    number: K.
    clients: C.
    shares: [K] positive numbers; None: equal ones.

  Returns:
    [K] int64, at least 1 each, with the sum C.

  Raises:
    DataError: there are fewer clients than kinds.
  """
  if number > clients:
    raise DataError(
      f"`kinds`: {number} kinds need as many clients, there are {clients} "
      f"(`num_clients`)"
    )
  weights = np.ones(number) if shares is None else np.asarray(shares, np.float64)
  return allocate.allocate(
    weights, clients, np.ones(number, np.int64), np.full(number, clients)
  )


def _shuffle(sizes: np.ndarray, seed: int) -> np.ndarray:
  """The kinds of clients in random order, [C] int32."""
  rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM,)))
  kinds = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
  return rng.permutation(kinds)


def deal_kinds(
  change: Kinds, examples: Examples, partition: Partition, seed: int
) -> np.ndarray | None:
  """Finds the kind of each client.

  Kinds that the data bring are those of a client's rows. Else kinds are dealt at
  random, in the numbers of ``share_out``.

  Args:
    change: the option `kinds`.
    examples: the data set.
    partition: all clients, before any are held out.
    seed: seed of the choice; the random stream is not that of the partition.

  Returns:
    [C] int32; None if the clients do not differ in kind.

  Raises:
    DataError: a client has rows of two kinds, or the options do not fit.
  """
  clients, number = partition.num_clients, len(change.names)
  if examples.kind_train is not None:
    names = examples.kind_names
    if change.ONE_EACH:
      raise DataError(
        f"{change.label}: makes every client a kind of its own, "
        f"{examples.name} brings kinds"
      )
    if number and number < len(names):
      raise DataError(
        f"{change.label}: has {number} kinds, {examples.name} brings {len(names)}"
      )
    return _kinds_of_rows(examples, partition)
  if isinstance(change, NaturalKinds):
    if change.weights is not None:
      raise DataError(
        f"{change.label}: `shares` are not read, {examples.name} brings no kinds"
      )
    return None
  if change.ONE_EACH:
    return np.arange(clients, dtype=np.int32)
  number = change.count()
  change.check_shares(number, change.label)
  return _shuffle(share_out(number, clients, change.weights), seed)


def _kinds_of_rows(examples: Examples, partition: Partition) -> np.ndarray:
  """The kind of each client's rows, [C] int32."""
  train: Any = examples.kind_train
  test: Any = examples.kind_test
  if partition.pooled:
    train = test = np.concatenate([train, test])
  least = np.full(partition.num_clients, np.iinfo(np.int32).max, np.int32)
  most = np.full(partition.num_clients, -1, np.int32)
  for kinds, order, size in (
    (train, partition.train_order, partition.train_size),
    (test, partition.test_order, partition.test_size),
  ):
    client = np.repeat(np.arange(partition.num_clients), size)
    np.minimum.at(least, client, kinds[order])
    np.maximum.at(most, client, kinds[order])
  mixed = np.flatnonzero(least < most)
  if len(mixed):
    names = examples.kind_names
    name = name_at(examples, partition, mixed[0])
    raise DataError(
      f"{examples.name}: client {name} has rows of the kinds "
      f"{names[least[mixed[0]]]} and {names[most[mixed[0]]]}, a client is of one kind"
    )
  return most


def deal_by_kind(
  examples: Examples,
  partitioner: Partitioner,
  num_clients: int,
  change: Kinds,
  seed: int,
) -> Partition:
  """Deals rows of data that bring kinds, those of each kind to its clients.

  Args:
    examples: the data set, with ``kind_train``.
    partitioner: deals the rows of one kind to its clients.
    num_clients: C.
    change: the option `kinds`, with shares.
    seed: seed of the partition and of the kinds of the clients.

  Returns:
    The partition; clients of one kind are in the order of the partition of
    their rows.

  Raises:
    DataError: see ``share_out`` and ``Partitioner.deal``.
  """
  number = len(examples.kind_names)
  change.check_shares(number, examples.name)
  sizes = share_out(number, num_clients, change.weights)
  if number == 1:
    return partitioner.deal(examples, num_clients, seed)
  n = examples.rows[0]
  kinds, parts = _shuffle(sizes, seed), []
  flags: dict[str, Any] = {}
  rows_of: dict[str, list[Any]] = {"train": [], "test": []}
  for kind, clients in enumerate(sizes.tolist()):
    train = np.flatnonzero(examples.kind_train == kind)
    test = np.flatnonzero(examples.kind_test == kind)
    y_train, y_test = (
      store.map_arrays(lambda y, rows=rows: y[rows], tree)
      for tree, rows in ((examples.y_train, train), (examples.y_test, test))
    )
    if not len(train):
      raise DataError(
        f"{examples.name}: the kind {examples.kind_names[kind]} has no training rows"
      )
    of_kind = dataclasses.replace(examples, y_train=y_train, y_test=y_test)
    part = partitioner.deal(of_kind, clients, seed)
    if part.pooled:
      train = test = np.concatenate([train, n + test])
    for split, rows, order, size in (
      ("train", train, part.train_order, part.train_size),
      ("test", test, part.test_order, part.test_size),
    ):
      rows_of[split] += np.split(rows[order], np.cumsum(size)[:-1])
    parts.append(part)
    flags |= part.flags
  # Client c is the next one of its kind.
  place = np.argsort(np.argsort(kinds, kind="stable"), kind="stable")
  fields: dict[str, Any] = {}
  for split, of_clients in rows_of.items():
    ordered = [of_clients[i] for i in place.tolist()]
    fields |= split_fields(
      split, np.concatenate(ordered), np.array(list(map(len, ordered)))
    )
  return parts[0]._replace(**fields, flags=flags | {"num_clients": num_clients})


def client_kinds(
  change: Kinds, kinds: np.ndarray, before: Examples, after: Examples
) -> ClientKinds:
  """The kinds of the clients that a federation has, numbered from 0.

  Args:
    change: the option `kinds`.
    kinds: [C] int32, the kind of each client, without validation clients.
    before: the data set.
    after: what its kinds made of it.

  Returns:
    The kinds; of those that no client has there are none.
  """
  present, of_client = np.unique(kinds, return_inverse=True)
  names = change.names
  if isinstance(change, NaturalKinds | OwnKinds):
    names = before.kind_names or names
  same = all(
    np.array_equal(a, b)
    for a, b in zip(
      store.arrays((before.y_train, before.y_test)),
      store.arrays((after.y_train, after.y_test)),
    )
  )
  return ClientKinds(
    of_client.reshape(-1).astype(np.int32),
    tuple(names[kind] if names else str(kind) for kind in present.tolist()),
    same,
  )
