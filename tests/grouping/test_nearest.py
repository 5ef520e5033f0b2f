"""The nearest centre and the closest direction."""

import jax.numpy as jnp
import numpy as np

from fedjax_alg.grouping import closest_direction, nearest_centre

CENTRES = jnp.array([[1.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
ALL = jnp.ones(3, bool)


def test_the_nearest_centre_is_by_distance():
  for vector, group in (
    ([0.4, 0.0], 0),
    ([0.0, 2.5], 1),
    ([-9.0, 0.0], 2),
    ([0.0, 0.0], 0),
  ):  # a tie: the first
    actual = nearest_centre(jnp.array(vector), CENTRES)
    assert actual == group and actual.dtype == jnp.int32


def test_the_closest_direction_is_by_angle():
  """Lengths do not matter, nor groups without a member."""
  update = jnp.array([1.0, 2.0])
  for scale in (1e-3, 1.0, 1e3):
    assert closest_direction(scale * update, CENTRES, ALL) == 1
  assert closest_direction(update, CENTRES, jnp.array([True, False, True])) == 0
  assert closest_direction(-update, CENTRES, ALL) == 2


def test_a_zero_vector_is_at_right_angles_to_everything():
  directions = jnp.array([[-1.0, 0.0], [0.0, 0.0], [0.0, -1.0]])
  assert closest_direction(jnp.array([1.0, 1.0]), directions, ALL) == 1
  assert closest_direction(jnp.zeros(2), directions, ALL) == 0
  assert np.isfinite(closest_direction(jnp.zeros(2), directions, ALL))
