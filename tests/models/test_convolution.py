"""Tests of models/convolution.py against NumPy loops and XLA."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.models import convolution
from tests.reference import analytic as oracle

CASES = [
  (1, "SAME", 1),
  (2, "SAME", 1),
  (3, "SAME", 1),
  (3, "VALID", 1),
  (4, "VALID", 1),
  (1, "SAME", 2),
  (3, "SAME", 2),
  (3, "VALID", 3),
]


def make_arrays(size, seed=0):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(3, 6, 5, 2)).astype(np.float32)
  kernel = rng.normal(size=(size, size, 2, 4)).astype(np.float32)
  return x, kernel


def _by_hand(x, kernel, padding, stride=1):
  """The definition by the oracle's patches, in float64."""
  size, (count, height, width, _) = kernel.shape[0], x.shape
  out = oracle.im2col(x, size) @ np.float64(kernel).reshape(-1, kernel.shape[3])
  out = out.reshape(count, height, width, -1)
  if padding == "VALID":
    low, high = (size - 1) // 2, size // 2
    out = out[:, low : height - high, low : width - high]
  return out[:, ::stride, ::stride]


def by_xla(x, kernel, padding):
  return lax.conv_general_dilated(
    x, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
  )


@pytest.mark.parametrize("size,padding,stride", CASES)
def test_value_and_derivatives(size, padding, stride):
  """Value by hand; the gradient of <c, conv> in the arguments, each linear."""
  x, kernel = make_arrays(size)
  want = _by_hand(x, kernel, padding, stride)
  weight = np.random.default_rng(1).normal(size=want.shape)

  def inner(x, kernel):
    out = convolution.convolve(x, kernel, padding, stride)
    return (out * jnp.asarray(weight, jnp.float32)).sum(), out

  grads, out = jax.jit(jax.grad(inner, (0, 1), has_aux=True))(x, kernel)
  np.testing.assert_allclose(out, want, atol=2e-5)
  # <c, conv(x, k)> is linear in x and in k: its change along any direction is
  # its value there.
  other_x, other_kernel = make_arrays(size, seed=2)
  along_x = (weight * _by_hand(other_x, kernel, padding, stride)).sum()
  along_kernel = (weight * _by_hand(x, other_kernel, padding, stride)).sum()
  np.testing.assert_allclose((grads[0] * other_x).sum(), along_x, rtol=1e-4)
  np.testing.assert_allclose((grads[1] * other_kernel).sum(), along_kernel, rtol=1e-4)


def test_value_is_xlas():
  """Without a derivative the bits are those of XLA's convolution."""
  x, kernel = make_arrays(3)
  for padding in ("SAME", "VALID"):
    np.testing.assert_array_equal(
      jax.jit(convolution.convolve, static_argnums=2)(x, kernel, padding),
      jax.jit(by_xla, static_argnums=2)(x, kernel, padding),
    )


@pytest.mark.parametrize("size,padding", [(2, "SAME"), (3, "VALID")])
def test_forward_second_and_mapped_derivatives(size, padding):
  """Forward mode, forward over reverse and kernels of several clients."""
  kernels = np.stack([make_arrays(size, seed)[1] for seed in range(3)])
  x, _ = make_arrays(size)

  def everything(way):

    def loss(kernel):
      return jnp.sin(way(x, kernel, padding)).sum()

    def of(kernel, direction):
      return jax.jvp(jax.value_and_grad(loss), (kernel,), (direction,))

    return jax.jit(jax.vmap(of))(kernels, kernels[::-1])

  got, want = everything(convolution.convolve), everything(by_xla)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, want
  )


def test_patches_are_what_an_output_reads():
  """Rows of patches, in the order of the kernel's axes."""
  x, _ = make_arrays(1)
  patches = jax.jit(
    convolution.patches, static_argnames=("size", "padding", "batch_last")
  )
  rows = np.asarray(patches(x, 3, "VALID"))
  np.testing.assert_array_equal(rows[1, 2, 1], x[1, 2:5, 1:4].reshape(-1))
  np.testing.assert_array_equal(
    patches(x.transpose(3, 1, 2, 0), 3, "VALID", batch_last=True),
    rows.transpose(3, 1, 2, 0),
  )
  padded = np.asarray(patches(x, 2, "SAME"))
  assert padded.shape == (3, 6, 5, 8)
  corner = np.zeros((2, 2, 2), np.float32)
  corner[0, 0] = x[0, 5, 4]
  np.testing.assert_array_equal(padded[0, 5, 4], corner.reshape(-1))
