"""The command ``export``."""

import importlib

from experiments import export
import fedjax_alg as fa
from fedjax_alg.extras.flower import flower, setting

#: A run of the programs of tests/experiments/cli/test_folder.py.
FLAGS = [
  "--algorithm=fedavg",
  "--dataset=digits",
  "--partition=classes",
  "--num_clients=20",
  "--cohort_size=4",
  "--eval_every=1",
  "--rounds=2",
  "--eval_protocols=global",
  "--client_lr=0.2",
]


def test_without_flower_one_line_says_what_to_install(tmp_path, monkeypatch, refused):
  import_module = importlib.import_module

  def import_others(name):
    if name.startswith("flwr"):
      raise ImportError(name)
    return import_module(name)

  monkeypatch.setattr(importlib, "import_module", import_others)
  assert "fedjax_alg[flower]" in refused(export, [f"--out={tmp_path / 'app'}", *FLAGS])
  assert not (tmp_path / "app").exists()


def test_flags_and_a_finished_run_give_the_same_app(tmp_path, monkeypatch, refused):
  """Writing an app takes no more of flwr than that it is there."""
  monkeypatch.setattr(flower, "library", lambda name: None)
  assert export.main([f"--out={tmp_path / 'a'}", *FLAGS]) == 0
  fed = fa.federate("digits", partition="classes", num_clients=20)
  options = dict(cohort_size=4, eval_every=1, rounds=2, evaluate="global")
  result = fa.run("fedavg", fed, seeds=[0], client_lr=0.2, **options)
  result.save(tmp_path / "run")
  assert export.main([str(tmp_path / "run"), f"--out={tmp_path / 'b'}"]) == 0
  first, second = (
    setting.read_config(tmp_path / app / "fedjax_app" / "config.json") for app in "ab"
  )
  for name in ("algorithm", "hparams", "deployed", "model", "seeds"):
    assert first[name] == second[name]
  words = [f"--out={tmp_path / 'a'}", *FLAGS]
  assert export.main([*words, "--rounds=3"]) == 0  # in its place
  place = tmp_path / "a" / "fedjax_app"
  assert setting.read_config(place / "config.json")["run"]["rounds"] == 3
  dry = [f"--out={tmp_path / 'c'}", *FLAGS, "--dry_run"]
  assert "--dry_run: not of an export" in refused(export, dry)
  assert not (tmp_path / "c").exists()
  # Nobody's changes are lost.
  (place / "data.py").write_text("mine")
  assert "is not empty, and no app whose files are" in refused(export, words)
  assert (place / "data.py").read_text() == "mine"
  assert "--out" in refused(export, FLAGS)
