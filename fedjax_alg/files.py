"""Files that are written as a whole or not at all."""

from collections.abc import Iterator
import contextlib
import os
import pathlib


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
