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
from tests.each import each
from tests.reference import optimisers

RNG = np.random.default_rng(0)
#: The clients' mean updates of three rounds.
UPDATES = [RNG.normal(size=4).astype(np.float32) for _ in range(3)]


def test_adam_is_fedadam_with_bias_correction():
  """Minus the mean update is the "gradient" (Reddi et al. 2021)."""
  step, params = steps.adam(0.1, 0.7, 0.9, 1e-3), {"w": jnp.zeros(4)}
  state = step.transform.init(params)
  for r, update in enumerate(UPDATES, 1):
    with jax.numpy_dtype_promotion("standard"):  # as optax mixes them
      move, state = step.transform.update({"w": -update}, state, params)
    expected = 0.1 * optimisers.direction(
      "adam", UPDATES[:r], UPDATES[:r], b1=0.7, b2=0.9, eps=1e-3
    )
    np.testing.assert_allclose(move["w"], expected, rtol=1e-4)


@each(
  "make, pattern",
  [
    (lambda: adaptive(rule="adam"), "central rule 'adam': must be one of"),
    (lambda: fedopt("sgd"), "FedOpt rule 'sgd': must be one of"),
    (
      lambda: conjugate_gradient("prp"),
      "beta rule 'prp': must be one of fr, pr[+], hs, dy$",
    ),
    (lambda: backtracking(test="wolfe"), "line search test 'wolfe': must be"),
    *(
      (
        lambda gamma=gamma: backtracking(gamma),
        f"gamma={gamma}: must be more than 0 and less than 1$",
      )
      for gamma in (0.0, 1.0)
    ),
  ],
)
def test_what_is_not_known_is_named(make, pattern):
  with pytest.raises(ValueError, match=f"^{pattern}"):
    make()


@pytest.mark.parametrize(
  "step, when",
  [
    (steps.average(), "aggregate"),
    (steps.sgd(), "aggregate"),
    (steps.adam(), "aggregate"),
    (steps.adaptive_step(), "after"),
    (steps.conjugate(), "before"),
    (steps.conjugate_line_search(), "before"),
  ],
)
def test_where_a_step_stands_and_that_its_report_is_scalars(step, when):
  assert step.when == when
  state = step.transform.init({"w": jnp.zeros(4)})
  for name, value in step.report(state).items():
    assert jnp.shape(value) == (), name
  evaluations = step.evaluations(state)
  assert (evaluations.shape, evaluations.dtype) == ((), jnp.float32)


@pytest.mark.parametrize(
  "step", [steps.conjugate, steps.conjugate_line_search, steps.adaptive_step]
)
def test_the_mean_is_taken_whole_by_default(step):
  """alpha_g of (16) and (22) is 1, where none is said."""
  assert step().aggregate_lr == 1


@pytest.mark.parametrize(
  "transform, options",
  [
    (adaptive(), {}),
    (fedopt("adam"), {}),
    (conjugate_gradient(), {}),
    (backtracking(), dict(value_fn=jnp.sum, grad=jnp.ones(4))),
    (
      backtracking(),
      dict(value_fn=jnp.sum, grad=jnp.ones(1), line_fn=lambda *_: jnp.ones(())),
    ),
  ],
)
def test_a_gradient_of_another_shape_is_refused(transform, options):
  """It would broadcast; and so would one loss for all steps of a search."""
  params = jnp.ones(4)
  with pytest.raises(AssertionError, match="assert_.*equal_shape"):
    transform.update(jnp.ones(1), transform.init(params), params, **options)
