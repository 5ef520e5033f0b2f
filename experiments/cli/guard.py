"""The exit status and the error messages of every command."""

from collections.abc import Callable, Sequence
import contextlib
import os
import sys
from typing import Any
import warnings

from fedjax_alg.errors import OptionError
from fedjax_alg.runs.play import NonFiniteError
from . import config as config_lib
from . import program, signals
from .config import RunError

#: How the user goes on with a command that was interrupted.
AGAIN = "to go on, give the same command again"
WITH_RESUME = f"{AGAIN} with --resume"


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
    command: Callable[[Sequence[str]], None], argv: Sequence[str] | None,
    again: str = ""
) -> int:
  """Runs a command and prints errors and warnings in one line each.

  Args:
    command: a function of the words after the program's name.
    argv: these words; None: the words that the process was started with.
    again: how the user goes on with the command, of one that plays runs. Its
      runs are saved when a scheduler's signal comes.

  Returns:
    The exit status: 0 for success, 1 if a run had to stop, 2 for wrong use, 75
    if a scheduler's signal stopped a command that can go on, and 130 if the
    user interrupted the command.
  """
  try:
    with warnings.catch_warnings(), (
        signals.watched(again) if again else contextlib.nullcontext()):
      warnings.showwarning = _print_warning
      _play(command, sys.argv[1:] if argv is None else list(argv))
    sys.stdout.flush()
  except BrokenPipeError:  # the reader of the pipe (head, less) has closed it
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except ValueError as error:  # UsageError and DataError among them
    print(f"error: {one_line(error)}", file=sys.stderr)
    return 2
  except (RunError, NonFiniteError, OSError) as error:
    print(f"error: {one_line(error)}", file=sys.stderr)
    return 1
  except signals.Stopped as stopped:
    with contextlib.suppress(OSError):  # the terminal may have gone
      print(program.as_typed(str(stopped)), file=sys.stderr, flush=True)
    return signals.STATUS
  except KeyboardInterrupt:
    print(f"interrupted{again and f'; {again}'}", file=sys.stderr)
    return 130
  return 0


def _play(
    command: Callable[[Sequence[str]], None], argv: Sequence[str]) -> None:
  try:
    command(argv)
  except config_lib.HelpRequested as help_text:
    print(program.as_typed(str(help_text)))
