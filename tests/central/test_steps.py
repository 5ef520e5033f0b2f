"""Server steps: the recursions of their papers, and what they report."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.central import steps
from fedjax_alg.central.adaptive import adaptive
from fedjax_alg.central.adaptivity import fedopt
from fedjax_alg.central.conjugate_gradient import conjugate_gradient
from fedjax_alg.central.line_search import backtracking

RNG = np.random.default_rng(0)
#: The clients' mean updates of three rounds.
UPDATES = [RNG.normal(size=4).astype(np.float32) for _ in range(3)]


def test_adam_is_fedadam_with_bias_correction():
  """Minus the mean update is the "gradient" (Reddi et al. 2021)."""
  step, params = steps.adam(0.1, 0.7, 0.9, 1e-3), {"w": jnp.zeros(4)}
  state = step.transform.init(params)
  first, second = np.zeros(4), np.zeros(4)
  for r, update in enumerate(UPDATES, 1):
    with jax.numpy_dtype_promotion("standard"):  # as optax mixes them
      move, state = step.transform.update({"w": -update}, state, params)
    first = 0.7 * first + 0.3 * update
    second = 0.9 * second + 0.1 * update ** 2
    expected = 0.1 * (first / (1 - 0.7 ** r)) / (
        np.sqrt(second / (1 - 0.9 ** r)) + 1e-3)
    np.testing.assert_allclose(move["w"], expected, rtol=1e-4)


@pytest.mark.parametrize("step, when", [
    (steps.average(), "aggregate"), (steps.sgd(), "aggregate"),
    (steps.adam(), "aggregate"), (steps.adaptive_step(), "after"),
    (steps.conjugate(), "before"), (steps.conjugate_line_search(), "before")])
def test_where_a_step_stands_and_that_its_report_is_scalars(step, when):
  assert step.when == when
  state = step.transform.init({"w": jnp.zeros(4)})
  for name, value in step.report(state).items():
    assert jnp.shape(value) == (), name
  evaluations = step.evaluations(state)
  assert (evaluations.shape, evaluations.dtype) == ((), jnp.float32)


@pytest.mark.parametrize("transform, options", [
    (adaptive(), {}), (fedopt("adam"), {}),
    (conjugate_gradient(), {}),
    (backtracking(), dict(value_fn=jnp.sum, grad=jnp.ones(4))),
    (backtracking(), dict(
        value_fn=jnp.sum, grad=jnp.ones(1), line_fn=lambda *_: jnp.ones(())))])
def test_a_gradient_of_another_shape_is_refused(transform, options):
  """It would broadcast; and so would one loss for all steps of a search."""
  params = jnp.ones(4)
  with pytest.raises(AssertionError, match="assert_.*equal_shape"):
    transform.update(
        jnp.ones(1), transform.init(params), params, **options)
