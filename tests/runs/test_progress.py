"""The progress bar: lines where there is no terminal, a bar where there is."""

import types

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.runs import progress, queue
from tests import shared_programs


def step(number, rounds=4, accuracy=(0.25, 0.75)):
  """What the bar reads of a Step."""
  return types.SimpleNamespace(
    round=number,
    rounds=rounds,
    seconds=0.5,
    compile_s=2.0,
    last=number == rounds,
    metrics={"correct": {}, "global": {"accuracy": np.array(accuracy)}},
  )


def test_lines(capsys):
  bar = fa.progress_bar("mine")
  bar(step(2))
  bar(step(4))
  lines = capsys.readouterr().err.splitlines()
  assert lines[0] == "mine: compiled in 2.0 s"
  assert lines[1].startswith("mine: round 2/4 accuracy 0.5000, ")
  assert lines[2].startswith("mine: round 4/4 ") and lines[2].endswith(", 0 s left")


def test_nothing_is_shown(capsys):
  bar = progress.ProgressBar(visible=False)
  bar(step(4))
  bar.close()
  assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("programs", (1, 2))
def test_a_bar_for_every_program_of_a_sweep(monkeypatch, programs):
  bars = []

  class Bar:
    """tqdm, as the progress bar uses it."""

    def __init__(self, total, initial, desc, unit):
      del desc, unit
      self.total, self.n, self.open = total, initial, True
      bars.append(self)

    def set_postfix_str(self, text):
      assert self.open and text == "accuracy 0.5000"

    def update(self, count):
      assert self.open and count > 0
      self.n += count

    def write(self, line, file):
      raise AssertionError(line)

    def close(self):
      self.open = False

  monkeypatch.setattr(progress, "tqdm", Bar)
  monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
  bar = fa.progress_bar()
  for _ in range(programs):
    bar(step(2))
    bar(step(4))
  bar.close()
  assert [b.n for b in bars] == [4] * programs
  assert not any(b.open for b in bars)


def test_the_rounds_before_a_resume_took_no_time(capsys):
  bar = progress.ProgressBar("mine")
  bar.start(types.SimpleNamespace(compile_s=2.0), (), (), 2)
  bar._began -= 100.0
  bar(step(3))  # 100 seconds for the first of the two rounds left
  assert capsys.readouterr().err.splitlines()[-1].endswith(" 100 s left")


def test_time_left_of_runs_with_compiling():
  time_left = progress.TimeLeft()
  assert time_left.estimate([("a", 10)]) is None
  time_left.add("a", 10, compiling=4.0, running=20.0)
  time_left.add("a", 30, compiling=2.0, running=30.0)
  time_left.add("b", 5, compiling=1.0, running=2.5)
  assert time_left.estimate([("a", 4)]) == pytest.approx(3 + 4 * 1.5)
  assert time_left.estimate([("b", 4), ("b", 2)]) == pytest.approx(2 + 6 * 0.5)
  assert time_left.estimate([("c", 4)]) == pytest.approx(2 + 4 * 1.0)
  assert time_left.estimate([]) == 0


@pytest.mark.parametrize("visible", (True, False))
def test_a_run_says_what_it_compiles_where_its_bar_is(
  fed, monkeypatch, capsys, visible
):
  def compile_slowly(prepared, notice):
    notice("compiling it")
    return shared_programs.make(prepared)

  monkeypatch.setattr(queue, "Programs", compile_slowly)
  bar = progress.ProgressBar(visible=visible)
  fa.run("fedavg", fed, rounds=1, cohort_size=2, callbacks=bar, evaluate="global")
  output = capsys.readouterr()
  assert not output.out and bool(output.err) == visible
  if visible:
    assert output.err.splitlines()[0] == "compiling it"
