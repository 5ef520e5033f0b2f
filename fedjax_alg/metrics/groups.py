"""How well groups of clients agree with what the clients hold."""

from typing import NamedTuple

import numpy as np


class Agreement(NamedTuple):
  """Groups against kinds of clients; NaN where the comparison says nothing."""

  purity: float
  ari: float


def kinds(label_histogram: np.ndarray) -> np.ndarray:
  """Clients that hold the same set of classes are of one kind.

  Args:
    label_histogram: [C, L] int, training examples of each class.

  Returns:
    [C] int64, numbered from 0.
  """
  return np.unique(
      label_histogram > 0, axis=0, return_inverse=True)[1].reshape(-1)


def sizes(membership: np.ndarray, num_groups: int) -> np.ndarray:
  """[K] int64, clients of each group.

  Args:
    membership: [C] int in [0, K), -1 for a client in no group.
    num_groups: K.
  """
  return np.bincount(membership[membership >= 0], minlength=num_groups)


def agreement(membership: np.ndarray, kind: np.ndarray) -> Agreement:
  """Compares the groups with the kinds, over the clients in a group.

  ``purity`` is the share of these clients that are of their group's most
  frequent kind, ``ari`` the adjusted Rand index (Hubert and Arabie 1985).
  Both are NaN where nobody is in a group, and where all clients are of one
  kind or each is of its own: then no grouping is the right one.

  Args:
    membership: [C] int, -1 for a client in no group.
    kind: [C] int, of all clients.
  """
  inside = membership >= 0
  if not inside.any() or len(np.unique(kind)) in (1, len(kind)):
    return Agreement(np.nan, np.nan)
  group, kind = (np.unique(a[inside], return_inverse=True)[1]
                 for a in (membership, kind))
  table = np.zeros((group.max() + 1, kind.max() + 1), np.int64)
  np.add.at(table, (group, kind), 1)
  total = len(group)

  def pairs(n):
    return float((n * (n - 1)).sum()) / 2

  both, in_group, of_kind = pairs(table), pairs(table.sum(1)), pairs(
      table.sum(0))
  chance = in_group * of_kind / max(pairs(np.array(total)), 1.0)
  most = (in_group + of_kind) / 2
  # All in one group and of one kind, or every client apart in both.
  ari = 1.0 if most == chance else (both - chance) / (most - chance)
  return Agreement(float(table.max(1).sum()) / total, ari)
