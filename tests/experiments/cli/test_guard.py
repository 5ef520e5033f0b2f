"""Errors and warnings of every command take one line each."""

import os
import sys
import warnings

import jax
import numpy as np
import pytest

from experiments.cli.guard import guarded
from fedjax_alg.errors import OptionError


def test_an_error_and_a_warning_are_one_line_each(capsys):
  before = warnings.showwarning

  def command(argv):
    warnings.simplefilter("always")
    warnings.warn("no roles found in a.txt,\nb.txt", stacklevel=1)
    raise OptionError(f"`rounds`={argv[0]}: must be\nat least 1")

  assert guarded(command, ["0"]) == 2
  assert capsys.readouterr().err == (
      "warning: no roles found in a.txt, b.txt\n"
      "error: --rounds=0: must be at least 1\n")
  assert warnings.showwarning is before


@pytest.mark.parametrize("error, status, said", [
    (MemoryError(), 1, "out of memory"),
    (RecursionError("maximum recursion depth exceeded"), 1,
     "not foreseen, RecursionError: maximum recursion depth exceeded"),
    (OverflowError("Python integer 2147483648 out of bounds\nfor int32"), 1,
     "not foreseen, OverflowError: Python integer 2147483648 out of bounds ("),
    (OSError(28, "No space left on device", "out/a.csv"), 1,
     "error: out/a.csv: No space left on device"),
    (KeyboardInterrupt(), 130, "interrupted"),
])
def test_no_error_is_a_traceback(capsys, error, status, said):
  def command(argv):
    raise error

  assert guarded(command, []) == status
  found = capsys.readouterr().err
  assert said in found and found.count("\n") == 1


def test_a_traceback_is_shown_to_who_asks(monkeypatch):
  monkeypatch.setenv("FEDJAX_ALG_TRACEBACK", "1")

  def command(argv):
    raise OverflowError("too large")

  with pytest.raises(OverflowError):
    guarded(command, [])


def test_a_platform_that_is_not_there(monkeypatch, capsys):
  monkeypatch.setenv("JAX_PLATFORMS", "bogus")

  def command(argv):
    raise RuntimeError("Unable to initialize backend 'bogus'\nmore")

  assert guarded(command, []) == 1
  assert capsys.readouterr().err == (
      "error: JAX_PLATFORMS=bogus: JAX cannot start there (Unable to "
      "initialize backend 'bogus')\n")


def test_a_host_callback_that_raises_ends_a_command(monkeypatch, capsys):
  """Without it JAX's trace is printed; test_own.py has several devices."""
  def called(x):
    raise ValueError("called\nhere")

  def command(argv):
    jax.jit(lambda x: jax.pure_callback(
        called, jax.ShapeDtypeStruct((), np.int32), x))(1)

  monkeypatch.setattr(jax, "local_device_count", lambda: 1)
  assert guarded(command, []) == 1
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
    assert guarded(lambda argv: print("x", flush=flush), []) == 1
  assert not capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_under_the_output(monkeypatch, capsys):
  with open("/dev/full", "w", encoding="utf-8") as full:
    monkeypatch.setattr(sys, "stdout", full)
    assert guarded(lambda argv: print("x"), []) == 1
  assert capsys.readouterr().err == "error: No space left on device\n"


def test_streams_that_are_closed_from_the_start(monkeypatch):
  for name in ("stdout", "stderr"):
    monkeypatch.setattr(sys, name, None)
  tty = []

  def command(argv):
    print("x")
    print("warning", file=sys.stderr)
    tty.append(sys.stderr.isatty())

  assert guarded(command, []) == 0 and tty == [False]
  sys.stdout.close()
  sys.stderr.close()
