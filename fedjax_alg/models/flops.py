"""What a function costs, counted from what JAX traces of it."""

from collections.abc import Callable
import math
from typing import Any

import jax
from jax.extend import core


def forward_flops(fn: Callable[..., Any], *shapes: Any) -> float:
  """Multiplications and additions of the products in ``fn(*shapes)``.

  A product of [m, k] with [k, n] counts 2 m n k, a convolution likewise, zero
  padding included. What else there is (activations, pooling, sums) is not
  counted. A scan counts as often as it runs, a while loop once, of a
  condition's branches the most expensive.

  Args:
    fn: traced, never run; starts no device unless ``fn`` does.
    *shapes: its arguments, pytrees of ``jax.ShapeDtypeStruct`` or arrays.
  """
  return _count(jax.make_jaxpr(fn)(*shapes).jaxpr)


def _count(jaxpr: core.Jaxpr) -> float:
  return sum((_of_equation(equation) for equation in jaxpr.eqns), 0.0)


def _shape(atom: Any) -> tuple[int, ...]:
  return atom.aval.shape


def _of_equation(equation: core.JaxprEqn) -> float:
  name, params = equation.primitive.name, equation.params
  if name == "dot_general":
    (contracted, _), _ = params["dimension_numbers"]
    left = _shape(equation.invars[0])
    return 2.0 * math.prod(_shape(equation.outvars[0])) * math.prod(
        left[axis] for axis in contracted)
  if name == "conv_general_dilated":
    kernel = _shape(equation.invars[1])
    # The first of rhs_spec is the axis of the output's channels.
    channels = kernel[params["dimension_numbers"].rhs_spec[0]]
    return 2.0 * math.prod(_shape(equation.outvars[0])) * (
        math.prod(kernel) // channels)
  inside = [_count(jaxpr) for jaxpr in core.jaxprs_in_params(params)]
  if name == "cond":
    return max(inside)
  return sum(inside, 0.0) * (params["length"] if name == "scan" else 1)
