"""The command for a grid: folders of runs, a table, a picture, the best."""

import csv
import pathlib

import numpy as np
from PIL import Image
import pytest

from experiments import run, sweep
from experiments.cli import config as config_lib
from experiments.cli import sweeps
from experiments.reports import sweeps as report
import fedjax_alg as fa
from fedjax_alg import files
from fedjax_alg.runs import queue, store
from fedjax_alg.runs.plan import by_program
from tests import made_runs

WORDS = (
  "--algorithm=fedavg",
  "--dataset=digits",
  "--partition=iid",
  "--num_clients=12",
  "--cohort_size=4",
  "--eval_every=1",
  "--num_seeds=2",
  "--noprogress",
  "--eval_protocols=global,validation",
  "--validation_clients=2",
)
RATES = ("--sweep=client_lr=0.01,0.5,1e30",)
FOLDERS = ["client_lr=0.01", "client_lr=0.5"]


def play(folder, *words):
  """Exit status of a sweep."""
  return sweep.main([*WORDS, *RATES, f"--out_dir={folder}", *words])


def hashes(root):
  by_folder = {}
  for name in FOLDERS:
    summary = files.read_json(root / name / "summary.json")
    by_folder[name] = summary["hashes"], summary["identity"]
  return by_folder


@pytest.fixture(name="sweep_folder", scope="module")
def _sweep_folder(tmp_path_factory):
  """A sweep of three rounds; the last rate diverges."""
  root = tmp_path_factory.mktemp("sweeps") / "rates"
  assert play(root, "--rounds=3") == 0
  return root


@pytest.fixture(name="single_runs", scope="module")
def _single_runs(tmp_path_factory):
  """A run of its own for each setting, with its pictures as ``sweep_folder``."""
  folder = tmp_path_factory.mktemp("alone")
  for name in FOLDERS:
    assert (
      run.main([*WORDS, f"--{name}", "--rounds=3", f"--out_dir={folder / name}"]) == 0
    )
  return folder


def test_a_setting_is_the_run_of_its_folder(sweep_folder, single_runs):
  for name in FOLDERS:
    for table in ("metrics.csv", "rounds.csv"):
      assert (sweep_folder / name / table).read_text() == (
        single_runs / name / table
      ).read_text()
    assert {path.name for path in (sweep_folder / name).iterdir()} == {
      path.name for path in (single_runs / name).iterdir()
    }
  assert hashes(sweep_folder) == hashes(single_runs)
  loaded = fa.load_run(sweep_folder / FOLDERS[1])
  assert loaded.facts["hparams"]["client_lr"] == 0.5
  assert loaded.client_params(3)["params"]["bias"].shape == (10,)


def test_table_files_and_picture_agree(sweep_folder):
  facts = files.read_json(sweep_folder / "sweep.json")
  summary = files.read_json(sweep_folder / FOLDERS[1] / "summary.json")
  final = summary["final"]["validation"]["accuracy"]
  assert facts["best"] == {"client_lr": "0.5"}
  assert (facts["folder"], facts["by"], facts["metric"], facts["score"]) == (
    FOLDERS[1],
    "validation",
    "accuracy",
    "final",
  )
  assert (facts["mean"], facts["ci95"], facts["values"]) == (
    final["mean"],
    final["ci95"],
    final["values"],
  )
  assert facts["replay"].startswith(
    f"--flagfile={sweep_folder / FOLDERS[1] / 'flags.txt'} --out_dir="
  )
  assert (
    config_lib.parse_config(facts["replay"].split()).identity
    == (hashes(sweep_folder)[FOLDERS[1]][1])
  )
  with open(sweep_folder / "sweep.csv", newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  assert [(row["client_lr"], row["seed"], row["protocol"]) for row in rows] == [
    (rate, seed, protocol)
    for rate in ("0.01", "0.5")
    for protocol in ("global", "validation")
    for seed in "01"
  ]
  assert [float(row["accuracy"]) for row in rows[-2:]] == final["values"]
  text = (sweep_folder / "sweep.md").read_text("utf-8")
  assert (
    f"| **0.5** | **{100 * final['mean']:.2f} +- {100 * final['ci95']:.2f}** |"
  ) in text
  assert "| 1e30 | diverged in round 1 |" in text
  assert "chosen by `validation`." in text
  with Image.open(sweep_folder / "sweep.png") as image:
    assert min(image.size) > 200


def test_finished_settings_are_not_played_again(sweep_folder, monkeypatch, capsys):
  before = hashes(sweep_folder)
  table = (sweep_folder / "sweep.md").read_text("utf-8")
  monkeypatch.setattr(
    sweeps._Runner,
    "run",
    lambda self, number: [
      sweeps.SettingOutcome(config, sweep_folder, sweeps.Divergence(1, "params", 0))
      for config in self._groups[number]
      if config.hparams["client_lr"] == 1e30
    ],
  )
  assert not (sweep_folder / "sweep.html").exists()
  assert play(sweep_folder, "--rounds=3", "--html") == 0
  assert hashes(sweep_folder) == before
  assert (sweep_folder / "sweep.md").read_text("utf-8") == table
  assert "warning" not in capsys.readouterr().err
  page = (sweep_folder / "sweep.html").read_text("utf-8")
  _, reached = page.split("<h2>Cost to targets</h2>")
  assert "No run reached 90, 95 or 98 % (--targets)" in reached
  _, differing = page.split("<h2>Flags that differ</h2>")
  differing, _ = differing.split("</tbody>", 1)
  assert differing.count("<td>client_lr</td>") == 1 and differing.count("<tr>") == 2
  lines = made_runs.read_traces(sweep_folder / "sweep.html")[0][1::2]
  assert [line["name"] for line in lines] == FOLDERS  # none diverged
  summary = files.read_json(sweep_folder / FOLDERS[1] / "summary.json")
  assert lines[1]["y"][-1] == pytest.approx(
    100 * summary["final"]["validation"]["accuracy"]["mean"]
  )


@pytest.mark.filterwarnings("always:.*is damaged")
def test_an_interrupted_sweep_goes_on_to_the_same_bits(
  sweep_folder, tmp_path, monkeypatch, capsys
):
  """Each setting where it stopped; one with a damaged checkpoint from that before."""
  flags = ("--sweep=client_lr=0.01,0.5", f"--out_dir={tmp_path}")
  real = queue.play_lib.run_steps
  monkeypatch.setattr(store, "_SLOW_SAVE", 1e9)

  def stops(*args, **kwargs):
    for step in real(*args, **kwargs):
      yield step
      if step.round == 2:
        raise KeyboardInterrupt

  monkeypatch.setattr(queue.play_lib, "run_steps", stops)
  assert sweep.main([*WORDS, *flags, "--rounds=3"]) == 130
  assert not (tmp_path / FOLDERS[0] / "summary.json").exists()
  starts = []

  def counts(programs, records, states, done, stop, pace):
    starts.append(done)
    return real(programs, records, states, done, stop, pace)

  monkeypatch.setattr(queue.play_lib, "run_steps", counts)
  assert sweep.main([*WORDS, *flags, "--rounds=3"]) == 0
  assert starts == [2]
  message = capsys.readouterr().err
  assert "goes on after round 2" in message and "starts again" not in message
  assert hashes(tmp_path) == hashes(sweep_folder)
  newest = max((tmp_path / FOLDERS[0] / "checkpoint").iterdir())
  for damage, is_named in (
    (lambda: newest.write_bytes(b"x"), True),
    (newest.unlink, False),
  ):
    del starts[:]
    for name in FOLDERS:
      (tmp_path / name / "summary.json").unlink()
    damage()
    assert sweep.main([*WORDS, *flags, "--rounds=3"]) == 0
    assert starts == [2, 3] and hashes(tmp_path) == hashes(sweep_folder)
    message = capsys.readouterr().err
    assert ("is damaged" in message) == is_named and "starts again" not in message


def test_python_and_the_command_have_one_sweep(
  sweep_folder, tmp_path, monkeypatch, capsys
):
  """What one has finished the other reads; the command adds flags and pictures."""
  options = dict(
    grid={"client_lr": [0.01, 0.5]},
    rounds=3,
    cohort_size=4,
    eval_every=1,
    evaluate=("global", "validation"),
    seeds=2,
  )
  fed = fa.federate("digits", partition="iid", num_clients=12, validation_clients=2)
  fa.sweep("fedavg", fed, out_dir=tmp_path, **options)
  assert hashes(tmp_path) == hashes(sweep_folder)
  monkeypatch.setattr(queue.play_lib, "run_steps", lambda *args, **options: iter(()))
  words = [*WORDS, "--sweep=client_lr=0.01,0.5", "--rounds=3", f"--out_dir={tmp_path}"]
  assert sweep.main(words) == 0, capsys.readouterr().err
  assert hashes(tmp_path) == hashes(sweep_folder)
  for name in FOLDERS:
    assert {path.name for path in (tmp_path / name).iterdir()} == {
      path.name for path in (sweep_folder / name).iterdir()
    }
  results = fa.sweep("fedavg", fed, out_dir=sweep_folder, **options).results
  assert [result.state_hash() for result in results] == [
    facts["final_state"] for facts, _ in hashes(sweep_folder).values()
  ]


@pytest.mark.filterwarnings("always:.*starts again at round 0")
def test_parts_and_then_the_whole(sweep_folder, tmp_path, monkeypatch, capsys):
  for number in (2, 1):
    assert play(tmp_path, "--rounds=3", f"--part={number}/2") == 0
    output = capsys.readouterr().out
    assert output.startswith(
      f"part {number}/2: its runs have ended ({number} of 3), 1 runs are left"
    )
    assert not (tmp_path / "sweep.md").exists()
  assert hashes(tmp_path) == hashes(sweep_folder)
  real, together = sweeps._Runner._run_together, []
  monkeypatch.setattr(
    sweeps._Runner,
    "_run_together",
    lambda self, places, *arguments: (
      together.append([place.folder.name for place in places])
      or real(self, places, *arguments)
    ),
  )
  assert play(tmp_path, "--rounds=3") == 0
  assert together == [["client_lr=1e30"]]  # that it diverges is nowhere
  for name in ("sweep.md", "sweep.csv"):
    assert (tmp_path / name).read_text() == (sweep_folder / name).read_text()


@pytest.mark.parametrize(
  "words, parts",
  [
    ("--rounds=3 --l2=0.1", "--out_dir= & --l2= & not 0.1"),
    ("--rounds=2", "--rounds=2: the run in  & has 3 already"),
    ("--rounds=3 --by=local", "--by=local: not evaluated (one of gl"),
    (
      "--rounds=3 --metric=client_accuracy",
      "--metric=client_accuracy: validation has none",
    ),
  ],
)
def test_what_is_refused_changes_nothing(sweep_folder, refused, words, parts):
  before = {path: path.read_bytes() for path in sweep_folder.rglob("*.ckpt")}
  line = refused(
    sweep,
    [*WORDS, "--sweep=client_lr=0.01,0.5", f"--out_dir={sweep_folder}", *words.split()],
  )
  assert not [part for part in parts.split(" & ") if part not in line]
  assert before and before == {
    path: path.read_bytes() for path in sweep_folder.rglob("*.ckpt")
  }


def test_overwrite_starts_anew(tmp_path, capsys):
  """The metric and score that judge are named; test data have a warning."""
  words = (
    *WORDS,
    "--rounds=1",
    "--sweep=client_lr=0.1;1",
    f"--out_dir={tmp_path}",
    "--by=global",
    "--metric=loss",
    "--score=all",
  )
  assert sweep.main(words) == 0
  first = (tmp_path / "client_lr=1" / "summary.json").stat().st_mtime_ns
  streams = capsys.readouterr()
  assert "warning: the best setting is chosen by global, on test data" in (streams.err)
  assert "--validation_clients" in streams.err
  facts = files.read_json(tmp_path / "sweep.json")
  assert (facts["by"], facts["metric"], facts["score"]) == ("global", "loss", "all")
  losses = {
    rate: files.read_json(tmp_path / f"client_lr={rate}" / "summary.json")["final"][
      "global"
    ]["loss"]["mean"]
    for rate in ("0.1", "1")
  }
  assert facts["mean"] == pytest.approx(min(losses.values()))
  assert facts["mean"] == pytest.approx(losses[facts["best"]["client_lr"]])
  assert sweep.main([*words, "--overwrite"]) == 0
  assert (tmp_path / "client_lr=1" / "summary.json").stat().st_mtime_ns > first


def test_validation_data_without_a_class_choose_nothing(tmp_path, capsys):
  """Refused before the first round, unless another protocol chooses."""
  words = ["--partition=classes:2", "--num_clients=30"]
  assert play(tmp_path, *words, "--rounds=2") == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert "--validation_clients=2: they have no example of" in error
  assert "(hold out more clients)" in error
  assert not list(tmp_path.rglob("metrics.csv"))


@pytest.mark.parametrize(
  "words, evaluated",
  [
    (["--validation_clients=3"], True),
    (["--validation_clients=0"], False),
    ([], False),
    (["--validation_clients=3", "--eval_protocols=local"], False),
  ],
)
def test_validation_is_evaluated_where_there_is_one(words, evaluated):
  layers = config_lib.read_layers(words)
  actual = sweep._with_validation(layers)
  assert actual[: len(layers)] == [*layers]
  protocols = config_lib.merge_layers(*actual).get("eval_protocols", "")
  assert ("validation" in protocols) == evaluated


SOMEWHERE = pathlib.Path("somewhere")
PROX = ("--algorithm=fedprox", "--dataset=digits", "--rounds=3")


def test_a_grid_is_read_as_it_is_written():
  assert sweeps.read_grid(["client_lr=0.01,0.1,1", "hidden=8,8;16", "mu=0"]) == {
    "client_lr": ["0.01", "0.1", "1"],
    "hidden": ["8,8", "16"],
    "mu": ["0"],
  }


def test_a_setting_is_a_run_of_its_own():
  configs = sweeps.configs(
    config_lib.read_layers(PROX),
    {"client_lr": ["0.1", "1"], "local_steps": ["2", "3"]},
    SOMEWHERE,
  )
  assert [c.out_dir for c in configs] == [
    str(SOMEWHERE / f"client_lr={rate},local_steps={steps}")
    for rate in ("0.1", "1")
    for steps in (2, 3)
  ]
  single = config_lib.parse_config(
    [*PROX, "--client_lr=1", "--local_steps=2", f"--out_dir={configs[2].out_dir}"]
  )
  assert configs[2] == single and configs[2].identity == single.identity
  assert by_program(configs) == [[0, 2], [1, 3]]


def test_values_that_are_zero_or_strings_part_the_grid():
  configs = sweeps.configs(
    config_lib.read_layers(PROX), {"mu": ["0", "0.1", "1"]}, SOMEWHERE
  )
  assert [len(part) for part in by_program(configs)] == [1, 2]
  configs = sweeps.configs(
    config_lib.read_layers(PROX), {"partition": ["iid", "classes"]}, SOMEWHERE
  )
  assert [len(part) for part in by_program(configs)] == [1, 1]


@pytest.mark.parametrize(
  "grid, title",
  [
    ({"client_lr": ["0.1", "1"]}, "FedProx on digits"),
    ({"algorithm": ["fedavg", "fedprox"]}, "FedAvg, FedProx on digits"),
    (
      {"algorithm": ["fedavg", "fedprox", "scaffold", "fednova"]},
      "4 methods on digits",
    ),
    ({"dataset": ["digits", "sine2"]}, "FedProx on digits, sine2"),
  ],
)
def test_a_title_names_what_is_swept(grid, title):
  """A sweep over methods had the name of the first one."""
  layers = config_lib.read_layers(
    [word for word in PROX if word[2:].split("=")[0] not in grid]
  )
  assert report.title_of(sweeps.configs(layers, grid, SOMEWHERE)) == title


@pytest.mark.parametrize(
  "dataset, folder",
  [
    ("digits", "out/sweep_fedprox_digits"),
    ("npz:/data/x.npz", "out/sweep_fedprox_npz"),
    ("clients:../../x", "out/sweep_fedprox_clients"),
  ],
)
def test_the_default_folder_is_in_out(dataset, folder):
  """The path of the data was a part of it."""
  layers = [{"algorithm": "fedprox", "dataset": dataset}]
  assert sweep._default_folder(layers, {"mu": ["0", "1"]}) == folder
  swept = {"algorithm": ["fedavg", "fedprox"]}
  assert sweep._default_folder(layers[:1], swept).startswith("out/sweep_algorithm_")


def test_every_setting_is_checked_for_warnings(tmp_path, monkeypatch, capsys):
  class Compiled(Exception):
    pass

  def stops(runs, notice):
    raise Compiled

  monkeypatch.setattr(sweeps, "compile_together", stops)
  with pytest.raises(Compiled):
    sweeps.run_configs(
      sweeps.configs(
        [{"algorithm": "ditto", "dataset": "digits", "personal_lr": 0.1}],
        {"lam": ["0.5", "30"]},
        tmp_path,
      )
    )
  assert capsys.readouterr().err.startswith(
    "warning: --personal_lr=0.1 with --lam=30: "
  )


def test_settings_of_different_protocols_are_compared_by_what_all_have():
  """IFCA has a mean over its models, which FedAvg has not."""
  curves = {"accuracy": np.array([[0.5, 0.75]])}
  settings = [
    report.Setting(
      {"algorithm": name},
      SOMEWHERE / name,
      (0,),
      np.array([1, 2]),
      dict.fromkeys(protocols, curves),
    )
    for name, protocols in (
      ("ifca", ("global", "global_mean", "local")),
      ("fedavg", ("global", "local")),
    )
  ]
  table = report.SweepTable.of_settings(settings, None, None, "final")
  assert table.by == "global" and "global_mean" not in table.table()
  assert [row["protocol"] for row in table.rows()] == [
    protocol for setting in settings for protocol in setting.curves
  ]
  with pytest.raises(fa.OptionError, match="^by=global_mean: "):
    report.SweepTable.of_settings(settings, "global_mean", None, "final")


@pytest.mark.parametrize(
  "words, parts",
  [
    (["--sweep=dataset=digits,diabetes"], ["--metric=accuracy: ", "loss"]),
    (["--sweep=mu=0,1", "--by=held_out"], ["--by=held_out: ", "global"]),
    (["--sweep=mu=0,1", "--by=globl"], ["--by=globl: ", "global"]),
  ],
)
def test_what_cannot_choose_is_refused_before_the_runs(tmp_path, refused, words, parts):
  """A protocol was refused when all settings had been run."""
  line = refused(sweep, ["--algorithm=fedprox", *words, f"--out_dir={tmp_path}"])
  assert not [part for part in parts if part not in line]
  assert not list(tmp_path.iterdir())
