"""Rounds in which the server moves frozen kernels by the clients' adapters.

Participants train and send adapters (``lora.adapters``), and the server adds what
``adapters.merge`` makes of them to the frozen kernels. These are then a part of the
state. Every round is built with them in the place of those that the run started
from, so that all that reads the model reads the kernels as they are.

The server sends the change of a layer [d, e] by n participants as factors of n r
columns and rows, or whole if that is less. A participant is sent all changes since
it last took part, or the kernels if these are less; like all frozen parameters
it has the first ones.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import (
  BYTES_PER_FLOAT,
  Algorithm,
  Array,
  Cohort,
  Model,
  Params,
  RoundCost,
)
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import stacking
from fedjax_alg.extras.lora import adapters as lora
from fedjax_alg.models.roles import ClientLeaves
from fedjax_alg.rounds.one_model import ComposedState, TwoHalves

#: Folded into a client's key for its adapters of a round (FLoRA).
_ADAPTERS = 0x10FA
#: Name in ``ComposedState.aggregates``.
_MISSED = "missed"


def hands_over(method: TwoHalves) -> TwoHalves:
  """The method whose participants hand over their adapters.

  Returns:
    The method; ``Trained.leaves`` has the adapters as the server receives them. With
    FLoRA they are new ones of each participant, and those of the server stay.

  Raises:
    OptionError: the method has several models, or no mean.
  """
  merging, exchange = method.model.roles.merging, method.exchange
  forges, down = exchange.forges and exchange.attack, exchange.compress_down
  aggregator = exchange.aggregator
  for option, value in (
    ("private", exchange.privacy and exchange.privacy.WORD),
    ("aggregator", "" if aggregator.is_mean else aggregator.name),
    ("attack", forges and forges.name),
    ("compress_down", down and down.name),
    ("client_weights", exchange.by_loss and exchange.by_loss.name),
    ("num_models", str(method.num_models) if method.num_models > 1 else ""),
  ):
    if value:
      raise OptionError(
        f"`lora`={merging.aggregation}: one model moves by the mean of "
        f"what participants send, not with `{option}`={value} (allowed: fedit, ffa)"
      )
  client, redraws = method.client, merging.aggregation == "flora"

  def train(received, shard, client_row, key):
    start = received.start
    if redraws:
      new = lora.draw_adapters(jax.random.fold_in(key, _ADAPTERS), start)
      received = received._replace(start=new, reference=new)
    result = client.train_checked(received, shard, client_row, key)
    sent = lora.keep_leaves(result.params, *lora.ADAPTERS)
    if redraws:
      first = lora.keep_leaves(start, *lora.ADAPTERS)
      result = result._replace(params=lora.put_adapters(result.params, first))
    return result._replace(leaves=ClientLeaves((), sent))

  return dataclasses.replace(method, client=client._replace(train=train))


def moves_kernels(
  algorithm: Algorithm[ComposedState], method: TwoHalves
) -> Algorithm[ComposedState]:
  """The algorithm of one round, whose server moves the kernels of the model.

  Args:
    algorithm: the algorithm of ``method``.
    method: a method that ``hands_over`` adapters.
  """
  roles = method.model.roles
  kernels = lora.keep_leaves(roles.frozen, "kernel")

  def init(params, spec, key):
    state = algorithm.init(params, spec, key)
    missed = jnp.zeros((1, spec.num_clients), jnp.int32)
    return state._replace(
      states=trees.repeat(jax.tree.map(jnp.asarray, kernels), 1),
      aggregates=state.aggregates | {_MISSED: missed},
    )

  def run(state, cohort, key):
    aggregates = dict(state.aggregates)
    (missed,) = aggregates.pop(_MISSED)
    new, aux = algorithm.round(
      state._replace(states=(), aggregates=aggregates), cohort, key
    )
    adapters, shares = new.states, stacking.shares(method.exchange.weigh(cohort))
    moved = lora.merge(roles.merging, kernels, adapters, shares)
    missed, cost = _count(roles.merging, adapters, missed, cohort, aux.cost)
    return new._replace(
      states=trees.repeat(moved, 1),
      aggregates=new.aggregates | {_MISSED: missed[None]},
    ), aux._replace(cost=cost)

  return algorithm._replace(init=init, round=run, keeps_state=True)


def with_kernels_of_state(
  make: Callable[[Model], Algorithm[Any]], model: Model
) -> Algorithm[ComposedState]:
  """The algorithm whose rounds have the kernels of the state.

  Args:
    make: model -> an algorithm that ``moves_kernels``.
    model: the model with the kernels of the start.

  Raises:
    OptionError: the algorithm is another one.
  """
  roles, first = model.roles, make(model)
  if not first.keeps_state:
    raise OptionError(
      f"`lora`={roles.merging.aggregation}: the server of this method "
      "moves no frozen kernels (allowed: fedit, ffa)"
    )

  def run(state, cohort, key):
    kernels = trees.index(state.states, 0)
    now = make(roles.with_frozen(model, roles.join(kernels, roles.frozen)))
    return now.round(state, cohort, key)

  return first._replace(round=run)


def _count(
  merging: lora.Merging,
  adapters: Params,
  missed: Array,
  cohort: Cohort,
  cost: RoundCost,
) -> tuple[Array, RoundCost]:
  """Counts what the kernels cost in a round.

  Args:
    merging: the rule.
    adapters: those of the participants, [S, ...].
    missed: [C] int32, floats that each client has not received.
    cohort: the participants.
    cost: that of the round without them.

  Returns:
    What clients have not received after the round, and the cost.
  """
  sizes, present = lora.layer_sizes(adapters), cohort.present
  whole = sum(d * e for d, _, e in sizes)
  count = present.sum(dtype=jnp.int32)
  change = sum(
    (jnp.minimum(count * r * (d + e), d * e) for d, r, e in sizes), jnp.int32(0)
  )
  number = count.astype(jnp.float32)
  received = jnp.where(present, missed.at[cohort.ids].get(mode="clip"), 0)
  mean = received.astype(jnp.float32).sum() / jnp.maximum(number, 1.0)
  floats = jnp.ceil(mean).astype(jnp.int32)
  if merging.aggregation == "flora":  # every participant draws its adapters
    floats -= sum(r * (d + e) for d, r, e in sizes)
  places = jnp.where(present, cohort.ids, missed.size)
  missed = jnp.minimum(missed.at[places].set(0, mode="drop") + change, whole)
  flops = 2.0 * number * sum(d * r * e for d, r, e in sizes)
  return missed, _with_floats(cost, floats, flops)


def _with_floats(cost: RoundCost, floats: Array, flops: Array) -> RoundCost:
  """The cost with more floats down and more operations of the server."""
  down = cost.bytes_down
  if down is not None:
    down = (down.astype(jnp.int32) + BYTES_PER_FLOAT * floats).astype(jnp.uint32)
  return cost._replace(
    down=cost.down + floats,
    bytes_down=down,
    central_flops=cost.central_flops + flops,
  )
