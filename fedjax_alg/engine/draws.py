"""Random keys and words that NumPy draws with the bits of ``jax.random``.

A start needs a few keys and, with simulated machines, a few numbers for each client.
Threefry is integer arithmetic, so NumPy gives the same words, and no small program is
compiled for them.

The hash is that of Salmon et al., Parallel random numbers: as easy as 1, 2, 3
(SC 2011), as ``jax.random`` applies it to keys and shapes
(``jax_threefry_partitionable``).
"""

from collections.abc import Sequence
import math

import jax
import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
#: Words that are hashed at once, few enough for a core's cache.
_BLOCK = 2**14
_IMPL = "threefry2x32"


@np.errstate(over="ignore")  # sums are modulo 2^32
def _hash(
  key: tuple[np.ndarray, np.ndarray], x0: np.ndarray, x1: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Threefry-2x32 with 20 rounds, of uint32 arrays that broadcast."""
  keys = (*key, key[0] ^ key[1] ^ _PARITY)
  x0, x1 = x0 + keys[0], x1 + keys[1]
  for i in range(5):
    for rotation in _ROTATIONS[i % 2]:
      x0 = x0 + x1
      x1 = (x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))
      x1 = x1 ^ x0
    x0 = x0 + keys[(i + 1) % 3]
    x1 = x1 + keys[(i + 2) % 3] + np.uint32(i + 1)
  return x0, x1


def _hash_counts(keys: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
  """The hashes of 0, 1, ..., count - 1 under keys [B, 2], two words [B, count]."""
  words = np.empty((2, len(keys), count), np.uint32)
  together = max(_BLOCK // max(count, 1), 1)
  for row in range(0, len(keys), together):
    rows = slice(row, row + together)
    key = keys[rows, :1], keys[rows, 1:]
    for first in range(0, count, _BLOCK):
      index = np.arange(first, min(first + _BLOCK, count), dtype=np.uint64)
      low = index.astype(np.uint32)
      high = (index >> np.uint64(32)).astype(np.uint32)
      part = slice(first, first + _BLOCK)
      words[0, rows, part], words[1, rows, part] = _hash(key, high, low)
  return words[0], words[1]


def fold_in(keys: np.ndarray, data: np.ndarray) -> np.ndarray:
  """Derives keys as ``jax.random.fold_in`` does.

  Args:
    keys: [..., 2] uint32, the words of threefry keys.
    data: [...] uint32, or another shape that broadcasts with the keys.

  Returns:
    [..., 2] uint32.
  """
  low = np.asarray(data).astype(np.uint32)
  out = _hash((keys[..., 0], keys[..., 1]), np.zeros_like(low), low)
  return np.stack(np.broadcast_arrays(*out), axis=-1)


def split_keys(keys: np.ndarray, shape: Sequence[int]) -> np.ndarray:
  """Derives keys as ``jax.random.split`` does.

  Args:
    keys: [..., 2] uint32, the words of threefry keys.
    shape: how many keys each becomes.

  Returns:
    [..., *shape, 2] uint32.
  """
  words = _hash_counts(keys.reshape(-1, 2), math.prod(shape))
  return np.stack(words, -1).reshape(*keys.shape[:-1], *shape, 2)


def bits(keys: np.ndarray, shape: Sequence[int]) -> np.ndarray:
  """Draws random words as ``jax.random.bits`` does.

  Args:
    keys: [..., 2] uint32, the words of threefry keys.
    shape: of the words of each key.

  Returns:
    [..., *shape] uint32.
  """
  first, second = _hash_counts(keys.reshape(-1, 2), math.prod(shape))
  words: np.ndarray = (first ^ second).reshape(*keys.shape[:-1], *shape)
  return words


def is_default() -> bool:
  """Whether ``jax.random.key`` and its draws are those of this module."""
  return bool(
    getattr(jax.config, "jax_default_prng_impl") == _IMPL
    and getattr(jax.config, "jax_threefry_partitionable")
  )


@np.errstate(over="ignore")
def draw_integers(keys: np.ndarray, low: int, high: int) -> np.ndarray:
  """Draws whole numbers as ``jax.random.randint`` does.

  Args:
    keys: [..., 2] uint32, the words of threefry keys.
    low: the least number.
    high: the first number that is too large.

  Returns:
    [...] int32.
  """
  words = bits(split_keys(keys, (2,)), ())
  span, half = np.uint32(high - low), np.uint32(2**16)
  factor = (half % span) * (half % span) % span
  offset = ((words[..., 0] % span) * factor + words[..., 1] % span) % span
  result: np.ndarray = offset.astype(np.int32) + np.int32(low)
  return result


def draw_uniform(keys: np.ndarray) -> np.ndarray:
  """Draws numbers of [0, 1) as ``jax.random.uniform`` does.

  Args:
    keys: [..., 2] uint32, the words of threefry keys.

  Returns:
    [...] float32.
  """
  # 23 bits behind the point of a number of [1, 2).
  mantissa = bits(keys, ()) >> np.uint32(9) | np.float32(1.0).view(np.uint32)
  result: np.ndarray = mantissa.view(np.float32) - np.float32(1.0)
  return result
