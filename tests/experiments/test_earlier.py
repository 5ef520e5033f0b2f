"""Folders that version 0.3.0 wrote at commit 98c630cf are opened and resumed.

Without this test a renamed field of a state, of the options or of a table makes
the runs that users have begun unreadable, and nothing else notices.
"""

import csv
import pathlib
import shutil

import jax
import numpy as np
import pytest

from experiments import run
import fedjax_alg as fa
from fedjax_alg import files

_EARLIER = pathlib.Path(__file__).parent / "earlier"

_COLUMNS = ("accuracy", "loss", "bytes_up", "total_example_gradients")


def _rows(folder):
  with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
    return list(csv.DictReader(file))


def _run(words, folder, *others):
  assert run.main([*words, "--rounds=3", f"--out_dir={folder}", *others]) == 0


@pytest.mark.parametrize("method, num_models", [("fedavg", 1), ("ga_fsvrg", 2)])
def test_a_folder_of_0_3_0_goes_on(method, num_models, tmp_path):
  earlier, fresh = tmp_path / "earlier", tmp_path / "fresh"
  shutil.copytree(_EARLIER / method, earlier)
  words = (earlier / "flags.txt").read_text("utf-8").split()
  before = files.read_json(earlier / "config.json")
  rows = _rows(earlier)
  loaded = fa.load_run(earlier)
  accuracy = [row["accuracy"] for row in loaded.records.tables["metrics"]]
  assert accuracy == [float(row["accuracy"]) for row in rows]
  weights = jax.tree.leaves(loaded.global_params())
  assert sum(map(np.size, weights)) == num_models * (64 + 1) * 10

  _run(words, earlier, "--resume", "--allow_other_devices")
  _run(words, fresh)

  after = files.read_json(earlier / "config.json")
  assert after["identity"] == before["identity"]
  assert _rows(earlier)[: len(rows)] == rows
  assert len(_rows(earlier)) == len(rows) // 2 * 3
  # Another CPU may have rounded the first two rounds otherwise.
  for ours, theirs in zip(_rows(earlier), _rows(fresh), strict=True):
    np.testing.assert_allclose(
      [float(ours[name]) for name in _COLUMNS],
      [float(theirs[name]) for name in _COLUMNS],
      rtol=1e-4,
    )
