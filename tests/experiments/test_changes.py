"""Runs whose clients come later, change their data, or have groups."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import run
from experiments.cli import config
import fedjax_alg as fa
from fedjax_alg import data, registry
from fedjax_alg.algorithms import fedavg
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import sample_cohort
from fedjax_alg.metrics import groups
from fedjax_alg.records import tables as records

WORDS = (
  "--dataset=digits --partition=classes --num_clients=20 "
  "--cohort_size=4 --eval_every=2 --noprogress"
).split()


def play(out_dir, *words):
  assert run.main([*WORDS, f"--out_dir={out_dir}", *words]) == 0
  return json.loads((out_dir / "summary.json").read_text("utf-8"))


def rows_without(folder, name, *numbers):
  return str(
    [
      row
      for row in records.read_rows(folder / f"{name}.csv", None)
      if row["round"] not in numbers
    ]
  )


def test_a_shifted_run_that_goes_on_is_bit_equal(tmp_path):
  words = ("--algorithm=fedavg --shift=swap_part:3 --eval_protocols=local").split()
  straight = play(tmp_path / "whole", *words, "--rounds=8")
  play(tmp_path / "halves", *words, "--rounds=7")
  halves = play(tmp_path / "halves", *words, "--rounds=8")
  assert halves["hashes"] == straight["hashes"]
  for name, extra in (("metrics", [7]), ("rounds", [])):
    assert rows_without(tmp_path / "halves", name, *extra) == (
      rows_without(tmp_path / "whole", name)
    )
  # One epoch reads all rows of the participants, as many as they have by then.
  before = config.parse_config([*WORDS, words[0]]).prepare()
  partition = before.federation.partition
  digits, keys = data.load_digits(), run_keys(0)
  for row in records.read_rows(tmp_path / "halves" / "rounds.csv", None):
    number = row["round"] - 1
    key = jax.random.fold_in(keys.cohort, number)
    ids = sample_cohort(before.device_data.data.train, 4, key).ids
    split = fa.SwapPart(3).apply(
      partition, digits.y_train, digits.y_test, number // 3, 0
    )
    assert 4 * row["example_gradients"] == split.train_size[ids].sum()
  assert (split.train_size != partition.train_size).any()


@pytest.fixture(name="grouped")
def fixture_grouped(monkeypatch):
  """FedAvg that calls client i one of group i mod 3, the last group empty."""

  def build(model, hparams, *, map_clients):
    algorithm = fedavg.fedavg(model, hparams, map_clients=map_clients)
    return algorithm._replace(
      global_params=lambda state: jax.tree.map(
        lambda leaf: jnp.repeat(leaf, 4, 0), algorithm.global_params(state)
      ),
      membership=lambda state: jnp.arange(20) % 4 - 1 + 0 * state.round,
    )

  monkeypatch.setitem(
    registry.ALGORITHMS,
    "grouped",
    registry.Entry(fedavg.FedAvgHParams, build, "grouped", "made for this test"),
  )


def test_newcomers_and_groups_in_the_tables(grouped, tmp_path, capsys):
  words = (
    "--algorithm=grouped --partition=classes:1 --newcomers_at=1:3,2:4 "
    "--eval_protocols=local,assigned --num_seeds=2"
  ).split()
  play(tmp_path / "run", *words, "--rounds=3")
  summary = play(tmp_path / "run", *words, "--rounds=6")
  assert "groups       sizes 5 5 5 0; 5 5 5 0; 1 empty" in (capsys.readouterr().out)
  assert list(summary["final"]) == ["local", "assigned", "newcomers"]
  facts = json.loads((tmp_path / "run" / "partition.json").read_text())
  joins = np.array(facts["joins"])
  assert dict(zip(*np.unique(joins, return_counts=True))) == {0: 13, 1: 3, 2: 4}
  prepared = config.parse_config([*WORDS, *words]).prepare()
  np.testing.assert_array_equal(prepared.device_data.data.train.joins, joins)
  np.testing.assert_array_equal(
    joins, data.with_newcomers(prepared.federation.partition, [(1, 3), (2, 4)], 0)
  )
  # Every client holds one class, so ten kinds of clients.
  expected = groups.agreement(
    np.arange(20) % 4 - 1, np.argmax(facts["label_histogram"], 1)
  )
  rows = records.read_rows(tmp_path / "run" / "groups.csv", None)
  assert [(r["round"], r["seed"]) for r in rows] == [
    (n, seed) for n in (2, 4, 6) for seed in (0, 1)
  ]
  for row in rows:
    assert list(row) == [
      "round",
      "seed",
      "assigned",
      "used",
      "size_0",
      "size_1",
      "size_2",
      "size_3",
      "purity",
      "ari",
    ]
    assert [row[f"size_{k}"] for k in range(4)] == [5, 5, 5, 0]
    assert (row["assigned"], row["used"]) == (15, 3)
    assert (row["purity"], row["ari"]) == pytest.approx(expected)
  sizes = summary["groups"]
  assert sizes["sizes"] == [[5, 5, 5, 0]] * 2
  assert sizes["empty_groups"]["values"] == [1, 1]
  assert sizes["ari"]["mean"] == pytest.approx(expected.ari)
