"""Convolutions that are fast to differentiate on a CPU.

Inside a loop, such as that over local steps, XLA's derivatives of a convolution
on a CPU are 6 to 60 times as slow as the arithmetic in them. So wherever
``models.convolution`` takes a derivative there, another way is chosen by the shape
(``is_wide``):

- many channels: the three products of a step are convolutions in the one layout
  for which XLA has a fast kernel. Without padding, that for the images is a matrix
  product, because the convolution would multiply zeros;
- few: they are products of patches and kernel. The images of a batch are the last
  axis, so that all that is copied is contiguous, unless they are few and the
  channels of the output many.

``python -m benchmarks.convolutions`` times the ways.
"""

from collections.abc import Callable
import functools
import pathlib
from typing import Any

from flax import linen as nn
import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
import jax.numpy as jnp

from fedjax_alg.base import Array
from fedjax_alg.models import convolution

#: Input channels from which on convolutions are faster than products.
WIDE = 8

#: Numbers in a vector of a CPU. So many images or more are the last axis of products.
VECTOR = 16


def is_wide(kernel: Array) -> bool:
  """Whether the derivatives on a CPU are convolutions and not products.

  XLA's fast kernel is for float32 and float64, and it multiplies the channels
  of a few pixels at a time, so that with few of them it has little to do.

  Args:
    kernel: [k, k, c, d].
  """
  return kernel.shape[2] >= WIDE and kernel.dtype in (jnp.float32, jnp.float64)


def is_batch_last(x: Array, kernel: Array) -> bool:
  """Whether the images are the last axis of a product, and not the channels.

  Args:
    x: [B, H, W, c].
    kernel: [k, k, c, d].
  """
  images = x.shape[0]
  return images >= VECTOR or kernel.shape[3] < 2 * images


# Few channels: products. Two layers of [c, H, W, B] one after the other have
# nothing to transpose between them: XLA drops what is transposed and back.


def _batch_last(x: Array) -> Array:
  return x.transpose(3, 1, 2, 0)


@jax.custom_jvp
def _multiply(kernel: Array, read: Array) -> Array:
  """[r, d], [r, n] -> [d, n].

  XLA would make one product of the transposition and this one, for which it
  has no fast kernel. The derivatives are products of what lies as it is.
  """
  result: Array = lax.optimization_barrier(kernel.T) @ read
  return result


@_multiply.defjvp
def _differentiate_multiply(
  primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
  (kernel, read), (d_kernel, d_read) = primals, tangents
  return _multiply(kernel, read), d_kernel.T @ read + kernel.T @ d_read


def _multiply_patches(x: Array, kernel: Array, padding: str, stride: int) -> Array:
  """[c, H, W, B] -> [d, H', W', B]."""
  size, width = kernel.shape[0], kernel.shape[3]
  read = convolution.patches(x, size, padding, stride, batch_last=True)
  out = _multiply(kernel.reshape(-1, width), read.reshape(read.shape[0], -1))
  return out.reshape(width, *read.shape[1:])


def _multiply_channels_last(
  x: Array, kernel: Array, padding: str, stride: int
) -> Array:
  """[B, H, W, c] -> [B, H', W', d]."""
  read = convolution.patches(x, kernel.shape[0], padding, stride)
  out = read.reshape(-1, read.shape[3]) @ kernel.reshape(-1, kernel.shape[3])
  return out.reshape(*read.shape[:3], -1)


def _by_product(x: Array, kernel: Array, padding: str, stride: int) -> Array:
  if not is_batch_last(x, kernel):
    return _multiply_channels_last(x, kernel, padding, stride)
  return _batch_last(_multiply_patches(_batch_last(x), kernel, padding, stride))


# Many channels: three bilinear maps, each the transpose of the others. They are
# primitives because only so are all their derivatives, of any order and mode,
# these same three. Several kernels at once (vmap) would make grouped
# convolutions, which take minutes; so there they are products.


def _images(
  g: Array,
  kernel: Array,
  *,
  image: tuple[int, int],
  size: int,
  padding: str,
  stride: int,
) -> Array:
  """The transpose of a convolution in its images, [B, H', W', d] -> [B, H, W, c]."""
  if stride > 1:  # as one convolution it would mostly multiply zeros
    return _images_by_phases(g, kernel, image, padding, stride)
  if padding == "VALID":  # as a convolution it would multiply zeros around g
    return _images_by_sums(g, kernel, image)
  before = size - 1 - convolution.around(size)[0]
  return lax.conv_general_dilated(
    g,
    kernel[::-1, ::-1].swapaxes(2, 3),
    (1, 1),
    [(before, size - 1 - before)] * 2,
    dimension_numbers=convolution.LAYOUT,
  )


def _images_by_sums(g: Array, kernel: Array, image: tuple[int, int]) -> Array:
  """``_images`` without padding: a product, and sums of patches that overlap."""
  size, _, inputs, outputs = kernel.shape
  read = g.reshape(-1, outputs) @ kernel.reshape(-1, outputs).T
  images = jax.ShapeDtypeStruct((g.shape[0], *image, inputs), g.dtype)
  out: Array
  (out,) = jax.linear_transpose(
    lambda x: convolution.patches(x, size, "VALID"), images
  )(read.reshape(*g.shape[:3], -1))
  return out


def _images_by_phases(
  g: Array, kernel: Array, image: tuple[int, int], padding: str, stride: int
) -> Array:
  """``_images`` with a stride s, s x s convolutions of parts of the kernel.

  Every s-th row of the images, from row a on, is read by every s-th row of the
  kernel alone, and so are the columns.
  """
  size = kernel.shape[0]
  before = convolution.around(size)[0] if padding == "SAME" else 0

  def phase(a: int, length: int, out: int) -> tuple[int, int, tuple[int, int]]:
    """The first row of the kernel, how many, and the zeros around ``g``."""
    shift, first = divmod(a + before, stride)
    number = -(-max(0, size - first) // stride)
    low = number - 1 - shift
    return first, number, (low, length - out - low + number - 1)

  # All phases have as many rows; those after the image are dropped.
  rows, columns = (-(-side // stride) for side in image)
  parts = []
  for a in range(stride):
    top, heights, above = phase(a, rows, g.shape[1])
    line = []
    for b in range(stride):
      left, widths, aside = phase(b, columns, g.shape[2])
      if not (heights and widths):
        shape = (g.shape[0], rows, columns, kernel.shape[2])
        line.append(jnp.zeros(shape, g.dtype))
        continue
      part = kernel[top::stride, left::stride][::-1, ::-1].swapaxes(2, 3)
      line.append(
        lax.conv_general_dilated(
          g, part, (1, 1), (above, aside), dimension_numbers=convolution.LAYOUT
        )
      )
    parts.append(jnp.stack(line, 3))
  out = jnp.stack(parts, 2).reshape(
    g.shape[0], rows * stride, columns * stride, kernel.shape[2]
  )
  return out[:, : image[0], : image[1]]


def _kernel(
  x: Array, g: Array, *, image: tuple[int, int], size: int, padding: str, stride: int
) -> Array:
  """Its transpose in the kernel, [B, H, W, c], [B, H', W', d] -> [k, k, c, d]."""
  before = convolution.around(size)[0] if padding == "SAME" else 0
  after = [
    (out - 1) * stride + size - length - before
    for length, out in zip(image, g.shape[1:3])
  ]
  # Rows and columns that no output reads are left out.
  rows, columns = (length + min(0, more) for length, more in zip(image, after))
  out = lax.conv_general_dilated(
    _batch_last(x[:, :rows, :columns]),
    g.transpose(1, 2, 0, 3),
    (1, 1),
    [(before, max(0, more)) for more in after],
    rhs_dilation=(stride, stride),
    dimension_numbers=convolution.LAYOUT,
  )
  return out.transpose(1, 2, 0, 3)


def _output(
  x: Array,
  kernel: Array,
  *,
  image: tuple[int, int],
  size: int,
  padding: str,
  stride: int,
) -> Array:
  """The convolution itself."""
  return convolution.by_xla(x, kernel, padding, stride)


def _bilinear(
  name: str, way: Callable[..., Array], by_product: Callable[..., Array]
) -> Primitive:
  """Makes a primitive of two arrays, without its derivatives.

  Args:
    name: of the primitive.
    way: what it computes.
    by_product: the same for several pairs at once.
  """
  primitive = Primitive(name)

  def shape(*arrays: Any, **shapes: Any) -> Any:
    out = jax.eval_shape(
      functools.partial(way, **shapes),
      *(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays),
    )
    return jax.core.ShapedArray(out.shape, out.dtype)

  def batch(arrays: Any, axes: Any, **shapes: Any) -> Any:
    return jax.vmap(functools.partial(by_product, **shapes), axes)(*arrays), 0

  primitive.def_abstract_eval(shape)
  primitive.def_impl(
    lambda *arrays, **shapes: jax.jit(functools.partial(way, **shapes))(*arrays)
  )
  mlir.register_lowering(primitive, mlir.lower_fun(way, multiple_results=False))
  batching.primitive_batchers[primitive] = batch
  return primitive


def _output_by_product(x: Array, kernel: Array, **shapes: Any) -> Array:
  return _by_product(x, kernel, shapes["padding"], shapes["stride"])


def _images_by_product(g: Array, kernel: Array, **shapes: Any) -> Array:
  images = jax.ShapeDtypeStruct(
    (g.shape[0], *shapes["image"], kernel.shape[2]), g.dtype
  )
  out: Array
  (out,) = jax.linear_transpose(
    lambda x: _output_by_product(x, kernel, **shapes), images
  )(g)
  return out


def _kernel_by_product(x: Array, g: Array, **shapes: Any) -> Array:
  kernel = jax.ShapeDtypeStruct(
    (shapes["size"], shapes["size"], x.shape[3], g.shape[3]), g.dtype
  )
  out: Array
  (out,) = jax.linear_transpose(
    lambda kernel: _output_by_product(x, kernel, **shapes), kernel
  )(g)
  return out


_output_p = _bilinear("convolve", _output, _output_by_product)
_images_p = _bilinear("convolve_images", _images, _images_by_product)
_kernel_p = _bilinear("convolve_kernel", _kernel, _kernel_by_product)

ad.defbilinear(
  _output_p,
  lambda g, x, kernel, **shapes: _images_p.bind(g, kernel, **shapes),
  lambda g, x, kernel, **shapes: _kernel_p.bind(x, g, **shapes),
)
ad.defbilinear(
  _images_p,
  lambda x, g, kernel, **shapes: _output_p.bind(x, kernel, **shapes),
  lambda x, g, kernel, **shapes: _kernel_p.bind(x, g, **shapes),
)
ad.defbilinear(
  _kernel_p,
  lambda kernel, x, g, **shapes: _images_p.bind(g, kernel, **shapes),
  lambda kernel, x, g, **shapes: _output_p.bind(x, kernel, **shapes),
)


def _by_convolutions(x: Array, kernel: Array, padding: str, stride: int) -> Array:
  result: Array = _output_p.bind(
    x,
    kernel,
    image=x.shape[1:3],
    size=kernel.shape[0],
    padding=padding,
    stride=stride,
  )
  return result


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _pool(x: Array, size: int) -> Array:
  """The maxima of squares of the second and third axis.

  Shifted slices are compared in the order in which they lie; the derivative of
  a maximum over two axes is 2 to 4 times as slow.
  """
  return functools.reduce(jnp.maximum, _shifted(x, size))


@_pool.defjvp
def _differentiate_pool(
  size: int, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
  parts, changes = _shifted(primals[0], size), _shifted(tangents[0], size)
  out = _pool(primals[0], size)
  here = [(part == out).astype(out.dtype) for part in parts]
  change = sum(a * b for a, b in zip(changes, here))
  return out, change / functools.reduce(jnp.add, here)


def _shifted(x: Array, size: int) -> list[Array]:
  """The first, second, ... pixels of all squares, by the form fast on this CPU."""
  return (_by_slices if has_masks() else _by_splits)(x, size)


@functools.cache
def has_masks() -> bool:
  """Whether this CPU loads and stores parts of a vector (AVX-512)."""
  try:
    return "avx512" in pathlib.Path("/proc/cpuinfo").read_text("utf-8", "replace")
  except OSError:  # no Linux
    return False


def _by_slices(x: Array, size: int) -> list[Array]:
  """``_shifted`` with a transpose that adds up images with zeros between.

  With masks this is one loop. Without, it takes 25 times as long.
  """
  height, width = (length // size * size for length in x.shape[1:3])
  return [x[:, i:height:size, j:width:size] for i in range(size) for j in range(size)]


def _by_splits(x: Array, size: int) -> list[Array]:
  """``_shifted`` with a transpose that puts pixels and rows side by side."""
  first, height, width, last = x.shape
  rows, columns = height // size, width // size
  parts = x[:, : rows * size, : columns * size].reshape(
    first, rows, size, columns, size, last
  )
  ones = (1,) * size
  return [
    pixel.reshape(first, rows, columns, last)
    for line in lax.split(parts, ones, 2)
    for pixel in lax.split(line, ones, 4)
  ]


def _takes_convolutions(x: Array, kernel: Array) -> bool:
  """``is_wide``, unless shard_map checks over which axes of a mesh values vary.

  The primitives do not say that of their results; the library never checks it.
  """
  types = [getattr(jax.typeof(a), "manual_axis_type", None) for a in (x, kernel)]
  return is_wide(kernel) and not any(getattr(t, "varying", ()) for t in types)


def convolve_on_cpu(x: Array, kernel: Array, padding: str, stride: int) -> Array:
  """The function ``models.convolution.convolve``, with fast derivatives on a CPU."""
  way = _by_convolutions if _takes_convolutions(x, kernel) else _by_product
  return way(x, kernel, padding, stride)


def convolve_and_pool_on_cpu(
  x: Array, kernel: Array, bias: Array, padding: str, size: int
) -> Array:
  """``models.convolution.convolve_and_pool``, with fast derivatives on a CPU."""

  def after(out: Array) -> Array:  # ReLU of the maxima is the maxima of ReLU
    return nn.relu(out if size == 1 else _pool(out, size))

  if _takes_convolutions(x, kernel) or not is_batch_last(x, kernel):
    out = convolve_on_cpu(x, kernel, padding, 1)
    return after(out + bias.reshape(1, 1, 1, -1))
  out = _multiply_patches(_batch_last(x), kernel, padding, 1)
  return _batch_last(after(out + bias[:, None, None, None]))
