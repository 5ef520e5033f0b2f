"""Files that are written as a whole or not at all, and their hashes."""

from collections.abc import Iterator
import contextlib
import hashlib
import os
import pathlib

from fedjax_alg.errors import OptionError

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


def sha256(path: pathlib.Path) -> str:
  """The sha256 of a file's content, in hexadecimal digits.

  Raises:
    OSError: the file cannot be read.
  """
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def replacing(
    path: pathlib.Path, suffix: str = ".partial") -> Iterator[pathlib.Path]:
  """Lets the caller write a file beside ``path``, which then takes its place.

  After an error ``path`` is as it was, and the other file is removed.

  Args:
    path: the file to make or replace.
    suffix: what the name of the other file has more.

  Yields:
    The path to write to.
  """
  partial = path.with_name(path.name + suffix)
  try:
    yield partial
    os.replace(partial, path)
  except BaseException as error:
    if isinstance(error, OSError) and error.filename is None:
      error.filename = str(path)  # a full disk does not say what was written
    partial.unlink(missing_ok=True)
    raise
