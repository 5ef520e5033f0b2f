"""Convolutions that are fast to differentiate on a CPU.

Inside a loop, such as that over local steps, XLA's derivatives of a convolution
on a CPU are 6 to 60 times as slow as the matrix products that they are. So
there the convolution and its derivatives are products of patches and kernel
wherever a derivative is taken. The value alone is always XLA's convolution,
which needs no memory for patches, and on a GPU or TPU so is everything else.
"""

from collections.abc import Callable
import functools

import jax
from jax import lax
import jax.numpy as jnp

from fedjax_alg.base import Array

#: Layouts of the images, the kernels and the result.
_LAYOUT = ("NHWC", "HWIO", "NHWC")


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
  return _by_xla(x, kernel, padding, stride)


def patches(
  x: Array, size: int, padding: str, stride: int = 1, *, first: bool = False
) -> Array:
  """Unfolds images into what each output of a convolution reads.

  Shifted slices are used because lax.conv_general_dilated_patches convolves
  with an identity, which is slow on a CPU.

  Args:
    x: [B, H, W, c].
    size: k, rows and columns of a kernel.
    padding: of ``convolve``.
    stride: of ``convolve``.
    first: whether the axis of what is read comes first.

  Returns:
    [B, H', W', k * k * c] or [k * k * c, B, H', W'], H' and W' as in the result
    of ``convolve``, in the order of a kernel's first three axes.
  """
  if padding == "SAME":
    x = jnp.pad(x, ((0, 0), _around(size), _around(size), (0, 0)))
  rows, columns, read = (2, 3, 0) if first else (1, 2, 3)
  if first:
    x = jnp.moveaxis(x, 3, 0)
  for axis in (columns, rows):
    last = x.shape[axis] - size
    x = jnp.concatenate(
      [
        lax.slice_in_dim(x, i, i + last - last % stride + 1, stride, axis)
        for i in range(size)
      ],
      read,
    )
  return x


def _around(size: int) -> tuple[int, int]:
  """The rows of zeros before and after an image, padding SAME."""
  return (size - 1) // 2, size // 2


def _by_xla(x: Array, kernel: Array, padding: str, stride: int) -> Array:
  around = [_around(kernel.shape[0]) if padding == "SAME" else (0, 0)] * 2
  return lax.conv_general_dilated(
    x, kernel, (stride, stride), around, dimension_numbers=_LAYOUT
  )


def _by_product(x: Array, kernel: Array, padding: str, stride: int) -> Array:
  size, width = kernel.shape[0], kernel.shape[3]
  # A product [d, k k c] @ [k k c, B H W]: its long axis is the last one, where
  # rows of a few channels would be 2 to 3 times as slow.
  read = patches(x, size, padding, stride, first=True)
  out = kernel.reshape(-1, width).T @ read.reshape(read.shape[0], -1)
  return jnp.moveaxis(out.reshape(width, *read.shape[1:]), 0, 3)


@convolve.defjvp
def _differentiate(
  padding: str, stride: int, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:

  def of(way: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
    return lambda primals, tangents: jax.jvp(
      lambda x, kernel: way(x, kernel, padding, stride), primals, tangents
    )

  result: tuple[Array, Array] = lax.platform_dependent(
    primals, tangents, cpu=of(_by_product), default=of(_by_xla)
  )
  return result
