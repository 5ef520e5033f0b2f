"""Partitions: deterministic functions of the labels, the options and a seed."""

import hashlib
from typing import NamedTuple

import numpy as np

from fedjax_alg import own, tasks
from fedjax_alg.data import allocate, label_skew, own_partition, published
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples, check_memory

PARTITIONS = ("iid", "classes", "shards", "dirichlet", "powerlaw", "natural")


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


def make_partition(
  kind: str,
  examples: Examples,
  num_clients: int | None,
  seed: int,
  *,
  classes_per_client: int = 2,
  min_classes_per_client: int | None = None,
  dirichlet_alpha: float = 0.5,
  dirichlet_even: bool = False,
  min_client_size: int | None = None,
  size_sigma: float = 0.5,
  local_test_fraction: float = 0.1,
  local_test_stratified: bool = False,
  quantity_alpha: float | None = None,
  random_classes: bool = False,
) -> Partition:
  """Deals the examples to clients.

  Kinds:
    ``iid``: every client holds a random sample; sizes are log-normal.
    ``classes``: every client holds few classes; sizes are log-normal. With
      ``random_classes`` the classes are drawn by the rule of NIID-Bench, see
      ``label_skew._few_classes``.
    ``dirichlet``: the shares of the clients in each class are drawn from
      Dirichlet(alpha). (This is the usual definition; Hsu et al. 2019 draw the
      shares of the classes in each client instead.) With ``dirichlet_even``
      by the rule of NIID-Bench, see ``label_skew._dirichlet``.
    ``shards``: the examples sorted by class, cut into C k equal shards, of
      which every client gets k (McMahan et al. 2017).
    ``powerlaw``: the FedProx MNIST generator, see ``published.powerlaw``.
    ``natural``: the clients that the data set names.
    ``FILE.py:NAME``: the rows that a function of the user's own gives each client
      (``own_partition``); training rows that it leaves out are not used.

  The class of an example is its label (``Examples.labels``): of a real target
  the quantile that it lies in, of several labels or pixels the most frequent
  one. Examples without a label, and ``powerlaw``, which reads classes, are
  refused.

  With iid, classes, shards and dirichlet every training example is used exactly
  once. With these and with a function the official test set is spread over the
  clients in proportion to their training counts of each class
  (``allocate.spread_test``).

  Args:
    kind: one of ``PARTITIONS``, or the name of a function.
    examples: the data set; only labels and client ids are read.
    num_clients: C. For ``natural``, None takes all clients, and a number takes
      a random choice of so many clients.
    seed: seed of all random numbers.
    classes_per_client: k, the maximum number of classes of a client
      (``classes``), or its number of shards (``shards``).
    min_classes_per_client: minimum number of classes of a client
      (``classes``); the number is uniform on [min, k]. By default every client
      has k classes. A minimum of 1 with k = 2 gives the clients of one or two
      classes of the diversified paper.
    dirichlet_alpha: concentration, > 0 (``dirichlet``).
    dirichlet_even: whether a client gets no more classes when it has n / C
      examples (``dirichlet``).
    min_client_size: minimum number of training examples of a client, >= 1;
      default 10. ``natural`` leaves out clients with fewer rows; its default
      of 1 leaves out none. ``powerlaw`` ignores it: its clients have at least
      10 examples, 9 of them for training.
    size_sigma: log-normal sigma of the sizes, in [0, 10]; 0 gives equal sizes
      (``iid``, ``classes``). Sizes below the minimum are raised to it.
    local_test_fraction: share of the examples of a client that ``natural``
      holds out if the data set names no clients of test rows.
    local_test_stratified: whether ``natural`` holds out rows of every class in
      proportion to the client's examples of it.
    quantity_alpha: concentration of the Dirichlet distribution of the sizes, in
      the place of log-normal ones (``iid``, ``classes``).
    random_classes: whether client i holds class i modulo L and random others,
      rather than that every class has as many clients (``classes``).

  Returns:
    The partition.

  Raises:
    DataError: the data cannot be divided in this way.
    KeyError, ValueError, ZeroDivisionError: a value is out of range, which
      ``federate`` checks before.

  Examples:
    >>> from fedjax_alg.data.sources import load_digits
    >>> digits = load_digits()
    >>> dealt = make_partition("classes", digits, 30, seed=0)
    >>> held = label_histogram(dealt, digits.y_train)
    >>> held.shape, int(held.sum()) == len(digits.y_train)
    ((30, 10), True)
    >>> set((held > 0).sum(1).tolist())
    {2}
  """
  if min_client_size is None:
    min_client_size = 1 if kind == "natural" else 10
  rng = np.random.default_rng(seed)
  flags: dict[str, object] = {"partition": kind, "seed": seed}
  if kind == "natural":
    split = published.natural(
      examples,
      num_clients,
      min_client_size,
      local_test_fraction,
      rng,
      _labels_to_stratify(examples) if local_test_stratified else None,
    )
    if examples.client_test is None:
      flags["local_test_fraction"] = local_test_fraction
      if local_test_stratified:
        flags["local_test_stratified"] = True
    flags |= {"min_client_size": min_client_size, "num_clients": len(split[1])}
    return Partition(*split, kind, flags)
  if num_clients is None:
    raise DataError(f"`partition`={kind} needs `num_clients`")
  labels = _labels(kind, examples)
  _check_counts(num_clients, labels.number)
  flags["num_clients"] = num_clients
  if kind == "powerlaw":
    return Partition(*published.powerlaw(examples, num_clients, rng), kind, flags)
  options: dict[str, object] = {}
  if own.is_own(kind):
    options["sha256"] = own.load(kind, "partition")[1].sha256
    owner = own_partition.deal_rows(kind, labels.train, num_clients, rng)
  else:
    if min_classes_per_client is None:
      min_classes_per_client = classes_per_client
    # random_classes and dirichlet_even are left out at their defaults.
    of_kind: dict[str, dict[str, object]] = {
      "iid": {"size_sigma": size_sigma},
      "classes": {
        "size_sigma": size_sigma,
        "classes_per_client": classes_per_client,
        "min_classes_per_client": min_classes_per_client,
        **({"random_classes": True} if random_classes else {}),
      },
      "shards": {"classes_per_client": classes_per_client},
      "dirichlet": {
        "dirichlet_alpha": dirichlet_alpha,
        **({"dirichlet_even": True} if dirichlet_even else {}),
      },
    }
    options = of_kind[kind] | {"min_client_size": min_client_size}
    if quantity_alpha is not None and "size_sigma" in options:
      options["quantity_alpha"] = quantity_alpha
    owner = label_skew.OWNERS[kind](
      labels.train, labels.number, num_clients, rng, **options
    )
  histogram = np.zeros((num_clients, labels.number), np.int64)
  used = owner >= 0
  np.add.at(histogram, (owner[used], labels.train[used]), 1)
  available = np.bincount(labels.test, minlength=labels.number)
  test_owner = allocate.deal_classes(
    labels.test, allocate.spread_test(histogram, available, rng), rng
  )
  return Partition(
    *allocate.pack(owner, num_clients, rng),
    *allocate.pack(test_owner, num_clients, rng),
    False,
    kind,
    flags | options,
  )


def _labels(kind: str, examples: Examples) -> tasks.Labels:
  """The labels of the examples, which a kind of partition may need.

  Raises:
    DataError: it does, and there are none.
  """
  task, labels = tasks.of(examples), examples.labels()
  if (
    kind == "powerlaw"
    and not task.has_classes
    or (kind != "iid" and labels.number == 1 and not task.has_classes)
  ):
    raise DataError(
      f"`partition`={kind}: deals examples by their label, those of "
      f"`task`={task.name} have none (use iid, natural or file)"
    )
  return labels


def _labels_to_stratify(examples: Examples) -> np.ndarray:
  """The labels [n] by which local test splits are made.

  Raises:
    DataError: the examples have none.
  """
  labels = examples.labels()
  if labels.number == 1 and not tasks.of(examples).has_classes:
    raise DataError(
      f"`local_test_stratified`: examples of `task`={tasks.of(examples).name} have no "
      "label"
    )
  return labels.train


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


def _check_counts(num_clients: int, classes: int) -> None:
  """Checks that [C, L] fits: int64, and float32 here and on the devices."""
  check_memory(
    f"`num_clients`={num_clients}: counting {classes:,} classes at each client",
    16.0 * num_clients * classes,
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
    [C, L] int64.
  """
  classes = int(y.max()) + 1 if num_classes is None else num_classes
  _check_counts(partition.num_clients, classes)
  client = np.repeat(np.arange(partition.num_clients), partition.train_size)
  histogram = np.zeros((partition.num_clients, classes), np.int64)
  rows = partition.train_order[
    client_rows(partition.train_offset, partition.train_size)
  ]
  np.add.at(histogram, (client, y[rows]), 1)
  return histogram
