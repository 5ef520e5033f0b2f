"""Tuning by derivatives beside the grid: curves and verdicts of studies."""

import pathlib

import numpy as np

from experiments import beyond
from experiments.papers.beyond import gradient
from experiments.reports import rule


def study(scores, played):
  """A grid of 1,200 rounds that found 90 %, and three outer steps."""
  steps = [dict(values={"client_lr": rate}, rounds=50, loss=loss, kept=kept,
                gradient={"client_lr": -0.1}, scores=own, played=at)
           for rate, loss, kept, own, at in (
               (0.03, 0.5, True, [70.0, 72.0], played // 4),
               (1.0, 0.2, False, scores, played // 2),
               (9.0, np.nan, False, [], played))]
  return {"grid": [[600, 80.0], [900, 90.0], [1200, 85.0]], "best": 1,
          "grid_scores": [89.9, 90.1], "grid_seconds": 9.0, "seconds": 3.0,
          "chosen": {"client_lr": 1.0}, "steps": steps}


def test_the_curve_is_that_of_the_choice_so_far():
  assert gradient._steps_curve(study([90.0, 92.0], 400)) == (
      [100, 200, 400], [71.0, 91.0, 91.0])


def test_a_verdict_needs_accuracy_and_few_rounds():
  def of(*args):
    ((*_, place, holds),) = gradient._rows({"fedavg": study(*args)})
    return place, holds

  assert of([90.0, 90.2], 400) == (rule.SAME, "holds")
  assert of([90.0, 90.2], 401) == (rule.SAME, "does not hold")
  assert of([80.0, 80.2], 400) == (rule.BELOW, "does not hold")
  assert of([95.0, 95.2], 400) == (rule.ABOVE, "holds")
  assert of([60.0, 99.0], 400) == (rule.UNDECIDED, rule.UNDECIDED)


def test_the_page_is_drawn_of_finished_studies(
    tmp_path, monkeypatch, capsys):
  asked = []
  monkeypatch.setattr(gradient, "_study", lambda name, request: (
      asked.append(name), study([90.0, 90.2], 400))[1])
  words = ["--figure=gradient", f"--out_dir={tmp_path}"]
  for _ in range(2):
    assert beyond.main(words) == 0
  assert asked == list(gradient.METHODS)  # the second time they are read
  page = (tmp_path / "gradient" / "gradient.md").read_text()
  assert page.count("holds") == 3 and "diverged" in page
  assert "400 (0.33)" in page and page in capsys.readouterr().out
  for kind in ("png", "pdf"):
    path = pathlib.Path(tmp_path, "gradient", f"gradient.{kind}")
    assert path.stat().st_size > 5000
