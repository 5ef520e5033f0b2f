"""A scheduler's signals: what is run is saved, and the status is 75.

SIGTERM, SIGUSR1 and SIGHUP are looked at between two calls of a compiled
program. A thread learns of them at once: Python's own handlers wait for the
call that is running, which may outlast the time that the scheduler gives.
"""

from collections.abc import Iterator
import contextlib
import os
import select
import signal
import threading
import time
from typing import NoReturn

import jax

from fedjax_alg.engine import processes
from fedjax_alg.records import lock

#: The exit status of a command that goes on when it is given again (EX_TEMPFAIL
#: of sysexits.h).
STATUS = 75

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class Stopped(Exception):
  """A signal has stopped the command; the message is the line to print."""


#: Message about a signal while no run is run.
NOTHING = "no run was being run"


class _Watch:
  """State of the signals of a command."""

  def __init__(self, resume_hint: str):
    self.resume_hint = resume_hint
    self.name = ""  # of the first signal
    self.grace_s = 30.0
    self.kept = NOTHING
    self.saving = threading.Lock()

  def came(self, number: int) -> None:
    if not self.name:
      self.name = signal.Signals(number).name

  def line(self, why: str = "") -> str:
    name = self.name or "a signal to another process"
    return f"stopped by {name}{why}: {self.kept}; {self.resume_hint}"

  def listen(self, reader: int) -> None:
    """Reads the numbers of the signals; ends the process when it is time."""
    end: float | None = None
    while True:
      timeout = None if end is None else max(0.0, end - time.monotonic())
      if not select.select([reader], [], [], timeout)[0]:
        with self.saving:  # a file that has been begun is kept
          self._end(f", --grace_s={self.grace_s:g} later")
      for number in os.read(reader, 64):
        if number == 0:
          return
        if number not in _SIGNALS:
          continue  # Ctrl-C is Python's
        if end is not None:
          self._end(" twice")
        self.came(number)
        end = time.monotonic() + self.grace_s

  def _end(self, why: str) -> NoReturn:
    lock.release_all()
    with contextlib.suppress(OSError):  # the terminal may have gone
      os.write(2, f"{self.line(why)}\n".encode())
    os._exit(STATUS)


_watch: _Watch | None = None


@contextlib.contextmanager
def watch_signals(resume_hint: str) -> Iterator[None]:
  """Watches the signals during a command.

  Outside the main thread, where Python has no signals, nothing happens. A
  signal that the process was started to ignore (nohup) stays ignored.

  Args:
    resume_hint: how the user goes on with the command.
  """
  global _watch
  if threading.current_thread() is not threading.main_thread() or _watch:
    yield
    return
  # Among several processes JAX would take SIGTERM for itself.
  jax.config.update("jax_enable_preemption_service", False)
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  _watch = watch = _Watch(resume_hint)
  before = {
    number: signal.signal(number, lambda number, _: watch.came(number))
    for number in _SIGNALS
    if signal.getsignal(number) is not signal.SIG_IGN
  }
  old = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  thread = threading.Thread(target=watch.listen, args=(reader,), daemon=True)
  thread.start()
  try:
    yield
  finally:
    signal.set_wakeup_fd(old)
    for number, handler in before.items():
      signal.signal(number, handler or signal.SIG_DFL)
    os.write(writer, b"\0")
    thread.join()
    os.close(reader)
    os.close(writer)
    _watch = None


def wait_at_most(grace_s: float) -> None:
  """Sets how long after a signal the process ends whatever it is doing."""
  if _watch:
    _watch.grace_s = grace_s


def note_progress(description: str) -> None:
  """Notes what a signal would leave, for the line that says so."""
  if _watch:
    _watch.kept = description


@contextlib.contextmanager
def delay_signals() -> Iterator[None]:
  """Keeps the process from ending in the middle, but for a second signal."""
  with _watch.saving if _watch else contextlib.nullcontext():
    yield


def pending() -> bool:
  """Whether a signal asks the command to stop."""
  return bool(_watch and _watch.name)


def stop_if_signaled() -> None:
  """Stops the command if a signal asks for it.

  Raises:
    Stopped: a signal does.
  """
  if pending():
    stop()


def stop() -> NoReturn:
  """Stops the command.

  Raises:
    Stopped: with the line to print.
  """
  raise Stopped(_watch.line() if _watch else NOTHING)


def any_process(wish: bool) -> bool:
  """Whether any process of the run has a wish, so that all do the same."""
  return processes.anyone(wish)
