"""TFDS data sets, read without TensorFlow."""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import os
import pathlib
import re
from typing import Any, ClassVar

import numpy as np

from fedjax_alg.data import cache
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples, check_memory
from fedjax_alg.data.sources import DataSet
from fedjax_alg.errors import did_you_mean, reason
from fedjax_alg.files import expand_path
from fedjax_alg.hparams import hyper

#: Data sets of TFDS that are offered by name -> the shape of their images. All
#: other image data sets of TFDS are read in the same way.
IMAGE_SHAPES = {
  "mnist": (28, 28, 1),
  "fashion_mnist": (28, 28, 1),
  "kmnist": (28, 28, 1),
  "cifar10": (32, 32, 3),
  "cifar100": (32, 32, 3),
  "svhn_cropped": (32, 32, 3),
}
TFDS_NAMES = tuple(IMAGE_SHAPES)

#: Names that ``prepare_tfds`` takes besides those of TFDS -> name in TFDS.
PREPARABLE = {name: name for name in TFDS_NAMES} | {
  "emnist": "emnist/byclass",
  "sentiment140": "sentiment140",
}

#: Stands before the name of any data set of TFDS: ``tfds:emnist/letters``.
PREFIX = "tfds:"
_NAME = re.compile(r"\w+(/[\w.+-]*\w[\w.+-]*)*")

_CHUNK = 1000  # records decoded per read


def _tfds_dir(data_dir: str | os.PathLike | None) -> pathlib.Path:
  """Finds TFDS's folder.

  Args:
    data_dir: the folder. None means ``$TFDS_DATA_DIR`` or, if that is not set,
      ``~/tensorflow_datasets``.

  Returns:
    The folder.
  """
  return expand_path(
    data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  )


@functools.cache
def _builders() -> frozenset[str]:
  """The names of the data sets that the installed TFDS knows."""
  import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

  return frozenset(tfds.list_builders(with_community_datasets=False))


def is_tfds(name: object) -> bool:
  """Whether ``name`` may name a data set of TFDS.

  Args:
    name: any name with the prefix ``tfds:``, or the name of a data set that
      the installed TFDS knows; ``/`` separates the name of a configuration.
  """
  if not isinstance(name, str) or not _NAME.fullmatch(name.removeprefix(PREFIX)):
    return False
  return (
    name.startswith(PREFIX) or name in PREPARABLE or name.split("/")[0] in _builders()
  )


def load_tfds(
  name: str,
  data_dir: str | os.PathLike | None = None,
  cache_dir: str | os.PathLike | None = None,
) -> Examples:
  """Loads an image classification data set that TFDS has prepared.

  The files must be array_record files. The splits are ``train`` and ``test``
  or, without that, ``validation``; if there is neither, no example is for
  testing.

  Nothing is downloaded, and TensorFlow is not imported. The images are decoded
  once (about 10,000 per second) and kept as arrays in ``cache_dir``.

  Args:
    name: a name of TFDS, such as ``kmnist`` or ``emnist/letters``, with or
      without the prefix ``tfds:``. If a data set has several configurations
      and only one is prepared, its name may be left out.
    data_dir: TFDS's folder; see ``_tfds_dir`` for None.
    cache_dir: folder for the decoded arrays; by default
      ``<data_dir>/.fedjax_alg_cache`` if it can be written, otherwise
      ``~/.cache/fedjax_alg``.

  Returns:
    The examples without client ids. The images are uint8 [n, H, W, c] in the
    order of TFDS, which shuffles the original files.

  Raises:
    DataError: the name is unknown, this machine has no readable copy, or the
      examples are not labeled images uint8 of one size.
  """
  if not is_tfds(name):
    bare = name.removeprefix(PREFIX)
    raise DataError(
      f"`dataset`={name}: not a data set of TFDS"
      f"{did_you_mean(bare, _builders())} (such as {', '.join(TFDS_NAMES)})"
    )
  arrays = read_arrays(name, data_dir, cache_dir, lambda path: _decode(path))
  y_train, y_test = arrays["y_train"], arrays["y_test"]
  return Examples(
    x_train=arrays["x_train"],
    y_train=y_train,
    x_test=arrays["x_test"],
    y_test=y_test,
    num_classes=int(max(y_train.max(), y_test.max(initial=0))) + 1,
    client_train=None,
    client_test=None,
    name=name.removeprefix(PREFIX),
  )


def read_arrays(
  name: str,
  data_dir: str | os.PathLike | None,
  cache_dir: str | os.PathLike | None,
  decode: Callable[[pathlib.Path], cache.Arrays],
  part: str = "",
) -> cache.Arrays:
  """Decodes a prepared data set, or reads the decoded arrays from the cache.

  Args:
    name: see ``load_tfds``, or one of ``PREPARABLE``.
    data_dir: see ``load_tfds``.
    cache_dir: see ``load_tfds``.
    decode: function of the folder of the newest prepared version.
    part: end of the name in the cache of arrays that are stored apart.

  Returns:
    Name -> array.

  Raises:
    DataError: this machine has no readable copy.
  """
  root = _tfds_dir(data_dir)
  directory = _find_prepared(name, root)
  folder = expand_path(cache_dir) if cache_dir else _default_cache_dir(root)
  return cache.read_or_build(
    folder / f"{_cache_name(name, directory, root)}{part}.npz",
    _fingerprint(directory),
    lambda: decode(directory),
  )


def prepared_version(name: str, data_dir: str | os.PathLike | None = None) -> str:
  """Computes the key of a cache of what was read from a prepared data set.

  A version of TFDS is written once. Its description and the names and sizes
  of its files are therefore the key; hashing all records would take longer
  than reading the decoded arrays.

  Args:
    name: see ``read_arrays``.
    data_dir: see ``load_tfds``.

  Returns:
    A sha256; empty if this machine has no readable copy.
  """
  try:
    return _fingerprint(prepared_folder(name, data_dir))
  except (DataError, OSError):
    return ""


def prepared_folder(
  name: str, data_dir: str | os.PathLike | None = None
) -> pathlib.Path:
  """Finds the newest prepared version of a data set.

  Args:
    name: see ``read_arrays``.
    data_dir: see ``load_tfds``.

  Raises:
    DataError: there is none.
  """
  return _find_prepared(name, _tfds_dir(data_dir))


def records(
  directory: pathlib.Path, split: str, **options: object
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

  with reading(directory):
    builder = tfds.builder_from_directory(str(directory))
    source = builder.as_data_source(split, **options)
    for start in range(0, len(source), _CHUNK):
      rows = range(start, min(start + _CHUNK, len(source)))
      yield from source.__getitems__(list(rows))


def prepared_info(directory: pathlib.Path) -> Any:
  """Reads what TFDS says of a prepared version, its ``DatasetInfo``.

  Args:
    directory: folder of a prepared version.
  """
  import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

  return tfds.builder_from_directory(str(directory)).info


@contextlib.contextmanager
def reading(directory: pathlib.Path) -> Iterator[None]:
  """Turns errors of protobuf, array_record, PIL or TFDS into a ``DataError``.

  Args:
    directory: folder of a prepared version.

  Raises:
    DataError: its files are damaged.
  """
  try:
    yield
  except DataError:
    raise
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
    f"cannot read {directory}: {reason(error)} (damaged, or not"
    " prepared with file_format=array_record?)"
  )


def prepare_tfds(name: str, data_dir: str | os.PathLike | None = None) -> None:
  """Downloads a data set and writes it to the folder that ``load_tfds`` reads.

  This function needs the internet and TensorFlow.

  Args:
    name: one of ``PREPARABLE``, or any name of TFDS; see ``load_tfds``.
    data_dir: TFDS's folder; see ``_tfds_dir`` for None.

  Raises:
    DataError: TensorFlow is missing, or the download failed.
  """
  if importlib.util.find_spec("tensorflow") is None:
    raise DataError(
      f"preparing {name} needs TensorFlow, which is not installed:"
      " pip install 'fedjax_alg[prepare]'"
    )
  import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

  try:
    builder = tfds.builder(_place(name), data_dir=str(_tfds_dir(data_dir)))
    builder.download_and_prepare(file_format="array_record")
  # TFDS has no common error type for network, disk and checksum failures.
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise DataError(
      f"could not prepare {name} in `data_dir`={_tfds_dir(data_dir)}: {reason(error)}"
    ) from error


def _place(name: str) -> str:
  """The name in TFDS, which is also the folder below TFDS's folder."""
  return PREPARABLE.get(name, name.removeprefix(PREFIX))


def _find_prepared(name: str, root: pathlib.Path) -> pathlib.Path:
  """The folder of the newest prepared version of ``name``."""
  place = _place(name)
  versions = _versions(root / place)
  if not versions:
    configs = [
      folder for folder in sorted((root / place).glob("*")) if _versions(folder)
    ]
    if len(configs) > 1:
      raise DataError(
        f"`dataset`={name}: which configuration? Prepared are "
        + ", ".join(f"{PREFIX}{place}/{c.name}" for c in configs)
      )
    versions = _versions(configs[0]) if configs else []
  if not versions:
    raise DataError(
      f"no prepared {name} in `data_dir`={root} (looked for"
      f" {root / place}/*/dataset_info.json): run fedjax-alg prepare {name}"
      f" `data_dir`={root} on a machine with internet and copy the folder"
    )
  return max(versions)[1]


def _versions(folder: pathlib.Path) -> list[tuple[tuple[int, ...], pathlib.Path]]:
  """(number, folder) of the prepared versions in a folder."""
  folders = [path.parent for path in folder.glob("*/dataset_info.json")]
  return [
    (tuple(map(int, path.name.split("."))), path)
    for path in folders
    if re.fullmatch(r"\d+(\.\d+)*", path.name)
  ]


def _cache_name(name: str, directory: pathlib.Path, root: pathlib.Path) -> str:
  if name in PREPARABLE:
    return f"{name}-{directory.name}"
  return "-".join(directory.relative_to(root).parts)


def _fingerprint(directory: pathlib.Path) -> str:
  """Makes a hash that changes if the prepared files change."""
  digest = hashlib.sha256((directory / "dataset_info.json").read_bytes())
  for file in sorted(directory.glob("*array_record*")):
    digest.update(f"{file.name} {file.stat().st_size}\n".encode())
  return digest.hexdigest()


def _default_cache_dir(root: pathlib.Path) -> pathlib.Path:
  if os.access(root, os.W_OK):
    return root / ".fedjax_alg_cache"
  return expand_path("~/.cache/fedjax_alg")


def _decode(directory: pathlib.Path) -> cache.Arrays:
  """Decodes all images and labels of the splits for training and testing."""
  with reading(directory):
    info = prepared_info(directory)
    _check_features(directory, info.features)
    splits = {name: split.num_examples for name, split in info.splits.items()}
  arrays: cache.Arrays = {}
  tests = [split for split in ("test", "validation") if split in splits]
  for name, split in zip(("train", "test"), ("train", *tests)):
    arrays["x_" + name], arrays["y_" + name] = _decode_split(
      directory, split, splits.get(split, 0)
    )
  x, y = arrays["x_train"], arrays["y_train"]
  return {"x_test": x[:0], "y_test": y[:0]} | arrays


def _check_features(directory: pathlib.Path, features: Any) -> None:
  """Checks that the records are images with whole numbers as labels."""
  names = sorted(features) if hasattr(features, "keys") else []
  for name in ("image", "label"):
    if name not in names:
      raise DataError(
        f"{directory}: not labeled images, no feature {name} (it has "
        f"{', '.join(names) or 'no named features'})"
      )
  label = features["label"]
  if label.shape != () or not np.issubdtype(label.np_dtype, np.integer):
    raise DataError(
      f"{directory}: label is {np.dtype(label.np_dtype).name} of "
      f"shape {label.shape}, one class an image is needed"
    )


def _decode_split(
  directory: pathlib.Path, split: str, count: int
) -> tuple[np.ndarray, np.ndarray]:
  where = f"{directory}: split {split}"
  x, y = np.empty(0), np.empty(count, np.int32)
  for row, record in enumerate(records(directory, split)):
    image = record["image"]
    if not row:
      check_memory(
        f"{where}: {count:,} images of shape {image.shape}", float(count) * image.nbytes
      )
      x = np.empty((count, *image.shape), image.dtype)
    if image.dtype != np.uint8:
      raise DataError(f"{where} has images {image.dtype}, only uint8 is read")
    if image.shape != x.shape[1:]:
      raise DataError(
        f"{where} has images of different sizes, {x.shape[1:]} and "
        f"{image.shape}; one size is needed"
      )
    x[row], y[row] = image, record["label"]
  if not count:
    raise DataError(f"{where} is empty")
  if y.min() < 0:
    raise DataError(f"{where} has {(y < 0).sum()} images without a label")
  return x, y


class PreparedDataSet(DataSet):
  """A data set of which ``experiments.prepare`` makes files."""

  PREPARED_AS: ClassVar[str] = ""  #: its name for ``experiments.prepare``

  @property
  def prepared_as(self) -> str:
    """The name of what it reads of the folder of prepared data; "": nothing."""
    return self.PREPARED_AS

  def hash_files(self, data_dir: str | None) -> str:
    """The hash of the prepared version (``DataSet.hash_files``)."""
    return prepared_version(self.prepared_as, data_dir) if self.prepared_as else ""

  def describe_prepared(self, data_dir: str | None) -> str:
    """Reads what is prepared, which also fills the cache of its arrays.

    Args:
      data_dir: the folder of prepared data; None: TFDS's.

    Returns:
      The content, in a few words.

    Raises:
      DataError: the data are missing or unusable.
    """
    raise NotImplementedError


class Tfds(PreparedDataSet):
  """Any image classification data set of TFDS; the prefix may be left out.

  Raises:
    DataError: TFDS has no data set of this name.
  """

  WORD, EXAMPLE = "tfds:NAME", "tfds:emnist/letters"
  BARE = TFDS_NAMES
  HAS_CLIENTS, IMAGES = False, True
  READS = ("data_dir",)

  name: str = hyper(dataclasses.MISSING, "its name")

  def __post_init__(self) -> None:
    super().__post_init__()
    # The names of TFDS are looked up last, importing it takes time.
    if self.name == self.WORD or not is_tfds(self.name):
      raise DataError(f"`dataset`={self.name}: unknown")

  @property
  def label(self) -> str:
    """The name for TFDS."""
    return self.name

  @property
  def prepared_as(self) -> str:
    """The name for TFDS."""
    return self.name

  def describe_prepared(self, data_dir: str | None) -> str:
    """Counts the images (``PreparedDataSet.describe_prepared``)."""
    train, test = load_tfds(self.name, data_dir).rows
    return f"{train} training and {test} test images"

  @property
  def image_shape(self) -> tuple[int, ...] | None:
    """The shape of an image, of the data sets that are offered by name."""
    return IMAGE_SHAPES.get(self.name)

  def load(self, data_dir: str | os.PathLike | None) -> Examples:
    """Loads the images (``load_tfds``)."""
    return load_tfds(self.name, data_dir)
