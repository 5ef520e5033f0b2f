"""Measures how well groups of clients agree with the clients' classes."""

from typing import NamedTuple

import numpy as np


class Agreement(NamedTuple):
  """Agreement of groups with kinds of clients; NaN if it is not defined."""

  purity: float
  ari: float


#: Why a row of groups.csv whose clients have groups has no agreement.
UNDEFINED = (
  "not defined: all clients are of one kind (without `kinds`: hold the same "
  "classes), or each is of its own, so no grouping is better than another"
)


def kinds(label_histogram: np.ndarray) -> np.ndarray:
  """Finds the kind of each client: the set of classes that it holds.

  Args:
    label_histogram: [C, L] int, training examples of each class.

  Returns:
    [C] int64, the kinds, numbered from 0.

  Examples:
    >>> kinds(np.array([[5, 0, 2], [0, 9, 0], [1, 0, 7]])).tolist()
    [1, 0, 1]
  """
  # 64 classes are sorted at once; ``np.unique`` of rows compares them one by one.
  packed = np.packbits(label_histogram > 0, axis=1)
  packed = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8)))
  words = packed.view(">u8").astype(np.uint64)
  order = np.lexsort(words.T[::-1])
  is_new = (words[order][1:] != words[order][:-1]).any(1)
  kind = np.zeros(len(words), np.int64)
  kind[order[1:]] = np.cumsum(is_new)
  return kind


def group_sizes(membership: np.ndarray, num_groups: int) -> np.ndarray:
  """Counts the clients of each group.

  Args:
    membership: [C] int in [0, K), -1 for a client without a group.
    num_groups: K.

  Returns:
    [K] int64.
  """
  return np.bincount(membership[membership >= 0], minlength=num_groups)


def agreement(membership: np.ndarray, kind: np.ndarray) -> Agreement:
  """Compares the groups with the kinds of the clients.

  Clients without a group are ignored. ``purity`` is the share of the clients
  that are of the most frequent kind in their group. ``ari`` is the adjusted
  Rand index (Hubert and Arabie 1985). Both are NaN if no client has a group, if
  all clients are of one kind, or if every client is of a different kind: in
  the latter two cases no grouping is better than another.

  Args:
    membership: [C] int, -1 for a client without a group.
    kind: [C] int, kind of each client.

  Returns:
    The two measures.

  Examples:
    >>> agreement(np.array([0, 0, 1, -1]), np.array([3, 3, 5, 5]))
    Agreement(purity=1.0, ari=1.0)
  """
  inside = membership >= 0
  if not inside.any() or len(np.unique(kind)) in (1, len(kind)):
    return Agreement(np.nan, np.nan)
  group, kind = (
    np.unique(a[inside], return_inverse=True)[1] for a in (membership, kind)
  )
  table = np.zeros((group.max() + 1, kind.max() + 1), np.int64)
  np.add.at(table, (group, kind), 1)
  total = len(group)

  def pairs(n):
    return float((n * (n - 1)).sum()) / 2

  both, in_group, of_kind = pairs(table), pairs(table.sum(1)), pairs(table.sum(0))
  chance = in_group * of_kind / max(pairs(np.array(total)), 1.0)
  most = (in_group + of_kind) / 2
  # Groups and kinds are both trivial: one for all, or one for each client.
  ari = 1.0 if most == chance else (both - chance) / (most - chance)
  return Agreement(float(table.max(1).sum()) / total, ari)
