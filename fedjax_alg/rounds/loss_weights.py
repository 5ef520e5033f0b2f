"""Rounds in which weights follow from the participants' losses.

Every participant measures its loss at the model that it receives, and sends it.
The rule (``exchange.weights.ByLoss``) makes the weights of this round's means of
the losses, and may shorten the mean update.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

from fedjax_alg import trees
from fedjax_alg.base import BYTES_PER_FLOAT, Algorithm, Cohort, Params
from fedjax_alg.client import objective
from fedjax_alg.client.personal import rate_of_round, refuse_rate_of_steps
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.exchange.links import count_bytes
from fedjax_alg.exchange.weights import ByLoss
from fedjax_alg.rounds.local_training import Training
from fedjax_alg.rounds.one_model import ComposedState, Mean, TwoHalves


def sends_loss(client: ClientUpdate) -> ClientUpdate:
  """The local method with the costs of a loss that is measured and sent."""
  return client._replace(
    evaluations=client.evaluations + 1,
    extra_up=lambda size: count_bytes(size, client.extra_up) + BYTES_PER_FLOAT,
  )


def weighs_by_losses(
  algorithm: Algorithm[ComposedState],
  method: TwoHalves,
  run_round: Callable[..., Any],
  rule: ByLoss,
) -> Algorithm[ComposedState]:
  """The algorithm whose participants have weights by their losses.

  Args:
    algorithm: the algorithm of ``method``.
    method: the method; its local half is from ``sends_loss``.
    run_round: its round (``one_model.run_round``).
    rule: how the weights follow from the losses.

  Raises:
    OptionError: the rule reads the learning rate, which changes from step to step.
  """
  if rule.shorten is not None:
    refuse_rate_of_steps(
      method.client, f"`client_weights`={rule.name} reads one rate in a round"
    )

  def init(params, spec, key):
    state = algorithm.init(params, spec, key)
    if rule.keeps is None:
      return state
    weights = rule.keeps(spec.num_clients)[None]
    return state._replace(aggregates=state.aggregates | {"weights": weights})

  def run(state, cohort, key):
    aggregates = dict(state.aggregates)
    last = aggregates.pop("weights", None)
    losses = method.map_clients(
      lambda params, shard: objective.full_loss(method.model, params, shard),
      trees.index(state.models, 0),
      cohort.shards,
    )
    weights, new_last = rule.weigh(trees.index(last, 0), cohort, losses)

    def average(
      weighted: TwoHalves,
      start: Params,
      training: Training,
      cohort: Cohort,
      *args: object,
    ) -> Mean:
      mean = method.average(weighted, start, training, cohort, *args)
      if rule.shorten is None:
        return mean
      squares = training.squares
      if squares is None:
        squares = trees.slot_norm(mean.updates) ** 2
      rate = rate_of_round(method.client, cohort.shards, state.round)
      factor = rule.shorten(weights, losses, squares, rate)
      square = None if mean.square is None else factor**2 * mean.square
      return mean._replace(update=trees.scale(factor, mean.update), square=square)

    weighted = dataclasses.replace(
      method,
      exchange=dataclasses.replace(method.exchange, weights=lambda cohort: weights),
      average=average,
    )
    new, aux = run_round(weighted, state._replace(aggregates=aggregates), cohort, key)
    if last is not None:
      aggregates = new.aggregates | {"weights": trees.repeat(new_last, 1)}
      new = new._replace(aggregates=aggregates)
    return new, aux

  return algorithm._replace(init=init, round=run)
