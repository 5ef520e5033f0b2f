"""A data set before it is dealt to clients."""

import dataclasses
from typing import Any

import numpy as np

from fedjax_alg import memory, tasks
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.labels import Encoding
from fedjax_alg.data.store import arrays
from fedjax_alg.typing import DTypes

#: Rows that are compared at once.
_ROWS = 2**14


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Examples:
  """A labeled data set in host memory, with its official test set.

  x and y may be dictionaries of arrays with the same rows.
  """

  #: [n, ...] float32, uint8 (images, 0..255) or signed integers (token ids)
  x_train: Any
  #: [n] int32 in [0, num_classes); of other tasks [n, ...] targets
  y_train: Any
  x_test: Any  #: [m, ...], shape and dtype as x_train; m may be 0
  y_test: Any  #: [m, ...], shape and dtype as y_train
  num_classes: int  #: L, the outputs of the task for one example or token
  #: [n] int32, the client of each training row; None if no clients are named
  client_train: np.ndarray | None
  #: [m] int32, the client of each test row, numbered as in client_train
  client_test: np.ndarray | None
  name: str
  #: number of token ids, which lie in [0, num_tokens); None if the option
  #: ``vocabulary`` says it
  num_tokens: int | None = None
  #: the name of each client of client_train, as strings; None if the numbers
  #: are the names
  client_names: np.ndarray | None = None
  #: what is predicted; None: one class for each example
  task: tasks.Task | None = None
  #: the names that labels and categories had; None for arrays of numbers, while a
  #: frame always has an encoding
  encoding: Encoding | None = None
  #: [n] int32 in [0, K), the kind of each training row; None if the data bring
  #: no kinds of clients
  kind_train: np.ndarray | None = None
  kind_test: np.ndarray | None = None  #: [m] int32, of each test row
  kind_names: tuple[str, ...] = ()  #: the names of the K kinds
  #: of one example before its features; () if they are not computed
  raw_shape: tuple[int, ...] = ()
  #: of the arrays of an example before their features; None if it is not known
  raw_dtype: DTypes | None = None
  #: sha256 of the files of x_train and x_test, if these are as in the files
  checksums: tuple[str, str] | None = None

  @property
  def rows(self) -> tuple[int, int]:
    """n and m, the numbers of training and of test examples."""
    return len(arrays(self.y_train)[0]), len(arrays(self.y_test)[0])

  def labels(self) -> tasks.Labels:
    """The label of each example, by which it can be dealt to clients.

    Where examples have none, they all have label 0 of one.
    """
    task = tasks.of(self)
    labels = task.labels and task.labels(self.y_train, self.y_test, self.num_classes)
    n, m = self.rows
    return labels or tasks.Labels(np.zeros(n, np.int32), np.zeros(m, np.int32), 1)


def check_memory(option: str, needed: float, advice: str = "") -> None:
  """Refuses what does not fit into memory, before it is made.

  Args:
    option: the option that asks for it and its value.
    needed: bytes.
    advice: what to change, for the message.

  Raises:
    DataError: this process cannot get as many (``memory.host``).
  """
  memory.refuse(f"{option}:", needed, advice, error=DataError)


def doubts(examples: Examples) -> list[str]:
  """Describes what is strange about the labels of a data set.

  Args:
    examples: the data set.

  Returns:
    One line each: classes without a training example, test examples of such
    classes, or a single class; pixels of a label far above the others; next
    tokens that are those of x itself.
  """
  task = tasks.of(examples)
  if task.of_tokens:
    return _doubts_of_tokens(examples)
  if task.name == tasks.DENSE.name:
    return _doubts_of_pixels(examples)
  if examples.num_tokens is not None or not task.has_classes:
    return []  # the classes are characters, and texts need not have all
  train = np.bincount(examples.y_train, minlength=examples.num_classes)
  test = np.bincount(examples.y_test, minlength=examples.num_classes)
  missing, lines = np.flatnonzero(train == 0), []
  if len(missing):
    listed = ", ".join(map(str, missing[:5])) + (", ..." * (len(missing) > 5))
    lines.append(
      f"{examples.name}: {len(missing)} of {len(train)} classes "
      f"({listed}) have no training example; labels should be "
      "0, 1, 2, ..."
    )
  unknown = int(test[missing].sum())
  if unknown:
    lines.append(
      f"{examples.name}: {unknown} of {len(examples.y_test)} test "
      "examples have labels that no training example has"
    )
  if len(train) - len(missing) == 1:
    lines.append(
      f"{examples.name}: all training examples have the label {int(train.argmax())}"
    )
  return lines


def _doubts_of_tokens(examples: Examples) -> list[str]:
  """Targets that are not moved by a place: the model would copy its input."""
  x, y = examples.x_train, examples.y_train
  if isinstance(x, dict) or isinstance(y, dict) or x.shape != y.shape:
    return []
  for begin in range(0, len(y), _ROWS):  # x may be in a file
    rows = slice(begin, begin + _ROWS)
    if ((x[rows] != y[rows]) & (y[rows] != tasks.PADDING)).any():
      return []
  if len(np.unique(y[y != tasks.PADDING])) < 2:
    return []
  return [
    f"{examples.name}: y is x itself, y must be the token after each of "
    "x (x=ids[:, :-1], y=ids[:, 1:])"
  ]


def _doubts_of_pixels(examples: Examples) -> list[str]:
  """The largest label of 255 without its neighbor, which is often no class."""
  y = examples.y_train
  if (
    isinstance(y, dict)
    or examples.num_classes != 256
    or (y == 254).any()
    or not (y == 255).any()
  ):
    return []
  return [
    f"{examples.name}: pixels have the label 255 and none has 254, so "
    "there are 256 classes; if 255 stands for pixels that do not count, "
    "give `task`=dense:255"
  ]
