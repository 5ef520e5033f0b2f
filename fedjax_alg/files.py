"""Files that are written as a whole or not at all, and their hashes."""

from collections.abc import Iterator
import contextlib
import hashlib
import os
import pathlib

from fedjax_alg.errors import OptionError


def expanded(path: str | os.PathLike, parameter: str = "") -> pathlib.Path:
  """The path with its ~ or ~user replaced by the home directory.

  Args:
    path: a path as users type it.
    parameter: name of the option that has it, for the message.

  Raises:
    OptionError: there is no such user.
  """
  try:
    return pathlib.Path(path).expanduser()
  except RuntimeError:
    said = f"`{parameter}`={path}" if parameter else str(path)
    raise OptionError(f"{said}: there is no such user's home directory") from (
        None)


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
