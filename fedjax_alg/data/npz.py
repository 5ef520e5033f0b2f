"""Reads the .npz and .npy files of users, without their pickled objects."""

from collections.abc import Collection
import os
from typing import Any

import numpy as np

from fedjax_alg import files


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
    OSError: the file cannot be opened, or is not a regular one.
    ValueError: it is neither .npz nor .npy, is damaged, or has pickled objects
      where an array should be read.
  """
  with files.open_regular(path) as file:
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
