"""The device of every slot."""

import jax.numpy as jnp
import numpy as np

from fedjax_alg.engine import dealing


def test_a_slot_is_of_its_owner_and_work_is_even():
  size = jnp.array([9, 1, 0, 4, 5, 8, 3], jnp.int32)
  owner = jnp.array([0, 0, 0, 0, 1, 1, 1], jnp.int32)
  device = np.asarray(dealing.balance(size, 4, owner=owner, processes=2))
  np.testing.assert_array_equal(device // 2, owner)
  load = np.bincount(device, np.asarray(size), 4)
  assert load.tolist() == [9, 5, 8, 8]
  anyone = np.asarray(dealing.balance(size, 4))
  assert np.bincount(anyone, np.asarray(size), 4).tolist() == [9, 8, 6, 7]
  np.testing.assert_array_equal(
    dealing.balance(size, 2, owner=owner, processes=2), owner
  )
