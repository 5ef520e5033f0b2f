"""Runs on clients whose kinds change, from the command line."""

import csv
import json

import numpy as np
import pytest

from experiments import run
import fedjax_alg as fa
from fedjax_alg.metrics import groups
from fedjax_alg.runs import plan
from fedjax_alg.runs.programs import Programs

WORDS = (
  "--algorithm=ifca --num_groups=2 --dataset=sine2:80 "
  "--concepts=staggered:4,rounds=2 --cohort_size=6 "
  "--eval_every=3 --model=softmax --noprogress"
).split()


def play(out_dir, *words):
  assert run.main([*WORDS, f"--out_dir={out_dir}", *words]) == 0
  return json.loads((out_dir / "summary.json").read_text("utf-8"))


def read(folder, name):
  with open(folder / f"{name}.csv", encoding="utf-8") as file:
    return list(csv.DictReader(file))


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("concepts") / "run"
  play(folder, "--rounds=9")
  return folder


def test_the_last_round_of_a_step_is_evaluated_against_its_kinds(folder):
  facts = json.loads((folder / "partition.json").read_text("utf-8"))
  schedule = np.array(facts["concepts"]["schedule"])
  assert facts["concepts"]["steps"] == 4 and schedule.shape == (4, 10)
  rows = read(folder, "groups")
  # Multiples of 3, ends of steps but the last, and the last round.
  assert [int(row["round"]) for row in rows] == [2, 3, 4, 6, 9]
  last = schedule[-1]
  assert [int(row["kind"]) for row in read(folder, "clients")] == last.tolist()
  membership = np.array([int(row["group"]) for row in read(folder, "assignment")])
  expected = groups.agreement(membership, last)
  np.testing.assert_equal(
    [float(rows[-1]["ari"]), float(rows[-1]["purity"])], [expected.ari, expected.purity]
  )


def test_a_kind_that_no_client_has_is_not_tested(folder):
  measured = {
    (row["round"], row["protocol"]): float(row["value"])
    for row in read(folder, "metrics")
    if row["metric"] == "accuracy"
  }
  assert np.isnan(measured["2", "kinds_1"])
  assert measured["2", "kinds"] == measured["2", "kinds_0"]
  assert np.isnan(measured["9", "kinds_0"])
  of_both = [measured["4", f"kinds_{k}"] for k in range(2)]
  assert measured["4", "kinds"] == pytest.approx(np.mean(of_both))


def test_a_run_that_goes_on_is_bit_equal(folder, tmp_path, capsys):
  whole = json.loads((folder / "summary.json").read_text("utf-8"))
  play(tmp_path, "--rounds=3")  # in the middle of a step
  halves = play(tmp_path, "--rounds=9")
  assert halves["hashes"] == whole["hashes"]
  for name in ("metrics", "groups", "rounds", "clients"):
    assert read(tmp_path, name) == read(folder, name)
  words = [*WORDS, f"--out_dir={tmp_path}", "--rounds=9"]
  assert run.main([*words, "--concepts=switch:4,rounds=2"]) == 2
  assert "--concepts=" in capsys.readouterr().err
  assert fa.load_run(folder).metrics["local"]["accuracy"].shape == (1, 5)


def test_a_run_of_a_file_needs_it_no_more(folder, tmp_path):
  file = tmp_path / "A.cp"
  file.write_text((folder / "concepts.cp").read_text("utf-8"), "utf-8")
  words = (f"--concepts=file:{file},rounds=2", "--rounds=4")
  others = [word for word in WORDS if not word.startswith("--concept")]
  out_dir = f"--out_dir={tmp_path / 'run'}"
  assert run.main([*others, out_dir, *words]) == 0
  file.unlink()
  result = fa.load_run(tmp_path / "run")
  assert result.global_params is not None
  first = fa.load_run(folder).metrics["local"]["accuracy"][:, :3]
  np.testing.assert_array_equal(result.metrics["local"]["accuracy"], first)


def test_steps_compile_nothing():
  federation = fa.federate("circle2:40", seed=0, concepts="recurring:4,rounds=1")
  prepared = plan.from_keywords(
    "fedavg", federation, model="softmax", rounds=6, cohort_size=10
  ).prepare()
  programs = Programs(prepared)
  states, hashes = programs.initial(), set()
  for done in range(6):  # programs that are compiled refuse other shapes
    states, _ = programs.run_rounds(states, done, 1)
    counts, _ = programs.evaluate(states)
    hashes.add(prepared.device_data.kinds.tobytes())
  assert len(hashes) == 2 and counts["local"].sums["rows"].sum() == 1000


@pytest.mark.parametrize(
  "words, says",
  [
    (["--concepts=switch:4,rounds=9"], "rounds=9: the data never change, there are"),
    (["--concepts=swich"], "--concepts=swich: unknown, did you mean 'switch'"),
    (
      ["--concepts=staggered:99,rounds=2"],
      "--concepts: 99 steps need as many training examples",
    ),
    (["--kinds=boundaries:3"], "--kinds=boundaries: sine2 has 2 of them"),
  ],
)
def test_refusals_are_one_line(tmp_path, capsys, words, says):
  assert run.main([*WORDS, *words, f"--out_dir={tmp_path}", "--rounds=9"]) != 0
  assert says in capsys.readouterr().err.strip().splitlines()[-1]


def test_newcomers_come_as_they_are_then(tmp_path):
  summary = play(tmp_path, "--rounds=5", "--newcomers_at=3:4", "--cohort_size=4")
  assert {"newcomers", "local"} <= set(summary["final"])
