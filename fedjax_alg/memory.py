"""The memory that this process can get, and refusing what needs more.

A limit is the most that can be had, and not what is free at this moment: other
processes may end, and the system takes back the pages of files. What is refused
could therefore never have worked.
"""

from collections.abc import Callable, Iterator
import contextlib
import gc
import math
import mmap
import os
import pathlib
from typing import Any, NamedTuple

from fedjax_alg.errors import OptionError, reason

try:
  import resource
except ImportError:  # not on Windows
  resource = None  # type: ignore[assignment]

_ROOT = pathlib.Path("/")

_CHUNK = 2**18  # values at a time: temporaries stay small
_PAGES = 2**26  # bytes that are read of a file before its pages are released


class Limit(NamedTuple):
  """The most memory that can still be had, and what limits it."""

  nbytes: int
  owner: str  #: who has so much, for messages: "the machine has"


def physical() -> int:
  """The memory of this machine in bytes."""
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def host(root: pathlib.Path = _ROOT) -> Limit:
  """The memory that this process can still get.

  It is the least of what the machine has, what the control groups of the process
  allow (of version 1 and 2, as containers and schedulers set them), and the limits
  of the shell (``ulimit -v`` and ``-d``), less what the process holds. Swap space
  counts as memory. A system without /proc has the first alone.

  Args:
    root: the folder with proc and sys.
  """
  status = _table(root / "proc/self/status")
  swap = _table(root / "proc/meminfo").get("SwapTotal", 0)
  # Pages of files can be taken back at any time; those of the process cannot.
  pages = status.get("RssAnon", 0) + status.get("VmSwap", 0)
  limits = [Limit(physical() + swap - pages, "the machine has")]
  limits += [
    Limit(nbytes - pages, "the control group of this process has")
    for nbytes in _group_limits(root, swap)
  ]
  if resource is not None:
    for name, entry, flag in (
      ("RLIMIT_AS", "VmSize", "-v"),
      ("RLIMIT_DATA", "VmData", "-d"),
    ):
      most = resource.getrlimit(getattr(resource, name))[0]
      if most != resource.RLIM_INFINITY:
        limits.append(Limit(most - status.get(entry, 0), f"ulimit {flag} leaves"))
  nbytes, owner = min(limits)
  return Limit(max(nbytes, 0), owner)


def free(root: pathlib.Path = _ROOT) -> Limit:
  """The memory that this process can get at this moment, without swapping.

  It is the least of ``host``, of what the machine has available, and of what others
  in the control groups of the process leave.

  Args:
    root: the folder with proc and sys.
  """
  limits = [host(root)]
  available = _table(root / "proc/meminfo").get("MemAvailable")
  if available is not None:
    limits.append(Limit(available, "the machine has available"))
  for folder in _groups(root):
    for name, of_use, of_files in (
      ("memory.max", "memory.current", "inactive_file"),
      ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
      most, used = _number(folder / name), _number(folder / of_use)
      if most is not None and used is not None:
        used -= _statistics(folder / "memory.stat").get(of_files, 0)
        limits.append(Limit(max(most - used, 0), "the control group has available"))
  return min(limits)


def _statistics(path: pathlib.Path) -> dict[str, int]:
  """The numbers of a memory.stat; nothing where there is none."""
  try:
    rows = (line.split() for line in path.read_text("utf-8").splitlines())
  except OSError:
    return {}
  return {row[0]: int(row[1]) for row in rows if len(row) == 2}


def _table(path: pathlib.Path) -> dict[str, int]:
  """The sizes of a table of /proc in bytes; nothing where there is none."""
  try:
    lines = path.read_text("utf-8").splitlines()
  except OSError:
    return {}
  rows = (line.split() for line in lines if line.endswith(" kB"))
  return {row[0].rstrip(":"): 1024 * int(row[1]) for row in rows}


def _group_limits(root: pathlib.Path, swap: int) -> Iterator[int]:
  """Memory and swap space that each control group of the process allows."""
  for folder in _groups(root):
    for name, of_swap, is_sum in (
      ("memory.max", "memory.swap.max", False),
      ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", True),
    ):
      most, with_swap = _number(folder / name), _number(folder / of_swap)
      if most is None:
        continue
      yield most + (swap if with_swap is None or is_sum else min(swap, with_swap))
      if with_swap is not None and is_sum:
        yield with_swap


def _groups(root: pathlib.Path) -> Iterator[pathlib.Path]:
  """The folders of the control groups that this process is in, and of those above."""
  try:
    lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
  except OSError:
    return
  for line in lines:
    _, controllers, path = line.split(":", 2)
    top = root / "sys/fs/cgroup"
    if controllers:
      if "memory" not in controllers.split(","):
        continue
      top = top / "memory"
    # Inside a container the folder may be missing, and the top is its own.
    folder = pathlib.Path(path.lstrip("/"))
    yield from (top / part for part in (folder, *folder.parents))


def _number(path: pathlib.Path) -> int | None:
  """The number in a file; None if there is no file or no limit."""
  try:
    return int(path.read_text("utf-8"))
  except (OSError, ValueError):  # "max"
    return None


def gigabytes(nbytes: float) -> str:
  """A size for messages, such as "1.43 GB" (of 2^30 bytes)."""
  size = nbytes / 2**30
  return f"{size:,.0f} GB" if size >= 100 else f"{size:.3g} GB"


def refuse(
  label: str,
  needed: float,
  advice: str = "",
  find_limit: Callable[[], Limit] | None = None,
  error: type[OptionError] = OptionError,
) -> None:
  """Refuses what does not fit into memory, before it is made.

  Args:
    label: what is made, with the option that decides it and its value.
    needed: bytes.
    advice: what to change, for the message.
    find_limit: () -> the most that can be had; None: ``host``.
    error: the type of the error.

  Raises:
    OptionError: there is less.
  """
  find_limit = find_limit or host
  limit = find_limit()
  if needed > limit.nbytes:
    gc.collect()  # what nothing refers to any more is no reason
    limit = find_limit()
  if needed > limit.nbytes:
    raise error(
      f"{label} needs {gigabytes(needed)} of memory, {limit.owner} "
      f"{gigabytes(limit.nbytes)}{f' ({advice})' if advice else ''}"
    )


@contextlib.contextmanager
def in_one_line(label: str, error: type[OptionError] = OptionError) -> Iterator[None]:
  """Says in one line that memory has run out, where nothing has foreseen it.

  Args:
    label: what was being made, for the message.
    error: the type of the error.

  Raises:
    OptionError: memory has run out.
  """
  try:
    yield
  except MemoryError as cause:
    limit = host()
    raise error(
      f"{label}: out of memory ({reason(cause)}), {limit.owner} "
      f"{gigabytes(limit.nbytes)}"
    ) from cause


# Reading large arrays.


def row_chunks(array: Any) -> Iterator[slice]:
  """Slices of some rows each, which together are all rows of an array.

  What was read of a file that is mapped into memory is released behind the reader
  (``Pages``).

  Args:
    array: [n, ...], of NumPy or anything with its shape and rows.
  """
  step = max(1, _CHUNK // max(1, math.prod(array.shape[1:])))
  pages = Pages(array)
  for start in range(0, len(array), step):
    yield slice(start, start + step)
    pages.read(min(step, len(array) - start))


class Pages:
  """Pages of a file in which an array lies, and which a reader has seen.

  For as long as they are mapped they count as memory of the process, although the
  system can take them back. They are released from time to time; who reads them
  again gets them from the system's cache or from the file.
  """

  def __init__(self, array: Any):
    """Finds the file of an array.

    Args:
      array: [n, ...]; one that is in no file, or in one that may be written to
        through it, has no pages to release.
    """
    self._bytes = 0
    self._row = math.prod(array.shape[1:]) * array.dtype.itemsize
    base = array
    while base is not None and not isinstance(base, mmap.mmap):
      base = getattr(base, "codes", getattr(base, "base", None))
    self._file: mmap.mmap | None = None
    # Of a file that is mapped for writing the pages may be a copy of the process.
    if base is not None and hasattr(mmap, "MADV_DONTNEED"):
      with memoryview(base) as view:
        self._file = base if view.readonly else None

  def read(self, rows: int) -> None:
    """Counts rows that were read, and releases the pages if they are many."""
    self._bytes += rows * self._row
    if self._file is not None and self._bytes >= _PAGES:
      self._file.madvise(mmap.MADV_DONTNEED)
      self._bytes = 0
