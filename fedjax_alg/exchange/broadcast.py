"""The models of a round as the server sends them in fewer bytes.

Clients hold the models w_k. At the end of a round, when the server would have
moved them to w_k + u_k, it sends C(u_k + e_k), keeps e_k <- u_k + e_k - C, and
w_k + C are the models of the next round, the server's own too (Tang et al.,
"DoubleSqueeze", ICML 2019). So all that is measured is measured on models that
clients hold.

A participant is sent every message since it last took part, or whole models if
these are shorter; the first time whole models.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import (
  BYTES_PER_FLOAT,
  Algorithm,
  Array,
  Cohort,
  Key,
  Params,
  num_params,
)
from fedjax_alg.client.update import ClientUpdate, extend_memory
from fedjax_alg.engine.keys import BROADCAST, server_key
from fedjax_alg.exchange.compression import Compressor
from fedjax_alg.typing import PyTree


class Heard(NamedTuple):
  """State of the server for broadcasts in fewer bytes."""

  memory: Any  #: [K, ...], of the compressor of each model
  sent: Array  #: [] int32, messages sent so far
  #: [C] int32, messages that each client knows; -1 before its first round
  known: Array


def with_memory(client: ClientUpdate, compressor: Compressor, k: int) -> ClientUpdate:
  """The client's half with a ``Heard`` beside its memory."""
  return extend_memory(
    client,
    lambda params, spec: Heard(
      trees.repeat(compressor.init(params), k),
      jnp.zeros((), jnp.int32),
      jnp.full(spec.num_clients, -1, jnp.int32),
    ),
  )


def sends_changes(algorithm: Algorithm, compressor: Compressor) -> Algorithm:
  """The algorithm whose server sends the change of its models in fewer bytes.

  Args:
    algorithm: the algorithm, with `models` and `memory` in its state; its local
      method has been through ``with_memory``.
    compressor: how changes are sent.
  """

  def run_round(state, cohort, key):
    new, aux = algorithm.round(state, cohort, key)
    models, memory = send(
      compressor,
      state.models,
      new.models,
      new.memory,
      cohort,
      server_key(key, BROADCAST),
    )
    return new._replace(models=models, memory=memory), aux

  return algorithm._replace(round=run_round)


def send(
  compressor: Compressor,
  old: Params,
  new: Params,
  memory: Any,
  cohort: Cohort,
  key: Key,
) -> tuple[Params, PyTree]:
  """Sends the change of all models.

  Args:
    compressor: C.
    old: [K, ...], the models that clients hold.
    new: [K, ...], where the server would move them.
    memory: ``ExtendedMemory``, with ``Heard`` as its extra.
    cohort: the participants, who hold the old models.
    key: of the random numbers, which the models share: equal copies stay equal.

  Returns:
    The models that clients hold now, and the memory.
  """
  heard: Heard = memory.extra
  decoded, memories = jax.vmap(
    lambda change, memory: compressor.send(change, memory, key)
  )(trees.subtract(new, old), heard.memory)
  num_known = heard.known.at[cohort.ids].set(heard.sent, mode="drop")
  return trees.add(old, decoded), memory._replace(
    extra=Heard(memories, heard.sent + 1, num_known)
  )


def mean_bytes(
  compressor: Compressor, params: Params, memory: Any, cohort: Cohort
) -> Array:
  """The bytes of one model to a client that was asked, the mean of all, rounded up.

  Args:
    compressor: C.
    params: those of one model, arrays or shapes.
    memory: as ``send`` gets it.
    cohort: the participants.

  Returns:
    [] uint32.
  """
  heard: Heard = memory.extra
  message = compressor.nbytes(params)
  full = BYTES_PER_FLOAT * num_params(params)
  ids, receives = cohort.ids, cohort.present
  receivers = None if cohort.draw is None else cohort.draw.asked
  if receivers is not None:  # those who were lost have received it, too
    ids, receives = receivers, receivers < heard.known.shape[0]
  num_known = heard.known.at[ids].get(mode="clip")
  missed = heard.sent - num_known
  anew = receives & ((num_known < 0) | (missed > full // message))
  missed = jnp.where(receives & ~anew, missed, 0)
  count = jnp.maximum(receives.sum(dtype=jnp.int32), 1)
  return _share(missed.sum(dtype=jnp.int32), count, message) + _share(
    anew.sum(dtype=jnp.int32), count, full
  )


def _share(total: Array, count: Array, unit: int) -> Array:
  """total x unit / count [] uint32, rounded up; the product may overflow."""
  fraction = (total % count).astype(jnp.float32) / count.astype(jnp.float32)
  share: Array = jnp.uint32(unit) * (total // count).astype(jnp.uint32) + jnp.ceil(
    unit * fraction
  ).astype(jnp.uint32)
  return share
