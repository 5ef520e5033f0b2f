"""New rows as the inputs of a trained model: names, features and scaling.

What a run has learnt of its training rows, the names of categories, what stands
for missing values and the scale of features, holds for all rows after them. A
federation keeps it, and so does the folder of a run.
"""

from collections.abc import Hashable
import json
import pathlib
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import files
from fedjax_alg.data import arrays, frames, store
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.features import Scaler, none
from fedjax_alg.data.labels import Encoding
from fedjax_alg.data.options import DataOptions
from fedjax_alg.errors import as_unicode
from fedjax_alg.typing import DTypes, Facts, Shapes

#: The file of a run's folder with the names of its classes and columns.
ENCODING = "encoding.json"
#: The file of a run's folder with mean and factor of each input.
SCALER = "scaler.npz"


class Preprocessing(NamedTuple):
  """How raw rows become what a model reads."""

  options: DataOptions  #: the features
  shape: Shapes  #: of one example, as the model reads it
  dtype: DTypes  #: likewise
  encoding: Encoding | None = None  #: of frames
  scaler: Scaler | None = None  #: with ``features=standardize``
  body: str = ""  #: with a layer of a run, the hash of that run (``hash_of``)
  raw_dtype: DTypes | None = None  #: of one example before features; None: unknown
  num_tokens: int | None = None  #: ids lie below it; None: not known

  def apply(self, x: Any) -> Any:
    """Computes the inputs of new rows.

    Args:
      x: n rows: a pandas ``DataFrame`` with the columns of the training frame
        (others are not read), or an array [n, ...] or a dictionary of arrays,
        like those of the training examples.

    Returns:
      The inputs [n, ...] of the model, float32 or int32.

    Raises:
      DataError: rows of another kind or shape, numbers that are no ids of tokens
        where the model reads these, a value is missing, or a name is none of
        those of the training frame.
      OptionError: the run whose layer the model reads is gone, or has changed.
    """
    if hasattr(x, "columns") and hasattr(x, "dtypes"):
      if self.encoding is None or self.encoding.columns is None:
        raise DataError(
          "`x`: a DataFrame, but the model was trained on arrays; give an array"
        )
      x = frames.encode_features(self.encoding, x)
    numbers = store.map_arrays(lambda dtype: dtype != np.int32, self.dtype)
    images: Any = False
    if self.raw_dtype is not None:
      images = store.map_arrays(lambda dtype: dtype == np.uint8, self.raw_dtype)
    x = arrays.as_features("`x`:", x, to_numbers=numbers, are_images=images)
    if isinstance(x, dict):
      x = {name: none(part) for name, part in x.items()}
    elif self.scaler is not None:
      self._check_shape(x)  # NumPy would stretch it
      x = self.scaler.apply(x)
    else:
      x = self.options.features.compute(x, self.body)
    self._check_shape(x)
    store.map_arrays(self._check_numbers, x, self.dtype)
    return x

  def _check_numbers(self, x: np.ndarray, dtype: np.dtype) -> None:
    """Refuses numbers where the model reads ids of tokens, and ids of no token.

    Raises:
      DataError: there are such.
    """
    if x.dtype != dtype:
      raise DataError(
        f"`x`: is {x.dtype}, the model reads ids of tokens; give signed integers"
      )
    largest = int(x.max(initial=-1)) if dtype == np.int32 else -1
    if self.num_tokens is not None and largest >= self.num_tokens:
      raise DataError(
        f"`x`: has the token id {largest}, ids must lie in [0, {self.num_tokens})"
      )

  def _check_shape(self, x: Any) -> None:
    """Refuses examples that are not those of the model.

    Raises:
      DataError: their shape, or the names of their arrays, are others.
    """
    shape: Any = (
      {name: part.shape[1:] for name, part in x.items()}
      if isinstance(x, dict)
      else x.shape[1:]
    )
    if shape == self.shape:
      return
    names = [] if self.encoding is None else self.encoding.feature_names()
    listed = f" ({', '.join(names[:20])}{', ...' * (len(names) > 20)})" * bool(names)
    raise DataError(
      f"`x`: has examples of shape {shape}, the model reads {self.shape}{listed}"
    )


def write_encoding(folder: pathlib.Path, encoding: Encoding | None) -> None:
  """Writes encoding.json into the folder of a run, or removes an earlier one.

  Names that are neither texts, numbers nor truth values are written as their
  texts.

  Args:
    folder: the folder.
    encoding: what the data have learnt; None: nothing.
  """
  if encoding is None:
    (folder / ENCODING).unlink(missing_ok=True)
    return
  facts = {
    "classes": None if encoding.classes is None else _words(encoding.classes),
    "categories": [
      [_word(column), _words(names)]
      for column, names in (encoding.categories or {}).items()
    ],
    "columns": _columns_as_json(encoding.columns),
    "ordered": _words(encoding.ordered),
    "fill": [
      [_word(column), _word(value)] for column, value in (encoding.fill or {}).items()
    ],
  }
  with files.replacing(folder / ENCODING) as partial:
    text = json.dumps(facts, ensure_ascii=False)
    partial.write_text(as_unicode(text) + "\n", "utf-8")


def read_encoding(folder: pathlib.Path) -> Encoding | None:
  """Reads encoding.json; None if the folder has none.

  Args:
    folder: the folder of a run.

  Raises:
    OSError, ValueError, LookupError, TypeError: it is damaged.
  """
  if not (folder / ENCODING).is_file():
    return None
  facts = json.loads((folder / ENCODING).read_text("utf-8"))
  classes = facts["classes"]
  return Encoding(
    None if classes is None else tuple(map(_name, classes)),
    {_name(column): tuple(map(_name, names)) for column, names in facts["categories"]}
    or None,
    _columns_of_json(facts["columns"]),
    tuple(map(_name, facts["ordered"])),
    {_name(column): _name(value) for column, value in facts["fill"]} or None,
  )


def read_preprocessing(
  folder: pathlib.Path,
  options: DataOptions,
  shape: Shapes,
  dtype: DTypes,
  body: str = "",
  raw_dtype: DTypes | None = None,
) -> Preprocessing:
  """Reads how a run's raw rows become inputs, from its folder alone.

  Args:
    folder: the folder of the run.
    options: the options of its data.
    shape: of one example, as the model reads it.
    dtype: likewise.
    body: see ``Preprocessing``.
    raw_dtype: likewise.

  Raises:
    OSError, ValueError, LookupError, TypeError: a file is damaged or missing.
  """
  scaler = None
  if options.features.WORD == "standardize":
    with np.load(folder / SCALER, allow_pickle=False) as stored:
      scaler = Scaler(stored["mean"], stored["factor"])
  encoding = read_encoding(folder)
  return Preprocessing(options, shape, dtype, encoding, scaler, body, raw_dtype)


def _word(name: Hashable) -> object:
  """A name as JSON."""
  if isinstance(name, np.generic):
    name = name.item()
  if isinstance(name, tuple):
    return {"tuple": _words(name)}
  if name is None or isinstance(name, (str, bool, int, float)):
    return name
  return str(name)


def _words(names: tuple[Hashable, ...]) -> list[object]:
  return list(map(_word, names))


def _name(word: Any) -> Hashable:
  """The inverse of ``_word``, of what JSON can say."""
  return tuple(map(_name, word["tuple"])) if isinstance(word, dict) else word


def _columns_as_json(columns: Any) -> object:
  """Columns of features: a list stays one, a name is in "name"."""
  if isinstance(columns, dict):
    return {"parts": [[key, _columns_as_json(part)] for key, part in columns.items()]}
  if isinstance(columns, list):
    return [_word(name) for name in columns]
  return {"name": _word(columns)}


def _columns_of_json(stored: Facts | list[Any]) -> Any:
  if isinstance(stored, list):
    return list(map(_name, stored))
  if "parts" in stored:
    return {key: _columns_of_json(part) for key, part in stored["parts"]}
  return _name(stored["name"])
