"""Errors, warnings and signals of every command take one line each."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import warnings

import jax
import numpy as np
import pytest

from experiments.cli import guard, signals
from experiments.cli.guard import run_guarded
from fedjax_alg.errors import OptionError, RunFolderError
from fedjax_alg.records.lock import HeldError
from tests.each import each


def test_an_error_and_a_warning_are_one_line_each(capsys):
  before = warnings.showwarning

  def command(argv):
    warnings.simplefilter("always")
    warnings.warn("no roles found in a.txt,\nb.txt", stacklevel=1)
    raise OptionError(f"`rounds`={argv[0]}: must be\nat least 1")

  assert run_guarded(command, ["0"]) == 2
  assert capsys.readouterr().err == (
    "warning: no roles found in a.txt, b.txt\nerror: --rounds=0: must be at least 1\n"
  )
  assert warnings.showwarning is before


@each(
  "error, status, part",
  [
    (MemoryError(), 1, "out of memory"),
    (
      RecursionError("maximum recursion depth exceeded"),
      1,
      "not foreseen, RecursionError: maximum recursion depth exceeded",
    ),
    (
      OverflowError("Python integer 2147483648 out of bounds\nfor int32"),
      1,
      "not foreseen, OverflowError: Python integer 2147483648 out of bounds (",
    ),
    (
      OSError(28, "No space left on device", "out/a.csv"),
      1,
      "error: out/a.csv: No space left on device",
    ),
    (KeyboardInterrupt(), 130, "interrupted"),
    (SystemExit(0), 1, "error: your code must not end the process, SystemExit: 0"),
    (RunFolderError("out: no run"), 2, "error: out: no run"),
    (HeldError("out", "h, process 1"), 1, "error: out: is being run by h"),
  ],
)
def test_no_error_is_a_traceback(capsys, error, status, part):
  def command(argv):
    raise error

  assert run_guarded(command, []) == status
  message = capsys.readouterr().err
  assert part in message and message.count("\n") == 1


def test_a_traceback_is_shown_to_who_asks(monkeypatch):
  monkeypatch.setenv("FEDJAX_ALG_TRACEBACK", "1")

  def command(argv):
    raise OverflowError("too large")

  with pytest.raises(OverflowError):
    run_guarded(command, [])


def test_a_platform_that_is_not_there(monkeypatch, capsys):
  monkeypatch.setenv("JAX_PLATFORMS", "bogus")

  def command(argv):
    raise RuntimeError("Unable to initialize backend 'bogus'\nmore")

  assert run_guarded(command, []) == 1
  assert capsys.readouterr().err == (
    "error: JAX_PLATFORMS=bogus: JAX cannot start there (Unable to "
    "initialize backend 'bogus')\n"
  )


def test_a_host_callback_that_raises_ends_a_command(monkeypatch, capsys):
  """Without it JAX's trace is printed; test_own.py has several devices."""

  def fail(x):
    raise ValueError("called\nhere")

  def command(argv):
    jax.jit(lambda x: jax.pure_callback(fail, jax.ShapeDtypeStruct((), np.int32), x))(1)

  monkeypatch.setattr(jax, "local_device_count", lambda: 1)
  assert run_guarded(command, []) == 1
  error = capsys.readouterr().err
  assert error.startswith("error: a host callback raises ValueError: called, ")
  assert error.count("\n") == 1


@pytest.mark.parametrize("flush", [True, False])
def test_a_closed_pipe_ends_a_command_quietly(monkeypatch, capsys, flush):
  """As with ``| head``."""
  reader, writer = os.pipe()
  os.close(reader)
  with open(writer, "w", encoding="utf-8") as pipe:
    monkeypatch.setattr(sys, "stdout", pipe)
    assert run_guarded(lambda argv: print("x", flush=flush), []) == 1
  assert not capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_under_the_output(monkeypatch, capsys):
  with open("/dev/full", "w", encoding="utf-8") as full:
    monkeypatch.setattr(sys, "stdout", full)
    assert run_guarded(lambda argv: print("x"), []) == 1
  assert capsys.readouterr().err == "error: No space left on device\n"


def test_streams_that_are_closed_from_the_start(monkeypatch):
  for name in ("stdout", "stderr"):
    monkeypatch.setattr(sys, name, None)
  tty = []

  def command(argv):
    print("x")
    print("warning", file=sys.stderr)
    tty.append(sys.stderr.isatty())

  assert run_guarded(command, []) == 0 and tty == [False]
  sys.stdout.close()
  sys.stderr.close()


ROOT = pathlib.Path(__file__).parents[3]

#: A command that does not come to an end, for each number of signals.
ENDLESS = """
import os, pathlib, signal, sys, time
from experiments.cli import guard, signals
from fedjax_alg.records import lock

folder = pathlib.Path(sys.argv[1])

def command(argv):
  signals.wait_at_most(float(argv[0]))
  with lock.hold(folder):
    (folder / "file").touch()
    signals.note_progress("the runs")
    for _ in range(int(argv[1])):
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(0.1)
    time.sleep(600)

for words in (("0", "1"), ("0.2", "1"), ("500", "2")):
  child = os.fork()
  if not child:
    sys.exit(guard.run_guarded(command, words, "again"))
  print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
        sorted(os.listdir(folder)), flush=True)
"""


@pytest.fixture(name="heard")
def fixture_heard():
  """Hears a signal that whoever started the tests may have had ignored."""
  before = []

  def hear(number, handler=signal.SIG_DFL):
    before.append((number, signal.signal(number, handler)))

  yield hear
  for number, handler in before:
    signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_is_seen_by_the_next_check(capsys, number, heard):
  heard(number)
  before = signal.getsignal(number)

  def command(argv):
    signals.stop_if_signaled()
    assert not signals.pending()
    signals.note_progress("out: saved at round 3 of 5")
    signal.raise_signal(number)
    assert signals.pending()
    with signals.delay_signals():
      signals.stop_if_signaled()

  assert guard.run_guarded(command, [], "to go on, again") == 75
  assert capsys.readouterr().err == (
    f"stopped by {number.name}: out: saved at round 3 of 5; to go on, again\n"
  )
  assert signal.getsignal(number) is before and not signals.pending()


def test_a_command_that_ends_all_the_same(capsys):
  assert (
    guard.run_guarded(lambda argv: signal.raise_signal(signal.SIGTERM), [], "again")
    == 0
  )
  assert not capsys.readouterr().err


def test_what_is_ignored_stays_ignored():
  """By nohup; and no thread but the first has signals."""
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:

    def command(argv):
      signal.raise_signal(signal.SIGHUP)
      signals.stop_if_signaled()

    assert guard.run_guarded(command, [], "again") == 0
    statuses = []
    thread = threading.Thread(
      target=lambda: statuses.append(
        guard.run_guarded(lambda argv: signals.stop_if_signaled(), [], "again")
      )
    )
    thread.start()
    thread.join()
    assert statuses == [0]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
  finally:
    signal.signal(signal.SIGHUP, before)


def test_commands_that_play_nothing_end_as_before():
  def command(argv):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

  assert guard.run_guarded(command, []) == 0


def test_ctrl_c_says_how_to_go_on(capsys, heard):
  heard(signal.SIGINT, signal.default_int_handler)

  def command(argv):
    signal.raise_signal(signal.SIGINT)

  for hint, message in (("again", "interrupted; again\n"), ("", "interrupted\n")):
    assert guard.run_guarded(command, [], hint) == 130
    assert capsys.readouterr().err == message


def test_where_a_call_does_not_end(tmp_path):
  """At once, after the grace, and by a second signal; locks are released."""
  done = subprocess.run(
    [sys.executable, "-W", "ignore", "-c", ENDLESS, str(tmp_path)],
    text=True,
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": str(ROOT)},
    timeout=120,
    check=True,
    capture_output=True,
  )
  assert done.stdout == "75 ['file']\n" * 3
  assert done.stderr == (
    "stopped by SIGTERM, --grace_s=0 later: the runs; again\n"
    "stopped by SIGTERM, --grace_s=0.2 later: the runs; again\n"
    "stopped by SIGTERM twice: the runs; again\n"
  )
