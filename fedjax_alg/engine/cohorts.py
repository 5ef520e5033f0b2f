"""One round of an algorithm: random keys, the cohort and the call."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg.base import Algorithm, Array, ClientData, Cohort, Key
from fedjax_alg.base import RoundAux, State
from fedjax_alg.data import layout
from fedjax_alg.engine import clock


class RunKeys(NamedTuple):
  """The independent random streams of a run, one typed key for each.

  Two algorithms with the same seed get the same clients in every round,
  because the stream ``cohort`` is used for nothing else. The partition has a
  separate seed.
  """

  model: Key  #: for the initial parameters
  start: Key  #: for ``init`` and ``setup`` of the algorithm
  cohort: Key  #: for the choice of the participants
  work: Key  #: for the algorithm inside a round
  evaluation: Key  #: for ``client_params``


def run_keys(seed: int) -> RunKeys:
  """Makes the random streams of a seed."""
  return RunKeys(*jax.random.split(jax.random.key(seed), 5))


def client_keys(key: Key, ids: Array) -> Key:
  """Makes one key per client, fold_in(key, id).

  The key of a client does not depend on the client's slot.

  Args:
    key: key of the round; consumed.
    ids: [S] int32, client ids.

  Returns:
    [S] keys.
  """
  return jax.vmap(lambda i: jax.random.fold_in(key, i))(ids)


#: What the server draws random numbers for in a round (``server_key``): its
#: step, and the aggregates of updates and of the gradients at the start and at
#: the end of the round.
SERVER_STEP, UPDATES, FIRST_GRADIENTS, LAST_GRADIENTS = (
    2 ** 32 - 1, 2 ** 32 - 2, 2 ** 32 - 3, 2 ** 32 - 4)


def server_key(key: Key, purpose: int) -> Key:
  """Makes a key of the server, fold_in(key, purpose).

  It differs from the keys of ``client_keys``, because client ids, and the
  numbers that rounds add to them, are far smaller.

  Args:
    key: key of the round; consumed.
    purpose: ``SERVER_STEP`` or one of the others.

  Returns:
    The key.
  """
  return jax.random.fold_in(key, jnp.uint32(purpose))


def sample_cohort(
    data: ClientData, cohort_size: int, key: Key, number: Array | int = 0
) -> Cohort:
  """Draws S of the clients that have joined, uniformly without replacement.

  Args:
    data: the clients' training data.
    cohort_size: S; all clients take part if S = C. If fewer than S clients
      have joined, the remaining slots are padding slots.
    key: consumed.
    number: rounds played so far, for newcomers (``ClientData.joins``).

  Returns:
    The cohort, in the order of the client ids.
  """
  clients = data.size.shape[0]
  if cohort_size == clients:
    return layout.present(data, number)
  ids = jax.random.permutation(key, clients)
  if data.joins is not None:
    # Stable: clients that have joined come first, in their random order.
    absent = data.joins[ids] > number
    ids = ids[jnp.argsort(absent, stable=True)]
    ids = jnp.where(data.joins[ids] > number, clients, ids)
    return layout.take_cohort(
        data, jnp.sort(ids[:cohort_size]).astype(jnp.int32), number)
  ids = ids[:cohort_size]
  # Sorted, so that the rounding of sums does not depend on the random order.
  return layout.take_cohort(data, jnp.sort(ids).astype(jnp.int32))


def play_round(
    algorithm: Algorithm[State],
    data: ClientData,
    cohort_size: int,
    keys: RunKeys,
    number: Array,
    state: State,
) -> tuple[State, RoundAux]:
  """Plays one round.

  The random numbers depend only on the seed and on the number of the round. If
  ``data`` has simulated machines and the algorithm counts its work,
  ``aux.times`` is set.

  Args:
    algorithm: the algorithm.
    data: the clients' training data.
    cohort_size: S.
    keys: random streams of the run.
    number: [] int32, the round, from 0.
    state: state before the round.

  Returns:
    The new state and the report of the round.
  """
  cohort = sample_cohort(
      data, cohort_size, jax.random.fold_in(keys.cohort, number), number)
  state, aux = algorithm.round(
      state, cohort, jax.random.fold_in(keys.work, number))
  if cohort.devices is not None and aux.work is not None:
    aux = aux._replace(times=clock.mean_times(
        cohort.devices, cohort.weight, aux.work, aux.cost))
  return state, aux
