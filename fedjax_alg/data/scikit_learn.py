"""The small data sets that come with scikit-learn."""

from collections.abc import Sequence
import importlib.util
import pathlib

import numpy as np

from fedjax_alg.data.arrays import make_examples
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.sources import DataSet


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
    task="regression",
  )


class Digits(DataSet):
  """Handwritten digits, 1,797 images of 8 x 8 pixels (scikit-learn)."""

  WORD, EXAMPLE = "digits", "digits"
  HAS_CLIENTS, IMAGES = False, True

  @property
  def image_shape(self) -> tuple[int, ...]:
    """8 x 8."""
    return (8, 8)

  def load(self) -> Examples:
    """Loads the digits."""
    return load_digits()


class Diabetes(DataSet):
  """Ten numbers of 442 patients, and how their disease progressed (scikit-learn)."""

  WORD, EXAMPLE = "diabetes", "diabetes"
  HAS_CLIENTS, INPUTS, TASK = False, 10, "regression"

  def load(self) -> Examples:
    """Loads the patients."""
    return load_diabetes()
