"""Folders of IDX files, the format of MNIST (LeCun) and its relatives."""

import gzip
import math
import os
import pathlib
import zlib

import numpy as np

from fedjax_alg import files
from fedjax_alg.data import npz
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.files import expanded

_UINT8 = 8  #: IDX's code of the dtype of all files that are read here
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
  folder = expanded(path, "data_path")
  if not folder.is_dir():
    raise DataError(
        f"`data_path`={folder}: no such folder; one with train-images-idx3-"
        "ubyte[.gz], train-labels-idx1-ubyte[.gz] and the same of t10k is "
        "needed")
  found: dict[str, np.ndarray] = {}
  for split, prefix in _SPLITS.items():
    images, labels = (
        _file(folder, f"{prefix}-{what}") for what in ("images", "labels"))
    x, y = read_idx(images), read_idx(labels)
    if x.ndim not in (3, 4):
      raise DataError(f"`data_path`={images}: {x.ndim} axes, images have 3 "
                      "[n, H, W] or 4 [n, H, W, c]")
    if y.shape != (len(x),):
      raise DataError(f"`data_path`={labels}: labels of shape {y.shape}, "
                      f"{images.name} has {len(x)} images")
    found["x_" + split] = x if x.ndim == 4 else x[..., None]
    found["y_" + split] = y.astype(np.int32)
  shapes = [found["x_" + split].shape[1:] for split in _SPLITS]
  if shapes[0] != shapes[1] or not len(found["y_train"]):
    raise DataError(f"`data_path`={folder}: {len(found['y_train'])} training "
                    f"images of shape {shapes[0]}, test images of {shapes[1]}; "
                    "at least one and equal shapes are needed")
  classes = 1 + max(int(found["y_" + split].max(initial=0))
                    for split in _SPLITS)
  return Examples(found["x_train"], found["y_train"], found["x_test"],
                  found["y_test"], classes, None, None, folder.resolve().name)


def _file(folder: pathlib.Path, name: str) -> pathlib.Path:
  """The file ``name`` in one of its spellings."""
  files = sorted(
      file for file in folder.glob(f"{name}?idx?-ubyte*")
      if file.name.removesuffix(".gz").endswith("-ubyte"))
  if not files:
    raise DataError(f"`data_path`={folder}: no {name}-idx?-ubyte[.gz] in it")
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
  where = f"`data_path`={path}"
  try:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
      magic = file.read(4)
      if len(magic) < 4 or magic[:2] != b"\0\0" or not magic[3]:
        raise DataError(f"{where}: starts with {magic.hex() or 'nothing'}, not "
                        "an IDX file")
      if magic[2] != _UINT8:
        raise DataError(f"{where}: dtype 0x{magic[2]:02x}, only unsigned bytes "
                        "(0x08) are read")
      header = file.read(4 * magic[3])
      if len(header) < 4 * magic[3]:
        raise DataError(f"{where}: truncated in its header")
      shape = tuple(np.frombuffer(header, ">u4").tolist())
      size = math.prod(shape)
      # Python allocates what is to be read before it reads.
      if size > min(npz.DEFLATED * path.stat().st_size, files.memory()):
        raise DataError(f"{where}: its shape {shape} needs {size} bytes, more "
                        "than the file can have")
      content = file.read(size + 1)  # one more shows that there is more
  except (OSError, EOFError, zlib.error) as error:
    why = getattr(error, "strerror", None) or "damaged, not gzip"
    raise DataError(f"{where}: {why}") from error
  if len(content) != size:
    raise DataError(
        f"{where}: {'more' if len(content) > size else len(content)} bytes "
        f"where its shape {shape} needs {size}")
  return np.frombuffer(content, np.uint8).reshape(shape)
