"""Convolutions and maxima of images.

The value is always XLA's convolution. On a CPU its derivatives are slow inside a
loop, so there they are those of ``extras.convolution``, unless that extra is missing.
"""

from collections.abc import Callable
import functools
import itertools
from typing import Any

from flax import linen as nn
import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero
import jax.numpy as jnp

from fedjax_alg import optional
from fedjax_alg.base import Array

#: Layouts of the images, the kernels and the result.
LAYOUT = ("NHWC", "HWIO", "NHWC")


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def convolve(x: Array, kernel: Array, padding: str, stride: int = 1) -> Array:
  """Convolves images with square kernels.

  Args:
    x: [B, H, W, c].
    kernel: [k, k, c, d].
    padding: ``SAME`` keeps the size: (k - 1) // 2 zero rows and columns before
      the image and k // 2 after it. ``VALID`` has none.
    stride: s; of the output without strides every s-th row and column.

  Returns:
    [B, H, W, d], or [B, H - k + 1, W - k + 1, d] without padding; with a stride
    the s-th part of H and W, rounded up.
  """
  return by_xla(x, kernel, padding, stride)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def convolve_and_pool(
  x: Array, kernel: Array, bias: Array, padding: str, size: int
) -> Array:
  """Convolves with stride 1, adds a bias, applies ReLU and takes maxima.

  A maximum that several numbers of a square have shares its derivative out to
  them equally, as that of ``jnp.max``.

  Args:
    x: [B, H, W, c].
    kernel: [k, k, c, d].
    bias: [d].
    padding: of ``convolve``, whose result has H' rows and W' columns.
    size: s, rows and columns of the squares of which maxima are taken;
      incomplete squares are dropped. 1: there are no maxima.

  Returns:
    [B, H' // s, W' // s, d].
  """
  return pool_squares(nn.relu(convolve(x, kernel, padding) + _along_last(bias)), size)


def _along_last(bias: Array) -> Array:
  return bias.reshape(1, 1, 1, -1)


def pool_squares(x: Array, size: int) -> Array:
  """Takes the maxima of squares, [B, H, W, c] -> [B, H // size, W // size, c]."""
  return x if size == 1 else squares(x, size).max((2, 4))


def squares(x: Array, size: int) -> Array:
  """Parts images, [B, H, W, c] -> [B, H // size, size, W // size, size, c].

  On a CPU the gradients of nn.avg_pool and nn.max_pool take 3 times as long.

  Args:
    x: the images; incomplete squares are dropped.
    size: of a square.

  Returns:
    The parts.
  """
  batch, height, width, channels = x.shape
  rows, columns = height // size, width // size
  return x[:, : rows * size, : columns * size].reshape(
    batch, rows, size, columns, size, channels
  )


def patches(
  x: Array, size: int, padding: str, stride: int = 1, *, batch_last: bool = False
) -> Array:
  """Unfolds images into what each output of a convolution reads.

  Shifted slices are used because lax.conv_general_dilated_patches convolves
  with an identity, which is slow on a CPU.

  Args:
    x: [B, H, W, c]; [c, H, W, B] if the batch is last.
    size: k, rows and columns of a kernel.
    padding: of ``convolve``.
    stride: of ``convolve``.
    batch_last: whether the batch is the last axis, and what is read the first.

  Returns:
    [B, H', W', k * k * c] or [k * k * c, H', W', B], H' and W' as in the result
    of ``convolve``, in the order of a kernel's first three axes.
  """
  if padding == "SAME":
    x = jnp.pad(x, ((0, 0), around(size), around(size), (0, 0)))
  batch, read = x.shape[3], 0 if batch_last else 3
  for axis in (2, 1):
    last = x.shape[axis] - size
    x = jnp.concatenate(
      [
        lax.slice_in_dim(x, i, i + last - last % stride + 1, stride, axis)
        for i in range(size)
      ],
      read,
    )
    if batch_last:  # XLA copies a row as a whole, and its pixels one by one
      x = x.reshape(*x.shape[:2], -1)
  return x.reshape(*x.shape[:2], -1, batch) if batch_last else x


def around(size: int) -> tuple[int, int]:
  """The rows of zeros before and after an image, padding SAME."""
  return (size - 1) // 2, size // 2


def by_xla(x: Array, kernel: Array, padding: str, stride: int) -> Array:
  """``convolve`` as XLA differentiates it."""
  zeros = [around(kernel.shape[0]) if padding == "SAME" else (0, 0)] * 2
  return lax.conv_general_dilated(
    x, kernel, (stride, stride), zeros, dimension_numbers=LAYOUT
  )


def _differentiate(
  on_cpu: str, by_xla: Callable[..., Array], *args: Any
) -> tuple[Array, Array]:
  """A value and its change, by platform.

  Args:
    on_cpu: name in ``extras.convolution`` of the function on a CPU.
    by_xla: the function elsewhere, and everywhere without that extra.
    *args: what is not differentiated, the primals, their tangents.
  """
  *fixed, primals, tangents = args
  # A frozen kernel or bias does not change, nor do the images of a first layer.
  moves = [not isinstance(tangent, SymbolicZero) for tangent in tangents]
  tangents = tuple(itertools.compress(tangents, moves))

  def of(way: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
    def differentiate(
      primals: tuple[Array, ...], tangents: tuple[Array, ...]
    ) -> tuple[Array, Array]:
      def of_moving(*moving: Array) -> Array:
        values = iter(moving)
        arrays = (
          next(values) if is_moving else x for x, is_moving in zip(primals, moves)
        )
        return way(*arrays, *fixed)

      return jax.jvp(of_moving, tuple(itertools.compress(primals, moves)), tangents)

    return differentiate

  extra = optional.find_extra("convolution")
  if extra is None:
    return of(by_xla)(primals, tangents)
  result: tuple[Array, Array] = lax.platform_dependent(
    primals, tangents, cpu=of(getattr(extra, on_cpu)), default=of(by_xla)
  )
  return result


convolve.defjvp(
  functools.partial(_differentiate, "convolve_on_cpu", by_xla), symbolic_zeros=True
)
convolve_and_pool.defjvp(
  functools.partial(
    _differentiate,
    "convolve_and_pool_on_cpu",
    lambda x, kernel, bias, padding, size: pool_squares(
      nn.relu(by_xla(x, kernel, padding, 1) + _along_last(bias)), size
    ),
  ),
  symbolic_zeros=True,
)
