"""One process at a time runs what is in a folder.

The process holds a lock (``filelock``) on the file ``run.lock`` in the folder.
It is one of the kernel, which ends with the process, however that ends; on a
file system without such locks the file itself is the lock. The file says who
holds it and is removed afterwards.

A bucket of an object store that is mounted as a folder is refused: hosts do not
share its locks, and a rename is a copy there, so neither one process at a time
nor files that are whole could be promised.
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
from fedjax_alg.errors import OptionError, RunError, RunFolderError, reason

NAME = "run.lock"

#: Where Linux lists the file systems that are mounted.
MOUNTS = pathlib.Path("/proc/mounts")
#: Programs that mount buckets of object stores: the type of such a file system is
#: fuse.NAME, or fuse with NAME in the place of the device.
_OF_BUCKETS = (
  "blobfuse",
  "blobfuse2",
  "cosfs",
  "gcsfuse",
  "geesefs",
  "goofys",
  "mountpoint-s3",
  "obsfs",
  "ossfs",
  "rclone",
  "s3fs",
)

#: A lock is waited for so long, because ``living_holder`` has it for an instant.
_PATIENCE_S = 0.2

#: Content of the file, or a beginning of it.
_HOLDER = re.compile(rb"\d+(\s+\S*\s*)?")

#: A space, for instance, in the list of ``MOUNTS``.
_OCTAL = re.compile(r"\\([0-7]{3})")

#: The locks of this process: folder -> (lock, folders made for it, deepest
#: first).
_locks: dict[pathlib.Path, tuple[filelock.BaseFileLock, list[pathlib.Path]]] = {}


class LockError(RunError, RunFolderError):
  """A folder cannot be locked, so nothing is run in it."""

  def __init__(self, text: str):
    RunFolderError.__init__(self, text)


class HeldError(LockError):
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
    HeldError: another process holds it; this one does not wait for its end.
    LockError: a file of that name is of something else, the folder cannot be made
      or written, or it is in a bucket of an object store.
  """
  key = _real(folder)
  if key in _locks:
    yield
    return
  program = _bucket_program(key)
  if program:
    raise LockError(
      f"{folder}: is in a bucket ({program}), where a rename is a copy and hosts share "
      "no locks; run in a folder of a disk or of NFS, and copy it when it is finished"
    )
  missing = [place for place in (key, *key.parents) if not place.exists()]
  path = key / NAME
  lock = filelock.FileLock(path, thread_local=False)
  try:
    key.mkdir(parents=True, exist_ok=True)
    why = "" if path.is_symlink() else files.obstacle(path, _is_lock)
    if why:
      raise LockError(f"{folder}: {NAME} {why}, and would be emptied; remove it")
    lock.acquire(timeout=_PATIENCE_S, poll_interval=_PATIENCE_S / 10)
  except filelock.Timeout:
    advice = (
      f" (if that process has died, remove {path})" if _is_soft(lock, path) else ""
    )
    raise HeldError(folder, _holder(path) + advice) from None
  except OSError as error:
    raise LockError(f"{folder}: cannot be written ({reason(error)})") from error
  _locks[key] = lock, missing
  try:
    if not isinstance(lock, filelock.SoftFileLock):  # which has written this
      path.write_text(f"{os.getpid()}\n{socket.gethostname()}\n", "utf-8")
    yield
  finally:
    _release(key)


def living_holder(folder: pathlib.Path) -> str:
  """Describes the process that holds a folder, without waiting for the lock.

  The lock of the kernel decides, as in ``hold``: the file of a process that was killed
  stays, and another process may have its number by now. Without such locks the number
  decides on this host, and on others the file.

  Args:
    folder: the folder of a run.

  Returns:
    Its host, number and start; "" if nobody does.
  """
  path = folder / NAME
  code = _try_lock(path)
  if code in (0, errno.EWOULDBLOCK):
    return _holder(path) if code else ""
  try:
    pid, host = path.read_text("utf-8").split()[:2]
    if host == socket.gethostname():
      os.kill(int(pid), 0)
  except PermissionError:  # it lives, and is another user's
    pass
  except (OSError, ValueError):
    return ""
  return _holder(path)


def remove_stale_lock(folder: pathlib.Path) -> None:
  """Removes what a process that was killed has left of its lock.

  Args:
    folder: the folder of a finished run, which nobody runs.
  """
  if (folder / NAME).is_file() and _real(folder) not in _locks:
    with contextlib.suppress(LockError, OSError), hold(folder):
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


def _real(folder: pathlib.Path) -> pathlib.Path:
  # Path.resolve raises an error for links that form a circle.
  return pathlib.Path(os.path.realpath(folder))


def _bucket_program(folder: pathlib.Path) -> str:
  """The program that mounts the bucket in which a folder is; "": it is in none."""
  try:
    lines = files.read_text(MOUNTS).splitlines()
  except (OSError, OptionError):  # of another system
    return ""
  device, kind, deepest = "", "", -1
  for line in lines:
    words = [
      _OCTAL.sub(lambda at: chr(int(at[1], 8)), word) for word in line.split(" ")
    ]
    if len(words) < 3:
      continue
    place = pathlib.Path(words[1])
    # Of several at one place the last is seen.
    if folder.is_relative_to(place) and len(place.parts) >= deepest:
      device, kind, deepest = words[0], words[2], len(place.parts)
  name = device if kind == "fuse" else kind.removeprefix("fuse.")
  return name if name in _OF_BUCKETS else ""


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


def _try_lock(path: pathlib.Path) -> int | None:
  """Asks the kernel for the lock of a file, and gives it back at once.

  Returns:
    0 if no process has the lock, else the error number; None if this system has none.
  """
  try:
    import fcntl  # not on every system

    with files.open_regular(path) as file:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except ImportError:
    return None
  except OSError as error:
    return error.errno
  return 0


def _is_soft(lock: filelock.BaseFileLock, path: pathlib.Path) -> bool:
  """Whether the file itself is the lock, since the kernel has none there."""
  return isinstance(lock, filelock.SoftFileLock) or _try_lock(path) == errno.ENOSYS
