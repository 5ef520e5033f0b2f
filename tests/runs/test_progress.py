"""What a run says while it is played."""

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.runs import play, progress

pytestmark = pytest.mark.fast


def step(number, accuracy=0.5):
  metrics = {} if accuracy is None else {
      "global": {"accuracy": np.array([accuracy, accuracy + 0.1])}}
  return play.Step(number, 6, None, metrics, {}, None, 1.5, 2.25, {}, None, 2)


def test_lines_where_there_is_no_terminal(capsys):
  bar = progress.ProgressBar("mine")
  for number in (2, 4, 6):
    bar(step(number, 0.1 * number))
  lines = capsys.readouterr().err.splitlines()
  assert lines[0] == "mine: compiled in 2.2 s"
  assert [line.split(",")[0] for line in lines[1:]] == [
      "mine: round 2/6 accuracy 0.2500", "mine: round 4/6 accuracy 0.4500",
      "mine: round 6/6 accuracy 0.6500"]
  # 1.5 seconds for the first two of six rounds.
  assert lines[1].endswith(", 3 s left") and lines[3].endswith(", 0 s left")


def test_the_rounds_before_a_resume_took_no_time(capsys):
  bar = progress.ProgressBar("mine", start=4)
  bar(step(5))
  assert capsys.readouterr().err.endswith(", 2 s left\n")


def test_measures_without_an_accuracy(capsys):
  fa.progress_bar()(step(2, None))
  assert "run: round 2/6 , " in capsys.readouterr().err


def test_nothing_is_shown_that_is_not_asked_for(capsys):
  bar = progress.ProgressBar(shown=False)
  bar.compiled(1.0)
  bar(step(6))
  assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(capsys, monkeypatch):
  monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
  bar = progress.ProgressBar("mine")
  bar(step(2))
  bar(step(6))
  said = capsys.readouterr().err
  assert "mine: 100%" in said and "6/6" in said and "accuracy 0.55" in said
