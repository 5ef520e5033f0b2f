"""Partitions by a function of the user's own, `partition`=FILE.py:NAME."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_alg import own
from fedjax_alg.data.errors import DataError
from fedjax_alg.errors import FAILURES, OptionError, a_type, describe_error

#: (labels [n] int, C, generator) -> the rows of each client
Deal = Callable[[np.ndarray, int, np.random.Generator], Any]
#: The function in words, for messages.
FORM = "a function (labels, num_clients, rng) -> rows of each client"


def load_function(text: str) -> Deal:
  """Loads the function that an option `partition` names.

  Args:
    text: see ``own.load``.

  Raises:
    OptionError: it cannot be loaded.
    DataError: it is no function.
  """
  function, _ = own.load(text, "partition")
  if not callable(function):
    raise DataError(f"`partition`={text}: is {a_type(function)}; must be {FORM}")
  deal: Deal = function
  return deal


def deal_rows(
  text: str, labels: np.ndarray, num_clients: int, rng: np.random.Generator
) -> np.ndarray:
  """Calls the function and checks what it gives.

  Args:
    text: see ``own.load``.
    labels: [n] int, the labels of the training rows.
    num_clients: C.
    rng: the generator of the partition's seed.

  Returns:
    [n] int64, the client of each row, -1 for those that the function leaves out.

  Raises:
    DataError: the function fails, or gives something else.
  """
  where, function = f"`partition`={text}", load_function(text)
  try:
    clients = list(function(labels.copy(), num_clients, rng))
  except OptionError:
    raise
  except FAILURES as error:  # whatever the user's code raises
    raise DataError(f"{where}: failed, {describe_error(error)}") from error
  if len(clients) != num_clients:
    raise DataError(
      f"{where}: gives the rows of {len(clients):,} clients, must give those of "
      f"`num_clients`={num_clients:,}"
    )
  arrays = [
    _check_rows(f"{where}: client {client}", rows, len(labels))
    for client, rows in enumerate(clients)
  ]
  times = np.bincount(np.concatenate(arrays), minlength=1)
  if times.max() > 1:
    row = int(times.argmax())
    holders = [client for client, rows in enumerate(arrays) if row in rows]
    raise DataError(
      f"{where}: row {row} occurs {times.max()} times (client "
      f"{' and client '.join(map(str, holders[:2]))})"
    )
  owner = np.full(len(labels), -1)
  for client, rows in enumerate(arrays):
    owner[rows] = client
  return owner


def _check_rows(where: str, rows: Any, count: int) -> np.ndarray:
  """The rows of one client as an array."""
  try:
    array = np.asarray(rows)
  except ValueError:  # lists of different lengths
    array = np.zeros((0, 0))
  if array.shape == (0,):
    raise DataError(f"{where} has no row")
  if array.ndim != 1 or array.dtype.kind not in "iu":
    raise DataError(
      f"{where} has rows of {array.dtype}{list(array.shape)}, must be a list of whole "
      "numbers"
    )
  least, most = array.min(), array.max()
  if least < 0 or most >= count:
    raise DataError(
      f"{where} has row {least if least < 0 else most}, the training rows are 0 to "
      f"{count - 1:,}"
    )
  return array.astype(np.int64)
