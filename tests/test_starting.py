"""Ctrl-C while the modules are being imported."""

import signal
import subprocess
import sys
import time

from fedjax_alg import starting


def test_an_interrupt_of_the_imports_is_one_line():
  # Nothing but the module itself: the wait stands for the imports of JAX.
  code = ("import signal, sys, runpy\n"
          "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
          "sys.orig_argv = ['python', '-m', 'experiments.run']\n"
          f"runpy.run_path({starting.__file__!r})\n"
          "print('ready', flush=True)\n"
          "import time; time.sleep(60)\n")
  with subprocess.Popen([sys.executable, "-c", code], text=True,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE) as process:
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
  assert process.returncode == 130
  assert said == "interrupted before anything was started\n"


def test_somebody_elses_program_keeps_its_handler():
  assert signal.getsignal(signal.SIGINT) is not starting._stop
  before = signal.getsignal(signal.SIGINT)
  starting.begin()  # this program is pytest
  assert signal.getsignal(signal.SIGINT) is before
