"""The "FEMNIST" of FedProx: ten letters, of which each client holds three."""

import io
import os
import pathlib
import warnings

import numpy as np

from fedjax_alg import files
from fedjax_alg.data import cache, tfds_source
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.npz_source import read_named_arrays
from fedjax_alg.data.tfds_source import PreparedDataSet
from fedjax_alg.files import expand_path
from fedjax_alg.hparams import hyper

KINDS = ("fixed", "leaky")

_LETTERS = 10
_PER_CLIENT = 3  # letters of one client
_POOL = 4000  # maximum number of images of a letter
_FEWEST = 2  # minimum number of images of one letter at a client
_OUTPUTS = 26
_FIRST_LABEL = 36  # label of "a" in EMNIST/byclass (0 to 9, A to Z, a to z)


def femnist(
  x: np.ndarray,
  y: np.ndarray,
  kind: str,
  num_clients: int,
  seed: int,
  name: str = "femnist",
) -> Examples:
  """Deals a pool of letters like the generator of the FedProx repository.

  Client u holds the letters (u + j) % 10, j in {0, 1, 2}. It gets the next
  q = max(int(n_u / 3), 2) images of each of these letters, where n_u =
  LogNormal(4, 1) + 5. Its n images are shuffled, and int(.9 n) of them are for
  training. Before that, the images of each letter are shuffled, and at most
  4,000 of them are used.

  The published code (data/nist/data/my_sample.py; Li et al. 2020) resets the
  pointer of a letter to 0 if q more images *are* left, where it should do so
  if they are not left. Almost every client therefore gets the first images of
  each letter, and 94 to 99 % of the test images, depending on the seed, are
  training images of another client. FedProx, FedGroup and FlexCFL report
  results on these data. Kinds:
    ``leaky``: as published. If fewer than q images are left, a client gets
      these. If no image of a letter is left, the pointer is reset to 0; the
      published code would give empty clients here.
    ``fixed``: no image is used twice. If the pool is too small, all n_u are
      multiplied by the largest possible factor, with q at least 2.

  The 26 outputs of the papers are kept (20,410 parameters of a softmax
  regression on 784 inputs), although 16 of the classes never occur.

  Args:
    x: [n, 28, 28] or [n, 28, 28, 1] uint8, the pool.
    y: [n] int, letters 0 to 9.
    kind: one of ``KINDS``.
    num_clients: C; 200 in the papers.
    seed: seed of all random numbers. Both kinds draw the same n_u.
    name: name of the data set.

  Returns:
    The examples, x uint8 [m, 28, 28, 1], 26 classes, with client ids.

  Raises:
    DataError: too few images.
  """
  rng = np.random.default_rng(seed)
  size = rng.lognormal(4.0, 1.0, num_clients) + 5
  pool = [
    rng.permutation(np.flatnonzero(y == letter))[:_POOL] for letter in range(_LETTERS)
  ]
  letters = (np.arange(num_clients)[:, None] + np.arange(_PER_CLIENT)) % (_LETTERS)
  if kind == "fixed":
    number = _fit(size, letters, np.array([len(rows) for rows in pool]))
  else:
    number = _numbers(size)
  pointer = np.zeros(_LETTERS, np.int64)
  train, test = [], []
  for client in range(num_clients):
    q, of_client = number[client], []
    for letter in letters[client]:
      count = len(pool[letter])
      if kind == "leaky" and (pointer[letter] + q < count or pointer[letter] >= count):
        pointer[letter] = 0
      of_client.append(pool[letter][pointer[letter] : pointer[letter] + q])
      pointer[letter] += q
    rows = rng.permutation(np.concatenate(of_client))
    split = int(0.9 * len(rows))
    train.append(rows[:split])
    test.append(rows[split:])
  images = x.reshape(len(x), *x.shape[1:3], 1)
  parts = []
  for split_rows in (train, test):
    rows = np.concatenate(split_rows)
    sizes = [len(part) for part in split_rows]
    parts.append(
      (
        images[rows],
        y[rows].astype(np.int32),
        np.repeat(np.arange(num_clients, dtype=np.int32), sizes),
      )
    )
  (x_train, y_train, client_train), (x_test, y_test, client_test) = parts
  return Examples(
    x_train=x_train,
    y_train=y_train,
    x_test=x_test,
    y_test=y_test,
    num_classes=_OUTPUTS,
    client_train=client_train,
    client_test=client_test,
    name=name + (", leaky" if kind == "leaky" else ""),
  )


def _numbers(size: np.ndarray, factor: float = 1.0) -> np.ndarray:
  """[C] q of each client, for sizes multiplied by ``factor``."""
  return np.maximum((factor * size / _PER_CLIENT).astype(np.int64), _FEWEST)


def _fit(size: np.ndarray, letters: np.ndarray, available: np.ndarray) -> np.ndarray:
  """[C] q of each client, with sizes scaled so that all letters suffice."""

  def short(number):
    needed = np.bincount(
      letters.ravel(), np.repeat(number, _PER_CLIENT), len(available)
    )
    return np.flatnonzero(needed > available), needed

  if not len(short(_numbers(size))[0]):
    return _numbers(size)
  low, high = 0.0, 1.0
  missing, needed = short(_numbers(size, low))
  if len(missing):
    raise DataError(
      f"`num_clients`={len(size)}: `femnist`=fixed gives every client at"
      f" least {_FEWEST} images of each of {_PER_CLIENT} letters, letter"
      f" {missing[0]} has {available[missing[0]]} of the"
      f" {needed[missing[0]]:.0f} needed"
    )
  for _ in range(50):
    middle = (low + high) / 2
    if len(short(_numbers(size, middle))[0]):
      high = middle
    else:
      low = middle
  return _numbers(size, low)


def load_femnist(
  kind: str,
  num_clients: int,
  seed: int,
  data_dir: str | os.PathLike | None = None,
  path: str | os.PathLike | None = None,
  cache_dir: str | os.PathLike | None = None,
) -> Examples:
  """Makes ``femnist`` from the letters a to j of EMNIST or from your file.

  Args:
    kind: one of ``KINDS``.
    num_clients: C.
    seed: see ``femnist``.
    data_dir: TFDS's folder with emnist/byclass; see ``load_tfds``.
    path: an ``.npz`` that is used instead of EMNIST; see ``_letters_npz``.
    cache_dir: see ``load_tfds``.

  Returns:
    The examples.

  Raises:
    DataError: EMNIST is not prepared, or the file cannot be used.
  """
  if path is None:
    x, y = emnist_letters(data_dir, cache_dir)
    warnings.warn(
      f"dataset=femnist: ten letters dealt to {num_clients} clients, as in the FedProx "
      "and FedGroup papers; LEAF's FEMNIST, 62 classes by writer, is dataset=leaf",
      stacklevel=2,
    )
    return femnist(x, y, kind, num_clients, seed)
  path = expand_path(path, "dataset")
  x, y = _letters_npz(path)
  return femnist(x, y, kind, num_clients, seed, f"{path.stem} (in place of EMNIST)")


def _letters_npz(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
  """Reads a substitute for EMNIST from a file.

  Args:
    path: an ``.npz`` with x [n, 28, 28] or [n, 28, 28, 1] uint8 and y [n] with
      10 different labels.

  Returns:
    x, and y as 0 to 9 in the order of the labels.

  Raises:
    DataError: the file is missing or damaged, or has other arrays.
  """
  arrays = read_named_arrays(path, ("x", "y"))
  x, y = arrays["x"], arrays["y"]
  if x.dtype != np.uint8 or x.shape[1:] not in ((28, 28), (28, 28, 1)):
    raise DataError(
      f"`dataset`={path}: x is {x.dtype} of shape {x.shape}, uint8 images"
      " [n, 28, 28] are needed"
    )
  if y.dtype.kind not in "iu" or y.shape != (len(x),):
    raise DataError(
      f"`dataset`={path}: y is {y.dtype} of shape {y.shape}, integers of"
      f" shape {(len(x),)} are needed"
    )
  labels, y = np.unique(y, return_inverse=True)
  if len(labels) != _LETTERS:
    raise DataError(
      f"`dataset`={path}: y has {len(labels)} different labels, {_LETTERS} are needed"
    )
  return x, y.astype(np.int32)


def emnist_letters(
  data_dir: str | os.PathLike | None = None,
  cache_dir: str | os.PathLike | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Loads the letters a to j of the training split of TFDS's emnist/byclass.

  Args:
    data_dir: TFDS's folder; see ``load_tfds``.
    cache_dir: see ``load_tfds``.

  Returns:
    x uint8 [n, 28, 28, 1], upright (TFDS stores the images transposed), and y
    int32 [n], 0 to 9. Of each letter these are the first 4,000 images in the
    order of TFDS; rare letters have fewer.

  Raises:
    DataError: the data set is missing or damaged.
  """
  arrays = tfds_source.read_arrays("emnist", data_dir, cache_dir, _decode)
  return arrays["x"], arrays["y"]


def _decode(directory: pathlib.Path) -> cache.Arrays:
  from PIL import Image  # pylint: disable=g-import-not-at-top
  import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

  # Only the needed images, fewer than 40,000 of 697,932, are decoded.
  source = tfds_source.records(
    directory, "train", decoders={"image": tfds.decode.SkipDecoding()}
  )
  x, y = [], []
  count = [0] * _LETTERS
  for record in source:
    letter = int(record["label"]) - _FIRST_LABEL
    if not 0 <= letter < _LETTERS or count[letter] == _POOL:
      continue
    count[letter] += 1
    try:
      x.append(np.asarray(Image.open(io.BytesIO(record["image"]))).T)
    except OSError as error:
      raise tfds_source.unreadable(directory, error) from error
    y.append(letter)
  if min(count) == 0:
    raise DataError(
      f"{directory} has no letter {'abcdefghij'[count.index(0)]}: not emnist/byclass?"
    )
  return {"x": np.stack(x)[..., None], "y": np.array(y, np.int32)}


class Femnist(PreparedDataSet):
  """Ten letters of EMNIST, dealt to clients as FedProx and FedGroup do."""

  WORD, EXAMPLE = "femnist", "femnist:leaky"
  HAS_CLIENTS, CLIENTS, PREPARED_AS = True, 200, "emnist"
  READS = ("num_clients", "partition_seed", "data_dir")

  path: str | None = hyper(
    None,
    "an .npz of x [n, 28, 28] uint8 and y with ten labels, used instead of EMNIST",
  )
  leaky: bool = hyper(
    False,
    "whether the letters are distributed as in the published generator, which gives "
    "nearly all clients the same images for training and for testing; else each image "
    "goes to one client",
  )

  @property
  def prepared_as(self) -> str:
    """EMNIST, if no file stands in its place."""
    return "" if self.path else self.PREPARED_AS

  @property
  def image_shape(self) -> tuple[int, ...]:
    """28 x 28 x 1."""
    return (28, 28, 1)

  def load(self, num_clients: int, seed: int, data_dir: str | None) -> Examples:
    """Deals the letters (``load_femnist``)."""
    return load_femnist(KINDS[self.leaky], num_clients, seed, data_dir, self.path)

  def hash_files(self, data_dir: str | None) -> str:
    """The hash of the file, or EMNIST's version (``DataSet.hash_files``)."""
    if self.path:
      return files.contents_key([files.expand_path(self.path, "dataset")])
    return super().hash_files(data_dir)

  def describe_prepared(self, data_dir: str | None) -> str:
    """Counts the letters of EMNIST (``PreparedDataSet.describe_prepared``)."""
    return f"{len(emnist_letters(data_dir)[1])} letters (a to j)"
