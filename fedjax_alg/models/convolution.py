"""Convolutions that are fast to differentiate on a CPU.

Inside a loop, such as that over local steps, XLA's derivatives of a convolution
on a CPU are 6 to 60 times as slow as the matrix products that they are. So
there the convolution and its derivatives are products of patches and kernel
wherever a derivative is taken. The value alone is always XLA's convolution,
which needs no memory for patches, and on a GPU or TPU so is everything else.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from fedjax_alg.base import Array

#: Layouts of the images, the kernels and the result.
_LAYOUT = ("NHWC", "HWIO", "NHWC")


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def convolve(x: Array, kernel: Array, padding: str) -> Array:
  """Convolves images with square kernels, stride 1.

  Args:
    x: [B, H, W, c].
    kernel: [k, k, c, d].
    padding: ``SAME`` keeps the size: (k - 1) // 2 zero rows and columns before
      the image and k // 2 after it. ``VALID`` has none.

  Returns:
    [B, H, W, d], or [B, H - k + 1, W - k + 1, d] without padding.
  """
  return _by_xla(x, kernel, padding)


def patches(
    x: Array, size: int, padding: str, *, first: bool = False
) -> Array:
  """Unfolds images into what each output of a convolution reads.

  Shifted slices are used because lax.conv_general_dilated_patches convolves
  with an identity, which is slow on a CPU.

  Args:
    x: [B, H, W, c].
    size: k, rows and columns of a kernel.
    padding: of ``convolve``.
    first: whether the axis of what is read comes first.

  Returns:
    [B, H', W', k * k * c] or [k * k * c, B, H', W'], H' and W' as in the result
    of ``convolve``, in the order of a kernel's first three axes.
  """
  if padding == "SAME":
    around = ((size - 1) // 2, size // 2)
    x = jnp.pad(x, ((0, 0), around, around, (0, 0)))
  rows, columns, read = (2, 3, 0) if first else (1, 2, 3)
  if first:
    x = jnp.moveaxis(x, 3, 0)
  for axis in (columns, rows):
    length = x.shape[axis] - size + 1
    x = jnp.concatenate(
        [lax.slice_in_dim(x, i, i + length, axis=axis) for i in range(size)],
        read)
  return x


def _by_xla(x: Array, kernel: Array, padding: str) -> Array:
  return lax.conv_general_dilated(
      x, kernel, (1, 1), padding, dimension_numbers=_LAYOUT)


def _by_product(x: Array, kernel: Array, padding: str) -> Array:
  size, width = kernel.shape[0], kernel.shape[3]
  # A product [d, k k c] @ [k k c, B H W]: its long axis is the last one, where
  # rows of a few channels would be 2 to 3 times as slow.
  read = patches(x, size, padding, first=True)
  out = kernel.reshape(-1, width).T @ read.reshape(read.shape[0], -1)
  return jnp.moveaxis(out.reshape(width, *read.shape[1:]), 0, 3)


@convolve.defjvp
def _differentiate(
    padding: str, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:

  def of(way: Callable[..., Array]) -> Any:
    return lambda primals, tangents: jax.jvp(
        lambda x, kernel: way(x, kernel, padding), primals, tangents)

  return lax.platform_dependent(
      primals, tangents, cpu=of(_by_product), default=of(_by_xla))
