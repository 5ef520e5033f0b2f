"""A run from the command line: what it writes, goes on with, refuses."""

import json
import pathlib
import re
import signal
from unittest import mock

import numpy as np
import pytest

from experiments import run
from experiments.cli import execute, writer
from fedjax_alg import metrics
from fedjax_alg.engine import checkpoint
from fedjax_alg.records import clients
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import tables as records
from fedjax_alg.runs import store
from fedjax_alg.runs.programs import Programs

ROOT = pathlib.Path(__file__).parents[2]
SMALL = [
  "--dataset=digits",
  "--partition=classes",
  "--num_clients=20",
  "--cohort_size=4",
  "--eval_every=2",
  "--noprogress",
]
#: With clients' own memory, and with two models.
MEMORY = ("--algorithm=scaffold", "--eval_every=4", "--num_seeds=2")
TWO = (
  "--algorithm=ma_fsvrg",
  "--num_models=2",
  "--threshold=2",
  "--client_lr=2",
  "--num_seeds=2",
)
TABLES = ("metrics.csv", "rounds.csv")


def play(out_dir, *words):
  """Exit status of a small run."""
  return run.main([*SMALL, f"--out_dir={out_dir}", *words])


def texts(folder, *names):
  """What some tables hold."""
  return [(folder / name).read_text() for name in names]


def summary_of(folder):
  return json.loads((folder / "summary.json").read_text("utf-8"))


@pytest.fixture(name="finished", scope="module")
def fixture_finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp("runs") / "finished"
  assert play(folder, *TWO, "--rounds=7") == 0
  return folder


def test_the_folder_has_the_files_and_columns_of_its_page(finished):
  page = (ROOT / "docs" / "run_folder.md").read_text("utf-8")
  assert {path.name for path in finished.iterdir()} == {
    *run_files.FILES,
    "checkpoint",
  } - {
    "assignment.csv",
    "clients.npz",
    "concepts.cp",
    "groups.csv",  # few clients
    "scaler.npz",
    "encoding.json",
    "end.txt",
  }
  sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
  tables = {
    "metrics.csv": records.METRICS,
    "timing.csv": records.TIMING,
    "rounds.csv": (
      *("round", "seed", "train_loss"),
      *records.ROUND_COST,
      *records.TOTALS,
    ),
    "groups.csv": records.group_columns(2),
    "clients.csv": clients.COLUMNS,
    "assignment.csv": clients.ASSIGNMENT,
    "summary.json": [*summary_of(finished), "groups"],
  }
  for table, columns in tables.items():
    for column in columns:
      assert f"`{column}`" in sections[table], f"{table}: {column}"


def test_metrics_csv_and_summary(finished):
  """Columns, rounds, protocols and their scores, in the published order."""
  header = (finished / "rounds.csv").read_text("utf-8").splitlines()[0]
  assert header.startswith(
    "round,seed,floats_down,floats_up,bytes_down,bytes_up,exchanges,"
    "example_gradients,central_flops,client_flops,computation_s,"
    "communication_s,idle_s,total_floats,total_bytes,total_bytes_up,"
    "total_example_gradients,total_central_flops,simulated_s,"
  )
  rows, summary = records.read_rows(finished / "metrics.csv"), (summary_of(finished))
  protocols = ["global", "global_mean", "local", "preferred"]
  assert [tuple(row.values())[:4] for row in rows] == [
    (n, seed, protocol, metric)
    for n in (2, 4, 6, 7)
    for seed in (0, 1)
    for protocol in protocols
    for metric in metrics.METRICS
  ]
  for part, number in (
    ("final", lambda curve: curve[:, -1]),
    ("best", lambda curve: curve.max(1)),
  ):
    assert list(summary[part]) == protocols
    assert set(summary[part]["local"]) == set(metrics.METRICS)
    scores = summary[part]["local"]["accuracy"]
    assert set(scores) == {"mean", "ci95", "values"}
    np.testing.assert_allclose(
      scores["values"], number(records.curves(rows)["local"]["accuracy"])
    )
  times = records.read_rows(finished / "timing.csv", records.TIMING)
  assert [row["round"] for row in times] == [2, 4, 6, 7]
  assert set(summary["rounds_to"]) == {"0.90", "0.95", "0.98"}
  assert set(summary["timing"]) >= {"compile_s", "steady_s_per_round"}
  assert set(summary["hashes"]) == {"data", "partition", "final_state"}
  for key in ("mean_last_10", "peak_memory_mb", "versions", "device", "cost"):
    assert summary[key]


def test_rounds_csv_and_what_a_run_costs(finished):
  """d = 650; two warm-up rounds with one model, five with K = 2."""
  rows = records.read_rows(finished / "rounds.csv", None)
  assert list(rows[0]) == [
    "round",
    "seed",
    "floats_down",
    "floats_up",
    "bytes_down",
    "bytes_up",
    "exchanges",
    "example_gradients",
    "central_flops",
    "client_flops",
    "computation_s",
    "communication_s",
    "idle_s",
    *records.TOTALS,
    "discrepancy",
    "group_size_0",
    "group_size_1",
    "train_loss",
  ]
  assert [(r["round"], r["seed"]) for r in rows] == [
    (n, seed) for n in range(1, 8) for seed in (0, 1)
  ]
  assert all(r["train_loss"] > 0 for r in rows)
  assert all(r["group_size_0"] + r["group_size_1"] == 4 for r in rows[4:])
  cost = summary_of(finished)["cost"]
  cohort, d = 4, 650
  down = [3 * d, 3 * d, *[5 * d] * 5]
  assert [r["floats_down"] for r in rows[::2]] == down
  total = cohort * (2 * sum(down) + 7)
  assert cost["total_floats"]["values"] == [total, total]
  assert cost["total_bytes"]["values"] == [4 * total, 4 * total]
  assert (cost["clients_per_round"], cost["rounds"]) == (cohort, 7)
  last = cost["last_round"]
  assert (last["floats_down"], last["floats_up"], last["exchanges"]) == (
    5 * d,
    5 * d + 1,
    3,
  )
  assert [r["total_floats"] for r in rows if r["seed"] == 0] == [
    cohort * (2 * sum(down[:n]) + n) for n in range(1, 8)
  ]
  # The totals are the sums of the rounds.
  for column, times in (
    ("total_example_gradients", 4),
    *((name, 1) for name in ("total_central_flops", *records.SIMULATED)),
  ):
    np.testing.assert_allclose(
      cost[column]["values"][1],
      times * sum(r[column.removeprefix("total_")] for r in rows if r["seed"] == 1),
    )


def test_a_run_that_ends_early_is_finished(tmp_path, capsys):
  """And interrupted shortly before its end it ends in the same round."""
  folder = tmp_path / "run"
  words = [
    "--algorithm=fedavg",
    "--validation_clients=4",
    "--rounds=60",
    "--eval_protocols=validation,local",
    "--num_seeds=2",
    "--patience=validation:accuracy:2",
    "--tensorboard",
  ]
  assert play(folder, *words) == 0
  summary = summary_of(folder)
  rounds = summary["cost"]["rounds"]
  assert 4 < rounds < 60 and set(summary["final"]) == {"validation", "local"}
  facts = json.loads((folder / "config.json").read_text("utf-8"))
  assert facts["plan"]["validation_examples"] > 0
  assert summary["stopped"] == "patience validation:accuracy:2"
  out, err = capsys.readouterr()
  assert (
    f"ended after round {rounds} of 60 by --patience=validation:accuracy:2"
  ) in out
  assert "test data" not in err
  assert "--validation_clients=4: they have no example of the classes 2" in err
  assert play(folder, *words) == 0
  assert "nothing to do" in capsys.readouterr().err
  tables = ("metrics.csv", "rounds.csv", "clients.csv")
  before = texts(folder, *tables)
  (folder / "summary.json").unlink()
  checkpoint.checkpoint_paths(folder / "checkpoint")[0].unlink()
  assert play(folder, *words) == 0
  assert texts(folder, *tables) == before
  second = summary_of(folder)
  assert second["stopped"] == summary["stopped"]
  assert second["hashes"] == summary["hashes"]
  # The points in it are those of tests/runs/test_tensorboard.py.
  assert {path.name for path in (folder / "tensorboard").iterdir()} == {
    "seed_0",
    "seed_1",
  }


def test_flags_txt_replays_to_the_same_bits(finished, tmp_path, capsys):
  words = [f"--flagfile={finished / 'flags.txt'}", f"--out_dir={tmp_path / 'again'}"]
  assert run.main(words) == 0
  assert not capsys.readouterr().err  # it goes on with nothing
  assert summary_of(tmp_path / "again")["hashes"] == (summary_of(finished)["hashes"])
  assert texts(tmp_path / "again", *TABLES) == texts(finished, *TABLES)


@pytest.mark.filterwarnings("always:checkpoint .* is damaged")
def test_a_run_that_goes_on_is_bit_equal(finished, tmp_path, capsys):
  """From the checkpoint before a damaged one; tables end in half a line."""
  folder = tmp_path / "halves"
  # Five rounds end between two evaluations of the whole run: one row more.
  assert play(folder, *TWO, "--rounds=5") == 0
  times = (folder / "timing.csv").read_text()
  for name in TABLES:  # killed while it wrote
    with open(folder / name, "a", encoding="utf-8") as file:
      file.write("5,0,65")
  newest = sorted((folder / "checkpoint").glob("*.ckpt"))[-1]
  raw = bytearray(newest.read_bytes())
  raw[-10] ^= 1
  newest.write_bytes(raw)
  capsys.readouterr()
  assert play(folder, *TWO, "--rounds=7") == 0
  streams = capsys.readouterr()
  assert "damaged" in streams.err and "the one before" in streams.err
  assert f"{folder}: goes on after round 4\n" in streams.err
  assert re.search(
    r"^local +accuracy 0\.\d{4} \+- \d\.\d{4} \(95 % CI, 2 seeds"
    r"\), macro F1",
    streams.out,
    re.M,
  )
  assert (
    (folder / "timing.csv").read_text().startswith(times[: times.index("\n4,") + 1])
  )  # a slow save of round 4 is spared
  assert summary_of(folder)["hashes"] == summary_of(finished)["hashes"]
  assert texts(folder, *TABLES) == texts(finished, *TABLES)


@pytest.fixture(name="calls")
def _calls(monkeypatch):
  """The rounds of each call; the calls have one round each."""
  calls, real = [], Programs.run_rounds

  def play_rounds(self, states, start, count):
    calls.append((start, count))
    return real(self, states, start, count)

  monkeypatch.setattr(Programs, "run_rounds", play_rounds)
  monkeypatch.setattr(writer, "_CALL_S", 1e-9)
  return calls


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_stopped_between_two_evaluations(
  stretches, tmp_path, calls, monkeypatch, capsys, error
):
  """By a signal; or at once, with what --checkpoint_every_s saved before."""
  folder, real = tmp_path / "run", Programs.run_rounds

  def stops(self, states, start, count):
    if start == 6:
      if error is not None:
        raise error
      signal.raise_signal(signal.SIGTERM)
    return real(self, states, start, count)

  words = (*STRETCHES, "--checkpoint_every_s=1e-9") if error else STRETCHES
  with monkeypatch.context() as patch:
    patch.setattr(Programs, "run_rounds", stops)
    assert play(folder, *words) == (130 if error else 75)
  done = 6 if error else 7
  message = capsys.readouterr().err
  assert not (folder / "run.lock").exists()
  assert error or message == (
    f"stopped by SIGTERM: {folder}: saved at round 7 of 9; to go on, give "
    "the same command again\n"
  )
  assert checkpoint.newest_round(folder / "checkpoint") == done
  assert calls == [(n, 1) for n in range(done)]
  monkeypatch.setattr(writer, "_CALL_S", 5.0)
  assert play(folder, *STRETCHES) == 0
  assert f"{folder}: goes on after round {done}\n" in capsys.readouterr().err
  assert calls[done : done + 2] == [(done, 1), (done + 1, 1)]
  assert texts(folder, *TABLES) == texts(stretches, *TABLES)
  assert summary_of(folder)["hashes"] == summary_of(stretches)["hashes"]
  times = records.read_rows(folder / "timing.csv", records.TIMING)
  assert [row["round"] for row in times] == [4, 8, 9]
  assert times[0]["seconds"] < times[1]["seconds"] < times[2]["seconds"]


#: Evaluated after rounds 4, 8 and 9.
STRETCHES = (*MEMORY, "--rounds=9")


@pytest.fixture(name="stretches", scope="module")
def _stretches(tmp_path_factory):
  """A run in one call between two evaluations, as from Python."""
  folder = tmp_path_factory.mktemp("runs") / "stretches"
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(writer.Pace, "rounds", lambda self, remaining: remaining)
    patch.setattr(writer.plots, "run_curves", lambda *args: None)
    assert play(folder, *STRETCHES) == 0
  return folder


@pytest.mark.parametrize(
  "words, status, part",
  [
    ([], 0, "nothing to do"),
    (["--rounds=3"], 2, "--rounds=3: "),
    (["--beta1=0.3"], 2, "--beta1=0.9, not 0.3"),
    (["--num_seeds=1"], 2, "[0, 1], not [0]"),
    (["--resume"], 2, "--resume: unknown flag; the same command again"),
  ],
)
def test_a_finished_run_is_left_alone(finished, capsys, words, status, part):
  before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
  paths = [f"--flagfile={finished / 'flags.txt'}", f"--out_dir={finished}"]
  assert run.main([*paths, *words]) == status
  error = capsys.readouterr().err
  assert part in error and error.count("\n") == 1
  assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


def test_non_finite_training_stops(tmp_path, capsys):
  folder = tmp_path / "run"
  assert play(folder, *MEMORY, "--client_lr=1e38", "--rounds=6") == 1
  message = capsys.readouterr().err
  assert "non-finite in round" in message and "/bias (seed 0)" in message
  assert message.count("\n") == 1
  assert not (folder / "summary.json").exists()


@pytest.mark.parametrize("slow,rounds", [(1e9, [4, 8, 10]), (-1.0, [4, 10])])
def test_slow_saves_are_spared(tmp_path, monkeypatch, slow, rounds):
  """The first and the last evaluation save all the same."""
  saves, save = [], checkpoint.save

  def record_save(folder, states, done, facts):
    saves.append(done)
    return save(folder, states, done, facts)

  monkeypatch.setattr(checkpoint, "save", record_save)
  monkeypatch.setattr(store, "_SLOW_SAVE", slow)
  monkeypatch.setattr(store, "_SAVE_SPARING", 1e9)
  assert play(tmp_path / "run", *MEMORY, "--rounds=10") == 0
  assert saves == rounds


def test_an_accuracy_without_f1_is_shown_with_the_loss(capsys):
  """That of the user's own task; the run ended in a KeyError after its last round."""
  value = {"mean": 0.5, "ci95": None, "values": [0.5]}
  summary = {
    "final": {"global": {"accuracy": value, "loss": value}},
    "timing": {"steady_s_per_round": 0.1, "compile_s": 1.0},
    "peak_memory_mb": 1.0,
  }
  execute.print_summary(mock.Mock(), summary)
  assert "loss 0.5000" in capsys.readouterr().out


def test_dry_run_writes_nothing(tmp_path, capsys):
  assert (
    play(
      tmp_path / "run", "--client_update=prox", "--dry_run", "--eval_protocols=global"
    )
    == 0
  )
  output = capsys.readouterr().out
  for word in (
    "map_clients",
    "program_mb",
    "cohort_size",
    "total_bytes",
    "state models/",
  ):
    assert word in output
  plan = dict(
    line.split(None, 1) for line in output.splitlines() if len(line.split()) > 1
  )
  assert (plan["client_lr"], plan["server_lr"]) == ("0.1", "1.0")  # as used
  assert plan["client_update"] == "prox" and "mu" not in plan
  assert not (tmp_path / "run").exists()
