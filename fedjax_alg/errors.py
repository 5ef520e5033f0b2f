"""The error for what a caller gave: an option, an argument, a file."""

from collections.abc import Iterable
import difflib
import re
from typing import Any

_PARAMETER = re.compile(r"`([a-z][a-z_0-9]*)`")


class OptionError(ValueError):
  """An option or argument that cannot be used.

  The message is one line that names the parameter, the value found and what is
  allowed. Parameters stand in backticks in ``text``; ``str`` shows their
  names, and a command line shows its flags instead (``with_names``).
  """

  def __init__(self, text: Any = ""):
    super().__init__(text)
    self.text = str(text)

  def __str__(self) -> str:
    return self.with_names()

  def with_names(self, prefix: str = "") -> str:
    """The message with ``prefix`` before the name of every parameter."""
    return with_names(self.text, prefix)


def with_names(text: str, prefix: str = "") -> str:
  """``text`` with every `parameter` shown as ``prefix`` and its name."""
  return _PARAMETER.sub(lambda found: prefix + found.group(1), text)


def did_you_mean(name: str, names: Iterable[str]) -> str:
  """A hint for a misspelt name: ", did you mean 'x'?" or nothing."""
  close = difflib.get_close_matches(name, list(names), n=1)
  return f", did you mean {close[0]!r}?" if close else ""
