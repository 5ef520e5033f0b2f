"""Figures: every cell is valid, numbers meet their claims, runs are reused."""

import csv

import pytest

from experiments import config, diversified, report, suite

DIGITS = ["--dataset=digits", "--features=none", "--num_clients=20",
          "--size_sigma=0.3", "--rounds=4", "--eval_every=2",
          "--participation=0.25", "--noprogress"]


@pytest.mark.parametrize("name", diversified.FIGURES)
def test_every_cell_parses(name):
  figure = diversified.FIGURES[name]
  cells = diversified.cells(figure, diversified.FULL)
  parsed = [config.parse(cell.flags) for cell in cells]
  assert {c.panel for c in cells} == {p[0] for p in figure.panels}
  # The data preset has the last word on the data, not on a stated L2.
  assert all(c.dataset == figure.data for c in parsed)
  for cell, run in zip(cells, parsed):
    if "L2" in cell.panel_title:
      continue
    assert run.l2 == (0.01 if "stated" in cell.label else 1e-4)


def test_panels_vary_what_the_figure_says():
  def values(name, flag):
    cells = diversified.cells(diversified.FIGURES[name], ())
    return {c.panel: {config.parse(x.flags).hparams[flag] for x in cells
                      if x.panel == c.panel} for c in cells}

  assert values("fig8", "threshold") == dict(a={2}, b={4}, c={6}, d={8})
  assert values("fig9", "num_models") == dict(a={2}, b={4}, c={6}, d={8})
  assert values("fig10", "beta1") == dict(a={0.0}, b={0.5}, c={0.8}, d={0.9})


def test_figures_1_to_4_share_their_runs():
  first, *others = [
      [config.parse(c.flags).identity()
       for c in diversified.cells(diversified.FIGURES[f], ())]
      for f in ("fig1", "fig2", "fig3", "fig4")]
  assert all(other == first for other in others)


def test_claims_are_read():
  claims = report.load_claims("diversified", "fig1")
  found = {(c.panel, c.method): c.value for c in claims}
  assert found["a", "MA-FSVRG"] == 98.2
  assert found["d", "GA-FSVRG"] == 97.8
  shares = report.load_claims("diversified", "fig2")
  assert {c.value for c in shares if c.panel == "a"} == {
      96.0, 96.5, 94.0, 94.5}


@pytest.mark.parametrize("paper,ours,ci95,verdict", [
    (98.2, 98.45, 0.0, "same"), (98.2, 98.6, 0.0, "above"),
    (98.2, 97.8, 0.1, "below"), (98.2, 97.8, 0.5, "same"),
    (None, 50.0, 0.0, "no number in the paper")])
def test_verdict(paper, ours, ci95, verdict):
  row = report.Comparison("a", "10 %", "X", "accuracy", paper, ours, ci95, ours)
  assert row.verdict == verdict


def test_a_figure_is_made_and_reused(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(diversified, "methods", lambda figure, settings: [
      ("FedAvg", ("--flagfile=diversified/methods/fedavg.flags",)),
      ("FSVRG", ("--flagfile=diversified/methods/fsvrg.flags",
                 "--client_lr=2"))])
  figure = diversified.FIGURES["fig1"]
  diversified.make_figure("fig1", figure, ["a"], tmp_path, DIGITS, "here")
  folder = tmp_path / "fig1"
  for name in ("fig1.png", "fig1.pdf", "fig1.csv", "fig1.md"):
    assert (folder / name).stat().st_size > 0
  with open(folder / "fig1.csv", newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  assert {(r["method"], r["round"]) for r in rows} == {
      (m, r) for m in ("FedAvg", "FSVRG") for r in ("2", "4")}
  runs = list((tmp_path / "runs").glob("*/summary.json"))
  assert len(runs) == 2
  before = {p: p.stat().st_mtime_ns for p in runs}
  capsys.readouterr()
  diversified.make_figure("fig1", figure, ["a"], tmp_path, DIGITS, "here")
  assert {p: p.stat().st_mtime_ns for p in runs} == before


def test_unknown_figure_and_panel(tmp_path, capsys):
  assert diversified.main(["--figure=fig99"]) == 2
  assert "fig99" in capsys.readouterr().err
  assert diversified.main(["--figure=fig1", "--panels=z",
                           f"--out_dir={tmp_path}"]) == 2
  assert "--panels=z" in capsys.readouterr().err
  assert diversified.main(["--figure=fig1", "--nonsense=1",
                           f"--out_dir={tmp_path}"]) == 2
  assert "nonsense" in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


def test_run_folder_depends_on_what_decides_the_numbers(tmp_path):
  one = config.parse(["--algorithm=fedavg"])
  two = config.parse(["--algorithm=fedavg", "--client_lr=0.2"])
  assert suite.run_folder(tmp_path, one) != suite.run_folder(tmp_path, two)
