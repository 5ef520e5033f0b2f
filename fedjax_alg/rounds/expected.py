"""Expected cost of a round of a method, stated by hand.

``registry.Entry.ledger`` states it for each method in a line, apart from the
code that runs and bills the round. The contract tests compare the two.
"""

from collections.abc import Callable, Sequence
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
  round: int  #: rounds that were completed before this one, from 0
  ids: tuple[int, ...]  #: the participants
  clients: int  #: C
  state: Any  #: the method's state before the round
  #: (clients, mini-batches, 0 for those of their local work) -> examples that
  #: so many steps of these clients read
  read_by: Callable[[Sequence[int], int], int]


class Expected(NamedTuple):
  """The cost of a round; that of ``setup`` is in the first one."""

  down: float  #: floats to each participant; a byte is a quarter of a float
  up: float  #: floats from each participant
  exchanges: int  #: round trips
  gradients: int  #: per-example gradients of all participants
  #: number of losses, without gradients, that every participant computes on all
  #: of its data
  evaluations: int = 0
  #: whether clients train beside the participants' own work, so that the clock
  #: (``base.Work``) is not of these gradients alone
  beside: bool = False


Ledger = Callable[[Played], Expected]


def vectors(
  down: int,
  up: int,
  exchanges: int = 1,
  *,
  passes: int = 0,
  steps: int = 1,
  batches: int = 1,
) -> Ledger:
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
    down * round_.params,
    up * round_.params,
    exchanges,
    passes * round_.examples + steps * round_.read(batches),
  )


def of_k_models(gradient_passes: int) -> Ledger:
  """MA-FSVRG (no passes for the grouping) and GA-FSVRG (one pass)."""
  return lambda round_: Expected(
    (2 * round_.models + 1) * round_.params,
    (2 * round_.models + 1) * round_.params + 1,
    3,
    (2 * round_.models + gradient_passes) * round_.examples + 2 * round_.read(1),
  )


def mean_of_drawn_steps(round_: Played) -> Expected:
  """Scaffnew: 1 / `communication` local steps on average."""
  steps = round(1.0 / round_.hparams.communication)
  return Expected(round_.params, round_.params, 1, round_.read_by(round_.ids, steps))


def preferred(round_: Played) -> Expected:
  """All K models go down; the trained one and its number come back."""
  return Expected(
    round_.models * round_.params,
    round_.params + 1,
    1,
    round_.read(1),
    evaluations=round_.models if round_.models > 1 else 0,
  )


def of_grouping(round_: Played) -> Expected:
  """The grid with `client_update`=sgd: with one model a round is FedAvg's."""
  several = round_.hparams.grouping.num_models > 1
  return (preferred if several else vectors(1, 1))(round_)


def of_server_steps(round_: Played) -> Expected:
  """BAFFLE: in each step the model goes down, and a number for each direction up."""
  steps = round_.hparams.steps_per_round
  return Expected(steps * round_.params, steps * round_.hparams.directions, steps, 0)


def of_components(round_: Played) -> Expected:
  """FedEM: all K components go down, are trained and come back."""
  k = round_.models
  return Expected(
    k * round_.params,
    k * round_.params,
    1,
    k * round_.read(1),
    evaluations=k if k > 1 else 0,
  )


def with_importance(round_: Played) -> Expected:
  """FedSoft with `estimate_every`=1: K centers down; a model and K weights up."""
  return preferred(round_)._replace(
    up=round_.params + (round_.models if round_.models > 1 else 0)
  )


def closed_form(bias: int | None = None, grouped: int = 0) -> Ledger:
  """A layer's sums: X'X (a triangle), X'Y, and the sums of X and of Y.

  Args:
    bias: whether the solution has a bias; None: unless the method's `bias` is
      none.
    grouped: whether the client sends its encoded labels, for the grouping.
  """

  def ledger(round_):
    d, classes = round_.features, round_.classes
    up = d * (d + 1) // 2 + d * classes + d + classes + grouped * classes
    has = getattr(round_.hparams, "bias", "ones") != "none" if (bias is None) else bias
    return Expected(round_.params - classes * (1 - has), up, 1, 0)

  return ledger


def of_class_means(with_bias: str = "") -> Ledger:
  """Class means and numbers of examples up, a head down.

  Args:
    with_bias: the `distance` with which the head has a bias.
  """

  def ledger(round_):
    d, classes = round_.features, round_.classes
    has = getattr(round_.hparams, "distance", None) == with_bias
    return Expected(classes * (d + has), classes * (d + 1), 1, 0)

  return ledger


class SideWork(NamedTuple):
  """Training beside the participants' own work, to be grouped for example."""

  clients: Sequence[int]
  gradients: int  #: per-example gradients of all of them
  times: int = 1  #: how often each gets a model and sends an update


def beside(ledger: Ledger, side_work: Callable[[Played], SideWork]) -> Ledger:
  """A ledger with clients that get a model and send an update beside it.

  Args:
    ledger: the cost of the participants' own work.
    side_work: who else trains in a round.
  """

  def both(round_: Played) -> Expected:
    base, side = ledger(round_), side_work(round_)
    if not side.clients or not side.times:
      return base
    floats = len(side.clients) * side.times * round_.params // len(round_.ids)
    return base._replace(
      down=base.down + floats,
      up=base.up + floats,
      exchanges=base.exchanges + 1,
      gradients=base.gradients + side.gradients,
      beside=True,
    )

  return both


def pool_before_all(round_: Played) -> SideWork:
  """FedGroup: before round 1 a pool is pre-trained, whose clients have a group."""
  if round_.round:
    return SideWork((), 0)
  pool = [i for i in range(round_.clients) if round_.state.member[i] >= 0]
  return SideWork(pool, round_.read_by(pool, round_.hparams.pretrain_steps))


def before_their_first(round_: Played) -> SideWork:
  """FeSEM: a participant that has never trained looks for a center."""
  new = [i for i in round_.ids if not round_.state.memory.trained[i]]
  return SideWork(new, round_.read_by(new, round_.hparams.first_group.steps))


def at_the_clustering(round_: Played) -> SideWork:
  """FL+HC: all clients train once more in the round that clusters them."""
  now = round_.round == round_.hparams.cluster_after
  everyone = range(round_.clients if now else 0)
  return SideWork(everyone, round_.read_by(everyone, 0))


def past_all_splits(round_: Played) -> SideWork:
  """CFL: a client without a group trains at most once for every split."""
  new = [i for i in round_.ids if round_.state.member[i] < 0]
  splits = int(round_.state.memory.number) - 1
  return SideWork(new, splits * round_.read_by(new, 0), splits)


def with_subspaces(round_: Played) -> Expected:
  """PACFL: before round 1 clients, of p examples at least, send p vectors."""
  base = vectors(1, 1)(round_)
  if round_.round:
    return base
  floats = round_.clients * round_.hparams.num_vectors * round_.features
  return base._replace(up=base.up + floats // len(round_.ids), exchanges=2)


def with_losses(round_: Played) -> Expected:
  """FedDrift: at the start of a step all clients get the models, send losses."""
  base, memory = vectors(1, 1)(round_), round_.state.memory
  if round_.round // round_.hparams.step_rounds < memory.step:
    return base
  models, participants = int(memory.alive.sum()), len(round_.ids)
  return base._replace(
    down=base.down + round_.clients * models * round_.params // participants,
    up=base.up + round_.clients * models * (models + 1) // participants,
    exchanges=2,
  )
