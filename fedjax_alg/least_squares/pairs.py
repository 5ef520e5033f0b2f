"""Numbers as sums of two float32: sums, products and solutions without float64.

A ``Pair`` holds about 48 bits, where float64 holds 53 and float32 24. It is
made for accelerators that only emulate float64 (TPU), in programs that take
minutes to compile.

Products of matrices are taken slice by slice (Ozaki et al., "Error-free
transformations of matrix multiplication", 2012). A slice holds 9 bits of every
entry, relative to the largest of its row or column, as a whole number of at
most 256. The product of two slices with up to ``BLOCK`` columns is exact in
float32, and in the bfloat16 products of a TPU too.

All products of two numbers are exact here, so the result does not depend on
where a compiler contracts a product and a sum to one operation.
"""

from collections.abc import Callable
import dataclasses
import math
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_alg.base import Array

#: Columns of an exact product, and of a block of ``Factor``.
BLOCK = 64
_BITS = 9
#: Bound of the relative error of a sum or product.
EPS = 2.0**-44


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pair:
  """hi + lo, where |lo| is at most half a unit in the last place of hi."""

  hi: Array  #: float32
  lo: Array  #: float32, of the same shape

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of both parts."""
    return self.hi.shape

  @property
  def dtype(self) -> jnp.dtype:
    """The dtype of both parts."""
    return self.hi.dtype

  @property
  def T(self) -> "Pair":  # pylint: disable=invalid-name
    """The transpose."""
    return map_halves(jnp.transpose, self)

  def __getitem__(self, index: Any) -> "Pair":
    return map_halves(lambda part: part[index], self)

  def __neg__(self) -> "Pair":
    return Pair(-self.hi, -self.lo)

  def __add__(self, other: "Number") -> "Pair":
    other = pair(other)
    hi, error = _two_sum(self.hi, other.hi)
    lo, low_error = _two_sum(self.lo, other.lo)
    hi, error = _quick_two_sum(hi, error + lo)
    return Pair(*_quick_two_sum(hi, error + low_error))

  def __sub__(self, other: "Number") -> "Pair":
    return self + -pair(other)

  def __mul__(self, other: "Number") -> "Pair":
    other = pair(other)
    (a, b), (c, d) = _halves(self.hi), _halves(other.hi)
    (e, f), (g, h) = _halves(self.lo), _halves(other.lo)
    middle, cross_error = _two_sum(a * d, b * c)
    hi, error = _two_sum(a * c, middle)
    small = ((a * g + c * e) + (a * h + b * g + c * f + d * e)) + b * d
    return Pair(*_quick_two_sum(hi, error + (cross_error + small)))

  def __truediv__(self, other: "Number") -> "Pair":
    divisor = pair(other)
    # One step of Newton's method doubles the 24 bits of a float32 quotient.
    guess = pair(1.0 / divisor.hi)
    residual = pair(jnp.ones_like(divisor.hi)) - guess * divisor
    return self * (guess + guess * residual)


#: An array or a Pair; the operators of both are not one type to a checker.
Number = Any


def pair(x: Any) -> Pair:
  """Makes a Pair of a number or array of float32, and leaves a Pair as it is."""
  if isinstance(x, Pair):
    return x
  x = jnp.asarray(x, jnp.float32)
  return Pair(x, jnp.zeros_like(x))


def zeros(shape: tuple[int, ...]) -> Pair:
  """Makes zeros of a shape."""
  return pair(jnp.zeros(shape, jnp.float32))


def single(x: Float[Number, "*shape"]) -> Float[Array, "*shape"]:
  """Rounds to float32; arrays are left as they are."""
  return x.hi if isinstance(x, Pair) else x


@overload
def map_halves(fn: Callable[..., Array], x: Pair, /, *xs: Any) -> Pair: ...


@overload
def map_halves(fn: Callable[..., Array], *xs: Any) -> Any: ...


def map_halves(fn: Callable[..., Array], *xs: Any) -> Any:
  """Applies a function that only moves, drops or repeats entries.

  Args:
    fn: the function.
    *xs: arrays, or Pairs and arrays.

  Returns:
    An array, or a Pair if there is one in ``xs``.
  """
  if not any(isinstance(x, Pair) for x in xs):
    return fn(*xs)
  operands = [pair(x) for x in xs]
  return Pair(fn(*(x.hi for x in operands)), fn(*(x.lo for x in operands)))


def sum_over(x: Number, axis: int) -> Number:
  """Sums over an axis, for a Pair by halves."""
  if not isinstance(x, Pair):
    return x.sum(axis)
  x = map_halves(lambda part: jnp.moveaxis(part, axis, 0), x)
  while x.shape[0] > 1:
    if x.shape[0] % 2:
      x = map_halves(lambda part: jnp.concatenate([part, jnp.zeros_like(part[:1])]), x)
    half = x.shape[0] // 2
    x = x[:half] + x[half:]
  return x[0]


def over_devices(x: Pair, axis: str) -> Pair:
  """``jax.lax.psum`` of a Pair that loses nothing of lo.

  Args:
    x: this device's share.
    axis: name of the mesh axis.

  Returns:
    The sum.
  """
  devices = jax.lax.psum(1, axis)
  # On this grid the sum of all devices is exact.
  most = jax.lax.pmax(jnp.abs(x.hi), axis)
  grid = _power_of_two(most) * 2.0 ** (1 + math.ceil(math.log2(devices)))
  coarse = (x.hi + 1.5 * grid) - 1.5 * grid
  remainder = (x.hi - coarse) + x.lo
  result: Pair = pair(jax.lax.psum(coarse, axis)) + jax.lax.psum(remainder, axis)
  return result


def matmul(a: Float[Number, "m k"], b: Float[Number, "k n"]) -> Float[Pair, "m n"]:
  """Computes a b.

  Args:
    a: [m, k] float32 or Pair.
    b: [k, n] float32 or Pair.

  Returns:
    [m, n]. Its error is about 2^-36 for float32 and 2^-45 for Pairs, relative
    to the largest of a row of a, the largest of a column of b, and k.
  """
  k = a.shape[1]
  blocks = -(-k // BLOCK)
  if blocks == 1:
    return _exact_product(a, b.T)

  def parts(x):
    """[k, n] -> [blocks, n, BLOCK]."""
    padded = jnp.pad(x, ((0, blocks * BLOCK - k), (0, 0)))
    return padded.reshape(blocks, BLOCK, -1).transpose(0, 2, 1)

  def add(total, block):
    return total + _exact_product(*block), None

  return jax.lax.scan(
    add, zeros((a.shape[0], b.shape[1])), (map_halves(parts, a.T), map_halves(parts, b))
  )[0]


def _exact_product(
  a: Float[Number, "m k"], b: Float[Number, "n k"]
) -> Float[Pair, "m n"]:
  """a b' of a [m, k] and b [n, k], where k is at most ``BLOCK``."""
  first, scale_a = _slices(a)
  second, scale_b = _slices(b)
  n, depth = b.shape[0], max(len(first), len(second))
  # Slice i of a with the slices of b that count beside it, [m, j n].
  products = [
    jax.lax.dot_general(
      part,
      jnp.concatenate(second[: depth - i]),
      (((1,), (1,)), ((), ())),
      precision=jax.lax.Precision.DEFAULT,
      preferred_element_type=jnp.float32,
    )
    for i, part in enumerate(first)
  ]
  total = zeros((a.shape[0], n))
  for order in reversed(range(depth)):
    # Four products of at most 2^22 make an exact sum. Where there are more,
    # their last bits do not count.
    order_sum: Any = sum(
      product[:, (order - i) * n : (order - i + 1) * n]
      for i, product in enumerate(products)
      if 0 <= order - i < len(second)
    )
    total = total + order_sum * 2.0 ** (-_BITS * order)
  scale = scale_a[:, None] * scale_b[None] * 2.0 ** (2 - 2 * _BITS)
  return map_halves(lambda part: part * scale, total)


def _slices(
  x: Float[Number, "m k"],
) -> tuple[list[Float[Array, "m k"]], Float[Array, " m"]]:
  """Parts rows into whole numbers of at most 256, and the rows' scales.

  x = scale * (s_0 + s_1 2^-9 + s_2 2^-18 + ...) 2^-8.
  """
  hi = single(x)
  scale = 2 * _power_of_two(jnp.abs(hi).max(1))
  remainder = hi / scale[:, None] * 2.0 ** (_BITS - 1)
  slices = []
  for i in range(6 if isinstance(x, Pair) else 4):
    if i == 3 and isinstance(x, Pair):
      # By now hi has left so little that the sum loses nothing that counts.
      remainder = remainder + x.lo / scale[:, None] * 2.0 ** (_BITS * (i + 1) - 1)
    slices.append(jnp.round(remainder))
    remainder = (remainder - slices[-1]) * 2.0**_BITS
  return slices, scale


class Factor(NamedTuple):
  """The Cholesky factor L [D, D], in columns of ``BLOCK``."""

  columns: Pair  #: [blocks, D', BLOCK], D' = blocks * BLOCK
  inverses: Pair  #: [blocks, BLOCK, BLOCK], of the blocks on the diagonal
  pivot: Array  #: [] the least squared pivot


def cholesky(a: Float[Pair, "D D"]) -> Factor:
  """Factors a = L L'.

  Args:
    a: [D, D], symmetric.

  Returns:
    The factor; NaN if ``a`` is not positive definite.
  """
  d = a.shape[0]
  blocks = -(-d // BLOCK)
  size = blocks * BLOCK
  # 1 on the rest of the diagonal, as large as the others.
  padding = jnp.where(jnp.arange(size) < d, 0.0, jnp.diagonal(a.hi).max())
  a = map_halves(lambda part: jnp.pad(part, ((0, size - d),) * 2), a) + (
    jnp.diag(padding)
  )
  rows = jnp.arange(size)[:, None]

  def column(j, carry):
    columns, inverses, pivot = carry
    start = j * BLOCK

    def rows_of(x):
      return map_halves(
        lambda part: jax.lax.dynamic_slice_in_dim(part, start, BLOCK), x
      )

    def subtract(k, remainder):
      before = columns[k]
      return remainder - _exact_product(before, rows_of(before))

    remainder = jax.lax.fori_loop(
      0,
      j,
      subtract,
      map_halves(lambda part: jax.lax.dynamic_slice_in_dim(part, start, BLOCK, 1), a),
    )
    inverse, least = _inverse_factor(rows_of(remainder))
    new_column = _exact_product(remainder, inverse)
    new_column = map_halves(
      lambda part: jnp.where(rows >= start, part, 0.0), new_column
    )

    def put(all_, new):
      return map_halves(lambda part, value: part.at[j].set(value), all_, new)

    return put(columns, new_column), put(inverses, inverse), jnp.minimum(pivot, least)

  return Factor(
    *jax.lax.fori_loop(
      0,
      blocks,
      column,
      (
        zeros((blocks, size, BLOCK)),
        zeros((blocks, BLOCK, BLOCK)),
        jnp.float32(jnp.inf),
      ),
    )
  )


def _inverse_factor(
  a: Float[Pair, "b b"],
) -> tuple[Float[Pair, "b b"], Float[Array, ""]]:
  """L^-1 of a = L L' [BLOCK, BLOCK], and the least squared pivot."""
  index = jnp.arange(BLOCK)

  def eliminate(j, carry):
    """Takes row j, and subtracts it from the rows below."""
    remainder, least = carry
    pivot_row = remainder[j]
    pivot = pivot_row[j]
    row = pivot_row * _inverse_root(pivot)
    below = map_halves(lambda part: jnp.where(index > j, part[:BLOCK], 0.0), row)
    remainder = remainder - below[:, None] * row[None]
    remainder = map_halves(lambda part, new: part.at[j].set(new), remainder, row)
    # ``minimum`` keeps NaN.
    return remainder, jnp.minimum(least, pivot.hi)

  both = map_halves(lambda x, y: jnp.concatenate([x, y], 1), a, jnp.eye(BLOCK))
  both, least = jax.lax.fori_loop(0, BLOCK, eliminate, (both, jnp.float32(jnp.inf)))
  return both[:, BLOCK:], least


def _inverse_root(x: Pair) -> Pair:
  """1 / sqrt(x) by a step of Newton's method; NaN below 0."""
  guess = pair(1.0 / jnp.sqrt(x.hi))
  residual = pair(jnp.ones_like(x.hi)) - guess * (guess * x)
  return guess + guess * map_halves(lambda part: 0.5 * part, residual)


def solve_lower(factor: Factor, b: Float[Pair, "D r"]) -> Float[Pair, "D r"]:
  """Computes L^-1 b, [D, r]."""
  blocks, size = factor.columns.shape[:2]
  d = b.shape[0]
  remainder = map_halves(lambda part: jnp.pad(part, ((0, size - d), (0, 0))), b)

  def block(j, carry):
    remainder, done = carry
    block_rows = _rows(remainder, j)
    block_rows = _exact_product(factor.inverses[j], block_rows.T)
    remainder = remainder - _exact_product(factor.columns[j], block_rows.T)
    return remainder, _put_rows(done, block_rows, j)

  solution: Pair
  _, solution = jax.lax.fori_loop(0, blocks, block, (remainder, zeros(remainder.shape)))
  return solution[:d]


def solve_upper(factor: Factor, b: Float[Pair, "D r"]) -> Float[Pair, "D r"]:
  """Computes L'^-1 b, [D, r]."""
  blocks, size = factor.columns.shape[:2]
  d = b.shape[0]
  right = map_halves(lambda part: jnp.pad(part, ((0, size - d), (0, 0))), b)

  def block(i, done):
    j = blocks - 1 - i
    block_rows = _rows(right, j) - matmul(factor.columns[j].T, done)
    return _put_rows(done, _exact_product(factor.inverses[j].T, block_rows.T), j)

  solution: Pair = jax.lax.fori_loop(0, blocks, block, zeros(right.shape))
  return solution[:d]


def _rows(x: Pair, j: Array) -> Pair:
  return map_halves(
    lambda part: jax.lax.dynamic_slice_in_dim(part, j * BLOCK, BLOCK), x
  )


def _put_rows(x: Pair, rows: Pair, j: Array) -> Pair:
  return map_halves(
    lambda part, values: jax.lax.dynamic_update_slice_in_dim(
      part, values, j * BLOCK, 0
    ),
    x,
    rows,
  )


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
  """a + b and its rounding error."""
  total = a + b
  part = total - a
  return total, (a - (total - part)) + (b - part)


def _quick_two_sum(a: Array, b: Array) -> tuple[Array, Array]:
  """``_two_sum`` where |a| >= |b|."""
  total = a + b
  return total, b - (total - a)


def _halves(x: Array) -> tuple[Array, Array]:
  """x = a + b, both with 12 bits, so that products of them are exact."""
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  high = jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFFF000), jnp.float32)
  return high, x - high


def _power_of_two(x: Array) -> Array:
  """The largest power of two up to x >= 0; of 0, the least normal number."""
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0x7F800000)
  return jnp.maximum(
    jax.lax.bitcast_convert_type(bits, jnp.float32), jnp.float32(2.0**-100)
  )
