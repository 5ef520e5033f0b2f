"""What the benchmarks print of what was measured, and their bad flags."""

import numpy as np
import pytest

from benchmarks import gpu, peers
from fedjax_alg import data

MEASURED = {
  "title": "Softmax regression, digits",
  "rounds": 3,
  "sides": {
    "fedjax_alg": {
      "versions": {"jax": "0.10"},
      "difference": 0.0,
      "cold": [3.0, 2.0],
      "seconds": [0.1, 0.3, 0.2],
      "peak_mb": 1500.0,
      "accuracy": 0.9,
    },
    "fluke": {
      "versions": {"fluke-fl": "0.8"},
      "difference": 2e-4,
      "cold": [4.0],
      "seconds": [0.1],
      "peak_mb": 100.0,
      "accuracy": 0.8,
    },
    "pfllib": {"reason": "No matching distribution found for pfllib"},
  },
}


def test_the_table_of_peers_names_who_is_faster_not_equal_or_missing():
  ours, fluke, pfllib = peers.table(MEASURED).splitlines()[-3:]
  assert ours == (
    "| fedjax_alg (jax 0.10) | ours | 3.0 | 2.0 | 200 (100, 300) "
    "| 1.00 | 1,500 | 90.00 |"
  )
  assert fluke == (
    "| fluke (fluke-fl 0.8) | 2e-04 from ours, not equal | 4.0 "
    "| - | 100 (100, 100) | 0.50 | 100 | 80.00 |"
  )
  assert "PFLlib" in pfllib and "No matching distribution" in pfllib
  assert ours.count("|") == fluke.count("|") == pfllib.count("|")


def test_every_pass_of_a_client_reads_each_of_its_rows_once():
  examples = data.load_digits()
  partition = data.make_partition("dirichlet", examples, 3, seed=0)
  order = peers.orders(partition, rounds=2, epochs=2)
  assert order.shape == (4, len(partition.train_order))
  for end, size in zip(np.cumsum(partition.train_size), partition.train_size):
    mine = partition.train_order[end - size : end]
    assert all(sorted(row) == sorted(mine) for row in order[:, end - size : end])
    assert len({tuple(row) for row in order[:, end - size : end]}) == 4


@pytest.mark.parametrize(
  "module, flag, message",
  [
    (peers, "--peers=nobody", "--peers=nobody: not one of fedjax, pfl"),
    (peers, "--repeats=0", "--repeats, --limit and --threads"),
    (gpu, "--only=nothing", "--only=nothing: no step has it in its name"),
  ],
)
def test_a_bad_flag_is_one_line(capsys, module, flag, message):
  with pytest.raises(SystemExit) as stopped:
    module.parse([flag])
  assert stopped.value.code == 2
  assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_step_that_fails_or_takes_too_long_is_named(tmp_path):
  args = gpu.parse(["--device=cpu", f"--out={tmp_path}"])
  steps = [
    gpu.Step("works", ("timeit", "-n1", "-r1"), 60, {"best": r"best of (\d)"}),
    gpu.Step("fails", ("no_such_module",), 60),
    gpu.Step("hangs", ("timeit", "import time; time.sleep(60)"), 1),
    gpu.Step("says nothing", ("timeit", "-n1"), 60, {"what": "nowhere"}),
  ]
  results = [gpu.run(step, args, time_left=60) for step in steps]
  rows = gpu.table({"device": "cpu", "quick": False, "steps": results})
  works, fails, hangs, silent = rows.splitlines()[-4:]
  assert "| best 1 |" in works
  assert "failed: " in fails and "No module named no_such_module" in fails
  assert "failed: took longer than 1 s" in hangs
  assert "failed: its output has none of the figures" in silent
