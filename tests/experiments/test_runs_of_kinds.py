"""Runs on clients of several kinds, from the command line and from Python."""

import csv
import json

import jax
import numpy as np
import pytest

from experiments import run
from experiments.reports import page
import fedjax_alg as fa
from fedjax_alg.metrics import groups
from fedjax_alg.records import tables
from tests.each import each

WORDS = (
  "--algorithm=ifca --num_groups=2 --dataset=digits --num_clients=12 "
  "--partition=iid:size_sigma=0 --cohort_size=6 --eval_every=2 "
  "--model=softmax --noprogress"
).split()
KINDS = "--kinds=rotate:0,90,180"


def play(out_dir, *words):
  assert run.main([*WORDS, f"--out_dir={out_dir}", *words]) == 0
  return json.loads((out_dir / "summary.json").read_text("utf-8"))


def read(folder, name):
  with open(folder / f"{name}.csv", encoding="utf-8") as file:
    return list(csv.DictReader(file))


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("kinds") / "run"
  play(folder, KINDS, "--rounds=5")
  return folder


def test_the_tables_know_the_kinds(folder, capsys):
  summary = json.loads((folder / "summary.json").read_text("utf-8"))
  assert list(summary["final"]) == [
    "global",
    "global_mean",
    "local",
    "kinds",
    "kinds_worst",
    "kinds_0",
    "kinds_1",
    "kinds_2",
  ]
  assert summary["kinds"] == ["0", "90", "180"]
  last = {
    row["protocol"]: float(row["value"])
    for row in read(folder, "metrics")
    if row["round"] == "5" and row["metric"] == "accuracy"
  }
  of_kinds = [last[f"kinds_{k}"] for k in range(3)]
  assert last["kinds"] == pytest.approx(np.mean(of_kinds))
  assert last["kinds_worst"] == min(of_kinds)
  partition = json.loads((folder / "partition.json").read_text("utf-8"))
  of_client = partition["kinds"]["of_client"]
  assert partition["kinds"]["clients"] == np.bincount(of_client).tolist() == [4] * 3
  assert partition["label_distances"]["hellinger"]["same_kind_mean"] > 0
  # Quarter turns of digits are further apart than the clients of one kind.
  angles = partition["subspace_angles"]
  assert 3 * angles["same_kind_mean"] < angles["other_kind_mean"] < 90
  assert angles["kinds"][0][1] > angles["kinds"][0][2]
  assert [int(row["kind"]) for row in read(folder, "clients")] == of_client
  membership = np.array([int(row["group"]) for row in read(folder, "assignment")])
  row = read(folder, "groups")[-1]
  expected = groups.agreement(membership, np.array(of_client))
  assert float(row["ari"]) == expected.ari and float(row["purity"]) == expected.purity


def test_the_run_is_read_again(folder):
  result = fa.load_run(folder)
  curve = [
    float(row["value"])
    for row in read(folder, "metrics")
    if (row["protocol"], row["metric"]) == ("kinds_worst", "accuracy")
  ]
  np.testing.assert_array_equal(result.metrics["kinds_worst"]["accuracy"], [curve])
  assert jax.tree.leaves(result.client_params(3))
  of_client = [int(row["kind"]) for row in read(folder, "clients")]
  assert result.kinds.tolist() == of_client


def test_the_page_shows_the_members_by_kind(folder):
  """A group that is a kind is one block of the page's picture."""
  result = fa.load_run(folder)
  figure = page._group_figures({"": {"IFCA": result}})[1]
  order = sorted(
    range(12), key=lambda client: list(result.kinds).index(result.kinds[client])
  )
  assert list(figure.data[0].z[0]) == result.membership[0][order].tolist()
  names = [("0", "90", "180")[result.kinds[client]] for client in order]
  assert list(figure.data[0].customdata[0]) == [
    f"client {client}, kind {name}" for client, name in zip(order, names)
  ]
  assert figure.layout.xaxis.ticktext == tuple(names[::4])
  assert figure.layout.xaxis.tickvals == (1.5, 5.5, 9.5)


def test_a_run_that_goes_on_is_bit_equal(folder, tmp_path, capsys):
  whole = json.loads((folder / "summary.json").read_text("utf-8"))
  play(tmp_path, KINDS, "--rounds=4")
  halves = play(tmp_path, KINDS, "--rounds=5")
  assert halves["hashes"] == whole["hashes"]
  for name in ("metrics", "groups", "rounds"):
    assert read(tmp_path, name) == read(folder, name)
  # Other kinds are another run.
  words = [*WORDS, f"--out_dir={tmp_path}", "--kinds=rotate:0,90", "--rounds=6"]
  assert run.main(words) == 2 and "--kinds=" in capsys.readouterr().err


def test_one_kind_is_no_kind_to_the_bit(tmp_path):
  federations = [
    fa.federate("digits", num_clients=8, partition="classes", kinds=kinds)
    for kinds in ("natural", "rotate:0", "permute:1")
  ]
  results = [
    fa.run(
      "fedgroup",
      federation,
      num_groups=2,
      rounds=3,
      cohort_size=4,
      centers="kmeans:2",
      pretrain_steps=1,
    )
    for federation in federations
  ]
  plain = results[0]
  assert {"global", "local"} <= {*plain.metrics}
  for result in results[1:]:
    assert result.state_hash() == plain.state_hash()
    assert list(result.metrics) == list(plain.metrics)
    for protocol, values in plain.metrics.items():
      for name in ("accuracy", "loss"):
        np.testing.assert_array_equal(values[name], result.metrics[protocol][name])


def test_each_kind_is_tested_on_all_its_test_rows():
  federation = fa.federate("digits", num_clients=9, kinds="rotate:0,90,180")
  result = fa.run("local", federation, rounds=3, evaluate=("kinds",), model="softmax")
  hits = [[], [], []]
  for client, kind in enumerate(federation.kinds.of_client):
    params = result.client_params(client)
    leaves = {leaf.ndim: np.asarray(leaf) for leaf in jax.tree.leaves(params)}
    for tested in np.flatnonzero(federation.kinds.of_client == kind):
      x, y = federation.client_test(tested)
      logits = x.reshape(len(y), -1) @ leaves[2].T + leaves[1]
      hits[kind] += (logits.argmax(1) == y).tolist()
  for kind in range(3):
    measured = result.metrics[f"kinds_{kind}"]["accuracy"][0, -1]
    assert measured == pytest.approx(np.mean(hits[kind]), abs=2e-3)


def test_what_has_no_meaning_is_left_out_in_one_line(tmp_path, capsys):
  play(tmp_path, "--kinds=permute:3", "--rounds=1")
  lines = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
  assert len(lines) == 1
  assert "eval_protocols=global: left out, clients of several kinds give" in lines[0]
  protocols = {row["protocol"] for row in read(tmp_path, "metrics")}
  assert protocols == {"local", "kinds", "kinds_worst", "kinds_0", "kinds_1", "kinds_2"}


@each(
  "words, says",
  [
    (["--eval_protocols=kinds"], "--eval_protocols=kinds: the clients have no kinds"),
    (["--kinds=permute:2", "--eval_protocols=global"], "no one model can be right"),
    (["--kinds=rotate:0,90", "--eval_protocols=preferred"], "local and kinds can be"),
    (["--kinds=rotate:0,90,shares=1"], "1 shares, 2 are"),
    (["--eval_protocols=held_out"], "needs --validation_clients of at least 1"),
    (["--kinds=turn:1"], "--kinds=turn:1: unknown"),
  ],
)
def test_refusals_are_one_line(tmp_path, capsys, words, says):
  assert run.main([*WORDS, f"--out_dir={tmp_path}", "--rounds=2", *words]) != 0
  errors = capsys.readouterr().err.strip()
  assert says in errors.splitlines()[-1]


def test_newcomers_and_validation_clients_have_kinds(tmp_path):
  summary = play(
    tmp_path,
    KINDS,
    "--newcomers_at=1:2",
    "--validation_clients=3",
    "--rounds=2",
    "--cohort_size=3",
    "--stop_at=kinds_worst:accuracy:0.999",
    "--eval_protocols=local,kinds,validation,held_out",
  )
  assert {"newcomers", "kinds", "validation"} <= set(summary["final"])
  # What newcomers deploy is about as good as the models themselves.
  final = {p: summary["final"][p]["loss"]["mean"] for p in ("held_out", "validation")}
  assert 0 < final["held_out"] < 2 * final["validation"]


def test_many_kinds_have_their_mean_and_the_worst_alone(monkeypatch):
  monkeypatch.setattr(tables, "MOST_ENTRIES", 5)
  federation = fa.federate("digits", num_clients=6, kinds="noise:0.2")
  result = fa.run(
    "fedavg", federation, rounds=1, cohort_size=2, evaluate=("kinds", "local")
  )
  assert list(result.metrics) == ["kinds", "kinds_worst", "local"]
  values = result.metrics["local"]["client_accuracy"]
  np.testing.assert_allclose(result.metrics["kinds"]["accuracy"], values)
