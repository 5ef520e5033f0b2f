"""Time of a first and of a second run, by phase.

  python -m benchmarks.start [--repeats=3]
  python -m benchmarks.start --roots=../older,.

A first run has an empty folder of compiled programs, a second one those of the
first. Each is a process of its own, whose main thread is looked at every few
milliseconds: what it is doing counts as import, data, trace, lower, compile (or
load, where the program was compiled before), pictures, tables (and files), or
rounds, with all that is neither. Waiting for a compiler in another thread is
compile. CPU seconds are those of all threads. With --roots checkouts take their
turns, each with its own code and this interpreter.
"""

import argparse
from collections.abc import Sequence
import json
import os
import pathlib
import resource
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from benchmarks import timing

COMMANDS = {
  "demo": ["experiments.demo"],
  "run": [
    "experiments.run",
    "--algorithm=fedavg",
    "--dataset=digits",
    "--partition=iid",
    "--num_clients=20",
    "--cohort_size=5",
    "--rounds=10",
    "--progress=false",
  ],
}
PHASES = ("import", "data", "trace", "lower", "compile", "rounds", "tables", "pictures")
#: Part of a file's name -> the phase; the innermost frame that has one says it.
PLACES = {
  "jax/_src/compiler.py": "compile",
  "compilation_cache": "compile",
  "concurrent/futures": "compile",
  "interpreters/mlir.py": "lower",
  "interpreters/partial_eval.py": "trace",
  "matplotlib": "pictures",
  "fedjax_alg/data/": "data",
  "fedjax_alg/records/": "tables",
  "experiments/cli/writer": "tables",
  "experiments/reports/markdown": "tables",
  "experiments/reports/page": "tables",
  "fedjax_alg/": "rounds",
}
PERIOD = 0.003  # seconds


def place(name: str) -> str:
  """A file's name within its package's folder, or within the checkout.

  The folders above, of an environment or a clone, may be called anything.
  """
  return name.rpartition("site-packages/")[2].removeprefix(os.getcwd() + "/")


def phase(frame: Any) -> str:
  """Names the phase that the main thread is in."""
  phase_name = ""
  while frame is not None:
    name = frame.f_code.co_filename
    if name.startswith("<frozen importlib"):
      return "import"
    phase_name = phase_name or next(
      (where for part, where in PLACES.items() if part in place(name)), ""
    )
    frame = frame.f_back
  return phase_name or "rounds"


def side(out: str, began: float, module: str, words: Sequence[str]) -> None:
  """Runs a command in this process, and writes the seconds of its phases."""
  seconds = dict.fromkeys(PHASES, 0.0)
  seconds["import"] = time.time() - began  # the interpreter's start
  main, done = threading.get_ident(), threading.Event()

  def watch():
    last = time.perf_counter()
    while not done.wait(PERIOD):
      where = phase(sys._current_frames()[main])
      now = time.perf_counter()
      seconds[where] += now - last
      last = now

  watcher = threading.Thread(target=watch, daemon=True)
  watcher.start()
  sys.argv = [module, *words]
  try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
  except SystemExit as ended:
    assert not ended.code, ended
  finally:
    done.set()
    watcher.join()
  used = resource.getrusage(resource.RUSAGE_SELF)
  pathlib.Path(out).write_text(
    json.dumps(
      seconds | {"all": time.time() - began, "CPU": used.ru_utime + used.ru_stime}
    )
  )


def measure(
  root: pathlib.Path, home: pathlib.Path, words: Sequence[str]
) -> dict[str, float]:
  """The seconds of a command in a process of its own."""
  with tempfile.TemporaryDirectory(prefix="start_") as folder:
    out = pathlib.Path(folder) / "seconds.json"
    subprocess.run(
      [
        sys.executable,
        pathlib.Path(__file__).resolve(),
        str(out),
        repr(time.time()),
        *words,
        f"--out_dir={folder}/run",
      ],
      cwd=root,
      check=True,
      stdout=subprocess.DEVNULL,
      env=dict(os.environ, HOME=str(home), JAX_PLATFORMS="cpu", PYTHONPATH=str(root)),
    )
    result: dict[str, float] = json.loads(out.read_text())
    return result


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the table."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--roots", default=".", help="checkouts, with commas")
  parser.add_argument("--repeats", type=int, default=3)
  flags = parser.parse_args(argv)
  roots = flags.roots.split(",")
  measurements: dict[tuple[str, str, str], list[dict[str, float]]] = {}
  for _ in range(flags.repeats):
    for name, words in COMMANDS.items():
      for root in roots:
        with tempfile.TemporaryDirectory(prefix="home_") as home:
          for time_of_day in ("first", "second"):
            measurements.setdefault((name, time_of_day, root), []).append(
              measure(pathlib.Path(root).resolve(), pathlib.Path(home), words)
            )
  columns = (*PHASES, "all", "CPU")
  print(f"| run | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
  for (name, which, checkout), rows in measurements.items():
    label = f"{name}, {which}" + (f", {checkout}" if len(roots) > 1 else "")
    print(
      f"| {label} | "
      + " | ".join(
        f"{timing.spread([row[column] for row in rows]).median:.1f}"
        for column in columns
      )
      + " |",
      flush=True,
    )
  return 0


if __name__ == "__main__":
  if len(sys.argv) > 3 and sys.argv[1].endswith("seconds.json"):
    side(sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4:])
  else:
    sys.exit(main())
