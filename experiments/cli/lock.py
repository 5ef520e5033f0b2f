"""One process at a time plays the run in a folder.

The process holds a lock of the kernel on the file ``run.lock`` in the folder,
which ends with the process, however that ends. The file says who holds it and
is removed afterwards. On a file system without such locks the file itself is
the lock: one that a dead process of this machine has left is taken over, one of
another machine has to be removed by hand.
"""

from collections.abc import Iterator, Sequence
import contextlib
import errno
import fcntl
import json
import os
import pathlib
import socket
import tempfile
import time
from typing import Any, NamedTuple

from .config import RunError

NAME = "run.lock"

#: What ``flock`` says on a file system without locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


class HeldError(RunError):
  """Another process plays the run in a folder."""

  def __init__(self, folder: pathlib.Path, holder: str):
    super().__init__(f"{folder}: is being played by {holder}")


def still_held(found: Sequence[HeldError]) -> RunError:
  """The error of a command that lacks nothing but runs that others play."""
  more = "" if len(found) == 1 else f" ({len(found) - 1} more by others)"
  return RunError(f"{found[0]}{more}; when that has ended, give the same "
                  "command again")


class _Lock(NamedTuple):
  """A lock of this process."""

  path: pathlib.Path
  file: int  #: descriptor; closing it ends a lock of the kernel
  made: tuple[pathlib.Path, ...]  #: folders made for it, the deepest first


#: the folder of each lock of this process -> the lock
_OWN: dict[pathlib.Path, _Lock] = {}


@contextlib.contextmanager
def held(folder: pathlib.Path) -> Iterator[None]:
  """Holds the lock of a folder, which is made if there is none.

  Within the context this process may ask again. A folder that was made for the
  lock and is empty in the end is removed.

  Args:
    folder: the folder of a run.

  Raises:
    HeldError: another process holds it; this one does not wait.
  """
  key = folder.resolve()
  if key in _OWN:
    yield
    return
  _OWN[key] = _take(key, folder)
  try:
    yield
  finally:
    if key in _OWN:
      _release(_OWN.pop(key))


def tidy(folder: pathlib.Path) -> None:
  """Removes what a process that was killed has left of its lock.

  Args:
    folder: the folder of a finished run, which nobody plays.
  """
  if (folder / NAME).is_file() and folder.resolve() not in _OWN:
    with contextlib.suppress(HeldError, OSError), held(folder):
      pass


def release_all() -> None:
  """Releases every lock, for a process that is about to end at once."""
  while _OWN:
    _release(_OWN.popitem()[1])


def _take(key: pathlib.Path, folder: pathlib.Path) -> _Lock:
  made = []
  for place in (key, *key.parents):
    if place.exists():
      break
    made.append(place)
  path, file = key / NAME, None
  while file is None:
    key.mkdir(parents=True, exist_ok=True)
    try:
      file = (_lock_kernel if _has_locks(key) else _lock_file)(path, folder)
    except FileNotFoundError:  # another process has removed its empty folder
      pass
  # What is read here by others only says who they are refused by.
  os.ftruncate(file, 0)
  os.pwrite(file, json.dumps({
      "host": socket.gethostname(), "pid": os.getpid(),
      "started": _started(os.getpid()),
      "since": time.strftime("%Y-%m-%d %H:%M:%S")}).encode(), 0)
  return _Lock(path, file, tuple(made))


def _release(lock: _Lock) -> None:
  with contextlib.suppress(OSError):
    lock.path.unlink()  # before others can have the lock
  os.close(lock.file)
  with contextlib.suppress(OSError):
    for place in lock.made:
      place.rmdir()


def _has_locks(folder: pathlib.Path) -> bool:
  with tempfile.TemporaryFile(dir=folder) as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      if error.errno not in _NO_LOCKS:
        raise
      return False
  return True


def _lock_kernel(path: pathlib.Path, folder: pathlib.Path) -> int | None:
  """The descriptor of the locked file; None: try again."""
  file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Whoever held it before may have removed the file since it was opened.
    if os.path.samestat(os.fstat(file), os.stat(path)):
      return file
  except BlockingIOError:
    words = _words(_holder(path))
    os.close(file)
    raise HeldError(folder, words) from None
  except FileNotFoundError:
    pass
  os.close(file)
  return None


def _lock_file(path: pathlib.Path, folder: pathlib.Path) -> int | None:
  """The same by a file that must not exist."""
  try:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
  except FileExistsError:
    holder = _holder(path)
  if holder.get("host") == socket.gethostname() and (
      _started(holder["pid"]) != holder["started"]):
    path.unlink(missing_ok=True)
    return None
  raise HeldError(
      folder, f"{_words(holder)} (if that process has died, remove {path})")


def _holder(path: pathlib.Path) -> dict[str, Any]:
  """Who wrote the file; {} while it is being written."""
  try:
    found = json.loads(path.read_text("utf-8"))
    return found if isinstance(found["pid"], int) and (
        found.keys() >= {"host", "started", "since"}) else {}
  except (OSError, ValueError, KeyError, TypeError):
    return {}


def _words(holder: dict[str, Any]) -> str:
  if not holder:
    return "another process"
  return "{host}, process {pid}, since {since}".format_map(holder)


def _started(pid: int) -> str | None:
  """When a process of this machine started, in ticks; None: there is none."""
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return None
  except PermissionError:  # somebody else's
    pass
  try:
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8")
  except OSError:  # a system without /proc
    return ""
  return stat.rpartition(")")[2].split()[19]
