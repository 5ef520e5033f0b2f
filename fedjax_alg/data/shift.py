"""Distribution shift: the clients' data change during the training.

The kinds of shift follow FlexCFL (Duan et al., IEEE TPDS 2022). Unlike there, a
swap neither loses nor duplicates rows.
"""

from typing import Any

import numpy as np

from fedjax_alg.data.errors import DataError
from fedjax_alg.data.partition import Partition, client_rows, split_fields
from fedjax_alg.errors import check_one_of

SHIFTS = ("none", "swap_all", "swap_part", "increment")
#: The kinds in which pairs of clients exchange data.
SWAPS = ("swap_all", "swap_part")


def num_pairs(share: float, num_clients: int) -> int:
  """Computes the number of pairs that exchange data at one event.

  Args:
    share: share of the clients that are paired.
    num_clients: C.

  Returns:
    The number of pairs.

  Raises:
    DataError: there would be no pair.
  """
  pairs = int(share * num_clients / 2 + 1e-9)  # 0.3 * 20 / 2 is below 3
  if pairs < 1:
    raise DataError(
      f"`shift_share`={share}: makes no pair of {num_clients} "
      f"clients (at least {2 / max(num_clients, 2):.2g})"
    )
  return pairs


def shifted(
  partition: Partition,
  y_train: np.ndarray,
  y_test: np.ndarray,
  kind: str,
  event: int,
  share: float,
  seed: int,
) -> Partition:
  """Computes the partition after some events of a shift.

  ``swap_all``: random pairs of clients exchange all their data.
  ``swap_part``: random pairs of clients exchange all rows of one class. Each
    client gives a class drawn at random from those of its training rows. The
    rows that a client receives follow the rows that it keeps.
  ``increment``: clients hold the first 25, 50, 75, 100 % of their training
    rows after 0, 1, 2, 3 events, but at least one row unless they have none.

  The order arrays keep their lengths; only ``swap_part`` changes their
  entries. After ``swap_all`` and ``increment`` the offsets are no longer
  cumulative sizes: read the rows of a client with ``partition.client_rows``.

  Args:
    partition: the partition before the first event; it is not modified.
    y_train: labels of the rows that ``train_order`` indexes.
    y_test: labels of the rows that ``test_order`` indexes.
    kind: one of ``SHIFTS``.
    event: number of events that have happened, >= 0.
    share: share of the clients that are paired at each swap, (0, 1].
    seed: seed of the pairs and classes, >= 0.

  Returns:
    The new partition.

  Raises:
    DataError: see ``num_pairs``.
    OptionError: an unknown kind.
  """
  check_one_of(f"`shift`={kind}", kind, SHIFTS)
  if kind == "increment":
    size = partition.train_size.astype(np.int64)
    part = np.maximum(size * min(event + 1, 4) // 4, np.minimum(size, 1))
    return partition._replace(train_size=part.astype(np.int32))
  if kind == "none":
    return partition
  pairs = num_pairs(share, partition.num_clients)
  for number in range(1, event + 1):
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(3, number)))
    order = rng.permutation(partition.num_clients)
    a, b = order[:pairs], order[pairs : 2 * pairs]
    if kind == "swap_all":
      partition = _swap_all(partition, a, b)
    else:
      partition = _swap_part(partition, y_train, y_test, a, b, rng)
  return partition


def _swap_all(partition: Partition, a: np.ndarray, b: np.ndarray) -> Partition:
  source = np.arange(partition.num_clients)
  source[a], source[b] = b, a
  return partition._replace(
    **{
      name: getattr(partition, name)[source]
      for name in ("train_offset", "train_size", "test_offset", "test_size")
    }
  )


def _swap_part(
  partition: Partition,
  y_train: np.ndarray,
  y_test: np.ndarray,
  a: np.ndarray,
  b: np.ndarray,
  rng: np.random.Generator,
) -> Partition:
  train, test = (
    np.split(order[client_rows(offset, size)], np.cumsum(size)[:-1])
    for order, offset, size in (partition[:3], partition[3:6])
  )
  for pair in zip(a.tolist(), b.tolist()):
    classes = []
    for client in pair:
      labels = np.unique(y_train[train[client]])
      classes.append(rng.choice(labels) if len(labels) else -1)  # -1: no rows
    for rows, y in ((train, y_train), (test, y_test)):
      masks = [y[rows[client]] == label for client, label in zip(pair, classes)]
      parts = [
        (rows[client][~mask], rows[client][mask]) for client, mask in zip(pair, masks)
      ]
      rows[pair[0]] = np.concatenate([parts[0][0], parts[1][1]])
      rows[pair[1]] = np.concatenate([parts[1][0], parts[0][1]])
  fields: dict[str, Any] = {}
  for name, rows in (("train", train), ("test", test)):
    fields |= split_fields(name, np.concatenate(rows), np.array(list(map(len, rows))))
  return partition._replace(**fields)
