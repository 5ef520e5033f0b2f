"""f_v along a line; f_v itself is tested with the line search."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.central import validation
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from tests import problems


@pytest.mark.parametrize("l2", [0.0, problems.L2])
def test_values_on_a_line_are_those_of_its_points(problem, l2):
  model = problem.model._replace(l2=l2)
  w, d = (problems.some_params(model, seed) for seed in (0, 1))
  steps = jnp.array([-0.5, 0.0, 1e-3, 0.25, 8.0], jnp.float32)
  map_clients = clients.ClientMap()

  @jax.jit
  def both(shard):
    points = jax.vmap(lambda eta: jax.tree.map(lambda a, b: a + eta * b, w, d))(steps)
    return (
      validation.validation_line(model, shard, map_clients)(w, d, steps),
      jax.vmap(validation.validation_loss(model, shard, map_clients))(points),
    )

  server = layout.everyone(problem.data).validation
  for size in (1, 17, problems.VALIDATION):
    line, points = both(server._replace(size=jnp.int32(size)))
    assert line.shape == (5,)
    np.testing.assert_allclose(line, points, rtol=1e-5)
