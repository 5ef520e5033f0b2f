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
from jaxtyping import Float

from fedjax_alg import trees
from fedjax_alg.base import Array, Layer
from fedjax_alg.least_squares import codes
from fedjax_alg.least_squares.moments import Moments

#: none: no bias; ones: a column of ones in X, penalized like the others;
#: centred: X and T are centered, and the bias is not penalized.
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


def _at_least_one(x: Array) -> Array:
  return jnp.maximum(x, jnp.ones((), x.dtype))


def _rows(moments: Moments, layer: Layer) -> Array:
  """The number of examples, at least 1, times positions."""
  count = _at_least_one(moments.number)
  return count * jnp.asarray(layer.positions, count.dtype)


def problem(
  moments: Moments,
  layer: Layer,
  code: Float[Array, "L p width"],
  bias: str,
  high_pass: bool = False,
) -> Problem:
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
    custom_message="moments: of another layer",
  )
  chex.assert_shape(
    code,
    (classes, {1, layer.positions}, None),
    custom_message="code must be [L, positions or 1, width]",
  )
  maps, counts = moments.classes, moments.counts
  positions = jnp.asarray(layer.positions, counts.dtype)
  rows = _rows(moments, layer)
  if high_pass:
    maps = codes.high_passed(maps)
  by_class = layer.unfold(maps)  # [L, positions, d]
  mix: Array | None
  if code.shape[1] == 1:
    cross = by_class.sum(1).T
    target = counts * positions / rows
    mix = code[:, 0]
  else:
    cross = jnp.einsum("lpd,lpj->dj", by_class, code, precision=trees.HIGHEST)
    target = jnp.tensordot(counts, code.sum(1), axes=1) / rows
    mix = None
    if high_pass:  # a high-passed code sums to 0 over the positions
      target = jnp.zeros_like(target)
  total = moments.total[:, None]
  if bias == "none":
    return Problem(moments.gram, cross, target, mix)
  if bias == "ones":
    gram = jnp.block([[moments.gram, total], [total.T, rows[None, None]]])
    cross = jnp.concatenate([cross, (target * rows)[None]])
    return Problem(gram, cross, target, mix)
  return Problem(
    moments.gram - total * total.T / rows, cross - total * target[None], target, mix
  )


def absolute(
  ridge: float, gram: Float[Array, "D D"], relative: bool
) -> Float[Array, ""]:
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


def _least_pivot(diagonal: Float[Array, " D"], eps: float) -> Float[Array, ""]:
  """The squared pivot from which on a matrix is not singular.

  A smaller one is a rounding error.

  Args:
    diagonal: [D] of the matrix.
    eps: of its numbers.
  """
  return (diagonal.shape[0] * eps) * diagonal.max()


def _factor(gram: Float[Array, "D D"], ridge: Float[Array, ""]) -> Float[Array, "D D"]:
  """Cholesky factor L of gram + ridge I; NaN if this matrix is singular."""
  a = gram + ridge * jnp.eye(gram.shape[0], dtype=gram.dtype)
  factor = jnp.linalg.cholesky(a)
  least = jnp.square(jnp.diagonal(factor)).min()
  floor = _least_pivot(jnp.diagonal(a), float(jnp.finfo(gram.dtype).eps))
  return jnp.where(least > floor, factor, jnp.full_like(factor, jnp.nan))


def solve(
  gram: Float[Array, "D D"],
  cross: Float[Array, "D r"],
  ridge: Float[Array, ""],
  prior: Float[Array, "D r"] | None = None,
) -> Float[Array, "D r"]:
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
      prior, cross.shape, custom_message="prior: as many columns as cross"
    )
    cross = cross + prior * ridge
  return jax.scipy.linalg.cho_solve((_factor(gram, ridge), True), cross)


def least_norm(
  gram: Float[Array, "D D"], cross: Float[Array, "D r"]
) -> Float[Array, "D r"]:
  """Solves gram B = cross; if gram is singular, by the B of least norm.

  It is the limit of ``solve`` for a ridge to 0. Eigenvalues that are rounding
  errors of 0 count as 0.

  Args:
    gram: [D, D], a sum of outer products.
    cross: [D, r], in the span of ``gram``.

  Returns:
    [D, r]; of a regular ``gram`` what ``solve`` gives without a ridge.
  """
  chex.assert_shape(gram, (cross.shape[0],) * 2)
  factor = _factor(gram, jnp.zeros((), gram.dtype))

  def regular() -> Array:
    result: Array = jax.scipy.linalg.cho_solve((factor, True), cross)
    return result

  def singular() -> Array:
    values, vectors = jnp.linalg.eigh(gram)
    floor = gram.shape[0] * float(jnp.finfo(gram.dtype).eps) * values[-1]
    is_zero = values <= floor
    inverse = jnp.where(is_zero, 0.0, 1.0 / jnp.where(is_zero, 1.0, values))
    return _product(vectors, inverse[:, None] * _product(vectors.T, cross))

  # A singular matrix has a factor of NaN.
  solution: Array = jax.lax.cond(jnp.isnan(factor[0, 0]), singular, regular)
  return solution


def sandwiched(
  gram: Float[Array, "f f"],
  target: Float[Array, "f D"],
  weights: Float[Array, "D L"],
  ridge: Float[Array, ""],
) -> Float[Array, "f D"]:
  """Computes the Delta that minimizes |R - F Delta W|^2 + ridge |Delta|^2.

  It solves F'F Delta W W' + ridge Delta = F'R W' by the eigenvectors of F'F and
  of W W', in which the equation is one division for each entry.

  Args:
    gram: F'F [f, f].
    target: F'R W' [f, D].
    weights: W [D, L].
    ridge: [], above 0.

  Returns:
    [f, D].
  """
  chex.assert_shape((gram, target), ((target.shape[0],) * 2, (None, weights.shape[0])))
  outer, rows = jnp.linalg.eigh(_product(weights, weights.T))
  inner, columns = jnp.linalg.eigh(gram)
  # Rounding makes some eigenvalues of these matrices negative.
  outer, inner = (jnp.maximum(part, jnp.zeros_like(part)) for part in (outer, inner))
  turned = _product(_product(columns.T, target), rows)
  turned = turned / (inner[:, None] * outer[None] + ridge)
  return _product(_product(columns, turned), rows.T)


def by_rows(
  x: Float[Array, "n D"],
  t: Float[Array, "n r"],
  ridge: Float[Array, ""],
  prior: Float[Array, "D r"],
) -> Float[Array, "D r"]:
  """Computes (X'X + ridge I)^-1 (X'T + ridge prior) by an [n, n] matrix.

  Args:
    x: X [n, D]; rows of zeros with targets of zeros change nothing.
    t: T [n, r].
    ridge: [], above 0.
    prior: [D, r], the solution for an infinite ridge.

  Returns:
    [D, r]; NaN if X X' + ridge I is singular.
  """
  (n, d), r = x.shape, t.shape[1]
  chex.assert_shape((t, prior, ridge), ((n, r), (d, r), ()))
  factor = _factor(_product(x, x.T), ridge)
  change = jax.scipy.linalg.cho_solve((factor, True), t - _product(x, prior))
  solution: Array = prior + _product(x.T, change)
  return solution


def random_filters(
  gram: Float[Array, "D D"], ridge: Float[Array, ""], draw: Float[Array, "D r"]
) -> Float[Array, "D r"]:
  """Whitens random filters: L^-T R, where gram + ridge I = L L'.

  Args:
    gram: [D, D].
    ridge: [], at least 0.
    draw: R [D, r], random numbers.

  Returns:
    [D, r]; NaN if gram + ridge I is singular.
  """
  return jax.scipy.linalg.solve_triangular(
    _factor(gram, ridge), draw, trans="T", lower=True
  )


def fitted_weights(
  fit: Fit, equations: Problem, moments: Moments, layer: Layer, bias: str
) -> tuple[Float[Array, "d width"], Float[Array, " width"]]:
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
  mean = moments.total / _rows(moments, layer)
  return weights_by_means(fit, equations.mix, equations.target, mean, bias)


def weights_by_means(
  fit: Fit,
  mix: Float[Array, "r width"] | None,
  target: Float[Array, " r"],
  mean: Float[Array, " d"],
  bias: str,
) -> tuple[Float[Array, "d width"], Float[Array, " width"]]:
  """``fitted_weights``, of the means that an unpenalized bias is computed from.

  Args:
    fit: the fit.
    mix: [r, width], the code to apply to the solution; None if r = width.
    target: [r], mean of the targets.
    mean: [d], mean of the rows.
    bias: one of ``BIASES``.

  Returns:
    W [d, width] and b [width].
  """
  d = mean.shape[0]
  chex.assert_shape((mean, target), ((d,), (fit.basis.shape[1],)))
  kernel = fit.basis[:d]
  if bias == "ones":
    offset = fit.basis[d]
  elif bias == "centred":
    offset = target - _product(mean[None], kernel)[0]
  else:
    offset = jnp.zeros(kernel.shape[1], kernel.dtype)
  if mix is not None:
    kernel = _product(kernel, mix)
    offset = _product(offset[None], mix)[0]
  return kernel / fit.scale[None], offset / fit.scale


def features_fitted(
  gram: Float[Array, "D D"], ridge: Float[Array, ""]
) -> Float[Array, ""]:
  """The effective number of features, tr(gram (gram + ridge I)^-1).

  Args:
    gram: [D, D].
    ridge: [], at least 0.

  Returns:
    [], D without a ridge.
  """
  size = jnp.asarray(gram.shape[0], gram.dtype)
  unit = jnp.eye(gram.shape[0], dtype=gram.dtype)
  root = jax.scipy.linalg.solve_triangular(_factor(gram, ridge), unit, lower=True)
  return jnp.where(ridge > 0, size - ridge * jnp.square(root).sum(), size)


def log_odds(
  kernel: Float[Array, "d L"],
  moments: Moments,
  layer: Layer,
  features: Float[Array, ""],
) -> tuple[Float[Array, "d L"], Float[Array, " L"]]:
  """Makes log odds of the classes of least-squares scores s = W'x.

  It is linear discriminant analysis of the scores. If those of class c are Gaussian
  with the mean m + d_c and the covariance S of all classes, the log odds are
    d_c' S^-1 (s - m) - d_c' S^-1 d_c / 2 + log(n_c / N),
  up to a number that all classes share: again linear in x. With m the mean of all
  scores, means and covariances, within the classes and in all, follow from the sums
  that W was solved from. These scores lie closer to their targets than those of new
  examples do, the more so the more features were fitted, so S is the covariance
  within plus features / N of that in all (at most all of it), which vanishes as N
  grows.

  Args:
    kernel: W; a bias of the scores would change nothing.
    moments: sums over the N examples.
    layer: the layer, a dense one.
    features: [], the effective number of features (``features_fitted``).

  Returns:
    The weights [d, L] and the biases [L] of the log odds.
  """
  counts, number = moments.counts, _at_least_one(moments.number)
  by_class = layer.unfold(moments.classes).sum(1)  # [L, d]
  sums = _product(moments.total[None], kernel)[0]
  mean = sums / number
  means = _product(by_class, kernel) / _at_least_one(counts)[:, None] - mean[None]
  means = jnp.where(counts[:, None] > 0, means, jnp.zeros_like(means))
  square = _product(kernel.T, _product(moments.gram, kernel)) / number
  overall = square - jnp.outer(mean, mean)
  within = overall - _product((counts[:, None] * means).T, means) / number
  share = jnp.minimum(features / number, jnp.ones_like(number))
  covariance = within + share * overall
  # Scores may add up to the same number for every example.
  least = 1e-9 * jnp.trace(covariance) / len(counts) + 1e-30
  unit = jnp.eye(len(counts), dtype=covariance.dtype)
  turn = jnp.linalg.solve(covariance + least * unit, means.T)  # [L, L]
  bend = jnp.einsum("cl,lc->c", means, turn, precision=trees.HIGHEST) / 2
  prior = jnp.log(_at_least_one(counts) / number)
  return _product(kernel, turn), prior - bend - _product(mean[None], turn)[0]


def output_std(
  kernel: Float[Array, "d width"], moments: Moments, layer: Layer
) -> Float[Array, " width"]:
  """Computes the standard deviation of every output over all rows.

  Args:
    kernel: W [d, width].
    moments: sums over the examples.
    layer: the layer.

  Returns:
    [width]; 1 for a constant output.
  """
  chex.assert_shape((kernel, moments.total), ((layer.fan_in, None), (layer.fan_in,)))
  rows = _rows(moments, layer)
  mean = _product((moments.total / rows)[None], kernel)[0]
  square = (_product(moments.gram, kernel) * kernel).sum(0) / rows
  variance = square - mean * mean
  unit = jnp.ones((), kernel.dtype)
  # A smaller variance is a rounding error: the output is constant.
  return jnp.sqrt(jnp.where(variance > 1e-12 * square, variance, unit))
