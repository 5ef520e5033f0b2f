"""Times one round of MA-FSVRG or GA-FSVRG and each of its phases.

  python -m benchmarks.phases --data_dir=~/tensorflow_datasets

The data are MNIST-HoG over 400 clients of one or two classes, with 40 clients
per round, K = 4 models and the default hyper-parameters except for the warm-up
(threshold 0). The round is timed inside the program of a run. Each phase is
timed as a separate program with a start-up cost, so the phases sum up to a
little more than the round.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import rounds, timing, workloads
from fedjax_alg import base, trees
from fedjax_alg.algorithms import diversified
from fedjax_alg.central import adaptive
from fedjax_alg.client import objective, svrg
from fedjax_alg.engine import sharding
from fedjax_alg.engine.keys import client_keys
from fedjax_alg.engine.round import sample_cohort
from fedjax_alg.records import summary
from fedjax_alg.rounds.k_models import Stage

COHORT, SEED = 40, 0


def parse() -> argparse.Namespace:
  """Parses the flags."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  workloads.add_flags(parser)
  parser.add_argument(
    "--algorithm", default="ga_fsvrg", choices=("ma_fsvrg", "ga_fsvrg")
  )
  parser.add_argument(
    "--rounds",
    type=workloads.whole_number,
    default=10,
    help="rounds of one measurement",
  )
  parser.add_argument(
    "--repeats",
    type=workloads.whole_number,
    default=10,
    help="measurements of the round and of each phase",
  )
  return parser.parse_args()


def phases(
  model: base.Model, hparams: Any, by_gradient: bool, map_clients: base.MapClients
) -> dict[str, Callable[..., Any]]:
  """Makes the phases: name -> function of the values known at that point."""
  central = adaptive(
    hparams.server_lr, hparams.beta1, hparams.beta2, hparams.eps, hparams.central_rule
  )

  def full_passes(at):
    def one_client(models_, shard):
      return jax.vmap(
        lambda params: objective.full_value_and_grad(model, params, shard)
      )(models_)

    return map_clients(one_client, at["models"], at["cohort"].shards)

  def train(at):
    def one_client(shared, shard, k, key):
      models_, anchors, share = shared
      return svrg.svrg(
        model,
        trees.index(models_, k),
        trees.index(models_, k),
        trees.index(anchors, k),
        shard,
        hparams,
        svrg.normalised_rate(hparams.client_lr, shard),
        key,
        svrg.feature_scaling(shard, share),
      )[0]

    return map_clients(
      one_client,
      (at["models"], at["anchors"], at["share"]),
      at["cohort"].shards,
      at["preference"],
      client_keys(at["key"], at["cohort"].ids),
    )

  def gradients(at):
    return map_clients(
      lambda _, shard, params: objective.full_value_and_grad(model, params, shard)[1],
      (),
      at["cohort"].shards,
      at["trained"],
    )

  def group(at):
    vectors = at["gradients"] if by_gradient else at["trained"]
    centres = at["anchors"] if by_gradient else at["models"]
    return diversified.group_vectors(
      hparams, vectors, centres, at["cohort"].present, Stage(None, jnp.bool_(False))
    )

  def step(at):
    anchors = trees.slot_mean(at["cohort"].weight, at["passes"][1])
    return jax.vmap(central.update)(anchors, at["moments"])

  def sample(at):
    cohort = sample_cohort(at["data"], COHORT, at["key"])
    return cohort.ids, cohort.shards.offset, cohort.weight

  return {
    "cohort sampling": sample,
    "full passes, K models": full_passes,
    "local training": train,
    **({"gradients of the trained": gradients} if by_gradient else {}),
    "grouping": group,
    "full passes after the step": full_passes,
    "mean and central step": step,
  }


def steady_run(args: argparse.Namespace) -> rounds.Rounds:
  """Times the round inside a run and returns the run in its steady state."""
  fed = workloads.one_or_two_classes(args)
  run = rounds.Rounds(
    fed, args.algorithm, {"threshold": 0}, COHORT, SEED, args.rounds, "softmax", l2=1e-4
  )
  seconds = [
    run.time_rounds(i * args.rounds) / args.rounds for i in range(args.repeats + 1)
  ]
  print(
    f"{args.algorithm} on {fed.name}, HoG, {fed.num_clients} clients, "
    f"{COHORT} a round; {summary.device()}, JAX {jax.__version__}"
  )
  print(f"{'milliseconds':28}    least     median   greatest  compile s")
  timing.row("round, in a run", timing.spread(seconds[1:]), run.compile_s)
  return run


def main() -> None:
  """Prints the table."""
  args = parse()
  sharding.use_host_cores()
  run = steady_run(args)
  state = jax.tree.map(lambda leaf: leaf[0], run.state)
  at = {
    "data": run.train,
    "models": state.models,
    "moments": state.server,
    "share": state.memory.share,
    "key": jax.random.key(SEED),
  }
  at = sharding.replicate(at, run.mesh)
  at["cohort"] = jax.jit(sample_cohort, static_argnums=1)(run.train, COHORT, at["key"])
  by_gradient = args.algorithm == "ga_fsvrg"
  total = 0.0
  for name, phase in phases(
    run.model, run.hparams, by_gradient, run.map_clients
  ).items():
    out, seconds, compile_seconds = timing.steady(phase, at, repeats=args.repeats)
    timing.row("  " + name, seconds, compile_seconds)
    total += seconds.median
    if name.startswith("full passes"):
      at["passes"] = out
      at["anchors"] = trees.slot_mean(at["cohort"].weight, out[1])
      at["preference"] = jnp.argmin(out[0], axis=1).astype(jnp.int32)
    elif name == "local training":
      at["trained"] = out
    elif name == "gradients of the trained":
      at["gradients"] = out
  print(f"{'  sum of the medians':28}{'':11}{1e3 * total:9.2f}")
  print(f"peak memory of the process: {timing.peak_megabytes():.0f} MB")


if __name__ == "__main__":
  main()
