"""Clients that differ in kind.

A kind is a number that a client has. What it does is a pure function ``(x, y,
kind, key) -> x, y`` of the examples of all clients of that kind
(``kind_changes``), applied between the partition, which reads the data set as it
is, and the features. Data may also bring their kinds, a number for each row
(``Examples.kind_train``).
"""

from typing import NamedTuple

import numpy as np

#: The random stream of the kinds; 1 to 3 are those of ``hold_out``,
#: ``newcomers`` and ``shift``.
STREAM = 4


class ClientKinds(NamedTuple):
  """The kinds of the clients of a federation."""

  of_client: np.ndarray  #: [C] int32 in [0, K), every kind has a client
  names: tuple[str, ...]  #: of the K kinds
  #: whether the kinds leave the labels alone, so that one model can be right
  #: about the examples of all kinds
  same_labels: bool

  @property
  def number(self) -> int:
    """K, the number of kinds."""
    return len(self.names)

  def sizes(self) -> np.ndarray:
    """[K] int64, the clients of each kind."""
    return np.bincount(self.of_client, minlength=self.number)
