"""Runs that several commands share."""

from experiments import demo
from experiments.cli import config, shared_runs


def test_runs_are_drawn_when_asked_for(tmp_path, capsys):
  """The demo shows one picture; those of its runs can be had later."""
  configs = [
    config.build_config(
      {
        "algorithm": "fedavg",
        "dataset": "digits",
        "partition": "iid",
        "num_clients": 4,
        "cohort_size": 2,
        "rounds": 1,
        "eval_protocols": "global",
        "progress": False,
      }
    )
  ]

  def make(pictures):
    (run,) = shared_runs.make_runs(configs, tmp_path, ["a run"], pictures)
    ran = "a run" in capsys.readouterr().err
    drawn = {
      path.name for path in run.folder.iterdir() if path.suffix in (".png", ".pdf")
    }
    return run.summary, ran, drawn

  summary, ran, drawn = make(False)
  assert ran and not drawn
  assert make(False)[1:] == (False, set())
  later, ran, drawn = make(True)
  assert ran and drawn == {"partition.png", "curves.png", "curves.pdf"}
  assert later["files"] == summary["files"] and later["hashes"] == summary["hashes"]
  assert make(True)[1:] == (False, drawn)
  assert make(False)[1:] == (False, drawn)


def test_the_demo_names_the_data_of_its_runs(tmp_path, monkeypatch, made_up, capsys):
  """Its picture said digits whatever the flags were."""
  del made_up
  titles = []
  monkeypatch.setattr(demo.plots, "plot_panels", lambda *args: titles.append(args[-1]))
  words = ["--dataset=mnist", "--num_seeds=2"]
  assert demo.main([*words, f"--out_dir={tmp_path}"]) == 0, capsys.readouterr().err
  assert titles == ["4 methods on mnist, 2 seeds"]
