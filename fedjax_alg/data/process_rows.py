"""The training rows that each of several processes holds.

In a run of several processes (``engine.processes``) every process reads the
whole partition, but lays out and keeps only the rows of its own clients: a
contiguous range of rows in the order of the clients, with about 1/Q of them.
"""

from typing import NamedTuple

import numpy as np

from fedjax_alg.data.errors import DataError


class Process(NamedTuple):
  """The number of this process among Q processes."""

  number: int = 0  #: q, number of this process, from 0
  processes: int = 1  #: Q, the number of processes


class Rows(NamedTuple):
  """The training rows of a federation that this process holds.

  The rows are counted in the order of the clients. Process q holds the rows
  cuts[q] <= row < cuts[q + 1], and no client is cut.
  """

  cuts: np.ndarray  #: [Q + 1] int64
  process: int  #: q, number of this process
  places: int  #: rows of a process's arrays, with padding; of all the same

  @property
  def own(self) -> slice:
    """The rows of this process."""
    return slice(int(self.cuts[self.process]), int(self.cuts[self.process + 1]))

  @property
  def processes(self) -> int:
    """Q, the number of processes."""
    return len(self.cuts) - 1

  def owners(self, offset: np.ndarray) -> np.ndarray:
    """Finds the process that holds each row.

    Args:
      offset: [...] int, rows in the order of the clients.

    Returns:
      [...] int, the process.
    """
    return np.searchsorted(self.cuts[1:-1], offset, side="right")

  def clients(self, offset: np.ndarray) -> tuple[int, ...] | None:
    """Finds which clients each process owns, a contiguous range of them.

    Args:
      offset: [C] int, first row of each client.

    Returns:
      The first client of each process, and C; None if the rows do not lie in
      the order of the clients.
    """
    owner = self.owners(offset)
    if (np.diff(owner) < 0).any():
      return None
    return tuple(np.searchsorted(owner, np.arange(len(self.cuts))).tolist())

  def place_in_blocks(self, offset: np.ndarray) -> np.ndarray:
    """Converts rows to places in the blocks of all processes.

    Args:
      offset: [...] int, rows in the order of the clients.

    Returns:
      [...] int32, q * places + the row within block q.
    """
    block = self.owners(offset)
    places: np.ndarray = block * self.places + offset - self.cuts[block]
    return places.astype(np.int32)


_process = Process()


def current_process() -> Process:
  """This process; the only one unless ``set_process`` was called."""
  return _process


def set_process(process: Process) -> None:
  """Says which process this is, for federations that are made later."""
  global _process  # pylint: disable=global-statement
  _process = process


def cut(process: Process, offset: np.ndarray, size: np.ndarray, padding: int) -> Rows:
  """Cuts the rows of all clients into ranges of about equal length.

  Args:
    process: which one of how many processes this is.
    offset: [C] int, first row of each client.
    size: [C] int, number of rows of each client; the clients' rows are back
      to back.
    padding: places behind the rows of a process.

  Returns:
    The rows of this process.

  Raises:
    DataError: blocks of so many rows cannot be counted in int32.
  """
  total = int(size.sum())
  borders = np.unique(np.append(offset[size > 0], total))
  ideal = total * np.arange(1, process.processes) / process.processes
  after = np.searchsorted(borders, ideal).clip(1, len(borders) - 1)
  before = borders[after - 1]
  nearest = np.where(ideal - before <= borders[after] - ideal, before, borders[after])
  cuts = np.concatenate([[0], nearest, [total]]).astype(np.int64)
  places = int(np.diff(cuts).max()) + padding
  if places * process.processes >= 2**31:
    raise DataError(
      f"`dataset`: {places * process.processes:,} rows in blocks of processes, must be "
      f"fewer than {2**31:,}"
    )
  return Rows(cuts, process.number, places)
