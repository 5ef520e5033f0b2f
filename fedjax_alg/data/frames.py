"""Data sets of pandas as arrays in memory, checked column by column.

pandas is not needed here: a frame is read as it is given. What is learnt of a
column, the names of its categories, is learnt from the training frame and holds
for the test frame, whatever categories that one has.
"""

from collections.abc import Hashable, Mapping
import decimal
import numbers
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_alg import tasks
from fedjax_alg.data import labels
from fedjax_alg.data.arrays import (
  ARGUMENTS,
  argument,
  of_arrays,
  refuse_unknown_options,
)
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.errors import a_type, did_you_mean
from fedjax_alg.tasks import task as task_lib
from fedjax_alg.typing import PyTree

if TYPE_CHECKING:  # pandas need not be installed
  import pandas as pd


def from_dataframe(
  frame: "pd.DataFrame",
  *,
  y: object,
  x: object = None,
  client: object = None,
  test: object = None,
  kind: object = None,
  **options: Any,
) -> Examples:
  """Makes a data set from a pandas ``DataFrame``.

  Args:
    frame: one row for each example.
    y: the column of the targets. A categorical one becomes the codes of its
      categories, texts and truth values those of their sorted names
      (``Examples.encoding`` keeps both). Or a list of columns of numbers, or a
      dictionary of either.
    x: the columns of the features, a list; by default all that are in
      none of ``y``, ``client`` and ``kind``. Numbers and truth values become
      float32, categories their codes. The name of one column takes its rows as
      they are, which must be arrays of one shape.
    client: the column of the clients, whole numbers or strings.
    test: the test examples, a frame of the same columns. The codes of its names
      are those of ``frame``.
    kind: the column of the clients' kinds (docs/kinds.md), likewise.
    **options: further arguments of ``from_arrays``: ``num_classes``, by default
      the number of categories or names, ``name`` and ``task``.

  Returns:
    The examples.

  Raises:
    DataError: a column is missing, is there twice, has missing values or is
      neither numbers nor categories; a test row has a name that ``frame`` has
      not; an unknown option; or see ``from_arrays``.

  Examples:
    >>> import pandas as pd
    >>> train = pd.DataFrame({"age": [30, 41, 52], "ill": ["no", "yes", "no"]})
    >>> test = pd.DataFrame({"age": [61], "ill": ["yes"]})
    >>> examples = from_dataframe(train, y="ill", test=test)
    >>> examples.encoding.classes, examples.y_test.tolist()
    (('no', 'yes'), [1])
  """
  _check_options(options, client, test, kind)
  _check_frame("frame", frame)
  choices = {"y": _choice(frame, "y", y)}
  if client is not None:
    choices["client"] = _column_name(frame, "client", client)
  if kind is not None:
    choices["kind"] = _column_name(frame, "kind", kind)
  choices["x"] = _others(frame, choices) if x is None else _choice(frame, "x", x)
  categories = {
    name: _categories(frame[name])
    for option in ("x", "y")
    for name in _names(choices[option])
    if _is_categorical(frame[name])
  }
  values = _arrays(frame, "", choices, categories)
  if test is not None:
    _check_frame("test", test)
    for name in _names(list(choices.values())):
      _check_column("test", test, name)
    values |= _arrays(test, " of `test`", choices, categories)
  task, target = tasks.resolve_task(options.get("task")), choices["y"]
  classes = None
  if not isinstance(target, (list, Mapping)) and (task is None or task.has_classes):
    classes = categories.get(target)
    if classes and options.get("num_classes") is None:
      options["num_classes"] = len(classes)
  return _add_encoding(_of_columns(values, choices, options), classes, categories)


def _add_encoding(
  examples: Examples,
  classes: tuple[Hashable, ...] | None,
  categories: Mapping[Hashable, tuple[Hashable, ...]],
) -> Examples:
  """The examples with what was learnt of their names."""
  if classes is None and examples.encoding is not None:
    classes = examples.encoding.classes
  if classes is None and not categories:
    return examples
  return examples._replace(encoding=labels.Encoding(classes, dict(categories) or None))


def _of_columns(
  values: Mapping[str, object],
  choices: Mapping[str, object],
  options: Mapping[str, Any],
) -> Examples:
  """The examples of the arrays of a frame, and of those that are options."""

  def label_of(array: str) -> str:
    if array not in values:
      return argument(array)
    kind, split = array.split("_")
    start = _subject(kind, choices[kind], " of `test`" * (split == "test"))
    return start + ":" * (kind in ("client", "kind"))  # "client z has no ..." goes on

  extra = {array: options[name] for array, name in ARGUMENTS.items() if name in options}
  return of_arrays(
    extra | dict(values),
    label_of,
    **{
      name: value for name, value in options.items() if name not in ARGUMENTS.values()
    },
  )


def _check_options(
  options: Mapping[str, object], client: object, test: object, kind: object
) -> None:
  """Refuses options that there are not, or that the frames give already."""
  refuse_unknown_options("from_dataframe", options)
  for name in options:
    if name == "client_ids" and client is not None:
      raise DataError(
        "`client_ids`: `client` names the clients already, give one of both"
      )
    if name == "kind_ids" and kind is not None:
      raise DataError("`kind_ids`: `kind` names the kinds already, give one of both")
    if "test" in name and test is not None:
      raise DataError(
        f"`{name}`: `test` has the test examples already, give one of both"
      )


def _check_frame(option: str, frame: object) -> None:
  if not all(hasattr(frame, name) for name in ("columns", "dtypes", "isna")):
    hint = " (to_pandas() makes one of it)" * hasattr(frame, "to_pandas")
    raise DataError(f"`{option}`: {a_type(frame)}, must be a pandas DataFrame{hint}")


def _check_column(option: str, frame: "pd.DataFrame", name: object) -> None:
  """Refuses a column that is not there, or twice."""
  columns = list(frame.columns)
  if name not in columns:
    hint = (
      did_you_mean(name, [column for column in columns if isinstance(column, str)])
      if isinstance(name, str)
      else ""
    )
    raise DataError(
      f"`{option}`: has no column {name!r}{hint} (it has "
      f"{', '.join(map(str, columns[:20]))})"
    )
  if columns.count(name) > 1:
    raise DataError(
      f"`{option}`: has {columns.count(name)} columns named {name!r}, names must differ"
    )


def _is_name(value: object) -> bool:
  return isinstance(value, (str, bytes, tuple, numbers.Number, np.generic))


def _column_name(frame: "pd.DataFrame", option: str, name: object) -> Hashable:
  """The name of one column."""
  if not _is_name(name):
    try:
      is_column = name in list(frame.columns)  # a date, an enumeration
    except (TypeError, ValueError):
      is_column = False
    if not is_column:
      kind = "None" if name is None else a_type(name)
      raise DataError(
        f"`{option}`: {kind}, must be the name of a column"
        + (
          ""
          if option in ("client", "kind")
          else ", a list of names or a dictionary of either"
        )
      )
  _check_column("frame", frame, name)
  return name


def _choice(frame: "pd.DataFrame", option: str, choice: Any) -> PyTree:
  """The choice as a name, a list of names or a dictionary of either."""
  if isinstance(choice, Mapping):
    return {name: _choice(frame, option, part) for name, part in choice.items()}
  several = (
    isinstance(choice, list)
    or (isinstance(choice, tuple) and choice not in list(frame.columns))
    or (isinstance(choice, np.ndarray) or hasattr(choice, "get_indexer"))
  )
  if not several:
    return _column_name(frame, option, choice)
  names = list(choice)
  if not names:
    raise DataError(f"`{option}`: an empty list, must name at least one column")
  return [_column_name(frame, option, name) for name in names]


def _names(choice: object) -> list[Hashable]:
  """The columns of a choice."""
  if isinstance(choice, Mapping):
    choice = list(choice.values())
  if isinstance(choice, list):
    return [name for part in choice for name in _names(part)]
  return [choice]


def _others(frame: "pd.DataFrame", choices: Mapping[str, object]) -> list[Hashable]:
  """All columns that are neither targets nor clients."""
  used = _names(list(choices.values()))
  names = [name for name in frame.columns if name not in used]
  if not names:
    raise DataError("`x`: `frame` has no column for it but those of `y` and `client`")
  for name in names:
    _check_column("frame", frame, name)
  return names


def _is_categorical(series: "pd.Series") -> bool:
  return str(series.dtype) == "category"


def _categories(series: "pd.Series") -> tuple[Hashable, ...]:
  """The names of the categories of a column, in the order of their codes."""
  return tuple(series.cat.categories.astype(object))


class _Column(NamedTuple):
  """A column, how a message names it, and the names that are its codes."""

  series: "pd.Series"
  subject: str
  names: tuple[Hashable, ...] | None


def _subject(option: str, choice: object, where: str) -> str:
  """Names a choice in a message: its option, its column, its frame."""
  if isinstance(choice, (list, Mapping)):
    return f"`{option}`:" + where.removeprefix(" of")
  return f"`{option}`: column {choice!r}{where}"


def _arrays(
  frame: "pd.DataFrame",
  where: str,
  choices: Mapping[str, object],
  categories: Mapping[Hashable, tuple[Hashable, ...]],
) -> dict[str, PyTree]:
  """The arrays of the choices, under their names in a data file."""

  def gather(option: str, choice: object) -> Any:
    if isinstance(choice, Mapping):
      return {name: gather(option, part) for name, part in choice.items()}

    def column(name: Hashable) -> _Column:
      return _Column(
        frame[name],
        _subject(option, name, where),
        categories.get(name) if option not in ("client", "kind") else None,
      )

    if isinstance(choice, list):
      return np.stack([_as_numbers(column(name)) for name in choice], axis=-1)
    return _as_rows(column(choice), option, choice)

  split = "test" if where else "train"
  return {
    f"{option}_{split}": gather(option, choice) for option, choice in choices.items()
  }


def _cells(column: _Column) -> np.ndarray:
  """The values of a column [n]; objects that are numbers as numbers."""
  series, subject, names = column
  labels.refuse_missing(np.flatnonzero(np.asarray(series.isna())), subject)
  if names is not None:
    if _is_categorical(series) and _categories(series) == names:
      return np.asarray(series.cat.codes, np.int32)
    return labels.encode_labels(
      series.astype(object).to_numpy(), names, subject, "`frame`"
    )
  values = labels.whole_objects(np.asarray(series.to_numpy()))
  if not values.size and values.ndim == 1:  # of any dtype in an empty frame
    return values.astype(np.int32)
  if values.dtype == object:
    if all(isinstance(value, (bool, np.bool_)) for value in values):
      return values.astype(bool)
    if all(_is_real(value) for value in values):
      return values.astype(np.float64)
  return values


def _is_real(value: object) -> bool:
  return isinstance(value, (numbers.Real, decimal.Decimal, np.bool_))


def _as_numbers(column: _Column) -> np.ndarray:
  """A column of numbers, float32 [n]."""
  values = _cells(column)
  if values.dtype.kind in "fiub":
    try:
      return task_lib.as_float32(values)
    except ValueError as error:
      raise DataError(f"{column.subject} {error}") from None
  row = 0
  if values.dtype == object:
    row = next(row for row, value in enumerate(values) if not _is_real(value))
  value = values[row]
  if np.ndim(value):
    raise DataError(
      f"{column.subject} holds arrays (of shape {np.shape(value)} in row "
      f"{row}), one number for each row is needed; the name of the column in "
      "place of a list takes its arrays"
    )
  raise DataError(
    f"{column.subject} is {task_lib.kind_of(values)} ({str(value)!r} in row "
    f"{row}), numbers are needed: make it a category, convert it, or leave "
    "it out"
  )


def _as_rows(column: _Column, option: str, name: object) -> np.ndarray:
  """The rows of one column, which may be arrays of one shape."""
  values = _cells(column)
  if values.dtype == object and values.size and all(map(np.ndim, values)):
    values = _stack(values, column.subject)
  if option == "x" and values.ndim == 1:
    hint = (
      f"; of columns of numbers give a list, such as [{name!r}]"
      if values.dtype.kind in "fiub"
      else ""
    )
    raise DataError(
      f"{column.subject} is {task_lib.kind_of(values)}, arrays "
      f"of numbers are needed{hint}"
    )
  return values


def _stack(rows: np.ndarray, subject: str) -> np.ndarray:
  """Arrays of one shape as one array."""
  if any(np.ma.is_masked(row) for row in rows):
    raise DataError(f"{subject} has masked values: fill them or leave these rows out")
  try:
    return np.stack([np.asarray(row) for row in rows])
  except ValueError:
    raise DataError(f"{subject} has rows of different shapes") from None
