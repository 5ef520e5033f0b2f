"""Published partitions: the FedProx power law, and natural clients."""

import dataclasses
from typing import ClassVar

import numpy as np

from fedjax_alg import tasks
from fedjax_alg.data import allocate
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.partition import Partition, Partitioner, check_counts
from fedjax_alg.hparams import hyper

#: The first seven fields of ``Partition``.
Split = tuple[
  np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool
]

_CLASSES = 2  # classes per client of the power law
_FIRST = 5  # examples of each of them in the first pass


class Powerlaw(Partitioner):
  """The partition of MNIST in FedProx's repository, for any C and L.

  Clients hold two classes and at least 10 examples, 9 of them for training. Training
  and test rows are pooled.
  """

  WORD, EXAMPLE = "powerlaw", "powerlaw"

  def deal(self, examples: Examples, num_clients: int | None, seed: int) -> Partition:
    """Deals the examples of two classes to each client (``Partitioner.deal``)."""
    count, labels = self._count(num_clients), self._labels(examples)
    check_counts(count, labels.number)
    split = _powerlaw(examples, count, np.random.default_rng(seed))
    return Partition(*split, self.name, self._facts(seed, count))

  def _labels(self, examples: Examples) -> tasks.Labels:
    task = tasks.of(examples)
    if not task.has_classes:
      raise self._no_label(task)
    return examples.labels()


class Natural(Partitioner):
  """The clients that the data set names, in the order of their names.

  If the data set does not say the clients of test rows, each client keeps examples
  for testing. With a number of clients, so many are chosen at random.

  Examples:
    >>> str(Natural(test_share=0.2, min_size=5))
    'natural:test_share=0.2,min_size=5'
  """

  WORD, EXAMPLE = "natural", "natural:test_share=0.2"
  HAS_CLIENTS: ClassVar[bool] = True

  _: dataclasses.KW_ONLY
  test_share: float = hyper(
    0.1, "share of its data that a client keeps for testing", above=0, below=1
  )
  stratified: bool = hyper(
    False,
    "whether these examples have every class in proportion to the client's examples "
    "of it",
  )
  min_size: int | None = hyper(
    None,
    "smallest number of examples of a client, before it keeps some for testing; "
    "others are left out; default 1, so that nobody is. Test rows of the data do not "
    "count. With `dataset`=sent140: smallest number of tweets of a user, for training "
    "and testing, default 20",
    minimum=1,
  )

  def deal(self, examples: Examples, num_clients: int | None, seed: int) -> Partition:
    """Takes the clients of the data set (``Partitioner.deal``)."""
    for name in ("test_share", "stratified"):
      value = getattr(self, name)
      default = type(self).__dataclass_fields__[name].default
      if examples.client_test is not None and value != default:
        raise DataError(
          f"`partition`={self}: {name} is not read, {examples.name} names the clients "
          "of test rows"
        )
    split = _natural(
      examples,
      num_clients,
      self,
      np.random.default_rng(seed),
      _labels_to_stratify(examples) if self.stratified else None,
    )
    return Partition(*split, self.name, self._facts(seed, len(split[1])))


def _labels_to_stratify(examples: Examples) -> np.ndarray:
  """The labels [n] by which local test splits are made.

  Raises:
    DataError: the examples have none.
  """
  labels = examples.labels()
  if labels.number == 1 and not tasks.of(examples).has_classes:
    raise DataError(
      f"`partition`=natural:stratified: examples of `task`={tasks.of(examples).name} "
      "have no label"
    )
  return labels.train


def _powerlaw(examples: Examples, num_clients: int, rng: np.random.Generator) -> Split:
  """Generates the partition of the FedProx repository for MNIST.

  Here it is extended to any C and L. The training and test rows are pooled.
  Client u holds the classes l = (u + j) % L, j in {0, 1}. In pass 1 it gets
  the next 5 rows of each of its classes. For pass 2, P [L, ceil(C / L), 2] is
  drawn from log-normal(0, 2), and each class of P is scaled so that it sums to
  the rows of the class that pass 1 left. The client gets the next q =
  int(P[l, u // L, j]) rows if more than q rows are left, otherwise none. The n
  rows of a client are shuffled; int(.9 n) of them are for training.

  With C = 1000 and L = 10 this is the published generator (Li et al. 2020), in
  which every P[l, i, j] belongs to one client. The index u // L keeps this
  property for other C and L. The rows of a class are used in the order of the
  data. As in the published generator some rows stay unused, about 1.4 % on
  MNIST.

  Args:
    examples: the data set.
    num_clients: C.
    rng: draws P first, then the shuffles.

  Returns:
    The first seven fields of ``Partition``; it is pooled.

  Raises:
    DataError: too few classes or too few examples of a class.
  """
  y = np.concatenate([examples.y_train, examples.y_test])
  labels = examples.num_classes
  if labels < _CLASSES:
    raise DataError(
      f"`partition`=powerlaw needs at least {_CLASSES} classes, the data has {labels}"
    )
  rows = [np.flatnonzero(y == label) for label in range(labels)]
  count = np.array([len(row) for row in rows])
  user = np.arange(num_clients)[:, None]
  j = np.arange(_CLASSES)
  label = (user + j) % labels  # [C, 2]
  places = np.bincount(label.ravel(), minlength=labels)  # places of a class
  first = _FIRST * places
  short = np.flatnonzero(first > count)
  if len(short):
    raise DataError(
      f"`num_clients`={num_clients}: `partition`=powerlaw gives every client"
      f" {_FIRST} examples of each of {_CLASSES} classes, class {short[0]}"
      f" has {count[short[0]]} of the {first[short[0]]} needed"
    )
  share = rng.lognormal(0.0, 2.0, (labels, -(-num_clients // labels), _CLASSES))
  share = (count - first)[:, None, None] * share / share.sum(axis=(1, 2), keepdims=True)
  number = share[label, user // labels, j].astype(np.int64)
  # The rows of a class are handed out in their order, in two passes.
  of_client: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
  pointer = np.zeros(labels, np.int64)
  for quota, least in ((np.full_like(number, _FIRST), 0), (number, 1)):
    for client, numbers in enumerate(quota.tolist()):
      for of_class, q in zip(label[client].tolist(), numbers):
        start = pointer[of_class]
        if start + q + least <= count[of_class]:
          of_client[client].append(rows[of_class][start : start + q])
          pointer[of_class] += q
  train, test = [], []
  for parts in of_client:
    order = np.concatenate(parts)
    rng.shuffle(order)
    train.append(order[: int(0.9 * len(order))])
    test.append(order[int(0.9 * len(order)) :])
  fields: list[np.ndarray] = []
  for split in (train, test):
    size = np.array(list(map(len, split)), np.int32)
    fields += [np.concatenate(split), allocate.offsets(size), size]
  return *fields, True  # type: ignore[return-value]


def _natural(
  examples: Examples,
  num_clients: int | None,
  options: Natural,
  rng: np.random.Generator,
  labels: np.ndarray | None = None,
) -> Split:
  """Takes the clients that the data set names, in the order of their ids.

  If the test rows name no clients, the local test split of every client with
  n >= 2 training rows consists of max(1, int(fraction n)) random ones of them,
  which are then not used for training. The official test rows belong to no
  client in this case, and the partition is pooled. Clients that have test rows
  alone are clients, too, whatever the two numbers below.

  Args:
    examples: the data set, with ``client_train``.
    num_clients: number of clients with training rows, chosen at random; None
      takes all.
    options: ``min_size``, and ``test_share``, the fraction above.
    rng: source of the random numbers.
    labels: [n] int, the label of each training row. The held out rows of a client
      then have each label in proportion to its rows of it, rounded by the method
      of Sainte-Lague; None: whatever labels they have.

  Returns:
    The first seven fields of ``Partition``.

  Raises:
    DataError: the data set names no clients, or too few of them.
  """
  if examples.client_train is None:
    raise DataError(
      f"`partition`=natural: the data set {examples.name} has no client ids;"
      " give client_ids (client_train in an npz) or use another partition"
    )
  every, count = np.unique(examples.client_train, return_counts=True)
  min_size = options.min_size or 1
  ids = every[count >= min_size]
  total = len(ids) if num_clients is None else num_clients
  if not 1 <= total <= len(ids):
    raise DataError(
      f"`num_clients`={total}: the data set has {len(ids)} clients with at"
      f" least min_size={min_size} examples"
    )
  if total < len(ids):
    ids = np.sort(rng.choice(ids, total, replace=False))
  if examples.client_test is not None:
    ids = np.union1d(ids, np.setdiff1d(examples.client_test, every))
    total = len(ids)

  def owner_of(client):
    if ids[0] == 0 and ids[-1] == total - 1:  # 0, 1, 2, ...
      return np.where(client < total, client, -1).astype(np.int32)
    place = np.minimum(np.searchsorted(ids, client), total - 1)
    return np.where(ids[place] == client, place, -1)

  owner = owner_of(examples.client_train)
  if examples.client_test is not None:
    return (
      *allocate.pack(owner, total, rng),
      *allocate.pack(owner_of(examples.client_test), total, rng),
      False,
    )
  order, offset, size = allocate.pack(owner, total, rng)
  test_size = np.where(
    size > 1, np.maximum(1, (size * options.test_share).astype(int)), 0
  ).astype(np.int32)
  train_size = size - test_size
  if labels is not None:
    order = _in_proportion(order, np.repeat(np.arange(total), size), labels)
  # The rows of a client are in random order; the first ones are held out.
  rank = np.arange(len(order), dtype=np.int32) - np.repeat(offset, size)
  is_test = rank < np.repeat(test_size, size)
  return (
    order[~is_test],
    allocate.offsets(train_size),
    train_size,
    order[is_test],
    allocate.offsets(test_size),
    test_size,
    True,
  )


def _in_proportion(
  order: np.ndarray, client: np.ndarray, labels: np.ndarray
) -> np.ndarray:
  """Orders the rows of each client so that its first ones have labels in proportion.

  The r-th row of a label of which the client has n comes at (r + 1/2) / n, so the
  first m rows are shared out to the labels by the method of Sainte-Lague.

  Args:
    order: [M] int, the rows client by client, in random order.
    client: [M] int, the client of each of them.
    labels: labels of all rows.
  """
  label = labels[order].astype(np.int64)
  group = client * (int(label.max(initial=0)) + 1) + label
  by_group = np.argsort(group, kind="stable")  # keeps the random order
  _, first, count = np.unique(group[by_group], return_index=True, return_counts=True)
  rank = np.arange(len(order)) - np.repeat(first, count)
  place = np.empty(len(order))
  place[by_group] = (rank + 0.5) / np.repeat(count, count)
  # Equal places in the random order, not in that of the labels.
  result: np.ndarray = order[np.lexsort((place, client))]
  return result
