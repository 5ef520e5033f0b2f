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
    shutil.which("bash") is None, reason="launch.sh needs bash")


@pytest.fixture(name="launch")
def fixture_launch(tmp_path):
  """Starts a run with FEDJAX_ALG_EXTRA; returns (process, what was called)."""
  python = tmp_path / "bin" / "python"
  python.parent.mkdir()
  python.write_text(NOTE)
  python.chmod(0o755)
  calls = tmp_path / "calls"

  def launch(extra=None, command="run"):
    env = {name: value for name, value in os.environ.items()
           if name != "FEDJAX_ALG_EXTRA"}
    env["FEDJAX_ALG_VENV"] = str(tmp_path)
    if extra is not None:
      env["FEDJAX_ALG_EXTRA"] = extra
    calls.write_text("")
    done = subprocess.run(
        ["bash", str(ROOT / "launch.sh"), command, "--seed=3"], env=env,
        capture_output=True, text=True, check=False)
    return done, calls.read_text().splitlines()

  return launch


def installed(calls):
  """What pip was asked for, and whether the run came after it."""
  assert calls[-1].startswith("-m experiments.")
  assert calls[-1].endswith(" --seed=3")
  return [call.rpartition(" -e ")[2] for call in calls if " pip " in call]


def test_extras_are_installed_once_for_each_choice(launch):
  assert installed(launch()[1]) == ["."]
  assert installed(launch()[1]) == []
  assert installed(launch("cuda12")[1]) == [".[cuda12]"]
  assert installed(launch("cuda12")[1]) == []
  assert installed(launch("report, cuda12")[1]) == [".[cuda12,report]"]
  assert installed(launch("cuda12,report,report")[1]) == []
  assert installed(launch("tpu", "prepare")[1]) == [".[prepare,tpu]"]
  assert installed(launch("")[1]) == []


@pytest.mark.parametrize("extra", ["cuda11", "*", "tpu,cuda12x", "cuda.."])
def test_an_unknown_extra_is_one_line(launch, extra):
  done, calls = launch(extra)
  assert done.returncode == 2
  assert not calls
  (line,) = done.stderr.splitlines()
  assert line.startswith(f"error: FEDJAX_ALG_EXTRA={extra}: unknown extra '")
  assert "cuda12 cuda13 tpu aot" in line
