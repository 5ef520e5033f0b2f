"""Measures the memory and the time of a round by what it keeps.

  python -m benchmarks.memory --data_dir=~/tensorflow_datasets

A round whose server needs only means either keeps the vectors of all
participants or adds them up as they come (``exchange.stacking``). This
benchmark runs both, in turn, for large models on MNIST over 1,000 clients, and
prints the temporary memory of the compiled round, its CPU seconds, and how far
the two updates of the model are apart.
"""

import argparse
import functools
from typing import cast

import jax
import jax.numpy as jnp

from benchmarks import timing, workloads
from fedjax_alg import base, data, models, registry, trees
from fedjax_alg.engine import clients, compiling, sharding
from fedjax_alg.engine.round import sample_cohort
from fedjax_alg.exchange import stacking

#: name -> model
MODELS: dict[str, models.Architecture] = {
  "mlp 1024^2": models.MLP((1024, 1024)),
  "mlp 2048^2": models.MLP((2048, 2048)),
  "cnn": models.CNN(),
}
MB = 1e6


def parse() -> argparse.Namespace:
  """Parses the flags."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  workloads.add_flags(parser)
  parser.add_argument(
    "--algorithm", default="fedavg", help="a method made by rounds.two_halves.compose"
  )
  parser.add_argument(
    "--models",
    nargs="+",
    default=list(MODELS),
    choices=list(MODELS),
    metavar="MODEL",
    help=f"some of: {', '.join(MODELS)}",
  )
  parser.add_argument(
    "--cohort", type=workloads.whole_number, default=100, help="participants of a round"
  )
  parser.add_argument("--local_steps", type=workloads.whole_number, default=2)
  parser.add_argument(
    "--devices",
    type=workloads.whole_number,
    default=1,
    help="CPU cores that share the round",
  )
  parser.add_argument(
    "--repeats",
    default=3,
    type=functools.partial(workloads.whole_number, least=0),
    help="measured rounds of each kind; 0: compile only",
  )
  return parser.parse_args()


def measure(args: argparse.Namespace, fed: data.Federation, name: str) -> None:
  """Prints the two lines of one model."""
  shape = cast("tuple[int, ...]", fed.example_shape)
  model = MODELS[name].build(shape, fed.num_classes)
  mesh = sharding.clients_mesh()
  algorithm = registry.build(
    args.algorithm,
    model,
    local_steps=args.local_steps,
    map_clients=clients.ClientMap("sequential", mesh=mesh),
  )
  spec = base.FedSpec(fed.num_clients, args.cohort, fed.num_classes, shape)
  train = sharding.replicate(fed.data.train, mesh)
  key = sharding.replicate(jax.random.key(0), mesh)
  params = model.init(key)
  state = sharding.replicate(algorithm.init(params, spec, key), mesh)
  size = base.num_params(params)

  programs = {}
  for variant, limit in (("all", 2**62), ("sum", 0)):
    stacking.STACKED_BYTES = limit

    # A new function each time: the trace depends on the limit.
    def run_round(state, data, key):
      cohort = sample_cohort(data, args.cohort, key)
      # pylint: disable-next=cell-var-from-loop
      state, aux = algorithm.round(state, cohort, key)
      return state, aux.server["train_loss"]

    programs[variant], _ = timing.compile_program(
      jax.jit(
        run_round,
        out_shardings=sharding.replicated(mesh),
        compiler_options=compiling.options(jax.default_backend()),
      ),
      state,
      train,
      key,
    )
  results, seconds = {}, {variant: [float("nan")] for variant in programs}

  def measure(program, repeat):
    del repeat
    return timing.cpu_seconds(program, state, train, key)

  if args.repeats:
    results = {
      variant: program(state, train, key)[0].models
      for variant, program in programs.items()
    }
    seconds = timing.in_turn(
      {
        variant: functools.partial(measure, program)
        for variant, program in programs.items()
      },
      args.repeats,
    )
  for variant, program in programs.items():
    temporary = program.memory_analysis().temp_size_in_bytes
    print(
      f"{name:12} {size:10,} {variant:5} {temporary / MB:12,.1f}"
      f"{timing.spread(seconds[variant]).text()}",
      flush=True,
    )
  if results:
    gap = jnp.sqrt(
      trees.squared_norm(trees.subtract(results["all"], results["sum"]))
      / trees.squared_norm(trees.subtract(results["all"], state.models))
    )
    print(f"{'':12} relative difference of the updates {float(gap):.1e}")


def main() -> None:
  """Prints the table."""
  args = parse()
  sharding.use_host_cores(args.devices)
  fed = workloads.powerlaw(args, "none")
  print(
    f"{args.algorithm} on {fed.name}, {args.cohort} participants, "
    f"{args.local_steps} local steps; {args.devices} cores, JAX "
    f"{jax.__version__}"
  )
  print(
    f"{'model':12} {'floats':>10} {'kept':5} {'temporary MB':>12}"
    "  CPU s/round: least median greatest"
  )
  for name in args.models:
    measure(args, fed, name)


if __name__ == "__main__":
  main()
