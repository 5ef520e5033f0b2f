"""A run in one process and in several: time, memory and the same numbers.

  python -m benchmarks.distributed
  python -m benchmarks.distributed --megabytes=16 --model=mlp:1024,1024 \
      --algorithms=fedavg,scaffold,ga_fsvrg,fedgroup,clsfsvrg

Both cases have the same number of CPU cores: one process with as many devices,
and as many processes with one device each, joined over the loopback interface.
They are run in turn, --repeats times. The data are an npz of 784 features
in 10 classes. Of each case:

- ms a round, the least of several stretches in all repeats, and the CPU seconds
  of a round, all processes together;
- MB of the largest process: its training rows, its states (models, and what
  its clients keep), all that it holds while the rounds are run (with about
  600 of Python, JAX and the compiler), the peak;
- the largest difference of the final states from those of the first case,
  relative to the largest entry of a leaf.

The peak has the whole file: every process reads it, and then keeps its rows.
"""

import argparse
from collections.abc import Sequence
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np

from benchmarks import timing, workloads
import fedjax_alg as fa
from fedjax_alg import split
from fedjax_alg.engine import processes, sharding
from fedjax_alg.runs import play
from fedjax_alg.runs.plan import from_keywords
from fedjax_alg.runs.programs import Programs

FEATURES, TEST = 784, 1000
#: Stretches of rounds that are timed; the first of them warms up.
STRETCHES = 4
#: Options of the algorithms beside the flags.
EXTRA_OPTIONS: dict[str, dict[str, Any]] = {
  "ga_fsvrg": dict(num_models=2, threshold=1),
  "fedgroup": dict(num_groups=2, centers="kmeans:4"),
  "fedacnnl": dict(rounds=2),
}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
  """The flags."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument(
    "--processes",
    type=workloads.whole_number,
    default=2,
    help="processes of the second case, and cores of both",
  )
  parser.add_argument("--algorithms", default="fedavg", help="separated by commas")
  parser.add_argument(
    "--megabytes",
    type=workloads.whole_number,
    default=400,
    help="size of the training examples",
  )
  parser.add_argument("--clients", type=workloads.whole_number, default=400)
  parser.add_argument("--cohort", type=workloads.whole_number, default=100)
  parser.add_argument(
    "--model",
    default="",
    help="the model; default mlp:64 for fedacnnl, else softmax",
  )
  parser.add_argument("--local_steps", type=int, default=2)
  parser.add_argument(
    "--rounds", type=workloads.whole_number, default=5, help="rounds of one stretch"
  )
  parser.add_argument("--repeats", type=workloads.whole_number, default=2)
  parser.add_argument("--case", help=argparse.SUPPRESS)  # of a child process
  return parser.parse_args(argv)


def resident_megabytes() -> float:
  """The memory of this process now, in 10^6 bytes."""
  pages = int(pathlib.Path("/proc/self/statm").read_text("utf-8").split()[1])
  return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(
  args: argparse.Namespace,
  algorithm: str,
  data: str,
  out: str,
  port: int,
  number: int,
  process: int,
) -> dict[str, float]:
  """Makes a run as one of ``number`` processes; returns its figures."""
  if number > 1:
    fa.distributed(f"127.0.0.1:{port}", number, process, host_devices=1)
  else:
    fa.start(args.processes)
  federation = fa.federate(
    f"npz:{data}",
    partition="iid",
    num_clients=args.clients,
    validation_clients=args.clients // 20,
  )
  extra = EXTRA_OPTIONS.get(algorithm, {})
  model = args.model or ("mlp:64" if algorithm == "fedacnnl" else "softmax")
  rounds = extra.get("rounds", STRETCHES * args.rounds)
  free = (
    {}
    if "rounds" in extra
    else dict(cohort_size=args.cohort, local_steps=args.local_steps)
  )
  plan = from_keywords(
    algorithm,
    federation,
    model=model,
    evaluate="global",
    eval_every=min(args.rounds, rounds),
    **free | extra | {"rounds": rounds},
  )
  programs = Programs(plan.prepare())
  seconds, cpu, resident = [], [], 0.0
  before = time.process_time()
  for step in play.run_steps(programs, play.new_records(programs, [None])):
    seconds.append(step.seconds / step.count)
    cpu.append((time.process_time() - before) / step.count)
    before, resident = time.process_time(), max(resident, resident_megabytes())
  leaves = jax.tree.leaves(sharding.to_host(step.states))
  if processes.lead():
    np.savez(out, *leaves)
  later = slice(1, None) if len(seconds) > 1 else slice(None)
  return {
    "round_ms": 1e3 * min(seconds[later]),
    "cpu_s": min(cpu[later]),
    "rows_mb": federation.data.train.x.nbytes / 1e6,
    "state_mb": split.nbytes(step.states) / 1e6,
    "held_mb": resident,
    "peak_mb": timing.peak_megabytes(),
  }


def free_port() -> int:
  """A free port of the loopback interface."""
  with socket.socket() as sock:
    sock.bind(("127.0.0.1", 0))
    result: int = sock.getsockname()[1]
    return result


def case(
  algorithm: str, data: str, out: str, number: int, argv: Sequence[str]
) -> list[dict[str, float]]:
  """Makes a run in ``number`` processes; returns the figures of each."""
  port = free_port()
  children = [
    subprocess.Popen(
      [
        sys.executable,
        "-m",
        "benchmarks.distributed",
        *argv,
        "--case=" + json.dumps([algorithm, data, out, port, number, process]),
      ],
      stdout=subprocess.PIPE,
      text=True,
    )
    for process in range(number)
  ]
  outputs = [child.communicate()[0] for child in children]
  if any(child.returncode for child in children):
    sys.exit(f"{algorithm} in {number} process(es) failed")
  return [json.loads(text.splitlines()[-1]) for text in outputs]


def difference(path: str, other_path: str) -> float:
  """The largest relative difference of the leaves of two files."""
  worst = 0.0
  with np.load(path) as a, np.load(other_path) as b:
    for name in a.files:
      if a[name].dtype.kind == "f":
        scale = np.abs(a[name]).max(initial=1e-30)
        worst = max(worst, float(np.abs(a[name] - b[name]).max(initial=0) / scale))
      else:
        worst = max(worst, float((a[name] != b[name]).any()))
  return worst


def main() -> None:
  """Prints the table."""
  args, argv = parse(), sys.argv[1:]
  if args.case:
    print(json.dumps(measure(args, *json.loads(args.case))))
    return
  print(
    f"{args.megabytes} MB of examples, {args.clients} clients, "
    f"{args.cohort} a round; {os.getloadavg()[0]:.1f} processes run on "
    f"{os.cpu_count()} cores"
  )
  print(
    f"{'algorithm':12}{'processes':>10}{'ms a round':>12}{'CPU s':>8}"
    f"{'rows MB':>9}{'state MB':>10}{'held MB':>9}{'peak MB':>9}"
    f"{'difference':>12}"
  )
  with tempfile.TemporaryDirectory() as folder:
    data = f"{folder}/examples.npz"
    workloads.write_npz(
      data,
      FEATURES,
      0.1,
      {"train": args.megabytes * 10**6 // (4 * FEATURES), "test": TEST},
    )
    for algorithm in args.algorithms.split(","):
      runs_of: dict[int, list[list[dict[str, float]]]] = {}
      for _ in range(args.repeats):
        for number in (1, args.processes):
          runs_of.setdefault(number, []).append(
            case(algorithm, data, f"{folder}/{number}.npz", number, argv)
          )
      for number, runs in runs_of.items():
        far = difference(f"{folder}/1.npz", f"{folder}/{number}.npz")
        cpu = min(sum(of["cpu_s"] for of in run) for run in runs)
        round_ms, rows, state, resident, peak = (
          least(max(of[name] for of in run) for run in runs)
          for name, least in (
            ("round_ms", min),
            ("rows_mb", max),
            ("state_mb", max),
            ("held_mb", max),
            ("peak_mb", max),
          )
        )
        print(
          f"{algorithm:12}{number:10}{round_ms:12.1f}{cpu:8.3f}{rows:9.0f}"
          f"{state:10.1f}{resident:9.0f}{peak:9.0f}{far:12.1e}",
          flush=True,
        )


if __name__ == "__main__":
  main()
