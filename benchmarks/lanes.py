"""Counts the local steps that the client maps compute, and times their rounds.

  python -m benchmarks.lanes --data_dir=~/tensorflow_datasets

FedAvg on MNIST over 1,000 clients of power-law sizes, 20 epochs, batch 10.
Every turn of the loop over the local steps calls the host, which counts it and
the lanes that step in it, whether they have work or not:

- waste: lane-steps over the steps that the clients need;
- turns: of that loop in a round, the critical path;
- CPU seconds of a round on one core.

``vmap`` steps all participants together, ``lanes`` V; the lines with several
seeds vectorize these, too (``--map_seeds=vmap``).
"""

import argparse
from collections.abc import Sequence
import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import fedavg_sides, timing, workloads
from fedjax_alg import base, data, models, registry, trees
from fedjax_alg.client import minibatches, sgd
from fedjax_alg.data import layout
from fedjax_alg.engine import clients, sharding
from fedjax_alg.engine.keys import client_keys, run_keys
from fedjax_alg.engine.round import sample_cohort
from fedjax_alg.extras import lanes

WORK = minibatches.LocalWork(
  local_epochs=fedavg_sides.EPOCHS, batch_size=fedavg_sides.BATCH
)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
  """Parses the flags."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  workloads.add_flags(parser)
  parser.add_argument(
    "--cohorts",
    type=workloads.whole_number,
    nargs="+",
    default=[20, 100],
    help="numbers of participants",
  )
  parser.add_argument(
    "--lanes",
    type=workloads.whole_number,
    nargs="+",
    default=[],
    help="numbers of lanes a seed, beside the rule's",
  )
  parser.add_argument(
    "--seeds",
    type=workloads.whole_number,
    default=3,
    help="seeds that are computed at once",
  )
  parser.add_argument(
    "--rounds",
    type=workloads.whole_number,
    default=5,
    help="rounds whose steps are counted",
  )
  parser.add_argument(
    "--repeats", type=int, default=5, help="timed rounds of each map; 0: count only"
  )
  return parser.parse_args(argv)


class Counter:
  """Counter of the turns of a loop, and of lanes that stepped in all turns."""

  def __init__(self) -> None:
    self.turns = self.steps = 0

  def note(self, value: jax.Array) -> jax.Array:
    """Counts a turn and its lanes; returns zero. ``value`` [] is one per lane."""

    def count(values: np.ndarray) -> np.ndarray:
      self.turns += 1
      self.steps += values.size
      return np.zeros_like(values)

    zero: jax.Array = jax.pure_callback(
      count, jax.ShapeDtypeStruct((), jnp.float32), value, vmap_method="broadcast_all"
    )
    return zero


def count_steps(
  map_clients: base.MapClients, train: base.ClientData, rounds: Sequence[np.ndarray]
) -> Counter:
  """Local training in several rounds.

  Args:
    map_clients: the map.
    train: the clients' data.
    rounds: the clients of each round, [R, S]; the R rows train at once.
  """
  counter = Counter()
  model = models.Softmax().build((1,), 2)

  def correct(gradient, params, start):
    del start
    zero = counter.note(jax.tree.leaves(params)[0].ravel()[0])
    return jax.tree.map(lambda leaf: leaf + zero, gradient)

  def one_client(start, shard, key):
    return sgd.sgd(model, start, shard, WORK, 0.1, key, correct)

  def one_row(start, ids):
    cohort = layout.take_cohort(train, ids)
    return map_clients(
      one_client, start, cohort.shards, client_keys(jax.random.key(0), ids)
    )

  start = model.init(jax.random.key(0))
  run: Any = one_row
  if len(rounds[0]) == 1:
    rounds = [ids[0] for ids in rounds]
  else:  # every row has a model of its own
    start = trees.repeat(start, len(rounds[0]))
    run = jax.vmap(one_row)
  run = jax.jit(run)
  for ids in rounds:
    jax.block_until_ready(run(start, jnp.asarray(ids)))
  return counter


def maps(args: argparse.Namespace, slots: int, rows: int) -> dict[str, Any]:
  """name -> client map."""
  rule = lanes.default_lanes(slots, rows)
  return {
    "vmap": clients.ClientMap("vmap"),
    f"{rule} lanes, rule": clients.ClientMap("lanes"),
    **{
      f"{rows * per_row} lanes": clients.ClientMap("lanes", lanes=per_row)
      for per_row in args.lanes
    },
  }


def draw(train: base.ClientData, slots: int, seed: int, number: int) -> np.ndarray:
  """The participants of a round as a run draws them, [S]."""
  key = jax.random.fold_in(run_keys(seed).cohort, number)
  return np.asarray(sample_cohort(train, slots, key).ids)


def count(args: argparse.Namespace, fed: data.Federation, slots: int) -> None:
  """Prints waste and turns of every map."""
  # What the examples are does not change the number of steps.
  rows = len(fed.data.train.y)
  train = jax.tree.map(
    jnp.asarray,
    fed.data.train._replace(x=jnp.zeros((rows, 1)), y=jnp.zeros(rows, jnp.int32)),
  )
  size = np.asarray(train.size)
  for seeds in sorted({1, args.seeds}):
    rounds = [
      np.stack([draw(train, slots, seed, number) for seed in range(seeds)])
      for number in range(args.rounds)
    ]
    needed = sum(int(fedavg_sides.steps_of(size[ids]).sum()) for ids in rounds)
    longest = np.mean([fedavg_sides.steps_of(size[ids]).max() for ids in rounds])
    print(
      f"{slots} participants, {seeds} seeds: {needed / args.rounds:,.0f} "
      f"steps a round, {longest:,.0f} of the largest client"
    )
    for name, map_clients in maps(args, slots, seeds).items():
      counter = count_steps(map_clients, train, rounds)
      print(
        f"  {name:16} waste {counter.steps / needed:6.2f}   turns "
        f"{counter.turns / args.rounds:8,.0f}",
        flush=True,
      )


def time_rounds(args: argparse.Namespace, fed: data.Federation, slots: int) -> None:
  """Prints CPU seconds of a round, the maps in turn."""
  train = jax.tree.map(jnp.asarray, fed.data.train)
  shape = cast("tuple[int, ...]", fed.example_shape)
  model = models.Softmax().build(shape, fed.num_classes)
  spec = base.FedSpec(fed.num_clients, slots, fed.num_classes, shape)
  measures = {}

  def measure(program, state, repeat):
    return timing.cpu_seconds(program, state, train, jnp.int32(repeat))

  for name, map_clients in {
    "sequential": clients.ClientMap(),
    f"{lanes.default_lanes(slots)} lanes": clients.ClientMap("lanes"),
  }.items():
    algorithm = registry.build(
      "fedavg",
      model,
      map_clients=map_clients,
      client_lr=fedavg_sides.LEARNING_RATE,
      local_epochs=WORK.local_epochs,
      batch_size=WORK.batch_size,
    )
    key = jax.random.key(fedavg_sides.SEED)
    state = algorithm.init(model.init(key), spec, key)

    # pylint: disable-next=cell-var-from-loop
    def run_round(state, train, number, algorithm=algorithm):
      key = jax.random.fold_in(jax.random.key(fedavg_sides.SEED), number)
      cohort = sample_cohort(train, slots, key)
      return algorithm.round(state, cohort, key)[0]

    program, _ = timing.compile_program(jax.jit(run_round), state, train, jnp.int32(0))
    measures[name] = functools.partial(measure, program, state)
  seconds = timing.in_turn(measures, args.repeats + 1)
  print(f"{slots} participants, CPU s a round:  least median greatest")
  for name, values in seconds.items():
    print(f"  {name:14} {timing.spread(values[1:]).text(3)}", flush=True)


def main() -> None:
  """Prints the tables."""
  args = parse()
  sharding.use_host_cores(1)
  fed = workloads.powerlaw(args)
  print(
    f"FedAvg on {fed.name}, {fed.num_clients} clients, E = "
    f"{WORK.local_epochs}, B = {WORK.batch_size}; JAX {jax.__version__}"
  )
  for slots in args.cohorts:
    count(args, fed, slots)
    if args.repeats:
      time_rounds(args, fed, slots)


if __name__ == "__main__":
  main()
