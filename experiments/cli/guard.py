"""The exit status and the error messages of every command."""

from collections.abc import Callable, Sequence
import os
import sys
import traceback
from typing import Any
import warnings

from fedjax_alg.engine import processes
from fedjax_alg.errors import OptionError
from fedjax_alg.runs.play import NonFiniteError
from . import config as config_lib
from . import program


class RunError(RuntimeError):
  """A run had to stop; the message is the one line the user sees."""


def one_line(error: BaseException) -> str:
  """The message of an error in one line, in the words of the command line.

  Parameters are written as --flags, commands as the user typed this one.
  """
  text = error.with_names("--") if isinstance(error, OptionError) else (
      str(error))
  return program.as_typed(" ".join(text.split()))


def _print_warning(message: Any, *place: Any, **more: Any) -> None:
  """A warning of the library in one line, without its place in the code."""
  del place, more
  print(f"warning: {one_line(message)}", file=sys.stderr)


def guarded(
    command: Callable[[Sequence[str]], None], argv: Sequence[str] | None
) -> int:
  """Runs a command and prints errors and warnings in one line each.

  Args:
    command: a function of the words after the program's name.
    argv: these words; None: the words that the process was started with.

  Returns:
    The exit status: 0 for success, 1 if a run had to stop, 2 for wrong use, and
    130 if the user interrupted the command. A process of several ends at once,
    with the status of the one that has failed, or 75 if one was lost.
  """
  try:
    with warnings.catch_warnings():
      warnings.showwarning = _print_warning
      _play(command, sys.argv[1:] if argv is None else list(argv))
    sys.stdout.flush()
    processes.finish()
  except BrokenPipeError:  # the reader of the pipe (head, less) has closed it
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _ended(1, "stdout is closed")
  except KeyboardInterrupt:
    print("interrupted; to go on, give the same command again with --resume",
          file=sys.stderr)
    return _ended(130, "interrupted")
  except Exception as error:  # pylint: disable=broad-except
    if processes.is_loss(error):
      processes.lose(error)
    if isinstance(error, ValueError):  # UsageError and DataError among them
      status = 2
    elif isinstance(error, (RunError, NonFiniteError, OSError)):
      status = 1
    elif processes.count() == 1:
      raise
    else:
      status = 1
      traceback.print_exc()
    print(f"error: {one_line(error)}", file=sys.stderr)
    return _ended(status, one_line(error))
  return 0


def _ended(status: int, text: str) -> int:
  """The exit status; of several processes, the others end with it, too."""
  if processes.count() > 1:
    processes.fail(status, text)
  return status


def _play(
    command: Callable[[Sequence[str]], None], argv: Sequence[str]) -> None:
  try:
    command(argv)
  except config_lib.HelpRequested as help_text:
    print(program.as_typed(str(help_text)))
