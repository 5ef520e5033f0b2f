"""Start-up, rounds, evaluation, memory and files with very many clients.

  python -m benchmarks.many_clients --clients=10000,100000,1000000

Every client has 8 training and 2 test examples of 20 features in 10 classes,
which lie together in the file. A case is a process of its own that runs the
command line's run from an npz:

- start-up: from the start of the process to the first round (import, reading,
  dealing, placing, compiling, the files that are written before the rounds);
- ms a round for each of --cohorts, the least of several stretches of rounds;
- evaluation of all clients (global, local and preferred), the least of two;
- peak: memory of the process, the data's own copy in the npz included;
- files: all that the run's folder holds after its last round.

CPU seconds are those of the process; on a machine that others use they say
more than the wall time.
"""

import argparse
from collections.abc import Sequence
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

from benchmarks import timing, workloads
from experiments.cli import config as config_lib
from fedjax_alg.runs import play, store
from fedjax_alg.runs.programs import Programs

TRAIN, TEST, FEATURES = 8, 2, 20
#: Stretches of rounds that are timed; the first of them warms up.
STRETCHES = 4


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
  """The flags."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument(
    "--clients",
    default="10000,100000",
    type=workloads.wholes,
    help="numbers of clients, separated by commas",
  )
  parser.add_argument(
    "--cohorts",
    type=workloads.wholes,
    default="100,1000",
    help="cohort sizes, separated by commas",
  )
  parser.add_argument(
    "--algorithms", default="fedavg,scaffold", help="separated by commas"
  )
  parser.add_argument(
    "--rounds",
    type=workloads.whole_number,
    default=20,
    help="rounds of one measurement",
  )
  parser.add_argument(
    "--devices",
    type=workloads.whole_number,
    default=1,
    help="CPU cores that train clients in parallel",
  )
  parser.add_argument("--case", help=argparse.SUPPRESS)  # of the child process
  return parser.parse_args(argv)


def measure(
  algorithm: str, data: str, folder: str, began: float, args: argparse.Namespace
) -> dict[str, float]:
  """Runs one case in this process and returns its figures."""

  def make_config(cohort: int) -> config_lib.Config:
    return config_lib.parse_config(
      [
        f"--algorithm={algorithm}",
        f"--dataset=npz:{data}",
        "--partition=natural",
        f"--cohort_size={cohort}",
        f"--rounds={STRETCHES * args.rounds}",
        f"--eval_every={args.rounds}",
        f"--host_devices={args.devices}",
        f"--out_dir={folder}",
        "--noprogress",
      ]
    )

  figures = {}
  config = make_config(args.cohorts[0])
  where = pathlib.Path(folder)
  prepared = config.prepare()
  programs = Programs(prepared)
  (records,) = play.new_records(programs, [where])
  run = store.HeldRun(config, where, begun=False)
  writer = store.FolderWriter(run, programs, records, 0)
  writer.start(0)
  figures["start_s"], figures["start_cpu_s"] = (
    time.time() - began,
    time.process_time(),
  )
  seconds = []
  for step in play.run_steps(programs, [records]):
    seconds.append(step.seconds / step.count)
    writer.save(step.states, step.round)
  figures[f"round_{args.cohorts[0]}"] = 1e3 * min(seconds[1:])
  evaluations = []
  for _ in range(2):
    before = time.perf_counter()
    programs.evaluate(step.states)
    evaluations.append(time.perf_counter() - before)
  figures["evaluation_s"] = min(evaluations)
  before = time.perf_counter()
  writer.finish(step)
  figures["finish_s"] = time.perf_counter() - before
  figures["files_mb"] = (
    sum(file.stat().st_size for file in where.rglob("*") if file.is_file()) / 1e6
  )
  figures["peak_mb"] = timing.peak_megabytes()
  for cohort in args.cohorts[1:]:
    larger = Programs(make_config(cohort).prepare())
    states, seconds = larger.initial(), []
    for repeat in range(STRETCHES):
      before = time.perf_counter()
      states, log = larger.run_rounds(states, repeat * args.rounds, args.rounds)
      np.asarray(log.aux.cost.down)
      seconds.append((time.perf_counter() - before) / args.rounds)
    figures[f"round_{cohort}"] = 1e3 * min(seconds[1:])
  figures["cpu_s"] = time.process_time()
  return figures


def case(algorithm: str, clients: int, args: argparse.Namespace) -> dict[str, float]:
  """Runs one case in a process of its own."""
  with tempfile.TemporaryDirectory() as name:
    data = f"{name}/examples.npz"
    workloads.write_npz(
      data, FEATURES, 1.0, {"train": TRAIN * clients, "test": TEST * clients}, clients
    )
    words = json.dumps([algorithm, data, f"{name}/run", time.time()])
    done = subprocess.run(
      [
        sys.executable,
        "-m",
        "benchmarks.many_clients",
        f"--case={words}",
        f"--cohorts={','.join(map(str, args.cohorts))}",
        f"--rounds={args.rounds}",
        f"--devices={args.devices}",
      ],
      stdout=subprocess.PIPE,
      check=True,
      text=True,
    )
  result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
  return result


def main() -> None:
  """Prints the table."""
  args = parse()
  if args.case:
    algorithm, data, folder, began = json.loads(args.case)
    print(json.dumps(measure(algorithm, data, folder, began, args)))
    return
  print(
    f"{TRAIN} + {TEST} examples of {FEATURES} features a client, "
    f"{args.devices} device(s); {os.getloadavg()[0]:.1f} processes "
    f"run on {os.cpu_count()} cores"
  )
  rounds = "".join(f"{f'ms, S={cohort}':>12}" for cohort in args.cohorts)
  print(
    f"{'algorithm':10}{'clients':>9}{'start-up s':>12}{'(CPU s)':>9}"
    f"{rounds}{'evaluation s':>14}{'finish s':>10}{'peak MB':>9}"
    f"{'files MB':>10}{'CPU s':>8}"
  )
  for algorithm in args.algorithms.split(","):
    for clients in args.clients:
      of = case(algorithm, clients, args)
      rounds = "".join(f"{of[f'round_{cohort}']:12.2f}" for cohort in args.cohorts)
      print(
        f"{algorithm:10}{clients:9d}{of['start_s']:12.1f}"
        f"{of['start_cpu_s']:9.1f}{rounds}{of['evaluation_s']:14.2f}"
        f"{of['finish_s']:10.1f}{of['peak_mb']:9.0f}{of['files_mb']:10.1f}"
        f"{of['cpu_s']:8.0f}",
        flush=True,
      )


if __name__ == "__main__":
  main()
