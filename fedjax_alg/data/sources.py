"""Where data sets come from; every loader returns ``Examples``."""

from collections.abc import Sequence
import os
import pathlib
import zipfile
import zlib

import numpy as np

from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.leaf import load_leaf
from fedjax_alg.data.tfds_source import load_tfds, PREPARABLE, prepare_tfds
from fedjax_alg.data.tfds_source import TFDS_NAMES

__all__ = [
    "Examples", "PREPARABLE", "TFDS_NAMES", "load_digits", "load_leaf",
    "load_npz", "load_tfds", "prepare_tfds", "read_npz",
]

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def load_digits(seed: int = 0, test_fraction: float = 0.2) -> Examples:
  """The 1,797 digits of scikit-learn, which need no download.

  Args:
    seed: of the test split. It is not the seed of a run: every run tests on
      the same images.
    test_fraction: part of each class that is the test set, in (0, 1).

  Returns:
    Images float32 [n, 8, 8, 1] in [0, 1], 10 classes.
  """
  from sklearn import datasets  # pylint: disable=g-import-not-at-top

  digits = datasets.load_digits()
  x = (digits.images / 16).astype(np.float32)[..., None]
  y = digits.target.astype(np.int32)
  rng = np.random.default_rng(seed)
  is_test = np.zeros(len(y), bool)
  for label in range(10):
    rows = rng.permutation(np.flatnonzero(y == label))
    is_test[rows[:round(test_fraction * len(rows))]] = True
  return Examples(x[~is_test], y[~is_test], x[is_test], y[is_test], 10, None,
                  None, "digits")


def load_npz(path: str | os.PathLike) -> Examples:
  """A data set of the user's own.

  Args:
    path: an ``.npz`` with x_train [n, ...], y_train [n], x_test [m, ...],
      y_test [m] (m may be 0) and, if clients are given, integer client_train
      [n] and client_test [m]. uint8 x are images, int32 x token ids, every
      other x becomes float32. Labels are whole numbers from 0.

  Returns:
    The examples; ``num_classes`` is the largest label plus one.

  Raises:
    DataError: a missing, damaged or inconsistent file. Pickled objects are
      never loaded.
  """
  path = pathlib.Path(path).expanduser()
  arrays = read_npz(path, _ARRAYS, ("client_train", "client_test"))
  if "client_test" in arrays and "client_train" not in arrays:
    raise DataError(f"`data_path`={path}: client_test without client_train")
  for name in ("x_train", "x_test"):
    arrays[name] = _features(path, name, arrays[name])
  for split in ("train", "test"):
    rows = len(arrays["x_" + split])
    for name in ("y_" + split, "client_" + split):
      if name in arrays:
        arrays[name] = _whole_numbers(path, name, arrays[name], rows)
  x_train, x_test = arrays["x_train"], arrays["x_test"]
  if not len(x_train):
    raise DataError(f"`data_path`={path}: x_train has no rows")
  if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
    raise DataError(
        f"`data_path`={path}: x_train has examples of shape"
        f" {x_train.shape[1:]} {x_train.dtype} but x_test of"
        f" {x_test.shape[1:]} {x_test.dtype}")
  y_train, y_test = arrays["y_train"], arrays["y_test"]
  num_classes = int(max(y_train.max(), y_test.max(initial=0))) + 1
  return Examples(x_train, y_train, x_test, y_test, num_classes,
                  arrays.get("client_train"), arrays.get("client_test"),
                  path.stem)


def read_npz(
    path: pathlib.Path, required: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
  """The named arrays of an ``.npz``, pickled objects refused.

  Raises:
    DataError: no such file, damaged, or a required array is missing.
  """
  if not path.is_file() or not os.access(path, os.R_OK):
    raise DataError(
        f"`data_path`={path}: no such file, or not readable; an .npz with"
        f" {', '.join(required)} is needed")
  with open(path, "rb") as file:  # np.load(path) leaks it on a bad zip
    try:
      archive = np.load(file, allow_pickle=False)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
      raise DataError(
          f"`data_path`={path}: not an .npz, or damaged") from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
      raise DataError(
          f"`data_path`={path}: one .npy array, but an .npz with"
          f" {', '.join(required)} is needed")
    missing = [name for name in required if name not in archive.files]
    if missing:
      raise DataError(
          f"`data_path`={path}: missing {', '.join(missing)} (it has"
          f" {', '.join(sorted(archive.files)) or 'no arrays'})")
    return {
        name: _read_array(path, archive, name)
        for name in (*required, *optional)
        if name in archive.files}


def _read_array(path: pathlib.Path, archive, name: str) -> np.ndarray:
  try:
    return archive[name]
  except ValueError as error:
    if "allow_pickle" in str(error):
      raise DataError(
          f"`data_path`={path}: {name} is an object array, which is never"
          " unpickled; numbers of one shape are needed") from error
    raise DataError(f"`data_path`={path}: {name} is damaged") from error
  except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    raise DataError(f"`data_path`={path}: {name} is damaged") from error


def _features(path: pathlib.Path, name: str, x: np.ndarray) -> np.ndarray:
  if x.ndim < 2:
    raise DataError(
        f"`data_path`={path}: {name} has shape {x.shape}, one row per example"
        " and at least one more axis are needed")
  if x.dtype.kind not in "fiub":
    raise DataError(
        f"`data_path`={path}: {name} is {x.dtype}, real numbers are needed")
  if x.dtype in (np.uint8, np.int32):
    return x
  with np.errstate(over="ignore"):  # becomes infinite, refused below
    x = x.astype(np.float32, copy=False)
  if not np.isfinite(x).all():
    raise DataError(
        f"`data_path`={path}: {name} has NaN or infinite values (as float32)")
  return x


def _whole_numbers(
    path: pathlib.Path, name: str, values: np.ndarray, rows: int
) -> np.ndarray:
  """Labels or client ids: checked, int32."""
  if values.dtype.kind not in "iu":
    raise DataError(
        f"`data_path`={path}: {name} is {values.dtype}, integers are needed")
  if values.shape != (rows,):
    raise DataError(
        f"`data_path`={path}: {name} has shape {values.shape}, {(rows,)} is"
        f" needed (one per row of x_{name.rsplit('_', 1)[1]})")
  if rows and (values.min() < 0 or values.max() > np.iinfo(np.int32).max - 1):
    raise DataError(
        f"`data_path`={path}: {name} lies in [{values.min()},"
        f" {values.max()}], whole numbers from 0 are needed")
  return values.astype(np.int32)
