"""Data sets in an .npz of the user's."""

from collections.abc import Sequence
import errno
import os
import pathlib
from typing import Any

import numpy as np

from fedjax_alg.data import npz
from fedjax_alg.data.arrays import make_examples
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.sources import UserFiles
from fedjax_alg.files import expand_path

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class Npz(UserFiles):
  """An .npz of x_train, y_train, x_test, y_test[, client_train, client_test].

  x_train/NAME, ... are several arrays of an example.
  """

  WORD, EXAMPLE = "npz", "npz:mine.npz"
  READS, OF_USER = ("task",), True

  def load(self, task: str | None) -> Examples:
    """Loads the arrays (``load_npz``)."""
    return load_npz(self.path, task)


def load_npz(path: str | os.PathLike, task: str | None = None) -> Examples:
  """Loads the user's own data set.

  Args:
    path: an ``.npz`` with x_train [n, ...], y_train [n], x_test [m, ...],
      y_test [m] (m may be 0) and, if clients are given, client_train [n] and
      client_test [m], whole numbers from 0 or names (strings). uint8 x are
      images, signed integers x token ids, every other x becomes float32.
      kind_train [n] and kind_test [m] may name the kinds of clients. Labels are
      whole numbers from 0. In place of x_train and x_test there may
      be several arrays x_train/NAME and x_test/NAME, and so with y.
    task: what is predicted, see ``tasks.resolve_task``; None: classes.

  Returns:
    The examples; ``num_classes`` is the largest label plus one. Clients with
    names are numbered in the sorted order of these.

  Raises:
    DataError: a missing, damaged or inconsistent file. Pickled objects are
      never loaded.
  """
  path = expand_path(path, "dataset")
  arrays = read_named_arrays(
    path, _ARRAYS, ("client_train", "client_test", "kind_train", "kind_test")
  )

  def label_of(which: str) -> str:
    return f"`dataset`={path}: {which}"

  ids = [array for which, array in arrays.items() if which.startswith("client_")]
  are_names = "client_train" in arrays and all(array.dtype.kind == "U" for array in ids)
  return make_examples(
    arrays, label_of, path.stem, task=task, are_numbered=not are_names
  )


def read_named_arrays(
  path: pathlib.Path, required: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, Any]:
  """Reads the named arrays of an ``.npz``; pickled objects are refused.

  Arrays NAME/KEY are the dictionary NAME of arrays.

  Args:
    path: the file.
    required: names of the arrays that the file must have.
    optional: names of further arrays to read if the file has them.

  Returns:
    Name -> array, or dictionary of arrays.

  Raises:
    DataError: the file is missing or damaged, or a required array is missing.
  """
  where, needed = f"`dataset`={path}", ", ".join(required)
  names = (*required, *optional)
  try:
    arrays = npz.read_npz(path, names)
  except OSError as error:
    if error.errno == errno.EFBIG:
      raise DataError(f"{where}: {error.strerror}") from error
    raise DataError(
      f"{where}: no such file, or not readable; an .npz with {needed} is needed"
    ) from error
  except ValueError as error:
    raise DataError(
      f"{where}: not an .npz, or damaged (pickled objects are never loaded)"
    ) from error
  if isinstance(arrays, np.ndarray):
    raise DataError(f"{where}: one .npy array, but an .npz with {needed} is needed")
  for name in [name for name in arrays if name.split("/")[0] in names]:
    first, inside, key = name.partition("/")
    if inside:
      parts = arrays.setdefault(first, {})
      if isinstance(parts, np.ndarray):
        raise DataError(f"{where}: has {first} and {name}, one of them is needed")
      parts[key] = arrays.pop(name)
  missing = [name for name in required if name not in arrays]
  if missing:
    raise DataError(
      f"{where}: missing {', '.join(missing)} (it has"
      f" {', '.join(sorted(arrays)) or 'no arrays'})"
    )
  return {name: arrays[name] for name in names if name in arrays}
