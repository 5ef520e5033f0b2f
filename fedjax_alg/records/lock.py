"""One process at a time runs what is in a folder.

The process holds a lock (``filelock``) on the file ``run.lock`` in the folder.
It is one of the kernel, which ends with the process, however that ends; on a
file system without such locks the file itself is the lock. The file says who
holds it and is removed afterwards.
"""

from collections.abc import Iterator, Sequence
import contextlib
import errno
import os
import pathlib
import re
import socket
import time

import filelock

from fedjax_alg import files
from fedjax_alg.errors import RunError

NAME = "run.lock"

#: Content of the file, or a beginning of it.
_HOLDER = re.compile(rb"\d+(\s+\S*\s*)?")

#: The locks of this process: folder -> (lock, folders made for it, deepest
#: first).
_locks: dict[pathlib.Path, tuple[filelock.BaseFileLock, list[pathlib.Path]]] = {}


class HeldError(RunError):
  """Another process runs what is in a folder."""

  def __init__(self, folder: pathlib.Path, holder: str):
    super().__init__(f"{folder}: is being run by {holder}")


class StillHeld(RunError):
  """A command lacks nothing but what others run."""

  def __init__(self, errors: Sequence[HeldError]):
    others = f" ({len(errors) - 1} more by others)" if len(errors) > 1 else ""
    super().__init__(
      f"{errors[0]}{others}; when that has ended, give the same command again"
    )


@contextlib.contextmanager
def hold(folder: pathlib.Path) -> Iterator[None]:
  """Holds the lock of a folder, which is made if there is none.

  Within the context this process may ask again. A folder that was made for the
  lock and is empty in the end is removed.

  Args:
    folder: the folder of a run.

  Raises:
    HeldError: another process holds it; this one does not wait.
    RunError: a file of that name is of something else.
  """
  key = folder.resolve()
  if key in _locks:
    yield
    return
  missing = [place for place in (key, *key.parents) if not place.exists()]
  key.mkdir(parents=True, exist_ok=True)
  path = key / NAME
  why = "" if path.is_symlink() else files.obstacle(path, _is_lock)
  if why:
    raise RunError(f"{folder}: {NAME} {why}, and would be emptied; remove it")
  lock = filelock.FileLock(path, thread_local=False)
  try:
    lock.acquire(blocking=False)
  except filelock.Timeout:
    advice = (
      f" (if that process has died, remove {path})" if _is_soft(lock, path) else ""
    )
    raise HeldError(folder, _holder(path) + advice) from None
  _locks[key] = lock, missing
  try:
    if not isinstance(lock, filelock.SoftFileLock):  # which has written this
      path.write_text(f"{os.getpid()}\n{socket.gethostname()}\n", "utf-8")
    yield
  finally:
    _release(key)


def remove_stale_lock(folder: pathlib.Path) -> None:
  """Removes what a process that was killed has left of its lock.

  Args:
    folder: the folder of a finished run, which nobody runs.
  """
  if (folder / NAME).is_file() and folder.resolve() not in _locks:
    with contextlib.suppress(HeldError, OSError), hold(folder):
      pass


def release_all() -> None:
  """Releases every lock, for a process that is about to end at once."""
  for key in list(_locks):
    _release(key)


def _release(key: pathlib.Path) -> None:
  if key not in _locks:  # ``release_all`` was before
    return
  lock, folders = _locks.pop(key)
  with contextlib.suppress(OSError):
    (key / NAME).unlink()  # before others can have the lock
  lock.release()
  with contextlib.suppress(OSError):
    for folder in folders:
      folder.rmdir()


def _is_lock(path: pathlib.Path) -> bool:
  """Recognizes the file of a lock."""
  return _HOLDER.fullmatch(files.read_bytes(path)) is not None


def _holder(path: pathlib.Path) -> str:
  """Describes, in words, the process that wrote the file."""
  try:
    pid, host = path.read_text("utf-8").split()[:2]
    since = time.localtime(path.stat().st_mtime)
  except (OSError, ValueError):  # it is being written
    return "another process"
  return f"{host}, process {pid}, since {time.strftime('%Y-%m-%d %H:%M:%S', since)}"


def _is_soft(lock: filelock.BaseFileLock, path: pathlib.Path) -> bool:
  """Whether the file itself is the lock, since the kernel has none there."""
  if isinstance(lock, filelock.SoftFileLock):
    return True
  try:
    import fcntl  # not on every system

    with open(path, "rb") as file:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except ImportError:
    return False
  except OSError as error:
    return error.errno == errno.ENOSYS
  return False
