"""All that docs/speed.md says to time on a GPU, by one command.

  python -m benchmarks.gpu --data_dir=~/tensorflow_datasets --out=gpu

It takes at most 20 minutes. Every step is a process with a time limit; one that
fails or takes too long is named with the reason, and the others go on. --out
gets results.json with the last lines of every step, results.md with the table,
and the folders of the runs. ``--device=cpu --quick`` makes small versions of
the same steps without a GPU, to try the command itself.
"""

import argparse
from collections.abc import Sequence
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import Any, NamedTuple

from benchmarks import sweep
from fedjax_alg.engine import clients

BUDGET_S = 1170  #: of all steps
KEPT_LINES = 40
_NUMBER = r"\s+[\d.]+\s+([\d.]+)\s+[\d.]+"  #: least, (median), greatest


class Step(NamedTuple):
  """A command to start, and the figures to read from its output."""

  name: str
  words: tuple[str, ...]  #: after "python -m"; OUT is the step's folder
  limit: int  #: seconds
  #: what -> pattern of the output; of runs those of ``SUMMARY`` are read, too
  figures: dict[str, str] = {}
  quick: tuple[str, ...] = ()  #: further words with --quick


#: what -> its place in summary.json
SUMMARY = {
  "ms a round": ("timing", "steady_s_per_round"),
  "compile, s": ("timing", "compile_s"),
  "peak of host, MB": ("peak_memory_mb",),
}
SMALL = (
  "--dataset=digits",
  "--partition=iid",
  "--num_clients=8",
  "--cohort_size=4",
  "--rounds=2",
  "--eval_every=1",
  "--local_epochs=1",
)
POWERLAW = (
  "experiments.run",
  "--algorithm=fedavg",
  "--dataset=mnist",
  "--partition=powerlaw",
  "--num_clients=1000",
  "--batch_size=10",
  "--client_lr=0.03",
  "--noprogress",
  "--out_dir=OUT",
)
#: model -> its flags on POWERLAW, by the operations of a step
MODELS = {
  "softmax": (
    "--features=flatten",
    "--model=softmax",
    "--local_epochs=20",
    "--rounds=40",
    "--eval_every=10",
  ),
  "MLP 128": (
    "--features=flatten",
    "--model=mlp",
    "--local_epochs=5",
    "--rounds=20",
    "--eval_every=10",
  ),
  "CNN": ("--model=cnn", "--local_epochs=2", "--rounds=10", "--eval_every=5"),
}
RESNET = (
  "experiments.run",
  "--algorithm=fedavg",
  "--dataset=cifar10",
  "--partition=dirichlet",
  "--num_clients=100",
  "--cohort_size=10",
  "--model=resnet18",
  "--batch_size=50",
  "--client_lr=0.05",
  "--local_epochs=1",
  "--rounds=6",
  "--eval_every=3",
  "--noprogress",
  "--out_dir=OUT",
)
RATE = {
  "one step here, us": r"fedjax_alg  +" + _NUMBER.removeprefix(r"\s+"),
  "one step in FedJAX, us": r"\nfedjax  +" + _NUMBER.removeprefix(r"\s+"),
  "times faster": r"FedJAX / fedjax_alg" + _NUMBER,
}
FEW = ("--rounds=1", "--repeats=1")


def steps() -> list[Step]:
  """All steps, in the order in which they run."""
  rates = ",".join(sweep.rates_of(32))
  marked = sorted(
    str(path)
    for path in pathlib.Path("tests").rglob("test_*.py")
    if "mark.gpu" in path.read_text("utf-8")
  )
  maps = [
    Step(
      f"FedAvg, {model}, {size} a round, {mode}",
      (*POWERLAW, *words, f"--cohort_size={size}", f"--map_clients={mode}"),
      60,
      quick=SMALL,
    )
    for model, words in MODELS.items()
    for size in (20, 100)
    for mode in clients.MODES
    # Softmax regression one after the other takes longer than all the rest.
    if mode != "sequential" or model == "CNN"
  ]
  resnets = [
    Step(
      f"ResNet-18, GroupNorm, CIFAR-10, 10 of 100 clients, {precision}, {mode}",
      (*RESNET, f"--compute_dtype={precision}", f"--map_clients={mode}"),
      150,
      quick=(*SMALL, "--model=resnet18:width=2"),
    )
    for precision in ("float32", "bfloat16")
    for mode in clients.MODES
    if mode != "vmap" or precision == "float32"
  ]
  return [
    Step(
      "tests marked gpu",
      ("pytest", "-m", "gpu", "-n", "0", "-q", *marked),
      300,
      {"tests": r"((?:\d+ \w+, )*\d+ (?:passed|skipped|failed).*) in"},
    ),
    Step(
      "against FedJAX, softmax regression",
      ("benchmarks.vs_fedjax", "--rounds=3", "--repeats=3"),
      120,
      RATE,
      FEW,
    ),
    Step(
      "against FedJAX, CNN",
      ("benchmarks.vs_fedjax", "--model=cnn", "--rounds=2", "--repeats=2"),
      150,
      RATE,
      FEW,
    ),
    Step(
      "GA-FSVRG by phase",
      ("benchmarks.phases",),
      120,
      {
        "a round, ms": "round, in a run" + _NUMBER,
        "passes, ms": "full passes, K models" + _NUMBER,
        "local training, ms": "local training" + _NUMBER,
        "grouping, ms": "grouping" + _NUMBER,
      },
      FEW,
    ),
    *maps,
    Step(
      "a sweep, 32 rates x 5 seeds, 60 rounds, digits",
      (
        "experiments.sweep",
        sweep.PRESET,
        "--num_seeds=5",
        "--noprogress",
        f"--sweep=client_lr={rates}",
        "--out_dir=OUT",
      ),
      150,
      quick=("--rounds=2", "--num_seeds=2"),
    ),
    *resnets,
    Step(
      "FedACnnL on CIFAR-10, closed form",
      (
        "experiments.run",
        "--flagfile=analytic/cifar10.flags",
        "--flagfile=analytic/methods_cifar10/fedacnnl.flags",
        "--noprogress",
        "--out_dir=OUT",
      ),
      120,
      quick=(
        "--dataset=digits",
        "--num_clients=4",
        "--model=stack:conv3-8",
        "--ridge=1",
      ),
    ),
    Step(
      "memory of 100 participants",
      ("benchmarks.memory", "--models", "mlp 2048^2", "cnn"),
      120,
      {
        "MLP, temporaries of sums, MB": r"mlp 2048\^2 .* sum +([\d.,]+)",
        "CNN, temporaries of sums, MB": r"cnn .* sum +([\d.,]+)",
      },
      ("--repeats=0", "--cohort=4"),
    ),
  ]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
  """Parses the flags."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument(
    "--data_dir", default=None, help="TFDS folder with MNIST and CIFAR-10"
  )
  parser.add_argument("--device", default="gpu", choices=("gpu", "cpu"))
  parser.add_argument(
    "--quick", action="store_true", help="small versions, to try the command"
  )
  parser.add_argument("--out", default="gpu", help="folder of the results")
  parser.add_argument(
    "--only", default="", help="the steps with this text in their names"
  )
  args = parser.parse_args(argv)
  args.steps = [step for step in steps() if args.only in step.name]
  if not args.steps:
    parser.error(
      f"--only={args.only}: no step has it in its name; they are "
      + "; ".join(step.name for step in steps())
    )
  return args


def environment(device: str) -> dict[str, str]:
  """The variables of all processes."""
  platforms = "cuda,cpu" if device == "gpu" else "cpu"
  return os.environ | {
    "JAX_PLATFORMS": platforms,
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
  }


def device_of(device: str) -> str:
  """Asks JAX, in a process of its own, which device it finds.

  Raises:
    SystemExit: it is not the device that is wanted.
  """
  probe = subprocess.run(
    [
      sys.executable,
      "-c",
      "import jax; print(jax.default_backend(), "
      "jax.devices()[0].device_kind, 'JAX', jax.__version__)",
    ],
    env=environment(device),
    text=True,
    capture_output=True,
  )
  if probe.returncode or not probe.stdout.startswith(device):
    sys.exit(
      f"gpu: --device={device}: JAX finds none (pip install -e "
      "'.[cuda12]', or --device=cpu --quick to try the command)"
    )
  return probe.stdout.strip()


def run(step: Step, args: argparse.Namespace, time_left: float) -> dict[str, Any]:
  """Runs a step and reads its figures."""
  folder = pathlib.Path(args.out) / re.sub(r"\W+", "_", step.name)
  words = [
    word.replace("OUT", str(folder))
    for word in (*step.words, *(step.quick if args.quick else ()))
  ]
  on_digits = args.quick and step.words[0].startswith("experiments")
  if (
    args.data_dir
    and not on_digits
    and "digits" not in step.name
    and (step.words[0] != "pytest")
  ):
    words.append(f"--data_dir={args.data_dir}")
  result: dict[str, Any] = {
    "name": step.name,
    "command": " ".join(["python -m", *words]),
    "reason": "",
    "figures": {},
  }
  # Small versions are for a CPU, where compiling takes the time.
  began = time.monotonic()
  limit = min(step.limit * (3 if args.quick else 1), time_left)
  try:
    done = subprocess.run(
      [sys.executable, "-m", *words],
      env=environment(args.device),
      text=True,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      timeout=limit,
    )
    text = done.stdout
    lines = [line for line in text.splitlines() if line.strip()]
    if done.returncode:
      result["reason"] = lines[-1] if lines else f"status {done.returncode}"
  except subprocess.TimeoutExpired as late:
    output: Any = late.stdout or b""
    text = output if isinstance(output, str) else output.decode(errors="replace")
    result["reason"] = f"took longer than {limit:.0f} s"
  result |= {
    "seconds": time.monotonic() - began,
    "output": text.splitlines()[-KEPT_LINES:],
  }
  for figure, pattern in step.figures.items():
    if match := re.search(pattern, text):
      result["figures"][figure] = match[1]
  if (summary := folder / "summary.json").exists() and not result["reason"]:
    run_summary = json.loads(summary.read_text("utf-8"))
    for figure, place in SUMMARY.items():
      value: Any = run_summary
      for key in place:
        value = value[key]
      value *= 1e3 if figure.startswith("ms") else 1
      result["figures"][figure] = f"{value:.4g}"
  if step.figures and not result["figures"] and not result["reason"]:
    result["reason"] = "its output has none of the figures"
  return result


def table(results: dict[str, Any]) -> str:
  """The table in Markdown."""
  lines = [
    f"{results['device']}{', small versions' * results['quick']}",
    "",
    "| step | figures | s in all |",
    "|---|---|---|",
  ]
  for step in results["steps"]:
    cells = [f"{figure} {value}" for figure, value in step["figures"].items()]
    if step["reason"]:
      cells.append("failed: " + step["reason"].replace("|", "/"))
    lines.append(
      f"| {step['name']} | {'; '.join(cells) or 'done'} | {step['seconds']:.0f} |"
    )
  return "\n".join(lines)


def main() -> None:
  """Runs all steps."""
  args = parse()
  results: dict[str, Any] = {
    "device": device_of(args.device),
    "quick": args.quick,
    "steps": [],
  }
  out = pathlib.Path(args.out)
  if out.exists() and any(out.iterdir()):
    sys.exit(f"gpu: --out={out}: is not empty")
  out.mkdir(parents=True, exist_ok=True)
  end = time.monotonic() + BUDGET_S
  for step in args.steps:
    time_left = end - time.monotonic()
    result = (
      run(step, args, time_left)
      if time_left > 1
      else {
        "name": step.name,
        "command": "",
        "figures": {},
        "seconds": 0.0,
        "reason": "no time was left",
        "output": [],
      }
    )
    results["steps"].append(result)
    print(table({**results, "steps": [result]}).splitlines()[-1], flush=True)
    (out / "results.json").write_text(json.dumps(results, indent=1), "utf-8")
    (out / "results.md").write_text(table(results) + "\n", "utf-8")
  print(f"\n{table(results)}\n\nwritten to {out}/results.json and results.md")


if __name__ == "__main__":
  main()
