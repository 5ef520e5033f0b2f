"""Clients whose data change during a run: who holds what from which round on.

Two options make a schedule: ``shift`` moves rows between clients, and
``concepts`` turns clients to other kinds. A run reads both in the same way
(``federation.at_step``).
"""

from collections.abc import Callable
import dataclasses
from typing import ClassVar, NamedTuple

import numpy as np

from fedjax_alg.data.kinds import ClientKinds
from fedjax_alg.data.partition import Partition
from fedjax_alg.part import Part
from fedjax_alg.typing import PyTree


class Change(Part):
  """How the clients' data change during a run."""

  OPTION: ClassVar[str] = ""  #: the option that it is a part of
  #: the field with the number of rounds of a step; "": the data stay
  PERIOD: ClassVar[str] = ""

  @property
  def label(self) -> str:
    """The option as messages name it."""
    return f"`{self.OPTION}`={self}"

  @property
  def period(self) -> int | None:
    """The number of rounds between two changes; None: there are none."""
    period: int | None = getattr(self, self.PERIOD) if self.PERIOD else None
    return period


class Holdings(NamedTuple):
  """The rows and the kind of each client at a step."""

  #: the rows, as places: for training in the arrays that the first step trains on,
  #: for testing in ``DataSchedule.tests``
  rows: Partition
  kinds: ClientKinds | None = None  #: None: they stay as in the federation


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DataSchedule:
  """The steps of a run, from 0, and what each client holds at each of them.

  The data of a client depend on the step alone, so a resumed run continues with the
  same data.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", num_clients=4, shift="increment:20")
    >>> fed.schedule.step_of(19), fed.schedule.step_of(20), fed.schedule.rounds_left(25)
    (0, 1, 15)
    >>> [fed.schedule.at(step).rows.train_size.tolist() for step in (0, 3)]
    [[86, 76, 111, 85], [345, 304, 447, 342]]
  """

  every: int  #: rounds of a step
  at: Callable[[int], Holdings]  #: what clients hold at a step
  #: test examples and targets that clients may hold; None: as at the first step
  tests: tuple[PyTree, PyTree] | None = None
  #: [T, C] int32, the kind of each client at each of T steps, of which the last has no
  #: end; None: the kinds stay, and the steps have no end
  kinds: np.ndarray | None = None

  def step_of(self, done: int) -> int:
    """Finds the step of the round after some rounds.

    Args:
      done: rounds run so far; below 0 as 0.
    """
    step = max(done, 0) // self.every
    return step if self.kinds is None else min(step, len(self.kinds) - 1)

  def rounds_left(self, done: int) -> int | None:
    """Counts the rounds before the next step.

    Args:
      done: rounds run so far.

    Returns:
      The number of rounds; None if the data stay from now on.
    """
    if self.kinds is not None and self.step_of(done) == len(self.kinds) - 1:
      return None
    return self.every - done % self.every
