"""Reads .npz archives, which may be damaged or made to do harm.

NumPy allocates what the header of an array claims before it reads the array,
and a header of a hundred bytes may claim terabytes. Here the claim is first
held against the size of the file and against the memory of the machine.
"""

import math
import os
import tokenize
from typing import Any, BinaryIO
import zipfile
import zlib

import numpy as np

from fedjax_alg import files

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0}

#: No byte of a deflated file stands for more than so many bytes.
DEFLATED = 1032

#: What a damaged archive makes Python raise.
ERRORS = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error)


class ObjectArrayError(ValueError):
  """An array of Python objects, which would have to be unpickled."""


class Archive:
  """The arrays of an .npz, each read when it is asked for."""

  def __init__(self, file: BinaryIO):
    """Reads the list of the arrays.

    Args:
      file: the file, which must stay open.

    Raises:
      zipfile.BadZipFile, OSError: no .npz.
    """
    self._zip = zipfile.ZipFile(file)
    #: the names of the arrays
    self.files = [name.removesuffix(".npy") for name in self._zip.namelist()
                  if name.endswith(".npy")]

  def __getitem__(self, name: str) -> np.ndarray:
    """Reads an array.

    Args:
      name: one of ``files``.

    Raises:
      KeyError: there is no such array.
      ObjectArrayError: its entries are Python objects.
      ValueError, or another of ``ERRORS``: it is damaged.
    """
    if name not in self.files:
      raise KeyError(name)
    info = self._zip.getinfo(name + ".npy")
    try:
      with self._zip.open(info) as member:
        claimed = _claimed(member)
        if claimed != info.file_size - member.tell():
          raise ValueError("its header claims another size")
      most = info.compress_size
      if info.compress_type != zipfile.ZIP_STORED:
        most = DEFLATED * (most + 1)
      if claimed > min(most, files.memory()):
        raise ValueError("it would be larger than its file or the memory")
      with self._zip.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)
    except (RuntimeError, NotImplementedError) as error:  # encrypted, unknown
      raise ValueError(str(error)) from error

  def __contains__(self, name: str) -> bool:
    return name in self.files


def read_npy(path: str | os.PathLike) -> np.ndarray:
  """Reads an .npy file.

  Args:
    path: the file.

  Raises:
    ValueError, or another of ``ERRORS``: it is damaged, or has objects.
  """
  with files.opened(path) as file:
    claimed = _claimed(file)
    if claimed != os.fstat(file.fileno()).st_size - file.tell():
      raise ValueError("its header claims another size")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def _claimed(member: Any) -> int:
  """Reads the header of an array and returns how many bytes should follow."""
  version = np.lib.format.read_magic(member)
  if version not in _HEADERS:
    raise ValueError(f"format {version}")
  try:
    shape, _, dtype = _HEADERS[version](member)
  except (SyntaxError, TypeError, MemoryError, RecursionError,
          tokenize.TokenError) as error:
    raise ValueError("its header cannot be read") from error
  if dtype.hasobject:
    raise ObjectArrayError("an object array")
  if not dtype.itemsize or any(count < 0 for count in shape):
    raise ValueError("its header has no size")
  return math.prod(shape) * dtype.itemsize
