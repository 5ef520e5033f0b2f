"""Ctrl-C while a command is still importing its modules.

Importing JAX takes a second or two. Python would show a traceback of the
imports, or lose an interrupt that comes while a C library is being loaded.
The package imports this module before all others, which calls ``begin``. So
it imports little itself (not even ``re``): the earlier it begins, the better.
What comes before is Python's own start.
"""

import os
import signal
import sys


def _is_command() -> bool:
  """Whether this process is a command of ours, not somebody's program."""
  words = sys.orig_argv
  return os.path.basename(sys.argv[0]).startswith("fedjax-alg") or any(
      word == "-m" and (module.removeprefix("fedjax_alg.").partition(".")[0]
                        == "experiments")
      for word, module in zip(words, words[1:]))


def _stop(number: int, frame: object) -> None:
  del number, frame
  os.write(2, b"interrupted before anything was started\n")
  os._exit(130)


def begin() -> None:
  """Ends the command in one line at Ctrl-C, until ``end`` is called."""
  if _is_command() and (
      signal.getsignal(signal.SIGINT) is signal.default_int_handler):
    try:
      signal.signal(signal.SIGINT, _stop)
    except ValueError:  # only the main thread may
      pass


def end() -> None:
  """Lets Ctrl-C raise KeyboardInterrupt again."""
  if signal.getsignal(signal.SIGINT) is _stop:
    signal.signal(signal.SIGINT, signal.default_int_handler)


begin()
