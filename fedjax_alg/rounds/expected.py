"""What a round of a method should cost, stated by hand.

``registry.Entry.ledger`` states it for each method in a line, apart from the
code that runs and bills the round. The contract tests compare the two.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Played(NamedTuple):
  """A round, as far as its cost depends on it."""

  params: int  #: P, parameters of a model
  models: int  #: K, models that are trained in the round
  examples: int  #: n, training examples of the participants
  #: (mini-batches that a local step reads) -> examples that the local steps of
  #: all participants read
  read: Callable[[int], int]
  hparams: Any  #: the method's hyper-parameters
  features: int  #: D
  classes: int  #: L


class Expected(NamedTuple):
  """The cost of a round, without what is done before round 1 (``setup``)."""

  down: float  #: floats to each participant; a byte is a quarter of a float
  up: float  #: floats from each participant
  exchanges: int  #: round trips
  gradients: int  #: per-example gradients of all participants
  #: number of losses, without gradients, that every participant computes on all
  #: of its data
  evaluations: int = 0


Ledger = Callable[[Played], Expected]


def vectors(
    down: int, up: int, exchanges: int = 1, *, passes: int = 0, steps: int = 1,
    batches: int = 1) -> Ledger:
  """The ledger of a method that sends whole models or gradients.

  Args:
    down: vectors of P floats to each participant.
    up: vectors of P floats from each participant.
    exchanges: round trips.
    passes: gradients on all of a participant's data.
    steps: gradients of every example that the local steps read.
    batches: mini-batches that a local step reads.
  """
  return lambda round_: Expected(
      down * round_.params, up * round_.params, exchanges,
      passes * round_.examples + steps * round_.read(batches))


def of_k_models(gradient_passes: int) -> Ledger:
  """MA-FSVRG (no passes for the grouping) and GA-FSVRG (one pass)."""
  return lambda round_: Expected(
      (2 * round_.models + 1) * round_.params,
      (2 * round_.models + 1) * round_.params + 1, 3,
      (2 * round_.models + gradient_passes) * round_.examples
      + 2 * round_.read(1))


def preferred(round_: Played) -> Expected:
  """All K models go down; the trained one and its number come back."""
  return Expected(
      round_.models * round_.params, round_.params + 1, 1, round_.read(1),
      evaluations=round_.models if round_.models > 1 else 0)


def closed_form(bias: int = 1, grouped: int = 0) -> Ledger:
  """A layer's sums: X'X (a triangle), X'Y, and the sums of X and of Y.

  Args:
    bias: whether the solution has a bias.
    grouped: whether the client sends its encoded labels, for the grouping.
  """

  def ledger(round_):
    d, classes = round_.features, round_.classes
    up = d * (d + 1) // 2 + d * classes + d + classes + grouped * classes
    return Expected(round_.params - classes * (1 - bias), up, 1, 0)

  return ledger
