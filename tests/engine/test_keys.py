"""Keys."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.engine.keys import RunKeys, client_keys, keys_of_rows, run_keys


def key_data(keys):
  return np.asarray(jax.random.key_data(keys))


def test_streams_of_a_run_are_independent():
  streams = [key_data(key) for seed in (0, 1) for key in run_keys(seed)]
  assert len({tuple(data.tolist()) for data in streams}) == 10
  assert len(RunKeys._fields) == 5
  for a, b in zip(run_keys(3), run_keys(3)):
    np.testing.assert_array_equal(key_data(a), key_data(b))


def test_keys_of_rows_are_those_of_the_seeds():
  seeds = (4, 0, 2**31 - 1, 2**31, 2**32 - 1)
  rows = keys_of_rows(seeds, 2)
  for row, seed in enumerate(seeds * 2):
    for a, b in zip(rows, run_keys(seed), strict=True):
      np.testing.assert_array_equal(key_data(a[row]), key_data(b))


def test_a_clients_key_follows_its_id_not_its_slot():
  key = jax.random.key(0)
  ids = jnp.array([4, 0, 7, 9], jnp.int32)
  keys = key_data(client_keys(key, ids))
  order = np.array([2, 0, 3, 1])
  np.testing.assert_array_equal(key_data(client_keys(key, ids[order])), keys[order])
  np.testing.assert_array_equal(keys[0], key_data(jax.random.fold_in(key, 4)))
  assert len({tuple(row) for row in keys.tolist()}) == 4
