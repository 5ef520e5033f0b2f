"""The command ``export``."""

import importlib

from experiments import export
import fedjax_alg as fa
from fedjax_alg.deploy import flower, setting

FLAGS = [
  "--algorithm=fedadam",
  "--dataset=digits",
  "--num_clients=6",
  "--cohort_size=2",
  "--rounds=2",
]


def test_without_flower_one_line_says_what_to_install(tmp_path, monkeypatch, refused):
  def missing(name):
    raise ImportError(name)

  monkeypatch.setattr(importlib, "import_module", missing)
  assert "fedjax_alg[flower]" in refused(export, [f"--out={tmp_path / 'app'}", *FLAGS])
  assert not (tmp_path / "app").exists()


def test_flags_and_a_finished_run_give_the_same_app(tmp_path, monkeypatch, refused):
  """Writing an app takes no more of flwr than that it is there."""
  monkeypatch.setattr(flower, "library", lambda name: None)
  assert export.main([f"--out={tmp_path / 'a'}", *FLAGS]) == 0
  fed = fa.federate("digits", num_clients=6)
  fa.run("fedadam", fed, cohort_size=2, rounds=2, seeds=[0]).save(tmp_path / "run")
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
  # Nobody's changes are lost.
  (place / "data.py").write_text("mine")
  assert "is not empty, and no app whose files are" in refused(export, words)
  assert (place / "data.py").read_text() == "mine"
  assert "--out" in refused(export, FLAGS)
