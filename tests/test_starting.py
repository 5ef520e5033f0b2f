"""Ctrl-C while the modules are being imported."""

import signal
import subprocess
import sys
import time

from fedjax_alg import starting


def test_an_interrupt_of_the_imports_is_one_line():
  # Nothing but the module itself: the wait stands for the imports of JAX.
  # Without site, which may import much: what is imported here comes too late.
  code = ("import signal, sys\n"
          "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
          "sys.orig_argv = ['python', '-m', 'experiments.run']\n"
          f"exec(open({starting.__file__!r}).read())\n"
          "print('re' in sys.modules, flush=True)\n"
          "import time; time.sleep(60)\n")
  with subprocess.Popen([sys.executable, "-S", "-c", code], text=True,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE) as process:
    slow = process.stdout.readline()
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
  assert slow == "False\n"
  assert process.returncode == 130
  assert said == "interrupted before anything was started\n"


def test_somebody_elses_program_keeps_its_handler():
  assert signal.getsignal(signal.SIGINT) is not starting._stop
  before = signal.getsignal(signal.SIGINT)
  starting.begin()  # this program is pytest
  assert signal.getsignal(signal.SIGINT) is before
