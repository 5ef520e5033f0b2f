"""SGD and SVRG on one client, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.client import objective
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import proximal, sgd
from fedjax_alg.client.svrg import feature_scaling, svrg
from fedjax_alg.data import layout
from tests import problems


def test_sgd_on_full_batches_is_gradient_descent_with_a_proximal_term(problem):
  model, shard = problem.model, layout.shard_of(problem.data, 4)
  start, work = problems.some_params(model), LocalWork(local_steps=3, batch_size=0)
  gradient = jax.jit(lambda v: objective.full_value_and_grad(model, v, shard))
  v = start
  for _ in range(3):
    loss, g = gradient(v)
    v = jax.tree.map(lambda v, g, w: v - 0.2 * (g + 0.8 * (v - w)), v, g, start)
  trained, last = jax.jit(
    lambda w: sgd(model, w, shard, work, 0.2, jax.random.key(0), proximal(0.8))
  )(start)
  problems.assert_close(trained, v)
  np.testing.assert_allclose(last, loss, rtol=1e-5)


@pytest.mark.parametrize("batch_size", [0, 5])
def test_an_empty_client_returns_what_it_got(problem, batch_size):
  model = problem.model
  shard = layout.shard_of(problem.data, 4)._replace(size=jnp.int32(0))
  start = problems.some_params(model)
  work = LocalWork(local_steps=3, batch_size=batch_size)
  trained, loss = sgd(model, start, shard, work, 0.2, jax.random.key(0))
  problems.assert_equal(trained, start)
  assert loss == 0
  anchor = problems.some_params(model, 1)
  problems.assert_equal(
    svrg(model, start, start, anchor, shard, work, 1.0, jax.random.key(0))[0], start
  )


@pytest.mark.usefixtures("unchecked_shapes")
def test_every_feature_has_a_share(problem):
  with pytest.raises(AssertionError, match="assert_equal_shape"):
    feature_scaling(layout.shard_of(problem.data, 4), jnp.ones(1))
