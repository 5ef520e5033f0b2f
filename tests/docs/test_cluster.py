"""The scripts of docs/cluster, with stand-ins for the scheduler's commands."""

import os
import pathlib
import shlex
import signal
import subprocess
import time

import pytest

from experiments import __main__ as experiments_main
from experiments.cli import config

SCRIPTS = pathlib.Path(__file__).parents[2] / "docs" / "cluster"

#: Writes its words to ${LOG}_NAME, one a line.
RECORDS = 'printf "%s\\n" "$@" > "${LOG}_${0##*/}"\n'


def stub(folder, name, then=""):
  path = folder / "bin" / name
  path.parent.mkdir(exist_ok=True)
  path.write_text(f"#!/usr/bin/env bash\n{RECORDS}{then}\n", "utf-8")
  path.chmod(0o755)


def environment(folder, **variables):
  return {
    "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
    "HOME": str(folder),
    "LOG": str(folder / "log"),
    "OUT": str(folder / "out"),
    **variables,
  }


def words(folder, name):
  return (folder / f"log_{name}").read_text("utf-8").splitlines()


@pytest.mark.fast
def test_the_scripts_are_bash_and_on_the_page():
  page = SCRIPTS.with_suffix(".md").read_text("utf-8")
  names = {path.name for path in SCRIPTS.iterdir()}
  assert names == {"sweep_array.sh", "preemptible_gpu.sh", "tpu_pod.sh"}
  for name in names:
    subprocess.run(["bash", "-n", SCRIPTS / name], check=True)
    assert f"(cluster/{name})" in page and os.access(SCRIPTS / name, os.X_OK)


@pytest.mark.usefixtures("no_pictures")
def test_an_array_plays_a_sweep_and_a_job_makes_its_tables(tmp_path, capsys):
  stub(tmp_path, "fedjax-alg")
  small = [
    "--rounds=1",
    "--num_seeds=1",
    "--num_clients=12",
    "--validation_clients=2",
    "--eval_protocols=validation",
  ]
  done = []
  for task in ("1", "2", None):
    task_variables = (
      {}
      if task is None
      else {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "2"}
    )
    subprocess.run(
      [SCRIPTS / "sweep_array.sh", *small],
      check=True,
      env=environment(tmp_path, SLURM_JOB_ID="7", **task_variables),
    )
    assert not (tmp_path / "out" / "sweep.md").exists()
    assert experiments_main.main(words(tmp_path, "fedjax-alg")) == 0
    done.append(len(list(tmp_path.glob("out/*/summary.json"))))
  assert done == [4, 8, 8]
  assert (tmp_path / "out" / "sweep.md").read_text("utf-8").count("\n| ") == 10
  assert "4 runs are left for other parts" in capsys.readouterr().out


@pytest.mark.parametrize("status, requeued", [(75, True), (1, False)])
def test_a_preempted_job_is_queued_again(tmp_path, status, requeued):
  """Once the run has been saved, which takes a while."""
  stub(
    tmp_path,
    "fedjax-alg",
    f"""
trap 'sleep 0.2; touch "$LOG"_saved; exit {status}' USR1
touch "$LOG"_plays
while :; do sleep 0.05; done""",
  )
  stub(tmp_path, "scontrol")
  with subprocess.Popen(
    [SCRIPTS / "preemptible_gpu.sh"], env=environment(tmp_path, SLURM_JOB_ID="7")
  ) as process:
    deadline = time.monotonic() + 60
    while not (tmp_path / "log_plays").exists():
      assert time.monotonic() < deadline and process.poll() is None
      time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
  assert process.returncode == status and (tmp_path / "log_saved").exists()
  assert (tmp_path / "log_scontrol").exists() == requeued
  if requeued:
    assert words(tmp_path, "scontrol") == ["requeue", "7"]
  command, *flags = words(tmp_path, "fedjax-alg")
  parsed = config.parse_config(flags)
  assert command == "run" and not parsed.output.overwrite  # it goes on
  assert parsed.output.grace_s + 30 < 120  # of --signal


def test_a_slice_plays_until_it_is_finished(tmp_path):
  stub(
    tmp_path,
    "gcloud",
    """
[ -e "$LOG"_again ] && exit 0
touch "$LOG"_again
exit 75""",
  )
  subprocess.run(
    [SCRIPTS / "tpu_pod.sh"],
    check=True,
    env=environment(tmp_path, TPU="slice", ZONE="here"),
  )
  assert (tmp_path / "log_again").exists()
  arguments = dict(
    word.split("=", 1)
    for word in "\n".join(words(tmp_path, "gcloud")).split("\n--")
    if "=" in word
  )
  assert arguments["worker"] == "all"
  cache, program, command, *flags = shlex.split(arguments["command"])
  assert cache == f"JAX_COMPILATION_CACHE_DIR={tmp_path}/jax_cache"
  assert (program, command) == ("fedjax-alg", "run")
  assert "--distributed" in flags
  flags.remove("--distributed")
  assert config.parse_config(flags).out_dir == str(tmp_path / "out")
