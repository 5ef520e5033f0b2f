"""What a round of ``two_halves`` reports, and what it costs."""

from collections.abc import Iterator
import functools
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, BYTES_PER_FLOAT, Cohort, round_cost
from fedjax_alg.base import RoundCost, Work
from fedjax_alg.exchange import broadcast
from fedjax_alg.exchange.compression import shapes
from fedjax_alg.rounds import ledger
from fedjax_alg.rounds.phases import Choice, Turn, TwoHalves


def log(
    method: TwoHalves, choice: Choice, groups: Any, server_state: Any,
    turn: Turn) -> tuple[dict[str, Array], dict[str, Array]]:
  """What a round reports about the participants [S], and about the server."""
  num_models, cohort = method.num_models, turn.cohort
  per_client = {"loss": choice.loss}
  logged = {"train_loss": trees.slot_mean(cohort.weight, choice.loss)}
  if jax.tree.leaves(server_state):  # without leaves vmap has no axis
    for name, values in jax.vmap(method.server.report)(server_state).items():
      logged[name] = values if num_models > 1 else values[0]
  if groups is not None:
    per_client |= {"preference": choice.preference,
                   "assignment": groups.assignment}
    logged["group_size"] = groups.size
  if turn.warm_up is not None:  # logs one model in the shape of K models
    kept = ~turn.warm_up | (jnp.arange(num_models, dtype=jnp.int32) == 0)
    logged = {name: jnp.where(kept, value, jnp.zeros_like(value))
              if value.ndim else value for name, value in logged.items()}
  return per_client, logged


def cost(
    method: TwoHalves, size: int, server_state: Any, gradients: Any, turn: Turn,
    memory: Any) -> tuple[RoundCost, Work]:
  """The cost of the round, and the work of each participant."""
  model_bytes = None
  if method.compress_down:
    model_bytes = broadcast.mean_bytes(
        method.compress_down, shapes(method.model), memory, turn.cohort)
  of_models = functools.partial(
      _cost, method, size=size, cohort=turn.cohort, gradients=gradients,
      model_bytes=model_bytes)
  of_all = of_models(method.num_models, server_state)
  if turn.warm_up is None:
    return of_all
  of_one = of_models(1, trees.index(server_state, slice(0, 1)))
  return trees.where(turn.warm_up, *_alike(of_one, of_all))


def _alike(
    *found: tuple[RoundCost, Work]) -> Iterator[tuple[RoundCost, Work]]:
  """Costs of which all have the bytes that one of them has."""
  for cost_, work in found:
    for way in ("down", "up"):
      name = f"bytes_{way}"
      if getattr(cost_, name) is None and any(
          getattr(other, name) is not None for other, _ in found):
        whole: Any = {name: BYTES_PER_FLOAT * getattr(cost_, way).astype(
            jnp.uint32)}
        cost_ = cost_._replace(**whole)
    yield cost_, work


def _cost(
    method: TwoHalves, k: int, server_state: Any, *, size: int, cohort: Cohort,
    gradients: Any, model_bytes: Any) -> tuple[RoundCost, Work]:
  """As ``cost``, for k models; ``model_bytes`` of each, None if it is whole."""
  client, server, grouping = method.client, method.server, method.grouping
  anchored, aggregator = method.anchored, method.aggregator
  before, after = server.when == "before", server.when == "after"
  # A participant receives the models, the anchor gradient that corrects its
  # steps, the model that the server moved, and the models at which it measures
  # again. It sends the trained model, the gradients of every model, its
  # preference, and the second gradients (errata D-20). Forward passes for the
  # preference alone do not count as example gradients.
  sent = functools.partial(ledger.sent_bytes, size)
  whole = model_bytes is None
  down: Any = sent(
      k * whole + client.needs_anchor + before + k * after) + sent(
          client.extra_down) + sent(aggregator.extra_down)
  if not whole:
    down = jnp.uint32(down) + k * model_bytes
  gradients_up = k * anchored + k * after
  up = sent(client.upload_bytes or 1) + sent(client.extra_up) + sent(
      aggregator.extra_up)
  if method.compress_gradients:
    up += gradients_up * method.compress_gradients.nbytes(shapes(method.model))
  else:
    up += sent(gradients_up)
  if grouping:
    up += BYTES_PER_FLOAT + sent(grouping.extra_up)
  passes = k * anchored + k * after + client.full_passes + (
      grouping.full_passes if grouping else 0)
  gradients, work = ledger.count_work(
      method.model, client, cohort.shards.size, gradients, full_passes=passes,
      evaluations=k if k > 1 and not anchored else 0, part=cohort.part)
  slots = cohort.ids.shape[0]
  flops: Any = k * (1 + anchored + after) * aggregator.flops(slots, size) + (
      client.server_flops(slots, size))
  if grouping:
    flops = flops + grouping.flops(slots, size, k)
  if server.needs_validation and cohort.validation is not None:
    # A pass over the validation data is counted as a multiplication and an
    # addition for each parameter and example.
    flops = flops + (2.0 * size * cohort.validation.size.astype(jnp.float32)
                     * jax.vmap(server.evaluations)(server_state).sum())
  return round_cost(
      **ledger.communication(down, up), exchanges=1 + anchored + after,
      example_gradients=gradients.sum() + passes * cohort.shards.size.sum(),
      central_flops=flops), work
