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


def moves(step):
  """What the server adds to the model in each round, and the last state."""
  params = {"w": jnp.zeros(4)}
  state, found = step.transform.init(params), []
  for update in UPDATES:
    # Minus the mean update is the "gradient" (Reddi et al. 2021).
    with jax.numpy_dtype_promotion("standard"):  # as optax mixes them
      move, state = step.transform.update({"w": -update}, state, params)
    found.append(np.asarray(move["w"]))
  return found, state


def test_average_adds_the_mean_update():
  for move, update in zip(moves(steps.average(0.5))[0], UPDATES, strict=True):
    np.testing.assert_allclose(move, 0.5 * update, rtol=1e-6)


def test_sgd_is_fedavgm():
  velocity = np.zeros(4)
  for move, update in zip(moves(steps.sgd(0.5, 0.8))[0], UPDATES, strict=True):
    velocity = 0.8 * velocity + update
    np.testing.assert_allclose(move, 0.5 * velocity, rtol=1e-5)


def test_adam_is_fedadam_with_bias_correction():
  first, second = np.zeros(4), np.zeros(4)
  found, _ = moves(steps.adam(0.1, 0.7, 0.9, 1e-3))
  for r, (move, update) in enumerate(zip(found, UPDATES, strict=True), 1):
    first = 0.7 * first + 0.3 * update
    second = 0.9 * second + 0.1 * update ** 2
    expected = 0.1 * (first / (1 - 0.7 ** r)) / (
        np.sqrt(second / (1 - 0.9 ** r)) + 1e-3)
    np.testing.assert_allclose(move, expected, rtol=1e-4)


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


def test_conjugate_goes_down_its_directions_and_logs_beta():
  step = steps.conjugate(0.25, "fr", aggregate_lr=0.6)
  assert step.aggregate_lr == 0.6 and not step.needs_validation
  found, state = moves(step)
  np.testing.assert_allclose(found[0], 0.25 * UPDATES[0], rtol=1e-6)
  beta = step.report(state)["beta"]
  # Fletcher-Reeves with the gradients -UPDATES; 0 where it restarts.
  expected = np.square(UPDATES[2]).sum() / np.square(UPDATES[1]).sum()
  assert beta == 0 or np.isclose(beta, expected, rtol=1e-5)


def test_the_line_search_reports_what_it_did_and_what_it_cost():
  step = steps.conjugate_line_search(
      aggregate_lr=0.6, gamma=0.5, test="decrease", initial_step=4.0,
      max_tries=9)
  assert step.aggregate_lr == 0.6 and step.needs_validation
  params = {"w": jnp.ones(4)}

  def value(params):  # gradient w; the step eta leads to (1 - eta) w
    return 0.5 * (params["w"] ** 2).sum()

  @jax.jit
  def update(params):
    gradient = jax.grad(value)(params)
    return step.transform.update(
        gradient, step.transform.init(params), params, grad=gradient,
        value_fn=value)

  move, state = update(params)
  # 4 and 2 do not decrease the value, 1 does.
  np.testing.assert_allclose(move["w"], -np.ones(4), rtol=1e-6)
  report = {name: float(v) for name, v in step.report(state).items()}
  assert report == dict(
      beta=0.0, eta=1.0, line_search_tries=3.0, validation_loss_before=2.0,
      validation_loss_after=0.0)
  assert step.evaluations(state) == 1 + 3


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
