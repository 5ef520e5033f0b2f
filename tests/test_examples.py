"""The scripts of examples/ run as they are, on synthetic data."""

import ast
import pathlib
import re
import runpy

import numpy as np
import pytest

from tests.runs import hospitals

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


#: Name -> the most lines beside the docstring, and what stands in the output.
SCRIPTS = {
  "student": (14, [r"SCAFFOLD - FedAvg: \+0.\d+, p = 0.\d+", r"\\begin{tabular}"]),
  "method_author": (25, [r"\[0.\d+"]),
  "systems_engineer": (14, ["rounds: 20 bytes up: [0-9]+", "same bits: True"]),
  "privacy": (18, [r"epsilon +[0-9.]+  accuracy 0.\d+"]),
  "fine_tuner": (25, ["Shall I .+"]),
}


@pytest.fixture(autouse=True, scope="module")
def fixture_shared_programs(share_programs, one_device):
  """Equal programs are compiled once, for one device."""
  del share_programs, one_device


@pytest.mark.fast
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
  *sites, interval, predicted = capsys.readouterr().out.splitlines()[:6]
  for line, site in zip(sites, ["east", "north", "south", "west"], strict=True):
    name, estimate = line.split(" ", 1)
    mean, half_width = ast.literal_eval(estimate)
    assert name == site and 0.6 < mean < 1 and 0 < half_width < 0.4
  mean, half_width = names["result"].estimate("client_auroc", "local")
  assert interval == str((mean, half_width)) and 0 < half_width < 0.2
  assert predicted.startswith("[0.")
  lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
  assert len(lines) - 1 <= 12  # beside the docstring


@pytest.mark.program
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_what_it_promises(name, tmp_path, monkeypatch, capsys):
  """As its reader runs it, in an empty folder; short enough to be read whole."""
  most, patterns = SCRIPTS[name]
  path = EXAMPLES / f"{name}.py"
  monkeypatch.chdir(tmp_path)
  names = runpy.run_path(str(path), run_name="__main__")
  output = capsys.readouterr().out
  for pattern in patterns:
    assert re.search(pattern, output), output
  code = path.read_text("utf-8").split('"""', 2)[2]
  assert len([line for line in code.splitlines() if line.strip()]) <= most
  if name == "student":
    assert (tmp_path / "curves.png").stat().st_size > 1000
  if name == "privacy":
    epsilons = [run.history["epsilon"][0, -1] for run in names["noises"].results]
    assert epsilons == sorted(epsilons, reverse=True)
  if name == "fine_tuner":
    before, after = (
      names[run].metrics["global"]["perplexity"][0, -1] for run in ("base", "tuned")
    )
    assert after < before
