"""Building blocks of many methods: shared option fields, and common builders."""

import dataclasses
from typing import Any, ClassVar

import optax

from fedjax_alg import grouping
from fedjax_alg.base import Algorithm, Array, MapClients, Model
from fedjax_alg.central import steps
from fedjax_alg.client.optimizers import (
  ClientOptimizer,
  local_optimizer,
  refuse_options,
)
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.messages import Carrier
from fedjax_alg.exchange.weights import BY_LOSS, FAIR, Choice, Plain, UniformWeights
from fedjax_alg.grouping import COUNTS
from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part, of_type
from fedjax_alg.rounds.two_halves import ComposedState, ModelGrouping, compose


def local_rate(default: float = 0.1, source: str = "", symbol: str = "") -> Any:
  """The field `client_lr`; the paper writes it as ``symbol``."""
  return hyper(
    default,
    f"{symbol and symbol + ', '}learning rate of the local steps",
    above=0.0,
    source=source,
  )


def server_rate(source: str = "", symbol: str = "", note: str = "") -> Any:
  """The field `server_lr` of a server that adds the mean update."""
  return hyper(
    1.0,
    f"{symbol and symbol + ', '}factor of the participants' mean update{note}",
    above=0.0,
    source=source,
  )


def weights(
  default: Plain,
  source: str = "",
  mean: str = "the mean update",
  by_loss: bool = False,
  **options: Any,
) -> Any:
  """The field `client_weights`; ``mean`` says what is weighted.

  With ``by_loss`` weights by the participants' losses may be given, too.
  """
  text = (
    f"weights of the participants in {mean}: examples = n_i / n^r, uniform = all equal"
  )
  if not by_loss:
    return hyper(default, text, source=source)
  return hyper(
    default,
    f"{text}, {BY_LOSS}",
    source="; ".join(filter(None, (source, FAIR))),
    **options,
  )


def refuse_new_sizes(weights: Plain, data: Any) -> None:
  """Refuses clients whose weights change, for methods whose states hold a weighted sum.

  Args:
    weights: those of the participants.
    data: options of the data, filled.

  Raises:
    OptionError: the clients' data change, and weights are those by examples.
  """
  if data.change is not None and not isinstance(weights, UniformWeights):
    raise OptionError(
      f"`client_weights`={weights}: not with `{data.change.OPTION}`, since what "
      "clients keep holds for the sizes that they had (allowed: uniform)"
    )


class Cut(Part):
  """Where the tree of a clustering is cut."""

  COUNT: ClassVar[str] = "fixed"  #: one of ``grouping.COUNTS``

  def below(self) -> float:
    """The distance up to which groups are merged."""
    return 0.0

  def groups(
    self,
    distance: Array,
    mask: Array,
    linkage: str,
    max_groups: int,
    rounding: Array | float,
  ) -> Array:
    """The groups of the clustering, [n] int32; see ``grouping.cluster``."""
    return grouping.cluster(
      distance,
      mask,
      linkage,
      count=self.COUNT,
      max_groups=max_groups,
      threshold=self.below(),
      rounding=rounding,
    )

  def flops(self, rows: int, max_groups: int) -> float:
    """The arithmetic of the choice of a number, for so many rows."""
    return grouping.counting_flops(self.COUNT, rows, max_groups)


class CountCut(Cut):
  """Exactly ``max_groups`` groups."""

  WORD = EXAMPLE = "count"


class DistanceCut(Cut):
  """Groups that are closer than a distance are merged, to ``max_groups`` at most."""

  WORD, EXAMPLE = "distance", "distance:8.5"
  threshold: float = hyper(
    1.0,
    "the distance; a good value depends on how distances are measured, and of "
    "updates on learning rate and model",
    above=0.0,
  )

  def below(self) -> float:
    """The distance up to which groups are merged."""
    return self.threshold


class SilhouetteCut(Cut):
  """The number of groups with the largest mean silhouette."""

  WORD = EXAMPLE = COUNT = "silhouette"


TreeCut = CountCut | DistanceCut | SilhouetteCut


def tree_cut(source: str) -> Any:
  """The field `cut` of a method that clusters its clients once."""
  return hyper(
    CountCut(),
    "where the tree of the clustering is cut: count = at `max_groups` groups, distance "
    "= groups that are closer are merged, silhouette = at the number up to "
    "`max_groups` with the largest mean silhouette of its groups (one group only if "
    "the clients are equal or none is positive)",
    source=f"{source}; Rousseeuw 1987 (silhouette)",
  )


def group_count(limit: str) -> Any:
  """The field `group_count` of a method that finds its groups at once."""
  return hyper(
    "fixed",
    f"how to choose the number of groups: fixed = as `{limit}` says, silhouette = the "
    f"number up to `{limit}` with the largest mean silhouette of its groups (one "
    "group only if the clients are equal or none is positive)",
    choices=COUNTS,
    source="Rousseeuw 1987",
  )


class LocalMethod(Part):
  """How a participant trains, in a method that takes any local method."""

  #: the default of `client_lr`
  RATE: ClassVar[float] = 0.1
  #: whether it takes the options of ``ClientOptimizer``
  TAKES_OPTIMIZER: ClassVar[bool] = False
  #: whether the cohort measures its anchor gradient
  ANCHORED: ClassVar[bool] = False
  #: whether it refuses weights that follow from losses, since it reads them itself
  PLAIN_WEIGHTS: ClassVar[bool] = False

  @property
  def weighs(self) -> bool:
    """Whether it reads the weights of the participants itself."""
    return False

  def check_optimizer(self, options: ClientOptimizer) -> None:
    """Refuses an optimizer where the method makes its steps itself.

    Args:
      options: the optimizer's, among others.

    Raises:
      OptionError: an option of the optimizer differs from its default.
    """
    if not self.TAKES_OPTIMIZER:
      refuse_options(options, f"`client_update`={self.WORD} makes its steps itself")

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half.

    Args:
      model: the model and its objective.
      options: the work and the learning rate of a client, and what else the methods
        have that take any local method: a ``LocalWork`` with `client_lr`,
        `client_weights` and the fields of ``ClientOptimizer``.
      carrier: how messages travel (``MapClients.carrier``).
    """
    raise NotImplementedError


def local_sgd(
  model: Model, hparams: Any, optimizer: optax.GradientTransformation | None = None
) -> ClientUpdate:
  """FedAvg's local method, with FedProx's `mu` if there is one."""
  return sgd_update(
    model,
    hparams,
    hparams.client_lr,
    getattr(hparams, "mu", 0.0),
    local_optimizer(hparams, optimizer),
  )


def weighted(exchange: Exchange, hparams: Any, reads_weights: bool = False) -> Exchange:
  """The links with the weights of a method that has `client_weights`.

  Args:
    exchange: the links.
    hparams: the hyper-parameters.
    reads_weights: whether the method reads them besides the links.

  Raises:
    OptionError: weights are given that nothing reads.
  """
  weights: Choice | str | None = getattr(hparams, "client_weights", None)
  if weights is None:
    return exchange
  part = of_type("client_weights", weights, Choice)
  usual = type(hparams).__dataclass_fields__["client_weights"].default
  is_given = type(part) not in (type(usual), UniformWeights)
  if is_given and not (reads_weights or exchange.reads_weights):
    name = "a private mean" if exchange.privacy else exchange.aggregator.name
    raise OptionError(
      f"`client_weights`={part.WORD}: with {name} all participants count alike "
      f"(allowed: {UniformWeights()})"
    )
  return dataclasses.replace(exchange, weights=part.build())


def averaging(
  model: Model,
  client: ClientUpdate,
  hparams: Any,
  map_clients: MapClients,
  server: steps.ServerStep | None = None,
  grouping: ModelGrouping | None = None,
  *,
  exchange: Exchange,
  reads_weights: bool = False,
) -> Algorithm[ComposedState]:
  """A local method, and a server step with the mean of its updates.

  Without a server step the model moves by the mean update times `server_lr`. If the
  method ``reads_weights`` itself, `client_weights` may differ where the aggregator has
  no use of them.
  """
  return compose(
    model,
    client,
    server or steps.average(hparams.server_lr),
    map_clients=map_clients,
    exchange=weighted(exchange, hparams, reads_weights),
    grouping=grouping,
  )


def product_caution(
  hparams: object, rate: str, pull: str, most: float, effect: str
) -> str:
  """A warning if two hyper-parameters have too large a product, else ""."""
  rate_value, pull_value = getattr(hparams, rate), getattr(hparams, pull)
  if rate_value * pull_value < most:
    return ""
  return (
    f"`{rate}`={rate_value:g} with `{pull}`={pull_value:g}: {effect} from a product of "
    f"{most:g} on; take `{rate}` below {most / pull_value:.1e}"
  )
