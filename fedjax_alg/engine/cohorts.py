"""One round around an algorithm: keys, cohort, the call."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg.base import Algorithm, Array, ClientData, Cohort, Key
from fedjax_alg.base import RoundAux, State
from fedjax_alg.data import layout
from fedjax_alg.engine import clock


class RunKeys(NamedTuple):
  """The independent random streams of a run, one typed key each.

  Two algorithms with one seed see the same clients in every round, whatever
  randomness they use themselves. The partition has a seed of its own, on the
  host.
  """

  model: Key  #: initial parameters
  start: Key  #: init and setup of the algorithm
  cohort: Key  #: which clients take part
  work: Key  #: everything inside a round
  evaluation: Key  #: everything inside client_params


def run_keys(seed: int) -> RunKeys:
  """The streams of ``seed``."""
  return RunKeys(*jax.random.split(jax.random.key(seed), 5))


def client_keys(key: Key, ids: Array) -> Key:
  """One key per client, whatever slot it stands in: fold_in(key, id).

  Args:
    key: the round's key, consumed.
    ids: [S] int32.

  Returns:
    [S] keys.
  """
  return jax.vmap(lambda i: jax.random.fold_in(key, i))(ids)


def sample_cohort(
    data: ClientData, cohort_size: int, key: Key, number: Array | int = 0
) -> Cohort:
  """S clients of those that are there, uniformly without replacement.

  Args:
    data: the clients' training data.
    cohort_size: S; all clients where it equals C. Where fewer are there, the
      rest are padding slots.
    key: consumed.
    number: rounds played so far, for newcomers (``ClientData.joins``).
  """
  clients = data.size.shape[0]
  if cohort_size == clients:
    return layout.present(data, number)
  ids = jax.random.permutation(key, clients)
  if data.joins is not None:
    # Those that are there first, each part in its random order.
    absent = data.joins[ids] > number
    ids = ids[jnp.argsort(absent, stable=True)]
    ids = jnp.where(data.joins[ids] > number, clients, ids)
    return layout.take_cohort(
        data, jnp.sort(ids[:cohort_size]).astype(jnp.int32), number)
  ids = ids[:cohort_size]
  # Sorted, so that the rounding of sums does not depend on the draw's order.
  return layout.take_cohort(data, jnp.sort(ids).astype(jnp.int32))


def play_round(
    algorithm: Algorithm[State],
    data: ClientData,
    cohort_size: int,
    keys: RunKeys,
    number: Array,
    state: State,
) -> tuple[State, RoundAux]:
  """Round ``number`` (from 0): a function of the seed and the number only.

  Where the data have devices and the algorithm counts its work, ``aux.times``
  is what the round takes on them.
  """
  cohort = sample_cohort(
      data, cohort_size, jax.random.fold_in(keys.cohort, number), number)
  state, aux = algorithm.round(
      state, cohort, jax.random.fold_in(keys.work, number))
  if cohort.devices is not None and aux.work is not None:
    aux = aux._replace(times=clock.mean_times(
        cohort.devices, cohort.weight, aux.work, aux.cost))
  return state, aux
