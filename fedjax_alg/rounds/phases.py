"""The phases of a round of two halves: begin, train, update (``two_halves``).

A function that takes ``k`` works on k models, leaves [k, ...]: one during the
warm-up, all K after it.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_alg import trees
from fedjax_alg.base import Array, Cohort, Key, MapClients, Model, Params
from fedjax_alg.central.steps import ServerStep
from fedjax_alg.central.validation import validation_arguments
from fedjax_alg.client import objective
from fedjax_alg.client.update import ClientUpdate, Received, Trained
from fedjax_alg.engine.cohorts import client_keys


class ModelGrouping(NamedTuple):
  """How K models share a cohort from round ``threshold`` + 1 on."""

  num_models: int  #: K
  threshold: int  #: T, rounds with one model
  #: (models w_k [K, ...], vectors [S, ...], anchors [K, ...], cohort,
  #: splitting [] bool, scale) -> targets w*_k [K, ...], groups
  regroup: Callable[..., tuple[Params, Any]]
  #: (trained models [S, ...], cohort) -> the vectors that are grouped
  vectors: Callable[[Params, Cohort], Params] = lambda trained, cohort: trained
  full_passes: int = 0  #: that it asks of every participant
  #: (slots, P, K) -> server arithmetic
  flops: Callable[[int, int, int], float] = lambda slots, size, k: 0.0


@dataclasses.dataclass(frozen=True)
class TwoHalves:
  """What ``compose`` was given."""

  model: Model
  client: ClientUpdate
  server: ServerStep
  map_clients: MapClients
  weigh: Callable[[Cohort], Array]  #: the participants in every mean, [S]
  grouping: ModelGrouping | None

  @property
  def num_models(self) -> int:
    """K."""
    return self.grouping.num_models if self.grouping else 1

  @property
  def anchored(self) -> bool:
    """Whether a round starts with the anchor gradient."""
    return self.client.needs_anchor or self.server.when == "before"


class Beginning(NamedTuple):
  """What a round's participants train from."""

  models: Params  #: [K, ...] w_k, where anchors were measured
  starts: Params  #: [K, ...] where training starts: w_k, or moved
  anchors: Params  #: [K, ...] mean gradient at ``models``, or ()
  server: Any  #: the server step's state, [K, ...]


class Choice(NamedTuple):
  """The participants' preferences among the models, [S]."""

  preference: Array  #: int32; 0 with one model
  loss: Any  #: float32, of the preferred model; None: nobody measured it


def _over_models(fn: Callable[..., Any], k: int) -> Callable[..., Any]:
  """``fn`` over a leading axis K; for K = 1 without vectorising."""
  if k > 1:
    return jax.vmap(fn)
  return lambda *args: jax.tree.map(
      lambda leaf: leaf[None], fn(*trees.index(args, 0)))


def begin(
    method: TwoHalves, k: int, per_model: tuple[Params, Any], cohort: Cohort
) -> tuple[Beginning, Choice]:
  """Anchor gradients, preferences and the "before" step of k models."""
  models, server_state = per_model
  anchors: Any = ()
  losses = None
  if method.anchored:
    losses, gradients = full_passes(method, k, models, cohort)
    # (17) averages over S^r, not S^{r-1}, whose members never see the models
    # after acceleration; every participant counts for every k (errata D-06).
    anchors = trees.slot_mean(method.weigh(cohort), gradients)
  elif k > 1:
    losses = method.map_clients(
        functools.partial(objective.full_losses, method.model), models,
        cohort.shards)
  choice = _choose(method, k, losses, cohort)
  starts = models
  if method.server.when == "before":
    starts, server_state = server_step(
        method, k, anchors, server_state, models, cohort)
  return Beginning(models, starts, anchors, server_state), choice


def full_passes(
    method: TwoHalves, k: int, models: Params, cohort: Cohort
) -> tuple[Array, Params]:
  """Losses [S, K] and gradients [S, K, ...] of every model everywhere."""

  def one_client(models, shard):
    return _over_models(lambda params: objective.full_value_and_grad(
        method.model, params, shard), k)(models)

  return method.map_clients(one_client, models, cohort.shards)


def _choose(
    method: TwoHalves, k: int, losses: Array | None, cohort: Cohort
) -> Choice:
  """The model of least loss for each participant; of one model that one."""
  preference = jnp.zeros(cohort.ids.shape, jnp.int32)
  if losses is None:  # of one model, that nobody measured
    unknown = jnp.zeros(cohort.ids.shape) if method.num_models > 1 else None
    return Choice(preference, unknown)
  if k > 1:
    preference = jnp.argmin(losses, axis=1).astype(jnp.int32)
  loss = jnp.take_along_axis(losses, preference[:, None], axis=1)[:, 0]
  return Choice(preference, loss)


def server_step(
    method: TwoHalves, k: int, gradients: Params, state: Any, models: Params,
    cohort: Cohort) -> tuple[Params, Any]:
  """The server's step for each model: (moved models, state)."""
  extra: dict[str, Any] = {}
  if method.server.needs_validation:
    extra = validation_arguments(
        method.model, cohort.validation, method.map_clients)

  def one(gradient, state, params):
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
      updates, state = method.server.transform.update(
          gradient, state, params, grad=gradient, **extra)
    return optax.apply_updates(params, updates), state

  return _over_models(one, k)(gradients, state, models)


def train(
    method: TwoHalves, beginning: Beginning, choice: Choice, memory: Any,
    cohort: Cohort, key: Key) -> Trained:
  """Local training of every participant, leaves [S, ...].

  The same program for one model and for K, whose copies during the warm-up
  are all the same to train from.
  """
  client = method.client

  def one_client(shared, shard, client_row, preference, key):
    beginning, extra = shared
    pick = preference if method.num_models > 1 else 0
    models, starts, anchors = trees.index(beginning, pick)
    return client.train(
        Received(starts, models, anchors, extra), shard, client_row, key)

  keys = client_keys(key, cohort.ids)
  return method.map_clients(
      one_client, (beginning[:3], client.shared(memory)), cohort.shards,
      client.client_rows(memory, cohort, keys), choice.preference, keys)


def update(
    method: TwoHalves, k: int, beginning: Beginning, memory: Any,
    rounds: Array, trained: Params, vectors: Params, cohort: Cohort
) -> tuple[Params, Any]:
  """What the k models move by [k, ...], and the groups if there are any."""
  participants = cohort.present.sum().astype(jnp.float32)
  scale = functools.partial(method.client.scale, memory, participants)
  starts, groups = beginning.starts, None
  if method.grouping:
    # Round T + 1 splits the copies; no round of the warm-up is that one.
    splitting = rounds == method.grouping.threshold
    target, groups = method.grouping.regroup(
        starts, vectors, beginning.anchors, cohort, splitting, scale)
    # An empty group takes no grouping step (errata D-13).
    target = trees.where_slots(groups.size > 0, target, starts)
    update = trees.subtract(target, starts)
  else:
    mean = trees.slot_mean(
        method.weigh(cohort), trees.subtract(trained, starts))
    update = jax.tree.map(lambda leaf: leaf[None], mean)
  return _over_models(scale, k)(update), groups  # (60)


def discrepancy(
    models: Params, starts: Params, trained: Params, preference: Array,
    groups: Any, cohort: Cohort) -> Array:
  """Mean distance of the trained models from their aggregate (FedGroup (4)).

  The aggregate is this round's (errata F-26).
  """
  if groups is None:  # one model; the updates are what was sent
    gap = trees.subtract(
        trees.subtract(trained, starts), trees.subtract(models, starts))
  else:
    gap = trees.subtract(trained, trees.index(models, preference))
  return trees.slot_mean(
      cohort.present.astype(jnp.float32), trees.slot_norm(gap))
