"""The random keys of a run, of its clients and of its server."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Array, Key
from fedjax_alg.engine import draws


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


def run_keys(seed: int | Array) -> RunKeys:
  """Makes the random streams of a seed, an int or uint32."""
  return RunKeys(*jax.random.split(jax.random.key(seed), 5))


def keys_of_rows(seeds: Sequence[int], settings: int = 1) -> RunKeys:
  """Makes the keys of all rows of a program, on the host if it can.

  Args:
    seeds: the N seeds.
    settings: number of settings, whose rows repeat those of the seeds.

  Returns:
    The keys of every row, each [settings * N].
  """
  rows = np.tile(np.asarray(seeds, np.uint32), settings)
  if draws.is_default():
    words = draws.split_keys(np.stack([np.zeros_like(rows), rows], -1), (5,))
    return RunKeys(*map(jax.random.wrap_key_data, words.swapaxes(0, 1)))
  result: RunKeys = _keys_of_rows(jnp.asarray(rows))
  return result


_keys_of_rows = jax.jit(jax.vmap(run_keys))


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


#: Purposes of the server's random numbers in a round (``server_key``): its
#: step, and the aggregates of updates and of the gradients at the start and at
#: the end of the round. Hostile clients draw apart from all of these.
SERVER_STEP, UPDATES, FIRST_GRADIENTS, LAST_GRADIENTS, FORGERIES = (
  2**32 - 1,
  2**32 - 2,
  2**32 - 3,
  2**32 - 4,
  2**32 - 5,
)

#: Purposes of compressors' draws: for the server's models, and for the clients'
#: gradients at the start and at the end of the round.
BROADCAST, MESSAGES = 2**32 - 33, 2**32 - 34

#: For who is late or lost, and for whom a server that waits for nobody starts.
LATE, STARTED = 2**32 - 65, 2**32 - 66


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
