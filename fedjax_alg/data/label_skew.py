"""Generated partitions: iid, few classes per client, shards, Dirichlet.

Each kind is a function (y [n] int, L, C, rng, options) -> owner [n] int64, the
client of every training example.
"""

from collections.abc import Callable

import numpy as np

from fedjax_alg.data import allocate
from fedjax_alg.data.errors import DataError

_TRIES = 100


def _check_sizes(rows: int, num_clients: int, min_client_size: int) -> None:
  """Raises DataError if ``rows`` examples are too few for the clients."""
  if num_clients > rows:
    raise DataError(
      f"`num_clients`={num_clients}: more clients than the {rows} training examples"
    )
  if num_clients * min_client_size > rows:
    raise DataError(
      f"`num_clients`={num_clients} `min_client_size`={min_client_size} need"
      f" {num_clients * min_client_size} training examples, there are"
      f" {rows}"
    )


def draw_sizes(
  num_clients: int,
  size_sigma: float,
  quantity_alpha: float | None,
  rng: np.random.Generator,
) -> np.ndarray:
  """Draws the relative sizes of clients.

  Args:
    num_clients: C.
    size_sigma: sigma of log-normal sizes.
    quantity_alpha: if given, sizes are shares of a symmetric Dirichlet
      distribution of this concentration, as in NIID-Bench (Li et al. 2022).
    rng: draws them.

  Returns:
    [C] float64, above 0.
  """
  if quantity_alpha is None:
    return rng.lognormal(0.0, size_sigma, num_clients)
  shares = rng.dirichlet(np.full(num_clients, quantity_alpha))
  return np.maximum(shares, np.finfo(np.float64).tiny)  # a small alpha underflows


def _iid(
  y: np.ndarray,
  num_classes: int,
  num_clients: int,
  rng: np.random.Generator,
  *,
  size_sigma: float,
  min_client_size: int,
  quantity_alpha: float | None = None,
) -> np.ndarray:
  """Deals random samples of drawn sizes of at least the minimum."""
  rows = len(y)
  _check_sizes(rows, num_clients, min_client_size)
  size = allocate.allocate(
    draw_sizes(num_clients, size_sigma, quantity_alpha, rng),
    rows,
    np.full(num_clients, min_client_size),
    np.full(num_clients, rows),
  )
  return rng.permutation(np.repeat(np.arange(num_clients), size))


def _dirichlet(
  y: np.ndarray,
  num_classes: int,
  num_clients: int,
  rng: np.random.Generator,
  *,
  dirichlet_alpha: float,
  min_client_size: int,
  dirichlet_even: bool = False,
) -> np.ndarray:
  """Spreads each class over the clients with a symmetric Dirichlet(alpha).

  With ``dirichlet_even`` a client that has its even share of all examples, n /
  C, gets nothing of the classes that follow, and the others share them in the
  proportions that were drawn (Li et al. 2022, NIID-Bench).

  The draw is repeated until every client has ``min_client_size`` examples.
  """
  _check_sizes(len(y), num_clients, min_client_size)
  available = np.bincount(y, minlength=num_classes)
  counts = np.zeros((num_clients, num_classes), np.int64)
  best = 0
  for _ in range(_TRIES):
    sizes = np.zeros(num_clients, np.int64)
    for label in np.flatnonzero(available):
      share = rng.dirichlet(np.full(num_clients, dirichlet_alpha))
      if dirichlet_even:
        share = _of_those(sizes * num_clients < len(y), share)
      counts[:, label] = allocate.largest_remainder(share, int(available[label]), rng)
      sizes += counts[:, label]
    best = max(best, int(counts.sum(axis=1).min()))
    if best >= min_client_size:
      return allocate.deal_classes(y, counts, rng)
  raise DataError(
    f"`dirichlet_alpha`={dirichlet_alpha} with `num_clients`={num_clients}"
    f" left a client with fewer than `min_client_size`={min_client_size}"
    f" examples in {_TRIES} draws (best {best}): raise alpha or lower the"
    " other two"
  )


def _of_those(some: np.ndarray, share: np.ndarray) -> np.ndarray:
  """The shares of some clients alone; equal ones if all of theirs are 0."""
  shares = share * some
  return shares if shares.any() else some.astype(float)


def _shards(
  y: np.ndarray,
  num_classes: int,
  num_clients: int,
  rng: np.random.Generator,
  *,
  classes_per_client: int,
  min_client_size: int,
) -> np.ndarray:
  """Sorts the examples by class and deals k equal shards to every client.

  McMahan et al. (AISTATS 2017), section 3. A shard may hold the end of a class
  and the beginning of the next, and both shards of a client may be of one
  class, so that most clients hold k classes and some hold one more or less.
  """
  number = num_clients * classes_per_client
  least = classes_per_client * (len(y) // number)
  if least < min_client_size:
    raise DataError(
      f"`num_clients`={num_clients} `classes_per_client`={classes_per_client}"
      f" leave a client with {least} of the {len(y)} training examples,"
      f" `min_client_size`={min_client_size}"
    )
  order = rng.permutation(len(y))
  order = order[np.argsort(y[order], kind="stable")]
  holder = rng.permutation(np.repeat(np.arange(num_clients), classes_per_client))
  owner = np.empty(len(y), np.int64)
  for client, rows in zip(holder, np.array_split(order, number)):
    owner[rows] = client
  return owner


def _few_classes(
  y: np.ndarray,
  num_classes: int,
  num_clients: int,
  rng: np.random.Generator,
  *,
  size_sigma: float,
  classes_per_client: int,
  min_classes_per_client: int,
  min_client_size: int,
  quantity_alpha: float | None = None,
  random_classes: bool = False,
) -> np.ndarray:
  """Gives every client few classes; their number is uniform on [min, k].

  The sizes of the clients are those of ``draw_sizes``. Each class gets a number
  of places in proportion to its examples. A client takes the classes with the most free
  places; ties are broken at random. With ``random_classes`` client i holds
  class i modulo L and k - 1 random others, so that the numbers of clients of the
  classes differ (Li et al. 2022, NIID-Bench). The drawn size of a client is
  divided equally among its classes. The examples of a class are spread over
  the clients that hold it in proportion to these weights, but each client gets
  at least its share of the minimum.
  """
  available = np.bincount(y, minlength=num_classes)
  present = np.flatnonzero(available)
  if not 1 <= classes_per_client <= len(present):
    raise DataError(
      f"`classes_per_client`={classes_per_client}: must lie in [1,"
      f" {len(present)}], the classes of the data"
    )
  if not 1 <= min_classes_per_client <= classes_per_client:
    raise DataError(
      f"`min_classes_per_client`={min_classes_per_client}: must lie in [1,"
      f" `classes_per_client`={classes_per_client}]"
    )
  _check_sizes(len(y), num_clients, min_client_size)
  where = f"`num_clients`={num_clients} `classes_per_client`={classes_per_client}"
  if num_clients * classes_per_client < len(present):
    raise DataError(
      f"{where} hold at most {num_clients * classes_per_client} of the"
      f" {len(present)} classes, every class needs a client"
    )
  weights = draw_sizes(num_clients, size_sigma, quantity_alpha, rng)
  has_cover = False  # whether every class had a client in some draw
  for _ in range(_TRIES):
    number = rng.integers(min_classes_per_client, classes_per_client + 1, num_clients)
    if number.sum() < len(present):
      continue
    if random_classes:
      holds = _random_class_sets(len(present), number, rng)
    else:
      holds = _class_sets(available[present], number, rng)
    if not holds.any(axis=0).all():
      continue
    has_cover = True
    some = _spread_classes(available[present], weights, holds, min_client_size)
    if some is not None:
      counts = np.zeros((num_clients, num_classes), np.int64)
      counts[:, present] = some
      return allocate.deal_classes(y, counts, rng)
  if random_classes and not has_cover:
    raise DataError(
      f"{where} `random_classes` left a class without a client in {_TRIES} draws:"
      " raise one of the two numbers"
    )
  raise DataError(
    f"{where} `min_client_size`={min_client_size}: no split found in"
    f" {_TRIES} draws, some class has too few examples for the clients that"
    " hold it: lower one of the three"
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


def _spread_classes(available, weights, holds, min_client_size):
  """[C, L] counts; None if a client gets fewer examples than the minimum."""
  number = holds.sum(axis=1)
  floor = -(-min_client_size // number)
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
  return counts if counts.sum(axis=1).min() >= min_client_size else None


#: Kind of partition -> its function.
OWNERS: dict[str, Callable[..., np.ndarray]] = {
  "iid": _iid,
  "classes": _few_classes,
  "shards": _shards,
  "dirichlet": _dirichlet,
}
