"""Signals of a scheduler: between calls, and where a call does not end."""

import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

from experiments.cli import guard, signals

ROOT = pathlib.Path(__file__).parents[3]

#: A command that does not come to an end, for each number of signals.
ENDLESS = """
import os, pathlib, signal, sys, time
from experiments.cli import guard, lock, signals

folder = pathlib.Path(sys.argv[1])

def command(argv):
  signals.wait_at_most(float(argv[0]))
  with lock.held(folder):
    (folder / "file").touch()
    signals.keep("the runs")
    for _ in range(int(argv[1])):
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(0.1)
    time.sleep(600)

for words in (("0", "1"), ("0.2", "1"), ("500", "2")):
  child = os.fork()
  if not child:
    sys.exit(guard.guarded(command, words, "again"))
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


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_is_seen_by_the_next_check(capsys, number, heard):
  heard(number)
  before = signal.getsignal(number)

  def command(argv):
    signals.check()
    assert not signals.pending()
    signals.keep("out: saved at round 3 of 5")
    signal.raise_signal(number)
    assert signals.pending()
    with signals.saving():
      signals.check()

  assert guard.guarded(command, [], "to go on, again") == 75
  assert capsys.readouterr().err == (
      f"stopped by {number.name}: out: saved at round 3 of 5; to go on, "
      "again\n")
  assert signal.getsignal(number) is before and not signals.pending()


def test_a_command_that_ends_all_the_same(capsys):
  assert guard.guarded(
      lambda argv: signal.raise_signal(signal.SIGTERM), [], "again") == 0
  assert not capsys.readouterr().err


def test_what_is_ignored_stays_ignored():
  """By nohup; and no thread but the first has signals."""
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    def command(argv):
      signal.raise_signal(signal.SIGHUP)
      signals.check()

    assert guard.guarded(command, [], "again") == 0
    found = []
    thread = threading.Thread(target=lambda: found.append(guard.guarded(
        lambda argv: signals.check(), [], "again")))
    thread.start()
    thread.join()
    assert found == [0]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
  finally:
    signal.signal(signal.SIGHUP, before)


def test_commands_that_play_nothing_end_as_before():
  def command(argv):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

  assert guard.guarded(command, []) == 0


def test_ctrl_c_says_how_to_go_on(capsys, heard):
  heard(signal.SIGINT, signal.default_int_handler)

  def command(argv):
    signal.raise_signal(signal.SIGINT)

  for again, said in (("again", "interrupted; again\n"), ("", "interrupted\n")):
    assert guard.guarded(command, [], again) == 130
    assert capsys.readouterr().err == said


def test_where_a_call_does_not_end(tmp_path):
  """At once, after the grace, and by a second signal; locks are released."""
  done = subprocess.run(
      [sys.executable, "-W", "ignore", "-c", ENDLESS, str(tmp_path)], text=True,
      cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120,
      check=True, capture_output=True)
  assert done.stdout == "75 ['file']\n" * 3
  assert done.stderr == (
      "stopped by SIGTERM, --grace_s=0 later: the runs; again\n"
      "stopped by SIGTERM, --grace_s=0.2 later: the runs; again\n"
      "stopped by SIGTERM twice: the runs; again\n")
