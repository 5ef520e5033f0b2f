"""Tuning: the grid is played, the best on validation clients is taken."""

import math

import pytest

from experiments import tune
from experiments.cli import guard
from experiments.cli import config

DIGITS = ["--dataset=digits", "--features=none", "--num_clients=12",
          "--validation_clients=3", "--partition=iid", "--model=softmax"]


def trials(*values, flag="client_lr"):
  return [tune.Trial(flag, *value) for value in values]


def test_the_best_is_taken_and_of_equals_the_smaller():
  assert tune.choose(trials((.1, 90.), (.3, 91.), (1, 91.))).value == .3
  assert tune.choose(trials((.1, math.nan), (.3, 20.))).value == .3
  with pytest.raises(guard.RunError, match="diverged"):
    tune.choose(trials((.1, math.nan)))


def test_a_choice_replaces_the_one_before(tmp_path):
  file = tmp_path / "new" / "fedavg.flags"
  tune.write(file, "fedavg", [trials((.1, 90.), (.3, 91.))], "here")
  assert file.read_text().splitlines()[0] == "--algorithm=fedavg"
  first = [file.read_text() + "--batch_size=4\n"]
  file.write_text(first[0])
  tune.write(file, "fedavg", [trials((.1, 92.), (.3, 91.))], "there")
  text = file.read_text()
  assert text.count("--client_lr=") == 1 and "--client_lr=0.1\n" in text
  assert "here" not in text.replace("there", "") and "0.1 92.00" in text
  assert config.parse([f"--flagfile={file}"]).hparams["client_lr"] == .1
  assert config.parse([f"--flagfile={file}"]).hparams["batch_size"] == 4


def test_every_value_is_played_on_validation_data(
    tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(tune, "_data_flags", lambda paper, data: DIGITS)
  monkeypatch.setitem(tune.RATES, ("conjugate", "mnist"), (1e-5, 0.1))
  monkeypatch.setitem(tune.SEEDS, ("conjugate", "mnist"), 1)
  extra = ["--rounds=4", "--noprogress", "--participation=0.34"]
  monkeypatch.setattr(tune, "_method_flags", lambda paper, data, name: [
      f"--algorithm={name}"])
  real = tune.sweeps.play_all
  seen = []

  def play_all(configs):
    seen.extend(configs)
    return real(configs)

  monkeypatch.setattr(tune.sweeps, "play_all", play_all)
  played = tune.play("conjugate", "mnist", "fedavg", tmp_path, extra, 100.)
  assert [c.hparams["client_lr"] for c in seen] == [1e-5, 0.1]
  assert all(c.run.eval_protocols == ("validation",) for c in seen)
  assert tune.choose(played[0]).value == 0.1
  text = tune.table("T", {"fedavg": played}, 10)
  assert "FedAvg" in text and "**0.1**" in text


def test_what_is_wrong_is_one_line(capsys):
  assert tune.main([]) == 2
  assert "--validation_clients: missing" in capsys.readouterr().err
  assert tune.main(["--paper=mine"]) == 2
  assert "--paper=mine" in capsys.readouterr().err
  assert tune.main(["--validation_clients=3", "--by=global"]) == 2
  assert "--by=global" in capsys.readouterr().err
  assert tune.main(["--methods", "--paper=conjugate"]) == 2
  assert "--methods: has no value" in capsys.readouterr().err
  assert tune.main(["--paper=conjugate", "--methods=fedavgg"]) == 2
  assert "--methods=fedavgg" in capsys.readouterr().err
  assert tune.main(["--help"]) == 0
  assert "--write" in capsys.readouterr().out
