"""Back-tracking line search on a value function (conjugate, (26)-(30))."""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float
import optax

from fedjax_alg import trees
from fedjax_alg.base import Array, Params
from fedjax_alg.errors import OptionError, check_one_of

TESTS = ("half_gradient", "armijo", "decrease", "printed")

#: Factor of the slope in the test "armijo" (Nocedal and Wright, Algorithm 3.1).
ARMIJO = 1e-4

#: Number of steps that are evaluated at once: reading the examples costs more than
#: evaluating the loss for a few more steps.
WIDTH = 4


class BacktrackingState(NamedTuple):
  """The result of the last search."""

  step: Array  #: [] float32, eta_r; 0 where no step passed
  tries: Array  #: [] int32, number of steps that were tested
  value: Array  #: [] float32, f(w)
  new_value: Array  #: [] float32, f(w + eta d)


def _passes(
  test: str,
  eta: Float[Array, " T"],
  decrease: Float[Array, " T"],
  square: Float[Array, ""],
  slope: Float[Array, ""],
) -> Bool[Array, " T"]:
  """Whether a step of length eta passes the test; a NaN never passes."""
  if test == "half_gradient":
    return decrease > 0.5 * eta * square
  if test == "armijo":
    return decrease >= -ARMIJO * eta * slope
  if test == "decrease":
    return decrease > 0
  return decrease <= 0.5 * eta * square


def backtracking(
  gamma: float = 0.8,
  test: str = "half_gradient",
  initial_step: float = 1.0,
  max_tries: int = 40,
) -> optax.GradientTransformationExtraArgs:
  r"""Scales an update d to eta d, eta = initial_step gamma^t, t = 0, 1, ...

  The first eta that passes the test is taken. With D = f(w) - f(w + eta d), the
  tests are:
    half_gradient: D > (eta/2) g.g, the intended meaning of (29);
    armijo:        D >= -1e-4 eta g.d, with the usual constant; with 1/2 in its
                   place and d = -g the test would be half_gradient;
    decrease:      D > 0;
    printed:       D <= (eta/2) g.g, (29) as printed, which accepts exactly the
                   insufficient steps (errata C-11).
  If none of max_tries steps passes, eta is 0 and the model stays (errata C-13).

  ``update`` takes ``value_fn`` (params -> value) and ``grad`` (g) as extra
  arguments, as the line searches of optax do. So the transformation can end a
  chain: ``optax.chain(conjugate_gradient("fr"), backtracking())``. If
  ``line_fn`` ((params, d, eta [T]) -> values [T]) is given as well, all steps
  are tested at once.

  Args:
    gamma: factor between one eta and the next, in (0, 1).
    test: one of ``TESTS``.
    initial_step: the eta that every search tests first.
    max_tries: largest number of steps that are tested.

  Raises:
    OptionError: ``gamma`` is out of range.
    ValueError: the test is unknown.

  Deviations: Algorithm 1 computes rho = (eta/2) g.g once, before the loop
  shrinks eta, and then never ends (errata C-12); here rho follows eta.
  """
  if not isinstance(gamma, jax.core.Tracer) and not 0.0 < gamma < 1.0:
    raise OptionError(f"`gamma`={gamma}: must be more than 0 and less than 1")
  check_one_of(f"line search test {test!r}", test, TESTS)

  def init(params: Params) -> BacktrackingState:
    zero = jnp.zeros(())
    return BacktrackingState(zero, jnp.zeros((), jnp.int32), zero, zero)

  def update(
    updates: Params,
    state: BacktrackingState,
    params: Params | None = None,
    *,
    value_fn: Callable[[Params], Array],
    grad: Params,
    line_fn: Callable[..., Array] | None = None,
    **extra: object,
  ) -> tuple[Params, BacktrackingState]:
    chex.assert_trees_all_equal_shapes(grad, updates)
    square, slope = trees.squared_norm(grad), trees.dot(grad, updates)
    width = max_tries if line_fn else min(WIDTH, max_tries)

    def values_at(steps: Array) -> Array:
      values = (
        line_fn(params, updates, steps)
        if line_fn
        else jax.vmap(lambda step: value_fn(trees.add_scaled(params, step, updates)))(
          steps
        )
      )
      chex.assert_equal_shape((values, steps))
      return values

    def candidates(tried):
      t = tried + jnp.arange(width, dtype=jnp.int32)
      return t, initial_step * jnp.float32(gamma) ** t.astype(jnp.float32)

    def choose_step(tried, t, eta, value, values):
      good = _passes(test, eta, value - values, square, slope)
      good = good & (t < max_tries)
      first = jnp.argmax(good)
      passes = good[first]
      return (
        jnp.where(passes, t[first] + 1, jnp.minimum(tried + width, max_tries)).astype(
          jnp.int32
        ),
        passes,
        jnp.where(passes, eta[first], 0.0),
        jnp.where(passes, values[first], value),
      )

    # f(w) is computed together with the first steps.
    t, eta = candidates(jnp.int32(0))
    values = values_at(jnp.concatenate([jnp.zeros(1), eta]))
    value = values[0]
    carry = choose_step(jnp.int32(0), t, eta, value, values[1:])
    if width < max_tries:

      def search(carry):
        t, eta = candidates(carry[0])
        return choose_step(carry[0], t, eta, value, values_at(eta))

      carry = jax.lax.while_loop(
        lambda carry: ~carry[1] & (carry[0] < max_tries), search, carry
      )
    tries, _, eta, new_value = carry
    # Where eta = 0, an infinite entry of the direction must not give 0 * inf.
    scaled_updates = jax.tree.map(
      lambda d: jnp.where(eta > 0, eta * d, jnp.zeros_like(d)), updates
    )
    return scaled_updates, BacktrackingState(eta, tries, value, new_value)

  return optax.GradientTransformationExtraArgs(init, update)
