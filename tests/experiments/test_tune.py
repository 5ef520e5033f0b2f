"""Tuning: the grid is run, the best on validation clients is taken."""

import collections
import fcntl
import math
import os
import pathlib
import types
from unittest import mock

import numpy as np
import pytest

from experiments import tune
from experiments.cli import config, flags, guard, presets
from experiments.reports import gradients
from experiments.reproduction import chosen, tune_paper, tuning
from fedjax_alg import files
from fedjax_alg.errors import OptionError
from fedjax_alg.extras.gradients import tuning as tuning_by_gradient
from tests.each import each
from tests.experiments import shown

DIGITS = [
  "--dataset=digits",
  "--features=none",
  "--num_clients=12",
  "--validation_clients=3",
  "--partition=iid",
  "--model=softmax",
]
DATA = config.merge_layers(*config.read_layers(DIGITS))


def trials(*values, flag="client_lr"):
  return [tuning.Trial({flag: value}, accuracies) for value, *accuracies in values]


def test_the_best_mean_of_the_partitions_is_taken():
  assert tuning.choose(
    trials((0.1, 90.0, 92.0), (0.3, 91.0, 93.0), (1, 97.0, 80.0))
  ).setting == {"client_lr": 0.3}
  assert tuning.choose(trials((0.1, math.nan, 99.0), (0.3, 20.0, 20.0))).setting == {
    "client_lr": 0.3
  }
  with pytest.raises(guard.RunError, match="diverged"):
    tuning.choose(trials((0.1, math.nan)))


@pytest.mark.parametrize(
  "tried,best,value",
  [
    ((0.1, 0.3, 1.0), 1.0, 3.3),
    ((0.1, 0.3, 1.0), 0.1, 0.033),
    ((0.1, 0.3, 1.0), 0.3, None),
    ((1, 5, 20), 20, 80),
    ((2, 3, 5), 2, 1),
    ((1.0, 10.0), 1.0, 0.1),
    ((1.0, 10.0), 10.0, 100.0),
    ((0.0, 0.5), 0.0, None),
    ((0.3,), 0.3, None),
  ],
)
def test_beyond(tried, best, value):
  assert tune._value_beyond(tried, best) == value


def test_a_choice_replaces_the_one_before(tmp_path, monkeypatch):
  monkeypatch.setattr(presets, "PRESETS", tmp_path)
  name = "new/methods/fedavg.flags"
  tuning.write(name, "fedavg", trials((0.1, 90.0), (0.3, 91.0)), "here", 3)
  first, rate = presets.load_preset(name).settings
  assert first.word == "--algorithm=fedavg"
  rest = presets.PresetRow("methods", "fedavg", "batch_size", "4", remark="Small.")
  presets.replace(name, [first, rate._replace(remark="A rate."), rest])
  other = "new/methods/ifca.flags"
  tuning.write(other, "ifca", trials((0.1, math.nan), (0.3, 91.0)), "here", 3)
  tuning.write(name, "fedavg", trials((0.1, 92.0), (0.3, 91.0)), "there", 3)
  assert presets.load_preset(name).settings == (
    first,
    rest,
    presets.PresetRow(
      "methods",
      "fedavg",
      "client_lr",
      "0.1",
      "validation",
      "2 settings x 3 partitions x 3 seeds",
      "92.00",
      "92.00",
      "there",
      "A rate.",
    ),
  )
  assert presets.load_preset(other).settings[1][6:8] == ("91.00", "")
  assert config.parse_config([f"--flagfile={name}"]).hparams["client_lr"] == 0.1
  assert config.parse_config([f"--flagfile={name}"]).hparams["batch_size"] == 4
  assert chosen.describe(chosen.of_layers([name])) == ("validation: client_lr")


def test_a_choice_goes_into_a_preset_that_is_a_file(tmp_path, monkeypatch):
  monkeypatch.setattr(presets, "PRESETS", tmp_path)
  file = tmp_path / "new" / "methods" / "fedavg.flags"
  file.parent.mkdir(parents=True)
  file.write_text("# A remark.\n--algorithm=fedavg\n--client_lr=0.5\n")
  name = "new/methods/fedavg.flags"
  tuning.write(name, "fedavg", trials((0.1, 90.0), (0.3, 91.0)), "here", 3)
  assert file.read_text() == "# A remark.\n--algorithm=fedavg\n--client_lr=0.3\n"
  ((row),) = presets.load_preset(name).settings
  assert (row.value, row.chosen_by, row.score) == ("", "validation", "91.00")


def test_settings_fill_their_ranges_and_begin_with_the_stated_one():
  """Of n settings each n-th part of a range has one, and words come alike."""
  ranges, first = tuning._space("diversified", "mnist", "ma_fsvrg", 145.0)
  assert first == {
    "server_lr": 0.02,
    "beta1": 0.0,
    "central_rule": "corrected",
    "client_lr": 12.0,
  }
  settings = tuning._sample_settings(ranges, first, 41)
  assert settings[0] == first and len(settings) == 41
  assert all(a != b for i, a in enumerate(settings) for b in settings[:i])
  rates = np.log([s["client_lr"] for s in settings[1:]])
  low, high = np.log(ranges["client_lr"][:2])
  parts = np.sort(np.floor((rates - low) / (high - low) * 40 + 1e-9))
  assert abs(parts - np.arange(40)).max() <= 1  # rates have two digits
  assert collections.Counter(s["beta1"] for s in settings[1:]) == dict.fromkeys(
    (0.0, 0.5, 0.8, 0.9, 0.95), 8
  )
  assert settings == tuning._sample_settings(ranges, first, 41)
  few = tuning._sample_settings(
    {"variant": tuning.AnyOf(("client", "table"))}, {"variant": "table"}, 16
  )
  assert [s["variant"] for s in few] == ["table", "client"]
  rates = tuning.Log(0.1, 0.2, 0.1)  # of two digits: 0.1, 0.11, ..., 0.2
  few = tuning._sample_settings({"client_lr": rates}, {"client_lr": 0.1}, 500)
  assert {s["client_lr"] for s in few} <= {  # it went on for ever
    number / 100 for number in range(10, 21)
  } and len(few) > 5


def test_every_setting_is_played_on_every_partition(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(tuning.Study, "data_values", lambda self: DATA)
  key = "diversified", "mnist"
  monkeypatch.setitem(tuning.PROTOCOLS, key, tuning.PROTOCOLS[key]._replace(seeds=1))
  monkeypatch.setattr(tuning, "LEAST", 20)
  extra = [{"rounds": 4, "progress": False, "participation": 0.34}]
  monkeypatch.setattr(
    tuning.Study, "method_layers", lambda self, name: ({"algorithm": name},)
  )
  real = tuning.sweeps.run_configs
  seen = []

  def play_all(configs, validated, **options):
    seen.extend(configs)
    return real(configs, validated, **options)

  monkeypatch.setattr(tuning.sweeps, "run_configs", play_all)
  study = tuning.Study(*key, tmp_path, (), extra)
  trials = study.play("fedavg", 2, partitions=2)
  assert "2 settings x 2 partitions x 1 seeds" in capsys.readouterr().out
  assert [c.data.partition_seed for c in seen] == [0, 0, 1, 1]
  assert all(c.run.eval_protocols == ("validation",) for c in seen)
  assert [len(trial.accuracies) for trial in trials] == [2, 2]
  rows = tuning.trial_rows({"fedavg": trials})
  assert [row["stated"] for row in rows] == [1, 0]
  text = tuning.choice_table("T", rows, 10, 1)
  assert "FedAvg" in text and f"{tuning.choose(trials).validation:.2f}" in text
  # Of 240 examples no class has a hundred.
  monkeypatch.setattr(tuning, "LEAST", 100)
  with pytest.raises(OptionError, match="fewer than 100 examples of the clas"):
    study._replace(root=tmp_path / "more").play("fedavg")


def test_tuning_one_method_again_keeps_the_others_in_the_table(tmp_path):
  # A table of one method alone would be published in the place of that of all.
  def rows_of(tuned):
    return tuning.trial_rows(
      {
        name: [
          tuning.Trial({"client_lr": 0.1 * i}, (a, a)) for i, a in enumerate(every)
        ]
        for name, every in tuned.items()
      }
    )

  path = tmp_path / "tune.csv"
  before = tuning.merge_trials(path, rows_of({"fedavg": (50, 60), "mime": (70, 65)}))
  tuning.tables.write_rows(path, before, list(before[0]))
  after = tuning.merge_trials(path, rows_of({"fedavg": (55, 52, 51), "fedprox": (1,)}))
  assert [(row["method"], row["validation"], row["chosen"]) for row in after] == [
    *(("FedAvg", a, chosen) for a, chosen in ((55, 1), (52, 0), (51, 0))),
    *(("Mime", a, chosen) for a, chosen in ((70, 1), (65, 0))),
    ("FedProx", 1, 1),
  ]
  text = tuning.choice_table("T", after, 10, 1)
  assert "| FedAvg | 3 |" in text and "| Mime | 2 |" in text


def test_jobs_write_their_table_one_after_the_other(tmp_path, monkeypatch):
  """The lines of a job that merged meanwhile were lost."""
  study = mock.Mock(root=tmp_path, paper="conjugate", data="mnist")
  study.play.return_value = [tuning.Trial({"client_lr": 0.1}, (50,))]
  study.protocol = mock.Mock(last=10, seeds=1)
  waits = []

  def write_rows(*_):
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
      fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)
    waits.append(True)

  monkeypatch.setattr(tune_paper.tables, "write_rows", write_rows)
  tune_paper.tune_methods(study, ["fedavg"], None, writes=False)
  assert waits == [True]


@each("paper,data", tuning.PROTOCOLS)
def test_what_is_tuned_is_a_setting_of_the_method(paper, data):
  study = tuning.Study(paper, data, pathlib.Path())
  for name in study.preset_names():
    settings = tuning._sample_settings(*tuning._space(paper, data, name, 100.0), 16)
    assert settings[0].keys() == settings[-1].keys()
    for setting in (settings[0], settings[-1]):  # the stated one, and one drawn
      with shown.built_once():
        config.build_config(
          *study.method_layers(name),
          f"{paper}/{data}.flags",
          flags.setting_texts(setting),
          {"num_clients": 440},
          {"validation_clients": 10} if study.protocol.by == "validation" else {},
        )


@pytest.mark.parametrize("clients", [None, np.arange(12) // 4])
def test_a_sixth_of_the_training_examples_is_held_out(tmp_path, monkeypatch, clients):
  """If the data have clients, the examples stay theirs."""
  x, y = np.arange(24).reshape(12, 2), np.arange(12) % 3
  examples = types.SimpleNamespace(x_train=x, y_train=y, client_train=clients)
  monkeypatch.setattr(tuning, "load_examples", lambda options: examples)
  path = tuning._holdout_file(tmp_path, "watch:step=100", ())
  assert path.name == "watch_held_out.npz"
  with np.load(path) as arrays:
    assert arrays["x_test"].shape == (2, 2) and arrays["x_train"].shape == (10, 2)
    rows = np.concatenate([arrays["x_train"], arrays["x_test"]])
    assert ("client_train" in arrays) == (clients is not None)
    for part in ("train", "test") if clients is not None else ():
      numbers = arrays[f"x_{part}"][:, 0] // 8
      np.testing.assert_array_equal(arrays[f"client_{part}"], numbers)
  np.testing.assert_array_equal(np.sort(rows, 0), x)


def test_two_jobs_hold_images_out_at_once(tmp_path, monkeypatch):
  """The second one took the file away that the first one was writing."""
  x, y = np.arange(24).reshape(12, 2), np.arange(12) % 3
  examples = types.SimpleNamespace(x_train=x, y_train=y, client_train=None)
  monkeypatch.setattr(tuning, "load_examples", lambda options: examples)
  save = np.savez

  def save_while_another_job_does(file, **arrays):
    monkeypatch.setattr(np, "savez", save)
    assert tuning._holdout_file(tmp_path, "digits", ()).is_file()
    save(file, **arrays)

  monkeypatch.setattr(np, "savez", save_while_another_job_does)
  path = tuning._holdout_file(tmp_path, "digits", ())
  assert [p.name for p in tmp_path.iterdir()] == [path.name]
  with np.load(path) as arrays:
    assert arrays["x_test"].shape == (2, 2)


def test_held_out_images_of_two_sources_keep_their_kinds(tmp_path, monkeypatch):
  """Else the clients would be tuned with images of both sources."""
  x, kind = np.arange(24).reshape(12, 2), np.repeat(np.arange(2), 6)
  arrays = types.SimpleNamespace(
    x_train=x, y_train=x[:, 0] % 3, client_train=None, kind_train=kind
  )
  seen = []
  monkeypatch.setattr(
    tuning, "load_examples", lambda options: seen.append(str(options.kinds)) or arrays
  )
  study = tuning.Study("beyond", "map_mnist_sources", tmp_path)
  values = study.data_values()
  assert "kinds" not in values and values["dataset"].startswith("npz:")
  assert seen == ["sources:mnist,fashion_mnist"]
  with np.load(str(values["dataset"]).removeprefix("npz:")) as file:
    for part in ("train", "test"):
      np.testing.assert_array_equal(
        file[f"kind_{part}"], (file[f"x_{part}"][:, 0] >= 12).astype(int)
      )
  # Rates of client_lr / n_i count the examples that are dealt, 6,000 to 40 clients.
  first, *_ = study.settings("ma_fsvrg", 3)
  assert first["client_lr"] == pytest.approx(0.03 * 0.3 * 150, rel=0.05)


def test_the_map_has_a_grid_of_rates_and_two_of_ditto_alike(tmp_path, monkeypatch):
  monkeypatch.setattr(tuning, "_holdout_file", lambda *_: tmp_path / "a.npz")
  study = tuning.Study("beyond", "map_digits_rotate", tmp_path)
  for name in study.preset_names():
    settings = study.settings(name, tuning.SETTINGS)
    rates = [float(str(setting["client_lr"])) for setting in settings]
    assert len(settings) == len(set(rates)) == 3
    unit = 0.3 * 36 if name.endswith("fsvrg") else 1.0
    np.testing.assert_allclose(sorted(rates), [0.1 * unit, 0.3 * unit, unit], rtol=0.03)
  assert [s["personal_lr"] for s in study.settings("ditto", 3)] == [
    s["client_lr"] for s in study.settings("ditto", 3)
  ]


def test_feddrift_is_tuned_with_the_steps_of_the_data(tmp_path, monkeypatch):
  monkeypatch.setattr(tuning, "_holdout_file", lambda *_: tmp_path / "a.npz")
  study = tuning.Study("beyond", "map_digits_drift", tmp_path)
  base = study.base_run("feddrift", study.settings("feddrift", 3))
  assert base.hparams["step_rounds"] == base.data.concepts.period == 10


def test_a_setting_of_one_value_is_not_said_to_be_chosen(tmp_path, monkeypatch):
  monkeypatch.setattr(presets, "PRESETS", tmp_path)
  given = [
    tuning.Trial({"num_groups": 4, "client_lr": rate}, (accuracy,))
    for rate, accuracy in ((0.1, 80.0), (0.3, 90.0))
  ]
  tuning.write("new/methods_x/ifca.flags", "ifca", given, "here", 1)
  rows_of = {
    row.flag: row for row in presets.load_preset("new/methods_x/ifca.flags").settings
  }
  assert rows_of["num_groups"][3:7] == ("4", "stated", "", "")
  assert rows_of["client_lr"].chosen_by == "validation"


ANY = [
  "--algorithm=fedavg",
  *DIGITS,
  "--participation=0.34",
  "--rounds=4",
  "--client_lr=0.01",
]


def test_a_sweep_of_tune_has_its_page_too(monkeypatch):
  """The flag was read and then forgotten."""
  grid = mock.Mock(return_value={})
  monkeypatch.setattr(tune.sweep, "run_grid", grid)
  assert tune.main([*DIGITS, "--algorithm=fedavg", "--html"]) == 0
  assert grid.call_args.kwargs["html"]


def test_a_run_is_tuned_by_its_derivatives(tmp_path, capsys):
  assert (
    tune.main(
      [
        *ANY,
        "--tune_by_gradient=client_lr",
        "--outer_steps=3",
        "--halvings=1",
        f"--out_dir={tmp_path}",
      ]
    )
    == 0
  )
  facts = files.read_json(tmp_path / "gradient.json")
  assert [step["rounds"] for step in facts["steps"]] == [2, 4, 4]
  assert facts["steps"][0]["values"] == {"client_lr": pytest.approx(0.01)}
  assert facts["rounds_played"] == 2 * (2 + 4 + 4)
  assert facts["best"]["client_lr"] > 0.05
  output = capsys.readouterr().out
  assert f"best: --client_lr={facts['best']['client_lr']:.4g}\n" in output
  rate = config.parse_config(facts["replay"].split()).hparams["client_lr"]
  assert rate == pytest.approx(facts["best"]["client_lr"], rel=1e-3)
  text = (tmp_path / "gradient.md").read_text()
  assert text.count("\n| ") == 5 and "**" in text


def test_a_paper_is_tuned_by_derivatives_from_what_it_states(
  tmp_path, monkeypatch, capsys
):
  seen = []
  monkeypatch.setattr(
    tune.gradients,
    "tune_run_by_gradient",
    lambda run, values, last, *_: seen.append((run, last)),
  )
  base = [
    "--paper=diversified",
    "--tune_by_gradient=client_lr,mu",
    f"--out_dir={tmp_path}",
  ]
  assert tune.main([*base, "--methods=fedprox", "--rounds=7"]) == 0
  ((run, last),) = seen
  hparams = run.hparams
  assert (hparams["client_lr"], hparams["mu"], last) == (0.083, 0.01, 2)
  assert run.run.rounds == 7
  assert config.parse_config(config.layer_words(run.layers)) == run
  assert tune.main(["--paper=analytic", *base[1:]]) == 2
  assert "not of analytic on mnist" in capsys.readouterr().err


def test_tuning_by_gradient_has_one_default_in_python_and_as_a_flag():
  """The command has its flags without the extra, so the numbers stand twice."""
  names = ("OUTER_STEPS", "HALVINGS")
  assert [getattr(gradients, name) for name in names] == [
    getattr(tuning_by_gradient, name) for name in names
  ]
