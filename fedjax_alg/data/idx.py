"""Folders of IDX files, the format of MNIST (LeCun) and its relatives."""

from collections.abc import Sequence
import gzip
import math
import os
import pathlib
from typing import Any
import zlib

import numpy as np

from fedjax_alg import files
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.sources import UserFiles
from fedjax_alg.files import expand_path

_MAGIC = b"\0\0\x08"  #: two zeros and the code of unsigned bytes
_SPLITS = {"train": "train", "test": "t10k"}


def load_idx(path: str | os.PathLike) -> Examples:
  """Loads a folder of IDX files with the four standard names.

  The names are ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and
  the same with ``t10k``, each with or without ``.gz``. Images with channels
  have four axes and are named ``idx4``.

  Args:
    path: the folder.

  Returns:
    Images uint8 [n, H, W, c]; c is 1 for images of two axes. ``num_classes``
    is the largest label plus one.

  Raises:
    DataError: a file is missing, is not an IDX file of unsigned bytes, has
      another length than it says, or does not fit the others.
  """
  folder = expand_path(path, "dataset")
  if not folder.is_dir():
    raise DataError(
      f"`dataset`={folder}: no such folder; one with train-images-idx3-"
      "ubyte[.gz], train-labels-idx1-ubyte[.gz] and the same of t10k is "
      "needed"
    )
  arrays: dict[str, Any] = {}
  for split, prefix in _SPLITS.items():
    images, labels = (
      _file(folder, f"{prefix}-{kind}") for kind in ("images", "labels")
    )
    x, y = read_idx(images), read_idx(labels)
    if x.ndim not in (3, 4):
      raise DataError(
        f"`dataset`={images}: {x.ndim} axes, images have 3 [n, H, W] or 4 [n, H, W, c]"
      )
    if y.shape != (len(x),):
      raise DataError(
        f"`dataset`={labels}: labels of shape {y.shape}, "
        f"{images.name} has {len(x)} images"
      )
    arrays["x_" + split] = x if x.ndim == 4 else x[..., None]
    arrays["y_" + split] = y.astype(np.int32)
  shapes = [arrays["x_" + split].shape[1:] for split in _SPLITS]
  if shapes[0] != shapes[1] or not len(arrays["y_train"]):
    raise DataError(
      f"`dataset`={folder}: {len(arrays['y_train'])} training "
      f"images of shape {shapes[0]}, test images of {shapes[1]}; "
      "at least one and equal shapes are needed"
    )
  classes = 1 + max(int(arrays["y_" + split].max(initial=0)) for split in _SPLITS)
  return Examples(
    **arrays,
    num_classes=classes,
    client_train=None,
    client_test=None,
    name=folder.resolve().name,
  )


def idx_files(path: str | os.PathLike) -> list[pathlib.Path]:
  """The files that ``load_idx`` reads, and others with such names."""
  return sorted(expand_path(path, "dataset").glob("*-idx?-ubyte*"))


def _file(folder: pathlib.Path, name: str) -> pathlib.Path:
  """The file ``name`` in one of its spellings."""
  files = sorted(
    file
    for file in folder.glob(f"{name}?idx?-ubyte*")
    if file.name.removesuffix(".gz").endswith("-ubyte")
  )
  if not files:
    raise DataError(f"`dataset`={folder}: no {name}-idx?-ubyte[.gz] in it")
  return files[0]


def read_idx(path: pathlib.Path) -> np.ndarray:
  """Reads one IDX file of unsigned bytes.

  Args:
    path: the file; it is decompressed if its name ends in ``.gz``.

  Returns:
    The array uint8.

  Raises:
    DataError: the file cannot be read, or is not such a file.
  """
  where = f"`dataset`={path}"
  try:
    content = files.read_bytes(path)
    if path.suffix == ".gz":
      content = gzip.decompress(content)
  except (OSError, EOFError, zlib.error) as error:
    why = getattr(error, "strerror", None) or "damaged, not gzip"
    raise DataError(f"{where}: {why}") from error
  start = 4 + 4 * content[3] if content[:3] == _MAGIC and content[3:] else 0
  if not 4 < start <= len(content):
    raise DataError(
      f"{where}: starts with {content[:4].hex() or 'nothing'}, not an IDX "
      "file of unsigned bytes (dtype 0x08), or truncated in its header"
    )
  shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
  if len(content) - start != math.prod(shape):
    raise DataError(
      f"{where}: {len(content) - start} bytes where its shape "
      f"{shape} needs {math.prod(shape)}"
    )
  return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


class Idx(UserFiles):
  """A folder of the four IDX files of MNIST or another such data set."""

  WORD, EXAMPLE = "idx", "idx:folder"
  HAS_CLIENTS, OF_USER = False, True

  def load(self) -> Examples:
    """Loads the images (``load_idx``)."""
    return load_idx(self.path)

  def _files(self) -> Sequence[pathlib.Path]:
    return idx_files(self.path)
