"""The floats and bytes of what clients and server exchange."""

import functools
import math
from typing import Any

import jax.numpy as jnp

from fedjax_alg.base import BYTES_PER_FLOAT, Cohort, Model, num_params, Traffic
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.exchange import broadcast
from fedjax_alg.exchange.compression import shapes
from fedjax_alg.exchange.links import Exchange


def sent_bytes(size: int, traffic: Traffic) -> int:
  """Counts bytes; a part of a byte counts as one.

  Args:
    size: P.
    traffic: a number of vectors of P floats, or a function P -> bytes.
  """
  sent = traffic(size) if callable(traffic) else (
      BYTES_PER_FLOAT * size * traffic)
  return math.ceil(round(sent, 6))  # 0.7 vectors of 10 floats are 28 bytes


def communication(
    exchange: Exchange, client: ClientUpdate, model: Model, memory: Any,
    cohort: Cohort, *, models: int = 1, vectors: int = 0, gradients: int = 0,
    more_up: int = 0, floats_down: Any = 0, floats_up: Any = 0
) -> dict[str, Any]:
  """Counts what each participant receives and sends in a round.

  Args:
    exchange: the links.
    client: the local method.
    model: its model.
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
  like = shapes(model)
  sent = functools.partial(sent_bytes, num_params(like))
  down: Any = sent(vectors) + sent(client.extra_down) + sent(
      exchange.aggregator.extra_down)
  if exchange.compress_down:
    down = jnp.uint32(down) + models * broadcast.mean_bytes(
        exchange.compress_down, like, memory, cohort)
  else:
    down += sent(models)
  gradient = exchange.compress_gradients
  up = more_up + sent(client.upload_bytes or 1) + sent(client.extra_up) + sent(
      exchange.aggregator.extra_up) + gradients * (
          gradient.nbytes(like) if gradient else sent(1))
  cost: dict[str, Any] = {}
  for name, number, floats in (
      ("down", down, floats_down), ("up", up, floats_up)):
    cost[name] = (number + (BYTES_PER_FLOAT - 1)) // BYTES_PER_FLOAT + floats
    if not isinstance(number, int) or number % BYTES_PER_FLOAT:
      cost["bytes_" + name] = number + BYTES_PER_FLOAT * floats
  return cost
