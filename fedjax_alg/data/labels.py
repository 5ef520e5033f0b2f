"""Names of classes and categories as whole numbers.

An encoding is learnt from the training examples and holds for all others: the
code of a name is its place among the names, and a name without a place is
refused. Else the test examples of a split that lacks a class would be numbered
anew.
"""

from collections.abc import Hashable, Mapping, Sequence
import numbers
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg.data.errors import DataError

#: A message lists so many names at most.
_LISTED = 10


class Encoding(NamedTuple):
  """Mapping of names to numbers, as learned from the training examples."""

  #: the name of each class, by its number; None if the labels were numbers
  classes: tuple[Hashable, ...] | None = None
  #: categorical column of x or y -> the names of its categories, by their
  #: codes; None if there is none
  categories: Mapping[Hashable, tuple[Hashable, ...]] | None = None
  #: the columns of the features: a list of names, the name of one column of
  #: arrays, or a dictionary of either; None if the examples were arrays
  columns: Any = None
  #: the categorical columns that are one number each, since theirs are ordered
  ordered: tuple[Hashable, ...] = ()
  #: column of x -> what takes the place of its missing values; those of other
  #: columns are refused
  fill: Mapping[Hashable, Hashable] | None = None

  def feature_names(self) -> list[str]:
    """Lists what each input of a model stands for, such as "age" and "ward=b".

    Returns:
      A name for each of the D features of a list of columns; empty where the
      features are no such list.
    """
    if not isinstance(self.columns, list):
      return []
    names = []
    for column in self.columns:
      parts = (self.categories or {}).get(column)
      if parts is None or column in self.ordered:
        names.append(str(column))
      else:
        names += [f"{column}={part}" for part in parts]
    return names


def are_names(values: np.ndarray) -> bool:
  """Whether labels are texts, truth values or other objects, not numbers."""
  return values.dtype.kind in "USbO"


def whole_objects(values: np.ndarray) -> np.ndarray:
  """Converts objects that are all whole numbers to int64, and nothing else.

  Args:
    values: [n] of any dtype.
  """
  if (
    values.dtype == object
    and values.size
    and all(
      isinstance(value, numbers.Integral) and not isinstance(value, bool)
      for value in values.ravel()
    )
  ):
    try:
      return values.astype(np.int64)
    except OverflowError:  # refused by its type
      pass
  return values


def _missing_rows(values: np.ndarray) -> np.ndarray:
  """Finds the rows that are None, NaN, NaT or pandas' NA.

  Args:
    values: [n, ...] of any dtype.

  Returns:
    The numbers of the rows, int64, in order.
  """
  if not values.size or not values.ndim:  # no rows: its shape is refused elsewhere
    return np.zeros(0, np.int64)
  if values.dtype.kind in "fcmM":
    missing = np.asarray(values != values)
  elif values.dtype.kind == "O":
    missing = np.array([_is_missing(value) for value in values.ravel()], bool).reshape(
      values.shape
    )
  else:
    return np.zeros(0, np.int64)
  return np.nonzero(missing.reshape(len(values), -1).any(1))[0]


def _is_missing(value: object) -> bool:
  if value is None or type(value).__name__ in ("NAType", "NaTType"):
    return True
  return isinstance(value, (numbers.Number, np.generic)) and bool(value != value)


def check_present(values: np.ndarray, subject: str) -> None:
  """Refuses missing values.

  Args:
    values: [n, ...] of any dtype.
    subject: how a message starts: the parameter, and perhaps the column.

  Raises:
    DataError: values are missing; the message has their number and the first
      row.
  """
  refuse_missing(_missing_rows(values), subject)


def refuse_missing(rows: np.ndarray, subject: str, advice: str = "") -> None:
  """Says which values are missing, if any are.

  Args:
    rows: the numbers of their rows.
    subject: see ``check_present``.
    advice: how they can be filled, for the message.

  Raises:
    DataError: there are rows.
  """
  if len(rows):
    raise DataError(
      f"{subject} has {len(rows)} missing value{'s' * (len(rows) > 1)} "
      f"(None, NaN, NaT or NA), the first in row {rows[0]}: fill them "
      f"or leave these rows out{advice}"
    )


def learn_names(values: np.ndarray, subject: str) -> tuple[str | bool, ...]:
  """Finds the names of the classes of training labels.

  Args:
    values: [n] texts, bytes in UTF-8 or truth values, also as objects.
    subject: see ``check_present``.

  Returns:
    The different names in sorted order, as Python's values. Of truth values
    always False and True.

  Raises:
    DataError: a label is missing, or they are neither all texts nor all truth
      values.
  """
  names = _plain(values, subject)
  if all(isinstance(name, bool) for name in names):
    return False, True
  texts = [name for name in names if isinstance(name, str)]
  if len(texts) == len(names):
    return tuple(sorted(set(texts)))
  kinds = sorted({type(name).__name__ for name in names})
  raise DataError(
    f"{subject} holds {' and '.join(kinds)}, labels must be of one kind: "
    "texts, truth values or whole numbers from 0"
  )


def encode_labels(
  values: np.ndarray,
  names: Sequence[Hashable],
  subject: str,
  source: str = "the training examples",
) -> np.ndarray:
  """Converts names to their places among known ones.

  Args:
    values: [n] texts, bytes in UTF-8, truth values or objects.
    names: the known names, such as those of ``learn_names``.
    subject: see ``check_present``.
    source: where the names are from, for messages.

  Returns:
    [n] int32 in [0, len(names)).

  Raises:
    DataError: a value is missing or none of the names; the message has the
      value, its row and the names.
  """
  number_of = {name: number for number, name in enumerate(names)}
  plain = _plain(values, subject)
  try:
    return np.array([number_of[name] for name in plain], np.int32)
  except KeyError:
    pass
  row = next(row for row, name in enumerate(plain) if name not in number_of)
  listed = ", ".join(map(str, names[:_LISTED]))
  raise DataError(
    f"{subject} has {plain[row]!r} in row {row}, which is none of the "
    f"{len(names)} names of {source} ({listed}"
    f"{', ...' * (len(names) > _LISTED)}): leave such rows out, or have examples of "
    "all names there"
  )


def _plain(values: np.ndarray, subject: str) -> list[Hashable]:
  """Labels as Python's values, all of which can be keys of a dictionary."""
  if values.ndim != 1:
    raise DataError(
      f"{subject} has shape {values.shape}, one label for each row is needed"
    )
  check_present(values, subject)
  plain = [_decode(name) for name in values.tolist()]
  try:
    hash(tuple(plain))
  except TypeError:
    odd = next(name for name in plain if not _is_key(name))
    raise DataError(
      f"{subject} holds {type(odd).__name__}, one label for each row is needed"
    ) from None
  return plain


def _decode(name: Hashable) -> Hashable:
  if isinstance(name, np.generic):
    name = name.item()
  return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def _is_key(name: object) -> bool:
  try:
    hash(name)
  except TypeError:
    return False
  return True
