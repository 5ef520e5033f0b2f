"""Distribution shift: the clients' data change during the training.

The kinds of shift follow FlexCFL (Duan et al., IEEE TPDS 2022). Unlike there, a
swap neither loses nor duplicates rows.
"""

import functools
from typing import Any, ClassVar

import numpy as np

from fedjax_alg.data.errors import DataError
from fedjax_alg.data.partition import Partition, client_rows, split_fields
from fedjax_alg.data.schedule import Change, DataSchedule, Holdings
from fedjax_alg.hparams import hyper
from fedjax_alg.part import parts_of


class Shift(Change):
  """How the clients' data change."""

  OPTION = "shift"
  SWAPS: ClassVar[bool] = False  #: whether pairs of clients exchange data

  def check(self, num_clients: int) -> None:
    """Checks the shift against the number of clients.

    Args:
      num_clients: C.

    Raises:
      DataError: no pair of clients would exchange data.
    """
    del num_clients

  def apply(
    self,
    partition: Partition,
    y_train: np.ndarray,
    y_test: np.ndarray,
    event: int,
    seed: int,
  ) -> Partition:
    """Computes the partition after some events.

    The order arrays keep their lengths; only ``SwapPart`` changes their entries.
    After ``SwapAll`` and ``Increment`` the offsets are no longer cumulative sizes:
    read the rows of a client with ``partition.client_rows``.

    Args:
      partition: the partition before the first event; it is not modified.
      y_train: labels of the rows that ``train_order`` indexes.
      y_test: labels of the rows that ``test_order`` indexes.
      event: number of events that have happened, >= 0.
      seed: seed of the pairs and classes, >= 0.

    Returns:
      The new partition.

    Raises:
      DataError: see ``check``.
    """
    raise NotImplementedError

  def schedule(
    self, partition: Partition, y_train: np.ndarray, y_test: np.ndarray, seed: int
  ) -> DataSchedule | None:
    """Makes the schedule of these clients.

    Args:
      partition: the partition before the first event.
      y_train: labels of the rows at the places of ``train_order``.
      y_test: labels of the rows at the places of ``test_order``.
      seed: seed of the pairs and classes, >= 0.

    Returns:
      The schedule, with an event at each step but the first; None: no event.
    """
    if self.period is None:
      return None
    places = partition._replace(
      train_order=np.arange(len(partition.train_order)),
      test_order=np.arange(len(partition.test_order)),
    )
    at = functools.partial(_after_events, self, places, y_train, y_test, seed)
    return DataSchedule(every=self.period, at=at)


def _after_events(
  shift: Shift,
  partition: Partition,
  y_train: np.ndarray,
  y_test: np.ndarray,
  seed: int,
  event: int,
) -> Holdings:
  """The rows of the clients after some events."""
  return Holdings(shift.apply(partition, y_train, y_test, event, seed))


class NoShift(Shift):
  """The clients' data stay as they are."""

  WORD, EXAMPLE = "none", "none"

  def apply(self, partition, y_train, y_test, event, seed):
    """The same partition (``Shift.apply``)."""
    return partition


class _Periodic(Shift):
  """A shift with an event each time that so many rounds have been run."""

  PERIOD = "every"

  every: int = hyper(
    50,
    "number of rounds between two changes; the last round before a change is always "
    "evaluated",
    minimum=1,
  )


class Increment(_Periodic):
  """Clients hold 25, 50, 75, 100 % of their training data after 0, 1, 2, 3 changes.

  These are their first rows, but at least one unless they have none.
  """

  WORD, EXAMPLE = "increment", "increment:20"

  def apply(self, partition, y_train, y_test, event, seed):
    """Shows more of the same rows (``Shift.apply``)."""
    size = partition.train_size.astype(np.int64)
    part = np.maximum(size * min(event + 1, 4) // 4, np.minimum(size, 1))
    return partition._replace(train_size=part.astype(np.int32))


class _Swap(_Periodic):
  """A shift in which pairs of clients exchange data."""

  SWAPS: ClassVar[bool] = True

  share: float = hyper(
    0.2,
    "share of the clients, in (0, 1], that are put into pairs at each change",
    above=0,
    maximum=1,
  )

  def num_pairs(self, num_clients: int) -> int:
    """Computes the number of pairs that exchange data at one event.

    Args:
      num_clients: C.

    Raises:
      DataError: there would be no pair.
    """
    pairs = int(self.share * num_clients / 2 + 1e-9)  # 0.3 * 20 / 2 is below 3
    if pairs < 1:
      raise DataError(
        f"`shift`={self}: share={self.share} makes no pair of {num_clients} "
        f"clients (at least {2 / max(num_clients, 2):.2g})"
      )
    return pairs

  def check(self, num_clients: int) -> None:
    """Checks that there is a pair (``Shift.check``)."""
    self.num_pairs(num_clients)

  def apply(self, partition, y_train, y_test, event, seed):
    """Exchanges the rows of random pairs (``Shift.apply``)."""
    pairs = self.num_pairs(partition.num_clients)
    for number in range(1, event + 1):
      rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(3, number)))
      order = rng.permutation(partition.num_clients)
      a, b = order[:pairs], order[pairs : 2 * pairs]
      partition = self._exchange(partition, y_train, y_test, a, b, rng)
    return partition

  def _exchange(
    self,
    partition: Partition,
    y_train: np.ndarray,
    y_test: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    rng: np.random.Generator,
  ) -> Partition:
    """The partition in which clients ``a`` have exchanged rows with clients ``b``."""
    raise NotImplementedError


class SwapAll(_Swap):
  """The two clients of random pairs exchange all their data."""

  WORD, EXAMPLE = "swap_all", "swap_all:50,0.2"

  def _exchange(self, partition, y_train, y_test, a, b, rng):
    source = np.arange(partition.num_clients)
    source[a], source[b] = b, a
    return partition._replace(
      **{
        name: getattr(partition, name)[source]
        for name in ("train_offset", "train_size", "test_offset", "test_size")
      }
    )


class SwapPart(_Swap):
  """The two clients of random pairs exchange all examples of one class each.

  Each client gives a class of its training rows, drawn at random. The
  rows that a client receives follow the rows that it keeps.
  """

  WORD, EXAMPLE = "swap_part", "swap_part:50,0.2"

  def _exchange(self, partition, y_train, y_test, a, b, rng):
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


#: How the clients' data may change.
Choice = NoShift | SwapAll | SwapPart | Increment
#: The words of these.
SHIFTS = tuple(part.WORD for part in parts_of(Choice))
