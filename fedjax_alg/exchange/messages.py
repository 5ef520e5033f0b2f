"""Encoding of messages as bytes.

The leaves of a tree stand one after the other, without names or shapes, which
sender and receiver know. What needs fewer bits is last: leaves of bool have one
bit an entry, whole numbers as many as ``Numbers`` says.

A simulation makes no message: ``carry`` gives back what it gets, and no
program changes by it. Where clients are on other machines (``extras.flower``) it is
the place at which their code ends and the server's goes on with what it has
received.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Array
from fedjax_alg.typing import PyTree


class Numbers(NamedTuple):
  """Range of the numbers in the int32 leaves of a message."""

  below: int  #: they are from 0 to one less than this
  ascending: bool = False  #: whether each is larger than the one before it

  @property
  def bits(self) -> int:
    """The bits of a number."""
    return max(1, (self.below - 1).bit_length())

  def as_marks(self, count: int) -> bool:
    """Whether a bit for each possible number is shorter than ``count`` numbers.

    It says which ones there are if they ascend.
    """
    return self.ascending and count * self.bits > self.below

  def used(self, count: int) -> int:
    """The bits of ``count`` numbers."""
    return self.below if self.as_marks(count) else count * self.bits


#: (parts of a message, what their int32 leaves are) -> the parts as received
Carrier = Callable[[Any, Numbers | None], Any]


def carry(
  carrier: Carrier | None, parts: object, numbers: Numbers | None = None
) -> Any:
  """The parts of a message as its receiver has them, which are the same.

  Args:
    carrier: how messages travel (``MapClients.carrier``); None: in a simulation,
      which makes none.
    parts: a tree of floats, bool and, with ``numbers``, int32.
    numbers: what its int32 leaves are; None: any.
  """
  return parts if carrier is None else carrier(parts, numbers)


def to_bytes(tree: object, numbers: Numbers | None = None) -> Array:
  """The leaves of a tree one after the other.

  Args:
    tree: its leaves are arrays or random keys.
    numbers: what its int32 leaves are; None: any, of 32 bits.

  Returns:
    [n] uint8.
  """
  leaves = list(map(_plain, jax.tree.leaves(tree)))
  bytewise, flags, coded = _kinds(leaves, numbers)
  parts = [jnp.zeros(0, jnp.uint8)]
  parts += [
    jax.lax.bitcast_convert_type(leaves[i], jnp.uint8).ravel() for i in bytewise
  ]
  if flags:
    parts.append(jnp.packbits(jnp.concatenate([leaves[i].ravel() for i in flags])))
  parts += [jnp.packbits(_bits_of(leaves[i].ravel(), numbers)) for i in coded]
  return jnp.concatenate(parts)


def from_bytes(line: Array, template: PyTree, numbers: Numbers | None = None) -> Any:
  """The inverse of ``to_bytes``.

  Args:
    line: [n] uint8.
    template: the tree, arrays or shapes.
    numbers: those that ``to_bytes`` got.
  """
  leaves, structure = jax.tree.flatten(template)
  plain = [jax.eval_shape(_plain, leaf) for leaf in leaves]
  bytewise, flags, coded = _kinds(plain, numbers)
  decoded: dict[int, Array] = {}
  at = 0
  for i in bytewise:
    width = np.dtype(plain[i].dtype).itemsize
    last = at + width * plain[i].size
    decoded[i] = jax.lax.bitcast_convert_type(
      line[at:last].reshape(*plain[i].shape, *([width] if width > 1 else [])),
      plain[i].dtype,
    )
    at = last
  entries = sum(plain[i].size for i in flags)
  if flags:
    bits = jnp.unpackbits(line[at:], count=entries) > 0
    ends = np.cumsum([plain[i].size for i in flags])
    decoded |= {
      i: part.reshape(plain[i].shape)
      for i, part in zip(flags, jnp.split(bits, ends[:-1]))
    }
    at -= -entries // 8
  for i in coded:
    assert numbers is not None
    used = numbers.used(plain[i].size)
    decoded[i] = _from_bits(
      jnp.unpackbits(line[at:], count=used), plain[i].size, numbers
    ).reshape(plain[i].shape)
    at -= -used // 8
  return jax.tree.unflatten(
    structure,
    [
      jax.random.wrap_key_data(decoded[i])
      if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
      else decoded[i]
      for i, leaf in enumerate(leaves)
    ],
  )


def _kinds(
  leaves: Sequence[Any], numbers: Numbers | None
) -> tuple[list[int], list[int], list[int]]:
  """Finds the places of leaves sent whole, as flags, and as numbers."""
  kinds: tuple[list[int], list[int], list[int]] = [], [], []
  for i, leaf in enumerate(leaves):
    kinds[
      1
      if leaf.dtype == jnp.bool_
      else 2
      if (numbers and leaf.dtype == jnp.int32)
      else 0
    ].append(i)
  return kinds


def _plain(leaf: PyTree) -> Array:
  """An array of numbers or bool."""
  array = jnp.asarray(leaf)
  if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
    return jax.random.key_data(array)
  return array


def _bits_of(leaf: Array, numbers: Numbers | None) -> Array:
  """Whole numbers [k] as bits."""
  assert numbers is not None
  if numbers.as_marks(leaf.size):
    return jnp.zeros(numbers.below, jnp.bool_).at[leaf].set(True)
  return (leaf[:, None] >> jnp.arange(numbers.bits)[None, ::-1]) & 1 > 0


def _from_bits(bits: Array, count: int, numbers: Numbers) -> Array:
  """The inverse of ``_bits_of``, ``count`` numbers."""
  if numbers.as_marks(count):
    return jnp.nonzero(bits, size=count)[0].astype(jnp.int32)
  places = jnp.left_shift(1, jnp.arange(numbers.bits)[None, ::-1])
  return (bits.reshape(count, -1).astype(jnp.int32) * places).sum(1)
