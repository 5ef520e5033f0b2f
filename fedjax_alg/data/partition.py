"""Dealing a data set to clients: a pure function of labels, options, seed."""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg.data import allocate
from fedjax_alg.data import label_skew
from fedjax_alg.data import published
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples

PARTITIONS = ("iid", "classes", "dirichlet", "powerlaw", "natural")


class HeldOut(NamedTuple):
  """The N clients that never take part, see ``hold_out``."""

  clients: np.ndarray  #: [N] int32, their ids before they were held out
  #: [V] int64, the rows the server validates on: their training rows, client
  #: by client, indices like ``Partition.train_order``
  train_order: np.ndarray
  train_size: np.ndarray  #: [N] int32, rows of each; they sum to V
  #: [U] int64, their local test rows, which nobody uses; indices like
  #: ``Partition.test_order``
  test_order: np.ndarray


class Partition(NamedTuple):
  """Which rows each client holds, the rows of one client contiguous.

  The order arrays index the rows of x_train (train) and x_test (test). If
  ``pooled``, both index the concatenation of x_train and x_test instead: then
  the local test splits are carved from all rows, not from the official test
  set.
  """

  train_order: np.ndarray  #: [M] int64 row indices
  train_offset: np.ndarray  #: [C] int32, into train_order
  train_size: np.ndarray  #: [C] int32
  test_order: np.ndarray  #: [N] int64 row indices
  test_offset: np.ndarray  #: [C] int32, into test_order
  test_size: np.ndarray  #: [C] int32, may be 0
  pooled: bool
  name: str  #: the kind
  flags: dict[str, Any]  #: every option that the split depends on
  held_out: HeldOut | None = None  #: clients that are not among the C

  @property
  def num_clients(self) -> int:
    return len(self.train_size)


def make_partition(
    kind: str,
    examples: Examples,
    num_clients: int | None,
    seed: int,
    *,
    classes_per_client: int = 2,
    min_classes_per_client: int | None = None,
    dirichlet_alpha: float = 0.5,
    min_client_size: int | None = None,
    size_sigma: float = 0.5,
    local_test_fraction: float = 0.1,
) -> Partition:
  """Deals the examples to clients.

  Kinds:
    ``iid``: sizes log-normal, every client a random sample.
    ``classes``: every client holds few classes; sizes log-normal.
    ``dirichlet``: each class is spread over the clients by Dirichlet(alpha)
      (per class over clients, the usual reading; Hsu et al. 2019 draw per
      client over classes).
    ``powerlaw``: the FedProx MNIST generator, see ``published.powerlaw``.
    ``natural``: the clients that the data set names.

  With iid, classes and dirichlet every training example is used exactly once
  and the official test set is spread over the clients by their own class
  proportions (``allocate.spread_test``).

  Args:
    kind: one of ``PARTITIONS``.
    examples: the data set; only labels and client ids are read.
    num_clients: C. ``natural``: None takes all clients, a number a random
      choice of so many.
    seed: of everything random here.
    classes_per_client: k of ``classes``, the largest number of classes.
    min_classes_per_client: of ``classes``; the number is uniform on [min, k].
      Default k: exactly k. 1 with k = 2 gives the diversified paper's machines
      of one or two classes.
    dirichlet_alpha: concentration, > 0.
    min_client_size: fewest training examples of a client, >= 1; default 10.
      ``natural``: clients with fewer rows are left out, default 1 (none is).
      ``powerlaw`` ignores it (it gives everyone 10, of which 9 train).
    size_sigma: log-normal sigma of the sizes of ``iid`` and ``classes``, in
      [0, 10]; 0 for equal sizes. Sizes that would be too small are raised to
      the minimum.
    local_test_fraction: ``natural`` without test ids holds out this part.

  Returns:
    The partition.

  Raises:
    DataError: options that are out of range or that the data cannot meet.
  """
  if kind not in PARTITIONS:
    raise DataError(
        f"`partition`={kind}: unknown, allowed: {', '.join(PARTITIONS)}")
  if num_clients is not None and num_clients < 1:
    raise DataError(f"`num_clients`={num_clients}: at least 1 is needed")
  if min_client_size is None:
    min_client_size = 1 if kind == "natural" else 10
  if min_client_size < 1:
    raise DataError(f"`min_client_size`={min_client_size}: at least 1 needed")
  if not 0 <= size_sigma <= 10:
    raise DataError(f"`size_sigma`={size_sigma}: must lie in [0, 10]")
  if not 0 < local_test_fraction < 1:
    raise DataError(
        f"`local_test_fraction`={local_test_fraction}: must lie in (0, 1)")
  rng = np.random.default_rng(seed)
  flags: dict[str, Any] = {"partition": kind, "seed": seed}
  if kind == "natural":
    split = published.natural(
        examples, num_clients, min_client_size, local_test_fraction, rng)
    if examples.client_test is None:
      flags["local_test_fraction"] = local_test_fraction
    flags |= {"min_client_size": min_client_size, "num_clients": len(split[1])}
    return Partition(*split, kind, flags)
  if num_clients is None:
    raise DataError(f"`partition`={kind} needs `num_clients`")
  flags["num_clients"] = num_clients
  if kind == "powerlaw":
    return Partition(
        *published.powerlaw(examples, num_clients, rng), kind, flags)
  if min_classes_per_client is None:
    min_classes_per_client = classes_per_client
  options = {
      "iid": {"size_sigma": size_sigma},
      "classes": {"size_sigma": size_sigma,
                  "classes_per_client": classes_per_client,
                  "min_classes_per_client": min_classes_per_client},
      "dirichlet": {"dirichlet_alpha": dirichlet_alpha},
  }[kind] | {"min_client_size": min_client_size}
  owner = label_skew.OWNERS[kind](
      examples.y_train, examples.num_classes, num_clients, rng, **options)
  held = np.zeros((num_clients, examples.num_classes), np.int64)
  np.add.at(held, (owner, examples.y_train), 1)
  available = np.bincount(examples.y_test, minlength=examples.num_classes)
  test_owner = allocate.deal(
      examples.y_test, allocate.spread_test(held, available, rng), rng)
  return Partition(
      *allocate.pack(owner, num_clients, rng),
      *allocate.pack(test_owner, num_clients, rng), False, kind,
      flags | options)


def partition_hash(partition: Partition) -> str:
  """sha256 (hex) of the split itself; equal splits have equal hashes."""
  digest = hashlib.sha256(b"pooled" if partition.pooled else b"official")
  for array, dtype in zip(partition[:6], ("<i8", "<i4", "<i4") * 2):
    digest.update(f"{array.shape}".encode())
    digest.update(np.ascontiguousarray(array, dtype).tobytes())
  for array in partition.held_out or ():
    digest.update(f"held out {array.shape}".encode())
    digest.update(np.ascontiguousarray(array, "<i8").tobytes())
  return digest.hexdigest()


def client_rows(offset: np.ndarray, size: np.ndarray) -> np.ndarray:
  """Places of the clients' rows in an order array, client by client.

  Args:
    offset: [C] int, first place of each client.
    size: [C] int.

  Returns:
    [sum of size] int64; 0, 1, 2, ... where the clients lie back to back.
  """
  size = size.astype(np.int64)
  shift = np.repeat(offset - (np.cumsum(size) - size), size)
  return shift + np.arange(size.sum())


def label_histogram(
    partition: Partition, y: np.ndarray, num_classes: int | None = None
) -> np.ndarray:
  """Training examples of each class at each client.

  Args:
    partition: the split.
    y: [n] the labels that ``train_order`` indexes: y_train or, if the split
      is pooled, y_train followed by y_test.
    num_classes: L; default the largest label plus one.

  Returns:
    [C, L] int64.
  """
  classes = int(y.max()) + 1 if num_classes is None else num_classes
  client = np.repeat(np.arange(partition.num_clients), partition.train_size)
  histogram = np.zeros((partition.num_clients, classes), np.int64)
  rows = partition.train_order[
      client_rows(partition.train_offset, partition.train_size)]
  np.add.at(histogram, (client, y[rows]), 1)
  return histogram
