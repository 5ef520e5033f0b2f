"""Partitions: deterministic functions of the labels, a ``Partitioner`` and a seed.

The partitioners are in ``label_skew``, ``published``, ``partition_file`` and
``own_partition``; ``options.PARTITIONS`` lists them.
"""

import hashlib
from typing import ClassVar, NamedTuple

import numpy as np

from fedjax_alg import own, tasks
from fedjax_alg.data import allocate
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples, check_memory
from fedjax_alg.data.layout import aligned_zeros
from fedjax_alg.part import Part

#: Rows that are counted at once.
_ROWS = 2**20


class HeldOut(NamedTuple):
  """N clients that never take part, see ``hold_out`` and ``leave_out``."""

  clients: np.ndarray  #: [N] int32, positions among all clients, held out or not
  #: [V] int64, training rows of these clients, client by client: the server's
  #: validation rows; indices as in ``Partition.train_order``
  train_order: np.ndarray
  train_size: np.ndarray  #: [N] int32, rows of each client, with the sum V
  #: [U] int64, local test rows of these clients, which are not used; indices
  #: as in ``Partition.test_order``
  test_order: np.ndarray
  test_size: np.ndarray  #: [N] int32, local test rows of each client


class Partition(NamedTuple):
  """The rows of the data set that each client holds.

  The rows of one client are contiguous in the order arrays. ``train_order``
  holds indices into x_train and ``test_order`` into x_test. If ``pooled`` is
  true, both hold indices into the concatenation of x_train and x_test, because
  the local test splits are then taken from all rows.
  """

  train_order: np.ndarray  #: [M] int64 row indices
  train_offset: np.ndarray  #: [C] int32, into train_order
  train_size: np.ndarray  #: [C] int32
  test_order: np.ndarray  #: [N] int64 row indices
  test_offset: np.ndarray  #: [C] int32, into test_order
  test_size: np.ndarray  #: [C] int32, may be 0
  pooled: bool
  name: str  #: the kind of partition
  flags: dict[str, object]  #: every option that the partition depends on
  held_out: HeldOut | None = None  #: validation clients, not among the C
  #: the clients that `without` names, whose places among the C or in ``held_out``
  #: have no rows; None if it names none
  left_out: HeldOut | None = None

  @property
  def num_clients(self) -> int:
    """C, without the validation clients."""
    return len(self.train_size)

  @property
  def places(self) -> np.ndarray:
    """[C] int, the positions of the C clients among all, also validation clients."""
    if self.held_out is None:
      return np.arange(self.num_clients)
    total = self.num_clients + len(self.held_out.clients)
    places: np.ndarray = np.delete(np.arange(total), self.held_out.clients)
    return places


class Partitioner(Part):
  """A way to deal the examples of a data set to clients.

  The class of an example is its label (``Examples.labels``): of a real target
  the quantile that it lies in, of several labels or pixels the most frequent
  one. Those that deal by the class refuse examples without a label.
  """

  #: whether it reads the classes of the examples
  BY_CLASS: ClassVar[bool] = True
  #: whether the data or a file say the clients, of which `num_clients` are all
  HAS_CLIENTS: ClassVar[bool] = False

  def deal(self, examples: Examples, num_clients: int | None, seed: int) -> Partition:
    """Deals the examples to clients.

    Here the training examples go to the owners that ``assign`` gives them, and the
    official test set is spread over the clients in proportion to their training
    counts of each class (``allocate.spread_test``).

    Args:
      examples: the data set; only labels and client ids are read.
      num_clients: C; None where the data set or a file has the clients.
      seed: seed of all random numbers.

    Raises:
      DataError: the data cannot be divided in this way.
    """
    count, rng = self._count(num_clients), np.random.default_rng(seed)
    labels = self._labels(examples)
    check_counts(count, labels.number)
    owner = self.assign(labels.train, labels.number, count, rng)
    histogram = np.zeros((count, labels.number), np.int64)
    used = owner >= 0
    np.add.at(histogram, (owner[used], labels.train[used]), 1)
    available = np.bincount(labels.test, minlength=labels.number)
    test_owner = allocate.deal_classes(
      labels.test, allocate.spread_test(histogram, available, rng), rng
    )
    return Partition(
      *allocate.pack(owner, count, rng),
      *allocate.pack(test_owner, count, rng),
      False,
      self.name,
      self._facts(seed, count),
    )

  def assign(
    self,
    y: np.ndarray,
    num_classes: int,
    num_clients: int,
    rng: np.random.Generator,
  ) -> np.ndarray:
    """Finds the client of every training example.

    Args:
      y: [n] int, the classes of the examples.
      num_classes: L.
      num_clients: C.
      rng: draws all random numbers.

    Returns:
      [n] int64 in [0, C); -1 for an example that nobody gets.

    Raises:
      DataError: the examples cannot be divided in this way.
    """
    raise NotImplementedError

  @property
  def name(self) -> str:
    """What a partition is called."""
    return self.WORD

  def source(self) -> own.Source | None:
    """The file of the user's own that decides the partition; None if there is none."""
    return None

  def _count(self, num_clients: int | None) -> int:
    """C, which has to be given.

    Raises:
      DataError: it is not.
    """
    if num_clients is None:
      raise DataError(f"`partition`={self} needs `num_clients`")
    return num_clients

  def _facts(self, seed: int, num_clients: int) -> dict[str, object]:
    """Every option that the partition depends on."""
    return {"partition": str(self), "seed": seed, "num_clients": num_clients}

  def _labels(self, examples: Examples) -> tasks.Labels:
    """The labels of the examples.

    Raises:
      DataError: they have none, and are dealt by them.
    """
    task, labels = tasks.of(examples), examples.labels()
    if self.BY_CLASS and labels.number == 1 and not task.has_classes:
      raise self._no_label(task)
    return labels

  def _no_label(self, task: tasks.Task) -> DataError:
    return DataError(
      f"`partition`={self}: deals examples by their label, those of "
      f"`task`={task.name} have none (use iid, natural or file)"
    )


def split_fields(
  split: str, order: np.ndarray, size: np.ndarray
) -> dict[str, np.ndarray]:
  """The fields of a ``Partition`` for one kind of rows.

  Args:
    split: "train" or "test".
    order: [M] int64, the rows of all clients back to back.
    size: [C] int, number of rows of each client.

  Returns:
    Name -> array.
  """
  size = size.astype(np.int32)
  return {
    f"{split}_order": order,
    f"{split}_size": size,
    f"{split}_offset": allocate.offsets(size),
  }


def partition_hash(partition: Partition) -> str:
  """Computes the sha256 (hex) of a partition's arrays, without its options."""
  digest = hashlib.sha256(b"pooled" if partition.pooled else b"official")
  for array, dtype in zip(partition[:6], ("<i8", "<i4", "<i4") * 2):
    digest.update(f"{array.shape}".encode())
    digest.update(np.ascontiguousarray(array, dtype).tobytes())
  # test_size came after the first hashes, and follows from the clients.
  for array in (partition.held_out or ())[:4]:
    digest.update(f"held out {array.shape}".encode())
    digest.update(np.ascontiguousarray(array, "<i8").tobytes())
  return digest.hexdigest()


def client_rows(offset: np.ndarray, size: np.ndarray) -> np.ndarray:
  """Lists the places of the clients' rows in an order array.

  Args:
    offset: [C] int, first place of each client.
    size: [C] int, number of rows of each client.

  Returns:
    [sum of size] int64, client by client; 0, 1, 2, ... if the clients lie
    back to back.
  """
  size = size.astype(np.int64)
  shift = np.repeat(offset - (np.cumsum(size) - size), size)
  return shift + np.arange(size.sum())


def check_counts(num_clients: int, classes: int) -> None:
  """Checks that [C, L] fits: int32, here and on the devices."""
  check_memory(
    f"`num_clients`={num_clients}: counting {classes:,} classes at each client",
    8.0 * num_clients * classes,
  )


def label_histogram(
  partition: Partition, y: np.ndarray, num_classes: int | None = None
) -> np.ndarray:
  """Counts the training examples of each class at each client.

  Args:
    partition: the partition.
    y: [n] the labels that ``train_order`` indexes: those for training or, if
      the partition is pooled, those for training and then for testing.
    num_classes: L; by default the largest label plus one.

  Returns:
    [C, L] int32, at an address that a CPU device can use.
  """
  classes = int(y.max()) + 1 if num_classes is None else num_classes
  check_counts(partition.num_clients, classes)
  histogram = aligned_zeros((partition.num_clients, classes), np.int32)
  offset, size = partition.train_offset, partition.train_size
  # Some clients at a time, for the memory of many.
  step = max(1, _ROWS * partition.num_clients // max(1, int(size.sum())))
  for begin in range(0, partition.num_clients, step):
    part = slice(begin, begin + step)
    rows = partition.train_order[client_rows(offset[part], size[part])]
    client = np.repeat(np.arange(len(size[part])), size[part])
    np.add.at(histogram[part], (client, y[rows]), 1)
  return histogram
