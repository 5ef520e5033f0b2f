"""Tests of extras/convolution.py through models/convolution.py, against XLA."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.extras import convolution as extra
from fedjax_alg.models import convolution
from tests.models.test_convolution import CASES, by_xla, make_arrays


@pytest.mark.parametrize(
  "platform,convolutions,products", [("cpu", 0, 3), ("cuda", 3, 0), ("tpu", 3, 0)]
)
def test_platforms(platform, convolutions, products):
  """Products of patches on a CPU, XLA's convolutions elsewhere."""
  x, kernel = make_arrays(3)
  traced = jax.jit(
    jax.grad(
      lambda x, kernel: jnp.sin(convolution.convolve(x, kernel, "SAME")).sum(), (0, 1)
    )
  ).trace(x, kernel)
  text = traced.lower(lowering_platforms=(platform,)).as_text()
  assert text.count("stablehlo.convolution") == convolutions
  assert text.count("stablehlo.dot_general") == products


def _all_derivatives(way, arrays, directions):
  """Value, gradient, forward mode, and forward over reverse."""

  def loss(*arrays):
    return jnp.sin(way(*arrays)).sum()

  every = tuple(range(len(arrays)))

  def of(arrays, directions):
    slope, curved = jax.jvp(jax.grad(loss, every), arrays, directions)
    return jax.jvp(way, arrays, directions), slope, curved

  return jax.jit(of)(arrays, directions)


def _many_channels(size, seed, dtype):
  rng = np.random.default_rng(seed)
  shapes = (3, 6, 5, extra.WIDE), (size, size, extra.WIDE, 4)
  return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


@pytest.mark.parametrize("dtype,tolerance", [("float64", 1e-10), ("float32", 2e-3)])
@pytest.mark.parametrize("size,padding,stride", CASES)
def test_many_channels_have_xlas_derivatives(size, padding, stride, dtype, tolerance):
  """All derivatives are those of XLA's convolution, of any mode and order."""
  around = [((size - 1) // 2, size // 2) if padding == "SAME" else (0, 0)] * 2
  with jax.enable_x64(True):
    arrays, directions = (_many_channels(size, seed, dtype) for seed in range(2))
    assert extra.is_wide(arrays[1])
    got, want = (
      _all_derivatives(way, arrays, directions)
      for way in (
        lambda x, kernel: convolution.convolve(x, kernel, padding, stride),
        lambda x, kernel: lax.conv_general_dilated(
          x,
          kernel,
          (stride, stride),
          around,
          dimension_numbers=("NHWC", "HWIO", "NHWC"),
        ),
      )
    )
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, tolerance, tolerance), got, want
    )


@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_of_many_channels_are_in_the_fast_layout(order):
  """One layout at any order; with it lost a step takes 10 times as long."""
  x, kernel = _many_channels(3, 0, "float32")

  def loss(x, kernel):
    return jnp.sin(convolution.convolve(x, kernel, "SAME")).sum()

  slope = jax.grad(loss, (0, 1))
  way = slope if order == 1 else lambda *a: jax.jvp(slope, a, a)[1]
  text = jax.jit(way).trace(x, kernel).lower(lowering_platforms=("cpu",)).as_text()
  layout = "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
  assert text.count(layout) == text.count("stablehlo.convolution") >= 3
  assert "stablehlo.dot_general" not in text


@pytest.mark.parametrize("padding,stride", [("SAME", 2), ("VALID", 1)])
def test_many_channels_of_several_clients(padding, stride):
  """Mapped kernels are products, not grouped convolutions, with equal results."""
  x, _ = _many_channels(3, 0, "float32")
  kernels = jnp.stack([_many_channels(3, seed, "float32")[1] for seed in range(3)])

  def of(kernel):
    return jax.grad(
      lambda x, kernel: jnp.sin(convolution.convolve(x, kernel, padding, stride)).sum(),
      (0, 1),
    )(x, kernel)

  mapped = jax.jit(jax.vmap(of))
  assert "stablehlo.convolution" not in mapped.lower(kernels).as_text()
  got, want = (
    mapped(kernels),
    jax.jit(lambda kernels: jax.lax.map(of, kernels))(kernels),
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, want
  )


def test_few_bits_are_products():
  """XLA has no fast convolution of bfloat16."""
  assert not extra.is_wide(_many_channels(3, 0, "bfloat16")[1])


@pytest.mark.parametrize(
  "inputs,outputs,padding,size,masks",
  [
    (2, 4, "SAME", 2, True),
    (2, 4, "SAME", 2, False),
    (2, 4, "VALID", 3, False),
    (2, 4, "SAME", 1, True),
    (2, 6, "SAME", 2, True),  # channels are the last axis of the product
    (2, 6, "VALID", 3, False),
    (extra.WIDE, 4, "SAME", 2, True),
    (extra.WIDE, 4, "VALID", 3, False),
    (extra.WIDE, 4, "SAME", 1, True),
  ],
)
def test_maxima_of_convolutions(inputs, outputs, padding, size, masks, monkeypatch):
  """All derivatives of the layer on both CPUs; those that tie share theirs equally."""
  monkeypatch.setattr(extra, "has_masks", lambda: masks)
  with jax.enable_x64(True):
    rng = np.random.default_rng(3)
    shapes = (3, 8, 7, inputs), (3, 3, inputs, outputs), (outputs,)
    # Small whole numbers and images with an even half: many squares tie.
    arrays = [rng.integers(-1, 2, shape).astype(float) for shape in shapes]
    arrays[0][:, 4:] = 1
    arrays[2] += 0.5
    directions = tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)
    arrays = tuple(map(jnp.asarray, arrays))
    assert extra.is_batch_last(*arrays[:2]) == (outputs == 4)

    def written_out(x, kernel, bias):
      out = jnp.maximum(by_xla(x, kernel, padding) + bias.reshape(1, 1, 1, -1), 0)
      rows, columns = (length // size for length in out.shape[1:3])
      out = out[:, : rows * size, : columns * size]
      return out.reshape(3, rows, size, columns, size, outputs).max((2, 4))

    got, want = (
      _all_derivatives(way, arrays, directions)
      for way in (
        lambda *arrays: convolution.convolve_and_pool(*arrays, padding, size),
        written_out,
      )
    )
    assert size == 1 or (np.asarray(want[0][0]) > 0).any()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-10, 1e-10), got, want)


def test_many_channels_under_a_checking_shard_map():
  """A derivative where shard_map checks what varies over the mesh."""
  x, kernel = _many_channels(3, 0, "float32")

  def slope(kernel, x):
    return jax.grad(
      lambda kernel: jnp.sin(convolution.convolve(x, kernel, "SAME")).sum()
    )(kernel)

  mesh = jax.make_mesh((1,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
  spec = jax.sharding.PartitionSpec
  mapped = jax.shard_map(
    lambda kernel, x: jax.lax.pmean(slope(kernel, x), "clients"),
    mesh=mesh,
    in_specs=(spec(), spec("clients")),
    out_specs=spec(),
  )
  np.testing.assert_allclose(
    jax.jit(mapped)(kernel, x), jax.jit(slope)(kernel, x), rtol=1e-4, atol=1e-4
  )
