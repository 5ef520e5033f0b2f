"""What launch.sh installs; the environment is one whose Python notes it."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTE = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/../calls"
"""

pytestmark = pytest.mark.skipif(
  shutil.which("bash") is None, reason="launch.sh needs bash"
)


@pytest.fixture(name="launch")
def fixture_launch(tmp_path):
  """Starts a run with FEDJAX_ALG_EXTRA; returns (process, what was called)."""
  python = tmp_path / "bin" / "python"
  python.parent.mkdir()
  python.write_text(NOTE)
  python.chmod(0o755)
  calls = tmp_path / "calls"

  def launch(extra=None, command="run", **environment):
    env = {
      name: value
      for name, value in os.environ.items()
      if not name.startswith("FEDJAX_ALG_")
    } | environment
    env["FEDJAX_ALG_VENV"] = str(tmp_path)
    if extra is not None:
      env["FEDJAX_ALG_EXTRA"] = extra
    calls.write_text("")
    done = subprocess.run(
      ["bash", str(ROOT / "launch.sh"), command, "--seed=3"],
      env=env,
      capture_output=True,
      text=True,
      check=False,
    )
    return done, calls.read_text().splitlines()

  return launch


def pip_targets(calls):
  """What pip was asked for, and whether the run came after it."""
  assert calls[-1].startswith("-m experiments.")
  assert calls[-1].endswith(" --seed=3")
  return [call.rpartition(" -e ")[2] for call in calls if " pip " in call]


def test_extras_are_installed_once_for_each_choice(launch):
  assert pip_targets(launch()[1]) == ["."]
  assert pip_targets(launch()[1]) == []
  assert pip_targets(launch("cuda12")[1]) == [".[cuda12]"]
  assert pip_targets(launch("cuda12")[1]) == []
  assert pip_targets(launch("report, cuda12")[1]) == [".[cuda12,report]"]
  assert pip_targets(launch("cuda12,report,report")[1]) == []
  assert pip_targets(launch("tpu", "prepare")[1]) == [".[prepare,tpu]"]
  assert pip_targets(launch("")[1]) == []
  assert pip_targets(launch(command="publish")[1]) == [".[papers]"]
  assert pip_targets(launch(command="tune")[1]) == []


@pytest.mark.parametrize("extra", ["cuda11", "*", "tpu,cuda12x", "cuda.."])
def test_an_unknown_extra_is_one_line(launch, extra):
  done, calls = launch(extra)
  assert done.returncode == 2
  assert not calls
  (line,) = done.stderr.splitlines()
  assert line.startswith(f"error: FEDJAX_ALG_EXTRA={extra}: unknown extra '")
  assert "cuda12 cuda13 tpu aot" in line


def test_the_newest_versions_are_taken_in_the_place_of_the_pinned(launch):
  """And the other way round: either is installed when it is asked for."""
  for requirements, words in (
    ("newest", "--upgrade --upgrade-strategy eager -e ."),
    ("pinned", "-r requirements.txt -e ."),
  ):
    _, calls = launch(FEDJAX_ALG_REQUIREMENTS=requirements)
    assert calls[0].endswith(words)
  done, calls = launch(FEDJAX_ALG_REQUIREMENTS="latest")
  assert (done.returncode, calls) == (2, [])
  assert done.stderr == (
    "error: FEDJAX_ALG_REQUIREMENTS=latest: must be pinned or newest\n"
  )
