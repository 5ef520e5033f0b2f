"""Output that nobody reads does not stop a command."""

import os
import sys

import pytest

from experiments.cli import streams
from experiments.cli.guard import guarded


def test_a_closed_pipe_and_a_missing_stream_are_dropped(monkeypatch):
  reader, writer = os.pipe()
  os.close(reader)
  with open(writer, "w", encoding="utf-8") as pipe:
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setattr(sys, "stderr", None)
    done = []

    def command(argv):
      for _ in range(3):
        print("x" * 100_000, flush=True)
        print("warning", file=sys.stderr)
      done.append(sys.stderr.isatty())

    assert guarded(command, []) == 0
  assert done == [False]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_under_the_output_is_said_at_the_end(monkeypatch, capsys):
  with open("/dev/full", "w", encoding="utf-8") as full:
    monkeypatch.setattr(sys, "stdout", full)
    done = []
    assert guarded(lambda argv: done.append(print("x", flush=True)), []) == 1
  assert done
  assert capsys.readouterr().err == (
      "error: standard output: No space left on device\n")


def test_what_can_be_written_is_written(capsys):
  with streams.lasting() as out:
    print("a", end="")
    out.flush()
    print("b", file=sys.stderr)
  assert capsys.readouterr() == ("a", "b\n") and out.failed is None
