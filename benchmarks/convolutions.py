"""Cost of convolutions and their derivatives on a CPU, by the way they are made.

  python -m benchmarks.convolutions [--repeats=5] [--root=../before]

First a table of layers: value and both derivatives in a loop, as all local
steps are, on one core. Each column is a way: XLA's convolution as JAX
differentiates it (only of layers that are small, for it takes seconds),
convolutions in XLA's fast layout, and products of patches and kernel. It says
from how many input channels on ``convolution.WIDE`` should choose the former.

Then a table of whole steps of models: CPU milliseconds and the memory that the
program needs for its intermediate results. With --root, the same of the library
in another folder, measured in turn with this one, each in a process of its own.
"""

import argparse
from collections.abc import Callable, Sequence
import functools
import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import timing, workloads
import fedjax_alg as fa
from fedjax_alg import models
from fedjax_alg.base import Array
from fedjax_alg.client import objective
from fedjax_alg.engine import compiling
from fedjax_alg.models import convolution

STEPS = 2  #: of a loop
SMALL = 100e6  #: multiplications of a value for which XLA's own is timed


class LayerShape(NamedTuple):
  """Images and kernel of a layer."""

  batch: int
  side: int
  inputs: int
  size: int
  outputs: int
  padding: str

  def __str__(self) -> str:
    return (
      f"{self.batch}, {self.side} x {self.side} x {self.inputs}, "
      f"{self.size} x {self.size} x {self.outputs} {self.padding}"
    )


LAYERS = (
  LayerShape(64, 28, 1, 5, 6, "VALID"),
  LayerShape(64, 12, 6, 5, 16, "VALID"),
  LayerShape(10, 28, 1, 5, 32, "VALID"),
  LayerShape(10, 12, 32, 5, 64, "VALID"),
  LayerShape(50, 12, 32, 5, 64, "VALID"),
  LayerShape(20, 32, 3, 3, 16, "SAME"),
  LayerShape(20, 16, 16, 3, 32, "SAME"),
  LayerShape(10, 14, 16, 3, 32, "SAME"),
  LayerShape(20, 32, 16, 3, 16, "SAME"),
  LayerShape(50, 32, 3, 5, 64, "SAME"),
  LayerShape(50, 16, 64, 3, 192, "SAME"),
  LayerShape(20, 32, 64, 3, 64, "SAME"),
  LayerShape(20, 16, 128, 3, 128, "SAME"),
  LayerShape(20, 8, 256, 3, 256, "SAME"),
  LayerShape(20, 4, 512, 3, 512, "SAME"),
)


class Step(NamedTuple):
  """A model and the batch of a step."""

  model: models.Architecture
  shape: tuple[int, ...]
  batch: int


LENET = ("valid5-6", "max2", "valid5-16", "max2", "dense120", "dense84")
PFLLIB = ("valid5-32", "max2", "valid5-64", "max2", "dense512")
MODELS = {
  "LeNet": Step(models.Stack(LENET), (28, 28), 64),
  "CNN of PFLlib": Step(models.Stack(PFLLIB), (28, 28), 10),
  "CNN of the peers": Step(models.CNN(), (32, 32, 3), 20),
  "ResNet-18, 16 channels": Step(models.ResNet18(width=16), (32, 32, 3), 20),
  "ResNet-18": Step(models.ResNet18(), (32, 32, 3), 20),
}


def ways() -> dict[str, Callable[..., Array]]:
  """The columns of the table of layers."""
  from fedjax_alg.extras import convolution as on_cpu  # an older version has none

  return {
    "XLA's": convolution.by_xla,
    "convolutions": on_cpu._by_convolutions,
    "products": on_cpu._by_product,
  }


def layer_program(shape: LayerShape, way: Callable[..., Array]) -> tuple[Any, Any]:
  """A loop over value and both derivatives, and its arguments."""
  rng = np.random.default_rng(0)
  arrays = tuple(
    jnp.asarray(rng.normal(size=sizes), jnp.float32)
    for sizes in (
      (shape.batch, shape.side, shape.side, shape.inputs),
      (shape.size, shape.size, shape.inputs, shape.outputs),
    )
  )

  def step(_, arrays):
    out, transpose = jax.vjp(lambda *a: way(*a, shape.padding, 1), *arrays)
    return tuple(a - 1e-6 * b for a, b in zip(arrays, transpose(out)))

  def loop(*arrays):
    return jax.lax.fori_loop(0, STEPS, step, arrays)

  return timing.compile_program(loop, *arrays)[0], arrays


def layer_table(repeats: int) -> None:
  """Prints a line for each layer."""
  columns = ways()
  print(f"| layer | {' | '.join(f'{name}, ms' for name in columns)} |")
  print("|---" * (len(columns) + 1) + "|")
  for shape in LAYERS:
    work = shape.batch * shape.side**2 * shape.size**2 * shape.inputs * shape.outputs
    programs = {
      name: layer_program(shape, way)
      for name, way in columns.items()
      if name != "XLA's" or work < SMALL
    }
    cells = measure(programs, repeats)
    print(f"| {shape} | {' | '.join(cells.get(name, '') for name in columns)} |")


def measure(programs: dict[str, tuple[Any, Any]], repeats: int) -> dict[str, str]:
  """name -> CPU milliseconds of a step, median and least."""
  for program, arrays in programs.values():
    jax.block_until_ready(program(*arrays))

  def once(name: str, _: int) -> float:
    program, arrays = programs[name]
    return timing.cpu_seconds(program, *arrays) / STEPS * 1e3

  seconds = timing.in_turn(
    {name: functools.partial(once, name) for name in programs}, repeats
  )
  return {
    name: "{1:,.2f} ({0:,.2f})".format(*timing.spread(values))
    for name, values in seconds.items()
  }


def model_program(step: Step) -> tuple[Any, Any]:
  """A loop over steps of SGD, and its arguments."""
  model = step.model.build(step.shape, 10)
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.random((STEPS, step.batch, *step.shape)), jnp.float32)
  y = jnp.asarray(rng.integers(0, 10, (STEPS, step.batch)), jnp.int32)

  def loop(params, x, y):
    def move(k, params):
      _, slope = objective.batch_value_and_grad(
        model, params, x[k], y[k], jnp.ones(step.batch, bool), None
      )
      return jax.tree.map(lambda leaf, g: leaf - 0.01 * g, params, slope)

    return jax.lax.fori_loop(0, STEPS, move, params)

  arguments = model.init(jax.random.key(0)), x, y
  lowered: Any = jax.jit(loop).lower(*arguments)
  return lowered.compile(compiling.options("cpu")), arguments


def serve(names: Sequence[str]) -> None:
  """Compiles the models' steps, and times one whenever a line asks for it."""
  programs = {name: model_program(MODELS[name]) for name in names}
  for program, arrays in programs.values():
    jax.block_until_ready(program(*arrays))
  memory = {
    name: program.memory_analysis().temp_size_in_bytes
    for name, (program, _) in programs.items()
  }
  print(json.dumps(memory), flush=True)
  for line in sys.stdin:
    program, arrays = programs[line.strip()]
    print(timing.cpu_seconds(program, *arrays) / STEPS * 1e3, flush=True)


def model_table(roots: Sequence[str], names: Sequence[str], repeats: int) -> None:
  """Prints a line for each model and folder."""
  sides = {
    root: subprocess.Popen(
      [sys.executable, os.path.abspath(__file__), "--serve", *names],
      env=os.environ | {"PYTHONPATH": os.path.abspath(root)},
      cwd=root,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    for root in roots
  }
  memory = {
    root: json.loads(side.stdout.readline() if side.stdout else "")
    for root, side in sides.items()
  }

  def once(name: str, root: str, _: int) -> float:
    side = sides[root]
    assert side.stdin and side.stdout
    side.stdin.write(name + "\n")
    side.stdin.flush()
    return float(side.stdout.readline())

  print("| model | folder | CPU ms a step: median (least) | memory, MB |")
  print("|---|---|---|---|")
  for name in names:
    values = timing.in_turn(
      {root: functools.partial(once, name, root) for root in roots}, repeats
    )
    for root in roots:
      spread = timing.spread(values[root])
      print(
        f"| {name} | {root} | {spread.median:,.2f} ({spread.least:,.2f}) | "
        f"{memory[root][name] / 1e6:,.1f} |",
        flush=True,
      )
  for side in sides.values():
    side.communicate()


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the tables."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--repeats", type=workloads.whole_number, default=5)
  parser.add_argument("--root", help="a folder with another version of the library")
  parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
  parser.add_argument("--no_layers", action="store_true", help="leave the layers out")
  parser.add_argument("--serve", nargs="+", choices=MODELS, help=argparse.SUPPRESS)
  args = parser.parse_args(argv)
  if hasattr(os, "sched_setaffinity"):  # XLA would share kernels out to cores
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
  fa.start(1)
  if args.serve:
    serve(args.serve)
    return 0
  if not args.no_layers:
    layer_table(args.repeats)
    print()
  model_table([args.root, "."] if args.root else ["."], args.models, args.repeats)
  return 0


if __name__ == "__main__":
  sys.exit(main())
