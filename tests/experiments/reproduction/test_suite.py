"""What the figures share: their runs and parts of them, panels, timed calls."""

import fcntl
import os
import pathlib
import time
import types

import jax.numpy as jnp
import pytest

from experiments import diversified
from experiments.cli import sweeps, writer
from experiments.cli.part import RunPart
from experiments.reproduction import figures, suite, timing
from fedjax_alg import files
from fedjax_alg.records import lock
from fedjax_alg.records import summary as results
from fedjax_alg.records import tables as records
from fedjax_alg.runs import result, status, store
from tests import made_runs
from tests.experiments import shown


def outcome(panel, label):
  cell = suite.Cell(panel, f"panel {panel}", label, shown.config_of())
  frames = made_runs.frames_of([{"round": 1, "seed": 0, "protocol": "global"}])
  return suite.Outcome(cell, pathlib.Path("nowhere"), frames, {})


def test_outcomes_by_panel_keep_their_order():
  outcomes = [outcome(*words) for words in ("bX", "aX", "bY")]
  assert suite.by_panel(outcomes) == [[outcomes[0], outcomes[2]], [outcomes[1]]]
  first, second, third = (o.frames for o in outcomes)
  assert suite.frames_by_panel(outcomes) == {
    "(b) panel b": {"X": first, "Y": third},
    "(a) panel a": {"X": second},
  }


@pytest.mark.parametrize(
  "dataset, name",
  [("cifar10", "cifar10"), ("tfds:cifar10", "cifar10"), ("femnist:leaky", "femnist")],
)
def test_a_data_set_has_one_name(dataset, name):
  """With TFDS's prefix it had the tie of other data sets."""
  config = shown.config_of(f"--dataset={dataset}")
  assert suite.Cell("a", "A", "A", config).data == name


def test_the_first_call_is_not_timed():
  calls = []

  def slow_at_first(x):
    calls.append(x)
    if len(calls) == 1:
      time.sleep(0.2)
    return jnp.float32(len(calls))

  out, seconds = timing.time_repeats(slow_at_first, 7, repeats=3)
  assert calls == [7] * 4 and out == 4
  assert len(seconds) == 3 and max(seconds) < 0.2


@pytest.fixture(name="cells")
def _cells():
  """Three cells with two runs."""
  return [
    suite.Cell("a", "A", name, shown.config_of(f"--client_lr={lr}", "--rounds=3"))
    for name, lr in (("x", 1), ("again", 1), ("y", 2))
  ]


class _Rate(float):
  """A rate that stands for a prepared run."""

  federation = None


@pytest.fixture(name="compiled")
def fixture_compiled(monkeypatch):
  """The rates of the runs compiled together; a rate stands for programs."""
  batches = []

  def compile_together(runs, notice):
    assert callable(notice)
    batches.append(tuple(runs))
    return [types.SimpleNamespace(prepared=rate) for rate in runs]

  monkeypatch.setattr(sweeps, "compile_together", compile_together)
  monkeypatch.setattr(sweeps.sharding, "available_cores", lambda: 3)
  monkeypatch.setattr(sweeps, "divergence", lambda *_: None)
  monkeypatch.setattr(sweeps.execute, "print_warnings", lambda *_: None)
  monkeypatch.setattr(
    suite.config_lib.Config,
    "prepare",
    lambda config, settings: _Rate(config.hparams["client_lr"]),
  )
  monkeypatch.setattr(sweeps.store, "check_data", lambda folder, federation: None)
  return batches


def write_finished(folder, config):
  """Writes the files of a run that a command has finished, without a number."""
  folder.mkdir(parents=True, exist_ok=True)
  for name in (
    *("partition.json", "partition.npz", "final.msgpack"),
    *writer.added_files(),
  ):
    (folder / name).write_text("written", "utf-8")
  for name, columns in (
    ("metrics", records.METRICS),
    ("rounds", ("round", "seed", *records.ROUND_COST)),
    ("timing", records.TIMING),
  ):
    records.write_rows(folder / f"{name}.csv", [], columns)
  facts = {**config.facts(), "plan": {"cohort_size": 1}}
  results.write_sealed(folder / "config.json", facts)
  parts = dict.fromkeys(("final", "best", "timing"), {})
  parts["hashes"] = {"data": "D", "partition": "P"}
  summary = {"identity": config.identity, "cost": {"rounds": config.run.rounds}}
  result.write_summary(folder, summary | parts)


@pytest.fixture(name="rates")
def _rates(monkeypatch, compiled):
  """The rates of the runs made, which take no time."""
  rates = []

  def play(runs, programs, label, stop, pictures):
    ((config, folder, resuming),) = runs
    assert label == "FedAvg" and stop and pictures and not resuming
    assert compiled and programs.prepared == config.hparams["client_lr"]
    rates.append(config.hparams["client_lr"])
    assert (folder / "run.lock").exists()
    write_finished(folder, config)
    return [None], None

  monkeypatch.setattr(sweeps.execute, "run_folders", play)
  return rates


def test_runs_are_compiled_together_and_played_in_turn(
  compiled, rates, tmp_path, capsys, monkeypatch
):
  """Up to one on other data; no run twice, and a finished one not at all."""
  monkeypatch.setattr(  # however long they take here
    sweeps, "time", types.SimpleNamespace(monotonic=lambda: 0.0)
  )
  cells = [
    suite.Cell(
      "a",
      "panel",
      f"rate {rate}",
      shown.config_of(
        "--dataset=digits",
        f"--client_lr={rate}",
        "--rounds=3",
        f"--num_clients={clients}",
      ),
    )
    for rate, clients in [
      (0.1, 9),
      (0.5, 9),
      (0.2, 9),
      (0.1, 9),
      (0.3, 9),
      (0.4, 9),
      (0.6, 8),
    ]
  ]
  suite.run_cells(cells[1:2], tmp_path)
  capsys.readouterr()
  outcomes = suite.run_cells(cells, tmp_path)
  assert [outcome.cell for outcome in outcomes] == cells
  assert compiled == [(0.5,), (0.1, 0.2, 0.3), (0.4,), (0.6,)]
  assert rates == [0.5, 0.1, 0.2, 0.3, 0.4, 0.6]
  lines = capsys.readouterr().err.splitlines()
  assert lines[0] == "[1/5] panel: rate 0.1"  # nothing is known yet
  assert lines[1] == ("[2/5] panel: rate 0.2, about 0 s left with compiling")


def test_parts_share_the_runs_out_and_the_whole_reads_them(
  cells, rates, tmp_path, capsys
):
  for number, remaining in ((2, 1), (1, 0)):
    suite.run_part_of_cells(cells, tmp_path, RunPart(number, 2))
    assert capsys.readouterr().out == (
      f"part {number}/2: its runs have ended (1 of 2), {remaining} runs are left "
      "for other parts; the same command without --part makes the tables "
      "and pictures\n"
    )
  assert rates == [2, 1]
  outcomes = suite.run_cells(cells, tmp_path)
  assert [outcome.cell.label for outcome in outcomes] == ["x", "again", "y"]
  assert outcomes[0].folder == outcomes[1].folder and rates == [2, 1]


def test_a_run_that_another_process_plays_is_passed_over(
  cells, rates, tmp_path, capsys
):
  folder = store.folder_of(tmp_path, cells[0].config)
  folder.mkdir(parents=True)
  with open(folder / "run.lock", "w", encoding="utf-8") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print(3, "node", sep="\n", file=file, flush=True)
    os.utime(file.fileno(), (0, 0))
    with pytest.raises(lock.StillHeld) as error:
      suite.run_cells(cells, tmp_path)
  since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(0))
  message = f"{folder}: is being run by node, process 3, since {since}"
  assert capsys.readouterr().err.count(f"{message}\n") == 1
  assert str(error.value) == (
    f"{message}; when that has ended, give the same command again"
  )
  assert rates == [2]
  assert len(suite.run_cells(cells, tmp_path)) == 3 and rates == [2, 1]


def test_what_others_do_with_a_run_that_is_compiled_ahead(
  cells, compiled, rates, tmp_path, monkeypatch
):
  """One that they ran is passed over, one that they have run is read."""
  _, (busy, _), (ended, _) = runs = [
    (store.folder_of(tmp_path, cell.config), cell)
    for cell in (
      cells[0],
      cells[2],
      suite.Cell("a", "A", "z", shown.config_of("--client_lr=3", "--rounds=3")),
    )
  ]
  play = sweeps.execute.run_folders
  busy.mkdir(parents=True)
  with open(busy / "run.lock", "w", encoding="utf-8") as file:

    def meanwhile(runs_of, *args, **options):
      fcntl.flock(file, fcntl.LOCK_EX)
      made = play(runs_of, *args, **options)
      write_finished(ended, runs[2][1].config)
      return made

    monkeypatch.setattr(sweeps.execute, "run_folders", meanwhile)
    with pytest.raises(lock.StillHeld) as error:
      suite.run_cells([cell for _, cell in runs], tmp_path)
  assert compiled == [(1, 2, 3)] and rates == [1]
  assert str(error.value).startswith(f"{busy}: is being run by another")


def test_a_part_of_all_figures(monkeypatch, tmp_path, capsys):
  """Figures that share a run count it once, and none is written.

  What each needs is noted, for ``status``.
  """
  runs = []
  monkeypatch.setattr(
    sweeps,
    "run_configs",
    lambda configs, names, pictures: (runs.extend(zip(configs, names)), [])[1],
  )
  with shown.built_once():
    assert (
      diversified.main(
        ["--figure=all", "--scale=quick", "--part=1/3", f"--out_dir={tmp_path}"]
      )
      == 0
    )
    assert len({name.split(":")[0] for _, name in runs}) > 2
    quick, every = figures.Request(tmp_path, (), "", quick=True), {}
    for name in diversified.PAPER.figures:
      figure, *_ = figures._resolve_figure(diversified.PAPER, name, quick)
      every |= {
        cell.config.identity: cell.config
        for cell in figures.cells(diversified.PAPER, figure, quick)
      }
  assert len(runs) == len(every) // 3
  assert capsys.readouterr().out.startswith(
    f"part 1/3: its runs have ended ({len(runs)} of {len(every)}), "
    f"{len(every)} runs are left for other parts; "
  )
  assert diversified.main(["--figure=table1", "--part=1/3"]) == 2
  assert "--part: not read by table1" in capsys.readouterr().err
  assert [path.name for path in tmp_path.iterdir()] == [status.PLANNED]
  planned = files.read_json(tmp_path / status.PLANNED)
  assert {path for paths in planned.values() for path in paths} == {
    f"runs/{run.algorithm}-{identity[:12]}" for identity, run in every.items()
  }
