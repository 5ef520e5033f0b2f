"""Figures: every cell is valid, numbers meet their claims, runs are reused."""

import csv
import dataclasses
import math
import pathlib
import shutil
from unittest import mock

import pytest

from experiments import beyond, conjugate, diversified
from experiments.cli import config, shared_runs
from experiments.cli import presets as presets_lib
from experiments.drawing import dots, plots
from experiments.reproduction import central_time, figures, report, suite, tuning
from fedjax_alg import files, registry
from fedjax_alg.runs import store
from tests import made_runs
from tests.experiments import shown
from tests.experiments.reproduction import test_verdicts

DIGITS = (
  "--dataset=digits",
  "--features=none",
  "--num_clients=20",
  "--validation_clients=2",
  "--partition=iid:size_sigma=0.3",
  "--rounds=4",
  "--participation=0.25",
  "--noprogress",
)


def request(*common, root=None, **options):
  return figures.Request(root, config.read_layers(common), "here", **options)


def cells_of(name, paper):
  return figures.cells(paper, paper.figures[name], request())


@pytest.mark.parametrize(
  "words, options, name, value",
  [
    ((), dict(data_dir="/data"), "data_dir", "/data"),
    (DIGITS, dict(data_dir="/data"), "data_dir", None),  # they read none
    ((), {}, "num_seeds", 3),
    (("--num_seeds=2",), {}, "num_seeds", 2),
    ((), dict(quick=True), "num_seeds", 1),
  ],
)
def test_what_is_given_goes_to_the_runs_that_read_it(words, options, name, value):
  assert {
    cell.config.values[name]
    for cell in figures.cells(
      diversified.PAPER, diversified.PAPER.figures["fig10"], request(*words, **options)
    )
  } == {value}


def test_claims_name_lines_that_exist():
  labels = {entry.label for entry in registry.ALGORITHMS.values()}
  for artifact in ("fig1", "fig2", "fig5"):
    for claim in report.load_claims("diversified", artifact):
      assert claim.method in labels
  for row in report.read_claims("conjugate"):
    if row["artifact"] == "Fig2" and row["panel"] in list("abcd"):
      assert row["method"] in labels
    if row["artifact"] == "Fig4" and row["metric"] == "rounds_to_98%":
      assert row["method"] in {
        c.label for c in shown.cells("conjugate", "fig4") if c.panel == "a"
      }


@pytest.fixture(name="presets")
def _presets(tmp_path, monkeypatch):
  """A conjugate paper on digits, whatever its real flag files say."""
  folder = tmp_path / "presets" / "conjugate"
  (folder / "methods").mkdir(parents=True)
  (folder / "methods_cifar10").mkdir()

  def write(name, *words):
    (folder / f"{name}.flags").write_text("\n".join(words))

  write(
    "mnist",
    "--dataset=digits",
    "--num_clients=20",
    "--rounds=4",
    "--validation_clients=2",
    "--noprogress",
  )
  write(
    "cifar10",
    "--dataset=digits",
    "--num_clients=20",
    "--rounds=3",
    "--validation_clients=2",
    "--noprogress",
  )
  write(
    "headline",
    "--flagfile=conjugate/mnist.flags",
    "--algorithm=clsfsvrg",
    "--line_search_test=decrease",
    "--l2=0.001",
  )
  write("stated", "--flagfile=conjugate/headline.flags", "--client_lr=0.3")
  write("methods/losac", "--algorithm=losac", "--client_lr=0.5", "--l2=0.01")
  write("methods/fedavg", "--algorithm=fedavg", "--client_lr=0.5")
  write("methods/not_there", "--algorithm=not_there")
  write("methods_cifar10/fedavg", "--client_lr=0.25")
  monkeypatch.setattr(presets_lib, "PRESETS", tmp_path / "presets")
  return folder


def test_a_line_is_parsed_only_if_it_is_asked_for():
  """FSVRG has no --mu, so the others' runs would be refused."""
  figure = figures._select_panels("fig1", diversified.PAPER.figures["fig1"], "a")
  (cell,) = figures.cells(
    diversified.PAPER, figure, request("--mu=3", lines=("FedProx",))
  )
  assert cell.config.hparams["mu"] == 3
  with pytest.raises(config.UsageError, match="--mu"):
    figures.cells(diversified.PAPER, figure, request("--mu=3"))


def test_methods_join_by_their_files(presets):
  del presets
  figure = figures._select_panels("fig2", conjugate.PAPER.figures["fig2"], "d")
  configs = {
    c.name: c.config for c in figures.cells(conjugate.PAPER, figure, request())
  }
  assert list(configs) == ["CLSFSVRG", "CLSFSVRG (stated)", "FedAvg", "LoSAC"]
  assert configs["CLSFSVRG"].values["l2"] == 0.001
  assert configs["LoSAC"].values["l2"] == 0.01
  assert {c.values["participation"] for c in configs.values()} == {0.05}
  cifar = {c.label: c.config for c in cells_of("fig6", conjugate.PAPER)}
  assert cifar["FedAvg"].hparams["client_lr"] == 0.25
  assert configs["FedAvg"].hparams["client_lr"] == 0.5


def test_a_figure_is_made_and_reused(tmp_path, monkeypatch, capsys):
  monkeypatch.setitem(
    diversified.PAPER.figures,
    "fig1",
    diversified.PAPER.figures["fig1"]._replace(
      lines_of=lambda panel: [
        ("FedAvg", ("diversified/methods/fedavg.flags",)),
        ("FSVRG", ("diversified/methods/fedavg.flags", {"client_lr": 0.2})),
      ]
    ),
  )
  make = request(*DIGITS, "--num_seeds=1", root=tmp_path, panels=("a",))
  figures._make_figure(diversified.PAPER, "fig1", make)
  folder = tmp_path / "fig1"
  for name in ("fig1.png", "fig1.pdf", "fig1.csv", "fig1.md"):
    assert (folder / name).stat().st_size > 0
  with open(folder / "fig1.csv", newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  assert {(r["method"], r["round"]) for r in rows} == {
    (m, r) for m in ("FedAvg", "FSVRG") for r in ("2", "4")
  }
  assert set(rows[0]) >= {"total_floats", "exchanges", "seconds", "accuracy"}
  text = (folder / "fig1.md").read_text()
  assert "## What is said in words" in text and "| not testable: not run |" in text
  assert "\n\nOne seed gives no interval" in text
  with open(folder / "fig1_numbers.csv", newline="", encoding="utf-8") as file:
    numbers = list(csv.DictReader(file))
  assert [(row["method"], row["protocol"]) for row in numbers] == [
    ("FedAvg", "tuned"),
    ("FSVRG", "tuned"),
  ]
  assert numbers[1]["flags"].startswith("--flagfile=diversified/methods/fedavg.flags")
  assert f"| FSVRG, tuned | {float(numbers[1]['ours']):.2f} |" in text
  runs = list((tmp_path / "runs").glob("*/summary.json"))
  assert len(runs) == 2
  before = {p: p.stat().st_mtime_ns for p in runs}
  capsys.readouterr()
  figures._make_figure(diversified.PAPER, "fig1", make._replace(x_axis="floats"))
  assert {p: p.stat().st_mtime_ns for p in runs} == before
  assert {p.name for p in folder.glob("*.png")} == {"fig1.png", "fig1_vs_floats.png"}


def test_a_picture_has_at_most_four_panels(monkeypatch, tmp_path):
  """Eight panels in one picture were 6 px text at the page's width."""
  runs = [
    test_verdicts.flat(label, 0.9, 0.9, panel=panel, protocol=protocol)
    for panel in "abcde"
    for label, protocol in (("A", "tuned"), ("A", "stated"), ("B", "one rate"))
  ]
  drawn = {}
  monkeypatch.setattr(
    figures.plots,
    "plot_panels",
    lambda paths, cells, *words, references: drawn.update(
      {paths[0].name: ([*cells], [*next(iter(cells.values()))], words[2])}
    ),
  )
  figures._draw(
    diversified.PAPER,
    "fig1",
    diversified.PAPER.figures["fig1"],
    runs,
    request(root=tmp_path),
    [tmp_path / "fig1.png"],
  )
  panels = [f"({letter}) panel {letter}" for letter in "abcde"]
  title = diversified.PAPER.figures["fig1"].title
  assert drawn == {
    "fig1.png": (panels[:4], ["A"], f"{title}, tuned"),
    "fig1_2.png": (panels[4:], ["A"], f"{title}, tuned"),
    "fig1_stated.png": (
      panels[:4],
      ["A", "B"],
      f"{title}, the paper's settings",
    ),
    "fig1_stated_2.png": (
      panels[4:],
      ["A", "B"],
      f"{title}, the paper's settings",
    ),
  }


@pytest.mark.usefixtures("made_up")
def test_conjugate_figures_are_made(presets, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(central_time, "central_seconds", lambda cell: 0.01)
  for methods in ("methods", "methods_cifar10"):  # no page speaks of it
    (presets / methods / "fedavg.flags").unlink()
  root = tmp_path / "out"
  common = [
    w
    for w in DIGITS
    if "participation" not in w and "size_sigma" not in w and "features" not in w
  ]
  # Five per cent of 20 clients would be one.
  for name in ("fig3", "fig7", "fig8", "fig4"):
    panels = ["--panels=a"] if name == "fig4" else []
    panels += ["--html"] if name == "fig3" else []
    assert (
      conjugate.main(
        [
          f"--figure={name}",
          "--scale=quick",
          f"--out_dir={root}",
          *common,
          "--participation=0.25",
          "--rounds=6",
          *panels,
        ]
      )
      == 0
    ), capsys.readouterr().err
    assert (root / name / f"{name}.png").stat().st_size > 0
  fig3 = (root / "fig3" / "fig3.md").read_text()
  assert "the first and the last panel (a and d" in fig3
  assert "loss, mean of the last ten rounds" in fig3
  assert "the paper |" not in fig3
  page = (root / "fig3" / "fig3.html").read_text()
  for line in fig3.splitlines():
    if line.startswith(("| a:", "| d:")):
      assert f"<h3>{line.split('|')[1].split(':', 1)[1].strip()}</h3>" in page
  for panel in made_runs.read_traces(root / "fig3" / "fig3.html")[:2]:
    assert {"CLSFSVRG", "LoSAC"} <= {line["name"] for line in panel}
  assert "What CLSFSVRG saves against LoSAC" in (root / "fig7" / "fig7.md").read_text()
  assert "server, s a round" in (root / "fig8" / "fig8.md").read_text()
  assert "## Rounds to 98 %" in (root / "fig4" / "fig4.md").read_text()


def test_the_papers_numbers_on_the_curves():
  """As the files of claims have them, in the panels and at their rounds."""

  def marks(paper, artifact, metric, *labels):
    by_panel = report.marks(
      paper,
      artifact,
      [
        suite.Outcome(
          suite.Cell(panel, "5 %", label, shown.config_of()), pathlib.Path(), [], {}
        )
        for panel, label in labels
      ],
      metric,
    )
    return {
      title: [mark[:3] for mark in panel_marks]
      for title, panel_marks in by_panel.items()
    }

  actual = marks(
    "conjugate",
    "fig2",
    "accuracy",
    *((panel, label) for panel in "ad" for label in ("CLSFSVRG", "FedAvg", "LoSAC")),
  )
  assert actual == {
    "(a) 5 %": [("CLSFSVRG", 0.98, 48.0)],  # not the others, beyond 100
    "(d) 5 %": [
      ("CLSFSVRG", 0.98, 65.0),
      ("CLSFSVRG", pytest.approx(0.9614), 16),
      ("LoSAC", pytest.approx(0.9613), 61),
    ],
  }
  assert marks("conjugate", "fig3", "loss", ("a", "CLSFSVRG")) == {"(a) 5 %": []}
  assert marks(
    "diversified", "fig2", "macro_precision", ("a", "GA-FSVRG"), ("a", "SCAFFOLD")
  ) == {"(a) 5 %": [("GA-FSVRG", pytest.approx(0.965), None)]}
  assert marks("analytic", "fig6", "accuracy", ("a", "pFedACnnL-WP")) == {
    "(a) 5 %": [("pFedACnnL-WP", pytest.approx(0.7403), None)]
  }
  assert marks("fedgroup", "table3", "accuracy", ("e", "FeSEM"), ("g", "FeSEM")) == {
    "(e) 5 %": [("FeSEM", pytest.approx(0.921), None)],
    "(g) 5 %": [],
  }


def test_a_label_looks_the_same_in_every_panel():
  cells = {"a": dict.fromkeys("xyz"), "b": dict.fromkeys("xz")}
  styles = plots._styles(cells)
  assert len({tuple(style.values()) for style in styles.values()}) == 3
  many = plots._styles({"a": dict.fromkeys(map(str, range(49)))})
  looks = [tuple(style.values()) for style in many.values()]
  assert len(set(looks)) == 49
  # Neighbours stay apart in grey.
  assert all(first[1] != second[1] for first, second in zip(looks, looks[1:]))


def test_cells_are_checked_before_the_first_run(tmp_path, monkeypatch):
  executed = []
  monkeypatch.setattr(
    shared_runs.sweeps,
    "run_configs",
    lambda configs, names, pictures: executed.extend(configs),
  )
  monkeypatch.setattr(shared_runs.execute, "run_files", None)  # nothing is read
  lines = [
    figures.FigureLine("A", ({"algorithm": "fedavg"},)),
    figures.FigureLine("B", ({"algorithm": "fedavg", "mu": 3},)),
  ]
  figure = diversified.PAPER.figures["fig1"]
  bad = figure._replace(lines_of=lambda panel: lines)
  with pytest.raises(config.UsageError, match="--mu: fedavg does not read it"):
    figures._outcomes_of(diversified.PAPER, bad, request(root=tmp_path))
  assert not executed
  good = suite.Cell("a", "", "A", shown.config_of())
  with pytest.raises(AttributeError):  # after it is run
    suite.run_cells([good], tmp_path)
  (run,) = executed
  assert run.identity == good.config.identity
  assert run.values["out_dir"] == str(store.folder_of(tmp_path, run))
  assert not run.values["overwrite"]


def test_a_picture_without_numbers_leaves_the_others(tmp_path, capsys):
  """The pictures after it were not drawn."""
  pictures = [
    figures.dot_picture(
      lambda _, mean=mean: [dots.Dot("p", "r", mean, 0.0)], "x", end=end
    )
    for end, mean in (("_a", math.nan), ("_b", 1.0))
  ]
  figure = diversified.PAPER.figures["fig1"]._replace(dots=pictures)
  (tmp_path / "fig1").mkdir()
  (tmp_path / "fig1" / "fig1_a.png").touch()
  figures._draw_pictures(
    diversified.PAPER, "fig1", figure, [mock.Mock()], request(root=tmp_path)
  )
  names = {path.name for path in (tmp_path / "fig1").glob("*.png")}
  assert names == {"fig1_b.png"} and "no figure: " in capsys.readouterr().out


def test_a_page_has_the_metric_of_each_panel(tmp_path, monkeypatch):
  """One of another metric ended the command when all runs were made."""
  written = mock.Mock()
  monkeypatch.setattr(figures.page, "write_page", written)
  monkeypatch.setattr(figures, "load_run", lambda _: "run")
  first, second = (
    test_verdicts.flat("A", 0.9, 0.9, panel=panel, protocol="tuned") for panel in "ab"
  )
  cell = dataclasses.replace(second.cell, metric="r2")
  outcomes = [first, second._replace(cell=cell, parts=(second, second))]
  figure = diversified.PAPER.figures["fig1"]
  figures._write_page(tmp_path, figure, outcomes, request(root=tmp_path))
  (_, title, panels), options = written.call_args
  assert title == f"{figure.title}, partition 1"  # the others are not on it
  assert panels == {"panel a": {"A": "run"}, "panel b": {"A": "run"}}
  assert options["panel_metrics"] == {"panel a": figure.metric, "panel b": "r2"}


def test_only_the_pages_of_a_stale_picture_are_removed(tmp_path):
  """A picture over other costs stays, and so does one of the user's."""
  names = ("a.png", "a.pdf", "a_2.png", "a_vs_bytes.png", "a_mine.png", "ab.png")
  for name in names:
    (tmp_path / name).touch()
  figures._remove_pages([tmp_path / "a.png", tmp_path / "a.pdf"])
  names_now = {path.name for path in tmp_path.iterdir()}
  assert names_now == {"a_vs_bytes.png", "a_mine.png", "ab.png"}


@pytest.mark.program
def test_a_study_is_tuned_and_run_by_one_command(
  tmp_path, monkeypatch, capsys, refused
):
  """Rates of a panel without any are chosen, written, and then those of its runs."""
  data = "bridge_mnist_softmax_all_40"
  shutil.copytree(presets_lib.PRESETS, tmp_path / "presets")
  monkeypatch.setattr(presets_lib, "PRESETS", tmp_path / "presets")
  table = tmp_path / "presets" / "beyond" / presets_lib.TABLE
  lines = table.read_text("utf-8").splitlines(keepends=True)
  table.write_text("".join(x for x in lines if f"methods_{data}," not in x), "utf-8")
  monkeypatch.setattr(tuning, "PARTITIONS", 1)
  few = tuning.PROTOCOLS["beyond", data]._replace(settings=2)
  monkeypatch.setitem(tuning.PROTOCOLS, ("beyond", data), few)
  words = [
    *("--figure=bridge", "--panels=d", "--partitions=1", "--dataset=digits"),
    *("--train_examples=1000", "--rounds=2", "--noprogress"),
    f"--out_dir={tmp_path / 'out'}",
  ]
  assert "tune=missing" in refused(beyond, words)
  assert "tune=all" in refused(beyond, [*words, "--tune=all", "--scale=quick"])
  assert beyond.main([*words, "--tune=missing"]) == 0
  assert capsys.readouterr().out.count(": 2 settings x 1 partition") == 3
  assert (tmp_path / "out" / "tune" / f"beyond_{data}" / "tune.csv").is_file()
  (run,) = (tmp_path / "out" / "runs").glob("fedavg-*")
  (chosen,) = (
    row.value
    for row in presets_lib.load_preset(f"beyond/methods_{data}/fedavg.flags").settings
    if row.chosen_by == "validation"
  )
  assert files.read_json(run / "config.json")["hparams"]["client_lr"] == float(chosen)
  assert beyond.main([*words, "--tune=missing"]) == 0
  assert "settings x" not in capsys.readouterr().out  # nothing is missing
  assert beyond.main([*words, "--tune=all", "--dry_run"]) == 0
  *planned, last = capsys.readouterr().out.splitlines()
  assert [" 2 finished; " in line for line in planned] == 3 * [True] + 3 * [False]
  assert f"bridge tuning on {data}: FedAvg: 2 runs" in planned[0]
  assert last == "0 of 9 runs are not finished"
