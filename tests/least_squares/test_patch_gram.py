"""X'X of patches by offsets is that of the unfolded matrix."""

import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import base
from fedjax_alg.least_squares import moments, patch_gram
from fedjax_alg.models import layers
from tests.reference import analytic as oracle


@functools.partial(jax.jit, static_argnums=(1, 2))
def by_offsets(x, kernel, blocks=1):
  sums = patch_gram.zero_products(kernel, x.shape[-1], x.dtype)
  for block in jnp.array_split(x, blocks):
    sums = patch_gram.add_examples(sums, block, x.dtype)
  return patch_gram.patches_gram(sums)


@pytest.mark.program
@settings(max_examples=15)  # each compiles programs of its own
@given(
  kernel=st.integers(1, 5),
  margins=st.tuples(st.integers(0, 4), st.integers(0, 4)),
  channels=st.integers(1, 3),
  batch=st.integers(1, 4),
  seed=st.integers(0, 99),
)
def test_is_that_of_the_unfolded_matrix(kernel, margins, channels, batch, seed):
  """NumPy's patches; kernels of even size, images as small as the kernel."""
  x = np.random.default_rng(seed).standard_normal(
    (batch, kernel + margins[0], kernel + margins[1], channels)
  )
  rows = oracle.unfold(x, kernel).reshape(-1, kernel * kernel * channels)
  with jax.enable_x64(True):
    actual = by_offsets(x, kernel, min(batch, 2))
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, rows.T @ rows, atol=1e-11)


@pytest.mark.parametrize("kernel", [3, 5])
def test_needs_a_fraction_of_the_products(kernel):
  """Counted in the compiled program: at least half of the products go."""
  view = layers.layer_views(layers.parse_layers([f"conv{kernel}-4"]), 2, (16, 16, 8))[0]
  x = jnp.ones((4, 16, 16, 8))

  def flops(fn):
    return jax.jit(fn).lower(x).compile().cost_analysis()["flops"]

  def unfold(x):
    rows = view.unfold(x).reshape(-1, view.fan_in)
    return rows.T @ rows

  assert flops(
    lambda x: patch_gram.add_examples(
      patch_gram.zero_products(kernel, 8, x.dtype), x, x.dtype
    )
  ) < 0.5 * flops(unfold)


def views(*shape):
  return layers.layer_views(layers.parse_layers(["conv3-4"]), 2, shape)


def test_block_rows_bound_what_is_unfolded():
  few, _ = views(32, 32, 16)
  many, dense = views(32, 32, 64)
  assert patch_gram.pays(many) and not patch_gram.pays(few)
  assert not patch_gram.pays(dense)
  assert moments.block_rows(many) == 2**22 // (13 * 32 * 32 * 64)
  assert moments.block_rows(few) == 2**22 // (9 * 32 * 32 * 16)


@pytest.mark.program
@pytest.mark.parametrize("rows", [None, 2])
def test_sums_of_a_client_are_those_of_the_oracle(rows):
  """With 64 channels, in blocks, after other clients' sums."""
  layer, _ = views(6, 5, 64)
  rng = np.random.default_rng(0)
  x, y = rng.standard_normal((9, 6, 5, 64)), rng.integers(0, 2, 9)
  shard = base.Shard(
    *map(
      jnp.asarray,
      (
        np.concatenate([x, np.ones((512, 6, 5, 64))]).astype(np.float32),
        np.concatenate([y, np.zeros(512)]).astype(np.int32),
      ),
    ),
    offset=jnp.int32(2),
    size=jnp.int32(7),
  )

  @jax.jit
  def sums(shard):
    start = moments.zero_moments(layer, 2, jnp.dtype("float64"))
    start = start._replace(gram=start.gram + 1.0)
    return moments.add_shard(
      start, layer, {"params": {}}, shard, jnp.dtype("float64"), rows
    )

  with jax.enable_x64(True):
    actual = sums(shard)
  x = x.astype(np.float32).astype(float)[2:]
  expected = oracle.statistics(x, y[2:], 2, 3)
  for ours, theirs in zip(actual, (expected[0] + 1.0, *expected[1:])):
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)
