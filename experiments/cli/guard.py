"""What every command shares: its exit status, and errors in one line."""

from collections.abc import Callable, Sequence
import os
import sys

from experiments.cli import config as config_lib
from fedjax_alg.errors import OptionError
from fedjax_alg.runs.play import NonFiniteError


class RunError(RuntimeError):
  """A run that had to stop; the message is the one line the user sees."""


def one_line(error: BaseException) -> str:
  """An error as the single line a user sees, parameters as flags."""
  text = error.with_names("--") if isinstance(error, OptionError) else (
      str(error))
  return " ".join(text.split())


def guarded(
    command: Callable[[Sequence[str]], None], argv: Sequence[str] | None
) -> int:
  """Runs a command; what the user did wrong is one line, not a traceback.

  Args:
    command: gets the words after the program's name.
    argv: those words; None takes the process's own.

  Returns:
    The exit status: 0, 1 a run that had to stop, 2 wrong use, 130 interrupted.
  """
  try:
    try:
      command(sys.argv[1:] if argv is None else list(argv))
    except config_lib.HelpRequested as help_text:
      print(help_text, flush=True)
  except BrokenPipeError:  # the reader of a pipe (head, less) has gone
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except ValueError as error:  # UsageError and DataError among them
    print(f"error: {one_line(error)}", file=sys.stderr)
    return 2
  except (RunError, NonFiniteError, OSError) as error:
    print(f"error: {one_line(error)}", file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print("interrupted; give the command again, with --resume for a single "
          "run, to go on", file=sys.stderr)
    return 130
  return 0
