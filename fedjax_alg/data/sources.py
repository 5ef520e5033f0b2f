"""Loads the digits of scikit-learn and the user's own .npz."""

from collections.abc import Sequence
import errno
import importlib.util
import os
import pathlib
from typing import Any

import numpy as np

from fedjax_alg import tasks
from fedjax_alg.data import npz
from fedjax_alg.data.arrays import make_examples, number_clients
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.files import expand_path

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def _of_sklearn(
  name: str, files: Sequence[str], delimiter: str | None = None, **options: object
) -> np.ndarray:
  """A data set of scikit-learn [n, d + 1], the targets in the last column.

  If its files are where they were, they are read alone: to import scikit-learn
  takes a second.
  """
  spec = importlib.util.find_spec("sklearn")
  if spec is not None and spec.origin is not None:
    folder = pathlib.Path(spec.origin).parent / "datasets/data"
    if all((folder / file).is_file() for file in files):
      return np.column_stack(
        [np.loadtxt(folder / file, delimiter=delimiter) for file in files]
      )
  from sklearn import datasets  # pylint: disable=g-import-not-at-top

  bunch = getattr(datasets, f"load_{name}")(**options)
  return np.column_stack([bunch.data, bunch.target])


def load_digits(seed: int = 0, test_fraction: float = 0.2) -> Examples:
  """Loads the 1,797 digits of scikit-learn, which need no download.

  Args:
    seed: seed of the test split. It is not the seed of a run: every run tests
      on the same images.
    test_fraction: share of each class that is in the test set, in (0, 1).

  Returns:
    Images float32 [n, 8, 8, 1] in [0, 1], 10 classes.
  """
  rows = _of_sklearn("digits", ["digits.csv.gz"], ",")
  x = (rows[:, :-1].reshape(-1, 8, 8, 1) / 16).astype(np.float32)
  y = rows[:, -1].astype(np.int32)
  rng = np.random.default_rng(seed)
  is_test = np.zeros(len(y), bool)
  for label in range(10):
    members = rng.permutation(np.flatnonzero(y == label))
    is_test[members[: round(test_fraction * len(members))]] = True
  return Examples(
    x_train=x[~is_test],
    y_train=y[~is_test],
    x_test=x[is_test],
    y_test=y[is_test],
    num_classes=10,
    client_train=None,
    client_test=None,
    name="digits",
  )


def load_diabetes(seed: int = 0, test_fraction: float = 0.2) -> Examples:
  """Loads the 442 patients of scikit-learn, for regression.

  Efron, Hastie, Johnstone, Tibshirani, "Least Angle Regression", Annals of
  Statistics 2004: age, sex, body mass index, blood pressure and six blood serum
  measurements, and the progression of the disease after a year (25 to 346).

  Args:
    seed: seed of the test split. It is not the seed of a run: every run tests
      on the same patients.
    test_fraction: share of the patients that is in the test set, in (0, 1).

  Returns:
    Features float32 [n, 10] of mean 0 and variance 1 over the training set, and
    targets [n, 1] in units of 100.
  """
  rows = _of_sklearn(
    "diabetes", ["diabetes_data_raw.csv.gz", "diabetes_target.csv.gz"], scaled=False
  )
  x, y = rows[:, :-1], rows[:, -1]
  order = np.random.default_rng(seed).permutation(len(y))
  first = round(test_fraction * len(y))
  test, train = np.sort(order[:first]), np.sort(order[first:])
  x = (x - x[train].mean(0)) / x[train].std(0)
  return make_examples(
    {
      "x_train": x[train],
      "y_train": y[train] / 100,
      "x_test": x[test],
      "y_test": y[test] / 100,
    },
    lambda name: name,
    "diabetes",
    task=tasks.resolve_task("regression"),
  )


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

  names = None
  ids = {which: array for which, array in arrays.items() if which.startswith("client_")}
  if (
    ids
    and all(array.dtype.kind == "U" for array in ids.values())
    and ("client_train" in ids)
  ):
    numbers, names = number_clients(ids)
    arrays |= numbers
  return make_examples(
    arrays, label_of, path.stem, client_names=names, task=tasks.resolve_task(task)
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
