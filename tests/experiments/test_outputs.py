"""No command replaces what is not its own earlier output."""

import os
import pathlib

import pytest

from experiments import card, compare, demo, diversified, judge, sweep, tune
from experiments.cli import config, shared_runs, sweeps
from experiments.reproduction import tuning
import fedjax_alg as fa
from tests import made_runs

CURVES = [[0.5, 0.6, 0.7], [0.4, 0.6, 0.72], [0.5, 0.65, 0.69]]
CLAIM = "method,protocol,metric,value,rule\na,global,accuracy,70,final\n"
FLAGS = (
  "--algorithm=fedavg",
  "--dataset=digits",
  "--num_clients=12",
  "--validation_clients=3",
)


@pytest.fixture(name="root")
def _root(tmp_path, monkeypatch):
  """Two runs, a claim, and no command that runs anything."""
  monkeypatch.chdir(tmp_path)
  for name in ("a", "b"):
    made_runs.write(tmp_path / name, CURVES, every=1)
  (tmp_path / "claims.csv").write_text(CLAIM)
  return tmp_path


#: A command, its words, and what it writes.
COMMANDS = [
  (
    compare,
    ("a", "b", "--out=out"),
    [f"out/compare.{kind}" for kind in ("png", "pdf", "md", "tex")],
  ),
  (compare, ("a", "b", "--out=x.png,y.md"), ["x.png", "y.md"]),
  (judge, ("claims.csv", "a=a", "--out=out"), ["out/judge.md", "out/judge.csv"]),
  (
    sweep,
    (*FLAGS, "--sweep=client_lr=0.1,1", "--out_dir=out"),
    [f"out/sweep.{kind}" for kind in ("md", "csv", "png", "json")],
  ),
  (
    tune,
    (*FLAGS, "--tune_by_gradient=client_lr", "--out_dir=out"),
    ["out/gradient.md", "out/gradient.json"],
  ),
  (
    tune,
    ("--paper=diversified", "--data=mnist", "--out_dir=out"),
    ["out/diversified_mnist/tune.md", "out/diversified_mnist/tune.csv"],
  ),
  (demo, ("--out_dir=out",), ["out/demo.txt", "out/demo.png"]),
  (
    diversified,
    ("--figure=fig10", "--out_dir=out"),
    [
      f"out/fig10/fig10{end}"
      for end in (".md", ".answers.csv", ".csv", "_numbers.csv", ".png", ".pdf")
    ],
  ),
]
CASES = [(command, words, name) for command, words, names in COMMANDS for name in names]


@pytest.fixture(name="nothing_runs")
def _nothing_runs(monkeypatch):
  """The refusal comes before the hours that the runs take."""
  for where, name in (
    (sweeps, "run_configs"),
    (shared_runs, "make_runs"),
    (tuning.Study, "play"),
    (config.Config, "prepare"),
  ):
    monkeypatch.setattr(where, name, None)


@pytest.mark.parametrize(
  "make",
  [
    lambda path: path.write_text("# Mine\n\nyears of work"),
    os.mkfifo,
    lambda path: path.symlink_to("/dev/null"),
  ],
  ids=["file", "FIFO", "device"],
)
@pytest.mark.parametrize(
  "command, words, name",
  CASES,
  ids=[f"{case[0].__name__.rpartition('.')[2]}-{case[2]}" for case in CASES],
)
def test_what_somebody_else_has_written_stays(
  root, nothing_runs, refused, command, words, name, make
):
  del nothing_runs
  path = root / name
  path.parent.mkdir(parents=True, exist_ok=True)
  make(path)

  def content():
    facts = path.lstat()  # the time of the last access is nobody's
    return (
      (facts.st_mode, facts.st_ino, facts.st_size, facts.st_mtime_ns),
      path.is_file() and path.read_text(),
    )

  before = content()
  line = refused(command, list(words))
  assert line.startswith("--out") and path.name in line, line
  assert "nothing else is replaced" in line
  assert content() == before


@pytest.mark.parametrize(
  "command, words, names",
  [*COMMANDS[:4], *COMMANDS[7:]],
  ids=lambda value: value.__name__ if hasattr(value, "__name__") else None,
)
def test_earlier_outputs_are_replaced(root, monkeypatch, capsys, command, words, names):
  """And so is an empty file, in which there is nothing to lose."""
  monkeypatch.setattr(
    sweeps,
    "run_configs",
    lambda configs, **_: [
      sweeps.SettingOutcome(
        config, pathlib.Path(config.out_dir), made_runs.finish(config)
      )
      for config in configs
    ],
  )
  (root / names[0]).parent.mkdir(parents=True, exist_ok=True)
  (root / names[0]).touch()
  for _ in range(2):
    assert command.main([*words]) == 0, capsys.readouterr().err
    for name in names:
      assert (root / name).stat().st_size


def test_a_card_replaces_a_card(tmp_path, refused):
  pytest.importorskip("rocrate.rocrate")
  fed = fa.federate("digits", num_clients=12, partition="iid", validation_clients=2)
  folder = fa.run(
    "fedavg",
    fed,
    cohort_size=4,
    rounds=2,
    seeds=2,
    eval_every=1,
    evaluate=("global", "validation"),
  ).save(tmp_path / "run")
  for _ in range(2):
    assert card.main([str(folder), "--crate"]) == 0
  (tmp_path / "mine").write_text('{"@graph": "of mine"}')
  for name in (card.CARD, card.CRATE):
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "mine")
    assert f"{name} is not from an earlier call" in refused(
      card, [str(folder), "--crate"]
    )
    (folder / name).unlink()
    (folder / name).write_bytes(content)
  assert (tmp_path / "mine").read_text() == '{"@graph": "of mine"}'
