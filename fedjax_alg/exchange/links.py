"""The links between clients and server that a method uses, as one value.

What a participant sends passes them in this order, and so does what comes back:

  1. ``attack``: hostile clients train on false labels (``wrap``);
  2. ``compress_up``: updates are sent in fewer bytes (``fit`` joins it to the
     client's half);
  3. ``attack``: hostile clients send false vectors (``Exchange.receive``);
  4. ``aggregator``: one vector is made of those of all participants, their mean
     or what takes its place, with ``privacy`` a noised mean
     (``Exchange.combine``);
  5. ``compress_down``: models are sent in fewer bytes (``broadcast``).

Every kind of round takes an ``Exchange`` and asks ``fit`` whether it goes with
the local method; ``communication`` counts what is sent.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import math
from typing import Any

import jax.numpy as jnp

from fedjax_alg import tasks
from fedjax_alg.base import (
  BYTES_PER_FLOAT,
  Algorithm,
  Array,
  Cohort,
  Key,
  Model,
  Params,
  Traffic,
  initial_shapes,
  num_params,
)
from fedjax_alg.client.personal import with_own
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.engine.keys import client_keys
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import broadcast, stacking
from fedjax_alg.exchange.aggregation import Aggregator, WeightedMean
from fedjax_alg.exchange.attacks import (
  Attack,
  forge_vectors,
  trains_on_false_labels,
)
from fedjax_alg.exchange.compression import Compressor, compressed
from fedjax_alg.exchange.messages import Carrier
from fedjax_alg.exchange.options import whole
from fedjax_alg.exchange.privacy import (
  AdaptiveClipping,
  NoisedMean,
  clip_on_clients,
)
from fedjax_alg.exchange.weights import ByLoss, ExampleWeights
from fedjax_alg.exchange.weights import Choice as Weights
from fedjax_alg.hparams import check_options
from fedjax_alg.part import convert_types, of_type
from fedjax_alg.typing import PyTree


@dataclasses.dataclass(frozen=True)
class Exchange:
  """Processing of the messages between clients and server."""

  #: weights of the participants in every mean, see ``exchange.weights``: a function
  #: of the cohort -> [S] float32, or a rule by which they follow from losses
  weights: Callable[[Cohort], Array] | ByLoss = ExampleWeights().build()
  #: what takes the place of the mean over the participants, for updates and
  #: anchor gradients; with K models for the updates of every group. Means of
  #: what else clients send (``ClientUpdate.merge``) stay means
  aggregator: Aggregator = WeightedMean().build()
  #: what hostile clients do; what else they send is what they have computed
  attack: Attack | None = None
  compress_up: Compressor | None = None  #: how updates are sent; None: whole
  compress_down: Compressor | None = None  #: how models are; None: whole
  #: how what the server releases is made private; participants then have equal
  #: weights whatever ``weights`` says
  privacy: NoisedMean | None = None

  @property
  def forges(self) -> bool:
    """Whether hostile clients send false vectors."""
    return self.attack is not None and self.attack.forge is not None

  @property
  def can_stream(self) -> bool:
    """Whether a running sum is enough, so that no vector has to be kept."""
    return self.aggregator.is_mean and not self.forges

  @property
  def reads_weights(self) -> bool:
    """Whether what a round aggregates depends on the participants' weights."""
    return not self.privacy and (
      self.aggregator.weighted or (self.attack is not None and self.attack.weighs)
    )

  @property
  def compress_gradients(self) -> Compressor | None:
    """Compressor of anchor gradients: the unbiased one of updates, or None."""
    up = self.compress_up
    return up if up and up.unbiased else None

  @property
  def by_loss(self) -> ByLoss | None:
    """Rule by which weights follow from losses; None if they do not."""
    return self.weights if isinstance(self.weights, ByLoss) else None

  def weigh(self, cohort: Cohort) -> Array:
    """The weights of the participants in every mean, [S] float32."""
    assert not isinstance(self.weights, ByLoss)
    return self.weights(cohort)

  def shares(self, cohort: Cohort, vector: Params) -> Array | None:
    """The factors of vectors like this one in a mean, [S].

    None where every vector is kept: because the mean is not enough, or because
    they are small (``stacking``).
    """
    if stacking.fits(cohort.ids.shape[0], vector) or not self.can_stream:
      return None
    return stacking.shares(self.weigh(cohort))

  def receive(
    self,
    vectors: Params,
    cohort: Cohort,
    key: Key,
    weights: Array,
    groups: Array | None = None,
    num_groups: int = 1,
  ) -> Params:
    """Returns the vectors that the server receives, forged ones included.

    Args:
      vectors: [S, ...], the participants' updates or gradients.
      cohort: the participants.
      key: consumed.
      weights: [S], their weights in the mean.
      groups: [S] int32, the model that each of them trains; None: all the same.
      num_groups: K.

    Returns:
      [S, ...].
    """
    if self.attack is None or not self.forges:
      return vectors
    if groups is None:
      groups = jnp.zeros(cohort.ids.shape, jnp.int32)
    return forge_vectors(
      self.attack,
      vectors,
      weights,
      groups,
      num_groups,
      cohort,
      client_keys(key, cohort.ids),
    )

  def combine(
    self, vectors: Params, weights: Array, cohort: Cohort, key: Key, last: PyTree = None
  ) -> tuple[Params, PyTree]:
    """Makes one vector of those that the server has received.

    Args:
      vectors: [S, ...].
      weights: [S]; those of weight 0 are ignored.
      cohort: the participants.
      key: consumed.
      last: what the aggregator has kept of the round before
        (``Aggregator.keeps``).

    Returns:
      The vector [...], and what the aggregator keeps; None: nothing.
    """
    if self.aggregator.keeps is None:
      return self.aggregator.combine(vectors, weights, cohort, key), None
    result: tuple[Params, PyTree] = self.aggregator.combine(
      vectors, weights, cohort, key, last
    )
    return result


def exchange_of(options: object) -> Exchange:
  """Makes the links that options name.

  Args:
    options: an ``ExchangeOptions``, the options of some of the links, or
      hyper-parameters that inherit them; `client_weights` is read, too.

  Raises:
    OptionError: a name or an amount is wrong.
  """
  all_options = convert_types(whole(options))
  check_options(all_options)
  up, down = all_options.compressors()
  private = all_options.private
  weights = getattr(options, "client_weights", ExampleWeights())
  return Exchange(
    weights=of_type("client_weights", weights, Weights).build(),
    aggregator=all_options.aggregator.build(),
    attack=all_options.attack.build(),
    compress_up=up,
    compress_down=down,
    privacy=private if isinstance(private, NoisedMean) else None,
  )


def fit(
  exchange: Exchange,
  client: ClientUpdate,
  model: Model,
  *,
  num_models: int = 1,
  released: int = 1,
  refused: Mapping[str, str] | None = None,
  carrier: Carrier | None = None,
) -> tuple[Exchange, ClientUpdate]:
  """Joins the links to a local method.

  Args:
    exchange: the links.
    client: the local method.
    model: its model.
    num_models: K.
    released: number of vectors that a round aggregates.
    refused: option -> why this kind of round cannot have the link; "" if it
      can. ``attack`` stands for attacks that forge what is sent, ``memory`` for
      a compressor that keeps something for each client, ``personal`` for
      personal parameters, ``model_state`` for running statistics, and
      ``client_weights`` for weights by losses.
    carrier: how messages travel (``MapClients.carrier``).

  Returns:
    The links, of which ``aggregator`` is the private mean if there is one; and
    the local method, which compresses what it sends and in whose memory is what
    the server keeps for ``compress_down``.

  Raises:
    OptionError: a link cannot be had with the others, with the local method or
      in this kind of round.
  """
  refused = refused or {}
  if exchange.by_loss:
    name = exchange.by_loss.name
    _refuse("client_weights", name, refused.get("client_weights"))
    if exchange.by_loss.shorten and client.learning_rate is None:
      _refuse("client_weights", name, "the local method has no learning rate")
  elif not callable(exchange.weights):
    raise OptionError(
      f"`client_weights`={exchange.weights}: must be a function of the cohort, as "
      "UniformWeights().build() makes it"
    )
  if model.roles is not None:
    if model.roles.has_personal:
      _refuse("roles", "personal", refused.get("personal"))
    if model.roles.has_state:
      _refuse("model_state", model.roles.model_state, refused.get("model_state"))
    client = with_own(client, model)
  up, down, aggregator = (
    exchange.compress_up,
    exchange.compress_down,
    exchange.aggregator,
  )
  attack = exchange.attack.name if exchange.attack and exchange.forges else ""
  if exchange.attack and exchange.attack.flips_labels:
    flip = tasks.of(model).flipped
    _refuse(
      "attack",
      exchange.attack.name,
      "" if flip else (f"the task {tasks.of(model).name} has no labels to flip"),
    )
    exchange = dataclasses.replace(exchange, attack=exchange.attack._replace(flip=flip))
  if client.mean_only:
    _refuse(
      "aggregator",
      "" if aggregator.is_mean else aggregator.name,
      f"the local method needs the mean ({client.mean_only})",
    )
    _refuse(
      "attack",
      attack,
      "the local method's server adds up what clients "
      "have computed, so their updates cannot be forged (label_flip "
      "leaves them)",
    )
  for option, value in (
    ("attack", attack),
    ("compress_up", up and up.name),
    ("compress_down", down and down.name),
  ):
    _refuse(option, value, refused.get(option))
  if up:
    store = client.store
    client = compressed(client, up, initial_shapes(model.init), carrier)
    _refuse(
      "compress_up", up.name if client.store is not store else "", refused.get("memory")
    )
  privacy = exchange.privacy
  if privacy:
    exchange = _private(exchange, client, released, refused.get("private"))
    client = clip_on_clients(client, privacy, carrier)
  if down:
    client = broadcast.with_memory(client, down, num_models)
  return exchange, client


def wrap(exchange: Exchange, algorithm: Algorithm) -> Algorithm:
  """The algorithm with the links that act outside of its rounds.

  Args:
    exchange: the links, from ``fit``.
    algorithm: the algorithm; its rounds have the other links.
  """
  if exchange.attack and exchange.attack.flips_labels:
    algorithm = trains_on_false_labels(algorithm, exchange.attack)
  if exchange.compress_down:
    algorithm = broadcast.sends_changes(algorithm, exchange.compress_down)
  return algorithm


def _private(
  exchange: Exchange, client: ClientUpdate, released: int, refused: str | None
) -> Exchange:
  """The links with the private mean as the aggregator."""
  privacy, aggregator = exchange.privacy, exchange.aggregator
  assert privacy is not None
  reasons = [refused, client.leak]
  if exchange.by_loss:
    reasons.append(
      f"`client_weights`={exchange.by_loss.name} follow from losses, which clients "
      "would send without noise"
    )
  if not aggregator.is_mean:
    reasons.append(
      f"the noise is that of a mean (`aggregator`={aggregator.name} is none)"
    )
  if released > 1 and not isinstance(privacy, AdaptiveClipping):
    reasons.append("updates and anchor gradients are not of one length (give adaptive)")
  if privacy.at_clients and (exchange.forges or client.upload_bytes):
    reasons.append(
      "with at=clients every participant sends its whole update with "
      "its share of the noise (not with `attack`, `compress_up` or `uplink`="
      "seeds)"
    )
  for why in reasons:
    _refuse("private", privacy.WORD, why)
  return dataclasses.replace(exchange, aggregator=privacy.build(released))


def _refuse(option: str, value: str | None, why: str | None) -> None:
  """Refuses an option that is given, for a reason that there is."""
  if value and why:
    raise OptionError(f"`{option}`={value}: {why}")


def count_bytes(size: int, traffic: Traffic) -> int:
  """Counts bytes; a part of a byte counts as one.

  Args:
    size: P.
    traffic: a number of vectors of P floats, or a function P -> bytes.
  """
  number = traffic(size) if callable(traffic) else (BYTES_PER_FLOAT * size * traffic)
  return math.ceil(round(number, 6))  # 0.7 vectors of 10 floats are 28 bytes


def communication(
  exchange: Exchange,
  client: ClientUpdate,
  params: Params,
  memory: object,
  cohort: Cohort,
  *,
  models: int = 1,
  vectors: int = 0,
  gradients: int = 0,
  more_up: int = 0,
  floats_down: Any = 0,
  floats_up: Any = 0,
) -> dict[str, Any]:
  """Counts what each participant receives and sends in a round.

  Args:
    exchange: the links.
    client: the local method.
    params: those of the model, arrays or shapes.
    memory: that of the local method, with what a broadcast keeps.
    cohort: the participants.
    models: number of models that a participant receives to begin with.
    vectors: number of vectors of P floats that it receives besides.
    gradients: number of gradients that it sends besides its update.
    more_up: bytes that it sends besides.
    floats_down: further floats that it receives, [] int32 if they depend on the
      round.
    floats_up: further floats that it sends, likewise.

  Returns:
    The arguments of ``round_cost``.
  """
  bytes_of = functools.partial(count_bytes, num_params(params))
  down: Any = (
    bytes_of(vectors)
    + bytes_of(client.extra_down)
    + bytes_of(exchange.aggregator.extra_down)
  )
  if exchange.compress_down:
    down = jnp.uint32(down) + models * broadcast.mean_bytes(
      exchange.compress_down, params, memory, cohort
    )
  else:
    down += bytes_of(models)
  up = (
    more_up
    + bytes_of(client.upload_bytes or 1)
    + bytes_of(client.extra_up)
    + bytes_of(exchange.aggregator.extra_up)
  )
  if gradients:
    gradient = exchange.compress_gradients
    up += gradients * (gradient.nbytes(params) if gradient else bytes_of(1))
  cost: dict[str, Any] = {}
  for name, number, floats in (("down", down, floats_down), ("up", up, floats_up)):
    cost[name] = (number + (BYTES_PER_FLOAT - 1)) // BYTES_PER_FLOAT + floats
    if not isinstance(number, int) or number % BYTES_PER_FLOAT:
      cost["bytes_" + name] = number + BYTES_PER_FLOAT * floats
  return cost
