"""A data set before it is dealt to clients."""

from typing import NamedTuple

import numpy as np

from fedjax_alg import files
from fedjax_alg.data.errors import DataError

#: The most classes that labels may have.
MAX_CLASSES = 100_000


class Examples(NamedTuple):
  """A labelled data set in host memory, with its official test set."""

  #: [n, ...] float32, uint8 (images, 0..255) or signed integers (token ids)
  x_train: np.ndarray
  y_train: np.ndarray  #: [n] int32 in [0, num_classes)
  x_test: np.ndarray  #: [m, ...], shape and dtype as x_train; m may be 0
  y_test: np.ndarray  #: [m] int32
  num_classes: int  #: L
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


def check_memory(option: str, needed: float) -> None:
  """Refuses what does not fit into memory, before it is made.

  Args:
    option: the option that asks for it and its value.
    needed: bytes.

  Raises:
    DataError: the machine has fewer.
  """
  have = files.memory()
  if needed > have:
    size = needed / 2 ** 30
    raise DataError(
        f"{option}: needs {f'{size:,.0f}' if size >= 100 else f'{size:.3g}'} "
        f"GB of memory, the machine has {have / 2**30:.3g} GB")


def doubts(examples: Examples) -> list[str]:
  """What is strange about the labels of a data set.

  Args:
    examples: the data set.

  Returns:
    One line each: classes without a training example, test examples of such
    classes, or a single class.
  """
  if examples.num_tokens is not None:
    return []  # the classes are characters, and texts need not have all
  train = np.bincount(examples.y_train, minlength=examples.num_classes)
  test = np.bincount(examples.y_test, minlength=examples.num_classes)
  missing, lines = np.flatnonzero(train == 0), []
  if len(missing):
    listed = ", ".join(map(str, missing[:5])) + (", ..." * (len(missing) > 5))
    lines.append(f"{examples.name}: {len(missing)} of {len(train)} classes "
                 f"({listed}) have no training example; labels should be "
                 "0, 1, 2, ...")
  unknown = int(test[missing].sum())
  if unknown:
    lines.append(f"{examples.name}: {unknown} of {len(examples.y_test)} test "
                 "examples have labels that no training example has")
  if len(train) - len(missing) == 1:
    lines.append(f"{examples.name}: all training examples have the label "
                 f"{int(train.argmax())}")
  return lines
