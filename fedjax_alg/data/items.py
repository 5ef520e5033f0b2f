"""Rows of other libraries, such as images and tensors, as one array."""

from collections.abc import Callable, Collection, Hashable, Mapping
import numbers
from typing import Any

import numpy as np

from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import check_memory
from fedjax_alg.errors import FAILURES, FAULTY, Faults, a_type, describe_error

_PLAIN = (str, bytes, bool, int, float, complex, np.generic)
#: Largest value of a pixel of 16 bits.
_MOST = 65535
_IMAGES, _TEXTS = "images", "texts"


class _RowError(ValueError):
  """A row that is no array; the message goes on after its place."""


def is_image(value: object) -> bool:
  """Whether a value is an image of PIL, which need not be installed."""
  return hasattr(value, "getbands") and hasattr(value, "convert")


def is_foreign(value: object) -> bool:
  """Whether a value is an image of PIL or a tensor, which NumPy may not read."""
  return is_image(value) or hasattr(value, "detach")


def names_in(*choices: object) -> list[Any]:
  """Lists the columns that choices name, each of them once.

  Args:
    *choices: names, lists of names, or dictionaries of either; None names none.

  Returns:
    The names in their order.
  """
  names: dict[Hashable, None] = {}
  for choice in choices:
    if isinstance(choice, Mapping):
      names.update(dict.fromkeys(names_in(*choice.values())))
    elif isinstance(choice, list):
      names.update(dict.fromkeys(choice))
    elif choice is not None:
      names[choice] = None
  return list(names)


def check_column_choice(option: str, choice: object, kinds: tuple[type, ...]) -> None:
  """Refuses a choice of columns that names none.

  Args:
    option: the argument, for messages.
    choice: a name, a list of names, or a dictionary of either.
    kinds: what a name may be.

  Raises:
    DataError: it is something else, or a list without a name or with one twice.
  """
  if isinstance(choice, Mapping):
    for name, part in choice.items():
      check_column_choice(f"{option} {name}", part, kinds)
    return
  names = choice if isinstance(choice, list) else [choice]
  where, _, key = option.partition(" ")
  where = f"`{where}`:" + (f" {key} is" if key else "")
  if not names:
    raise DataError(f"{where} [], names no column")
  for place, name in enumerate(names):
    if not isinstance(name, kinds):
      raise DataError(
        f"{where} {a_type(name)}, must be the name of a column, "
        "a list or a dictionary of names"
      )
    if name in names[:place]:
      raise DataError(
        f"{where.removesuffix(' is')} names column {name!r} twice, leave one of "
        "them out"
      )


def check_flat(
  option: str, choice: object, column: Callable[[Hashable], np.ndarray]
) -> None:
  """Refuses a list of columns of which one has more than a number a row.

  Args:
    option: the argument, for messages.
    choice: see ``check_column_choice``.
    column: (name) -> the array of a column.

  Raises:
    DataError: a column of a list has rows that are arrays.
  """
  if isinstance(choice, Mapping):
    for part in choice.values():
      check_flat(option, part, column)
  for name in choice if isinstance(choice, list) else ():
    shape = column(name).shape
    if len(shape) != 1:
      raise DataError(
        f"`{option}`: column {name!r} has rows of shape "
        f"{shape[1:]}, a list takes columns of one number a row "
        "(a dictionary takes every shape)"
      )


def check_numbers(option: str, name: object, array: np.ndarray) -> None:
  """Refuses features that are dates or texts, which NumPy would convert.

  Raises:
    DataError: they are no numbers.
  """
  if array.dtype.kind not in "biufc":
    raise DataError(f"`{option}`: column {name!r} is {array.dtype}, numbers are needed")


def _pixels(image: Any, examples: bool) -> tuple[np.ndarray, str]:
  """The array of an image and its mode."""
  mode = image.mode.partition(";")[0] + image.mode.partition(";")[2][:2]
  if not examples:  # classes of pixels are stored as numbers of a palette, too
    return np.asarray(image), _IMAGES
  if mode == "I":
    raise _RowError(
      "is an image of mode I, 32-bit integers of any range; "
      "convert it to 8 or 16 bits or to float32"
    )
  if mode in ("P", "PA"):
    # A palette with transparency becomes RGBA without a warning of PIL.
    image, mode = image.convert("RGBA").convert("RGB"), "RGB"
  array = np.asarray(image)
  if mode == "I16":
    array = array.astype(np.float32) / np.float32(_MOST)
  return array, f"{_IMAGES} of mode {mode}"


def of_tensor(value: Any) -> Any:
  """A tensor of torch, perhaps of another device, as NumPy reads it; others as is."""
  if not (hasattr(value, "detach") and hasattr(value, "cpu")):
    return value
  try:
    tensor = value.detach().cpu()
    return tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
  except Exception:  # pylint: disable=broad-exception-caught
    return value  # said where it is read


def _array(value: Any, examples: bool) -> tuple[np.ndarray, str]:
  """A value as an array, and what only rows of one kind have.

  Raises:
    _RowError: it is neither numbers nor text.
  """
  if value is None:
    raise _RowError("is missing (None)")
  if is_image(value):
    return _pixels(value, examples)
  if isinstance(value, (list, tuple)) and value and not isinstance(value[0], _PLAIN):
    parts, kinds = zip(*(_array(part, examples) for part in value))
    if len({part.shape for part in parts}) > 1 or len(set(kinds)) > 1:
      raise _RowError("has parts of different shapes or kinds")
    return np.stack(parts), kinds[0]
  value = of_tensor(value)
  if np.ma.is_masked(value):
    raise _RowError("has masked values")
  array = np.asarray(value)
  if (
    array.dtype == object
    and array.size
    and all(isinstance(entry, str) for entry in array.flat)
  ):
    array = array.astype(str)
  if array.dtype == object and isinstance(value, numbers.Number):
    array = np.asarray(float(value))  # type: ignore[arg-type]  # a Decimal
  if array.dtype == object:
    raise _RowError(
      "is ragged, or has entries that are neither numbers nor texts"
      if isinstance(value, (list, tuple, np.ndarray))
      else f"is {a_type(value)}, a number, a text or an array is needed"
    )
  if array.dtype.kind in "US":
    return array, _TEXTS
  return array, "uint8" if examples and array.dtype == np.uint8 else "numbers"


def stack_rows(
  rows: Any,
  where: str,
  examples: bool,
  channels_first: bool = False,
  count: int | None = None,
) -> np.ndarray:
  """Makes one array of rows of one shape and kind.

  Args:
    rows: images of PIL, tensors, arrays, numbers, texts, or lists of these.
    where: the rows in a message: "`dataset`: the rows of 'image'".
    examples: whether they are examples and not targets or clients. Palette
      images then become RGB, and images of 16 bits float32 in [0, 1], as bytes
      do later; of targets the numbers stay, which may be classes.
    channels_first: whether rows of three axes are [c, H, W], unless they are
      images of PIL.
    count: the number of rows; None: their length.

  Returns:
    [n, ...], images [n, H, W, c].

  Raises:
    DataError: a row cannot be read, or has another shape or kind than the
      first; or the rows do not fit into memory.
  """
  stack = _Stack(where, examples, len(rows) if count is None else count)
  for row in rows:
    stack.add(row)
  return stack.array(channels_first)


class _Stack:
  """Rows of one shape and kind, which become one array without a second copy."""

  def __init__(self, where: str, examples: bool, count: int):
    """Begins without a row; see ``stack_rows``."""
    self._where, self._examples, self._count = where, examples, count
    self._number, self._shape, self._kind = 0, (), ""
    self._dtypes: dict[np.dtype, None] = {}
    self._array = np.zeros(0)
    self._texts: list[np.ndarray] = []

  def add(self, row: object) -> None:
    """Adds a row; raises a ``DataError`` as ``stack_rows`` does."""
    where, number = self._where, self._number
    try:
      array, kind = _array(row, self._examples)
    except _RowError as error:
      raise DataError(f"{where}: row {number} {error}") from error
    except FAILURES as error:  # whatever the caller's data raise
      raise DataError(
        f"{where}: row {number} cannot be read, {describe_error(error)}"
      ) from error
    if not number:
      self._begin(array, kind)
    for name, start, now in (
      ("shapes", self._shape, array.shape),
      ("kinds", self._kind, kind),
    ):
      if start != now:
        raise DataError(
          f"{where} have different {name}, {start} in row 0 and {now} in row {number}"
        )
    if kind == _TEXTS:
      self._texts.append(array)  # each of its own length
    else:
      self._put(array)
    self._number += 1

  def _begin(self, array: np.ndarray, kind: str) -> None:
    self._shape, self._kind = array.shape, kind
    if kind == _TEXTS:
      return
    check_memory(
      f"{self._where}: {self._count:,} of them", float(self._count) * array.nbytes
    )
    self._array = np.empty((self._count, *array.shape), array.dtype)
    self._dtypes[array.dtype] = None

  def _put(self, array: np.ndarray) -> None:
    if array.dtype not in self._dtypes:
      self._dtypes[array.dtype] = None
      try:
        dtype = np.result_type(*self._dtypes)
      except TypeError:
        raise DataError(
          f"{self._where} have different kinds, {self._array.dtype} in row 0 and "
          f"{array.dtype} in row {self._number}"
        ) from None
      self._array = self._array.astype(dtype)
    self._array[self._number] = array

  def array(self, channels_first: bool) -> np.ndarray:
    """The rows; raises a ``DataError`` if there are none."""
    if not self._number:
      raise DataError(f"{self._where}: there are none")
    array = np.stack(self._texts) if self._texts else self._array[: self._number]
    if channels_first and not self._kind.startswith(_IMAGES):
      return channels_last(array)
    return array


def channels_last(array: np.ndarray) -> np.ndarray:
  """Images [n, c, H, W] as [n, H, W, c]; other arrays as they are."""
  return np.moveaxis(array, 1, -1) if array.ndim == 4 else array


def read_fields(
  rows: object,
  option: str,
  names: Collection[Hashable],
  examples: Collection[Hashable],
  channels_first: bool = False,
) -> dict[Hashable, np.ndarray]:
  """Reads fields of all items of a data set, each item once.

  Args:
    rows: has ``__len__`` and ``__getitem__``; its items are tuples or dictionaries.
    option: the argument, for messages.
    names: places or names of the fields.
    examples: those of them that are features; see ``stack_rows``.
    channels_first: see ``stack_rows``.

  Returns:
    Name -> [n, ...].

  Raises:
    DataError: it has no length or no items, an item cannot be read, items lack
      fields, or see ``stack_rows``; the faults of all fields are one error.
  """
  if not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
    raise DataError(f"`{option}`: {a_type(rows)}, must have __len__ and __getitem__")
  try:
    number = len(rows)
  except FAILURES as error:  # whatever the caller's data raise
    raise DataError(
      f"`{option}`: its length cannot be read, {describe_error(error)}"
    ) from error
  if not number:
    raise DataError(f"`{option}`: {a_type(rows)} without items")
  stacks = {
    name: _Stack(f"`{option}`: the items' {name!r}", name in examples, number)
    for name in names
  }
  faults = Faults()

  def add(name: Hashable, item: Any, place: int) -> None:
    try:
      value = item[name]
    except FAILURES as error:  # whatever the caller's data raise
      raise DataError(
        f"`{option}`: its items have no {name!r} (item {place} is {a_type(item)})"
      ) from error
    stacks[name].add(value)

  for place in range(number):
    try:
      item = rows[place]
    except FAILURES as error:  # whatever the caller's data raise
      raise DataError(
        f"`{option}`: item {place} of {number} (its len) cannot "
        f"be read, {describe_error(error)}"
      ) from error
    for name in list(stacks):
      if faults.attempt(add, name, item, place) is FAULTY:
        del stacks[name]
    if not stacks:
      break
  arrays = {name: stack.array(channels_first) for name, stack in stacks.items()}
  for name in examples:
    if name in arrays:
      faults.attempt(check_numbers, "x", name, arrays[name])
  faults.raise_any(DataError)
  return arrays


def class_numbers(rows: object) -> dict[str, int]:
  """Reads which class has which number, as data sets of torchvision say it.

  Args:
    rows: a data set, or a ``Subset`` of one.

  Returns:
    Name -> number; nothing where it is not said, or targets are transformed.
  """
  while type(rows).__name__ == "Subset" and hasattr(rows, "dataset"):
    rows = rows.dataset
  table = getattr(rows, "class_to_idx", None)
  if getattr(rows, "target_transform", None) is not None or not isinstance(
    table, Mapping
  ):
    return {}
  return {
    str(name): number for name, number in table.items() if isinstance(number, int)
  }


def check_classes(train: Mapping[str, int], test: Mapping[str, int]) -> None:
  """Refuses two data sets that give a class different numbers.

  Args:
    train: name -> number, see ``class_numbers``.
    test: likewise.

  Raises:
    DataError: a number is that of two classes, or a class has two numbers.
  """
  names = {number: name for name, number in train.items()}
  for name, number in test.items() if train else ():
    if train.get(name, number) != number or names.get(number, name) != name:
      raise DataError(
        f"`test`: class {number} is {name!r}, in `dataset` it is "
        f"{names.get(number, 'none')!r} (by class_to_idx); both need the "
        "same classes in the same order"
      )
