"""The scripts of examples/ run as they are, on synthetic data."""

import ast
import pathlib
import runpy

import numpy as np
import pytest

from tests.runs import hospitals

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(autouse=True, scope="module")
def fixture_shared_programs(share_programs, one_device):
  """Equal programs are compiled once, for one device."""
  del share_programs, one_device


def test_hospitals(tmp_path, monkeypatch, capsys):
  """At most 12 lines, from files of a user's to AUROC, an interval and new rows."""
  pytest.importorskip("pandas", reason="the package pandas is missing")
  patients, new = hospitals.frame(400, 0), hospitals.frame(20, 1)
  for frame, name in ((patients, "patients"), (new, "new_patients")):
    frame = frame.rename(columns={"hospital": "site"})
    frame["sex"] = np.where(frame["marker"] > 0, "f", "m")
    frame = frame.dropna(subset=["ward"]).drop(columns="stage")
    (frame if name == "patients" else frame.drop(columns=["ill", "site"])).to_csv(
      tmp_path / f"{name}.csv", index=False
    )
  monkeypatch.chdir(tmp_path)
  path = EXAMPLES / "hospitals.py"
  names = runpy.run_path(str(path))
  aurocs, interval, predicted = capsys.readouterr().out.splitlines()[:3]
  aurocs = ast.literal_eval(aurocs.replace("np.str_(", "(").replace("np.float64(", "("))
  assert list(aurocs) == ["east", "north", "south", "west"]
  assert all(0.6 < value < 1 for value in aurocs.values())
  mean, half_width = names["result"].estimate("client_auroc", "local")
  assert interval == str((mean, half_width)) and 0 < half_width < 0.2
  assert predicted.startswith("[0.")
  lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
  assert len(lines) - 1 <= 12  # beside the docstring
