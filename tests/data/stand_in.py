"""As much of the library ``datasets`` as is read, where it is not installed.

The tests that use it also run with the library, so it cannot drift away.
"""

import io

import numpy as np


class Value:
  """A column of numbers or texts."""

  def __init__(self, dtype):
    self.dtype = dtype


class ClassLabel:
  """A column of class labels."""

  dtype = "int64"

  def __init__(self, names):
    self.names = names


class List:
  """A column of lists."""

  def __init__(self, feature, length=-1):
    self.feature, self.length = feature, length


class Image:
  """A column of images of PIL."""

  dtype = "PIL.Image.Image"

  def decode(self, value):
    from PIL import Image as pil

    return pil.open(io.BytesIO(value["bytes"])) if isinstance(value, dict) else value


Features = dict


class DatasetDict(dict):
  """Named splits."""

  def with_format(self, kind):
    return DatasetDict({name: split.with_format(kind) for name, split in self.items()})

  @property
  def column_names(self):
    return {name: split.column_names for name, split in self.items()}


class IterableDataset:
  """Rows that are streamed."""

  column_names = None

  def with_format(self, kind):
    return self


def _integer(feature):
  while hasattr(feature, "feature"):
    feature = feature.feature
  return "int" in str(feature.dtype)


def _as_numpy(values, feature):
  """Integers become int64 of whatever size they are stored in."""
  if (
    _integer(feature)
    and None not in values
    and not any(isinstance(value, list) and None in value for value in values)
  ):
    try:
      return np.asarray(values, np.int64)
    except ValueError:
      pass  # ragged
  elif _integer(feature):
    values = [np.nan if value is None else value for value in values]
  try:
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype.kind == "f" else array
  except ValueError:
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
      array[row] = None if value is None else _as_numpy(value, feature)
    return array


class Dataset:
  """A table in memory."""

  def __init__(self, table, features, kind=None, transform=None):
    self.table, self.features = table, features
    self.format, self.transform = {"type": kind}, transform

  @classmethod
  def from_dict(cls, table, features):
    return cls({name: list(column) for name, column in table.items()}, features)

  @property
  def column_names(self):
    return list(self.table)

  def __len__(self):
    return len(next(iter(self.table.values())))

  def with_format(self, kind=None, columns=None):
    table = {name: self.table[name] for name in columns or self.table}
    return Dataset(table, self.features, kind)

  def with_transform(self, transform):
    return Dataset(self.table, self.features, "custom", transform)

  def to_iterable_dataset(self):
    return IterableDataset()

  def select(self, rows):
    return Dataset(
      {name: [column[row] for row in rows] for name, column in self.table.items()},
      self.features,
    )

  def __getitem__(self, key):
    if isinstance(key, str):
      values = self.table[key]
      return (
        _as_numpy(values, self.features[key])
        if (self.format["type"] == "numpy")
        else values
      )
    rows = [key] if isinstance(key, int) else range(len(self))[key]
    batch = {}
    if self.format["type"] == "numpy":
      return {
        name: _as_numpy([column[row] for row in rows], self.features[name])
        for name, column in self.table.items()
      }
    for name, column in self.table.items():
      decode = getattr(self.features[name], "decode", lambda value: value)
      batch[name] = [decode(column[row]) for row in rows]
    return self.transform(batch) if self.transform else batch
