"""Messages as bytes: how long they are, and what their receiver has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.base import SEED_BYTES
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.exchange import messages
from fedjax_alg.exchange.messages import Numbers, from_bytes, to_bytes
from tests.exchange.test_compression import KEY, TREE, compress, flat, make


@pytest.mark.parametrize(
  "numbers", [Numbers(40), Numbers(40, True), Numbers(7, True), Numbers(1), None]
)
def test_a_tree_is_read_as_it_was_written(numbers):
  """Numbers below 7 that ascend are shorter as marks."""
  below = numbers.below if numbers else 2**31 - 1
  tree = {
    "key": jax.random.key(3),
    "float": np.float32([[-0.0, np.nan], [1, 2]]),
    "flag": np.bool_(True),
    "flags": np.arange(11).reshape(1, 11) % 3 == 0,
    "numbers": np.int32([i for i in (0, 2, 3, 6, 30, 39) if i < below]),
    "words": np.uint32([2**32 - 1]),
    "none": None,
  }
  line = jax.jit(lambda tree: to_bytes(tree, numbers))(tree)
  shapes = jax.eval_shape(lambda: tree)
  actual = jax.jit(lambda line: from_bytes(line, shapes, numbers))(line)
  for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(tree), strict=True):
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(
      *(
        jax.random.key_data(leaf)
        if leaf is actual["key"] or (leaf is tree["key"])
        else np.asarray(leaf)
        for leaf in (ours, theirs)
      )
    )
  count = tree["numbers"].size
  bits = {40: 6 * count, 7: 7, 1: 1}[below] if numbers else 32 * count
  assert line.dtype == jnp.uint8
  # The key, four floats, a word; twelve flags.
  assert line.size == 8 + 16 + 4 + 2 + -(-bits // 8)


@pytest.mark.parametrize(
  "text, seed_bytes",
  [
    ("topk:0.01", 0),
    ("topk:0.5", 0),
    ("qsgd:2", 0),
    ("qsgd:7", 0),
    ("sign", 0),
    ("powersgd:2", 0),
    ("randk:0.1", SEED_BYTES),
  ],
)
def test_a_receiver_has_what_is_decoded_by_the_bytes_that_are_counted(text, seed_bytes):
  """It has the bytes and the key; of randk's seed the ledger counts as well."""
  compressor = make(text)
  other_tree = jax.tree.map(jnp.ones_like, TREE)

  def send(tree, received):
    lines = []

    def carry(parts, numbers):
      lines.append(to_bytes(parts, numbers))
      return (
        parts
        if received is None
        else from_bytes(received[len(lines) - 1], parts, numbers)
      )

    decoded, _ = compressor.sender(carry)(tree, compressor.init(tree), KEY)
    return lines, decoded

  lines, decoded = jax.jit(lambda tree: send(tree, None))(TREE)
  from_lines = jax.jit(lambda tree, lines: send(tree, lines)[1])(other_tree, lines)
  assert sum(line.size for line in lines) + seed_bytes == compressor.nbytes(TREE)
  np.testing.assert_array_equal(flat(from_lines), flat(decoded))
  np.testing.assert_allclose(flat(decoded), flat(compress(text)[1]), atol=1e-5)


def test_a_simulation_makes_no_message():
  parts = object()
  assert messages.carry(None, parts) is parts
  compressor = make("qsgd:4")
  assert compressor.sender(None) is compressor.send and ClientMap().carrier is None
