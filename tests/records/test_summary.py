"""What a run leaves beside its tables."""

import json

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.data import federate
from fedjax_alg.records import summary as results


def test_facts_of_the_partition():
  plain, fed = (federate("digits", num_clients=20, **more)
                for more in ({}, {"validation_clients": 5}))
  facts = json.loads(json.dumps(results.partition_facts(fed)))
  assert facts["flags"]["validation_clients"] == 5
  assert facts["flags"]["num_clients"] == 20
  assert len(facts["validation_clients"]) == len(facts["validation_size"]) == 5
  without = results.partition_facts(plain)
  both = facts["train_size"] + facts["validation_size"]
  assert sorted(both) == sorted(without["train_size"])
  assert sum(map(sum, facts["label_histogram"])) == sum(facts["train_size"])
  assert not any(name.startswith("validation") for name in without)
  assert "validation_clients" not in without["flags"]
  assert facts["hash"] != without["hash"]


def test_the_rows_are_in_a_file_beside_them(tmp_path):
  """Of all clients, the validation clients in their old places."""
  plain, fed = (federate("digits", num_clients=20, **more)
                for more in ({}, {"validation_clients": 5}))
  results.write_partition(tmp_path, fed)
  assert json.loads((tmp_path / "partition.json").read_text("utf-8"))[
      "hash"] == fed.hashes["partition"]
  with np.load(tmp_path / "partition.npz") as stored:
    for name in ("train_order", "train_size", "test_order", "test_size"):
      np.testing.assert_array_equal(
          stored[name], getattr(plain.partition, name))


def test_best_is_of_the_rounds_in_which_somebody_was_counted():
  rows = [{"round": n, "seed": 0, "protocol": "assigned",
           **{m: value for m in metrics.METRICS}}
          for n, value in ((1, np.nan), (2, 0.25), (3, 0.5))]
  summary = results.summarise(rows, (0.4,))
  assert summary["best"]["assigned"]["accuracy"]["mean"] == 0.5
  assert summary["best"]["assigned"]["loss"]["mean"] == 0.25
  assert summary["rounds_to"]["0.40"]["values"] == [3]
  empty = results.summarise(rows[:1], (0.4,))
  assert np.isnan(empty["best"]["assigned"]["accuracy"]["mean"])
  assert empty["rounds_to"]["0.40"]["values"] == [None]
