"""Measures rounds with rows on the device, on the host and on disk, in turn.

  python -m benchmarks.large --folder=/tmp/large --clients=2000 --rows=100

The first run writes clients with random images to the folder. The benchmark then
prints the CPU milliseconds of a round in each place, which other jobs on the machine
change less than wall time; the time that reading a window takes apart; and the memory
after each place. The models after the rounds are compared bit by bit.
"""

import argparse
import hashlib
import pathlib
import time
from typing import Any

import jax
import numpy as np

from benchmarks import workloads
import fedjax_alg as fa
from fedjax_alg.runs import plan
from fedjax_alg.runs.programs import Programs

_PLACES = ("device", "host", "disk")
_CLASSES = 62


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


def main() -> None:
  """Measures, and prints a line for each place."""
  args = parse()
  if not (args.folder / "clients.json").exists():
    fa.write_clients(args.folder, make_clients(args))
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
