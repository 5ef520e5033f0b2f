"""Reads the .npz and .npy files of users, without their pickled objects."""

from collections.abc import Collection
import errno
import os
from typing import Any, BinaryIO
import zipfile

import numpy as np

from fedjax_alg import files, memory
from fedjax_alg.errors import OptionError


def _check_memory(
  path: str | os.PathLike, file: BinaryIO, names: Collection[str] | None
) -> None:
  """Refuses arrays that do not fit into memory, before they are read.

  Raises:
    OSError: they do not.
  """
  sizes = [os.fstat(file.fileno()).st_size]
  if zipfile.is_zipfile(file):
    try:
      with zipfile.ZipFile(file) as members:
        sizes = [
          member.file_size
          for member in members.infolist()
          if names is None
          or member.filename.removesuffix(".npy").split("/")[0] in names
        ]
    except Exception:  # pylint: disable=broad-exception-caught
      sizes = []  # damaged, as NumPy will find
  file.seek(0)
  try:
    memory.refuse("its content", sum(sizes))
  except OptionError as error:
    raise OSError(errno.EFBIG, error.text, str(path)) from None


def read_npz(
  path: str | os.PathLike, names: Collection[str] | None = None
) -> np.ndarray | dict[str, Any]:
  """Reads a file of NumPy arrays; all that is damaged in it is one error.

  Args:
    path: a regular file.
    names: the arrays of an .npz to read, with those of NAME/KEY; None reads
      all.

  Returns:
    Of an .npy the array. Of an .npz name -> array, or None for an array that
    is not to be read.

  Raises:
    OSError: the file cannot be opened, is not a regular one, or its arrays do not
      fit into memory (EFBIG).
    ValueError: it is neither .npz nor .npy, is damaged, or has pickled objects
      where an array should be read.
  """
  with files.open_regular(path) as file:
    _check_memory(path, file, names)
    try:
      stored = np.load(file, allow_pickle=False)
      if isinstance(stored, np.ndarray):
        return stored
      if len(set(stored.files)) < len(stored.files):
        raise ValueError("two arrays of the same name")
      return {
        name: np.asarray(stored[name])
        if names is None or name.split("/")[0] in names
        else None
        for name in stored.files
      }
    # zipfile, zlib, NumPy and the parser of its headers raise many kinds.
    except Exception as error:  # pylint: disable=broad-exception-caught
      raise ValueError(f"{path}: damaged") from error
