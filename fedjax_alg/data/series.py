"""Series of any length as windows of one length, which models read as examples."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import check_memory
from fedjax_alg.errors import a_type
from fedjax_alg.part import of_type


class Windows(NamedTuple):
  """Windows of series, in the order of the series and of time."""

  x: np.ndarray  #: [n, length, ...], the dtype of the series
  series: np.ndarray  #: [n] int, the place in the list of the series of each window
  first: np.ndarray  #: [n] int, the place in its series of the first point


def window(
  series: Sequence[npt.ArrayLike], length: int, step: int | None = None
) -> Windows:
  """Cuts series into windows of one length.

  What is left at the end of a series is dropped, and a series with fewer points than
  ``length`` has no window. Split series into those for training and for testing
  before you cut them: windows of one series that overlap have points in common.

  Args:
    series: arrays [T_i, ...] of numbers, with the same shape behind the first axis.
    length: points of a window, at least 1.
    step: points between the begins of two windows, at least 1; default ``length``, so
      that windows do not overlap.

  Returns:
    The windows, and the series that each comes from.

  Raises:
    DataError: no series has ``length`` points, or their shapes or types differ, or
      ``length`` or ``step`` is below 1.
    OptionError: ``length`` or ``step`` is no whole number.

  Examples:
    >>> cut = window([np.arange(5), np.arange(10, 13)], length=2)
    >>> cut.x.tolist(), cut.series.tolist()
    ([[0, 1], [2, 3], [10, 11]], [0, 0, 1])
  """
  step = length if step is None else step
  for name, value in (("length", length), ("step", step)):
    if of_type(name, value, int) < 1:
      raise DataError(f"`{name}`={value}: must be at least 1")
  if isinstance(series, str) or not isinstance(series, Iterable):
    raise DataError(f"`series`: {a_type(series)}, must be a list of arrays")
  arrays = [_check_series(place, of) for place, of in enumerate(series)]
  for place, array in enumerate(arrays):
    if array.shape[1:] != arrays[0].shape[1:] or array.dtype != arrays[0].dtype:
      raise DataError(
        f"`series`[{place}]: points of shape {array.shape[1:]} {array.dtype}, those of "
        f"the first have {arrays[0].shape[1:]} {arrays[0].dtype}"
      )
  counts = [max(0, (len(array) - length) // step + 1) for array in arrays]
  if not sum(counts):
    longest = max(map(len, arrays), default=0)
    raise DataError(f"`length`={length}: the longest series has {longest} points")
  of_point = arrays[0].itemsize * int(np.prod(arrays[0].shape[1:]))
  check_memory(
    f"`step`={step}: {sum(counts):,} windows", 2.0 * sum(counts) * length * of_point
  )
  firsts = [step * np.arange(count) for count in counts]
  places = np.arange(length)
  return Windows(
    np.concatenate([of[first[:, None] + places] for of, first in zip(arrays, firsts)]),
    np.repeat(np.arange(len(arrays)), counts),
    np.concatenate(firsts),
  )


def _check_series(place: int, values: Any) -> np.ndarray:
  """A series as an array of numbers.

  Raises:
    DataError: it is none.
  """
  try:
    array = np.asarray(values)
  except ValueError:  # rows of different lengths
    array = np.empty(0, object)
  if array.dtype.kind not in "fiub" or not array.ndim:
    raise DataError(
      f"`series`[{place}]: {a_type(values)}, must be an array of numbers, a row for "
      "each point in time"
    )
  return array
