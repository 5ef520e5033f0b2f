"""The exit status and the error messages of every command."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
import gc
import io
import logging
import os
import resource
import sys
import traceback
from typing import Any
import warnings

import jax

from fedjax_alg import errors
from fedjax_alg.engine import processes
from fedjax_alg.errors import OptionError, RunFolderError, reason
from fedjax_alg.runs.play import NonFiniteError

from . import config as config_lib
from . import program, signals
from .config import RunError

#: If this variable is set, errors that nobody expected show where they arose.
TRACEBACK = "FEDJAX_ALG_TRACEBACK"

#: XLA ends the process if it cannot reserve so many bytes of addresses.
_LEAST_ADDRESSES = 2 * 10**9

#: Advice to the user after a command was interrupted.
REPEAT_HINT = "to go on, give the same command again"


def _error_line(error: BaseException) -> str:
  """The message of an error in one line, in the words of the command line.

  Parameters are written as --flags, commands as the user typed this one.
  """
  if isinstance(error, (OptionError, RunFolderError)):
    text = errors.with_names(error.text, "--")
  elif isinstance(error, OSError):
    text = reason(error)
  else:
    text = str(error)
  return program.as_typed(errors.one_line(text))


def _print_warning(message: Any, *place: object, **options: object) -> None:
  """A warning of the library in one line, without its place in the code."""
  del place, options
  print(f"warning: {_error_line(message)}", file=sys.stderr)


def run_guarded(
  command: Callable[[Sequence[str]], None],
  argv: Sequence[str] | None,
  resume_hint: str = "",
) -> int:
  """Runs a command and prints errors and warnings in one line each.

  Args:
    command: a function of the words after the program's name.
    argv: these words; None: the words that the process was started with.
    resume_hint: how the user goes on with the command, of one that executes
      runs. Its runs are saved when a scheduler's signal comes.

  Returns:
    The exit status: 0 for success, 1 if a run had to stop, 2 for wrong use, 75
    if a scheduler's signal stopped a command that can go on, and 130 if the
    user interrupted the command. A process of several ends at
    once, and with 75 if another one has ended or was lost.
  """
  _keep_imports()
  for name in ("stdout", "stderr"):
    if getattr(sys, name) is None:  # a job may be started with it closed
      setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
  if isinstance(sys.stdout, io.TextIOWrapper):
    # As stderr does: a path or a name may have what the terminal does not.
    sys.stdout.reconfigure(errors="backslashreplace")
  status = _status(command, sys.argv[1:] if argv is None else list(argv), resume_hint)
  try:
    sys.stdout.flush()
  except OSError:  # what is left can go nowhere, and Python would try again
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  return status


@functools.cache
def _keep_imports() -> None:
  """Has collections of garbage, which tracing causes, pass over imports."""
  gc.freeze()


def _status(
  command: Callable[[Sequence[str]], None], argv: Sequence[str], resume_hint: str
) -> int:
  try:
    with (
      warnings.catch_warnings(),
      _watch_callbacks(),
      signals.watch_signals(resume_hint) if resume_hint else contextlib.nullcontext(),
    ):
      warnings.showwarning = _print_warning
      _check_limits()
      _run(command, argv)
    sys.stdout.flush()
    processes.finish()
  except BrokenPipeError:  # nobody reads on, as with ``| head``
    return _exit_status(1)
  except (RunError, NonFiniteError, OSError) as error:
    return _say(_error_line(error), 1)
  except (OptionError, RunFolderError) as error:
    return _say(_error_line(error), 2)
  except signals.Stopped as stopped:
    print(program.as_typed(str(stopped)), file=sys.stderr)
    processes.finish()
    return signals.STATUS
  except SystemExit as error:  # no command calls it; a callback of the user's may
    return _say(
      f"your code must not end the process, {errors.describe_error(error)}", 1
    )
  except KeyboardInterrupt:
    print(f"interrupted{resume_hint and f'; {resume_hint}'}", file=sys.stderr)
    return _exit_status(130)
  except Exception as error:  # pylint: disable=broad-except
    if processes.is_loss(error):
      processes.lose(error)
    if os.environ.get(TRACEBACK):
      if processes.count() == 1:
        raise
      traceback.print_exc()
    return _say(_describe_unexpected(error), 1)
  return 0


def _say(text: str, status: int) -> int:
  print(f"error: {text}", file=sys.stderr)
  return _exit_status(status)


def _exit_status(status: int) -> int:
  """The exit status; one of several processes ends here."""
  if processes.count() > 1:
    processes.end(status)
  return status


def _describe_unexpected(error: Exception) -> str:
  """One line for an error that no check has foreseen."""
  text = reason(error)
  if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
    return (
      f"out of memory ({text}); take fewer clients or seeds, a smaller "
      "batch or model, or a machine with more"
    )
  backend = os.environ.get("JAX_PLATFORMS")
  if backend and (isinstance(error, AssertionError) or "backend" in text):
    return (
      f"JAX_PLATFORMS={backend}: JAX cannot start there"
      f"{f' ({text})' if str(error) else ''}"
    )
  if isinstance(error, jax.errors.JaxRuntimeError):
    return _of_callback(_RAISED[0]) if _RAISED else f"JAX: {text}"
  return f"not foreseen, {type(error).__name__}: {text} ({TRACEBACK}=1 shows where)"


#: Errors of the users' host callbacks (``jax.debug.callback``).
_RAISED: list[BaseException] = []


@contextlib.contextmanager
def _watch_callbacks() -> Iterator[None]:
  """Has a host callback that raises end the command with one line.

  JAX logs its traceback. On one device the program then fails, too. Of several
  devices the others wait for the one whose callback has raised, so this process
  ends at once; a run goes on from its last checkpoint.
  """

  def keep(record: logging.LogRecord) -> bool:
    error = record.exc_info and record.exc_info[1]
    if not error:
      return True
    _RAISED.append(error)
    if jax.local_device_count() > 1:
      _say(_of_callback(error), 1)
      sys.stderr.flush()
      os._exit(1)
    return False

  _RAISED.clear()
  loggers = [
    logging.getLogger(f"jax._src.{name}") for name in ("callback", "debugging")
  ]
  for logger in loggers:
    logger.addFilter(keep)
  try:
    yield
  finally:
    for logger in loggers:
      logger.removeFilter(keep)


def _of_callback(error: BaseException) -> str:
  return f"a host callback raises {errors.describe_error(error)}"


def _check_limits() -> None:
  """Refuses a limit under which XLA ends the process without a word."""
  limit = resource.getrlimit(resource.RLIMIT_AS)[0]
  if 0 < limit < _LEAST_ADDRESSES:
    raise RunError(
      f"the limit of addresses (ulimit -v) is {limit // 1024}; "
      f"must be at least {_LEAST_ADDRESSES // 1000} or unlimited"
    )


def _run(command: Callable[[Sequence[str]], None], argv: Sequence[str]) -> None:
  try:
    command(argv)
  except config_lib.HelpRequested as help_text:
    print(program.as_typed(str(help_text)))
