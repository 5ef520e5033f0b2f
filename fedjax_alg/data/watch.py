"""Shoulder exercises with a smart watch: every person a client."""

import pathlib
from typing import Any

import numpy as np

from fedjax_alg import files
from fedjax_alg.data.arrays import make_examples
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.series import window
from fedjax_alg.data.sources import DataSet
from fedjax_alg.errors import OptionError, reason
from fedjax_alg.hparams import hyper
from fedjax_alg.pickles import HostileError, read_npy_objects

#: The package, its file with the series, and the checksum of version 1.2.5.
_PACKAGE, _FILE = "seglearn", "data/watch_dataset.npy"
_SHA256 = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"
_LABEL = "`dataset`=watch"
_ADVICE = "pip install 'fedjax_alg[watch]'"

#: What is for testing, see ``load_watch``.
TESTS = ("arm", "part")
_PART = 5  # a series is so many times as long as its part for testing

#: Series with the number of their person and the name of their exercise.
_Pieces = list[tuple[np.ndarray, int, str]]


def read_series(path: pathlib.Path) -> dict[str, Any]:
  """Reads the file of the package, without running the pickle that it is.

  Args:
    path: the file, a dictionary that ``np.save`` has pickled.

  Returns:
    "X": 140 arrays [T, 6] float64, 50 points a second of acceleration (ax, ay, az)
    and of rotation (wx, wy, wz); "y" [140], "subject" [140] and "side" [140], the
    exercise, the person and the arm (1 is the right one); "y_labels", the names of
    the 7 exercises.

  Raises:
    DataError: it cannot be read or is damaged, or the pickle would call something.
  """
  try:
    with files.open_regular(path) as file:
      series: dict[str, Any] = read_npy_objects(file)
      entries = {"X", "y", "subject", "side", "y_labels"}
      if not entries <= series.keys():
        raise ValueError("another dictionary")
      return series
  except OSError as error:
    raise DataError(f"{_LABEL}: cannot be read ({reason(error)})") from error
  except HostileError as error:
    raise DataError(
      f"{_LABEL}: {path} is a pickle that would call {error}, which no series needs "
      "(nothing of it was run)"
    ) from None
  except Exception as error:  # pickles have errors of all kinds
    raise DataError(f"{_LABEL}: {path} is damaged ({_ADVICE})") from error


def _split_arms(series: dict[str, Any], seed: int) -> tuple[_Pieces, _Pieces]:
  """One of the two series of each exercise of a person is for testing."""
  people, exercises = np.unique(series["subject"]), len(series["y_labels"])
  tested = np.random.default_rng(seed).integers(2, size=(len(people), exercises))
  train: _Pieces = []
  test: _Pieces = []
  for x, person, exercise, side in zip(
    series["X"], series["subject"], series["y"], series["side"], strict=True
  ):
    is_test = side == tested[np.searchsorted(people, person), exercise]
    piece = x, int(person), series["y_labels"][exercise]
    (test if is_test else train).append(piece)
  return train, test


def _split_parts(series: dict[str, Any], seed: int) -> tuple[_Pieces, _Pieces]:
  """A random fifth of each series is for testing, and what is before and behind not."""
  rng = np.random.default_rng(seed)
  train: _Pieces = []
  test: _Pieces = []
  for x, person, exercise in zip(
    series["X"], series["subject"], series["y"], strict=True
  ):
    size = len(x) // _PART
    first = int(rng.integers(len(x) - size + 1))
    of = int(person), series["y_labels"][exercise]
    train += [(x[:first], *of), (x[first + size :], *of)]
    test.append((x[first : first + size], *of))
  return train, test


def load_watch(
  length: int = 100, step: int = 50, test: str = "arm", seed: int = 0
) -> Examples:
  """Loads windows of the series that the package seglearn brings.

  Burns et al., "Shoulder Physiotherapy Exercise Recognition: Machine Learning the
  Inertial Signals from a Smartwatch", arXiv:1802.01489. The package brings ten people,
  who did seven exercises with each arm, about twenty times in a row: 140 series of 19
  to 52 seconds. Series are split before they are cut into windows, so that no point is
  both in a window for training and in one for testing:

    ``arm``: of each exercise of a person one series is for testing, of a random arm.
      No window of a test series is used for training. A person's data for training
      then have each exercise with one arm alone, and tests are with the other arm.
    ``part``: a random stretch of a fifth of each series is for testing. The person
      has then trained on the same exercise with the same arm.

  Args:
    length: points of a window, 50 a second.
    step: points between the begins of two windows of a series.
    test: one of ``TESTS``.
    seed: of the choice of what is for testing.

  Returns:
    Windows float32 [n, length, 6] of acceleration and rotation, as the watch gives
    them; 7 classes by their names in ``encoding``; and the people as clients.

  Raises:
    DataError: the package is missing or has another file, or windows are longer than
      the series.
  """
  try:
    (path,) = files.find_in_package(_PACKAGE, {_FILE: _SHA256}, _LABEL, _ADVICE)
  except OptionError as error:
    raise DataError(error.text) from None
  split = _split_arms if test == "arm" else _split_parts
  arrays: dict[str, Any] = {}
  for name, pieces in zip(("train", "test"), split(read_series(path), seed)):
    try:
      cut = window([x.astype(np.float32) for x, *_ in pieces], length, step)
    except DataError as error:
      raise DataError(f"{_LABEL}: {error.text} for {name}ing") from None
    arrays |= {
      f"x_{name}": cut.x,
      f"y_{name}": np.array([exercise for *_, exercise in pieces])[cut.series],
      f"client_{name}": np.array([person for _, person, _ in pieces])[cut.series],
    }
  return make_examples(arrays, lambda array: array, "watch")


class Watch(DataSet):
  """Seven exercises of ten people, as a smart watch has measured them (seglearn)."""

  WORD, EXAMPLE = "watch", "watch:100,step=50"
  HAS_CLIENTS = True
  READS = ("partition_seed",)

  length: int = hyper(100, "points of a window, 50 a second", minimum=1, maximum=10_000)
  step: int = hyper(
    50, "points between the begins of two windows of a series", minimum=1
  )
  test: str = hyper(
    "arm",
    "what is for testing, drawn by `partition_seed`: of each exercise of a person the "
    "series of one arm, or a part (a fifth) of each series",
    choices=TESTS,
  )

  def load(self, seed: int) -> Examples:
    """Loads the windows (``load_watch``)."""
    return load_watch(self.length, self.step, self.test, seed)
