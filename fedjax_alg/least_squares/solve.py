"""The closed-form solution of one layer, shared or personal.

(5)/(11): W = (sum_k X_k'X_k + gamma I)^-1 sum_k X_k'T_k. gamma is added once
and not by every client (errata A-03). (13): W = (X'X + lambda I)^-1 (X'T +
lambda W_meta).

If all positions share a code, then T = Y Q with Q [L, width], and W = B Q,
where B is the solution for the targets Y. This needs L right-hand sides for
any width. A ``Fit`` stores B; (13) holds for B as well as for W.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Layer
from fedjax_alg.least_squares import codes
from fedjax_alg.least_squares.moments import Moments

#: none: no bias; ones: a column of ones in X, penalised like the others;
#: centred: X and T are centred, and the bias is not penalised.
BIASES = ("none", "ones", "centred")


class Problem(NamedTuple):
  """Normal equations A B = C, without a ridge."""

  gram: Array  #: A [D, D]; D = d, or d + 1 with a column of ones
  cross: Array  #: C [D, r]
  target: Array  #: [r] mean of the targets
  #: [r, width], the code to apply to the solution; None if r = width
  mix: Array | None


class Fit(NamedTuple):
  """A fitted layer: W = B mix / scale."""

  basis: Array  #: B [D, r]
  scale: Array  #: [width] the divisor of every output


def _product(a: Array, b: Array) -> Array:
  return jnp.matmul(a, b, precision=trees.HIGHEST)


def problem(
    moments: Moments, layer: Layer, code: Array, bias: str,
    high_pass: bool = False) -> Problem:
  """Makes the normal equations of a layer.

  Args:
    moments: sums over the examples.
    layer: the layer.
    code: Q, [L, positions or 1, width].
    bias: one of ``BIASES``.
    high_pass: whether the code, one for each position, is high-passed over
      space.

  Returns:
    The equations.
  """
  classes, d = moments.counts.shape[0], layer.fan_in
  chex.assert_shape(
      (moments.gram, moments.total, moments.classes),
      ((d, d), (d,), (classes, *layer.input_shape)),
      custom_message="moments: of another layer")
  chex.assert_shape(
      code, (classes, {1, layer.positions}, None),
      custom_message="code must be [L, positions or 1, width]")
  maps = moments.classes
  counts = moments.counts
  positions = jnp.asarray(layer.positions, counts.dtype)
  rows = jnp.maximum(counts.sum() * positions, jnp.ones((), counts.dtype))
  if high_pass:
    maps = codes.high_passed(maps)
  by_class = layer.unfold(maps)  # [L, positions, d]
  if code.shape[1] == 1:
    cross = by_class.sum(1).T
    target = counts * positions / rows
    mix = code[:, 0]
  else:
    cross = jnp.einsum(
        "lpd,lpj->dj", by_class, code, precision=trees.HIGHEST)
    target = jnp.tensordot(counts, code.sum(1), axes=1) / rows
    mix = None
    if high_pass:  # a high-passed code sums to 0 over the positions
      target = jnp.zeros_like(target)
  total = moments.total[:, None]
  if bias == "none":
    return Problem(moments.gram, cross, target, mix)
  if bias == "ones":
    gram = jnp.block([[moments.gram, total], [total.T, rows[None, None]]])
    cross = jnp.concatenate([cross, (rows * target)[None]])
    return Problem(gram, cross, target, mix)
  return Problem(
      moments.gram - total * total.T / rows, cross - total * target[None],
      target, mix)


def absolute(ridge: float, gram: Array, relative: bool) -> Array:
  """Computes the number that is added to the diagonal of a Gram matrix.

  Args:
    ridge: the ridge.
    gram: [D, D].
    relative: whether ``ridge`` is relative to the mean of the diagonal.

  Returns:
    [] in the dtype of ``gram``.
  """
  size = jnp.asarray(ridge, gram.dtype)
  return size * jnp.trace(gram) / gram.shape[0] if relative else size


def _factor(gram: Array, ridge: Array) -> Array:
  """Cholesky factor L of gram + ridge I; NaN if this matrix is singular.

  The matrix counts as singular if a squared pivot is below D eps times the
  largest diagonal entry, because such a pivot is a rounding error.
  """
  a = gram + ridge * jnp.eye(gram.shape[0], dtype=gram.dtype)
  factor = jnp.linalg.cholesky(a)
  least = jnp.square(jnp.diagonal(factor)).min()
  floor = (gram.shape[0] * jnp.finfo(gram.dtype).eps) * jnp.diagonal(a).max()
  return jnp.where(least > floor, factor, jnp.full_like(factor, jnp.nan))


def solve(
    gram: Array, cross: Array, ridge: Array, prior: Array | None = None
) -> Array:
  """Computes (gram + ridge I)^-1 (cross + ridge prior).

  Args:
    gram: [D, D].
    cross: [D, r].
    ridge: [], at least 0.
    prior: [D, r], the solution for an infinite ridge; None means 0.

  Returns:
    [D, r]; NaN if gram + ridge I is singular.
  """
  chex.assert_shape(gram, (cross.shape[0],) * 2)
  if prior is not None:
    chex.assert_shape(
        prior, cross.shape, custom_message="prior: as many columns as cross")
    cross = cross + ridge * prior
  return jax.scipy.linalg.cho_solve((_factor(gram, ridge), True), cross)


def random_filters(gram: Array, ridge: Array, draw: Array) -> Array:
  """Whitens random filters: L^-T R, where gram + ridge I = L L'.

  Args:
    gram: [D, D].
    ridge: [], at least 0.
    draw: R [D, r], random numbers.

  Returns:
    [D, r]; NaN if gram + ridge I is singular.
  """
  return jax.scipy.linalg.solve_triangular(
      _factor(gram, ridge), draw, trans="T", lower=True)


def weights(
    fit: Fit, equations: Problem, moments: Moments, layer: Layer, bias: str
) -> tuple[Array, Array]:
  """Computes the weights of a fitted layer.

  Args:
    fit: the fit.
    equations: the equations that it solves.
    moments: sums over the examples.
    layer: the layer.
    bias: one of ``BIASES``.

  Returns:
    W [d, width] and b [width].
  """
  d = layer.fan_in
  kernel = fit.basis[:d]
  if bias == "ones":
    offset = fit.basis[d]
  elif bias == "centred":
    counts = moments.counts
    rows = jnp.maximum(counts.sum(), jnp.ones((), counts.dtype)) * (
        jnp.asarray(layer.positions, counts.dtype))
    offset = equations.target - _product(
        (moments.total / rows)[None], kernel)[0]
  else:
    offset = jnp.zeros(kernel.shape[1], kernel.dtype)
  if equations.mix is not None:
    kernel = _product(kernel, equations.mix)
    offset = _product(offset[None], equations.mix)[0]
  return kernel / fit.scale[None], offset / fit.scale


def spread(kernel: Array, moments: Moments, layer: Layer) -> Array:
  """Computes the standard deviation of every output over all rows.

  Args:
    kernel: W [d, width].
    moments: sums over the examples.
    layer: the layer.

  Returns:
    [width]; 1 for a constant output.
  """
  counts = moments.counts
  rows = jnp.maximum(counts.sum(), jnp.ones((), counts.dtype)) * (
      jnp.asarray(layer.positions, counts.dtype))
  mean = _product((moments.total / rows)[None], kernel)[0]
  square = (kernel * _product(moments.gram, kernel)).sum(0) / rows
  variance = square - mean * mean
  one = jnp.ones((), kernel.dtype)
  # A smaller variance is a rounding error: the output is constant.
  return jnp.sqrt(jnp.where(variance > 1e-12 * square, variance, one))
