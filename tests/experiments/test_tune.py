"""Tuning: the grid is played, the best on validation clients is taken."""

import math
import types

import numpy as np
import pytest

from experiments import tune
from experiments.cli import config
from experiments.cli import guard
from experiments.cli import sweeps
from experiments.reports import chosen
from fedjax_alg import files

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


def test_the_least_value_there_is_is_no_edge(tmp_path):
  """Nothing lies beyond two groups; beyond three there does."""
  for least, said in ((2, "validation"), (3, "edge of grid")):
    file = tmp_path / f"{least}.flags"
    tune.write(file, "pfedacnnl", [[
        tune.Trial("num_groups", least, 91.),
        tune.Trial("num_groups", 5, 90.)]], "here")
    assert "# tuned: num_groups (at least 2), value" in file.read_text()
    assert chosen.said(chosen.of_flags([f"--flagfile={file}"])) == (
        f"{said}: num_groups")


def test_every_value_is_played_on_validation_data(
    tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(tune, "_data_flags", lambda *args: DIGITS)
  monkeypatch.setitem(tune.RATES, ("conjugate", "mnist"), (1e-3, 1e-2))
  monkeypatch.setattr(tune, "SEEDS", 1)
  extra = ["--rounds=4", "--noprogress", "--participation=0.34"]
  monkeypatch.setattr(tune, "_method_flags", lambda paper, data, name: [
      f"--algorithm={name}"])
  real = tune.sweeps.play_all
  seen = []

  def play_all(configs):
    seen.extend(configs)
    return real(configs)

  monkeypatch.setattr(tune.sweeps, "play_all", play_all)
  played = tune.play(
      "conjugate", "mnist", "fedavg", tmp_path, extra, 100., most=1)
  # The best lies at the edge.
  assert [c.hparams["client_lr"] for c in seen] == [1e-3, 1e-2, 0.1]
  assert all(c.run.eval_protocols == ("validation",) for c in seen)
  assert tune.choose(played[0]).value == 0.1
  text = tune.table("T", {"fedavg": played}, 10)
  assert "FedAvg" in text and "**0.1**" in text


def without_runs(tmp_path, monkeypatch, accuracy):
  """Makes a run's accuracy that of its hyper-parameters; lists the runs."""
  monkeypatch.setattr(tune, "_data_flags", lambda *args: DIGITS)
  seen = []

  def play_all(configs):
    seen.extend(configs)
    return [sweeps.Played(c, tmp_path / str(len(seen) - len(configs) + i), None)
            for i, c in enumerate(configs)]

  def score(path):
    value = accuracy(seen[int(path.parent.name)].hparams)
    return [{"protocol": protocol, "round": 1, "accuracy": value}
            for protocol in ("validation", "local")]

  monkeypatch.setattr(tune.sweeps, "play_all", play_all)
  monkeypatch.setattr(tune.tables, "read_rows", score)
  return seen


def test_the_groups_of_pfedacnnl_are_never_one(tmp_path, monkeypatch):
  """One group is pFedACnnL-WC, even if it is better."""
  seen = without_runs(tmp_path, monkeypatch, lambda h: -h["num_groups"])
  groups, *_ = tune.play(
      "analytic", "mnist", "pfedacnnl", tmp_path, ["--num_clients=20"], 100.)
  assert [t.value for t in groups] == [2, 3, 5, 10]
  # Evaluated once, after the last personal layer.
  assert {(c.run.rounds, min(c.run.eval_every, c.run.rounds))
          for c in seen} == {(2, 2)}  # softmax regression has one layer
  assert {c.hparams["num_groups"] for c in seen[4:]} == {2}


def test_own_settings_come_first_at_the_middle_rate(tmp_path, monkeypatch):
  """Without runs: the score is best for mu = 0.1 and the largest rate."""
  seen = without_runs(tmp_path, monkeypatch, lambda h: (
      h["client_lr"] - abs(h["mu"] - 0.1)))
  mu, rates = tune.play(
      "diversified", "mnist", "fedprox", tmp_path, [], 100., most=1)
  assert tune.choose(mu).value == 0.1 and len(mu) == 4
  assert {c.hparams["client_lr"] for c in seen[:4]} == {1.0}
  assert {c.hparams["mu"] for c in seen[4:]} == {0.1}
  assert [t.value for t in rates] == [.03, .1, .3, 1, 3, 10, 33]
  file = tmp_path / "fedprox.flags"
  file.write_text("--algorithm=fedprox\n# chosen: untuned, mu\n--mu=7\n")
  tune.write(file, "fedprox", [mu, rates], "here")
  assert "--mu=0.1\n" in file.read_text() and "--mu=7" not in file.read_text()
  assert chosen.said(chosen.of_flags([f"--flagfile={file}"])) == (
      "edge of grid: client_lr; validation: mu")


@pytest.mark.parametrize("paper,data", tune.RATES)
def test_what_is_tuned_is_a_setting_of_the_method(paper, data):
  for name in tune._files(paper, data):
    for flag, values in tune._stages(paper, data, name, 100.):
      for value in (values[0], values[-1]):
        config.parse([
            *tune._method_flags(paper, data, name), f"--{flag}="
            f"{tune._text(value)}", f"--flagfile={paper}/{data}.flags",
            "--num_clients=100", "--validation_clients=10"])


def test_a_sixth_of_the_training_images_is_held_out(tmp_path, monkeypatch):
  x, y = np.arange(24).reshape(12, 2), np.arange(12) % 3
  monkeypatch.setattr(tune, "load_examples", lambda options: (
      types.SimpleNamespace(x_train=x, y_train=y)))
  with np.load(tune._held_out(tmp_path, "digits", None)) as made:
    assert made["x_test"].shape == (2, 2) and made["x_train"].shape == (10, 2)
    rows = np.concatenate([made["x_train"], made["x_test"]])
  np.testing.assert_array_equal(np.sort(rows, 0), x)


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


ANY = ["--algorithm=fedavg", *DIGITS, "--participation=0.34", "--rounds=4",
       "--client_lr=0.01"]


def test_a_run_is_tuned_by_its_derivatives(tmp_path, capsys):
  assert tune.main([*ANY, "--tune_by_gradient=client_lr", "--outer_steps=3",
                    "--halvings=1", f"--out_dir={tmp_path}"]) == 0
  found = files.read_json(tmp_path / "gradient.json")
  assert [step["rounds"] for step in found["steps"]] == [2, 4, 4]
  assert found["steps"][0]["values"] == {"client_lr": pytest.approx(0.01)}
  assert found["rounds_played"] == 2 * (2 + 4 + 4)
  assert found["best"]["client_lr"] > 0.05
  said = capsys.readouterr().out
  assert f"best: --client_lr={found['best']['client_lr']:.4g}\n" in said
  rate = config.parse(found["replay"].split()).hparams["client_lr"]
  assert rate == pytest.approx(found["best"]["client_lr"], rel=1e-3)
  text = (tmp_path / "gradient.md").read_text()
  assert text.count("\n| ") == 4 and "**" in text


@pytest.mark.parametrize("words, said", [
    (["--tune_by_gradient=batch_size"], "--tune_by_gradient=batch_size: a "
     "whole number, there is no derivative (one of client_lr, server_lr)"),
    (["--tune_by_gradient=client_lr", "--sweep=client_lr=1,2"],
     "--sweep: not read with --tune_by_gradient"),
    (["--tune_by_gradient=client_lr", "--outer_steps=2"],
     "--outer_steps=2: must be at least 3"),
    (["--outer_steps=2"], "--outer_steps=2: only read with --tune_by_gradient"),
    (["--tune_by_gradient=client_lr", "--compress_up=sign"],
     "--compress_up=sign: what it rounds has the derivative 0"),
])
def test_what_cannot_be_tuned_by_derivatives(words, said, capsys):
  assert tune.main([*ANY, *words]) == 2
  error = capsys.readouterr().err
  assert said in error and error.count("\n") == 1


def test_a_paper_is_tuned_by_derivatives_from_the_middle(
    tmp_path, monkeypatch, capsys):
  seen = []
  monkeypatch.setattr(tune.gradients, "make", lambda words, values, last, *_: (
      seen.append((words, last))))
  base = ["--paper=diversified", "--tune_by_gradient=client_lr,mu",
          f"--out_dir={tmp_path}"]
  assert tune.main([*base, "--methods=fedprox", "--rounds=7"]) == 0
  ((words, last),) = seen
  hparams = config.parse(words).hparams
  assert (hparams["client_lr"], hparams["mu"], last) == (1.0, 0.1, 2)
  assert config.parse(words).run.rounds == 7
  assert tune.main(["--paper=analytic", *base[1:]]) == 2
  assert "not of the analytic paper" in capsys.readouterr().err
