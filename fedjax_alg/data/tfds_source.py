"""TFDS data sets, read without TensorFlow."""

from collections.abc import Callable, Iterable, Iterator
import hashlib
import importlib.util
import os
import pathlib
from typing import Any

import numpy as np

from fedjax_alg.data import cache
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples

TFDS_NAMES = ("mnist", "cifar10")

#: Name of a data set that ``prepare_tfds`` can prepare -> its name in TFDS.
PREPARABLE = {name: name for name in TFDS_NAMES} | {
    "emnist": "emnist/byclass", "sentiment140": "sentiment140"}

_CHUNK = 1000  # records decoded per read


def tfds_dir(data_dir: str | os.PathLike | None) -> pathlib.Path:
  """Finds TFDS's folder.

  Args:
    data_dir: the folder. None means ``$TFDS_DATA_DIR`` or, if that is not set,
      ``~/tensorflow_datasets``.

  Returns:
    The folder.
  """
  return pathlib.Path(
      data_dir or os.environ.get("TFDS_DATA_DIR")
      or "~/tensorflow_datasets").expanduser()


def load_tfds(
    name: str,
    data_dir: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> Examples:
  """Loads an image data set that TFDS has prepared (array_record files).

  Nothing is downloaded, and TensorFlow is not imported. The images are decoded
  once (about 10,000 per second) and kept as arrays in ``cache_dir``.

  Args:
    name: one of ``TFDS_NAMES``.
    data_dir: TFDS's folder; see ``tfds_dir`` for None.
    cache_dir: folder for the decoded arrays; by default
      ``<data_dir>/.fedjax_alg_cache`` if it can be written, otherwise
      ``~/.cache/fedjax_alg``.

  Returns:
    The examples without client ids. The images are uint8 [n, H, W, c] in the
    order of TFDS, which shuffles the original files.

  Raises:
    DataError: the name is unknown, or this machine has no readable copy.
  """
  _check_name(name, TFDS_NAMES)
  arrays = read_arrays(name, data_dir, cache_dir, lambda path: _decode(path))
  y_train, y_test = arrays["y_train"], arrays["y_test"]
  return Examples(
      arrays["x_train"], y_train, arrays["x_test"], y_test,
      int(max(y_train.max(), y_test.max())) + 1, None, None, name)


def read_arrays(
    name: str,
    data_dir: str | os.PathLike | None,
    cache_dir: str | os.PathLike | None,
    decode: Callable[[pathlib.Path], cache.Arrays],
) -> cache.Arrays:
  """Decodes a prepared data set, or reads the decoded arrays from the cache.

  Args:
    name: one of ``PREPARABLE``.
    data_dir: see ``load_tfds``.
    cache_dir: see ``load_tfds``.
    decode: function of the folder of the newest prepared version.

  Returns:
    Name -> array.

  Raises:
    DataError: this machine has no readable copy.
  """
  root = tfds_dir(data_dir)
  directory = _prepared(name, root)
  folder = (
      pathlib.Path(cache_dir).expanduser() if cache_dir
      else _default_cache_dir(root))
  return cache.read_or_build(
      folder / f"{name}-{directory.name}.npz", _fingerprint(directory),
      lambda: decode(directory))


def records(
    directory: pathlib.Path, split: str, **options: Any
) -> Iterator[dict[str, Any]]:
  """Reads the records of a split, in the order of TFDS.

  Args:
    directory: folder of a prepared version.
    split: name of the split.
    **options: arguments of TFDS's ``as_data_source``.

  Yields:
    The records.

  Raises:
    DataError: the records cannot be read.
  """
  import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

  try:
    builder = tfds.builder_from_directory(str(directory))
    source = builder.as_data_source(split, **options)
    for start in range(0, len(source), _CHUNK):
      rows = range(start, min(start + _CHUNK, len(source)))
      yield from source.__getitems__(list(rows))
  # Damage shows as an error of protobuf, array_record or TFDS.
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise unreadable(directory, error) from error


def unreadable(directory: pathlib.Path, error: BaseException) -> DataError:
  """Makes the error for a prepared data set that cannot be read.

  Args:
    directory: folder of the prepared version.
    error: the cause.

  Returns:
    The error, with a message of one line.
  """
  return DataError(
      f"cannot read {directory}: {_one_line(error)} (damaged, or not"
      " prepared with file_format=array_record?)")


def prepare_tfds(name: str, data_dir: str | os.PathLike | None = None) -> None:
  """Downloads a data set and writes it to the folder that ``load_tfds`` reads.

  This function needs the internet and TensorFlow.

  Args:
    name: one of ``PREPARABLE``.
    data_dir: TFDS's folder; see ``tfds_dir`` for None.

  Raises:
    DataError: TensorFlow is missing, or the download failed.
  """
  _check_name(name, PREPARABLE)
  if importlib.util.find_spec("tensorflow") is None:
    raise DataError(
        f"preparing {name} needs TensorFlow, which is not installed:"
        " pip install 'fedjax_alg[prepare]'")
  import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

  try:
    builder = tfds.builder(
        PREPARABLE[name], data_dir=str(tfds_dir(data_dir)))
    builder.download_and_prepare(file_format="array_record")
  # TFDS has no common error type for network, disk and checksum failures.
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise DataError(
        f"could not prepare {name} in `data_dir`={tfds_dir(data_dir)}:"
        f" {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
  return " ".join(str(error).split())[:300] or type(error).__name__


def _check_name(name: str, known: Iterable[str]) -> None:
  if name not in known:
    raise DataError(
        f"`dataset`={name}: not a TFDS data set known here, allowed:"
        f" {', '.join(known)}")


def _prepared(name: str, root: pathlib.Path) -> pathlib.Path:
  """The folder of the newest prepared version of ``name``."""
  place = PREPARABLE[name]
  versions = [p.parent for p in root.glob(f"{place}/*/dataset_info.json")]
  numbered = [
      (tuple(int(part) for part in folder.name.split(".")), folder)
      for folder in versions if folder.name.replace(".", "").isdigit()]
  if not numbered:
    raise DataError(
        f"no prepared {name} in `data_dir`={root} (looked for"
        f" {root / place}/*/dataset_info.json): run fedjax-alg prepare {name}"
        f" `data_dir`={root} on a machine with internet and copy the folder")
  return max(numbered)[1]


def _fingerprint(directory: pathlib.Path) -> str:
  """Makes a hash that changes if the prepared files change."""
  digest = hashlib.sha256((directory / "dataset_info.json").read_bytes())
  for file in sorted(directory.glob("*array_record*")):
    digest.update(f"{file.name} {file.stat().st_size}\n".encode())
  return digest.hexdigest()


def _default_cache_dir(root: pathlib.Path) -> pathlib.Path:
  if os.access(root, os.W_OK):
    return root / ".fedjax_alg_cache"
  return pathlib.Path("~/.cache/fedjax_alg").expanduser()


def _decode(directory: pathlib.Path) -> cache.Arrays:
  """Decodes all images and labels of the splits train and test."""
  import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

  arrays = {}
  try:
    builder = tfds.builder_from_directory(str(directory))
    for split in ("train", "test"):
      source = builder.as_data_source(split)
      x, y = None, np.empty(len(source), np.int32)
      for start in range(0, len(source), _CHUNK):
        rows = range(start, min(start + _CHUNK, len(source)))
        for row, record in zip(rows, source.__getitems__(list(rows))):
          if x is None:
            x = np.empty((len(source), *record["image"].shape), np.uint8)
          x[row] = record["image"]
          y[row] = record["label"]
      if x is None:
        raise ValueError(f"split {split} is empty")
      arrays["x_" + split], arrays["y_" + split] = x, y
  # Damage shows as an error of protobuf, array_record, PIL or TFDS.
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise unreadable(directory, error) from error
  return arrays
