"""Files that are written as a whole or not at all, and their hashes."""

from collections.abc import Iterator
import contextlib
import errno
import hashlib
import io
import json
import os
import pathlib
import stat
from typing import Any

from fedjax_alg.errors import a_type, OptionError

#: Bytes of a path and of a name in it, on all systems that JAX runs on.
_LONGEST, _LONGEST_NAME = 4096, 255


def expanded(path: str | os.PathLike, parameter: str = "") -> pathlib.Path:
  """The path with its ~ or ~user replaced by the home directory.

  Args:
    path: a path as users type it.
    parameter: name of the option that has it, for the message.

  Raises:
    OptionError: there is no such user, or no file can have this path.
  """
  said = f"`{parameter}`={path}" if parameter else str(path)
  if not isinstance(path, (str, os.PathLike)):
    raise OptionError(f"{said}: {a_type(path)}, must be a path")
  try:
    found = pathlib.Path(path).expanduser()
  except RuntimeError:
    raise OptionError(f"{said}: there is no such user's home directory") from (
        None)
  sizes = [len(part.encode("utf-8", "surrogatepass"))
           for part in (str(found), *found.parts)]
  if "\0" in str(found) or sizes[0] >= _LONGEST or (
      max(sizes[1:], default=0) > _LONGEST_NAME):
    raise OptionError(f"{said}: no path; its names have at most "
                      f"{_LONGEST_NAME} bytes, and none that is zero")
  return found


def memory() -> int:
  """The memory of this machine in bytes."""
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def opened(path: str | os.PathLike) -> io.BufferedReader:
  """Opens a regular file for reading, and nothing that waits or never ends.

  Raises:
    OSError: the file cannot be read, it is a pipe or a device, or it is larger
      than the memory of the machine.
  """
  file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
  try:
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
      raise OSError(errno.EINVAL, "no regular file", str(path))
    if found.st_size > memory():
      raise OSError(errno.EFBIG, "larger than the memory", str(path))
    return os.fdopen(file, "rb")
  except OSError:
    os.close(file)
    raise


def read_bytes(path: str | os.PathLike) -> bytes:
  """The content of a regular file; raises as ``opened``."""
  with opened(path) as file:
    return file.read()


def read_text(path: pathlib.Path) -> str:
  """The text of a regular file in UTF-8, without a byte order mark.

  Raises:
    OSError: the file cannot be read.
    OptionError: it is no such text.
  """
  try:
    return read_bytes(path).decode("utf-8-sig")  # as Excel saves it
  except UnicodeDecodeError:
    raise OptionError(f"{path}: not text in UTF-8") from None


def sha256(path: pathlib.Path) -> str:
  """The sha256 of a file's content, in hexadecimal digits.

  Raises:
    OSError: the file cannot be read.
  """
  with opened(path) as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON file that holds a dictionary.

  Raises:
    OSError: the file cannot be read.
    ValueError: it holds something else.
  """
  try:
    found = json.loads(read_bytes(path).decode("utf-8-sig"))
  except RecursionError:
    raise ValueError(f"{path.name}: too many brackets") from None
  if not isinstance(found, dict):
    raise ValueError(f"{path.name}: no dictionary")
  return found


def sync(path: pathlib.Path) -> None:
  """Waits until a file, or the names in a folder, would outlast a power cut."""
  file = os.open(path, os.O_RDONLY)
  try:
    os.fsync(file)
  finally:
    os.close(file)


@contextlib.contextmanager
def replacing(
    path: pathlib.Path, suffix: str = ".partial", durable: bool = False
) -> Iterator[pathlib.Path]:
  """Lets the caller write a file beside ``path``, which then takes its place.

  After an error ``path`` is as it was, and the other file is removed. Neither
  of the two is ever written through a link: links are replaced.

  Args:
    path: the file to make or replace.
    suffix: what the name of the other file has more.
    durable: whether it is to outlast a power cut from then on.

  Yields:
    The path to write to, an empty file.
  """
  partial = path.with_name(path.name + suffix)
  try:
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    yield partial
    if durable:
      sync(partial)
    os.replace(partial, path)
    if durable:
      sync(path.parent)
  except BaseException as error:
    if isinstance(error, OSError) and error.filename is None:
      error.filename = str(path)  # a full disk does not say what was written
    partial.unlink(missing_ok=True)
    raise
