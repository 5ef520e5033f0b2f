"""Measures rounds with rows on the device, on the host and on disk, in turn.

  python -m benchmarks.large --folder=/tmp/large --clients=2000 --rows=100

The first run writes clients with random images to the folder. The benchmark then
prints the CPU milliseconds of a round in each place, which other jobs on the machine
change less than wall time; the time that reading a window takes apart; and the memory
after each place. The models after the rounds are compared bit by bit.

  python -m benchmarks.large --folder=/tmp/large --peers

reads the same clients in FedJAX's SQLite and in the HDF5 of pfl-research's benchmarks,
beside our files. All sides read a cohort before any reads the next one, each in a
process of its own, and what they read is compared. The files are dropped from the
system's cache before each cohort with --cold. It prints clients and MB a second, CPU
seconds, and the peak memory of each process.
"""

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np

from benchmarks import large_sides, peers, workloads
import fedjax_alg as fa
from fedjax_alg.runs import plan
from fedjax_alg.runs.programs import Programs

_PLACES = ("device", "host", "disk")
_CLASSES = 62
#: Side -> its title, and the library that it needs.
_SIDES = {
  "fedjax": ("FedJAX, SQLite", peers.PEERS["fedjax"]),
  "pfl": (
    "pfl-research, HDF5",
    peers.Peer("HDF5", ("h5py==3.16.0", "numpy==2.4.6")),
  ),
  "hdf5": (
    "HDF5 that stays open",
    peers.Peer("HDF5", ("h5py==3.16.0", "numpy==2.4.6")),
  ),
}


def parse() -> argparse.Namespace:
  """Parses the flags."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--folder", type=pathlib.Path, required=True)
  for name, default, about in (
    ("clients", 2000, "clients"),
    ("rows", 100, "mean number of examples of a client"),
    ("side", 28, "height and width of an image"),
    ("cohort", 100, "participants of a round"),
    ("rounds", 10, "rounds in a turn"),
    ("turns", 5, "turns of each place"),
  ):
    parser.add_argument(
      f"--{name}", type=workloads.whole_number, default=default, help=about
    )
  parser.add_argument("--peers", action="store_true", help="read beside other formats")
  parser.add_argument("--cold", action="store_true", help="without the system's cache")
  parser.add_argument("--envs", default="~/.cache/fedjax_alg/peers")
  parser.add_argument("--model", default="cnn")
  parser.add_argument("--places", nargs="+", default=_PLACES, choices=_PLACES)
  return parser.parse_args()


def make_clients(args: argparse.Namespace) -> Any:
  """Yields clients with random images."""
  rng = np.random.default_rng(0)
  for client in range(args.clients):
    size = int(rng.integers(max(2, args.rows // 5), 2 * args.rows))
    shape = size, args.side, args.side, 1
    images = rng.integers(0, 256, shape, dtype=np.uint8)
    yield client, images, rng.integers(0, _CLASSES, size)


def memory_mb() -> dict[str, int]:
  """The memory of this process in MB, now and at most."""
  lines = pathlib.Path("/proc/self/status").read_text("utf-8").splitlines()
  sizes = {line.split(":")[0]: line.split()[1] for line in lines if "kB" in line}
  return {name: int(sizes[name]) // 1024 for name in ("VmRSS", "VmHWM")}


class Run:
  """A run that goes on in turns."""

  def __init__(self, args: argparse.Namespace, place: str):
    """Compiles the run."""
    fed = fa.federate(fa.open_clients(args.folder), data_on=place)
    self._programs = Programs(
      plan.from_keywords(
        "fedavg",
        fed,
        model=args.model,
        rounds=1 + args.rounds * args.turns,
        cohort_size=args.cohort,
        evaluate="global",
        batch_size=20,
        client_lr=0.03,
      ).prepare()
    )
    self._states, self._done = self._programs.initial(), 0

  def go_on(self, rounds: int) -> float:
    """Runs rounds; returns the CPU milliseconds of one."""
    began, last = time.process_time(), self._done + rounds
    while self._done < last:
      count = self._programs.rounds_of_call(self._done, min(5, last - self._done))
      self._states, _ = jax.block_until_ready(
        self._programs.run_rounds(self._states, self._done, count)
      )
      self._done += count
    return 1e3 * (time.process_time() - began) / rounds

  def reading(self) -> str:
    """The time that reading a window takes, in words; "" if there are none."""
    data: Any = self._programs.prepared.device_data
    if self._programs.prepared.plan.get("window_rows") is None:
      return ""
    began = time.process_time()
    window = data._read(0)
    milliseconds = 1e3 * (time.process_time() - began) / (window.last - window.first)
    return f", reading {milliseconds:.1f} of a round, {window.last} rounds a window"

  def digest(self) -> str:
    """A hash of the states."""
    leaves = jax.device_get(jax.tree.leaves(self._states))
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()[:12]


class Side:
  """A process that reads cohorts."""

  def __init__(self, name: str, folder: pathlib.Path, python: str):
    """Starts the process, and waits until it can read."""
    command = [python, large_sides.__file__, name, str(folder)]
    env = os.environ | ({} if name == "ours" else {"PYTHONPATH": ""})
    self.answers: list[dict[str, Any]] = []
    self._path = large_sides.file_of(name, folder)
    if name != "ours":
      subprocess.run([*command, "write"], check=True, env=env)
    self._process = subprocess.Popen(
      command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    self._answer()

  def _answer(self) -> dict[str, Any]:
    assert self._process.stdout is not None
    answer: dict[str, Any] = json.loads(self._process.stdout.readline())
    return answer

  def read(self, cohort: list[int], is_cold: bool) -> None:
    """Reads a cohort; the answer is the last of ``answers``."""
    if is_cold:
      file = os.open(self._path, os.O_RDONLY)
      os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
      os.close(file)
    assert self._process.stdin is not None
    self._process.stdin.write(json.dumps(cohort) + "\n")
    self._process.stdin.flush()
    self.answers.append(self._answer())

  def close(self) -> None:
    """Ends the process."""
    self._process.communicate()


def compare(args: argparse.Namespace) -> None:
  """Reads cohorts beside the peers, and prints a line for each side."""
  sides = {"ours": Side("ours", args.folder, sys.executable)}
  for name, (title, peer) in _SIDES.items():
    folder = "hdf5" if peer.title == "HDF5" else name
    python, why = peers.environment(peer, pathlib.Path(args.envs).expanduser() / folder)
    if why:
      print(f"{title}: {why}")
    else:
      sides[name] = Side(name, args.folder, python)
  total = len(json.loads((args.folder / "clients.json").read_text())["train"])
  rng = np.random.default_rng(0)
  for turn in range(1 + args.rounds * args.turns):
    cohort = rng.choice(total, min(args.cohort, total), replace=False).tolist()
    order = list(sides.values())[:: 1 if turn % 2 else -1]
    for side in order:
      side.read(cohort, args.cold)
    if len({side.answers[-1]["crc"] for side in order}) > 1:
      raise SystemExit("large: the sides have read different rows")
  ours = sides["ours"].answers[1:]
  for name, side in sides.items():
    side.close()
    answers = side.answers[1:]
    seconds = statistics.median(answer["seconds"] for answer in answers)
    cpu = statistics.median(answer["cpu"] for answer in answers)
    megabytes = statistics.mean(answer["bytes"] for answer in answers) / 1e6
    ratio = statistics.median(
      theirs["seconds"] / mine["seconds"] for theirs, mine in zip(answers, ours)
    )
    print(
      f"{_SIDES[name][0] if name in _SIDES else 'fedjax_alg':22} "
      f"{args.cohort / seconds:9,.0f} clients/s {megabytes / seconds:8,.0f} MB/s "
      f"{1e3 * cpu:7.1f} CPU ms a cohort, ratio of seconds {ratio:6.2f}, "
      f"peak {answers[-1]['peak'] / 1e6:6,.0f} MB"
    )


def main() -> None:
  """Measures, and prints a line for each place or side."""
  args = parse()
  if not (args.folder / "clients.json").exists():
    fa.write_clients(args.folder, make_clients(args))
  if args.peers:
    compare(args)
    return
  fa.start()
  print("memory in MB before", memory_mb())
  runs: dict[str, Run] = {}
  for place in args.places:
    runs[place] = Run(args, place)
    runs[place].go_on(1)
    print(f"memory in MB with {place}", memory_mb(), flush=True)
  times: dict[str, list[float]] = {place: [] for place in runs}
  for _ in range(args.turns):
    for place, run in runs.items():
      times[place].append(run.go_on(args.rounds))
  for place, run in runs.items():
    print(
      f"{place:7} {np.median(times[place]):8.1f} CPU ms a round "
      f"(least {min(times[place]):.1f}){run.reading()}, model {run.digest()}"
    )


if __name__ == "__main__":
  main()
