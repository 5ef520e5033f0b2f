"""A run of several processes, as a command."""

import json
import os
import signal
import time

import jax
import pytest

from experiments import run
from fedjax_alg.records import tables
from tests.engine.test_processes import free_port, start

FLAGS = [
  "--algorithm=scaffold",
  "--dataset=digits",
  "--partition=classes",
  "--num_clients=12",
  "--cohort_size=4",
  "--eval_every=1",
  "--model=tests.normed:NET",
  "--roles=personal:Dense_1",
  "--eval_protocols=local",
  "--local_steps=2",
  "--noprogress",
]


ELSEWHERE = "--allow_other_devices"


def play(*flags):
  jax.devices()  # those of the tests, not as many as --host_devices says
  return run.main([*FLAGS, *flags])


#: A process of two: the command in a folder that is not empty, where it says the
#: status with which it would end; and then with its words alone.
PROCESS = """
import sys
from experiments import run
from fedjax_alg.engine import processes
occupied, *words = sys.argv[1:]
end, processes.end = processes.end, print
run.main([*words, f"--out_dir={occupied}"])
sys.stdout.flush()
processes.end = end
sys.exit(run.main(words))
"""


def two(occupied, *flags):
  port = free_port()
  return [
    start(
      "-c",
      PROCESS,
      str(occupied),
      *FLAGS,
      *flags,
      "--host_devices=1",
      f"--coordinator=127.0.0.1:{port}",
      "--num_processes=2",
      f"--process_id={i}",
    )
    for i in range(2)
  ]


def newest(folder):
  paths = sorted(folder.glob("checkpoint/*.ckpt"))
  return int(paths[-1].stem.removeprefix("round_")) if paths else 0


def test_one_process_two_and_one_again(tmp_path):
  """A run goes on with two; one is killed, the other ends with 75.

  Clients keep control variates and a layer, the server running statistics. What
  process 0 sees in another folder would have ended both before, with one line.
  """
  folder, reference = tmp_path / "run", tmp_path / "whole"
  occupied = tmp_path / "occupied"
  occupied.mkdir()
  (occupied / "mine.txt").write_text("no run")
  assert play("--rounds=2", f"--out_dir={folder}") == 0
  identity = json.loads((folder / "config.json").read_text())["identity"]
  both = two(occupied, "--rounds=100000", ELSEWHERE, f"--out_dir={folder}")
  end = time.monotonic() + 300
  while newest(folder) <= 4 and time.monotonic() < end and (both[0].poll() is None):
    time.sleep(0.1)
  began = time.monotonic()
  os.kill(both[1].pid, signal.SIGKILL)
  (status, messages), (other_status, other_messages) = (
    process.communicate(timeout=100) for process in both
  )
  assert both[0].returncode == 75
  assert time.monotonic() - began < 60
  refusal, *end = messages.splitlines()
  assert (status.split()[0], other_status.split()[0]) == ("2", "2")
  assert refusal.startswith(f"error: --out_dir={occupied}: "), messages
  assert other_messages.splitlines() == [refusal]
  went_on, message = end
  assert went_on == f"{folder}: goes on after round 2"
  assert (
    message.startswith("error: ")
    and "lost" in message
    and "to go on, start all" in message
  )
  for process in range(2):  # each has saved what its own clients keep
    assert list(folder.glob(f"checkpoint/*.rows_{process}_of_2"))
  facts = json.loads((folder / "config.json").read_text())
  assert facts["identity"] == identity and facts["plan"]["processes"] == 2
  assert "process" not in (folder / "flags.txt").read_text()
  rounds = newest(folder) + 1
  assert play(f"--rounds={rounds}", ELSEWHERE, f"--out_dir={folder}") == 0
  assert play(f"--rounds={rounds}", f"--out_dir={reference}") == 0
  rows = [
    [
      *tables.read_rows(place / "metrics.csv"),
      *tables.read_rows(place / "rounds.csv", None),
    ]
    for place in (folder, reference)
  ]
  assert len(rows[0]) == len(rows[1]) and rows[0][-1]["round"] == rounds
  for some, straight in zip(*rows):
    for name, value in straight.items():
      assert some[name] == (
        value if isinstance(value, str) else pytest.approx(value, rel=1e-4, nan_ok=True)
      ), name
