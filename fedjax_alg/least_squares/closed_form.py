"""A model in closed form: statistics that add up, and the solution of a total.

A round of such a method has two halves. Every client computes *statistics* of
its data, a tree of sums, and the server *solves* for a part of the model from
their total. Nothing but the total is read, so the partition of the data, the
order of the clients and their number change the result only by rounding; and
the statistics of a client can be subtracted later (``rounds.closed_form``).

A method is one ``ClosedFormStep`` for each round. FedACnnL and AFL make their steps of
layers (``layer_fits.steps_of``), with ``moments.Moments`` as the statistics.

The statistics may be any tree of floats that is a sum over clients. What the server
computes from a client's message before it adds it up belongs to ``add``: class
means are sent as C d numbers, and ``floats_sent`` says so, though their total
may hold outer products of them.
"""

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

from fedjax_alg.base import Array, Key, Layer, Params, Shard
from fedjax_alg.exchange.messages import Carrier, carry
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.typing import Numeric, PyTree

#: A tree of floats that can be added over clients.
Sums = Any


#: The bias of a class without examples, which is never predicted: below all scores,
#: and its square is a float32 still.
ABSENT = -1e15


class HeadOutputs(HParams):
  """The option of a method whose head can give log odds."""

  outputs: str = hyper(
    "auto",
    "outputs of the model: scores = least-squares scores, as in the paper, whose "
    "softmax is no probability; log_odds = log odds of the classes, from the means and "
    "the covariance of the scores; auto = log_odds with task binary, else scores",
    choices=("auto", "scores", "log_odds"),
  )


class StoredSums(HParams):
  """The option of a method whose clients can be forgotten."""

  store_sums: bool = hyper(
    False,
    "whether the server stores the sums of every step with the model, so that "
    "clients can be forgotten, or added, without asking the others",
    traced=False,
  )


def send_all(sums: Sums, carrier: Carrier | None) -> Sums:
  """A client's sums as the server receives them: all leaves as they are."""
  return carry(carrier, sums)


@dataclasses.dataclass(frozen=True)
class AdditiveStatistics:
  """What clients add up in a round.

  All functions are traced in double precision (``jax.enable_x64``); L is the
  number of classes, or of the columns of another task's targets.
  """

  zero: Callable[[int], Sums]  #: L -> the sums of no examples
  #: (sums, params, shard) -> sums with the examples of a client; ``params`` is
  #: the model that the clients have, whose fitted parts may be read
  add: Callable[[Sums, Params, Shard], Sums]
  number: Callable[[Sums], Array]  #: sums -> the number of examples, []
  floats_sent: Callable[[int], int]  #: L -> floats that a client uploads
  flops: float  #: a client's for each example, those of earlier layers included
  #: (a total from which clients were subtracted) -> the same with zeros for classes
  #: that nobody has any more, where rounding has left a remainder
  clear: Callable[[Sums], Sums] = lambda sums: sums
  #: (a client's sums, carrier) -> the sums as the server receives them
  send: Callable[[Sums, Carrier | None], Sums] = send_all
  #: (a client's sums) -> sums of bounded norm; None: clients send what they have
  clip: Callable[[Sums], Sums] | None = None
  #: (total, key) -> what is added to it, drawn in float32; None: nothing
  noise: Callable[[Sums, Key], Sums] | None = None
  #: sums -> examples of each class, [L]; None: they are not known
  counts: Callable[[Sums], Array] | None = None

  def of_client(
    self,
    params: Params,
    shard: Shard,
    num_classes: int,
    carrier: Carrier | None = None,
  ) -> Sums:
    """The sums of one client alone, as the server receives them.

    Args:
      params: the model.
      shard: the client.
      num_classes: L.
      carrier: how messages travel; None: in a simulation.
    """
    sums = self.add(self.zero(num_classes), params, shard)
    return self.send(sums, carrier) if self.clip is None else self.clip(sums)


class StepContext(NamedTuple):
  """What is known beside the statistics when a step is solved."""

  clients: Array  #: [] number of clients in the total
  seed: Array  #: [2] uint32, shared by the server and all clients
  counts: Array  #: [L], examples of the group by class
  params: Params  #: the model so far
  fit: PyTree  #: the last fit of this step (``ClosedFormStep.empty_fit`` before it)


@dataclasses.dataclass(frozen=True)
class ClosedFormStep:
  """One round of a method in closed form."""

  statistics: AdditiveStatistics
  #: (total in float64, context) -> (the model with this step's part, fit); the fit
  #: is what the state keeps of the solution, () if nothing
  solve: Callable[[Sums, StepContext], tuple[Params, PyTree]]
  #: (L, dtype) -> placeholder of the fit, whose shapes and dtypes the state has
  empty_fit: Callable[[int, Any], PyTree] = lambda num_classes, dtype: ()
  floats_down: Callable[[int], int] = lambda num_classes: 0  #: L -> to each client
  solve_flops: Callable[[int], float] = lambda num_classes: 0.0  #: at the server
  #: (params, shard, context) -> params with a part of the client's; it follows
  #: from the data of the client and is stored nowhere. None: all share the part
  personal: Callable[[Params, Shard, StepContext], Params] | None = None
  #: L -> a client's flops for its part, beside those of its statistics
  personal_flops: Callable[[int], float] = lambda num_classes: 0.0
  head: Layer | None = None  #: what the step solves, if its outputs are of classes


class LayerCost(NamedTuple):
  """The cost of a round in which a layer is fitted."""

  down: Numeric = 0  #: floats sent to each participant
  up: Numeric = 0  #: floats that each participant sends
  exchanges: Numeric = 0
  central_flops: Numeric = 0.0
  per_example: Numeric = 0.0  #: a client's flops for each example
  per_client: Numeric = 0.0  #: a client's flops that do not depend on its examples


def cost_of_step(step: ClosedFormStep, num_classes: int, groups: int = 1) -> LayerCost:
  """The cost of the round in which a step is solved for every group."""
  return LayerCost(
    step.floats_down(num_classes),
    step.statistics.floats_sent(num_classes),
    1,
    groups * step.solve_flops(num_classes),
    step.statistics.flops,
  )


def cost_of_personal(step: ClosedFormStep, num_classes: int) -> LayerCost:
  """The cost of the round in which clients compute their own part of a step."""
  if step.personal is None:
    return LayerCost()
  return LayerCost(
    per_example=step.statistics.flops, per_client=step.personal_flops(num_classes)
  )
