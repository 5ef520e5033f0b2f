"""Pickles that name nothing but what their reader knows, so that no code is run.

To load a pickle is to call what it names. ``KnownUnpickler`` has a table of the few
names that a kind of file needs, and refuses all others before they are called.
"""

from collections.abc import Mapping
import math
import pickle
import re
from typing import Any, BinaryIO

import numpy as np


class HostileError(Exception):
  """A pickle names what its kind of file does not need."""


class KnownUnpickler(pickle.Unpickler):
  """Reads pickles that name nothing but what is known.

  Args:
    file: the pickle.
    known: (module, name) -> what takes the place of this object.
  """

  def __init__(self, file: BinaryIO, known: Mapping[tuple[str, str], Any]):
    super().__init__(file)
    self._known = known

  def find_class(self, module: str, name: str) -> Any:
    if (module, name) not in self._known:
      raise HostileError(f"{module}.{name}")
    return self._known[module, name]


class _Dtype:
  """What a pickle says of a dtype of NumPy."""

  def __init__(self, code: str, *_: object):
    self.code, self.order = code, "="

  def __setstate__(self, state: tuple[Any, ...]) -> None:
    self.order = state[1]

  def resolve(self) -> np.dtype:
    """The dtype, of numbers alone."""
    if not re.fullmatch("[fiu][1248]", self.code) or self.order not in "<>|=":
      raise ValueError("an array of other than numbers")
    return np.dtype(self.order + self.code)


class _Array:
  """What a pickle says of an array: its numbers, or a list of objects."""

  content: Any = None

  def __init__(self, *_: object):
    """The shape and type that an array begins with are none yet."""

  def __setstate__(self, state: tuple[Any, ...]) -> None:
    _, shape, dtype, is_fortran, content = state
    if isinstance(content, list):  # of objects
      if math.prod(shape) != len(content):
        raise ValueError("an array of another size")
      self.content = content if shape else content[0]
    else:
      numbers = np.frombuffer(content, dtype.resolve())
      self.content = numbers.reshape(shape, order="F" if is_fortran else "C")


def _encode(text: str, encoding: str) -> bytes:
  """Bytes as Python 3 writes them for Python 2."""
  if encoding != "latin1":
    raise ValueError(f"bytes in {encoding}")
  return text.encode("latin-1")


_NUMPY: dict[tuple[str, str], Any] = {
  ("numpy", "ndarray"): None,  # the type that all arrays name
  ("numpy", "dtype"): _Dtype,
  ("numpy.core.multiarray", "_reconstruct"): _Array,
  ("numpy._core.multiarray", "_reconstruct"): _Array,
  ("_codecs", "encode"): _encode,
}


def _resolve(value: Any) -> Any:
  """A tree with arrays of NumPy in the place of what the pickle says of them."""
  if isinstance(value, _Array):
    return _resolve(value.content)
  if isinstance(value, dict):
    return {key: _resolve(entry) for key, entry in value.items()}
  return list(map(_resolve, value)) if isinstance(value, list) else value


def read_npy_objects(file: BinaryIO) -> Any:
  """Reads a ``.npy`` of objects without running the pickle in it.

  Args:
    file: what ``np.save`` has written of dictionaries and lists with arrays of numbers,
      in format 1.0.

  Returns:
    The object, of an array of one; else a list.

  Raises:
    HostileError: it names more than arrays, which is then not called.
    Exception: it is damaged; pickles have errors of all kinds.
  """
  if np.lib.format.read_magic(file) != (1, 0):
    raise ValueError("another format of .npy")
  np.lib.format.read_array_header_1_0(file)
  return _resolve(KnownUnpickler(file, _NUMPY).load())
