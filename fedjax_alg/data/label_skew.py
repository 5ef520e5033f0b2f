"""Generated partitions: iid, few classes for each client, shards, Dirichlet.

Every training example is used exactly once.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from fedjax_alg.data import allocate
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.partition import Partitioner
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import hyper

_TRIES = 100


class _AtLeast(Partitioner):
  """A partition in which no client has very few examples."""

  _: dataclasses.KW_ONLY
  min_size: int = hyper(
    10, "smallest number of training examples of a client", minimum=1
  )

  def _check_sizes(self, rows: int, num_clients: int) -> None:
    """Raises DataError if ``rows`` examples are too few for the clients."""
    if num_clients > rows:
      raise DataError(
        f"`num_clients`={num_clients}: more clients than the {rows} training examples"
      )
    if num_clients * self.min_size > rows:
      raise DataError(
        f"`num_clients`={num_clients}, `partition`={self}: min_size={self.min_size} "
        f"examples each are {num_clients * self.min_size}, there are {rows} training "
        "examples"
      )


class _DrawnSizes(_AtLeast):
  """A partition in which the numbers of examples are drawn.

  Sizes below the minimum are raised to it.
  """

  _: dataclasses.KW_ONLY
  size_sigma: float = hyper(
    0.5,
    "sigma of the log-normal distribution of the clients' numbers of examples; 0: "
    "equal numbers",
    minimum=0,
    maximum=10,
  )
  size_alpha: float | None = hyper(
    None,
    "if given, these numbers are shares of a Dirichlet distribution of this "
    "concentration instead, as in NIID-Bench",
    above=0,
    maximum=1e6,
    source="Li et al., ICDE 2022",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    default = type(self).__dataclass_fields__["size_sigma"].default
    if self.size_alpha is not None and self.size_sigma != default:
      raise OptionError(f"{self.WORD}: size_sigma and size_alpha: give one of them")

  def _draw_sizes(self, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    """Draws the relative sizes of clients, [C] float64, above 0."""
    if self.size_alpha is None:
      return rng.lognormal(0.0, self.size_sigma, num_clients)
    shares = rng.dirichlet(np.full(num_clients, self.size_alpha))
    return np.maximum(shares, np.finfo(np.float64).tiny)  # a small alpha underflows


class Iid(_DrawnSizes):
  """Every client holds a random sample.

  Examples:
    >>> from fedjax_alg.data.scikit_learn import load_digits
    >>> partition = Iid(size_sigma=0).deal(load_digits(), 10, seed=0)
    >>> sorted(set(partition.train_size.tolist()))
    [143, 144]
  """

  WORD, EXAMPLE = "iid", "iid:size_sigma=0"
  BY_CLASS: ClassVar[bool] = False

  def assign(self, y, num_classes, num_clients, rng):
    """Deals random samples of drawn sizes (``Partitioner.assign``)."""
    rows = len(y)
    self._check_sizes(rows, num_clients)
    size = allocate.allocate(
      self._draw_sizes(num_clients, rng),
      rows,
      np.full(num_clients, self.min_size),
      np.full(num_clients, rows),
    )
    return rng.permutation(np.repeat(np.arange(num_clients), size))


class Dirichlet(_AtLeast):
  """The clients' shares of each class are drawn from Dirichlet(alpha).

  This is the usual definition; Hsu et al. 2019 draw the shares of the classes in
  each client instead. The draw is repeated until every client has ``min_size``
  examples.

  Examples:
    >>> str(Dirichlet(0.1, even=True))
    'dirichlet:0.1,even'
  """

  WORD, EXAMPLE = "dirichlet", "dirichlet:0.1"

  alpha: float = hyper(
    0.5,
    "concentration of the Dirichlet distribution of each class over the clients; "
    "the smaller, the more clients differ",
    above=0,
  )
  even: bool = hyper(
    False,
    "whether a client that has its even share of all examples gets nothing of the "
    "classes that follow, as in NIID-Bench",
    source="Li et al., ICDE 2022",
  )

  def assign(self, y, num_classes, num_clients, rng):
    """Spreads each class over the clients (``Partitioner.assign``).

    With ``even`` a client that has n / C examples gets nothing of the classes that
    follow, and the others share them in the proportions that were drawn.
    """
    self._check_sizes(len(y), num_clients)
    available = np.bincount(y, minlength=num_classes)
    counts = np.zeros((num_clients, num_classes), np.int64)
    best = 0
    for _ in range(_TRIES):
      sizes = np.zeros(num_clients, np.int64)
      for label in np.flatnonzero(available):
        share = rng.dirichlet(np.full(num_clients, self.alpha))
        if self.even:
          share = _of_those(sizes * num_clients < len(y), share)
        counts[:, label] = allocate.largest_remainder(share, int(available[label]), rng)
        sizes += counts[:, label]
      best = max(best, int(counts.sum(axis=1).min()))
      if best >= self.min_size:
        return allocate.deal_classes(y, counts, rng)
    raise DataError(
      f"`partition`={self} with `num_clients`={num_clients} left a client with fewer "
      f"than min_size={self.min_size} examples in {_TRIES} draws (best {best}): raise "
      "alpha or lower the other two"
    )


def _of_those(some: np.ndarray, share: np.ndarray) -> np.ndarray:
  """The shares of some clients alone; equal ones if all of theirs are 0."""
  shares = share * some
  return shares if shares.any() else some.astype(float)


class Shards(_AtLeast):
  """The examples sorted by class, in C k equal shards, of which a client gets k.

  McMahan et al. (AISTATS 2017), section 3. A shard may hold the end of a class
  and the beginning of the next, and both shards of a client may be of one
  class, so that most clients hold k classes and some hold one more or less.
  """

  WORD, EXAMPLE = "shards", "shards:2"

  per_client: int = hyper(2, "k, number of shards of a client", minimum=1)

  def assign(self, y, num_classes, num_clients, rng):
    """Sorts the examples by class and deals the shards (``Partitioner.assign``)."""
    number = num_clients * self.per_client
    least = self.per_client * (len(y) // number)
    if least < self.min_size:
      raise DataError(
        f"`num_clients`={num_clients}, `partition`={self}: leave a client with "
        f"{least} of the {len(y)} training examples, min_size={self.min_size}"
      )
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    holder = rng.permutation(np.repeat(np.arange(num_clients), self.per_client))
    owner = np.empty(len(y), np.int64)
    for client, rows in zip(holder, np.array_split(order, number)):
      owner[rows] = client
    return owner


class Classes(_DrawnSizes):
  """Every client holds few classes.

  Each class gets a number of places in proportion to its examples. A client takes
  the classes with the most free places; ties are broken at random. The drawn size of
  a client is divided equally among its classes. The examples of a class are spread
  over the clients that hold it in proportion to these weights, but each client gets
  at least its share of the minimum.

  ``Classes(2, fewest=1)`` gives the clients of one or two classes of the diversified
  paper.

  Examples:
    >>> from fedjax_alg.data.partition import label_histogram
    >>> from fedjax_alg.data.scikit_learn import load_digits
    >>> digits = load_digits()
    >>> held = label_histogram(Classes(2).deal(digits, 30, seed=0), digits.y_train)
    >>> held.shape, int(held.sum()) == len(digits.y_train)
    ((30, 10), True)
    >>> set((held > 0).sum(1).tolist())
    {2}
  """

  WORD, EXAMPLE = "classes", "classes:2,size_sigma=0"

  per_client: int = hyper(2, "k, number of classes of a client", minimum=1)
  random: bool = hyper(
    False,
    "whether client i holds class i modulo L and random others, as in NIID-Bench, "
    "so that some classes have few clients; else every class has as many clients",
    source="Li et al., ICDE 2022",
  )
  _: dataclasses.KW_ONLY
  fewest: int | None = hyper(
    None,
    "if given, the number of classes of each client is drawn between this and "
    "per_client, uniformly",
    minimum=1,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.fewest is not None and self.fewest > self.per_client:
      raise OptionError(
        f"{self.WORD}: fewest={self.fewest}: must be at most "
        f"per_client={self.per_client}"
      )

  def assign(self, y, num_classes, num_clients, rng):
    """Draws the classes of the clients, and deals them (``Partitioner.assign``)."""
    available = np.bincount(y, minlength=num_classes)
    present = np.flatnonzero(available)
    where = f"`num_clients`={num_clients}, `partition`={self}:"
    if self.per_client > len(present):
      raise DataError(
        f"`partition`={self}: per_client={self.per_client} must be at most "
        f"{len(present)}, the classes of the data"
      )
    self._check_sizes(len(y), num_clients)
    if num_clients * self.per_client < len(present):
      raise DataError(
        f"{where} hold at most {num_clients * self.per_client} of the "
        f"{len(present)} classes, every class needs a client"
      )
    weights = self._draw_sizes(num_clients, rng)
    fewest = self.per_client if self.fewest is None else self.fewest
    has_cover = False  # whether every class had a client in some draw
    for _ in range(_TRIES):
      number = rng.integers(fewest, self.per_client + 1, num_clients)
      if number.sum() < len(present):
        continue
      if self.random:
        holds = _random_class_sets(len(present), number, rng)
      else:
        holds = _class_sets(available[present], number, rng)
      if not holds.any(axis=0).all():
        continue
      has_cover = True
      some = _spread_classes(available[present], weights, holds, self.min_size)
      if some is not None:
        counts = np.zeros((num_clients, num_classes), np.int64)
        counts[:, present] = some
        return allocate.deal_classes(y, counts, rng)
    if self.random and not has_cover:
      raise DataError(
        f"{where} left a class without a client in {_TRIES} draws: raise one of the "
        "two numbers"
      )
    raise DataError(
      f"{where} min_size={self.min_size}: no split found in {_TRIES} draws, some "
      "class has too few examples for the clients that hold it: lower one of the three"
    )


def _class_sets(available, number, rng):
  """Draws the classes of each client.

  Returns:
    [C, L] bool. Row sums are ``number``; column sums are proportional to
    ``available``.
  """
  num_clients, num_classes = len(number), len(available)
  places = allocate.allocate(
    available.astype(np.float64),
    int(number.sum()),
    np.ones(num_classes, np.int64),
    np.full(num_classes, num_clients),
  )
  holds = np.zeros((num_clients, num_classes), bool)
  for client in rng.permutation(num_clients):
    # Taking the columns with the most free places always succeeds (Gale and
    # Ryser).
    best = np.lexsort((rng.random(num_classes), -places))[: number[client]]
    holds[client, best] = True
    places[best] -= 1
  return holds


def _random_class_sets(num_classes, number, rng):
  """Draws the classes of each client: class i modulo L and random others.

  Returns:
    [C, L] bool. Row sums are ``number``.
  """
  holds = np.zeros((len(number), num_classes), bool)
  for client, of_client in enumerate(number):
    first = client % num_classes
    others = np.delete(np.arange(num_classes), first)
    holds[client, first] = True
    holds[client, rng.choice(others, of_client - 1, replace=False)] = True
  return holds


def _spread_classes(available, weights, holds, min_size):
  """[C, L] counts; None if a client gets fewer examples than the minimum."""
  number = holds.sum(axis=1)
  floor = -(-min_size // number)
  counts = np.zeros(holds.shape, np.int64)
  for label, rows in enumerate(available):
    holders = np.flatnonzero(holds[:, label])
    low = floor[holders]
    # A rare class: one example each; other classes may make up the minimum.
    if low.sum() > rows:
      low = np.ones_like(low)
    if low.sum() > rows:
      return None
    counts[holders, label] = allocate.allocate(
      weights[holders] / number[holders], int(rows), low, np.full(len(holders), rows)
    )
  return counts if counts.sum(axis=1).min() >= min_size else None
