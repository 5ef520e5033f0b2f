"""Counts the floating-point operations of a function from its JAX trace."""

from collections.abc import Callable
import math
from typing import Any

import jax
from jax.extend import core

from fedjax_alg.typing import PyTree


def forward_flops(fn: Callable[..., object], *shapes: PyTree) -> float:
  """Counts the multiplications and additions of all products in a function.

  A product of [m, k] with [k, n] counts 2 m n k. A convolution counts in the
  same way, including its zero padding. All other operations (activations,
  pooling, sums) are ignored. The body of a scan is counted for every
  iteration, the body of a while loop once, and of a conditional only the most
  expensive branch.

  Args:
    fn: the function. It is traced but never run, and tracing starts no device.
    *shapes: arguments of ``fn``, pytrees of ``jax.ShapeDtypeStruct`` or arrays.

  Returns:
    The number of operations.
  """
  return _count(jax.make_jaxpr(fn)(*shapes).jaxpr)


def _count(jaxpr: core.Jaxpr) -> float:
  return sum((_of_equation(equation) for equation in jaxpr.eqns), 0.0)


def _shape(atom: Any) -> tuple[int, ...]:
  shape: tuple[int, ...] = atom.aval.shape
  return shape


def _of_equation(equation: core.JaxprEqn) -> float:
  name, params = equation.primitive.name, equation.params
  flops: float
  if name == "dot_general":
    (contracted, _), _ = params["dimension_numbers"]
    lhs = _shape(equation.invars[0])
    flops = (
      2.0
      * math.prod(_shape(equation.outvars[0]))
      * math.prod(lhs[axis] for axis in contracted)
    )
    return flops
  if name == "conv_general_dilated":
    kernel = _shape(equation.invars[1])
    # The first entry of rhs_spec is the axis of the output channels.
    channels = kernel[params["dimension_numbers"].rhs_spec[0]]
    flops = (
      2.0 * math.prod(_shape(equation.outvars[0])) * (math.prod(kernel) // channels)
    )
    return flops
  inside = [_count(jaxpr) for jaxpr in core.jaxprs_in_params(params)]
  if name == "cond":
    return max(inside)
  return sum(inside, 0.0) * (params["length"] if name == "scan" else 1)
