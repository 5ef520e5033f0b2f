"""Files that are written as a whole or not at all, and their hashes."""

from collections.abc import Iterator
import contextlib
import hashlib
import os
import pathlib


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
  except BaseException:
    partial.unlink(missing_ok=True)
    raise
