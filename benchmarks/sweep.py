"""A grid as one sweep and as separate commands, cold.

  python -m benchmarks.sweep
  python -m benchmarks.sweep --rates=32 --seeds=5    (for an accelerator)

FedAvg of the demo's preset (digits, 60 clients, 60 rounds, 3 seeds) with six
client rates, or as many from 0.03 to 4 as ``--rates`` says, in turn:

- commands: ``experiments.run``, each with an empty folder for compiled
  programs, as on so many machines or where every rate is a constant of its
  program;
- one cache: the same, but all others find the programs of the first (rates are
  arguments of a program, so they fit);
- one sweep: ``experiments.sweep``, with an empty folder for compiled programs.

Process start, import, compiling, training, tables and pictures all count. Wall
time is what one waits for; CPU time, of the processes and all their threads, is
what it costs on a machine that others use, too. The accuracies must be equal,
setting by setting; where the settings of a sweep are vectorized (accelerators),
but for rounding.
"""

import argparse
from collections.abc import Callable, Sequence
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from benchmarks import workloads

RATES = ("0.03", "0.1", "0.3", "1", "2", "4")
PRESET = "--flagfile=demo/fedavg.flags"
#: An example or two of the 359 that the accuracy is of.
ROUNDING = 0.006

#: Starts ``experiments.MODULE``: (name of its cache, module, *flags).
Call = Callable[..., None]


class Side(NamedTuple):
  """Time and results of one way to run the grid."""

  wall: float  #: seconds
  cpu: float  #: seconds of all processes
  hashes: list[str]  #: of the final states, a setting each
  accuracies: list[list[float]]  #: of each setting, by seed


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
  """The flags."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument(
    "--repeats",
    type=workloads.whole_number,
    default=1,
    help="measurements of each side",
  )
  parser.add_argument(
    "--rates",
    type=workloads.whole_number,
    default=len(RATES),
    help="number of client rates",
  )
  parser.add_argument("--seeds", type=workloads.whole_number, default=3)
  return parser.parse_args(argv)


def rates_of(count: int) -> tuple[str, ...]:
  """Returns so many client rates: six by hand, else a geometric series."""
  if count == len(RATES):
    return RATES
  low, high = float(RATES[0]), float(RATES[-1])
  return tuple(
    f"{low * (high / low) ** (i / max(count - 1, 1)):.6g}" for i in range(count)
  )


def commands(call: Call, root: pathlib.Path, rates: Sequence[str], *flags: str) -> None:
  """A process for each rate, nothing compiled before."""
  for rate in rates:
    call(
      rate,
      "experiments.run",
      *flags,
      f"--client_lr={rate}",
      f"--out_dir={root / f'client_lr={rate}'}",
    )


def with_one_cache(
  call: Call, root: pathlib.Path, rates: Sequence[str], *flags: str
) -> None:
  """A process for each rate, what the first compiled for the others."""
  commands(lambda rate, *words: call("all", *words), root, rates, *flags)


def one_sweep(
  call: Call, root: pathlib.Path, rates: Sequence[str], *flags: str
) -> None:
  """One process for all."""
  call(
    "all",
    "experiments.sweep",
    *flags,
    f"--sweep=client_lr={','.join(rates)}",
    f"--out_dir={root}",
  )


def measure(side: Callable[..., None], rates: Sequence[str], seeds: int) -> Side:
  """Runs the grid one way, with nothing compiled before."""
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)

    def call(cache: str, module: str, *words: str) -> None:
      env = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled" / cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
      }
      subprocess.run(
        [sys.executable, "-m", module, *words, "--noprogress"],
        env=env,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
      )

    def cpu() -> float:
      used = resource.getrusage(resource.RUSAGE_CHILDREN)
      return used.ru_utime + used.ru_stime

    began, before = time.perf_counter(), cpu()
    side(call, folder / "out", rates, PRESET, f"--num_seeds={seeds}")
    wall, used = time.perf_counter() - began, cpu() - before
    summaries = [
      json.loads(
        (folder / "out" / f"client_lr={rate}" / "summary.json").read_text("utf-8")
      )
      for rate in rates
    ]
  return Side(
    wall,
    used,
    [summary["hashes"]["final_state"] for summary in summaries],
    [summary["final"]["global"]["accuracy"]["values"] for summary in summaries],
  )


def main() -> None:
  """Prints both sides, and how many times faster the sweep is."""
  args = parse()
  rates = rates_of(args.rates)
  print(
    f"{len(rates)} rates x {args.seeds} seeds of FedAvg on digits, 60 "
    f"rounds, cold; load average {os.getloadavg()[0]:.1f} on "
    f"{os.cpu_count()} cores"
  )
  sides = {"commands": commands, "one cache": with_one_cache, "one sweep": one_sweep}
  best: dict[str, Side] = {}
  for _ in range(args.repeats):
    for name, side in sides.items():
      candidate = measure(side, rates, args.seeds)
      print(
        f"{name:15} wall {candidate.wall:6.1f} s, CPU {candidate.cpu:6.1f} s",
        flush=True,
      )
      if name not in best or candidate.wall < best[name].wall:
        best[name] = candidate
  together = best["one sweep"]
  for name in ("commands", "one cache"):
    print(
      f"{name} over one sweep: wall {best[name].wall / together.wall:.2f}, "
      f"CPU {best[name].cpu / together.cpu:.2f}"
    )
  for rate, values in zip(rates, together.accuracies):
    print(
      f"client_lr={rate:8} accuracies "
      + " ".join(f"{100 * value:.2f}" for value in values)
    )
  gap = max(
    abs(mine - reference)
    for side in best.values()
    for ours, theirs in zip(side.accuracies, together.accuracies)
    for mine, reference in zip(ours, theirs)
  )
  if gap > ROUNDING:
    sys.exit(f"the accuracies differ by up to {gap:.4f}")
  same = all(side.hashes == together.hashes for side in best.values())
  print(
    "the accuracies are equal, the final states "
    f"{'too' if same else 'differ in their last bits'}"
    if not gap
    else f"the accuracies differ by up to {gap:.4f}, as rounding may make them"
  )


if __name__ == "__main__":
  main()
