"""Partitions by a function of the user's own, `partition`=FILE.py:NAME."""

from collections.abc import Callable
import dataclasses
from typing import Any

import numpy as np

from fedjax_alg import own
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.partition import Partitioner
from fedjax_alg.errors import FAILURES, OptionError, a_type, describe_error
from fedjax_alg.hparams import OWN_CODE, hyper

#: (labels [n] int, C, generator) -> the rows of each client
Deal = Callable[[np.ndarray, int, np.random.Generator], Any]
#: The function in words, for messages.
FORM = "a function (labels, num_clients, rng) -> rows of each client"


class OwnPartition(Partitioner):
  """Your function (labels, num_clients, rng) -> rows of each client.

  Training rows that it leaves out are not used. It is loaded when this is made.

  Raises:
    OptionError: it cannot be loaded.
    DataError: it is no function.
  """

  WORD, EXAMPLE = OWN_CODE, "my_clients.py:deal"

  function: str = hyper(dataclasses.MISSING, f"the name of the function, {own.FORMS}")

  def __post_init__(self) -> None:
    super().__post_init__()
    own.refuse_nameless(self.function, "partition")
    self._load()

  def _load(self) -> Deal:
    function, _ = own.load(self.function, "partition")
    if not callable(function):
      raise DataError(f"`partition`={self}: is {a_type(function)}; must be {FORM}")
    deal: Deal = function
    return deal

  @property
  def name(self) -> str:
    """The name of the function."""
    return self.function

  def source(self) -> own.Source:
    """The file that defines the function."""
    return own.load(self.function, "partition")[1]

  def _facts(self, seed: int, num_clients: int) -> dict[str, object]:
    return super()._facts(seed, num_clients) | {"sha256": self.source().sha256}

  def assign(
    self, y: np.ndarray, num_classes: int, num_clients: int, rng: np.random.Generator
  ) -> np.ndarray:
    """Calls the function and checks what it gives (``Partitioner.assign``)."""
    where, function = f"`partition`={self}", self._load()
    try:
      clients = list(function(y.copy(), num_clients, rng))
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
      _check_rows(f"{where}: client {client}", rows, len(y))
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
    owner = np.full(len(y), -1)
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
