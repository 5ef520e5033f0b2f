"""Standard output and error that may be closed or full.

A run must not stop because nobody reads what it prints: ``| head`` closes the
pipe, a batch job may start with its error stream closed, a disk may be full.
"""

from collections.abc import Iterator
import contextlib
import errno
import os
import sys
from typing import Any, TextIO


class Lasting:
  """A text stream that drops what cannot be written."""

  def __init__(self, stream: TextIO | None):
    """Wraps a stream; None is what Python has in place of a closed one."""
    self._stream: Any = stream
    #: the first error of writing, unless the reader had closed the pipe
    self.failed: OSError | None = None

  def write(self, text: str) -> int:
    """Writes a text if it can be written."""
    self._try("write", text)
    return len(text)

  def flush(self) -> None:
    """Flushes what was written if that is possible."""
    self._try("flush")

  def _try(self, method: str, *args: Any) -> None:
    if self._stream is None:
      return
    try:
      getattr(self._stream, method)(*args)
    except OSError as error:
      if error.errno not in (errno.EPIPE, errno.EBADF):
        self.failed = error
      self._give_up()
    except ValueError:  # closed
      self._stream = None

  def _give_up(self) -> None:
    """Sends all further text, and what is still in the buffer, nowhere."""
    try:
      where = self._stream.fileno()
      nowhere = os.open(os.devnull, os.O_WRONLY)
      os.dup2(nowhere, where)
      os.close(nowhere)
    except (OSError, ValueError):
      self._stream = None

  def isatty(self) -> bool:
    """Whether a person reads the stream."""
    return self._stream is not None and self._stream.isatty()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


@contextlib.contextmanager
def lasting() -> Iterator[Lasting]:
  """Makes the two streams lasting while a command runs.

  Yields:
    Standard output.
  """
  before = sys.stdout, sys.stderr
  out = Lasting(sys.stdout)
  sys.stdout, sys.stderr = out, Lasting(sys.stderr)
  try:
    yield out
  finally:
    out.flush()
    sys.stderr.flush()
    sys.stdout, sys.stderr = before
