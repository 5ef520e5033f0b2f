"""Reads .npz archives, which may be damaged; nothing is unpickled."""

import tokenize
from typing import BinaryIO
import zipfile
import zlib

import numpy as np

#: No byte of a deflated file stands for more than so many bytes.
DEFLATED = 1032

#: What a damaged archive or array makes NumPy and Python raise.
ERRORS = (OSError, EOFError, ValueError, RuntimeError, MemoryError,
          tokenize.TokenError, zipfile.BadZipFile, zlib.error)


class Archive:
  """The arrays of an .npz, each read when it is asked for."""

  def __init__(self, file: BinaryIO):
    """Reads the list of the arrays.

    Args:
      file: the file, which must stay open.

    Raises:
      zipfile.BadZipFile, or another of ``ERRORS``: no .npz.
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
      ValueError, or another of ``ERRORS``: it is damaged, or its entries are
        Python objects.
    """
    if name not in self.files:
      raise KeyError(name)
    with self._zip.open(f"{name}.npy") as member:
      return np.lib.format.read_array(member, allow_pickle=False)
