"""Data sets of pandas as arrays in memory, checked column by column.

pandas is not needed here: a frame is read as it is given. What is learnt of a
column, the names of its categories and what stands for its missing values, is
learnt from the training frame and holds for the test frame and for new rows,
whatever categories these have. The encoders of scikit-learn would do the same, but
do not say in which row a value is wrong, and take seconds to import.
"""

from collections.abc import Hashable, Mapping, Sequence
import dataclasses
import decimal
import numbers
from typing import TYPE_CHECKING, Any, NamedTuple
import warnings

import numpy as np

from fedjax_alg import memory, tasks
from fedjax_alg.data import labels
from fedjax_alg.data.arrays import (
  ARGUMENTS,
  argument,
  make_examples,
  option_names,
  refuse_unknown_options,
)
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples, check_memory
from fedjax_alg.errors import FAULTY, Faults, a_type, closest, did_you_mean
from fedjax_alg.tasks import task as task_lib
from fedjax_alg.typing import PyTree

if TYPE_CHECKING:  # pandas need not be installed
  import pandas as pd


@memory.in_one_line("`frame`", DataError)
def from_dataframe(
  frame: "pd.DataFrame",
  *,
  y: object,
  x: object = None,
  client: object = None,
  test: object = None,
  kind: object = None,
  missing: object = None,
  **options: Any,
) -> Examples:
  """Makes a data set from a pandas ``DataFrame``.

  Args:
    frame: one row for each example.
    y: the column of the targets. A categorical column becomes the codes of its
      categories, and texts and truth values the codes of their sorted names
      (``Examples.encoding`` has both). You can also give a list of columns of
      numbers, or a dictionary of either.
    x: the columns of the features, a list; by default all columns except ``y``,
      ``client`` and ``kind``. Numbers and truth values become float32. A categorical
      column becomes a column of 0 and 1 for each of its categories, an ordered one
      (``Categorical(..., ordered=True)``) a single column of their codes 0, 1, 2, ...
      If you give the name of one column, its values must be arrays of one shape.
    client: the column of the clients, whole numbers or strings.
    test: the test examples, a frame of the same columns. Names have the same codes as
      in ``frame``.
    kind: the column of the clients' kinds (docs/kinds.md), likewise.
    missing: how to fill missing features: with the "mean" or "median" of a column of
      numbers, or with the "most_frequent" value of any column (the least or first of
      equally frequent ones), computed from ``frame``. Or a dictionary from columns to
      one of these or to a value. With None, and in columns that are not in the
      dictionary, missing values are refused. Missing targets and clients are always
      refused.
    **options: further arguments of ``from_arrays``: ``num_classes``, by default
      the number of categories or names, ``name`` and ``task``.

  Returns:
    The examples.

  Raises:
    DataError: a column is missing, occurs twice, has missing values or has no numbers
      or categories; a test row has a name that ``frame`` does not have; ``missing``
      does not fit a column; an unknown option; or see ``from_arrays``. All columns
      that cannot be used are listed at once.
    OptionError: see ``from_arrays``.

  Examples:
    >>> import pandas as pd
    >>> train = pd.DataFrame({"age": [30, 41, 52], "ill": ["no", "yes", "no"]})
    >>> test = pd.DataFrame({"age": [61], "ill": ["yes"]})
    >>> examples = from_dataframe(train, y="ill", test=test)
    >>> examples.encoding.classes, examples.y_test.tolist()
    (('no', 'yes'), [1])
    >>> train["ward"] = pd.Categorical(["b", "a", "b"])
    >>> encoding = from_dataframe(train, y="ill").encoding
    >>> encoding.feature_names()
    ['age', 'ward=a', 'ward=b']
    >>> encode_features(encoding, pd.DataFrame({"age": [61], "ward": ["b"]})).tolist()
    [[61.0, 0.0, 1.0]]
  """
  faults = Faults()
  _check_options(options, client, test, kind, faults)
  options = {name: options[name] for name in option_names() if name in options}
  checks = [faults.attempt(_check_frame, "frame", frame)]
  if test is not None:
    checks.append(faults.attempt(_check_frame, "test", test))
  if FAULTY in checks:  # nothing else can be looked at
    faults.raise_any(DataError)
  choices = {"y": _choice(frame, "y", y, faults)}
  for option, name in (("client", client), ("kind", kind)):
    if name is not None:
      choices[option] = faults.attempt(_column_name, frame, option, name)
  if x is None:
    x = faults.attempt(
      _others, frame, _names(list(choices.values())), _names([y, client, kind])
    )
  choices["x"] = _choice(frame, "x", x, faults)
  _note_targets(choices)
  categories = {
    name: _categories(frame[name])
    for option in ("x", "y")
    for name in _names(choices[option])
    if _is_categorical(frame[name])
  }
  encoding = labels.Encoding(
    categories=categories,
    columns=choices["x"],
    ordered=tuple(
      name
      for name in dict.fromkeys(_names(choices["x"]))
      if name in categories and frame[name].cat.ordered
    ),
  )
  encoding = encoding._replace(fill=_learn_fill(frame, encoding, missing, faults))
  values = _arrays(frame, "", choices, encoding, faults)
  if test is not None:
    values |= _arrays(test, " of `test`", choices, encoding, faults)
  task, target = tasks.resolve_task(options.get("task")), choices["y"]
  classes = None
  if not isinstance(target, (list, Mapping)) and (task is None or task.has_classes):
    classes = categories.get(target)
    if classes and options.get("num_classes") is None:
      options["num_classes"] = len(classes)
  examples = _of_columns(values, choices, options, faults)
  if classes is None and examples.encoding is not None:
    classes = examples.encoding.classes
  return dataclasses.replace(
    examples, encoding=encoding._replace(classes=classes, categories=categories or None)
  )


def encode_features(encoding: labels.Encoding, frame: "pd.DataFrame") -> PyTree:
  """Computes the features of new rows as those of the training frame.

  Args:
    encoding: ``Examples.encoding`` of ``from_dataframe``.
    frame: n rows with the columns of the features; others are not read.

  Returns:
    The features [n, ...], as ``x_train``; of a dictionary of columns a
    dictionary.

  Raises:
    DataError: no frame, a column is missing, or it has a missing value or a name
      that the training frame does not have.
  """
  _check_frame("x", frame)
  faults = Faults()
  values = _arrays(
    frame, "", {"x": encoding.columns}, encoding, faults, "the training frame", "x"
  )
  faults.raise_any(DataError)
  return values["x_train"]


#: What may stand for missing values, as the training frame has it.
_STRATEGIES = ("mean", "median", "most_frequent")


def _learn_fill(
  frame: "pd.DataFrame", encoding: labels.Encoding, missing: Any, faults: Faults
) -> dict[Hashable, Hashable] | None:
  """What takes the place of the missing values of each column.

  It is a fault if ``missing`` names no feature, or nothing that fits its values.
  """
  columns = encoding.columns
  of_lists = columns.values() if isinstance(columns, Mapping) else [columns]
  names = list(
    dict.fromkeys(name for part in of_lists if isinstance(part, list) for name in part)
  )
  if missing is None:
    return None

  def placeholder(name: Hashable) -> Hashable:
    """For a column whose fault is known, so that it has no second one."""
    return (encoding.categories or {}).get(name, (0.0,))[0]

  allowed = f"one of {', '.join(_STRATEGIES)}"
  if isinstance(missing, str) and missing in _STRATEGIES:
    categories = encoding.categories or {}
    missing = {
      name: missing
      for name in names
      if missing == "most_frequent" or name not in categories
    }
  if not isinstance(missing, Mapping):
    value = missing if isinstance(missing, str) else a_type(missing)
    faults.add(
      DataError(
        f"`missing`={value}: must be {allowed}, or a dictionary from columns to one "
        "of these or to a value"
      )
    )
    return {name: placeholder(name) for name in names}
  fill: dict[Hashable, Hashable] = {}
  for name, choice in missing.items():
    if name not in names:
      faults.add(
        DataError(
          f"`missing`: {name!r} is no column of the features"
          f"{did_you_mean(str(name), list(map(str, names)))} (these are "
          f"{', '.join(map(str, names[:20]))})"
        )
      )
      meant = closest(str(name), [text for text in names if isinstance(text, str)])
      if meant is not None:
        fill.setdefault(meant, placeholder(meant))
      continue
    fill[name] = faults.attempt(
      _fill_value, frame[name], encoding, name, choice, allowed
    )
    if fill[name] is FAULTY:
      fill[name] = placeholder(name)
  return fill


def _fill_value(
  series: "pd.Series",
  encoding: labels.Encoding,
  name: Hashable,
  choice: Any,
  allowed: str,
) -> Hashable:
  """What takes the place of the missing values of one column."""
  names = (encoding.categories or {}).get(name)
  column = _Column(
    series[~np.asarray(series.isna())], _subject("x", name, ""), names, "`frame`"
  )
  start = f"`missing`: column {name!r}"
  if names is not None:
    if choice != "most_frequent" and choice not in names:
      labels_text = ", ".join(map(str, names[:10]))
      raise DataError(
        f"{start} is a category, {choice!r} is neither most_frequent nor one of its "
        f"names ({labels_text}{', ...' * (len(names) > 10)})"
      )
    if choice in names:
      result: Hashable = choice
      return result
  elif choice not in _STRATEGIES:
    if not _is_real(choice) or not np.isfinite(float(choice)):
      raise DataError(f"{start}: {choice!r}, must be {allowed}, or a number")
    return float(choice)
  values = _cells(column) if names is not None else _as_numbers(column)
  if not len(values):
    raise DataError(f"{start} has missing values alone, so it has no {choice}")
  if choice == "most_frequent":
    options, counts = np.unique(values, return_counts=True)
    value = options[counts.argmax()]
    return float(value) if names is None else names[int(value)]
  of_column = np.mean if choice == "mean" else np.median
  return float(of_column(values.astype(np.float64)))


def _of_columns(
  values: Mapping[str, object],
  choices: Mapping[str, object],
  options: Mapping[str, Any],
  faults: Faults,
) -> Examples:
  """The examples of the arrays of a frame, and of those that are options."""

  def label_of(array: str) -> str:
    if array not in values:
      return argument(array)
    kind, split = array.split("_")
    start = _subject(kind, choices[kind], " of `test`" * (split == "test"))
    return start + ":" * (kind in ("client", "kind"))  # "client z has no ..." goes on

  extra = {array: options[name] for array, name in ARGUMENTS.items() if name in options}
  return make_examples(
    extra | dict(values),
    label_of,
    **{
      name: value for name, value in options.items() if name not in ARGUMENTS.values()
    },
    faults=faults,
  )


def _check_options(
  options: Mapping[str, object],
  client: object,
  test: object,
  kind: object,
  faults: Faults,
) -> None:
  """Refuses options that there are not, or that the frames give already."""
  faults.attempt(refuse_unknown_options, "from_dataframe", options)
  for name in options:
    text = ""
    if name == "client_ids" and client is not None:
      text = "`client` names the clients already"
    elif name == "kind_ids" and kind is not None:
      text = "`kind` names the kinds already"
    elif "test" in name and test is not None:
      text = "`test` has the test examples already"
    if text:
      faults.add(DataError(f"`{name}`: {text}, give one of them"))


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
      f"`{option}`: has {columns.count(name)} columns named {name!r}, names must "
      "differ: rename them, or leave all but one out"
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


def _choice(frame: "pd.DataFrame", option: str, choice: Any, faults: Faults) -> PyTree:
  """The choice as a name, a list of names or a dictionary of either.

  A list has no names that are faults; ``FAULTY`` is a choice without any other.
  """
  if choice is FAULTY:
    return FAULTY
  if isinstance(choice, Mapping):
    return {name: _choice(frame, option, part, faults) for name, part in choice.items()}
  several = (
    isinstance(choice, list)
    or (isinstance(choice, tuple) and choice not in list(frame.columns))
    or (isinstance(choice, np.ndarray) or hasattr(choice, "get_indexer"))
  )
  if not several:
    return faults.attempt(_column_name, frame, option, choice)
  names = list(choice)
  if not names:
    faults.add(DataError(f"`{option}`: an empty list, must name at least one column"))
    return FAULTY
  columns: list[Hashable] = []
  for name in names:
    column = faults.attempt(_column_name, frame, option, name)
    if column is not FAULTY and column in columns:
      faults.add(
        DataError(f"`{option}`: names column {column!r} twice, leave one of them out")
      )
    elif column is not FAULTY:
      columns.append(column)
  return columns or FAULTY


def _note_targets(choices: Mapping[str, object]) -> None:
  """Warns of features that are targets, too, unless all are."""
  targets = set(_names(choices["y"]))
  both = [name for name in dict.fromkeys(_names(choices["x"])) if name in targets]
  if both and set(both) != set(_names(choices["x"])):
    warnings.warn(
      f"`x`: the columns {', '.join(map(repr, both))} are those of `y`, too, so the "
      "model reads what it predicts",
      stacklevel=3,
    )


def _names(choice: object) -> list[Hashable]:
  """The columns of a choice."""
  if isinstance(choice, Mapping):
    choice = list(choice.values())
  if isinstance(choice, list):
    return [name for part in choice for name in _names(part)]
  return [] if choice is FAULTY else [choice]  # a tuple is a name of several levels


def _others(
  frame: "pd.DataFrame", used: Sequence[object], choices: Sequence[object]
) -> list[Hashable]:
  """All columns that are neither targets nor clients.

  Args:
    frame: the frame.
    used: the columns of these.
    choices: what was given for them; a column that a wrong name may stand for is
      none of the others.

  Raises:
    DataError: there is none.
  """
  columns = list(frame.columns)
  texts = [name for name in columns if isinstance(name, str)]
  meant = [
    name if name in texts else closest(name, texts)
    for name in choices
    if isinstance(name, str)
  ]
  names = dict.fromkeys(
    name for name in columns if name not in used and name not in meant
  )
  if not names:
    raise DataError("`x`: `frame` has no column for it but those of `y` and `client`")
  return list(names)


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
  source: str  #: where the names are from, for messages
  fill: Hashable = None  #: what stands for missing values; None: they are refused
  is_ordered: bool = True  #: whether the codes are numbers, not one-hot


def _subject(option: str, choice: object, where: str) -> str:
  """Names a choice in a message: its option, its column, its frame."""
  if isinstance(choice, (list, Mapping)):
    return f"`{option}`:" + where.removeprefix(" of")
  return f"`{option}`: column {choice!r}{where}"


def _arrays(
  frame: "pd.DataFrame",
  where: str,
  choices: Mapping[str, object],
  encoding: labels.Encoding,
  faults: Faults,
  source: str = "`frame`",
  argument: str = "test",
) -> dict[str, PyTree]:
  """The arrays of the choices, under their names in a data file.

  Those that cannot be made are ``FAULTY``. ``argument`` is that of a frame whose
  columns may be missing.
  """
  categories, fill = encoding.categories or {}, encoding.fill or {}

  def gather(option: str, choice: object) -> Any:
    if isinstance(choice, Mapping):
      parts = {name: gather(option, part) for name, part in choice.items()}
      return FAULTY if any(part is FAULTY for part in parts.values()) else parts
    if choice is FAULTY:
      return FAULTY
    checks = [
      faults.attempt(_check_column, argument, frame, name) for name in _names(choice)
    ]

    def column(name: Hashable) -> _Column:
      return _Column(
        frame[name],
        _subject(option, name, where),
        categories.get(name) if option not in ("client", "kind") else None,
        source,
        fill.get(name) if option == "x" else None,
        option != "x" or name in encoding.ordered,
      )

    present = [
      name for name, check in zip(_names(choice), checks) if check is not FAULTY
    ]
    if isinstance(choice, list):
      array = _fill_features([column(name) for name in present], len(frame), faults)
      return FAULTY if len(present) < len(choice) else array
    if not present:
      return FAULTY
    return faults.attempt(_as_rows, column(choice), option, choice)

  split = "test" if where else "train"
  return {
    f"{option}_{split}": gather(option, choice) for option, choice in choices.items()
  }


def _cells(column: _Column) -> np.ndarray:
  """The values of a column [n]; objects that are numbers as numbers."""
  series, subject, names = column[:3]
  missing = np.asarray(series.isna())
  if column.fill is None:
    advice = " (`missing` fills those of features)" * subject.startswith("`x`")
    labels.refuse_missing(np.flatnonzero(missing), subject, advice)
  if names is not None:
    if _is_categorical(series) and _categories(series) == names and not missing.any():
      return np.asarray(series.cat.codes, np.int32)
    texts = all(isinstance(name, str) for name in names)
    values = series.astype(object).to_numpy(copy=True)
    values[missing] = column.fill
    if texts:  # a saved encoding has intervals and dates as texts
      values = np.array([_as_text(value) for value in values] + [None], object)[:-1]
    return labels.encode_labels(values, names, subject, column.source)
  values = np.asarray(series.to_numpy())
  if missing.any():
    values = values.astype(object)
    values[missing] = column.fill
  values = labels.whole_objects(values)
  if not values.size and values.ndim == 1:  # of any dtype in an empty frame
    return values.astype(np.int32)
  if values.dtype == object:
    if all(isinstance(value, (bool, np.bool_)) for value in values):
      return values.astype(bool)
    if all(_is_real(value) for value in values):
      return values.astype(np.float64)
  return values


def _as_text(value: object) -> object:
  """The value, or the text of one that is neither a text nor a number."""
  is_plain = isinstance(value, (str, bytes, numbers.Number, np.generic, list, dict))
  return value if is_plain else str(value)


def _fill_features(columns: Sequence[_Column], rows: int, faults: Faults) -> Any:
  """Columns as numbers side by side, float32 [n, D]; categories one-hot.

  Returns:
    The numbers; ``FAULTY`` if a column is none.
  """
  widths = [
    1 if column.names is None or column.is_ordered else len(column.names)
    for column in columns
  ]
  for column, width in zip(columns, widths):
    check_memory(f"{column.subject}: {width:,} categories", 4.0 * rows * width)
  total = sum(widths)
  check_memory(f"`x`: {rows:,} rows of {total:,} numbers", 4.0 * rows * total)
  features, begin = np.empty((rows, total), np.float32), 0
  results = []
  for column, width in zip(columns, widths):
    part = features[:, begin : begin + width]
    results.append(faults.attempt(_put_column, column, part))
    begin += width
  return FAULTY if any(result is FAULTY for result in results) else features


def _put_column(column: _Column, features: np.ndarray) -> None:
  """Writes a column to its places [n, 1], or [n, K] of categories."""
  if column.names is None or column.is_ordered:
    features[:, 0] = _as_numbers(column)
  else:
    np.equal(_cells(column)[:, None], np.arange(len(column.names)), out=features)


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
