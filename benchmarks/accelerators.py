"""Compiles every algorithm for accelerators that are not there.

  pip install -e .[aot]            (a virtual environment of its own is best)
  python -m benchmarks.accelerators --algorithms=fedavg,scaffold
  python -m benchmarks.accelerators --targets=v5e --dataset=mnist --model=cnn

XLA's compilers for a TPU (in libtpu) and an NVIDIA GPU (in JAX's CUDA plugin,
with ptxas) need no such device. This benchmark compiles the programs of a run,
its start, its rounds and its evaluation, as ``fa.run`` would on that machine,
and prints for each algorithm and target:

- the time and the CPU time of tracing and compiling all three programs;
- the memory of the largest program on one device: what it reads (arguments)
  and what it needs besides (temporaries, on a GPU with 34 MB for cuBLAS);
- kernels: what a device executes in one local step, the loops inside it not
  counted; of several loops of local steps the largest. On a GPU each is a
  launch of some microseconds;
- collectives: exchanges between the devices of a round, and those in loops
  inside a round, which are executed many times.

A dash: the program has no such loop. Times on the device are not estimated.
Other flags are those of ``experiments.run``.
"""

import argparse
from collections.abc import Iterator, Sequence
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

_FOLDER = pathlib.Path(__file__).resolve().parent
DEFAULTS = (
  "--dataset=digits",
  "--partition=classes",
  "--num_clients=60",
  "--num_seeds=3",
)
# Compiling takes no chip, so other processes may use libtpu at the same time.
_LIBTPU = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-4",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
#: No accelerator is looked for, nothing is taken from earlier compilations.
_QUIET = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}


class Target(NamedTuple):
  """A machine to compile for."""

  about: str
  platform: str
  topology: dict[str, Any]  #: arguments of ``get_topology_desc``
  devices: int  #: how many of the topology's
  needs: tuple[str, ...]  #: modules
  env: dict[str, str]  #: environment variables of its compiler


_V5E = Target(
  "one TPU v5e", "tpu", {"topology_name": "v5e:2x2"}, 1, ("libtpu",), _LIBTPU
)
# Autotuning would run kernels on the device; without it some products of small
# matrices have no Triton kernel, so all are cuBLAS's.
_H100 = Target(
  "one H100",
  "cuda",
  {"topology_name": "", "topology": "1x1x1"},
  1,
  ("jax_plugins.xla_cuda12", "nvidia.cuda_nvcc"),
  {"XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"},
)
TARGETS = {
  "v5e": _V5E,
  "v5e_2x2": _V5E._replace(about="four TPU v5e", devices=4),
  "h100": _H100,
  "h100_x4": _H100._replace(
    about="four H100", topology={"topology_name": "", "topology": "1x1x4"}, devices=4
  ),
}
#: Those of the table in docs/speed.md.
USUAL = "v5e,v5e_2x2,h100"


def parse(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
  """Parses the flags and returns those of ``experiments.run`` beside them."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").split("\n", maxsplit=1)[0],
    allow_abbrev=False,
    epilog=f"other flags: those of experiments.run, default {' '.join(DEFAULTS)}",
  )
  parser.add_argument(
    "--algorithms", default="all", help="names of the registry, comma separated"
  )
  parser.add_argument("--targets", default=USUAL, help=f"some of {','.join(TARGETS)}")
  parser.add_argument(
    "--out",
    type=pathlib.Path,
    help="JSON lines; what is in this file already is not compiled again",
  )
  parser.add_argument("--compile_here", action="store_true", help=argparse.SUPPRESS)
  args, flags = parser.parse_known_args(argv)
  args.targets = args.targets.split(",")
  for name in args.targets:
    if name not in TARGETS:
      parser.error(f"--targets={name}: unknown, one of {', '.join(TARGETS)}")
    missing = [module for module in TARGETS[name].needs if not _has(module)]
    if missing:
      parser.error(
        f"--targets={name}: needs {' and '.join(missing)}: pip "
        "install -e .[aot] (Linux on x86-64)"
      )
  for flag in flags:
    if not flag.startswith("--") or flag.startswith("--algorithm="):
      parser.error(
        f"{flag}: not a flag of a run (allowed: --name=value; "
        "algorithms are named by --algorithms)"
      )
  return args, [*DEFAULTS, *flags]


def _has(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:  # its parent
    return False


def flags_of(name: str, flags: Sequence[str]) -> list[str]:
  """The flags of one algorithm's run: what it cannot do without comes first."""
  # pylint: disable=g-import-not-at-top
  from fedjax_alg.errors import OptionError
  from fedjax_alg.runs import methods

  # pylint: enable=g-import-not-at-top
  method = methods.method_of(name)
  words = [f"--algorithm={name}", "--dry_run"]
  if method.entry.needs_validation(method.hparams):
    words.append("--validation_clients=3")
  if method.entry.rounds is not None:
    try:
      methods.check_builds(method, 2)
      words.append("--model=mlp")  # a layer a round
    except OptionError:
      pass
  return [*words, *flags]


def facts_of(programs: Any, cpu_s: float) -> dict[str, Any]:
  """Collects what the compiler says about the programs of a run.

  Args:
    programs: the ``runs.programs.Programs``.
    cpu_s: the CPU seconds of compiling them.
  """
  from benchmarks import hlo  # pylint: disable=g-import-not-at-top
  from fedjax_alg.client import minibatches  # pylint: disable=C0415
  from fedjax_alg.engine import loop  # pylint: disable=C0415

  sizes = [program.memory_analysis() for program in programs.executables.values()]
  text = hlo.computations(programs.executables["rounds"].as_text())
  steps = [hlo.size(text, body) for body in hlo.bodies(text, minibatches.STEP)]
  rounds = [hlo.collectives(text, body) for body in hlo.bodies(text, loop.ROUND)]
  plan = programs.prepared.plan
  return {
    "compile_s": programs.compile_s,
    "compile_cpu_s": cpu_s,
    "temporary_mb": max(size.temp_size_in_bytes for size in sizes) / 1e6,
    "arguments_mb": max(size.argument_size_in_bytes for size in sizes) / 1e6,
    "kernels": max(steps, default=None),
    "collectives": max(rounds, default=None),
    "map_clients": plan["map_clients"],
    "map_seeds": plan["map_seeds"],
  }


def compile_target(target: Target, name: str, flags: Sequence[str]) -> dict[str, Any]:
  """Compiles one algorithm; the process must be one of ``target``."""
  # pylint: disable=g-import-not-at-top
  import jax
  from jax.experimental import topologies

  from experiments.cli import config
  from fedjax_alg.engine import sharding
  from fedjax_alg.runs.programs import Programs

  # pylint: enable=g-import-not-at-top
  options = dict(target.topology)
  if target.platform == "cuda":
    options["target_config"] = (_FOLDER / "h100.txtpb").read_text("utf-8")
  topology = topologies.get_topology_desc(platform=target.platform, **options)
  mesh = jax.make_mesh(
    (target.devices,),
    (sharding.AXIS,),
    axis_types=(jax.sharding.AxisType.Auto,),
    devices=topology.devices[: target.devices],
  )
  prepared = config.parse_config(flags_of(name, flags)).prepare(mesh=mesh)
  began = time.process_time()
  return facts_of(Programs(prepared), time.process_time() - began)


def work(args: argparse.Namespace, flags: Sequence[str]) -> None:
  """The process of one target: prints one line of JSON for each algorithm."""
  (target,) = args.targets
  for name in args.algorithms.split(","):
    try:
      facts = compile_target(TARGETS[target], name, flags)
    except Exception as error:  # pylint: disable=broad-except
      lines = str(error).splitlines() or [type(error).__name__]
      facts = {"failed": lines[0]}
    print(
      json.dumps({"target": target, "algorithm": name, "flags": flags} | facts),
      flush=True,
    )


def answers(
  target: str, names: Sequence[str], flags: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Compiles algorithms for one target in a process of its own.

  The compilers read the environment when they start. Where a compiler ends its
  process, another one takes up the rest.

  Args:
    target: one of ``TARGETS``.
    names: the algorithms.
    flags: flags of ``experiments.run``.

  Yields:
    The facts of each algorithm, or {"failed": a line}, as they come.
  """
  remaining = list(names)
  env = os.environ | TARGETS[target].env | _QUIET
  while remaining:
    with (
      tempfile.TemporaryFile("w+") as log,
      subprocess.Popen(
        [
          sys.executable,
          "-m",
          "benchmarks.accelerators",
          "--compile_here",
          f"--targets={target}",
          f"--algorithms={','.join(remaining)}",
          *flags,
        ],
        env=env,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
      ) as process,
    ):
      assert process.stdout is not None
      for line in process.stdout:
        if line.startswith('{"target"'):
          remaining.pop(0)
          yield json.loads(line)
      if process.wait() and remaining:
        log.seek(0)
        log_lines = [line.strip() for line in log if line.strip()]
        yield {
          "target": target,
          "algorithm": remaining.pop(0),
          "flags": flags,
          "failed": f"the compiler ended with status {process.returncode}"
          + (f": {log_lines[-1]}" if log_lines else ""),
        }


def row(facts: dict[str, Any]) -> str:
  """A line of the table."""
  start = f"{facts['algorithm']:12} {facts['target']:8}"
  if "failed" in facts:
    return f"{start} failed: {facts['failed'][:200]}"
  kernels, loops = facts["kernels"] or ("-", 0)
  once, inside = facts["collectives"] or ("-", 0)
  return (
    f"{start} {facts['compile_s']:9.1f} {facts['compile_cpu_s']:7.1f} "
    f"{facts['temporary_mb']:9.2f} {facts['arguments_mb']:9.2f} "
    f"{kernels:>7}{f' + {loops} loops' if loops else '':10} {once:>6}"
    + (f" + {inside} in loops" if inside else "")
  )


def main() -> None:
  """Prints the table."""
  args, flags = parse()
  if args.compile_here:
    work(args, flags[len(DEFAULTS) :])  # the parent has put the defaults in
    return
  os.environ.update(_QUIET)  # before JAX is imported
  from experiments.cli import config  # pylint: disable=g-import-not-at-top
  from fedjax_alg import errors, registry  # pylint: disable=C0415

  names = (
    list(registry.ALGORITHMS)
    if args.algorithms == "all"
    else args.algorithms.split(",")
  )
  try:
    for name in names:
      config.parse_config(flags_of(name, flags))
  except errors.OptionError as error:
    sys.exit(f"error: {error}")
  earlier = {}
  if args.out and args.out.exists():
    for line in args.out.read_text("utf-8").splitlines():
      facts = json.loads(line)
      if facts["flags"] == flags:
        earlier[facts["target"], facts["algorithm"]] = facts
  for target in args.targets:
    print(f"{target}: {TARGETS[target].about}")
  print(
    f"{' '.join(flags)}; load average {os.getloadavg()[0]:.1f} on "
    f"{os.cpu_count()} cores"
  )
  print(
    f"{'':21} {'compile s':>9} {'CPU s':>7} {'temp. MB':>9} {'args MB':>9} "
    f"{'kernels a step':17} collectives a round"
  )
  for target in args.targets:
    for name in names:
      if (target, name) in earlier:
        print(row(earlier[target, name]))
    for facts in answers(
      target, [name for name in names if (target, name) not in earlier], flags
    ):
      print(row(facts), flush=True)
      if args.out:
        with args.out.open("a", encoding="utf-8") as out:
          print(json.dumps(facts), file=out)


if __name__ == "__main__":
  main()
