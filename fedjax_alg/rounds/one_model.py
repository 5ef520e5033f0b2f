"""One round of one global model, from the cohort to the new state.

The state has a leading axis of one model, which ``run_round`` takes off first
and puts back last. Rounds of several models are in ``k_models``.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Cohort, Key, Params, RoundAux
from fedjax_alg.client import objective
from fedjax_alg.engine.cohorts import BROADCAST, client_keys, FIRST_GRADIENTS
from fedjax_alg.engine.cohorts import FORGERIES, LAST_GRADIENTS, MESSAGES
from fedjax_alg.engine.cohorts import SERVER_STEP, server_key, UPDATES
from fedjax_alg.exchange import broadcast, stacking
from fedjax_alg.rounds.halves import against, AGGREGATED, combined_gradients
from fedjax_alg.rounds.halves import ComposedState, costs, joined, server_keys
from fedjax_alg.rounds.halves import server_step, TwoHalves
from fedjax_alg.rounds.local_training import train, Training


def run_round(
    method: TwoHalves, state: ComposedState, cohort: Cohort, key: Key
) -> tuple[ComposedState, RoundAux]:
  """Runs a round.

  Args:
    method: the two halves and the links between them.
    state: the state.
    cohort: the participants.
    key: key of the round; consumed.
  """
  client, server, exchange = method.client, method.server, method.exchange
  cohort = exchange.poisoned(cohort)
  state = joined(method, state, cohort)
  model, server_state, aggregates = trees.index(
      (state.models, state.server, state.aggregates), 0)
  step = functools.partial(
      server_step, method, cohort, state.round,
      key=server_keys(key, SERVER_STEP, 1)[0])
  measure = functools.partial(
      anchor_gradient, method, cohort=cohort, key=key, last=aggregates)

  # The cohort measures the gradient at the model, and the server may move it.
  loss, anchor, kept, start = None, (), {}, model
  if method.anchored:
    loss, anchor, kept[FIRST_GRADIENTS] = measure(FIRST_GRADIENTS, model)
  if server.when == "before":
    start, server_state = step(anchor, server_state, model)

  # Every participant trains; the server takes the mean of the updates.
  streams = exchange.can_stream and not stacking.fits(
      cohort.ids.shape[0], start)
  weights = exchange.weigh(cohort)
  training = train(
      client, method.map_clients, (start, model, anchor), state.round,
      state.memory, cohort, key,
      weights=stacking.shares(weights) if streams else None)
  mean, kept[UPDATES], distance = mean_update(
      method, start, training, cohort, key, aggregates)
  update = client.scale(state.memory, cohort, mean)

  # The server moves the model.
  if server.when == "aggregate":
    moved, server_state = step(against(update), server_state, start)
  else:
    moved = trees.add_scaled(start, server.aggregate_lr, update)
  report = distance(trees.subtract(moved, start))
  if server.when == "after":
    _, gradient, kept[LAST_GRADIENTS] = measure(LAST_GRADIENTS, moved)
    moved, server_state = step(gradient, server_state, moved)

  # Reports, costs, and the new state.
  loss = training.trained.loss if loss is None else loss
  report |= {"train_loss": trees.slot_mean(cohort.weight, loss)}
  report |= server.report(server_state)
  if exchange.aggregator.column:
    report[exchange.aggregator.column] = aggregates["updates"]
  models, servers, anchors, kept = trees.repeat((
      moved, server_state, anchor, {
          AGGREGATED[purpose]: value for purpose, value in kept.items()
          if value is not None}), 1)
  cost, work = costs(
      method, cohort, state.memory, training.trained.gradients, servers)
  memory = training.merged(client, state.memory, cohort, anchors)
  if exchange.compress_down:
    models, memory = broadcast.send(
        exchange.compress_down, state.models, models, memory, cohort,
        server_key(key, BROADCAST))
  return ComposedState(models, servers, memory, state.round + 1, kept), (
      RoundAux({"loss": loss}, report, cost, work))


def anchor_gradient(
    method: TwoHalves, purpose: int, model: Params, cohort: Cohort, key: Key,
    last: Any) -> tuple[Array, Params, Any]:
  """The participants' losses [S], their gradients' mean, and what is kept."""
  exchange, compressor = method.exchange, method.exchange.compress_gradients
  keys = client_keys(
      server_key(server_key(key, MESSAGES), purpose), cohort.ids)

  def one_client(params, shard, key):
    loss, gradient = objective.full_value_and_grad(method.model, params, shard)
    if compressor:
      gradient, _ = compressor.send(gradient, (), key)
    return gradient, loss

  weights = exchange.weigh(cohort)
  if exchange.can_stream:
    gradient, losses = stacking.mean(
        method.map_clients, one_client, model, weights, model, cohort.shards,
        keys)
    return losses, gradient, None
  gradients, losses = method.map_clients(
      one_client, model, cohort.shards, keys)
  of_one = combined_gradients(
      method, purpose, jax.tree.map(lambda leaf: leaf[:, None], gradients),
      cohort, key, trees.repeat(last.get(AGGREGATED[purpose]), 1))
  return losses, *trees.index(of_one, 0)


def mean_update(
    method: TwoHalves, start: Params, training: Training, cohort: Cohort,
    key: Key, last: Any) -> tuple[Params, Any, Any]:
  """The mean of the updates, or what takes its place.

  Returns:
    The vector; what the aggregator keeps; and a function: how far the model has
    moved -> how far the trained models are from it. Its column is
    "discrepancy", the mean distance (FedGroup (4)); where the updates were not
    kept "discrepancy_rms", the root of the mean squared distance, in which
    participants have the weights that they have in the mean. The model is that
    of this round (errata F-26).
  """
  exchange, starts = method.exchange, trees.repeat(start, 1)
  weights = exchange.weigh(cohort)
  if training.squares is not None:
    total = weights.sum()[None]
    return training.total, None, lambda move: {
        "discrepancy_rms": stacking.spread(
            weights, training.squares, trees.repeat(move, 1),
            trees.repeat(training.total, 1), total, total)}
  trained = training.trained.params
  if exchange.forges:
    trained = trees.add(starts, exchange.receive(
        trees.subtract(trained, starts), cohort,
        server_key(server_key(key, FORGERIES), UPDATES), weights))
  updates = trees.subtract(trained, starts)
  mean, kept = exchange.combine(
      updates, weights, cohort, server_keys(key, UPDATES, 1)[0],
      last.get("updates"))
  return mean, kept, lambda move: {"discrepancy": trees.slot_mean(
      cohort.present.astype(jnp.float32), trees.slot_norm(
          trees.subtract(updates, trees.repeat(move, 1))))}
