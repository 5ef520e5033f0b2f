"""How much clients differ: in labels, examples, what a class means, and over time.

Nearly every measure is an intraclass correlation: the share of the variance of
examples that lies between clients. It is 0 on average where examples are dealt at
random, however few a client has, and 1 where all examples of a client are equal and
those of others are not.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

#: Times that examples are dealt again at random. A measure is 0 unless it is above the
#: mean of these deals by so many of their standard deviations (p about 0.001).
REDEALS, DEVIATIONS = 19, 3.0
#: Numbers of examples that are read; of more, every client has fewer rows.
_MOST = 10**7


class ClientExamples(NamedTuple):
  """The examples of one client that are compared with those of others."""

  x: np.ndarray  #: [n, ...] numbers
  y: np.ndarray  #: [n] int, their classes
  step: np.ndarray | None = None  #: [n] int, their steps; None: no time is known


class Differences(NamedTuple):
  """How much clients differ, each number in [0, 1]; 0: as if dealt at random."""

  labels: float  #: of the classes of examples
  #: standard deviation over the clients of the entropy of their labels, in units of
  #: that of all; 0 where ``labels`` is
  mixtures: float
  features: float  #: of the examples
  lengths: float  #: of the squared norms of the examples
  scatter: float  #: of the squared distances of examples from the mean of their class
  meaning: float  #: of the examples of one class
  #: of the gradients of softmax regression at zero, one for each example
  gradients: float
  time: float  #: of these gradients, between the steps of one client


def intraclass_correlation(
  values: np.ndarray, groups: np.ndarray, strata: np.ndarray | None = None
) -> float:
  """Computes the share of variance between groups, by analysis of variance.

  It is ICC(1), (MSB - MSW) / (MSB + (n0 - 1) MSW), of all columns together: their
  sums of squares are added up. With strata, groups are compared within each.

  Args:
    values: [n, D] numbers.
    groups: [n] int, the group of each row.
    strata: [n] int, the stratum of each row; None: a single one.

  Returns:
    The correlation, at most 1; negative if groups differ less than by chance. NaN if
    no stratum has two groups, or no group two rows.

  Examples:
    >>> values = np.array([[0.0], [0.2], [1.0], [1.2]])
    >>> round(intraclass_correlation(values, np.array([0, 0, 1, 1])), 3)
    0.961
  """
  cells = _cells(groups, np.zeros_like(groups) if strata is None else strata)
  values = np.asarray(values, np.float64)
  return _correlation(_sums(values, cells), float(np.square(values).sum()), cells)


class _Cells(NamedTuple):
  """Rows of one group and stratum."""

  of_row: np.ndarray  #: [n] int, the cell of each row
  strata: np.ndarray  #: [cells] int, the stratum of each cell
  sizes: np.ndarray  #: [cells] float


def _cells(groups: np.ndarray, strata: np.ndarray) -> _Cells:
  pairs, of_row = np.unique(np.stack([strata, groups]), axis=1, return_inverse=True)
  number = pairs.shape[1]
  return _Cells(
    of_row,
    np.unique(pairs[0], return_inverse=True)[1],
    np.bincount(of_row, None, number),
  )


def _sums(values: np.ndarray, cells: _Cells) -> np.ndarray:
  """The sums of the rows of each cell, [cells, D]."""
  order = np.argsort(cells.of_row, kind="stable")
  starts = np.searchsorted(cells.of_row[order], np.arange(len(cells.sizes)))
  result: np.ndarray = np.add.reduceat(values[order], starts)
  return result


def _correlation(sums: np.ndarray, squares: float, cells: _Cells) -> float:
  """ICC(1) from the sums of the cells, and the sum of all squares."""
  sizes, strata = cells.sizes.astype(np.float64), cells.strata
  number = int(strata.max()) + 1
  rows = np.bincount(strata, sizes, number)
  between_freedom = len(sizes) - number
  within_freedom = sizes.sum() - len(sizes)
  if not between_freedom or not within_freedom:
    return float("nan")
  totals = np.zeros((number, sums.shape[1]))
  np.add.at(totals, strata, sums)
  explained = (np.square(sums).sum(1) / sizes).sum()
  between = explained - (np.square(totals).sum(1) / rows).sum()
  n0 = (rows - np.bincount(strata, sizes**2, number) / rows).sum() / between_freedom
  msb, msw = between / between_freedom, max(squares - explained, 0.0) / within_freedom
  total = msb + (n0 - 1) * msw
  return float((msb - msw) / total) if total > 0 else 0.0


def client_differences(
  clients: Sequence[ClientExamples], num_classes: int, seed: int = 0
) -> Differences:
  """Measures how much clients differ.

  Args:
    clients: their examples; those without any do not count. Of very many examples
      every client has fewer rows, evenly spaced.
    num_classes: L.
    seed: of these deals.

  Returns:
    The measures. One that random deals of the examples have by chance is 0.

  Raises:
    ValueError: fewer than two clients have examples, or none has two.
  """
  clients = [client for client in clients if len(client.y)]
  if len(clients) < 2 or max(len(client.y) for client in clients) < 2:
    raise ValueError("fewer than two clients with examples, or one example at each")
  clients = _few_rows(clients)
  x = np.concatenate(
    [np.asarray(c.x, np.float64).reshape(len(c.y), -1) for c in clients]
  )
  y = np.concatenate([c.y for c in clients])
  sizes = [len(c.y) for c in clients]
  owner = np.repeat(np.arange(len(clients)), sizes)
  rng = np.random.default_rng(seed)
  one_hot = np.eye(num_classes)[y]
  norms = np.square(x).sum(1)
  nothing = np.zeros_like(owner)
  slopes = 1.0 / num_classes - one_hot
  gradient_squares = float((np.square(slopes).sum(1) * norms).sum())

  def of_values(values: np.ndarray) -> Callable[[_Cells], float]:
    squares = float(np.square(values).sum())
    return lambda cells: _correlation(_sums(values, cells), squares, cells)

  def of_gradients(cells: _Cells) -> float:
    """Of the outer products of slopes and examples, which are never made."""
    number = len(cells.sizes)
    by_cell = np.zeros((number * num_classes, x.shape[1]))
    places, inverse = np.unique(cells.of_row * num_classes + y, return_inverse=True)
    by_cell[places] = _sums(x, _Cells(inverse, places, np.bincount(inverse)))
    by_class = by_cell.reshape(number, num_classes, -1)
    sums = by_class.sum(1, keepdims=True) / num_classes - by_class
    return _correlation(sums.reshape(number, -1), gradient_squares, cells)

  def clear(
    measure: Callable[[_Cells], float], groups: np.ndarray, strata: np.ndarray
  ) -> float:
    """The measure, or 0 if random deals within the strata have it by chance."""
    value = measure(_cells(groups, strata))
    if not value > 0:
      return 0.0
    order = np.lexsort((np.arange(len(strata)), strata))
    deals = []
    for _ in range(REDEALS):
      dealt = np.empty_like(groups)
      dealt[order] = groups[np.lexsort((rng.random(len(strata)), strata))]
      deals.append(measure(_cells(dealt, strata)))
    least = np.mean(deals) + DEVIATIONS * np.std(deals)
    return min(value, 1.0) if value > least else 0.0

  labels = clear(of_values(one_hot), owner, nothing)
  steps = [c.step for c in clients if c.step is not None]
  return Differences(
    labels=labels,
    mixtures=_entropy_spread(one_hot, owner) if labels else 0.0,
    features=clear(of_values(x), owner, nothing),
    lengths=clear(of_values(norms[:, None]), owner, nothing),
    scatter=clear(of_values(_scatter(x, y)[:, None]), owner, nothing),
    meaning=clear(of_values(x), owner, y),
    gradients=clear(of_gradients, owner, nothing),
    time=clear(of_gradients, np.concatenate(steps), owner)
    if len(steps) == len(clients)
    else 0.0,
  )


def _scatter(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """The squared distance of each example from the mean of its class, [n]."""
  _, of_row = np.unique(y, return_inverse=True)
  cells = _cells(of_row, np.zeros_like(of_row))
  means = _sums(x, cells) / cells.sizes[:, None]
  result: np.ndarray = np.square(x - means[of_row]).sum(1)
  return result


def _entropy_spread(one_hot: np.ndarray, owner: np.ndarray) -> float:
  """The standard deviation of the clients' label entropies, over that of all."""
  counts = np.zeros((owner.max() + 1, one_hot.shape[1]))
  np.add.at(counts, owner, one_hot)

  def entropy(rows: np.ndarray) -> np.ndarray:
    shares = rows / rows.sum(-1, keepdims=True)
    result: np.ndarray = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(-1)
    return result

  of_all = float(entropy(counts.sum(0)))
  return min(float(entropy(counts).std()) / of_all, 1.0) if of_all > 0 else 0.0


def _few_rows(clients: Sequence[ClientExamples]) -> list[ClientExamples]:
  """The clients with at most ``_MOST`` numbers, rows evenly spaced."""
  width = max(1, int(np.prod(np.shape(clients[0].x)[1:])))
  most = max(2, _MOST // (width * len(clients)))

  def few(client: ClientExamples) -> ClientExamples:
    number = len(client.y)
    rows = np.linspace(0, number - 1, min(number, most)).astype(int)
    step = None if client.step is None else client.step[rows]
    return ClientExamples(client.x[rows], client.y[rows], step)

  return [few(client) for client in clients]
